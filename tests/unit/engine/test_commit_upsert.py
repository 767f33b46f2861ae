"""An upsert: each new row takes the place of the rows with its key, all others stay."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

from holdfast.engine import base, commit, drive, large_index, resolve
from holdfast.engine.cleanup import sweep
from holdfast.engine.options import WriteOptions
from holdfast.errors import (
    CommitConflictError,
    DuplicateOutputError,
    JobFailedError,
    RunMismatchError,
    SchemaMismatchError,
    SettingsError,
    TableChangedError,
    UnsupportedTableError,
)
from holdfast.inputs import key_of_upsert
from holdfast.ledger.run_log import RunLog
from holdfast.model.records import Indexed, Rewritten
from holdfast.model.report import Report
from holdfast.sinks.base import Change, Outcome, RunMark, TableView
from holdfast.sinks.iceberg.matching import IcebergStagedReader
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.sources.parquet import scan_parquet
from holdfast.worker.key_index import IndexPlan
from holdfast.worker.replay import RewritePlan
from tests.fakes.iceberg_tables import Lake, new_table
from tests.fakes.memory_storage import DriverDiedError
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.position_deletes import add_equality_deletes, delete_positions

FIELDS = (
    NestedField(1, "id", LongType()),
    NestedField(2, "name", StringType()),
    NestedField(3, "by", StringType()),
    NestedField(4, "f", DoubleType()),
)
SCHEMA = Schema(*FIELDS)
BY_HUNDRED = PartitionSpec(PartitionField(1, 1000, TruncateTransform(100), "hundred"))
BY_BUCKET = PartitionSpec(PartitionField(1, 1000, BucketTransform(3), "bucket"))


@dataclass
class Merged:
    """A table, and runs that merge rows into it."""

    lake: Lake
    # What is done right before posts, one after the other.
    before_posts: list[Callable[[], object]] = field(default_factory=list)
    rewritten: list[int] = field(default_factory=list)
    indexes: list[str] = field(default_factory=list)

    @classmethod
    def table_of(cls, folder: Path, spec: PartitionSpec = BY_HUNDRED) -> Merged:
        """Make a table with two snapshots: ids 0 to 9 and 100 to 109, then 305 and NULL."""
        sink, _ = new_table(folder, SCHEMA, partition_spec=spec)
        made = cls(Lake(sink))
        # Files have the times of this machine.
        made.lake.time.pass_by(time.time() - made.lake.time.now())
        made.append([*range(10), *range(100, 110)])
        made.append([305, None])
        return made

    def append(self, ids: Sequence[int | None], by: str = "old") -> None:
        """Let another writer add rows."""
        self.lake.table.append(_rows(ids, by))

    def start(
        self,
        *ids: int | None,
        run_id: str = "r",
        on: str | Sequence[str] = "id",
        transform: Callable[[Any], Any] | None = None,
        **options: Any,  # noqa: ANN401
    ) -> Report:
        """Start a run; its rows say that they are new."""
        return self.lake.start(
            MemorySubmitter(ids),
            run_id=run_id,
            mode="upsert",
            on=on,
            transform=transform or (lambda batch: _rows(batch["id"].to_pylist(), "new")),
            takeover="now",
            **options,
        )

    @property
    def rows(self) -> dict[int | None, str]:
        """Who wrote each row; a key that is there twice is an error."""
        found = self.lake.table.scan().to_arrow()
        rows = list(zip(found["id"].to_pylist(), found["by"].to_pylist(), strict=True))
        assert len(dict(rows)) == len(rows)
        return dict(sorted(rows, key=lambda row: (row[0] is None, row)))

    @property
    def files(self) -> set[str]:
        """The live data files."""
        return set(self.lake.table.inspect.files()["file_path"].to_pylist())


def _rows(ids: Sequence[int | None], by: str) -> pa.Table:
    names = [None if id_ is None else f"name-{id_ % 1000:04d}" for id_ in ids]
    columns = {
        "id": pa.array(ids, pa.int64()),
        "name": pa.array(names, pa.string()),
        "by": [by] * len(ids),
        "f": pa.array([0.5] * len(ids), pa.float64()),
    }
    return pa.table(columns)


OLD = {**dict.fromkeys([*range(10), *range(100, 110), 305], "old"), None: "old"}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Merged:
    """Return a table; what is done before posts is done, and jobs are counted."""
    return _watched(Merged.table_of(tmp_path), monkeypatch)


def _watched(table: Merged, monkeypatch: pytest.MonkeyPatch) -> Merged:
    post, run, index = IcebergSink.post, RewritePlan.run, IndexPlan.run

    def act_first(
        sink: IcebergSink, view: TableView, run_id: str, mark: RunMark, change: Change
    ) -> Outcome:
        if table.before_posts:
            table.before_posts.pop(0)()
        return post(sink, view, run_id, mark, change)

    def counted(plan: RewritePlan, batches: Any, **place: int) -> Any:  # noqa: ANN401
        report = run(plan, batches, **place)
        table.rewritten.append(len(report.results))
        return report

    def indexed(plan: IndexPlan, batches: Any, **place: int) -> Any:  # noqa: ANN401
        table.indexes.append(plan.name)
        return index(plan, batches, **place)

    monkeypatch.setattr(IcebergSink, "post", act_first)
    monkeypatch.setattr(RewritePlan, "run", counted)
    monkeypatch.setattr(IndexPlan, "run", indexed)
    return table


@contextlib.contextmanager
def killed_after(kind: type, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the driver die right after it has written a record of a kind."""
    append = RunLog.append

    def killed(log: RunLog, body: Any) -> Any:  # noqa: ANN401
        record = append(log, body)
        if isinstance(body, kind):
            raise DriverDiedError
        return record

    with monkeypatch.context() as dying:
        dying.setattr(RunLog, "append", killed)
        with pytest.raises(DriverDiedError):
            yield


