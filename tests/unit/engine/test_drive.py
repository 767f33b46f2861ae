"""One start of a run, from probe to receipt: which files are published, and for which schema."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType, NestedField

from holdfast.engine.drive import Driver, warn_of_doubts
from holdfast.engine.options import VerifyInput, WriteOptions
from holdfast.errors import (
    InputChangedError,
    JobFailedError,
    LedgerDamagedError,
    NullKeyError,
    RunAbortedError,
    RunMismatchError,
    SchemaMismatchError,
    StagedFileMissingError,
    TableChangedError,
    UnsafeStoreError,
)
from holdfast.model.records import Abort, Receipt
from holdfast.sinks.base import Change, WriterSpec
from holdfast.sinks.iceberg.sink import IcebergSink
from tests.fakes.iceberg_tables import Lake, new_table
from tests.fakes.memory_submitter import MemorySubmitter, partition
from tests.fakes.memory_table import DriverDiedError, MemoryTable, PostFault
from tests.fakes.rig import LAYOUT, Rig, two_partitions
from tests.fakes.unpinned import Unpinned

# ---- One start of a run, from probe to receipt, with Spark, table, store and time in memory
ALL = list(range(20))


def rig_with_staged_files() -> Rig:
    """Return a run whose first driver has staged everything and died before its post."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    rig.start_and_die()
    return rig


def staged_files(rig: Rig) -> list[str]:
    """Return the data files that the last seal lists."""
    return [file.path for group in rig.sealed().groups for file in group.files]


def receipt_of(rig: Rig) -> Receipt:
    """Return the receipt in the run's log."""
    receipt = rig.log().receipt
    assert receipt is not None
    return receipt


def test_a_first_start_stages_and_commits() -> None:
    """One job, one post, one snapshot with the files of all tasks, and the full log."""
    rig, submitter = Rig(), two_partitions()
    driven = rig.start(submitter)
    (snapshot,) = rig.table.data_snapshots
    assert [file.rows for group in snapshot.groups for file in group.files] == [10, 10]
    assert rig.table.ids == ALL
    assert (driven.tasks, driven.outcome, driven.posts) == (2, "committed", 1)
    assert driven.rows == 20
    assert rig.kinds() == ["Claim", "Plan", "Seal", "Intent", "Receipt"]
    assert (len(submitter.plans), submitter.replays) == (1, [])
    assert rig.time.sleeps == []


def test_a_second_start_after_the_commit_does_nothing() -> None:
    """It returns the receipt of the first; no job is run and nothing is written."""
    rig = Rig()
    first = rig.start()
    receipt = rig.log().receipt
    objects, posts = dict(rig.storage.objects), len(rig.table.posts)
    submitter = two_partitions()
    second = rig.start(submitter)
    assert second.outcome == "already_committed"
    assert (second.snapshot_id, second.rows) == (first.snapshot_id, first.rows)
    assert rig.log().receipt == receipt
    assert (second.tasks, second.posts, submitter.plans) == (0, 0, [])
    assert (rig.storage.objects, len(rig.table.posts)) == (objects, posts)


@pytest.mark.parametrize("fault", [PostFault.DIES_LANDED, PostFault.DIES_DELAYED])
def test_a_start_after_a_driver_that_landed_and_died_writes_only_the_receipt(
    fault: PostFault,
) -> None:
    """The mark shows what the dead driver could not record; no row is computed or written again."""
    rig, submitter = Rig(), two_partitions()
    rig.table.post_faults.append(fault)
    rig.start_and_die()
    (intent,) = rig.log().intents
    rig.start(submitter)
    assert submitter.plans == []
    assert len(rig.table.data_snapshots) == 1
    assert receipt_of(rig).intent_number == intent
    assert rig.kinds()[-2:] == ["Claim", "Receipt"]


def test_a_start_after_an_intent_that_did_not_land_reuses_the_staged_files() -> None:
    """The work is done: a new intent posts the staged files, without a job."""
    rig, submitter = rig_with_staged_files(), two_partitions()
    driven = rig.start(submitter)
    assert (submitter.plans, submitter.replays) == ([], [])
    assert (driven.tasks, driven.outcome, driven.posts) == (0, "committed", 1)
    (snapshot,) = rig.table.data_snapshots
    assert (len(snapshot.groups), rig.table.ids) == (2, ALL)
    assert snapshot.mark is not None
    assert snapshot.mark.intent_number == max(rig.log().intents)
    assert rig.kinds() == ["Claim", "Plan", "Seal", "Intent", "Claim", "Intent", "Receipt"]


