"""An upsert whose rows may say that the table's row with their key goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import BucketTransform, TruncateTransform
from pyiceberg.types import BooleanType, LongType, NestedField, StringType

from holdfast.engine import resolve
from holdfast.engine.cleanup import abort, sweep
from holdfast.engine.options import WriteOptions
from holdfast.errors import (
    DuplicateOutputError,
    ExecutorSetupError,
    RunMismatchError,
    SchemaMismatchError,
    SettingsError,
)
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.parts import read_work
from holdfast.ledger.run_log import RunLog
from holdfast.model.records import Intent, Seal
from holdfast.model.report import Report
from holdfast.model.work import StagedGroup
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.worker.checkpoints import Checkpoints
from holdfast.worker.key_index import FindPlan
from holdfast.worker.reports import TaskProblem, TaskReport
from tests.fakes.iceberg_tables import Lake, local_path, new_table
from tests.fakes.memory_storage import DriverDiedError
from tests.fakes.memory_submitter import MemorySubmitter

# The transform holds a table, which is another one at each start.
pytestmark = pytest.mark.filterwarnings("ignore:.*the transform's code has changed")

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "by", StringType(), required=True),
    NestedField(3, "text.of", StringType()),
)
BY_HUNDRED = PartitionSpec(PartitionField(1, 1000, TruncateTransform(100), "hundred"))
BY_BUCKET = PartitionSpec(PartitionField(1, 1000, BucketTransform(3), "bucket"))
OLD = dict.fromkeys([*range(10), *range(100, 110)], "old")


class Deleting:
    """A table, and runs that merge rows into it and delete others."""

    def __init__(self, folder: Path, spec: PartitionSpec = BY_HUNDRED) -> None:
        """Make a table with two files."""
        sink, _ = new_table(folder, SCHEMA, partition_spec=spec)
        self.lake = Lake(sink)
        # How many batches were transformed.
        self.calls = 0
        # Files have the times of this machine.
        self.lake.time.pass_by(time.time() - self.lake.time.now())
        for ids in (range(10), range(100, 110)):
            self.append(ids, "old")

    def append(self, ids: Sequence[int], by: str) -> None:
        """Let another writer add rows."""
        schema = self.lake.table.schema().as_arrow()
        self.lake.table.append(_rows(list(ids), by).cast(schema))

    def start(
        self,
        *ids: int,
        deletes: Collection[int] = (),
        **options: Any,  # noqa: ANN401 - any of `WriteOptions`.
    ) -> Report:
        """Start a run: rows of these ids, of which some delete."""

        def transform(batch: Any) -> pa.Table:  # noqa: ANN401
            self.calls += 1
            given = batch["id"].to_pylist()
            rows, flags = _rows(given, "new"), [id_ in deletes for id_ in given]
            gone = [None if flag else "new" for flag in flags]
            rows = rows.set_column(1, "by", pa.array(gone, pa.string()))
            return rows.append_column("gone", pa.array(flags, pa.bool_()))

        chosen: dict[str, Any] = {"transform": transform, "delete_column": "gone", "on": "id"}
        chosen |= options
        return self.lake.start(MemorySubmitter(ids), mode="upsert", takeover="now", **chosen)

    @property
    def rows(self) -> dict[int, str]:
        """Who wrote each row; a key that is there twice is an error."""
        found = self.lake.table.scan().to_arrow()
        rows = list(zip(found["id"].to_pylist(), found["by"].to_pylist(), strict=True))
        assert len(dict(rows)) == len(rows)
        return dict(sorted(rows))

    @property
    def ledger(self) -> Ledger:
        """The run's ledger, with its log."""
        ledger = self.lake.ledger()
        ledger.log.refresh()
        return ledger

    def staged(self) -> list[StagedGroup]:
        """What the last seal lists as staged."""
        ledger = self.ledger
        seals = [r.body for r in ledger.log.records if isinstance(r.body, Seal)]
        return list(read_work(ledger.storage, ledger.layout, seals[-1].work).groups)


