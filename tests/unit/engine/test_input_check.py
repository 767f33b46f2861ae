"""Inputs that are not as they should be: duplicate keys, missing keys, changed rows."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast as hf
from holdfast.engine.claim import prepare
from holdfast.engine.options import WriteOptions
from holdfast.errors import (
    DuplicateKeyError,
    InputChangedError,
    JobError,
    JobFailedError,
    NullKeyError,
    RunMismatchError,
)
from holdfast.model.coverage import KeyExamples
from tests.fakes.memory_submitter import MemorySubmitter, partition
from tests.fakes.memory_table import PostFault
from tests.fakes.rig import LAYOUT, Rig, two_partitions
from tests.fakes.watched_transform import WatchedTransform

ALL = list(range(20))
CHUNKS: dict[str, Any] = {"batch_rows": 2, "checkpoint_every": 1e-9}
EACH_BATCH: dict[str, Any] = {"batch_rows": 1, "checkpoint_every": 1e-9}
NO_CHECK: dict[str, Any] = {"verify_input": False}


@pytest.mark.parametrize(
    ("doubled", "mended_rows"),
    [
        ([[*range(10), 3], range(10, 20)], 10),
        ([range(10), [*range(10, 20), 3]], 10),
        ([[3, 3, *range(10)], [*range(10, 20), 3]], 20),
    ],
    ids=["in one partition", "across partitions", "both"],
)
@pytest.mark.usefixtures("many_rows")
def test_a_duplicate_key_commits_nothing_until_it_is_fixed(
    doubled: list[Any], mended_rows: int
) -> None:
    """The error shows the key; once the input is fixed, only work on that key is done again."""
    rig, transform = Rig(), WatchedTransform()
    with pytest.raises(DuplicateKeyError, match=r"1 keys .* \(id=3\)"):
        rig.start(MemorySubmitter(*doubled), transform=WatchedTransform())
    with pytest.raises(DuplicateKeyError):
        rig.start(MemorySubmitter(*doubled), transform=WatchedTransform())
    assert rig.table.data_snapshots == []
    driven = rig.start(transform=transform)
    assert (len(transform.ids), driven.dropped_rows > 0) == (mended_rows, True)
    assert rig.table.ids == ALL


@pytest.mark.usefixtures("many_rows")
@pytest.mark.parametrize("how", ["cost", "per_row"])
def test_a_duplicate_key_is_found_before_the_first_row_if_rows_cost_money(
    how: str,
) -> None:
    """Otherwise the error would come after hours of calls."""
    rig, ids = Rig(), list[int]()
    doubled = MemorySubmitter(range(10), [*range(10, 20), 3])
    watched = WatchedTransform()

    def answer(row: dict[str, Any]) -> dict[str, Any]:
        ids.append(row["id"])
        return row

    options: dict[str, Any] = {"transform": hf.per_row(answer)}
    if how == "cost":
        options = {"transform": watched, "cost": 0.01}
    with pytest.raises(DuplicateKeyError, match=r"1 keys .* \(id=3\)"):
        rig.start(doubled, **options)
    assert (watched.ids, ids, doubled.plans) == ([], [], [])
    driven = rig.start(**options)
    assert (driven.dropped_rows, rig.table.ids) == (0, ALL)


def test_a_few_keys_are_compared_before_the_first_row() -> None:
    """Whatever a row costs: 400 rows with 10 keys were once computed before the error came."""
    rig, transform = Rig(), WatchedTransform()
    doubled = MemorySubmitter(range(10), [*range(10, 20), 3])
    with pytest.raises(DuplicateKeyError, match=r"1 keys .* \(id=3\)"):
        rig.start(doubled, transform=transform)
    assert (transform.ids, doubled.plans, rig.kinds()) == ([], [], ["Claim", "Stop"])
    assert rig.start(transform=transform).dropped_rows == 0
    assert rig.table.ids == ALL


@pytest.mark.usefixtures("many_rows")
def test_of_many_keys_a_sample_is_compared_and_all_if_it_has_a_duplicate() -> None:
    """The sample contains key 3; the error counts all duplicate keys."""
    rig, transform = Rig(), WatchedTransform()
    doubled = MemorySubmitter(range(10), [*range(10, 20), 3, 4])
    doubled.sampled = {3}
    with pytest.raises(DuplicateKeyError, match=r"2 keys .* \(id=3\), \(id=4\)"):
        rig.start(doubled, transform=transform)
    assert (transform.ids, doubled.plans) == ([], [])


@pytest.mark.usefixtures("many_rows")
def test_of_many_keys_only_a_sample_is_compared_first_if_rows_cost_nothing() -> None:
    """Comparing all would cost a shuffle, and finished rows stay finished."""
    rig, input_ = Rig(), two_partitions()
    rig.start(input_, transform=WatchedTransform())
    assert input_.key_reads == 1


def test_keys_that_take_long_to_read_are_not_read_again_to_compare_them() -> None:
    """The input may be the result of a long query."""
    rig, input_ = Rig(), two_partitions()
    input_.before_measure = lambda: rig.time.pass_by(11.0)
    rig.start(input_, transform=WatchedTransform())
    assert input_.key_reads == 1


def test_rows_without_a_key_are_named_before_keys_are_compared() -> None:
    """Several of them share NULL, which is not a duplicate key."""
    rig, transform = Rig(), WatchedTransform()
    with pytest.raises(NullKeyError, match="2 input rows"):
        rig.start(MemorySubmitter(range(10), [10, None, None]), transform=transform)
    with pytest.raises(NullKeyError, match="2 input rows"):
        prepare(Rig().ledger(), MemorySubmitter(range(10), [None, None]), ("id",), WriteOptions())
    assert transform.ids == []


def test_without_a_transform_keys_are_not_compared_first() -> None:
    """Rows are only copied, so nothing costly would be wasted."""
    rig, input_ = Rig(), two_partitions()
    rig.start(input_)
    assert input_.key_reads == 1


def test_rows_that_remain_are_compared_before_they_are_handed_out() -> None:
    """The step that consumes them costs money."""
    rig = Rig()
    doubled = MemorySubmitter(range(10), [*range(10, 20), 3])
    with pytest.raises(DuplicateKeyError, match=r"\(id=3\)"):
        prepare(rig.ledger(), doubled, ("id",), WriteOptions())


def long_job(rig: Rig, at: int) -> WatchedTransform:
    """Return a transform that takes more than a minute for one of its rows."""
    transform = WatchedTransform()
    transform.at[at] = lambda: rig.time.pass_by(61.0)
    return transform


@pytest.mark.usefixtures("many_rows")
def test_all_keys_are_compared_while_a_job_runs_for_more_than_a_minute() -> None:
    """The job stops in good order: finished rows are kept for the corrected input."""
    rig = Rig()
    transform, rest = long_job(rig, 5), WatchedTransform()
    doubled = MemorySubmitter(range(10), [*range(10, 20), 15])
    with pytest.raises(DuplicateKeyError, match=r"1 keys .* \(id=15\)"):
        rig.start(doubled, transform=transform, **EACH_BATCH)
    assert (doubled.reads_beside, transform.ids) == (1, [0, 1, 2, 3, 4, 5, 10])
    assert rig.kinds().count("Stop") > 0
    rig.start(transform=rest, **EACH_BATCH)
    assert (rest.ids, rig.table.ids) == ([6, 7, 8, 9, *range(11, 20)], ALL)


@pytest.mark.usefixtures("many_rows")
def test_keys_that_were_compared_during_a_job_are_not_compared_again() -> None:
    """Neither during the next pass of the same start, nor if the job ends within a minute."""
    rig, input_ = Rig(), two_partitions()
    transform = long_job(rig, 5)
    transform.at[7] = lambda: rig.time.pass_by(610.0)
    rig.start(input_, transform=transform)
    assert (input_.reads_beside, rig.table.ids) == (1, ALL)
    quick, short = Rig(), two_partitions()
    quick.start(short, transform=WatchedTransform())
    quick.time.pass_by(100.0)
    assert short.reads_beside == 0


@pytest.mark.usefixtures("many_rows")
def test_a_failing_check_does_not_harm_the_job_that_runs_meanwhile() -> None:
    """Keys are compared again when all rows are done."""
    rig, input_ = Rig(), two_partitions()

    def fails(*, beside: bool = False) -> KeyExamples:
        raise JobFailedError(reason=f"no slots, beside: {beside}")

    input_.duplicates = fails  # type: ignore[method-assign]
    rig.start(input_, transform=long_job(rig, 5))
    assert rig.table.ids == ALL


@pytest.mark.usefixtures("many_rows")
def test_a_key_whose_first_row_was_done_before_a_crash_is_found_too() -> None:
    """The second row must not be taken for a finished one and lost silently."""
    rig, transform = Rig(), WatchedTransform()
    doubled = MemorySubmitter(range(10), [*range(10, 20), 3])
    doubled.before_task[1] = rig.storage.kill
    rig.start_and_die(doubled, transform=WatchedTransform())
    with pytest.raises(DuplicateKeyError, match=r"\(id=3\)"):
        rig.start(MemorySubmitter(range(10), [*range(10, 20), 3]), transform=transform)
    assert (transform.ids, rig.table.data_snapshots) == ([], [])
    rig.start(transform=transform)
    assert (transform.ids, rig.table.ids) == (list(range(10, 20)), ALL)


def test_finished_keys_that_are_gone_are_named() -> None:
    """Rows of the first start are not in the second's input: a mix of both must not land."""
    rig, submitter = Rig(), two_partitions()
    submitter.before_task[1] = rig.storage.kill
    rig.start_and_die(submitter)
    other = MemorySubmitter(range(2, 10), range(10, 22))
    with pytest.raises(InputChangedError, match=r"2 of 10 finished keys .*\(id=0\), \(id=1\)"):
        rig.start(other)
    assert (other.plans, rig.table.data_snapshots) == ([], [])
    assert rig.start().kept_rows == 10
    assert rig.table.ids == ALL