def test_only_a_look_later_than_the_claim_counts() -> None:
    """An old driver's post lands after the user's look at the table and before the claim."""
    rig, submitter = rig_with_staged_files(), two_partitions()
    (intent,) = rig.log().intents
    view = rig.table.load()
    rig.table.post(view, "r", rig.table.posts[0], Change())
    driven = rig.start(submitter, view=view)
    assert (driven.outcome, driven.posts, submitter.plans) == ("already_committed", 0, [])
    assert receipt_of(rig).intent_number == intent


def test_a_start_after_a_job_that_failed_runs_the_job_again() -> None:
    """No task got anywhere, so there is nothing to keep; the next start does the work."""
    rig, failing = Rig(), two_partitions()
    failing.answers.append(JobFailedError(reason="lost"))
    with pytest.raises(JobFailedError):
        rig.start(failing)
    assert (rig.table.posts, rig.kinds()) == ([], ["Claim", "Plan", "Stop"])
    submitter = two_partitions()
    assert rig.start(submitter).tasks == 2
    assert (len(submitter.plans), rig.table.ids) == (1, ALL)


def test_every_job_has_its_own_name() -> None:
    """Two drivers at once never write the same file: the job's nonce is in the file names."""
    rig, first, second = Rig(), two_partitions(), two_partitions()
    first.answers.append(JobFailedError(reason="lost"))
    with pytest.raises(JobFailedError):
        rig.start(first)
    rig.start(second)
    assert first.plans[0].job_nonce != second.plans[0].job_nonce


@pytest.mark.parametrize("submitter", [MemorySubmitter([]), MemorySubmitter([], [])])
def test_an_input_without_rows_still_lands_once(submitter: MemorySubmitter) -> None:
    """An empty day is a run too: it has a mark, and its next start finds it."""
    rig = Rig()
    driven = rig.start(submitter)
    assert driven.rows == 0
    assert rig.start(submitter).outcome == "already_committed"
    assert len(rig.table.data_snapshots) == 1


def test_an_empty_table_gets_a_parent_before_the_data() -> None:
    """The first write to a new table is two snapshots, the first of them empty."""
    rig = Rig(table=MemoryTable(empty=True))
    rig.start()
    assert [bool(snapshot.groups) for snapshot in rig.table.snapshots.values()] == [False, True]


def test_a_store_that_overwrites_is_refused_before_any_work() -> None:
    """No claim, no job, no post."""
    rig, submitter = Rig(), two_partitions()
    rig.storage.overwrites_on_create = True
    with pytest.raises(UnsafeStoreError):
        rig.start(submitter)
    assert (submitter.plans, rig.table.posts) == ([], [])
    assert not any(uri.startswith(LAYOUT.folder) for uri in rig.storage.objects)


def test_a_dropped_and_recreated_table_is_another_job() -> None:
    """The run's table is gone, even if another one has its name."""
    rig = rig_with_staged_files()
    rig.table.uuid = "uuid-2"
    with pytest.raises((RunMismatchError, TableChangedError)):
        rig.start()
    assert rig.table.data_snapshots == []


def test_a_schema_that_changed_after_the_staging_stops_a_start_before_the_job() -> None:
    """The staged files were written for other columns: they are kept, and no work is repeated."""
    rig, submitter = rig_with_staged_files(), two_partitions()
    rig.table.schema = {"columns": ["id", "required"]}
    with pytest.raises(TableChangedError):
        rig.start(submitter)
    assert (submitter.plans, rig.table.data_snapshots) == ([], [])
    rig.table.schema = {"columns": ["id"]}
    assert rig.start(submitter).kept_rows == 20


def test_an_aborted_run_is_not_started_again() -> None:
    """Abort is final: neither Spark nor the table is touched."""
    rig, submitter = Rig(), two_partitions()
    rig.commit_step().log.append(Abort(reason="given up"))
    with pytest.raises(RunAbortedError, match="given up"):
        rig.start(submitter)
    assert (submitter.plans, submitter.key_reads, rig.table.posts) == ([], 0, [])


def test_a_damaged_list_of_staged_files_is_never_posted() -> None:
    """The part's digest is in the seal; another list of files is refused."""
    rig = rig_with_staged_files()
    (part,) = [uri for uri in rig.storage.objects if "/parts/" in uri]
    rig.storage.objects[part] += b"x"
    with pytest.raises(LedgerDamagedError, match="digest"):
        rig.start()
    assert rig.table.data_snapshots == []


def test_staged_files_that_were_removed_are_written_again() -> None:
    """The staged files cannot be posted any more: the work is done again, and lands once."""
    rig, submitter = rig_with_staged_files(), two_partitions()
    lost = staged_files(rig)
    rig.table.lost_files.extend(lost)
    driven = rig.start(submitter)
    assert (driven.rows, driven.withdrawn_rows) == (20, 20)
    assert (len(submitter.plans), rig.table.ids) == (1, ALL)
    (snapshot,) = rig.table.data_snapshots
    assert not {file.path for group in snapshot.groups for file in group.files} & set(lost)


