"""One start of a run, from probe to receipt, with Spark, table, store and time in memory."""

from __future__ import annotations

import pytest

from holdfast.errors import (
    JobFailedError,
    LedgerDamagedError,
    RunAbortedError,
    RunMismatchError,
    StagedFileMissingError,
    TableChangedError,
    UnsafeStoreError,
)
from holdfast.ledger.parts import read_staged
from holdfast.model.records import Abort
from holdfast.worker.reports import TaskReport
from tests.fakes.manual_ports import ScriptedSubmitter
from tests.fakes.memory_table import DriverDiedError, MemoryTable, PostFault
from tests.fakes.rig import LAYOUT, Rig


def records(rig: Rig) -> list[str]:
    """Return the kinds of all records in the log, in order."""
    log = rig.commit_step().log
    return [type(record.body).__name__ for record in log.records[:-1]]


def test_a_first_start_stages_and_commits() -> None:
    """One job, one post, one snapshot with the files of all tasks, and the full log."""
    rig, submitter = Rig(), ScriptedSubmitter()
    driven = rig.start(submitter)
    (snapshot,) = rig.table.data_snapshots
    assert [file.rows for group in snapshot.groups for file in group.files] == [10, 10]
    assert (driven.tasks, driven.was_landed, driven.landed.posts) == (2, False, 1)
    assert driven.landed.receipt.rows == 20
    assert records(rig) == ["Claim", "Intent", "Receipt"]
    assert len(submitter.plans) == 1
    assert rig.time.sleeps == []


def test_a_second_start_after_the_commit_does_nothing() -> None:
    """It returns the receipt of the first; Spark is not called and nothing is written."""
    rig = Rig()
    first = rig.start()
    objects, posts = dict(rig.storage.objects), len(rig.table.posts)
    submitter = ScriptedSubmitter()
    second = rig.start(submitter)
    assert second.was_landed
    assert second.landed.receipt == first.landed.receipt
    assert (second.tasks, second.landed.posts, submitter.plans) == (0, 0, [])
    assert (rig.storage.objects, len(rig.table.posts)) == (objects, posts)


@pytest.mark.parametrize("fault", [PostFault.DIES_LANDED, PostFault.DIES_DELAYED])
def test_a_start_after_a_driver_that_landed_and_died_writes_only_the_receipt(
    fault: PostFault,
) -> None:
    """The mark tells what the dead driver could not; no row is computed or written again."""
    rig, submitter = Rig(), ScriptedSubmitter()
    rig.table.post_faults.append(fault)
    with pytest.raises(DriverDiedError):
        rig.start()
    driven = rig.start(submitter)
    assert submitter.plans == []
    assert len(rig.table.data_snapshots) == 1
    assert driven.landed.receipt.intent_number == 2
    assert records(rig)[-1] == "Receipt"


def test_a_start_after_an_intent_that_did_not_land_reuses_the_staged_files() -> None:
    """The work was paid for: the staged files are posted by a new intent, without Spark."""
    rig, submitter = Rig(), ScriptedSubmitter()
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    with pytest.raises(DriverDiedError):
        rig.start()
    driven = rig.start(submitter)
    assert submitter.plans == []
    assert (driven.tasks, driven.was_landed, driven.landed.posts) == (0, False, 1)
    (snapshot,) = rig.table.data_snapshots
    assert len(snapshot.groups) == 2
    assert snapshot.mark is not None
    assert snapshot.mark.intent_number == 4
    assert records(rig) == ["Claim", "Intent", "Claim", "Intent", "Receipt"]


def test_only_a_look_later_than_the_claim_counts() -> None:
    """An old driver's post lands after the user's look at the table and before the claim."""
    rig, submitter = Rig(), ScriptedSubmitter()
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    with pytest.raises(DriverDiedError):
        rig.start()
    view = rig.table.load()
    rig.table.post(view, "r", rig.table.posts[0], [])
    driven = rig.start(submitter, view=view)
    assert (driven.was_landed, driven.landed.posts, submitter.plans) == (True, 0, [])
    assert driven.landed.receipt.intent_number == 2


def test_a_start_after_a_job_that_failed_runs_the_job_again() -> None:
    """Nothing was staged, so there is nothing to reuse; the next start does the work."""
    rig = Rig()
    with pytest.raises(JobFailedError):
        rig.start(ScriptedSubmitter(JobFailedError(reason="lost")))
    assert rig.table.posts == []
    submitter = ScriptedSubmitter()
    assert rig.start(submitter).tasks == 2
    assert len(submitter.plans) == 1


