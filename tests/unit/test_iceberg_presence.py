"""Is a landed run still in the table? The walk through history, and where it breaks off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import LongType, NestedField

from holdfast.errors import CommitUnknownError
from holdfast.sinks.base import Change, MarkFound, Outcome, RunMark
from holdfast.sinks.iceberg.file_io import HoldfastFileIO
from holdfast.sinks.iceberg.marks import HORIZON, find_mark
from holdfast.sinks.iceberg.sink import IcebergSink
from tests.fakes.iceberg_tables import new_table
from tests.fakes.logs import INTENT


class History:
    """A table with snapshots 1 (empty), 2 (our run) and 3, 4 (other runs), in one line."""

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
        kept = [one for one in self.metadata.snapshots if one.snapshot_id not in self._ids(gone)]
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
    """Return one table for all looks: none of them changes it."""
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
        # Expired with all that named it: the head still lists a manifest that we added.
        (4, (1, 2, 3), True),
        # The head is older than we are, and its own parents are expired.
        (1, (2, 3, 4), False),
    ],
)
def test_the_walk_tells_whether_our_snapshot_is_part_of_the_table(
    history: History, head: int, gone: tuple[int, ...], *, expected: bool
) -> None:
    """Found, named as a parent, or outlived by its manifest; rolled back is not there."""
    assert history.present(head=head, gone=gone) is expected


def rewritten(history: History) -> tuple[TableMetadata, int]:
    """Return metadata whose head lists no manifest of ours, as after a compaction."""
    empty = history.metadata.snapshots[0]
    head = history.metadata.snapshots[3].model_copy(update={"manifest_list": empty.manifest_list})
    kept = [*history.metadata.snapshots[:3], head]
    return history.metadata.model_copy(update={"snapshots": kept}), head.snapshot_id


def test_a_compacted_table_with_its_history_still_tells(history: History) -> None:
    """The files are others by now; the ancestor is ours."""
    metadata, _ = rewritten(history)
    assert history.present(snapshots=metadata.snapshots) is True


def test_a_compacted_table_whose_oldest_snapshot_names_us_still_tells(history: History) -> None:
    """Our snapshot is expired and our manifest is gone; its child still names its parent."""
    metadata, _ = rewritten(history)
    assert history.present(snapshots=metadata.snapshots[2:]) is True


def test_a_compacted_table_without_its_history_does_not_tell(history: History) -> None:
    """Neither snapshot nor manifest is left, and the walk broke off: unknown, not gone."""
    metadata, _ = rewritten(history)
    assert history.present(snapshots=metadata.snapshots[3:]) is None


def test_a_replaced_table_has_lost_the_run(history: History) -> None:
    """A new root above our sequence number: `CREATE OR REPLACE` began anew."""
    metadata, head_id = rewritten(history)
    root = metadata.snapshots[3].model_copy(update={"parent_snapshot_id": None})
    assert root.snapshot_id == head_id
    assert history.present(snapshots=[*metadata.snapshots[:3], root]) is False


def test_rolled_back_and_written_on_is_gone(history: History) -> None:
    """The walk meets a snapshot older than ours before it meets ours."""
    metadata, _ = rewritten(history)
    beside = metadata.snapshots[3].model_copy(update={"parent_snapshot_id": history.ids[0]})
    assert history.present(snapshots=[*metadata.snapshots[:3], beside]) is False


def test_a_branch_that_is_gone_is_looked_for_in_main(history: History) -> None:
    """It may have been merged by fast-forward and dropped."""
    assert history.present(branch="audit") is True


def test_a_table_without_any_ref_does_not_hold_the_run(history: History) -> None:
    """No head, no rows."""
    assert history.present(refs={}) is False


def test_a_run_without_rows_is_found_at_the_head(tmp_path: Path) -> None:
    """No manifest names it: only the snapshot does."""
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
def test_an_intent_whose_number_another_snapshot_has_got_is_dead(
    history: History, gone: tuple[int, ...], number: int, *, tells: bool
) -> None:
    """Its mark may be missing for whatever reason: it has not landed, and never will.

    Of an expired snapshot a manifest that it added still tells.
    """
    kept = [
        one
        for one in history.metadata.snapshots
        if history.ids.index(one.snapshot_id) + 1 not in gone
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


def test_a_snapshot_tells_of_our_run_where_no_mark_and_no_intent_does(history: History) -> None:
    """A restored ledger knows no post, and others have removed the mark from the table."""
    bare = {name: text for name, text in history.metadata.properties.items() if "ours" not in name}
    assert len(bare) < len(history.metadata.properties)
    assert history.present(properties=bare) is True


def test_our_mark_is_found_under_the_id_that_the_run_had(history: History) -> None:
    """The folder of its ledger was copied since, and its snapshot has expired."""
    marks = {
        name.replace("ours", "first-id"): text for name, text in history.metadata.properties.items()
    }
    assert marks != history.metadata.properties
    assert history.present(gone=(2,), properties=marks) is True
