"""`run.remaining`: the costly step is in the DataFrame, which is built from the rows left."""

from __future__ import annotations

import pytest

from holdfast.engine.claim import Prepared, prepare
from holdfast.engine.drive import Driver
from holdfast.engine.options import WriteOptions
from holdfast.errors import (
    DuplicateKeyError,
    InputChangedError,
    JobFailedError,
    NullKeyError,
    RunFencedError,
    RunMismatchError,
)
from holdfast.model.report import Report
from tests.fakes.memory_storage import DriverDiedError, bit_flipped
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.rig import Rig, durable_ids, two_partitions
from tests.fakes.unpinned import Unpinned
from tests.fakes.watched_transform import WatchedTransform

ALL = list(range(20))
OUT_OF_REACH = r"1 parts of the finished work no longer count"


def rig_with_ten_rows_done() -> Rig:
    """Return a run whose driver died when rows 0 to 9 were done."""
    rig, submitter = Rig(), two_partitions()
    submitter.before_task[1] = rig.storage.kill
    rig.start_and_die(submitter)
    return rig


def remaining(
    rig: Rig, submitter: MemorySubmitter | None = None, options: WriteOptions | None = None
) -> Prepared:
    """Ask for the rows that are left, as `run.remaining` does."""
    return prepare(rig.ledger(), submitter or two_partitions(), ("id",), options or WriteOptions())


def append(
    rig: Rig, prepared: Prepared, derived: MemorySubmitter, options: WriteOptions | None = None
) -> Report:
    """Append the output of the costly step."""
    driver = Driver(
        ledger=prepared.ledger, sink=rig.table, input=Unpinned(derived), prepared=prepared
    )
    return driver.write(rig.table.load(), rig.identity(), options or WriteOptions())


def test_only_the_rows_that_are_left_are_needed() -> None:
    """The finished ones are no longer in the DataFrame, and still land."""
    rig = rig_with_ten_rows_done()
    prepared = remaining(rig)
    assert len(prepared.book.finished.uris) == 1
    driven = append(rig, prepared, MemorySubmitter(range(10, 20)))
    assert (driven.kept_rows, driven.input_compared, rig.table.ids) == (10, "keys", ALL)


def test_a_first_start_has_everything_left() -> None:
    """Nothing is finished, and there is no run file yet."""
    rig = Rig()
    driven = append(rig, remaining(rig), two_partitions())
    assert (driven.kept_rows, rig.table.ids) == (0, ALL)


@pytest.mark.parametrize("rows_done", [True, False])
@pytest.mark.parametrize("arrived", [range(10, 19), range(10, 21), range(11, 21)])
def test_a_step_that_loses_or_adds_rows_commits_nothing(arrived: range, *, rows_done: bool) -> None:
    """A filter or a join in the step would otherwise drop rows silently."""
    rig = rig_with_ten_rows_done() if rows_done else Rig()
    ids = arrived if rows_done else [*range(10), *arrived]
    with pytest.raises(InputChangedError, match="some rows of"):
        append(rig, remaining(rig), MemorySubmitter(ids))
    assert rig.table.data_snapshots == []


@pytest.mark.parametrize("rows_done", [True, False])
@pytest.mark.parametrize("partitions", [[[]], [[], []]], ids=len)
def test_a_step_that_loses_every_row_commits_nothing(
    partitions: list[list[int]], *, rows_done: bool
) -> None:
    """The error says what to fix, also on a first start; then the run continues."""
    rig = rig_with_ten_rows_done() if rows_done else Rig()
    with pytest.raises(InputChangedError, match="some rows of"):
        append(rig, remaining(rig), MemorySubmitter(*partitions))
    assert rig.table.data_snapshots == []
    left = range(10, 20) if rows_done else range(20)
    assert append(rig, remaining(rig), MemorySubmitter(left)).kept_rows == 20 - len(left)
    assert rig.table.ids == ALL


def test_rows_whose_keys_are_lost_remain_to_be_done() -> None:
    """A key file was deleted: the next start gets its rows again, instead of failing every time.

    Found by the simulation (seed 355).
    """
    rig = rig_with_ten_rows_done()
    lost = [uri for uri in rig.storage.objects if uri.endswith(".keys")]
    assert lost
    rig.storage.delete(lost)
    prepared = remaining(rig)
    assert not prepared.book.finished
    driven = append(rig, prepared, two_partitions())
    assert (driven.kept_rows, driven.withdrawn_rows, rig.table.ids) == (0, 10, ALL)


def test_another_key_is_refused_before_the_run_is_claimed() -> None:
    """It may be another job with the same id, and the first one may be at work."""
    rig = rig_with_ten_rows_done()
    before = rig.kinds()
    with pytest.raises(RunMismatchError, match=r"key was \(id\), and is now \(day\)"):
        prepare(rig.ledger(), two_partitions(), ("day",), WriteOptions())
    assert rig.kinds() == before


def test_rows_without_a_key_are_refused_at_once() -> None:
    """Before the costly step is even planned."""
    with pytest.raises(NullKeyError, match="1 input rows"):
        remaining(Rig(), MemorySubmitter([1, None]))