def test_rows_take_the_place_of_those_with_their_key(made: Merged) -> None:
    """Others are added; files without a replaced row stay as they are."""
    before = made.files
    report = made.start(3, 4, 50, 400)
    assert made.rows == OLD | dict.fromkeys([3, 4, 50, 400], "new")
    assert (report.rows, report.replaced_rows, report.replaced_files) == (4, 2, 1)
    assert len(before & made.files) == len(before) - 1
    assert sum(made.rewritten) == 1
    snapshot = made.lake.table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation.value == "overwrite"
    assert snapshot.summary["total-records"] == str(len(made.rows))


def test_all_batches_of_a_row_group_are_merged(
    made: Merged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row groups have many thousand rows, and are read in several batches."""
    monkeypatch.setattr("holdfast.reading.parquet_file._BATCH_ROWS", 2)
    ids = [*range(3, 8), 50, 51, *range(400, 405)]
    report = made.start(*ids)
    assert made.rows == OLD | dict.fromkeys(ids, "new")
    assert (report.rows, report.replaced_rows) == (len(ids), 5)


def test_only_new_rows_are_an_append(made: Merged) -> None:
    """No file is read: bounds say that no key is in them."""
    before = made.files
    report = made.start(50, 51, 400)
    assert made.rows == OLD | dict.fromkeys([50, 51, 400], "new")
    assert (report.replaced_rows, made.rewritten, before - made.files) == (0, [], set())
    snapshot = made.lake.table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation.value == "append"


def test_a_gap_between_keys_is_a_gap(made: Merged) -> None:
    """Keys on both sides of a file's bounds do not make it a candidate."""
    made.start(3, 305)
    assert made.rows == OLD | {3: "new", 305: "new"}
    assert sum(made.rewritten) == 2  # Not that of 100 to 109.


@pytest.mark.parametrize("spec", [UNPARTITIONED_PARTITION_SPEC, BY_BUCKET])
def test_in_other_layouts(
    spec: PartitionSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file in, at most one out, in the same partition."""
    made = _watched(Merged.table_of(tmp_path, spec), monkeypatch)
    made.start(*range(5, 15), 305)
    assert made.rows == OLD | dict.fromkeys([*range(5, 15), 305], "new")


@pytest.mark.parametrize("write_mode", ["copy-on-write", "merge-on-read"])
@pytest.mark.parametrize("transform", [BucketTransform(3), TruncateTransform(100)])
def test_partitions_by_columns_that_are_never_null(
    transform: BucketTransform[int], write_mode: str, tmp_path: Path
) -> None:
    """Manifests of such tables cannot hold a NULL, not even to learn how they begin."""
    fields = [each.model_copy(update={"required": each.name in ("id", "by")}) for each in FIELDS]
    by_two = PartitionSpec(
        PartitionField(1, 1000, transform, "p"),
        PartitionField(3, 1001, IdentityTransform(), "by"),
    )
    sink, table = new_table(tmp_path, Schema(*fields), partition_spec=by_two)
    made = Merged(Lake(sink))
    table.append(_rows(range(10), "old").cast(table.schema().as_arrow()))
    report = made.start(3, 4, 50, write_mode=write_mode)
    assert made.rows == dict.fromkeys(range(10), "old") | dict.fromkeys([3, 4, 50], "new")
    assert (report.replaced_rows, report.delete_files > 0) == (2, write_mode == "merge-on-read")


@pytest.mark.slow_unit
@pytest.mark.parametrize("codec", ["snappy", "Uncompressed", "zstd", "gzip", "unheard of"])
@pytest.mark.parametrize("write_mode", ["copy-on-write", "merge-on-read"])
def test_manifests_of_each_compression(write_mode: str, codec: str, tmp_path: Path) -> None:
    """Snappy would need another package on all executors; readers take any that they know."""
    made = Merged(Lake(new_table(tmp_path, SCHEMA, partition_spec=BY_BUCKET)[0]))
    made.append(range(10))
    with made.lake.table.transaction() as change:
        change.set_properties({"write.avro.compression-codec": codec})
    made.start(3, 4, 50, write_mode=write_mode)
    assert made.rows == dict.fromkeys(range(10), "old") | dict.fromkeys([3, 4, 50], "new")
    assert made.start(5, run_id="next", write_mode=write_mode).replaced_rows == 1


@pytest.mark.parametrize("text", ["{", '[{"names": "id"}]', "null"])
def test_a_broken_name_mapping_is_refused_before_rows_are_computed(text: str, made: Merged) -> None:
    """Without it a file without field ids cannot be searched."""
    with made.lake.table.transaction() as change:
        change.set_properties({"schema.name-mapping.default": text})
    with pytest.raises(UnsupportedTableError, match="is not a name mapping"):
        made.start(3, transform=_never)
    # Where no rows are looked for it does not matter.
    made.lake.start(MemorySubmitter([3]), run_id="all", mode="overwrite", transform=_as_new)
    with made.lake.table.transaction() as change:
        change.remove_properties("schema.name-mapping.default")
    assert made.rows == {3: "new"}
    assert made.start(3).replaced_rows == 1


def _as_new(batch: pa.RecordBatch) -> pa.Table:
    return _rows(batch["id"].to_pylist(), "new")


def _never(batch: pa.RecordBatch) -> pa.Table:
    raise AssertionError(batch.num_rows)


@pytest.mark.parametrize("on", ["name", ["id", "name"], ["name", "by", "id"]])
def test_on_texts_and_on_several_columns(on: str | list[str], made: Merged) -> None:
    """All columns must be equal; NULL equals nothing."""
    made.start(3, 305, 400, on=on)
    if "by" in on:
        found = made.lake.table.scan().to_arrow()
        assert found.num_rows == len(OLD) + 3
        return
    assert made.rows == OLD | dict.fromkeys([3, 305, 400], "new")


def test_a_key_that_the_table_has_twice_is_there_once_afterwards(made: Merged) -> None:
    """MERGE would write two rows."""
    made.append([3, 7, 100])
    report = made.start(3, 100)
    assert made.lake.table.scan("id in (3, 100)").to_arrow()["by"].to_pylist() == ["new", "new"]
    assert report.replaced_rows == 4


def test_rows_without_a_key_are_refused_before_anything_is_posted(made: Merged) -> None:
    """NULL equals nothing: each run would add them once more."""
    with pytest.raises(SchemaMismatchError, match=r"'name'.*it is NULL in 1 of 3 rows"):
        made.start(1, 2, 3, transform=_unnamed, on="name")
    assert made.rows == OLD


def _unnamed(batch: pa.RecordBatch) -> pa.Table:
    rows = _rows(batch["id"].to_pylist(), "new")
    names = [None if name == "name-0002" else name for name in rows["name"].to_pylist()]
    return rows.set_column(1, "name", pa.array(names, pa.string()))


def test_keys_that_are_doubled_are_refused_before_anything_is_posted(made: Merged) -> None:
    """Which of the rows should stay?"""
    with pytest.raises(DuplicateOutputError) as caught:
        made.start(1, 1001, 2, 2002, 2001, 3, on="name")
    assert (caught.value.keys, made.rows) == (2, OLD)
    assert "{'name': 'name-0001'}; {'name': 'name-0002'}" in str(caught.value)


def test_after_a_conflict_only_new_files_are_searched(made: Merged) -> None:
    """Rows that others have added meanwhile are replaced, too; the index is built once."""
    made.before_posts = [lambda: made.append([50, 60], "other"), lambda: made.append([70], "other")]
    report = made.start(3, 50, 80)
    assert made.rows == OLD | {3: "new", 50: "new", 60: "other", 70: "other", 80: "new"}
    assert (report.posts, report.searched_files, report.searched_again) == (3, 2, 1)
    assert len(made.indexes) == 1


@pytest.mark.parametrize("conflicts", [3, 4])
def test_as_many_conflicts_are_survived_as_documented(
    conflicts: int, made: Merged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each brings a file to search: that is a part of the attempt that posts what it found."""
    assert commit._REPLACE_ATTEMPTS_MAX == 21  # noqa: SLF001 - so many are slow.
    monkeypatch.setattr(commit, "_REPLACE_ATTEMPTS_MAX", 4)
    made.before_posts = [lambda: made.append([3], "other") for _ in range(conflicts)]
    if conflicts == 4:
        with pytest.raises(CommitConflictError) as caught:
            made.start(3)
        assert caught.value.attempts == conflicts
        return
    report = made.start(3)
    assert (report.posts, report.searched_again, report.replaced_rows) == (4, 3, 4)
    assert made.rows == OLD | {3: "new"}


def test_a_row_that_others_delete_meanwhile_stays_deleted(made: Merged) -> None:
    """Its file was rewritten with it: that must not count any more."""
    made.before_posts = [lambda: made.lake.table.delete("id = 7")]
    made.start(3)
    assert made.rows == {key: by for key, by in OLD.items() if key != 7} | {3: "new"}


def test_a_row_that_others_update_meanwhile_is_not_undone(made: Merged) -> None:
    """As before, by a position delete and a new file."""

    def update() -> None:
        task = next(t for t in made.lake.table.scan("id = 7").plan_files())
        delete_positions(made.lake.table, {task.file.file_path: [7]}, partition=task.file.partition)
        made.append([7], "other")

    made.before_posts = [update]
    made.start(3)
    assert made.rows == OLD | {3: "new", 7: "other"}


def test_with_snapshot_isolation_rows_that_others_add_stay(made: Merged) -> None:
    """Even those of the same key, as with any writer of Iceberg."""
    made.before_posts = [lambda: made.append([50], "other")]
    made.start(3, 50, isolation_level="snapshot")
    found = made.lake.table.scan("id = 50").to_arrow()["by"].to_pylist()
    assert sorted(found) == ["new", "other"]


@pytest.mark.parametrize("dies_after", ["index", "rewrite"])
def test_a_start_after_a_kill_uses_what_was_done(
    dies_after: str, made: Merged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index and the new files are in the ledger."""
    with killed_after(Indexed if dies_after == "index" else Rewritten, monkeypatch):
        made.start(3, 305)
    report = made.start(3, 305)
    assert made.rows == OLD | {3: "new", 305: "new"}
    assert len(made.indexes) == 1
    assert report.searched_files == (2 if dies_after == "index" else 0)


def test_more_rows_get_another_index(made: Merged, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was rewritten without the old keys' rows still has those of the new ones."""
    with killed_after(Rewritten, monkeypatch):
        made.start(3)
    made.start(3, 5)  # The input has grown.
    assert made.rows == OLD | {3: "new", 5: "new"}
    assert len(made.indexes) == 2


def test_other_columns_under_the_names_of_the_key_are_refused(
    made: Merged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others swap the names between two starts."""
    with killed_after(Indexed, monkeypatch):
        made.start(3, on="name")
    with made.lake.table.update_schema() as change:
        change.rename_column("name", "x")
    with made.lake.table.update_schema() as change:
        change.rename_column("by", "name")
    with made.lake.table.update_schema() as change:
        change.rename_column("x", "by")
    with pytest.raises(TableChangedError):
        made.start(3, on="name")


def test_the_index_is_of_the_columns_that_rows_were_staged_for(
    made: Merged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others swap two names while the index is built, and are done before the post."""

    def swap() -> None:
        for name, new in (("name", "x"), ("by", "name"), ("x", "by")):
            with made.lake.table.update_schema() as change:
                change.rename_column(name, new)

    def swapped(*args: Any) -> Any:  # noqa: ANN401
        swap()
        return merge(*args)

    def back(*args: Any) -> Any:  # noqa: ANN401
        keys = indexed(*args)
        swap()
        return keys

    merge, indexed = resolve.merge, base.Indexes.of
    monkeypatch.setattr(drive, "merge", swapped)
    monkeypatch.setattr(base.Indexes, "of", back)
    with pytest.raises(TableChangedError, match="'name' was renamed to 'by'"):
        made.start(3, on="name")
    swap()
    assert made.rows == OLD


def test_what_cannot_be_a_key_is_refused_at_once(made: Merged) -> None:
    """Nothing is left in the store."""
    with pytest.raises(SettingsError, match="no column 'nix'"):
        made.start(3, on=["id", "nix"])
    with pytest.raises(SettingsError, match=r"column 'f' .* is double"):
        made.start(3, on="f")
    assert not made.lake.storage.objects


def test_the_same_run_on_other_columns_is_another_run(made: Merged) -> None:
    """It has landed with those."""
    made.start(3)
    with pytest.raises(RunMismatchError, match=r"its merge key \(on=\) was \('id',\)"):
        made.start(3, on="name")


def test_files_that_cannot_be_rewritten_are_refused_before_a_row_is_paid_for(
    tmp_path: Path,
) -> None:
    """Whether they hold a row to be replaced is only known when all is paid for."""
    made = Merged.table_of(tmp_path, UNPARTITIONED_PARTITION_SPEC)
    add_equality_deletes(made.lake.table)
    paid: list[int] = []
    with pytest.raises(UnsupportedTableError, match="equality deletes apply"):
        made.start(3, transform=lambda _batch: paid.append(1))
    assert not paid


def test_too_many_keys_are_refused(made: Merged, monkeypatch: pytest.MonkeyPatch) -> None:
    """No executor could search an index of them."""
    monkeypatch.setattr(base, "SMALL_ROWS", 2)
    monkeypatch.setattr(large_index, "KEYS_BYTES_MAX", 20)
    with pytest.raises(UnsupportedTableError, match=r"take 0\.0 GB, and an upsert takes 0 GB"):
        made.start(1, 2, 3)
    monkeypatch.setattr(large_index, "KEYS_BYTES_MAX", 30)
    with pytest.raises(UnsupportedTableError, match="keys to be merged take"):
        made.start(1, 2, 3, on="name", run_id="by name")
    assert made.rows == OLD


def test_a_damaged_index_is_an_error(made: Merged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that it lacks would be there twice."""
    append = RunLog.append

    def damaged(log: RunLog, body: Any) -> Any:  # noqa: ANN401
        if isinstance(body, Indexed):
            objects = made.lake.storage.objects
            uri = next(uri for uri in objects if "/parts/index-" in uri and "-00000-" in uri)
            objects[uri] = objects[uri][:-1] + b"x"
        return append(log, body)

    monkeypatch.setattr(RunLog, "append", damaged)
    with pytest.raises(JobFailedError, match="the digest does not match"):
        made.start(3)
    assert made.rows == OLD


def test_a_sweep_takes_the_index_and_nothing_that_is_live(made: Merged) -> None:
    """Replaced files stay for time travel."""
    before = made.lake.table.current_snapshot()
    assert before is not None
    made.start(3, 305)
    sweep(made.lake.ledger("r"), lambda _identity: made.lake.sink)
    assert not [uri for uri in made.lake.storage.objects if "index-" in uri]
    assert made.rows == OLD | {3: "new", 305: "new"}
    old = made.lake.table.scan(snapshot_id=before.snapshot_id).to_arrow()
    assert old.num_rows == len(OLD)


def test_no_rows_change_nothing(made: Merged) -> None:
    """There is no key to look for."""
    report = made.start()
    assert (made.rows, report.rows, report.replaced_rows) == (OLD, 0, 0)


@pytest.mark.parametrize("key", [0, 9, 100, 109, 305])
def test_a_key_at_the_edge_of_a_file_is_found(key: int, made: Merged) -> None:
    """Bounds include the values that they name."""
    report = made.start(key)
    assert made.rows == OLD | {key: "new"}
    assert report.replaced_rows == 1


def test_an_index_that_lacks_keys_is_not_used(
    made: Merged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of the others would be there twice."""
    rows = IcebergStagedReader.rows
    monkeypatch.setattr(IcebergStagedReader, "rows", lambda *args: list(rows(*args))[1:])
    with pytest.raises(JobFailedError, match="does not hold the keys of all staged rows"):
        made.start(3, 305)
    assert made.rows == OLD


@pytest.mark.parametrize("on", ["", [], (), ["id", "id"], ["id", ""], ["id", 5], 5])
def test_what_names_no_columns_is_refused(on: Any) -> None:  # noqa: ANN401
    """Before anything is opened."""
    with pytest.raises(SettingsError, match="on="):
        WriteOptions(on=on)
    assert WriteOptions(on=["b", "a"]).on_columns == ("b", "a")


def test_the_key_of_the_input_is_on_unless_it_is_given() -> None:
    """A scan has none; a DataFrame must have the columns."""
    df = SimpleNamespace(columns=["id", "text"])
    assert key_of_upsert(df, None, ("id",)) == ("id",)
    assert key_of_upsert(df, "text", ("id",)) == "text"
    assert key_of_upsert(scan_parquet("s3://lake/in"), None, ("id",)) is None
    with pytest.raises(SettingsError, match=r"no column 'name', which on= names"):
        key_of_upsert(df, None, ("id", "name"))