def _rows(ids: Sequence[int], by: str) -> pa.Table:
    columns = {
        "id": pa.array(ids, pa.int64()),
        "by": pa.array([by] * len(ids), pa.string()),
        "text.of": pa.array([f"text {id_}" for id_ in ids], pa.string()),
    }
    return pa.table(columns)


def without(rows: dict[int, str], *ids: int) -> dict[int, str]:
    """Return the rows that are not of these ids."""
    return {id_: by for id_, by in rows.items() if id_ not in ids}


@pytest.fixture
def made(tmp_path: Path) -> Deleting:
    """Return a table of two files."""
    return Deleting(tmp_path)


@pytest.mark.parametrize("spec", [UNPARTITIONED_PARTITION_SPEC, BY_HUNDRED, BY_BUCKET])
def test_rows_are_updated_deleted_and_added(spec: PartitionSpec, tmp_path: Path) -> None:
    """A required column of a row that deletes may be NULL; unknown keys delete nothing."""
    made = Deleting(tmp_path, spec)
    report = made.start(2, 3, 50, 105, 106, 400, deletes={3, 106, 400})
    assert made.rows == without(OLD, 3, 106) | dict.fromkeys([2, 50, 105], "new")
    assert (report.rows, report.deleted_keys, report.replaced_rows) == (3, 3, 4)
    assert "3 keys, in the table or not" in str(report)
    counts = report.upserts
    assert counts is not None
    assert (counts.matched, counts.inserted, counts.deleted, counts.doubled) == (2, 1, 2, 0)
    assert "2 matched, 1 inserted, 2 deleted" in str(report)
    again = made.start(2, 3, 50, 105, 106, 400, deletes={3, 106, 400})
    assert (again.outcome, again.deleted_keys) == ("already_committed", 3)


def test_a_run_may_only_delete(made: Deleting) -> None:
    """There is no data file, no manifest is added, and the snapshot is a delete."""
    report = made.start(3, 4, *range(100, 110), 700, deletes=range(1000))
    assert made.rows == without(OLD, 3, 4, *range(100, 110))
    assert (report.rows, report.files, report.deleted_keys) == (0, 0, 13)
    snapshot = made.lake.table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    # The rows that stay in a rewritten file are added.
    assert snapshot.summary.operation.value == "overwrite"
    assert snapshot.summary["total-records"] == str(len(made.rows))
    manifests = snapshot.manifests(made.lake.table.io)
    assert sum(manifest.added_files_count or 0 for manifest in manifests) == 1


def test_deletes_of_keys_that_are_not_there_change_nothing(made: Deleting) -> None:
    """The run lands, and no file is touched."""
    before = made.lake.table.inspect.files()["file_path"].to_pylist()
    report = made.start(50, 51, deletes={50, 51})
    assert (made.rows, report.deleted_keys, report.replaced_rows) == (OLD, 2, 0)
    assert made.lake.table.inspect.files()["file_path"].to_pylist() == before


def test_all_rows_may_go(made: Deleting) -> None:
    """An empty table is left."""
    made.start(*OLD, deletes=OLD)
    assert made.rows == {}


def test_a_key_that_is_written_and_deleted_is_doubled(made: Deleting) -> None:
    """Which of the two should count?"""

    def both(batch: Any) -> pa.Table:  # noqa: ANN401
        rows = pa.concat_tables([_rows(batch["id"].to_pylist(), "new")] * 2)
        flags = [at < batch.num_rows for at in range(rows.num_rows)]
        return rows.append_column("gone", pa.array(flags))

    with pytest.raises(DuplicateOutputError, match="'id': 3"):
        made.start(3, transform=both, one_to_one=False)
    assert made.rows == OLD


