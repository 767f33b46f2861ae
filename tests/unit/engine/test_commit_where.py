"""An overwrite by a filter: matching rows go, whole files or single rows, all others stay."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import TruncateTransform
from pyiceberg.types import DoubleType, FloatType, LongType, NestedField

from holdfast.engine import base
from holdfast.engine.cleanup import abort, sweep
from holdfast.engine.commit import Commit
from holdfast.errors import (
    EmptyOutputError,
    RunMismatchError,
    SchemaMismatchError,
    SettingsError,
    StoreUnavailableError,
    TableChangedError,
)
from holdfast.ledger.parts import read_list, read_objects
from holdfast.ledger.run_log import RunLog
from holdfast.model.records import Rewritten
from holdfast.model.report import Report
from holdfast.model.work import Rewrite
from holdfast.sinks.base import Change, Outcome, RunMark, TableView
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.worker.replay import RewritePlan
from tests.fakes.iceberg_tables import Lake, new_table
from tests.fakes.memory_storage import DriverDiedError
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.position_deletes import delete_positions

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "n", LongType()))
BY_HUNDRED = PartitionSpec(PartitionField(1, 1000, TruncateTransform(100), "hundred"))


@dataclass
class Filtered:
    """A table, and runs that replace rows by a filter."""

    lake: Lake
    # What is done right before posts, one after the other.
    before_posts: list[Callable[[], object]] = field(default_factory=list)
    rewritten: list[int] = field(default_factory=list)

    @classmethod
    def table_of(cls, folder: Path, spec: PartitionSpec = BY_HUNDRED) -> Filtered:
        """Make a table with two snapshots: ids 0 to 9 and 100 to 109, then 5 and 300."""
        sink, _ = new_table(folder, SCHEMA, partition_spec=spec)
        made = cls(Lake(sink))
        # Files have the times of this machine.
        made.lake.time.pass_by(time.time() - made.lake.time.now())
        made.append([*range(10), *range(100, 110)])
        made.append([305, None])
        return made

    def append(self, ids: list[int | None]) -> None:
        """Let another writer add rows, whose n is NULL if the id is odd."""
        numbers = [None if id_ is None or id_ % 2 else id_ for id_ in ids]
        rows = {"id": pa.array(ids, pa.int64()), "n": pa.array(numbers, pa.int64())}
        self.lake.table.append(pa.table(rows))

    def start(self, *ids: int, run_id: str = "r", **options: Any) -> Report:  # noqa: ANN401
        """Start a run; its rows have n = 0."""
        return self.lake.start(
            MemorySubmitter(ids),
            run_id=run_id,
            mode="overwrite",
            transform=lambda batch: {"id": batch["id"], "n": [0] * batch.num_rows},
            takeover="now",
            **options,
        )

    @property
    def rows(self) -> list[int | None]:
        """The ids in the table."""
        found = self.lake.table.scan().to_arrow()["id"].to_pylist()
        return sorted(found, key=lambda id_: (id_ is None, id_))


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Filtered:
    """Return a table; what is done before posts is done, and rewritten files are counted."""
    table = Filtered.table_of(tmp_path)
    post, run = IcebergSink.post, RewritePlan.run

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

    monkeypatch.setattr(IcebergSink, "post", act_first)
    monkeypatch.setattr(RewritePlan, "run", counted)
    return table


def test_whole_files_go_by_metadata_alone(made: Filtered) -> None:
    """No file is read: a partition is all inside the filter, the others all outside."""
    report = made.start(100, 199, where="id >= 100 and id < 200")
    assert made.rows == [*range(10), 100, 199, 305, None]
    assert (report.replaced_rows, report.replaced_files, made.rewritten) == (10, 1, [])


def test_of_a_file_with_both_the_other_rows_stay(made: Filtered) -> None:
    """In a new file; the old one can be read by time travel."""
    before = made.lake.table.current_snapshot()
    assert before is not None
    report = made.start(3, 4, where="id < 7")
    assert made.rows == [3, 4, 7, 8, 9, *range(100, 110), 305, None]
    assert (report.replaced_rows, report.replaced_files, report.posts) == (7, 1, 1)
    assert sum(made.rewritten) == report.searched_files == 1
    assert "searched  1 file for rows to replace\n" in str(report)
    old = made.lake.table.scan(snapshot_id=before.snapshot_id).to_arrow()
    assert old.num_rows == 22
    summary = made.lake.table.current_snapshot()
    assert summary is not None
    assert summary.summary is not None
    assert summary.summary.operation.value == "overwrite"
    assert summary.summary["total-records"] == str(len(made.rows))


def test_another_filter_is_another_verdict(made: Filtered) -> None:
    """What one filter says about a file does not count for the next run on the same table."""
    made.start(301, where="id >= 300")
    made.start(101, run_id="other", where="id >= 100 and id < 200")
    assert made.rows == [*range(10), 101, 301, None]


def test_null_is_outside_of_every_comparison(made: Filtered) -> None:
    """A row for which the filter is NULL stays, and must not be in the output either."""
    made.start(2, where="n != 4 and id < 100")
    assert made.rows == [1, 2, 3, 4, 5, 7, 9, *range(100, 110), 305, None]
    with pytest.raises(SchemaMismatchError, match=r"1 of 1 rows are outside where=n > 3.*n = 0"):
        made.start(2, run_id="other", where="n > 3")


def test_rows_that_were_deleted_do_not_come_back(made: Filtered) -> None:
    """The delete names the old file, which is gone; the new file is without the row."""
    task = next(task for task in made.lake.table.scan().plan_files() if task.file.partition[0] == 0)
    path, partition = task.file.file_path, task.file.partition
    delete_positions(made.lake.table, {path: [8, 9]}, partition=partition)
    report = made.start(1, where="id < 5")
    assert made.rows == [1, 5, 6, 7, *range(100, 110), 305, None]
    assert report.replaced_rows == 5


def test_a_file_without_a_matching_row_stays_as_it_is(made: Filtered) -> None:
    """Its bounds say maybe, its rows say no; it is looked at once."""
    files = set(made.lake.table.inspect.files()["file_path"].to_pylist())
    made.start(305, where="n = 5 or id = 305")
    assert made.rows == [*range(10), *range(100, 110), 305, None]
    left = set(made.lake.table.inspect.files()["file_path"].to_pylist())
    assert len(files - left) == 1


def test_after_a_conflict_only_new_files_are_rewritten(made: Filtered) -> None:
    """What others have added meanwhile is looked at, too; what is known is used again."""
    made.before_posts = [lambda: made.append([6, 50]), lambda: made.append([8])]
    report = made.start(1, where="id < 7")
    assert made.rows == [1, 7, 8, 8, 9, 50, *range(100, 110), 305, None]
    assert (report.posts, report.replaced_rows, sum(made.rewritten)) == (3, 8, 2)
    assert (report.searched_files, report.searched_again) == (2, 1)
    searched = "searched  2 files for rows to replace, 1 of them because others changed the table"
    assert searched in str(report)


def test_there_is_no_pause_between_a_rewrite_and_its_post(
    made: Filtered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others who add a file every two seconds would add the next one in the pause."""
    run, others = RewritePlan.run, [6, 5, 4, 3]

    def beside(plan: RewritePlan, batches: Any, **place: int) -> Any:  # noqa: ANN401
        if others:
            made.append([others.pop(), 50])
        return run(plan, batches, **place)

    monkeypatch.setattr(RewritePlan, "run", beside)
    report = made.start(1, where="id < 7")
    assert made.rows == [1, 7, 8, 9, *[50] * 4, *range(100, 110), 305, None]
    assert (report.posts, report.searched_files, others) == (1, 5, [])
    assert made.lake.time.sleeps == []


