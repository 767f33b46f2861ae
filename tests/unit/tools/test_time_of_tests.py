"""What keeps CI within its time: a third of large tables, and nothing begun too late."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import SEED_VARIABLE, UNTIL_VARIABLE, draw, pytest_runtest_setup


def test_a_test_that_begins_too_late_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the limit, and without one, no test is skipped."""
    monkeypatch.delenv(UNTIL_VARIABLE, raising=False)
    pytest_runtest_setup()
    monkeypatch.setenv(UNTIL_VARIABLE, str(time.time() + 60))
    pytest_runtest_setup()
    monkeypatch.setenv(UNTIL_VARIABLE, str(time.time() - 1))
    with pytest.raises(pytest.skip.Exception, match="the time for tests ended"):
        pytest_runtest_setup()


def cases(name: str, count: int) -> list[Any]:
    """Return the cases of a test that is drawn from."""
    return [
        SimpleNamespace(
            nodeid=f"{name}[{number}]",
            marks=(marks := list[Any]()),
            get_closest_marker=lambda _name: True,
            add_marker=marks.append,
        )
        for number in range(count)
    ]


def test_a_third_of_a_large_table_is_drawn_and_another_seed_draws_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others are skipped, and the reason says how all are run."""
    monkeypatch.delenv("HOLDFAST_ALL", raising=False)
    drawn = set()
    for seed in range(40):
        monkeypatch.setenv(SEED_VARIABLE, str(seed))
        items = [*cases("t.py::test_a", 7), *cases("t.py::test_b", 2)]
        draw(items)
        kept = [item.nodeid for item in items if not item.marks]
        assert [len([name for name in kept if part in name]) for part in "ab"] == [3, 1]
        assert {item.marks[0].kwargs["reason"] for item in items if item.marks} == {
            f"not drawn with {SEED_VARIABLE}={seed}; HOLDFAST_ALL=1 runs all"
        }
        drawn |= set(kept)
    assert len(drawn) == 9
    monkeypatch.setenv("HOLDFAST_ALL", "1")
    items = cases("t.py::test_a", 7)
    draw(items)
    assert not any(item.marks for item in items)