def test_every_job_has_a_name_of_its_own() -> None:
    """Two drivers at once never write the same file: the job's nonce names the files."""
    rig, first, second = (
        Rig(),
        ScriptedSubmitter(JobFailedError(reason="lost")),
        ScriptedSubmitter(),
    )
    with pytest.raises(JobFailedError):
        rig.start(first)
    rig.start(second)
    assert first.plans[0].job_nonce != second.plans[0].job_nonce


@pytest.mark.parametrize("reports", [[], [TaskReport(place=0)]])
def test_an_input_without_rows_still_lands_once(reports: list[TaskReport]) -> None:
    """An empty day is a run too: it has a mark, and its next start finds it."""
    rig = Rig()
    driven = rig.start(ScriptedSubmitter(reports))
    assert driven.landed.receipt.rows == 0
    assert rig.start(ScriptedSubmitter(reports)).was_landed
    assert len(rig.table.data_snapshots) == 1


def test_an_empty_table_gets_a_parent_before_the_data() -> None:
    """The first write to a new table is two snapshots, the first of them empty."""
    rig = Rig(table=MemoryTable(empty=True))
    rig.start()
    assert [bool(one.groups) for one in rig.table.snapshots.values()] == [False, True]


def test_a_store_that_overwrites_is_refused_before_any_work() -> None:
    """No claim, no job, no post."""
    rig, submitter = Rig(), ScriptedSubmitter()
    rig.storage.overwrites_on_create = True
    with pytest.raises(UnsafeStoreError):
        rig.start(submitter)
    assert (submitter.plans, rig.table.posts) == ([], [])
    assert not any(uri.startswith(LAYOUT.folder) for uri in rig.storage.objects)


def test_a_dropped_and_recreated_table_is_another_job() -> None:
    """The run's table is gone, also if another one has its name."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    with pytest.raises(DriverDiedError):
        rig.start()
    rig.table.uuid = "uuid-2"
    with pytest.raises((RunMismatchError, TableChangedError)):
        rig.start()
    assert rig.table.data_snapshots == []


def test_a_schema_that_changed_after_the_staging_stops_a_start_before_the_job() -> None:
    """What is staged was written for other columns: it is kept, and nothing is paid for twice."""
    rig, submitter = Rig(), ScriptedSubmitter()
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    with pytest.raises(DriverDiedError):
        rig.start()
    rig.table.schema = {"columns": ["id", "required"]}
    with pytest.raises(TableChangedError):
        rig.start(submitter)
    assert (submitter.plans, rig.table.data_snapshots) == ([], [])


def test_an_aborted_run_is_not_started_again() -> None:
    """Abort is final: neither Spark nor the table is touched."""
    rig, submitter = Rig(), ScriptedSubmitter()
    rig.commit_step().log.append(Abort(reason="given up"))
    with pytest.raises(RunAbortedError, match="given up"):
        rig.start(submitter)
    assert (submitter.plans, rig.table.posts) == ([], [])


def test_a_damaged_list_of_staged_files_is_never_posted() -> None:
    """The part's digest stands in the intent; another list of files is refused."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    with pytest.raises(DriverDiedError):
        rig.start()
    (part,) = [uri for uri in rig.storage.objects if "/parts/" in uri]
    rig.storage.objects[part] += b"x"
    with pytest.raises(LedgerDamagedError, match="digest"):
        rig.start()
    assert rig.table.data_snapshots == []


def test_staged_files_that_somebody_removed_are_made_again() -> None:
    """What was staged cannot be posted any more: the work is done anew, and lands once."""
    rig, submitter = Rig(), ScriptedSubmitter()
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    with pytest.raises(DriverDiedError):
        rig.start()
    staged, _ = read_staged(rig.storage, LAYOUT, rig.commit_step().log.intents[2].staged)
    lost = [file.path for group in staged for file in group.files]
    rig.table.missing_files.extend(lost)
    assert rig.start(submitter).landed.receipt.rows == 20
    assert len(submitter.plans) == 1
    (snapshot,) = rig.table.data_snapshots
    assert not {file.path for group in snapshot.groups for file in group.files} & set(lost)


def test_staged_files_that_vanish_under_a_driver_are_an_error_that_running_again_mends() -> None:
    """The first start says what to do, and the second one does it."""
    rig, submitter = Rig(), ScriptedSubmitter()
    rig.table.post_faults.append(PostFault.RIVAL_FIRST)
    rig.table.after_post = lambda: rig.table.missing_files.append(
        f"mem://data/{submitter.plans[0].job_nonce}-1.parquet"
    )
    with pytest.raises(StagedFileMissingError, match="run the same script again"):
        rig.start(submitter)
    assert rig.start(submitter).landed.receipt.rows == 20
    assert len(submitter.plans) == 2
    assert len(rig.table.data_snapshots) == 1