def test_a_file_that_goes_while_it_is_rewritten_is_left_out(
    made: Filtered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have compacted and expired it: the next look finds the rows elsewhere."""
    run = RewritePlan.run
    did: list[bool] = []

    def compacted(plan: RewritePlan, batches: Any, **place: int) -> Any:  # noqa: ANN401
        if not did:
            did.append(True)
            table = made.lake.table
            gone = [task.file.file_path for task in table.scan().plan_files()]
            table.overwrite(table.scan().to_arrow())
            for path in gone:
                table.io.delete(path)
        return run(plan, batches, **place)

    monkeypatch.setattr(RewritePlan, "run", compacted)
    made.start(1, where="id < 7")
    assert made.rows == [1, 7, 8, 9, *range(100, 110), 305, None]


def test_a_file_that_the_storage_lacks_is_named(made: Filtered) -> None:
    """The table lists it, and nobody has changed the table: it is damaged."""
    table = made.lake.table
    (gone,) = [t.file.file_path for t in table.scan().plan_files() if t.file.partition[0] == 0]
    table.io.delete(gone)
    with pytest.raises(StoreUnavailableError, match=f"lacks 1 file of the table: .*{gone}"):
        made.start(1, where="id < 7")


def test_a_start_after_a_kill_uses_what_was_rewritten(made: Filtered) -> None:
    """The files are recorded before the post; the third start finds the run landed."""

    def die() -> None:
        raise DriverDiedError

    made.before_posts = [die]
    with pytest.raises(DriverDiedError):
        made.start(1, where="id < 7")
    assert len(made.rows) == 22
    made.start(1, where="id < 7")
    assert made.rows == [1, 7, 8, 9, *range(100, 110), 305, None]
    assert sum(made.rewritten) == 1
    made.append([2])
    assert made.start(1, where="id < 7").outcome == "already_committed"
    assert 2 in made.rows


@pytest.mark.parametrize("how", ["gone", "old"])
def test_a_rewritten_file_that_may_be_gone_is_written_again(made: Filtered, how: str) -> None:
    """An orphan removal has deleted it, or may do so any moment."""

    def die() -> None:
        raise DriverDiedError

    made.before_posts = [die]
    with pytest.raises(DriverDiedError):
        made.start(1, where="id < 7")
    if how == "old":
        made.lake.time.pass_by(base._OLD_AFTER_S * 2)  # noqa: SLF001
    else:
        (group,) = rewritten_groups(made)
        made.lake.table.io.delete(group.files[0].path)
    made.start(1, where="id < 7")
    assert made.rows == [1, 7, 8, 9, *range(100, 110), 305, None]
    assert sum(made.rewritten) == 2


def swap_names(made: Filtered) -> None:
    """Let another writer give the columns each other's names."""
    for old, new in (("id", "other"), ("n", "id"), ("other", "n")):
        with made.lake.table.update_schema() as update:
            update.rename_column(old, new)


@pytest.mark.parametrize("when", ["before a post", "between two starts"])
def test_a_file_is_rewritten_again_if_the_filter_means_another_column(
    made: Filtered, when: str
) -> None:
    """It was rewritten without rows that the filter is no longer true for."""

    def die() -> None:
        raise DriverDiedError

    if when == "before a post":
        made.before_posts = [lambda: swap_names(made)]
    else:
        made.before_posts = [die]
        with pytest.raises(DriverDiedError):
            made.start(where="id < 7", allow_empty=True)
        swap_names(made)
    report = made.start(where="id < 7", allow_empty=True)
    left = made.lake.table.scan().to_arrow()
    # Even numbers are in both columns, odd ones in what is now n: there the filter is NULL.
    assert sorted(left["n"].drop_null().to_pylist()) == [1, 3, 5, 7, 8, 9, *range(100, 110), 305]
    assert (report.replaced_rows, sum(made.rewritten) > 1) == (4, True)


def test_a_file_is_rewritten_again_if_a_column_of_the_filter_is_wider(tmp_path: Path) -> None:
    """As a double, the number that was the float 0.1 is not at most 0.1."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "f", FloatType()))
    sink, _ = new_table(tmp_path, schema)
    lake = Lake(sink)
    lake.time.pass_by(time.time() - lake.time.now())
    rows = {"id": pa.array([1, 2]), "f": pa.array([0.1, 5.0], pa.float32())}
    lake.table.append(pa.table(rows))
    where = "f <= 0.1"
    view = sink.load()
    before = sink.loss(view, Change(removes="where", where=where), "n").targets
    lake.table.update_schema().update_column("f", DoubleType()).commit()
    after = sink.loss(sink.load(), Change(removes="where", where=where), "n").targets
    assert len(before) == len(after) == 1
    assert before.keys() != after.keys()


def rewritten_groups(made: Filtered) -> list[Any]:
    """Return the new files that the ledger lists."""
    ledger = made.lake.ledger("r")
    ledger.log.refresh()
    found = [
        rewrite
        for part in ledger.log.rewritten
        for rewrite in read_list(ledger.storage, ledger.layout, part, Rewrite)
    ]
    return [rewrite.group for rewrite in found if rewrite.group is not None]


def test_a_file_that_was_just_rewritten_is_asked_for(
    made: Filtered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the answer about others, which took a second, holds for ten."""
    missing, append = IcebergSink.missing_files, RunLog.append

    def slowly(sink: IcebergSink, view: TableView, groups: Any) -> list[str]:  # noqa: ANN401
        made.lake.time.pass_by(1.0)
        return missing(sink, view, groups)

    def removed_then(log: RunLog, body: Any) -> Any:  # noqa: ANN401
        found = append(log, body)
        if isinstance(body, Rewritten) and len(made.rewritten) == 1:
            (group,) = rewritten_groups(made)
            made.lake.table.io.delete(group.files[0].path)
        return found

    monkeypatch.setattr(IcebergSink, "missing_files", slowly)
    monkeypatch.setattr(RunLog, "append", removed_then)
    made.start(1, where="id < 7")
    assert made.rows == [1, 7, 8, 9, *range(100, 110), 305, None]
    assert sum(made.rewritten) == 2


def test_nothing_is_posted_with_a_file_that_is_gone(made: Filtered) -> None:
    """It went after a refused post; its rows would be lost."""

    def meddle() -> None:
        made.append([50])
        (group,) = rewritten_groups(made)
        made.lake.table.io.delete(group.files[0].path)

    made.before_posts = [meddle]
    made.start(1, where="id < 7")
    assert made.rows == [1, 7, 8, 9, 50, *range(100, 110), 305, None]


def test_an_intent_lists_what_it_reaches(made: Filtered) -> None:
    """Of a rewritten file the manifest and the data: a sweep keeps what has landed by this list."""
    made.start(1, where="id < 7")
    (group,) = rewritten_groups(made)
    ledger = made.lake.ledger("r")
    ledger.log.refresh()
    (intent,) = ledger.log.intents.values()
    assert intent.written is not None
    assert {*group.paths} <= read_objects(ledger.storage, ledger.layout, intent.written).keys()


def test_a_sweep_keeps_what_the_table_uses_and_deletes_the_rest(made: Filtered) -> None:
    """A file that was rewritten twice is used once."""
    made.before_posts = [lambda: made.append([6])]
    made.start(1, where="id < 7")
    rows = made.rows
    ledger = made.lake.ledger("r")
    sweep(ledger, lambda _identity: made.lake.sink)
    assert made.rows == rows


def test_an_aborted_run_leaves_no_file(made: Filtered, monkeypatch: pytest.MonkeyPatch) -> None:
    """It died before an intent listed what was rewritten; the table is as it was."""

    def die(*_arguments: object) -> None:
        raise DriverDiedError

    before = made.rows
    with monkeypatch.context() as patch:
        patch.setattr(Commit, "_write_intent", die)
        with pytest.raises(DriverDiedError):
            made.start(1, where="id < 7")
    (group,) = rewritten_groups(made)
    abort(made.lake.ledger("r"), lambda _identity: made.lake.sink, "no longer wanted")
    sweep(made.lake.ledger("r"), lambda _identity: made.lake.sink)
    assert made.rows == before
    assert not any(made.lake.table.io.new_input(path).exists() for path in group.paths)


def test_with_snapshot_isolation_what_others_add_stays(made: Filtered) -> None:
    """Even if it matches; a delete or a compaction by others is refused."""
    made.before_posts = [lambda: made.append([6, 50])]
    made.start(1, where="id < 7", isolation_level="snapshot")
    assert made.rows == [1, 6, 7, 8, 9, 50, *range(100, 110), 305, None]
    made.before_posts = [lambda: made.lake.table.delete("id = 9")]
    with pytest.raises(TableChangedError):
        made.start(2, run_id="other", where="id < 7", isolation_level="snapshot")


def test_what_does_not_fit_is_refused_before_a_row_is_computed(made: Filtered) -> None:
    """A filter that is none, one of another run, and a table that cannot be rewritten."""
    for where, words in {
        "m = 3": "m = 3",
        "true": "same answer for every row",
        "n = 'x'": "'n' is long, and 'x'",
        "": "give a filter",
    }.items():
        with pytest.raises(SettingsError, match=words):
            made.start(1, run_id="bad", where=where)
        assert made.lake.ledger("bad").run_file() is None
    made.start(1, where="id < 7")
    with pytest.raises(RunMismatchError, match="where"):
        made.start(1, where="id < 8")
    with pytest.raises(RunMismatchError, match="where"):
        made.start(1)


def test_an_empty_output_is_an_error_unless_it_is_wanted(made: Filtered) -> None:
    """Then the matching rows are deleted."""
    with pytest.raises(EmptyOutputError):
        made.start(where="id < 7")
    made.start(where="id < 7", allow_empty=True)
    assert made.rows == [7, 8, 9, *range(100, 110), 305, None]


def test_jobs_of_many_files_are_recorded_one_by_one(
    made: Filtered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill costs one of them."""
    monkeypatch.setattr(base, "_FILES_OF_A_JOB", 1)
    made.append([1, 50])
    made.append([2, 60])
    made.start(0, where="id < 5")
    assert made.rows == [0, 5, 6, 7, 8, 9, 50, 60, *range(100, 110), 305, None]
    ledger = made.lake.ledger("r")
    ledger.log.refresh()
    assert len(ledger.log.rewritten) == 3
