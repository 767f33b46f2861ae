"""The simulation's judge: it finds starts that fail without an excuse, and damage that we do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.simulation.deeds import DEEDS
from tests.simulation.guards import without
from tests.simulation.history import History
from tests.simulation.invariants import violations
from tests.simulation.judge import KINDS_OF_OTHERS
from tests.simulation.search import apart
from tests.simulation.setting import TableFormat
from tests.simulation.world import DiedError

_FORMATS: tuple[TableFormat, ...] = ("iceberg", "lance")
# The most histories to search until column names are swapped in one while a chunk waits.
_SLOW_HISTORIES = 400
# The most histories to search, one in ten of which replaces rows by a filter.
_FILTERED_HISTORIES = 2_000


def _wrong(
    table_format: TableFormat, others: Sequence[str], guard: str | None = None
) -> tuple[list[str], History]:
    """Return the violations in the simplest history in which others act, and the history."""
    # Decision 0 is "nothing special" everywhere; 1 as the first decision selects Lance.
    history = History(0, KINDS_OF_OTHERS, [int(table_format == "lance")])
    history.setting = replace(history.setting, others=tuple(others))
    found: list[str] = []

    def run() -> None:
        with without(guard):
            history.run()
            found.extend(violations(history))

    apart(run)
    return found, history


@pytest.mark.parametrize("table_format", _FORMATS)
def test_a_start_that_gives_up_too_soon_is_a_violation(table_format: TableFormat) -> None:
    """Other writers are not an excuse: a start that tries to commit only once is found."""
    assert _wrong(table_format, ["busy writer"])[0] == []
    found, _ = _wrong(table_format, ["busy writer"], "many attempts")
    assert found == ["the last start ended in CommitConflictError()"]


@pytest.mark.parametrize("table_format", _FORMATS)
def test_a_damaged_ledger_is_a_violation_where_nothing_was_damaged(
    table_format: TableFormat,
) -> None:
    """An abort that writes an unreadable record is found."""
    assert _wrong(table_format, ["abort"])[0] == []
    found, _ = _wrong(table_format, ["abort"], "readable abort")
    assert any("the ledger is damaged" in violation for violation in found)
    assert any("damage that nothing did" in violation for violation in found)


@pytest.mark.parametrize("table_format", _FORMATS)
def test_each_deed_of_others_is_in_the_table(table_format: TableFormat) -> None:
    """Each kind of other, alone on a plain history, does only what the table of deeds lists."""
    for kind in KINDS_OF_OTHERS[table_format]:
        found, history = _wrong(table_format, [kind])
        assert not found
        assert history.deeds <= DEEDS.keys()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_histories_that_break_off_are_an_error() -> None:
    """A history that the search did not finish does not count as judged."""

    def breaks_off() -> None:
        raise DiedError

    with pytest.raises(RuntimeError, match="broke off"):
        apart(breaks_off)


@pytest.mark.parametrize("kind", ["ledger restored", "ledger copied"])
def test_a_moved_ledger_is_judged_though_no_sweep_follows(kind: str) -> None:
    """The judge acts on its own, not as the last actor, which may have been killed."""
    found, history = _wrong("iceberg", [kind])
    assert not found
    assert history.is_ledger_moved
    assert history.world.current is None


def _slow(table_format: TableFormat, seed: int, guard: str | None = None) -> list[str]:
    """Return the violations in a history in which columns change while chunks wait."""
    history = History(seed, KINDS_OF_OTHERS)
    if history.setting.format != table_format:
        return []
    history.setting = replace(history.setting.as_slow(), others=("owner",))
    with without(guard):
        history.run()
        return violations(history)


@pytest.mark.parametrize("table_format", _FORMATS)
def test_values_replayed_into_another_column_of_the_same_name_are_a_violation(
    table_format: TableFormat,
) -> None:
    """A replay by name alone is found, in a history that the real code completes correctly."""
    found: list[list[str]] = []

    def run() -> None:
        for seed in range(_SLOW_HISTORIES):
            if wrong := _slow(table_format, seed, "chunks by number"):
                found.extend([wrong, _slow(table_format, seed)])
                return

    apart(run)
    (by_name, as_shipped) = found
    assert " landed in Column(" in by_name[0]
    assert as_shipped == []


def _filtered(seed: int, guard: str | None = None) -> list[str]:
    """Return the violations in a history whose run replaces rows by a filter."""
    history = History(seed, KINDS_OF_OTHERS)
    if not history.setting.is_filtered:
        return []
    with without(guard):
        history.run()
        return violations(history)


@pytest.mark.slow_unit
@pytest.mark.parametrize(
    ("guard", "violation"),
    [
        ("deletes in the state", " has the rows "),
        ("rest of a file", " has the rows "),
        ("deletes of rows", " has the rows "),
        ("rewritten files there", "files of the snapshot are gone"),
        ("rest in use", "files of the snapshot are gone"),
    ],
)
def test_what_a_replacement_by_a_filter_needs_is_found(guard: str, violation: str) -> None:
    """Each broken step of it is found, in a history that the real code completes correctly."""
    found: list[list[str]] = []

    def run() -> None:
        for seed in range(_FILTERED_HISTORIES):
            if wrong := _filtered(seed, guard):
                found.extend([wrong, _filtered(seed)])
                return

    apart(run)
    (broken, as_shipped) = found
    assert violation in broken[0]
    assert as_shipped == []