def test_a_missing_key_is_not_made_up_for_by_a_duplicate_one() -> None:
    """As many rows as before: the count alone would pass, and row 0 would land by mistake."""
    rig, submitter = Rig(), two_partitions()
    submitter.before_task[1] = rig.storage.kill
    rig.start_and_die(submitter)
    with pytest.raises(DuplicateKeyError, match=r"\(id=1\)"):
        rig.start(MemorySubmitter([*range(1, 10), 1], range(10, 20)))
    assert rig.table.data_snapshots == []


def test_a_row_that_was_read_instead_of_another_is_noticed() -> None:
    """The tasks saw as many rows as planned, but one of them is not in the input."""
    rig, submitter = Rig(), two_partitions()
    submitter.next_reads.append([partition(range(10)), partition([99, *range(11, 20)])])
    with pytest.raises(InputChangedError, match=r"1 of 20 finished keys .*\(id=99\)"):
        rig.start(submitter)
    assert rig.table.data_snapshots == []


def test_rows_that_were_added_before_a_resume_are_done_as_well() -> None:
    """Nothing has landed yet: the run is as large as its input is now."""
    rig, submitter = Rig(), two_partitions()
    submitter.before_task[1] = rig.storage.kill
    rig.start_and_die(submitter)
    driven = rig.start(MemorySubmitter(range(10), range(10, 25)))
    assert (driven.kept_rows, rig.table.ids) == (10, list(range(25)))


