"""The loss of an Iceberg table: which files go, what the snapshot says, and what is refused."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DecimalType, LongType, NestedField, StringType

from holdfast.errors import TableChangedError, UnsupportedTableError
from holdfast.sinks.base import Change, Loss, Outcome, Removes, RunMark, TableView
from holdfast.sinks.iceberg.file_io import file_bytes
from holdfast.sinks.iceberg.manifests import manifest_entries
from holdfast.sinks.iceberg.sink import IcebergSink
from tests.fakes.iceberg_tables import new_table
from tests.fakes.position_deletes import delete_positions

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "c", StringType()))
BY_COUNTRY = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "c"))

# What is in the second column, by the first.
Rows = Mapping[int, str | Decimal | None]


@dataclass
class Replacing:
    """A table, and changes that are posted to it."""

    sink: IcebergSink

    @classmethod
    def table_of(cls, folder: Path, spec: PartitionSpec = BY_COUNTRY) -> Replacing:
        """Make a table with two snapshots, each with rows of two countries."""
        sink, _ = new_table(folder, SCHEMA, partition_spec=spec)
        made = cls(sink)
        assert sink.post_empty(sink.load()) is Outcome.LANDED
        made.post({1: "fi", 2: "se"}, "nothing")
        made.post({3: "fi", 4: "no"}, "nothing")
        return made

    def change(
        self,
        view: TableView,
        rows: Rows,
        removes: Removes,
        base: frozenset[str] | None = None,
    ) -> Change:
        """Stage rows, and find out what they replace."""
        writer = self.sink.writer_spec(view).open(uuid.uuid4().hex)
        if rows:
            kind = pa.string() if any(isinstance(c, str) for c in rows.values()) else None
            columns = [pa.array(rows, pa.int64()), pa.array(list(rows.values()), kind)]
            writer.write(writer.fit(pa.RecordBatch.from_arrays(columns, ["id", "c"])))
        change = Change(adds=writer.cut(), removes=removes, base=base)
        return replace(change, loss=self.sink.loss(view, change, uuid.uuid4().hex))

    def post(self, rows: Rows, removes: Removes, base: frozenset[str] | None = None) -> Loss:
        """Post rows, and return what they replaced."""
        view = self.sink.load()
        change = self.change(view, rows, removes, base)
        mark = RunMark(
            run_nonce=uuid.uuid4().hex,
            intent_number=1,
            snapshot_id=self.sink.new_snapshot_id(view),
            sequence_number=view.next_sequence_number,
        )
        assert self.sink.post(view, uuid.uuid4().hex, mark, change) is Outcome.LANDED
        return change.loss

    @property
    def table(self) -> Table:
        """The table as it is now."""
        loaded: Table = self.sink.load().handle
        return loaded

    @property
    def rows(self) -> Rows:
        """All rows."""
        found = self.table.scan().to_arrow().to_pydict()
        return dict(sorted(zip(found["id"], found["c"], strict=True)))

    @property
    def states(self) -> frozenset[str]:
        """What a run that begins now would keep of the rows."""
        view = self.sink.load()
        return self.sink.states(view, view.parent_snapshot_id)

    def delete_in(self, country: str) -> None:
        """Let another writer delete the first row of a file of a partition."""
        file = next(
            task.file
            for task in self.table.scan().plan_files()
            if task.file.partition[0] == country and not task.delete_files
        )
        delete_positions(self.table, {file.file_path: [0]}, partition=file.partition)

    @property
    def summary(self) -> dict[str, str]:
        """The summary of the newest snapshot, without what a run adds to it."""
        snapshot = self.table.current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        facts = {"operation": snapshot.summary.operation.value}
        return facts | snapshot.summary.additional_properties

    def statuses(self) -> list[tuple[str, str]]:
        """Return the status and the partition of each file in the newest snapshot."""
        snapshot, io = self.table.current_snapshot(), self.table.io
        assert snapshot is not None
        found = [
            (ManifestEntryStatus(entry.status).name, entry.data_file.partition[0])
            for manifest in snapshot.manifests(io)
            for entry in manifest_entries(manifest, io)
        ]
        return sorted(found)


def test_partitions_of_the_new_rows_are_replaced_and_others_stay(tmp_path: Path) -> None:
    """Files of one partition go from every manifest; a manifest without any is listed as it is."""
    made = Replacing.table_of(tmp_path)
    loss = made.post({9: "no", 10: "dk"}, "partitions")
    assert made.rows == {1: "fi", 2: "se", 3: "fi", 9: "no", 10: "dk"}
    assert (loss.files, loss.rows, loss.partitions, len(loss.writes)) == (1, 1, 1, 1)
    added, existing, deleted = "ADDED", "EXISTING", "DELETED"
    assert made.statuses() == [
        (added, "dk"),
        (added, "fi"),
        (added, "no"),
        (added, "se"),
        (deleted, "no"),
        (existing, "fi"),
    ]


def test_the_summary_is_that_of_an_overwrite(tmp_path: Path) -> None:
    """Labelled as an append, a compaction that was planned before would land after it."""
    made = Replacing.table_of(tmp_path)
    made.post({9: "no"}, "partitions")
    found = made.summary
    assert found["operation"] == "overwrite"
    assert {name: found[name] for name in ("deleted-data-files", "deleted-records")} == {
        "deleted-data-files": "1",
        "deleted-records": "1",
    }
    assert (found["total-records"], found["total-data-files"]) == ("4", "4")
    assert (found["changed-partition-count"], found["replace-partitions"]) == ("1", "true")
    made.post({11: "is"}, "partitions")
    assert made.summary["operation"] == "append"  # Nothing was there to remove.
    made.post({}, "all")
    assert (made.summary["operation"], made.summary["total-data-files"]) == ("delete", "0")
    assert "replace-partitions" not in made.summary


def test_null_is_a_partition_like_others(tmp_path: Path) -> None:
    """Its rows go if new ones are in it, and only then."""
    made = Replacing.table_of(tmp_path)
    made.post({5: None, 6: "fi"}, "nothing")
    made.post({7: None}, "partitions")
    assert made.rows == {1: "fi", 2: "se", 3: "fi", 4: "no", 6: "fi", 7: None}


def test_deletes_go_with_the_files_of_their_partition(tmp_path: Path) -> None:
    """Those of other partitions stay: a row that was deleted there must not come back."""
    made = Replacing.table_of(tmp_path)
    for country in ("fi", "se"):
        made.delete_in(country)
    before = made.rows
    assert len(before) == 2
    made.post({9: "se"}, "partitions")
    assert made.rows == {**before, 9: "se"}
    assert made.summary["removed-position-delete-files"] == "1"
    made.post({10: "se"}, "all")
    assert (made.rows, made.summary["removed-delete-files"]) == ({10: "se"}, "1")


def test_a_table_without_partitions_is_refused(tmp_path: Path) -> None:
    """All of its rows would be in the one partition."""
    made = Replacing.table_of(tmp_path, PartitionSpec())
    with pytest.raises(UnsupportedTableError, match=r"(?s)no partitions.*overwrite"):
        made.post({9: "no"}, "partitions")
    assert made.post({9: "no"}, "all").rows == 4
    assert made.rows == {9: "no"}


def test_files_of_another_spec_are_refused(tmp_path: Path) -> None:
    """Rows of the new ones' partitions may be in them, and would stay beside those."""
    made = Replacing.table_of(tmp_path)
    with made.table.update_spec() as update:
        update.add_field("id", IdentityTransform(), "id_value")
    made = Replacing(made.sink)
    with pytest.raises(UnsupportedTableError, match="4 of its files are partitioned differently"):
        made.post({1: "fi"}, "partitions")
    made.post({1: "fi"}, "all")
    assert made.rows == {1: "fi"}
    made.post({1: "fi", 2: "fi"}, "partitions")
    assert made.rows == {1: "fi", 2: "fi"}


