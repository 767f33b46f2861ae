"""A trial as a user sees it, and what cannot be tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import SettingsError
from holdfast.rehearsal import Trial

TRIAL = Trial(
    table="lake.ml.enriched",
    rows=pa.table({"id": [1, 2], "label": ["a chair", "x" * 300]}),
    failed=pa.table({"key": [{"id": 7}], "error": ["ValueError: no text\nat all"]}),
    tried_rows=3,
    input_rows=3_000,
    output_rows=2,
    cost=0.006,
    seconds=6.1,
)


def test_a_trial_shows_rows_failures_and_what_all_would_cost() -> None:
    """One fact a line, however long a value is, and whatever an error holds."""
    lines = str(TRIAL).splitlines()
    assert "  tried     3 of 3,000 rows" in lines
    assert "  output    2 rows that fit the table" in lines
    assert "  failed    1 row" in lines
    assert "  cost      0.006; about 6 for all rows" in lines
    assert "  row       id=1, label='a chair'" in lines
    assert max(map(len, lines)) < 200
    assert len(lines) == 9


def test_a_trial_without_costs_or_failures_does_not_speak_of_them() -> None:
    """Nor can nothing be extrapolated."""
    trial = replace(TRIAL, failed=None, cost=0.0)
    assert not [line for line in str(trial).splitlines() if "cost" in line or "failed" in line]
    assert replace(TRIAL, tried_rows=0).cost_of_all is None
    assert TRIAL.cost_of_all == pytest.approx(6.0)


@pytest.mark.parametrize("rows", [0, -1, 2.5, True, "20"])
def test_a_number_of_rows_that_is_none_is_refused(rows: Any) -> None:  # noqa: ANN401
    """Before anything is opened."""
    run = hf.Run("r", store="file:///nowhere")
    with pytest.raises(SettingsError, match="rows="):
        run.try_rows(object(), to="lake.a.b", key="id", transform=lambda rows: rows, rows=rows)