@pytest.mark.parametrize(
    "read",
    [
        [[*range(10)], [*range(10, 20), 3]],
        [[*range(10), 3], [*range(10, 20)]],
        [[0, 1, 2, *range(4, 10)], [*range(10, 20)]],
        [[*range(10)], [3, *range(11, 20)]],
        [[], []],
        [[*range(20)], [*range(20)]],
    ],
    ids=["doubled", "doubled in one", "lost", "one for another", "nothing", "everything twice"],
)
def test_an_input_that_gave_other_rows_once_converges_or_says_so(read: list[list[int]]) -> None:
    """The job reads other rows than were measured, for example after a fetch from a lost node."""
    rig, submitter = Rig(), two_partitions()
    submitter.next_reads.append([partition(ids) for ids in read])
    try:
        rig.start(submitter)
    except JobError:
        assert rig.table.data_snapshots == []
        rig.start()
    assert rig.table.ids == ALL
    assert len(rig.table.data_snapshots) == 1


def test_of_two_records_that_share_a_key_the_earlier_one_stays() -> None:
    """The later one is dropped whole; the rows that only it had are computed again."""
    rig, submitter, transform = Rig(), two_partitions(), WatchedTransform()
    submitter.next_reads.append([partition(range(10)), partition([*range(10, 20), 3])])
    driven = rig.start(submitter, transform=transform)
    assert transform.ids[-10:] == list(range(10, 20))
    assert (driven.passes, driven.dropped_rows) == (2, 11)
    assert rig.table.ids == ALL


def test_a_dropped_record_gives_back_the_chunks_that_it_replaced() -> None:
    """They share no key with another record: their rows are replayed, not computed again."""
    rig, submitter, transform = Rig(), two_partitions(), WatchedTransform()
    submitter.next_reads.append([partition(range(10)), partition([*range(10, 20), 18, 3])])
    driven = rig.start(submitter, transform=transform, **CHUNKS)
    assert transform.ids == [*range(20), 18, 3]
    assert (driven.dropped_rows, rig.table.ids) == (2, ALL)


def test_without_an_input_check_a_run_still_succeeds() -> None:
    """The keys are not read before the job, and the report does not claim that they were."""
    rig, submitter = Rig(), two_partitions()
    driven = rig.start(submitter, **NO_CHECK)
    assert (submitter.key_reads, driven.input_compared, rig.table.ids) == (0, None, ALL)
    assert rig.log().seals[3].input is None


def test_without_an_input_check_a_landed_run_is_returned_unread() -> None:
    """A user who does not want the keys read does not want it after the commit either."""
    rig, submitter = Rig(), MemorySubmitter(range(99))
    rig.start(**NO_CHECK)
    driven = rig.start(submitter, **NO_CHECK)
    assert (driven.outcome, driven.input_compared, submitter.key_reads) == (
        "already_committed",
        None,
        0,
    )
    rig = Rig()
    rig.start()
    assert rig.start(submitter, **NO_CHECK).outcome == "already_committed"
    assert submitter.key_reads == 0