def test_a_key_that_is_deleted_twice_is_doubled(made: Deleting) -> None:
    """As for MERGE, where two source rows of one key are an error."""

    def twice(batch: Any) -> pa.Table:  # noqa: ANN401
        rows = pa.concat_tables([_rows(batch["id"].to_pylist(), "new")] * 2)
        return rows.append_column("gone", pa.array([True] * rows.num_rows))

    with pytest.raises(DuplicateOutputError):
        made.start(3, transform=twice, one_to_one=False)
    assert made.rows == OLD


def test_a_row_without_a_key_cannot_delete(made: Deleting) -> None:
    """NULL equals nothing."""

    def keyless(batch: Any) -> pa.Table:  # noqa: ANN401
        ids = [None if id_ == 3 else id_ for id_ in batch["id"].to_pylist()]
        rows = _rows([0] * len(ids), "new").set_column(0, "id", pa.array(ids, pa.int64()))
        return rows.append_column("gone", pa.array([True] * len(ids)))

    with pytest.raises(SchemaMismatchError, match="it is NULL in 1 of 2 rows"):
        made.start(3, 4, transform=keyless)
    assert made.rows == OLD


def test_a_table_with_a_column_of_that_name_is_refused(made: Deleting) -> None:
    """Nothing would write that column, and its value would not say what to do with the row."""
    with pytest.raises(SettingsError, match="has a column of that name"):
        made.start(3, delete_column="by")
    assert not made.lake.storage.objects


@pytest.mark.parametrize("name", ["", "id", 7, ["gone"]])
def test_what_cannot_be_the_flag_is_refused(name: Any) -> None:  # noqa: ANN401
    """A column of the key, or no name."""
    with pytest.raises(SettingsError, match="delete_column"):
        WriteOptions(on="id", delete_column=name)


def test_the_column_belongs_to_the_runs_identity(made: Deleting) -> None:
    """Without it, rows that delete would be written."""
    made.start(3, 4, deletes={3})
    for other in (None, "dead"):
        with pytest.raises(RunMismatchError, match="which rows delete"):
            made.start(3, 4, delete_column=other)


def test_output_without_the_column_is_refused(made: Deleting) -> None:
    """Also if other columns may be missing: a misspelt name would write the rows."""
    with pytest.raises(SchemaMismatchError, match="says which rows delete"):
        made.start(3, transform=lambda b: _rows(b["id"].to_pylist(), "new"), missing_columns="null")
    assert made.rows == OLD


# ---- Others that write meanwhile


