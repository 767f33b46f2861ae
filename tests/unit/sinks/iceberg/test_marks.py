"""Marks: what they prove, and whether a landed run is still in the table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.types import LongType, NestedField

from holdfast.errors import (
    CommitUnknownError,
    RunMismatchError,
    TableChangedError,
    UnsupportedTableError,
)
from holdfast.model.records import Intent
from holdfast.sinks.base import Change, MarkFound, Outcome, RunMark
from holdfast.sinks.iceberg.file_io import HoldfastFileIO
from holdfast.sinks.iceberg.marks import COUNT, HORIZON, find_mark, mark_changes
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.sinks.staged import MARK_PREFIX, mark_text
from tests.fakes.iceberg_tables import new_table
from tests.fakes.logs import INTENT

# ---- Marks: bounded in number, and never used as proof of more than they prove
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
    """Return the properties of a table with the marks of this many runs."""
    return {
        f"{MARK_PREFIX}run-{number:04d}": mark_text(mark(number, nonce=f"n{number}"))
        for number in range(first, first + count)
    }


def test_a_mark_is_set_with_all_its_facts() -> None:
    """These are nonce, intent, snapshot and sequence number; other properties are left alone."""
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
    """A table never holds more; the horizon says up to which number they are missing."""
    changes = mark_changes(marks(present), "r", mark(500))
    assert changes.removals == [
        f"{MARK_PREFIX}run-{number:04d}" for number in range(1, removed + 1)
    ]
    assert changes.updates.get(HORIZON) == (str(removed) if removed else None)


def test_the_oldest_are_found_by_sequence_number_not_by_name() -> None:
    """A run whose name sorts first may be the youngest."""
    young = {f"{MARK_PREFIX}a-young-one": mark_text(mark(900, nonce="x"))}
    properties = {**young, **marks(99)}
    for given in (properties, dict(reversed(properties.items()))):  # In any order.
        changes = mark_changes(given, "r", mark(901))
        assert changes.removals == [f"{MARK_PREFIX}run-0001"]
        assert changes.updates[HORIZON] == "1"


def test_the_horizon_never_goes_down() -> None:
    """A missing mark that proved nothing before still proves nothing."""
    changes = mark_changes({HORIZON: "400", **marks(100)}, "r", mark(500))
    assert changes.updates[HORIZON] == "400"


def test_our_own_mark_is_never_dropped() -> None:
    """It is set, not removed, however old an earlier mark of the same name was."""
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
    """Look for run `r` of our ledger in metadata with these properties."""
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
def test_a_mark_that_was_removed_may_have_been_ours(
    metadata: TableMetadata, count: int, *, tells: bool
) -> None:
    """The table should hold three and holds two: an intent that may be the third is in doubt."""
    properties = {COUNT: str(count), **marks(2)}
    reached = metadata.model_copy(update={"last_sequence_number": 3})
    assert look(reached, properties) is None
    assert look(metadata, properties, {2: INTENT}) is None  # Its number has not been reached.
    if tells:
        assert look(reached, properties, {2: INTENT}) is None
    else:
        with pytest.raises(CommitUnknownError, match=r"1 of the .* were removed"):
            look(reached, properties, {2: INTENT})


@pytest.mark.parametrize(("present", "count", "expected"), [(3, 3, 4), (2, 3, 4), (100, 101, 101)])
def test_a_removed_mark_stays_missing_for_later_runs(
    present: int, count: int, expected: int
) -> None:
    """A commit adds its own mark to the count, and subtracts only those that it drops itself."""
    changes = mark_changes({COUNT: str(count), **marks(present)}, "r", mark(500))
    assert changes.updates[COUNT] == str(expected)


def test_another_nonce_under_our_name_is_another_run(metadata: TableMetadata) -> None:
    """The same id from a second ledger is refused, never mistaken for ours."""
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
    """The property was changed by hand: that proves neither that it landed nor that it did not."""
    with pytest.raises(UnsupportedTableError, match="cannot be read"):
        look(metadata, {f"{MARK_PREFIX}r": text})
    with pytest.raises(UnsupportedTableError, match="cannot be read"):
        mark_changes({f"{MARK_PREFIX}other": text}, "r", mark(1))


@pytest.mark.parametrize("name", [HORIZON, COUNT])
def test_a_number_that_cannot_be_read_is_an_error(metadata: TableMetadata, name: str) -> None:
    """If it were read as 0, a dropped or removed mark would go unnoticed."""
    with pytest.raises(UnsupportedTableError, match=f"{name} is not a number: 'many'"):
        look(metadata, {name: "many"}, {2: INTENT})


# ---- Is a landed run still in the table? The walk through history, and where it ends early
class History:
    """A table with a chain of snapshots: 1 (empty), 2 (our run) and 3, 4 (other runs)."""

    def __init__(self, folder: Path) -> None:
        """Write the snapshots with the sink itself."""
        self.sink, _ = new_table(folder, Schema(NestedField(1, "id", LongType())))
        self.sink.post_empty(self.sink.load())
        self.ids = [self._head()]
        for run_id in ("ours", "other-1", "other-2"):
            self.ids.append(append(self.sink, run_id))
        self.metadata: TableMetadata = self.sink.load().handle.metadata

    def _head(self) -> int:
        head = self.sink.load().parent_snapshot_id
        assert head is not None
        return head

    def present(
        self,
        *,
        head: int = 4,
        gone: tuple[int, ...] = (),
        branch: str = "main",
        **changes: Any,  # noqa: ANN401
    ) -> bool | None:
        """Look for our run with the head at one snapshot and others expired (by number)."""
        kept = [
            snapshot
            for snapshot in self.metadata.snapshots
            if snapshot.snapshot_id not in self._ids(gone)
        ]
        ref = self.metadata.refs["main"].model_copy(update={"snapshot_id": self.ids[head - 1]})
        changed = self.metadata.model_copy(
            update={"snapshots": kept, "refs": {"main": ref}, **changes}
        )
        found = find_mark(
            changed,
            HoldfastFileIO(),
            table="t",
            branch=branch,
            run_id="ours",
            run_nonce="nonce-ours",
            intents={},
        )
        assert found is not None
        assert found.mark.snapshot_id == self.ids[1]
        return found.present

    def _ids(self, numbers: tuple[int, ...]) -> set[int]:
        return {self.ids[number - 1] for number in numbers}


def append(sink: IcebergSink, run_id: str) -> int:
    """Append one file as a run of this id; return the snapshot."""
    view = sink.load()
    writer = sink.writer_spec(view).open(run_id)
    writer.write(writer.fit(pa.RecordBatch.from_pydict({"id": [1]})))
    mark = RunMark(
        run_nonce=f"nonce-{run_id}",
        intent_number=2,
        snapshot_id=sink.new_snapshot_id(view),
        sequence_number=view.next_sequence_number,
    )
    assert sink.post(view, run_id, mark, Change(adds=writer.cut())) is Outcome.LANDED
    return mark.snapshot_id


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Return one table for all tests: none of them changes it."""
    return History(tmp_path_factory.mktemp("history"))


