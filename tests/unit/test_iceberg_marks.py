"""Marks: bounded in number, and never taken for proof of what they do not prove."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import LongType, NestedField

from holdfast.errors import (
    CommitUnknownError,
    RunMismatchError,
    TableChangedError,
    UnsupportedTableError,
)
from holdfast.model.records import Intent
from holdfast.sinks.base import MarkFound, RunMark
from holdfast.sinks.iceberg.file_io import HoldfastFileIO
from holdfast.sinks.iceberg.marks import (
    COUNT,
    HORIZON,
    find_mark,
    mark_changes,
)
from holdfast.sinks.staged import MARK_PREFIX, mark_text
from tests.fakes.iceberg_tables import new_table
from tests.fakes.logs import INTENT

SCHEMA = Schema(NestedField(1, "id", LongType()))


def mark(sequence_number: int, *, nonce: str = "ours") -> RunMark:
    """Return a mark that landed at a sequence number."""
    return RunMark(
        run_nonce=nonce,
        intent_number=2,
        intent_nonce="its own",
        snapshot_id=1000 + sequence_number,
        sequence_number=sequence_number,
    )


def marks(count: int, *, first: int = 1) -> dict[str, str]:
    """Return the properties of a table with so many runs' marks."""
    return {
        f"{MARK_PREFIX}run-{number:04d}": mark_text(mark(number, nonce=f"n{number}"))
        for number in range(first, first + count)
    }


def test_a_mark_is_set_with_all_its_facts() -> None:
    """Nonce, intent, snapshot and sequence number; other properties are left alone."""
    changes = mark_changes({"owner": "me", **marks(3)}, "r/1", mark(9))
    assert changes.removals == []
    assert {name: json.loads(text) for name, text in changes.updates.items()} == {
        "holdfast.run.r=2F1": {
            "nonce": "ours",
            "intent": 2,
            "intent_nonce": "its own",
            "snapshot": 1009,
            "sequence": 9,
        },
        COUNT: 4,
    }


@pytest.mark.parametrize(("present", "removed"), [(99, 0), (100, 1), (150, 51)])
def test_the_oldest_marks_beyond_a_hundred_are_dropped(present: int, removed: int) -> None:
    """A table never carries more; the horizon says up to where they are missing."""
    changes = mark_changes(marks(present), "r", mark(500))
    assert changes.removals == [
        f"{MARK_PREFIX}run-{number:04d}" for number in range(1, removed + 1)
    ]
    assert changes.updates.get(HORIZON) == (str(removed) if removed else None)


def test_the_oldest_are_told_by_sequence_number_not_by_name() -> None:
    """A run whose name sorts first may be the youngest."""
    young = {f"{MARK_PREFIX}a-young-one": mark_text(mark(900, nonce="x"))}
    properties = {**young, **marks(99)}
    for given in (properties, dict(reversed(properties.items()))):  # In whatever order they come.
        changes = mark_changes(given, "r", mark(901))
        assert changes.removals == [f"{MARK_PREFIX}run-0001"]
        assert changes.updates[HORIZON] == "1"


def test_the_horizon_never_goes_down() -> None:
    """What proved nothing yesterday proves nothing today."""
    changes = mark_changes({HORIZON: "400", **marks(100)}, "r", mark(500))
    assert changes.updates[HORIZON] == "400"


def test_our_own_mark_is_never_among_the_dropped() -> None:
    """It is set, not removed, however old an earlier one of the same name was."""
    ours = {f"{MARK_PREFIX}r": mark_text(mark(1))}
    changes = mark_changes({**ours, **marks(99, first=2)}, "r", mark(500))
    assert changes.removals == []
    assert changes.updates[COUNT] == "100"


@pytest.fixture
def metadata(tmp_path: Path) -> TableMetadata:
    """Return the metadata of a table with one empty snapshot."""
    sink, _ = new_table(tmp_path, SCHEMA)
    sink.post_empty(sink.load())
    found: TableMetadata = sink.load().handle.metadata
    return found