def test_rows_staged_by_another_spec_are_refused(tmp_path: Path) -> None:
    """Others have partitioned all rows anew: none is in a partition of the staged ones."""
    made = Replacing.table_of(tmp_path)
    change = made.change(made.sink.load(), {9: "no"}, "partitions")
    with made.table.update_spec() as update:
        update.add_field("id", IdentityTransform(), "id_value")
    made.post({4: "no", 5: "fi"}, "all")
    with pytest.raises(TableChangedError, match="no longer the one that rows were staged by"):
        made.sink.loss(made.sink.load(), replace(change, loss=Loss()), "again")


def test_a_partition_of_a_wider_decimal_is_the_same_partition(tmp_path: Path) -> None:
    """It is stored with more bytes since then."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "c", DecimalType(9, 2)))
    sink, _ = new_table(tmp_path, schema, partition_spec=BY_COUNTRY)
    made = Replacing(sink)
    assert sink.post_empty(sink.load()) is Outcome.LANDED
    made.post({1: Decimal("1.50"), 2: Decimal("-2.50")}, "nothing")
    with made.table.update_schema() as update:
        update.update_column("c", DecimalType(18, 2))
    made.post({3: Decimal("1.50"), 4: Decimal("-2.50")}, "nothing")
    made.post({9: Decimal("-2.50")}, "partitions")
    assert made.rows == {1: Decimal("1.50"), 3: Decimal("1.50"), 9: Decimal("-2.50")}


def test_after_a_conflict_only_new_manifests_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of many files is read once; what others have added since is found."""
    made = Replacing.table_of(tmp_path)
    read: list[str] = []

    def watched(io: FileIO, path: str) -> bytes:
        read.append(path)
        return file_bytes(io, path)

    monkeypatch.setattr("holdfast.sinks.iceberg.loss.file_bytes", watched)
    change = made.change(made.sink.load(), {9: "no"}, "all")
    assert (change.loss.rows, len(read)) == (4, 3)  # Two of the table, and the staged one.
    read.clear()
    catalog = made.table.catalog
    Replacing(IcebergSink(catalog, "db.t", "main")).post({5: "dk"}, "nothing")
    again = made.sink.loss(made.sink.load(), replace(change, loss=Loss()), "again")
    assert (again.rows, len(read)) == (5, 1)
    old, new = (loss.handle.rewritten for loss in (change.loss, again))
    shared = {id(manifest) for manifest in new.values()} & {id(item) for item in old.values()}
    assert (len(new), len(shared)) == (3, 2)