@pytest.mark.parametrize(
    ("head", "gone", "expected"),
    [
        (4, (), True),
        (3, (), True),
        (2, (), True),
        (1, (), False),
        # Expired, but named as a parent.
        (4, (1, 2), True),
        # Expired, like all that named it: the head still lists a manifest that we added.
        (4, (1, 2, 3), True),
        # The head is older than our snapshot, and its own parents are expired.
        (1, (2, 3, 4), False),
    ],
)
def test_the_walk_finds_whether_our_snapshot_is_part_of_the_table(
    history: History, head: int, gone: tuple[int, ...], *, expected: bool
) -> None:
    """It is found, named as a parent, or survived by its manifest; rolled back means gone."""
    assert history.present(head=head, gone=gone) is expected


def rewritten(history: History) -> tuple[TableMetadata, int]:
    """Return metadata whose head lists no manifest of ours, as after a compaction."""
    empty = history.metadata.snapshots[0]
    head = history.metadata.snapshots[3].model_copy(update={"manifest_list": empty.manifest_list})
    kept = [*history.metadata.snapshots[:3], head]
    return history.metadata.model_copy(update={"snapshots": kept}), head.snapshot_id


def test_a_run_is_found_in_a_compacted_table_with_its_history(history: History) -> None:
    """The files have been replaced, but the ancestor is ours."""
    metadata, _ = rewritten(history)
    assert history.present(snapshots=metadata.snapshots) is True


def test_a_run_is_found_in_a_compacted_table_whose_oldest_snapshot_names_it(
    history: History,
) -> None:
    """Our snapshot is expired and our manifest is gone, but its child still names it as parent."""
    metadata, _ = rewritten(history)
    assert history.present(snapshots=metadata.snapshots[2:]) is True


def test_a_run_is_unknown_in_a_compacted_table_without_its_history(history: History) -> None:
    """Neither snapshot nor manifest is left and the walk ends early: unknown, not gone."""
    metadata, _ = rewritten(history)
    assert history.present(snapshots=metadata.snapshots[3:]) is None


