"""One start of a run, from probe to receipt, with Spark, table, store and time in memory."""

from __future__ import annotations

import pytest

from holdfast.engine.options import VerifyInput
from holdfast.errors import (
    JobFailedError,
    LedgerDamagedError,
    RunAbortedError,
    RunMismatchError,
    StagedFileMissingError,
    TableChangedError,
    UnsafeStoreError,
)
from holdfast.model.records import Abort, Receipt
from holdfast.sinks.base import Change
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.memory_table import MemoryTable, PostFault
from tests.fakes.rig import LAYOUT, Rig, two_partitions

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
    """The mark tells what the dead driver could not; no row is computed or written again."""
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
    """The work was paid for: the staged files are posted by a new intent, without a job."""
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


def test_every_job_has_a_name_of_its_own() -> None:
    """Two drivers at once never write the same file: the job's nonce names the files."""
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
    assert [bool(one.groups) for one in rig.table.snapshots.values()] == [False, True]


def test_a_store_that_overwrites_is_refused_before_any_work() -> None:
    """No claim, no job, no post."""
    rig, submitter = Rig(), two_partitions()
    rig.storage.overwrites_on_create = True
    with pytest.raises(UnsafeStoreError):
        rig.start(submitter)
    assert (submitter.plans, rig.table.posts) == ([], [])
    assert not any(uri.startswith(LAYOUT.folder) for uri in rig.storage.objects)


def test_a_dropped_and_recreated_table_is_another_job() -> None:
    """The run's table is gone, also if another one has its name."""
    rig = rig_with_staged_files()
    rig.table.uuid = "uuid-2"
    with pytest.raises((RunMismatchError, TableChangedError)):
        rig.start()
    assert rig.table.data_snapshots == []


def test_a_schema_that_changed_after_the_staging_stops_a_start_before_the_job() -> None:
    """What is staged was written for other columns: it is kept, and nothing is paid for twice."""
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
    """The part's digest stands in the seal; another list of files is refused."""
    rig = rig_with_staged_files()
    (part,) = [uri for uri in rig.storage.objects if "/parts/" in uri]
    rig.storage.objects[part] += b"x"
    with pytest.raises(LedgerDamagedError, match="digest"):
        rig.start()
    assert rig.table.data_snapshots == []


def test_staged_files_that_somebody_removed_are_made_again() -> None:
    """What was staged cannot be posted any more: the work is done anew, and lands once."""
    rig, submitter = rig_with_staged_files(), two_partitions()
    lost = staged_files(rig)
    rig.table.lost_files.extend(lost)
    driven = rig.start(submitter)
    assert (driven.rows, driven.withdrawn_rows) == (20, 20)
    assert (len(submitter.plans), rig.table.ids) == (1, ALL)
    (snapshot,) = rig.table.data_snapshots
    assert not {file.path for group in snapshot.groups for file in group.files} & set(lost)


@pytest.mark.parametrize("verify_input", ["keys", "rows", False])
def test_staged_files_that_vanish_under_a_driver_are_made_again_at_once(
    *, verify_input: VerifyInput
) -> None:
    """Between two posts of one start a clean-up takes a file: only its rows are computed again."""
    rig, submitter = Rig(), two_partitions()
    rig.table.post_faults.append(PostFault.RIVAL_FIRST)
    rig.table.after_post = lambda: rig.table.lost_files.append(staged_files(rig)[1])
    driven = rig.start(submitter, verify_input=verify_input)
    assert (driven.rows, driven.withdrawn_rows) == (20, 10)
    assert (len(submitter.plans), driven.passes) == (2, 2)
    assert len(rig.table.data_snapshots) == 1
    assert rig.table.ids == ALL


def test_staged_files_that_vanish_again_and_again_are_an_error_that_running_again_mends() -> None:
    """A start gives up in the end and says what to do; nothing of the run has landed."""
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