def test_without_an_input_check_a_resume_computes_only_what_is_missing() -> None:
    """Finished keys are still left out of the next job."""
    rig, submitter, transform = Rig(), two_partitions(), WatchedTransform()
    submitter.before_task[1] = rig.storage.kill
    rig.start_and_die(submitter, transform=WatchedTransform(), **NO_CHECK)
    driven = rig.start(transform=transform, **NO_CHECK)
    assert (transform.ids, driven.kept_rows) == (list(range(10, 20)), 10)
    assert (driven.input_compared, rig.table.ids) == (None, ALL)


def test_without_an_input_check_chunks_and_unsealed_work_are_kept() -> None:
    """A start that finds everything done has nothing to add, and that is not an error."""
    rig, first, transform = Rig(), WatchedTransform(), WatchedTransform()
    first.at[17] = rig.storage.kill
    rig.start_and_die(transform=first, **CHUNKS, **NO_CHECK)
    rig.start(transform=transform, **CHUNKS, **NO_CHECK)
    assert (transform.ids, rig.table.ids) == ([16, 17, 18, 19], ALL)
    rig, submitter = Rig(), two_partitions()
    submitter.after_job = rig.storage.kill
    rig.start_and_die(submitter, **NO_CHECK)
    assert rig.start(**NO_CHECK).kept_rows == 20
    assert rig.table.ids == ALL


def test_without_an_input_check_a_duplicate_key_is_still_found() -> None:
    """Covered keys must be disjoint, whether or not the input was checked."""
    rig = Rig()
    with pytest.raises(DuplicateKeyError, match=r"\(id=3\)"):
        rig.start(MemorySubmitter(range(10), [*range(10, 20), 3]), **NO_CHECK)
    assert rig.table.data_snapshots == []


def test_a_complete_run_continues_with_rows_that_were_added_since() -> None:
    """As after a kill half way: the finished rows are kept, and the new ones are done."""
    dry, rig = Rig(), Rig()
    dry.start(**NO_CHECK)
    rig.storage.writes_left = dry.storage.written.index(LAYOUT.record(4))
    rig.start_and_die(**NO_CHECK)
    assert rig.log().seals[3].complete
    driven = rig.start(MemorySubmitter(range(10), range(10, 25)))
    assert rig.table.ids == list(range(25))
    assert (driven.kept_rows, driven.input_compared) == (20, "keys")


def test_a_complete_run_whose_input_lost_rows_stops() -> None:
    """Otherwise staged rows would be committed although their input is gone."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    rig.start_and_die()
    with pytest.raises(InputChangedError, match="5 of 20 finished keys are no longer in it"):
        rig.start(MemorySubmitter(range(15)))
    assert rig.table.data_snapshots == []


def test_an_old_post_that_lands_late_without_the_new_rows_is_reported() -> None:
    """The run is in the table without them: "committed" would drop them silently."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_DELAYED)
    rig.start_and_die()
    with pytest.raises(RunMismatchError, match="had 20 rows and now has 25: 5 more"):
        rig.start(MemorySubmitter(range(10), range(10, 25)))
    assert rig.table.ids == list(range(20))


def test_without_an_input_check_a_null_key_is_found_by_its_task() -> None:
    """NULL equals nothing, so its row would never count as finished."""
    rig, mended = Rig(), WatchedTransform()
    with pytest.raises(NullKeyError, match="3 input rows"):
        rig.start(MemorySubmitter([None, None, 1], [2, 3], [4, None]), **NO_CHECK)
    assert rig.table.data_snapshots == []
    with pytest.warns(UserWarning, match="code has changed"):
        rig.start(MemorySubmitter([1], [2, 3], [4]), transform=mended, **NO_CHECK)
    assert (mended.ids, rig.table.ids) == ([1, 4], [1, 2, 3, 4])


def test_an_input_that_gives_other_rows_each_time_is_given_up() -> None:
    """Each pass pays for the same rows again: after a few, the user must fix the input."""
    rig, submitter = Rig(), two_partitions()
    submitter.next_reads.extend([[partition([*range(10), 3]), partition(range(10, 20))]] * 50)
    with pytest.raises(InputChangedError, match="different rows each time"):
        rig.start(submitter)
    assert len(submitter.plans) < 10
    assert rig.table.data_snapshots == []


def test_a_run_that_landed_refuses_other_rows() -> None:
    """Not even one more row: it would be dropped silently."""
    rig, other = Rig(), MemorySubmitter(range(21))
    rig.start()
    with pytest.raises(RunMismatchError, match="1 more"):
        rig.start(other)
    assert (other.plans, rig.table.ids) == ([], ALL)