def look(
    metadata: TableMetadata,
    properties: Mapping[str, str] | None = None,
    intents: Mapping[int, Intent] | None = None,
) -> MarkFound | None:
    """Look for run `r` of our ledger in the metadata with these properties."""
    changed = metadata.model_copy(update={"properties": dict(properties or {})})
    return find_mark(
        changed,
        HoldfastFileIO(),
        table="lake.db.t",
        branch="main",
        run_id="r",
        run_nonce="ours",
        intents=intents or {},
    )


def test_no_mark_and_no_horizon_means_not_landed(metadata: TableMetadata) -> None:
    """The mark is set in the same commit as the data: without it there is no data."""
    assert look(metadata) is None
    assert look(metadata, intents={2: INTENT}) is None


@pytest.mark.parametrize(("horizon", "tells"), [(2, True), (3, False), (4, False)])
def test_at_or_below_the_horizon_a_missing_mark_proves_nothing(
    metadata: TableMetadata, horizon: int, *, tells: bool
) -> None:
    """An intent of sequence number 3 may have landed and been dropped."""
    properties = {HORIZON: str(horizon)}
    assert look(metadata, properties) is None
    if tells:
        assert look(metadata, properties, {2: INTENT}) is None
    else:
        with pytest.raises(CommitUnknownError, match=f"up to sequence number {horizon}"):
            look(metadata, properties, {2: INTENT})


@pytest.mark.parametrize(("count", "tells"), [(2, True), (3, False)])
def test_a_mark_that_somebody_has_removed_may_have_been_ours(
    metadata: TableMetadata, count: int, *, tells: bool
) -> None:
    """The table should hold three and holds two: an intent that might be the third is a riddle."""
    properties = {COUNT: str(count), **marks(2)}
    reached = metadata.model_copy(update={"last_sequence_number": 3})
    assert look(reached, properties) is None
    assert look(metadata, properties, {2: INTENT}) is None  # Its number was not reached.
    if tells:
        assert look(reached, properties, {2: INTENT}) is None
    else:
        with pytest.raises(CommitUnknownError, match="has removed 1 of the table's properties"):
            look(reached, properties, {2: INTENT})


@pytest.mark.parametrize(("present", "count", "expected"), [(3, 3, 4), (2, 3, 4), (100, 101, 101)])
def test_a_removed_mark_stays_missed_by_later_runs(present: int, count: int, expected: int) -> None:
    """A commit adds its own to the count, and leaves out only what it drops itself."""
    changes = mark_changes({COUNT: str(count), **marks(present)}, "r", mark(500))
    assert changes.updates[COUNT] == str(expected)


def test_another_nonce_under_our_name_is_another_run(metadata: TableMetadata) -> None:
    """The same id from a second ledger is refused, never taken for ours."""
    theirs = {f"{MARK_PREFIX}r": mark_text(mark(1, nonce="theirs"))}
    with pytest.raises(RunMismatchError, match=r"another ledger.*snapshot 1001"):
        look(metadata, theirs)


@pytest.mark.parametrize("sequence_number", [2, 99])
def test_a_mark_above_the_tables_last_number_means_a_rewound_catalog(
    metadata: TableMetadata, sequence_number: int
) -> None:
    """Properties from the future and snapshots from the past do not fit together."""
    with pytest.raises(TableChangedError, match="rewound"):
        look(metadata, {f"{MARK_PREFIX}r": mark_text(mark(sequence_number))})


@pytest.mark.parametrize("text", ["", "{}", "[]", "1", '{"nonce": "ours"}', "not json"])
def test_a_mark_that_cannot_be_read_is_an_error(metadata: TableMetadata, text: str) -> None:
    """Somebody changed the property: that is neither landed nor not landed."""
    with pytest.raises(UnsupportedTableError, match="cannot be read"):
        look(metadata, {f"{MARK_PREFIX}r": text})
    with pytest.raises(UnsupportedTableError, match="cannot be read"):
        mark_changes({f"{MARK_PREFIX}other": text}, "r", mark(1))


@pytest.mark.parametrize("name", [HORIZON, COUNT])
def test_a_number_that_cannot_be_read_is_an_error(metadata: TableMetadata, name: str) -> None:
    """Taken for 0, a mark that was dropped or removed would not be missed."""
    with pytest.raises(UnsupportedTableError, match=f"{name} is no number: 'many'"):
        look(metadata, {name: "many"}, {2: INTENT})