@pytest.mark.parametrize("verify_input", ["keys", "rows", False])
def test_staged_files_that_vanish_during_a_start_are_written_again_at_once(
    *, verify_input: VerifyInput
) -> None:
    """A clean-up removes a file between two posts of a start: only its rows are computed again."""
    rig, submitter = Rig(), two_partitions()
    rig.table.post_faults.append(PostFault.RIVAL_FIRST)
    rig.table.after_post = lambda: rig.table.lost_files.append(staged_files(rig)[1])
    driven = rig.start(submitter, verify_input=verify_input)
    assert (driven.rows, driven.withdrawn_rows) == (20, 10)
    assert (len(submitter.plans), driven.passes) == (2, 2)
    assert len(rig.table.data_snapshots) == 1
    assert rig.table.ids == ALL


def test_staged_files_that_keep_vanishing_are_an_error_that_running_again_fixes() -> None:
    """A start gives up after some attempts and says what to do; nothing of the run has landed."""
    rig = Rig()

    def lose_another_file() -> None:
        rig.table.lost_files.append(staged_files(rig)[-1])
        rig.table.after_post = lose_another_file

    rig.table.post_faults.extend([PostFault.RIVAL_FIRST] * 9)
    rig.table.after_post = lose_another_file
    with pytest.raises(StagedFileMissingError, match="run the same script again"):
        rig.start()
    assert rig.table.data_snapshots == []
    rig.table.after_post = None
    rig.table.post_faults.clear()
    assert rig.start().rows == 20
    assert rig.table.ids == ALL


# ---- Starts of a run: which files are published, for which schema, which settings are refused
def test_only_a_start_that_publishes_an_earlier_starts_files_reports_kept_rows() -> None:
    """Neither the start that did the work nor one that finds the run landed reports kept rows."""
    assert Rig().start().kept_rows == 0
    rig = rig_with_staged_files()
    inherited = rig.start()
    assert (inherited.kept_rows, inherited.outcome, inherited.tasks) == (20, "committed", 0)
    later = rig.start()
    assert (later.kept_rows, later.outcome) == (0, "already_committed")


def test_inherited_files_that_are_gone_are_written_again_by_this_start() -> None:
    """The input was read after all, so the report does not claim that rows were kept."""
    rig = rig_with_staged_files()
    rig.table.lost_files.extend(file.path for group in rig.sealed().groups for file in group.files)
    driven = rig.start()
    assert (driven.kept_rows, driven.tasks, driven.withdrawn_rows) == (0, 2, 20)


def test_inherited_files_of_the_same_input_are_published_without_a_warning() -> None:
    """The input was measured again and has not changed, so it matches the staged files."""
    rig, submitter = rig_with_staged_files(), two_partitions()
    report = rig.start(submitter)
    assert (report.kept_rows, report.outcome, report.tasks) == (20, "committed", 0)
    assert report.input_compared == "keys"
    assert submitter.key_reads == 1
    assert "20 rows of earlier starts" in str(report)
    assert "earlier starts" not in str(replace(report, kept_rows=0))


def test_inherited_files_of_an_input_that_lost_rows_are_not_published() -> None:
    """The table would get rows that the input no longer has."""
    rig, submitter = rig_with_staged_files(), MemorySubmitter(range(10), range(10, 19))
    with pytest.raises(InputChangedError, match="1 of 20 finished keys are no longer in it"):
        rig.start(submitter)
    assert (rig.table.data_snapshots, submitter.plans) == ([], [])


def test_inherited_files_are_published_with_the_rows_that_were_added_since() -> None:
    """Otherwise the rows that are new in this start's input would be dropped silently."""
    rig, submitter = rig_with_staged_files(), MemorySubmitter(range(10), range(10, 21))
    report = rig.start(submitter)
    assert (report.kept_rows, report.rows, len(submitter.plans)) == (20, 21, 1)
    assert rig.table.ids == list(range(21))


def test_a_landed_run_with_another_input_is_refused() -> None:
    """As many rows, but other keys: a reused run id does not drop data silently."""
    rig, other = Rig(), MemorySubmitter(range(10), range(11, 21))
    rig.start()
    with pytest.raises(RunMismatchError, match="20 rows, but different keys"):
        rig.start(other)
    assert len(rig.table.data_snapshots) == 1