@pytest.mark.parametrize(("isolation_level", "stays"), [("serializable", 0), ("snapshot", 1)])
def test_a_row_that_others_add_meanwhile_goes_like_one_that_was_there(
    isolation_level: str, stays: int, made: Deleting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With snapshot isolation it stays, as it does if its key is written."""
    post, waiting = IcebergSink.post, [[3, 700]]

    def act_first(sink: IcebergSink, *more: Any) -> Any:  # noqa: ANN401
        if waiting:
            made.append(waiting.pop(), "other")
        return post(sink, *more)

    monkeypatch.setattr(IcebergSink, "post", act_first)
    report = made.start(2, 3, 106, deletes={3, 106}, isolation_level=isolation_level)
    expected = without(OLD, 3, 106) | {2: "new", 700: "other"}
    assert made.rows == expected | ({3: "other"} if stays else {})
    assert report.posts == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda update: update.add_column("more", LongType()),
        lambda update: update.make_column_optional("by"),
    ],
)
def test_chunks_outlive_a_change_of_the_table(
    change: Callable[[UpdateSchema], object], made: Deleting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay puts the flag beside the columns that the table has now."""
    _stop_with_chunks(made, monkeypatch)
    with made.lake.table.update_schema() as update:
        change(update)
    calls = made.calls
    made.start(3, 4, 106, deletes=range(1000))
    assert (made.rows, made.calls) == (without(OLD, 3, 4, 106), calls)


def test_a_column_of_the_flags_name_that_comes_later_is_an_error(
    made: Deleting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is done is kept until the column has another name."""
    _stop_with_chunks(made, monkeypatch)
    with made.lake.table.update_schema() as update:
        update.add_column("gone", BooleanType())
    with pytest.raises(SettingsError, match="rename it there"):
        made.start(3, 4, 106, deletes=range(1000))
    with made.lake.table.update_schema() as update:
        update.rename_column("gone", "other")
    calls = made.calls
    made.start(3, 4, 106, deletes=range(1000))
    assert (made.rows, made.calls) == (without(OLD, 3, 4, 106), calls)


def _stop_with_chunks(made: Deleting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run that only deletes die when all its keys are in chunks."""

    def die(*_: Any) -> None:  # noqa: ANN401
        raise DriverDiedError

    with monkeypatch.context() as dying:
        dying.setattr(Checkpoints, "finish", die)
        with pytest.raises(DriverDiedError):
            made.start(3, 4, 106, deletes=range(1000), checkpoint_every=1e-9, batch_rows=1)


# ---- Starts that were killed


def _kill(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    append = RunLog.append

    def killed(log: Any, body: Any) -> Any:  # noqa: ANN401
        record = append(log, body)
        if isinstance(body, kind):
            raise DriverDiedError
        return record

    monkeypatch.setattr(RunLog, "append", killed)


def test_a_run_that_only_deletes_survives_with_its_chunks(
    made: Deleting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task dies before any file is closed: a replay writes the keys that the chunks hold."""
    _stop_with_chunks(made, monkeypatch)
    assert made.rows == OLD
    calls = made.calls
    report = made.start(3, 4, 106, deletes=range(1000))
    assert made.rows == without(OLD, 3, 4, 106)
    assert (report.deleted_keys, report.kept_rows, made.calls) == (3, 3, calls)


@pytest.mark.parametrize("kind", [Seal, Intent])
def test_a_run_that_was_killed_after_its_cut_goes_on(
    kind: type, made: Deleting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys are in their file, which the task's record lists."""
    with monkeypatch.context() as dying:
        _kill(dying, kind)
        with pytest.raises(DriverDiedError):
            made.start(2, 3, 106, deletes={3, 106})
    report = made.start(2, 3, 106, deletes={3, 106})
    assert made.rows == without(OLD, 3, 106) | {2: "new"}
    assert (report.rows, report.deleted_keys, made.calls) == (1, 2, 1)


def test_keys_that_were_lost_are_computed_again(
    made: Deleting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clean-up of others deletes the file: without its keys, rows would stay."""
    with monkeypatch.context() as dying:
        _kill(dying, Seal)
        with pytest.raises(DriverDiedError):
            made.start(2, 3, 106, deletes={3, 106})
    (keys,) = [group for group in made.staged() if group.deleted_keys]
    local_path(keys.path).unlink()
    report = made.start(2, 3, 106, deletes={3, 106})
    assert made.rows == without(OLD, 3, 106) | {2: "new"}
    assert report.withdrawn_rows == 3


def test_keys_that_are_lost_before_the_index_is_built_are_computed_again(
    made: Deleting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of keys are asked for before they are read."""
    append = RunLog.append
    lost: list[StagedGroup] = []

    def lose(log: Any, body: Any) -> Any:  # noqa: ANN401
        record = append(log, body)
        if isinstance(body, Seal) and not lost:
            lost.extend(group for group in made.staged() if group.deleted_keys)
            for group in lost:
                local_path(group.path).unlink()
        return record

    monkeypatch.setattr(RunLog, "append", lose)
    made.start(2, 3, 106, deletes={3, 106})
    assert made.rows == without(OLD, 3, 106) | {2: "new"}
    assert len(lost) == 1


def test_old_keys_are_copied_like_files(made: Deleting, monkeypatch: pytest.MonkeyPatch) -> None:
    """An orphan removal deletes what no snapshot names after some days."""
    with monkeypatch.context() as dying:
        _kill(dying, Seal)
        with pytest.raises(DriverDiedError):
            made.start(2, 3, 106, deletes={3, 106})
    made.lake.time.pass_by(72 * 3600.0)
    report = made.start(2, 3, 106, deletes={3, 106})
    assert made.rows == without(OLD, 3, 106) | {2: "new"}
    assert (report.copied_files, made.calls) == (1, 1)
    kinds = [(bool(g.deleted_keys), "-copy-" in g.path) for g in made.staged()]
    assert sorted(kinds) == [(False, True), (True, True)]


def test_deleted_keys_are_not_counted_by_halves(
    made: Deleting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor that cannot run the job ends the start; the next one counts every key."""
    facts = {"what": "its Python lacks pyarrow", "cure": "install it"}
    problem = TaskProblem(kind="setup", host="node-7", facts=facts)

    def cannot(_plan: FindPlan, _batches: object, *, place: int, **_: int) -> TaskReport:
        return TaskReport(place=place, problem=problem)

    with monkeypatch.context() as failing:
        failing.setattr(FindPlan, "run", cannot)
        with pytest.raises(ExecutorSetupError, match="node-7"):
            made.start(2, 3, 106, deletes={3, 106})
    assert made.rows == OLD
    report = made.start(2, 3, 106, deletes={3, 106})
    assert (report.deleted_keys, made.calls) == (2, 1)
    assert made.rows == without(OLD, 3, 106) | {2: "new"}


# ---- What is left, and when it goes


def _key_files(made: Deleting) -> list[str]:
    folder = local_path(made.lake.table.location())
    return sorted(path.name for path in folder.rglob("*-k*.parquet"))


def test_a_sweep_deletes_the_keys_and_nothing_that_is_live(made: Deleting) -> None:
    """After the receipt no snapshot refers to them, and no later start reads them."""
    made.start(2, 3, 106, deletes={3, 106})
    rows = made.rows
    assert len(_key_files(made)) == 1
    swept = sweep(made.lake.ledger(), lambda _identity: made.lake.sink)
    # The keys, and the manifests of two rewritten files, which the post has joined.
    assert (swept.data_files, _key_files(made)) == (3, [])
    assert made.rows == rows
    assert made.start(2, 3, 106, deletes={3, 106}).outcome == "already_committed"


def test_a_sweep_after_an_abort_deletes_the_keys(
    made: Deleting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the run has staged goes, and the table stays as it was."""
    with monkeypatch.context() as dying:
        _kill(dying, Seal)
        with pytest.raises(DriverDiedError):
            made.start(2, 3, 106, deletes={3, 106})
    assert len(_key_files(made)) == 1
    abort(made.lake.ledger(), lambda _identity: made.lake.sink, "no longer wanted")
    sweep(made.lake.ledger(), lambda _identity: made.lake.sink)
    assert (_key_files(made), made.rows) == ([], OLD)


def test_many_groups_are_merged_without_the_keys(
    made: Deleting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is merged are manifests; keys are none."""
    monkeypatch.setattr(resolve, "_MERGED_FROM", 2)
    submitter = MemorySubmitter(*([id_, id_ + 1000] for id_ in range(6)))

    def transform(batch: Any) -> pa.Table:  # noqa: ANN401
        ids = batch["id"].to_pylist()
        flags = pa.array([id_ < 1000 for id_ in ids])
        return _rows(ids, "new").append_column("gone", flags)

    report = made.lake.start(
        submitter, mode="upsert", on="id", delete_column="gone", transform=transform
    )
    assert made.rows == without(OLD, *range(6)) | dict.fromkeys(range(1000, 1006), "new")
    assert (report.rows, report.deleted_keys) == (6, 6)
    assert made.ledger.log.merged