def test_a_replaced_table_has_lost_the_run(history: History) -> None:
    """A new root above our sequence number means that `CREATE OR REPLACE` began anew."""
    metadata, head_id = rewritten(history)
    root = metadata.snapshots[3].model_copy(update={"parent_snapshot_id": None})
    assert root.snapshot_id == head_id
    assert history.present(snapshots=[*metadata.snapshots[:3], root]) is False


def test_a_run_is_gone_after_a_rollback_and_further_writes(history: History) -> None:
    """The walk meets a snapshot older than ours before ours."""
    metadata, _ = rewritten(history)
    beside = metadata.snapshots[3].model_copy(update={"parent_snapshot_id": history.ids[0]})
    assert history.present(snapshots=[*metadata.snapshots[:3], beside]) is False


def test_a_run_on_a_branch_that_is_gone_is_looked_for_in_main(history: History) -> None:
    """It may have been merged by fast-forward and dropped."""
    assert history.present(branch="audit") is True


@pytest.mark.parametrize(("named", "expected"), [(True, True), (False, False)])
def test_a_run_that_was_cherry_picked_from_its_branch_is_in_the_table(
    history: History, named: object, *, expected: bool
) -> None:
    """The copy is another snapshot with another manifest; its summary names the run's own."""
    metadata, _ = rewritten(history)
    origin = {"source-snapshot-id": str(history.ids[1])} if named else {}
    copy = metadata.snapshots[3].model_copy(
        update={
            "parent_snapshot_id": history.ids[0],
            "summary": Summary(Operation.APPEND, **origin),
        }
    )
    first, ours = metadata.snapshots[0], metadata.snapshots[1]
    assert history.present(branch="audit", snapshots=[first, ours, copy]) is expected
    assert history.present(branch="audit", snapshots=[first, copy]) is expected


def test_a_table_without_any_ref_does_not_hold_the_run(history: History) -> None:
    """Without a head there are no rows."""
    assert history.present(refs={}) is False


def test_a_run_without_rows_is_found_at_the_head(tmp_path: Path) -> None:
    """No manifest names it; only the snapshot does."""
    sink, _ = new_table(tmp_path, Schema(NestedField(1, "id", LongType())))
    sink.post_empty(sink.load())
    view = sink.load()
    mark = RunMark(
        run_nonce="n",
        intent_number=2,
        snapshot_id=sink.new_snapshot_id(view),
        sequence_number=view.next_sequence_number,
    )
    assert sink.post(view, "r", mark, Change()) is Outcome.LANDED
    found = sink.find_mark(sink.load(), "r", "n", {})
    assert found is not None
    assert found.present is True


@pytest.mark.parametrize("gone", [(), (1, 3)])
@pytest.mark.parametrize(("number", "tells"), [(3, True), (9, False)])
def test_an_intent_whose_number_another_snapshot_has_is_dead(
    history: History, gone: tuple[int, ...], number: int, *, tells: bool
) -> None:
    """Whatever the reason for the missing mark: it has not landed, and never will.

    For an expired snapshot, a manifest that it added still proves this.
    """
    kept = [
        snapshot
        for snapshot in history.metadata.snapshots
        if history.ids.index(snapshot.snapshot_id) + 1 not in gone
    ]
    changed = history.metadata.model_copy(update={"snapshots": kept, "properties": {HORIZON: "9"}})
    intents = {2: replace(INTENT, sequence_number=number)}

    def look() -> MarkFound | None:
        return find_mark(
            changed,
            HoldfastFileIO(),
            table="t",
            branch="main",
            run_id="lost",
            run_nonce="n",
            intents=intents,
        )

    if tells:
        assert look() is None
    else:
        with pytest.raises(CommitUnknownError):
            look()


def test_a_snapshot_proves_our_run_without_a_mark_or_an_intent(history: History) -> None:
    """A restored ledger knows no post, and the mark was removed from the table."""
    bare = {name: text for name, text in history.metadata.properties.items() if "ours" not in name}
    assert len(bare) < len(history.metadata.properties)
    assert history.present(properties=bare) is True


def test_our_mark_is_found_under_the_id_that_the_run_had(history: History) -> None:
    """Its ledger folder has since been copied, and its snapshot has expired."""
    marks = {
        name.replace("ours", "first-id"): text for name, text in history.metadata.properties.items()
    }
    assert marks != history.metadata.properties
    assert history.present(gone=(2,), properties=marks) is True
