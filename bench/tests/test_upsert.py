"""How the benchmark of an upsert checks its branches."""

from __future__ import annotations

from bench.upsert import Found


def test_a_branch_with_a_doubled_or_missing_row_is_found() -> None:
    """As many keys as rows, and all merged rows."""
    assert not Found(rows=12_250_000, keys=12_250_000, merged=500_000).problem()
    doubled = Found(rows=12_250_001, keys=12_250_000, merged=500_000)
    assert doubled.problem() == "rows is 12250001, not 12250000"
    assert Found(rows=12_250_000, keys=12_250_000, merged=499_999).problem()