def test_an_input_that_is_not_compared_is_not_read_and_the_report_says_so() -> None:
    """The receipt is returned at once; the report and a warning say what was not compared."""
    rig, other = Rig(), MemorySubmitter(range(99))
    rig.start()
    driven = rig.start(other, if_committed="return")
    assert (driven.outcome, driven.input_compared, other.key_reads) == (
        "already_committed",
        None,
        0,
    )
    with pytest.warns(UserWarning, match="the input was not compared"):
        warn_of_doubts(driven)
    assert "not compared" in str(driven)


def test_rows_without_a_key_are_refused_before_any_is_paid_for() -> None:
    """NULL does not identify a row; the transform is never called."""
    rig, submitter = Rig(), MemorySubmitter([1, None, None], [None, 2])
    with pytest.raises(NullKeyError, match="3 input rows have NULL"):
        rig.start(submitter)
    assert submitter.plans == []


def test_tasks_that_read_other_rows_than_planned_commit_nothing() -> None:
    """An upstream that returns other rows each time is noticed before the commit."""
    rig, submitter = Rig(), two_partitions()
    submitter.next_reads.append([partition(range(10)), partition(range(10, 21))])
    with pytest.raises(InputChangedError, match=r"1 of 21 finished keys .* \(id=20\)"):
        rig.start(submitter)
    assert rig.table.data_snapshots == []


def test_a_run_that_did_the_work_itself_does_not_warn() -> None:
    """Warnings are errors in this suite: one would fail this test."""
    assert Rig().start().kept_rows == 0


def test_a_schema_change_while_nothing_is_staged_does_not_block_the_run() -> None:
    """The failed start left no files that might not fit the new schema."""
    rig, failing = Rig(), two_partitions()
    failing.answers.append(JobFailedError(reason="lost"))
    with pytest.raises(JobFailedError):
        rig.start(failing)
    rig.table.schema = {"columns": ["id", "new"]}
    submitter = two_partitions()
    assert rig.start(submitter).rows == 20
    assert len(submitter.plans) == 1


class _DiesBeforeItsPost(IcebergSink):
    """A driver that is killed after the intent."""

    def post(self, *_: object) -> Any:  # noqa: ANN401 - it never returns.
        """Die."""
        raise DriverDiedError


def narrow_lake(folder: Path) -> Lake:
    """Return a table whose ids are ints of 32 bits."""
    sink, _ = new_table(folder, Schema(NestedField(1, "id", IntegerType())))
    return Lake(sink)


def widen(table: Table) -> None:
    """Follow the advice of a schema error: change the table's column."""
    table.update_schema().update_column("id", LongType()).commit()


def test_a_table_altered_after_a_schema_error_takes_the_same_run(tmp_path: Path) -> None:
    """The error says "change the table's column": doing so must resolve it."""
    lake = narrow_lake(tmp_path)
    with pytest.raises(SchemaMismatchError, match="id"):
        lake.start(lake.submitter(1, 2))
    widen(lake.table)
    assert lake.start(lake.submitter(1, 2)).rows == 2
    assert lake.ids() == [1, 2]


def test_a_column_widened_after_the_staging_is_not_a_dead_end(tmp_path: Path) -> None:
    """Readers widen the values of the staged files, as they do for older files of the table."""
    lake = narrow_lake(tmp_path)
    first = MemorySubmitter(partition([1, 2], pa.int32()))
    dying = _DiesBeforeItsPost(lake.sink._catalog, "db.t", "main")  # noqa: SLF001 - the same one.
    with pytest.raises(DriverDiedError):
        Lake(dying, storage=lake.storage).start(first)
    widen(lake.table)
    second = MemorySubmitter(partition([1, 2], pa.int32()))
    assert lake.start(second).rows == 2
    assert (len(first.plans), second.plans, lake.ids()) == (1, [], [1, 2])


def test_output_that_cannot_fit_leaves_no_run_behind() -> None:
    """A typo in a column is known before the start: no stopped run is left to clean up."""
    rig, started = Rig(), Rig()

    def refuse(_spec: WriterSpec) -> None:
        raise SchemaMismatchError(table="t", column="nam", problem="no such column")

    def driver(rig: Rig) -> Driver:
        ledger, given = rig.ledger(), Unpinned(two_partitions())
        return Driver(ledger=ledger, sink=rig.table, input=given, check_output=refuse)

    with pytest.raises(SchemaMismatchError):
        driver(rig).write(rig.table.load(), rig.identity(), WriteOptions())
    assert [uri for uri in rig.storage.objects if uri.startswith(LAYOUT.folder)] == []
    # A run that has landed says so, whatever the table's columns are by now.
    started.start()
    report = driver(started).write(started.table.load(), started.identity(), WriteOptions())
    assert report.outcome == "already_committed"