def test_a_manifest_that_others_have_merged_is_not_used_again(tmp_path: Path) -> None:
    """Its files are listed elsewhere now: with the old manifest, each would be there twice."""
    made = Replacing.table_of(tmp_path)
    view = made.sink.load()
    change = made.change(view, {9: "no"}, "partitions")
    settings = {
        "commit.manifest-merge.enabled": "true",
        "commit.manifest.min-count-to-merge": "2",
    }
    with made.table.transaction() as transaction:
        transaction.set_properties(settings)
    made.table.append(pa.table({"id": pa.array([5], pa.int64()), "c": ["no"]}))
    snapshot = made.table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(made.table.io)) == 1
    again = made.sink.loss(made.sink.load(), replace(change, loss=Loss()), "again")
    assert (again.rows, len(again.handle.kept)) == (2, 0)
    made.post({9: "no"}, "partitions")
    assert made.rows == {1: "fi", 2: "se", 3: "fi", 9: "no"}


# ---- A loss of the base alone: what others have added since stays


@pytest.mark.parametrize("removes", ["all", "partitions"])
def test_files_that_others_have_added_stay(tmp_path: Path, removes: Removes) -> None:
    """Also if they were merged into one manifest with those that go."""
    made = Replacing.table_of(tmp_path)
    base = made.states
    settings = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
    with made.table.transaction() as transaction:
        transaction.set_properties(settings)
    made.table.append(pa.table({"id": pa.array([5], pa.int64()), "c": ["no"]}))
    loss = made.post({9: "no"}, removes, base)
    kept = {1: "fi", 2: "se", 3: "fi"} if removes == "partitions" else {}
    assert made.rows == {**kept, 5: "no", 9: "no"}
    assert loss.rows == (1 if removes == "partitions" else 4)


def test_a_file_that_is_gone_is_refused_where_rows_are_replaced(tmp_path: Path) -> None:
    """Its rows may be in a file that looks added; other partitions do not matter."""
    made = Replacing.table_of(tmp_path)
    base = made.states
    made.post({3: "fi"}, "partitions")
    with pytest.raises(TableChangedError, match=r"2 of the files.*are gone.*serializable"):
        made.post({9: "no"}, "all", base)
    with pytest.raises(TableChangedError, match="2 of the files"):
        made.post({9: "fi"}, "partitions", base)
    made.post({9: "no"}, "partitions", base)
    assert made.rows == {2: "se", 3: "fi", 9: "no"}


def test_a_delete_is_refused_where_rows_are_replaced(tmp_path: Path) -> None:
    """An update deletes a row and adds its new version, which looks like a row of others."""
    made = Replacing.table_of(tmp_path)
    base = made.states
    made.delete_in("se")
    with pytest.raises(TableChangedError, match="rows were deleted by"):
        made.post({9: "no"}, "all", base)
    with pytest.raises(TableChangedError, match="rows were deleted by"):
        made.post({9: "se"}, "partitions", base)
    made.post({9: "no"}, "partitions", base)
    assert made.rows == {1: "fi", 3: "fi", 9: "no"}
    made.post({10: "se"}, "all", made.states)  # It was there when this run began.
    assert made.rows == {10: "se"}