def test_work_that_was_lost_since_is_an_error_that_running_again_fixes() -> None:
    """The rows of the lost file are not in the DataFrame: this start cannot do them."""
    rig = rig_with_ten_rows_done()
    prepared = remaining(rig)
    rig.table.lost_files.extend(rig.table.files)
    with pytest.raises(JobFailedError, match=OUT_OF_REACH):
        append(rig, prepared, MemorySubmitter(range(10, 20)))
    assert rig.table.data_snapshots == []
    again = remaining(rig)
    assert not again.book.finished
    append(rig, again, two_partitions())
    assert rig.table.ids == ALL


def test_work_that_is_lost_right_before_the_post_is_an_error_too() -> None:
    """Without an input check the rest would have landed, and ten rows would be missing."""
    rig, options = rig_with_ten_rows_done(), WriteOptions(verify_input=False)
    prepared, derived = remaining(rig, options=options), MemorySubmitter(range(10, 20))
    lost = list(rig.table.files)
    derived.after_job = lambda: rig.table.lost_files.extend(lost)
    with pytest.raises(JobFailedError, match=OUT_OF_REACH):
        append(rig, prepared, derived, options)
    assert rig.table.data_snapshots == []
    append(rig, remaining(rig, options=options), MemorySubmitter(range(10)), options)
    assert rig.table.ids == ALL


def test_work_with_a_damaged_chunk_is_an_error_that_running_again_fixes() -> None:
    """Only the replay notices it: without an input check its rows would be left out silently."""
    rig, dying = Rig(), WatchedTransform()
    options = WriteOptions(verify_input=False, transform=WatchedTransform())
    dying.at[15] = rig.storage.kill
    rig.start_and_die(transform=dying, batch_rows=5, checkpoint_every=1e-9)
    prepared = remaining(rig, options=options)
    left = sorted(set(ALL) - durable_ids(rig))
    (chunk,) = [
        uri for uri in rig.storage.objects if uri.endswith("0000.chunk") and "/000001/" in uri
    ]
    rig.storage.damage[chunk] = bit_flipped
    with pytest.raises(JobFailedError, match=OUT_OF_REACH):
        append(rig, prepared, MemorySubmitter(left), options)
    assert rig.table.data_snapshots == []
    append(rig, remaining(rig, options=options), two_partitions(), options)
    assert rig.table.ids == ALL


def test_a_key_that_the_whole_input_has_twice_must_be_fixed_by_the_user() -> None:
    """The rows left do not show it, and dropping one of the two records would lose other rows.

    Found by the simulation: without an input check row 1 was lost silently.
    """
    rig, options = Rig(), WriteOptions(verify_input=False)
    doubled = MemorySubmitter([0, 2], [1, 0])
    with pytest.raises(DuplicateKeyError):
        rig.start(doubled, verify_input=False)
    with pytest.raises(DuplicateKeyError):
        append(rig, remaining(rig, doubled, options), MemorySubmitter([]), options)
    assert rig.table.data_snapshots == []
    assert durable_ids(rig) == {0, 1, 2}


def test_a_key_covered_twice_by_unstable_reads_is_an_error_that_running_again_fixes() -> None:
    """The dropped record also holds a row that is not in the rest of the input."""
    rig, options = Rig(), WriteOptions(verify_input=False)
    with pytest.raises(DuplicateKeyError):
        rig.start(MemorySubmitter([0, 2], [1, 0]), verify_input=False)
    whole = MemorySubmitter([0, 1, 2])
    with pytest.raises(JobFailedError, match=OUT_OF_REACH):
        append(rig, remaining(rig, whole, options), MemorySubmitter([]), options)
    assert rig.table.data_snapshots == []
    append(rig, remaining(rig, whole, options), MemorySubmitter([1]), options)
    assert rig.table.ids == [0, 1, 2]


def test_a_run_that_landed_has_nothing_left_and_is_compared() -> None:
    """The whole input was measured; the empty rest must not be taken for it."""
    rig = Rig()
    rig.start()
    prepared = remaining(rig)
    assert prepared.has_landed
    driven = append(rig, prepared, MemorySubmitter([]))
    assert (driven.outcome, driven.input_compared, rig.table.ids) == (
        "already_committed",
        "keys",
        ALL,
    )
    with pytest.raises(RunMismatchError, match="1 more"):
        append(rig, remaining(rig, MemorySubmitter(range(21))), MemorySubmitter([]))


def test_a_driver_that_took_over_in_between_fences_the_write() -> None:
    """The rows that were finished when `remaining` was called are not those finished now."""
    rig = rig_with_ten_rows_done()
    prepared, derived = remaining(rig), MemorySubmitter(range(10, 20))
    rig.start()
    with pytest.raises(RunFencedError):
        append(rig, prepared, derived)
    assert (derived.plans, rig.table.ids, len(rig.table.data_snapshots)) == ([], ALL, 1)


def test_rows_that_a_dead_write_has_done_do_not_remain() -> None:
    """The second start asks again, and gets the rows that are still left."""
    rig = rig_with_ten_rows_done()
    prepared, derived = remaining(rig), MemorySubmitter(range(10, 15), range(15, 20))
    derived.before_task[1] = rig.storage.kill
    with pytest.raises(DriverDiedError):
        append(rig, prepared, derived)
    rig.storage.revive()
    assert durable_ids(rig) == set(range(15))
    append(rig, remaining(rig), MemorySubmitter(range(15, 20)))
    assert rig.table.ids == ALL
