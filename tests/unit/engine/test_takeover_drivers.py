"""Several drivers of a run: who waits for whom, who is fenced, and whose code made which rows."""

from __future__ import annotations

import warnings

import pyarrow as pa
import pytest

from holdfast.engine.cleanup import sweep
from holdfast.errors import (
    RunAbortedError,
    RunBusyError,
    RunFencedError,
    RunMismatchError,
    TransformError,
)
from holdfast.ledger.ledger import Ports
from holdfast.model.records import Abort, Intent, Stop
from tests.fakes.logs import job_ledger, task_records
from tests.fakes.manual_ports import manual_ports
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.rig import LAYOUT, Rig, two_partitions
from tests.fakes.watched_transform import WatchedTransform

ALL = list(range(20))
WAIT_S = 60.0  # Twice the default of `checkpoint_every`.


def rig_with_dead_driver() -> Rig:
    """Return a run whose driver, process 1 of machine 1, died when its first task was done."""
    rig, submitter = Rig(), two_partitions()
    submitter.before_task[1] = rig.storage.kill
    rig.start_and_die(submitter)
    return rig


def elsewhere(rig: Rig) -> Ports:
    """Return the ports of a driver on another machine, which cannot see that process 1 is dead."""
    return manual_ports(rig.time, machine="machine-2", process_id=2)


def test_a_driver_that_may_be_alive_is_waited_for() -> None:
    """Twice `checkpoint_every` after its last sign of life, the other driver takes over."""
    rig = rig_with_dead_driver()
    rig.time.now_s += 15
    with pytest.warns(
        UserWarning, match=r"process 1 on host-1 gave a sign of life 15 s ago.* for 45 s without"
    ):
        driven = rig.start(ports=elsewhere(rig))
    assert sum(rig.time.sleeps) == pytest.approx(WAIT_S - 15)
    assert (driven.kept_rows, rig.table.ids) == (10, ALL)


def test_a_task_that_writes_is_a_sign_of_life() -> None:
    """The driver itself writes nothing while its job runs."""
    rig = rig_with_dead_driver()
    rig.time.now_s += 55
    tasks = LAYOUT.job_tasks(rig.log().task_folders[1])
    rig.storage.put(f"{tasks}/rows/000001/000000000001/0000.keys", b"")
    with pytest.warns(UserWarning, match="sign of life 0 s ago"):
        rig.start(ports=elsewhere(rig))
    assert sum(rig.time.sleeps) == pytest.approx(WAIT_S)


def test_a_driver_without_checkpoints_is_waited_for_a_minute() -> None:
    """How often its tasks write is not known."""
    rig, submitter = Rig(), two_partitions()
    submitter.before_task[1] = rig.storage.kill
    rig.start_and_die(submitter, checkpoint_every=None)
    with pytest.warns(UserWarning, match="for 60 s without"):
        rig.start(ports=elsewhere(rig))
    assert sum(rig.time.sleeps) == pytest.approx(60)


def test_a_driver_that_was_quiet_for_a_long_time_is_not_waited_for() -> None:
    """Warnings are errors in this suite, so there is not even a warning."""
    rig = rig_with_dead_driver()
    rig.time.now_s += WAIT_S
    rig.start(ports=elsewhere(rig))
    assert (rig.time.sleeps, rig.table.ids) == ([], ALL)


@pytest.mark.parametrize(
    ("process_id", "running"), [(2, ()), (1, (1,))], ids=["its process is gone", "it is ourselves"]
)
def test_a_driver_that_is_known_to_be_dead_is_not_waited_for(
    process_id: int, running: tuple[int, ...]
) -> None:
    """On its own machine the process id decides; a notebook that starts again is itself."""
    rig = rig_with_dead_driver()
    rig.start(ports=manual_ports(rig.time, process_id=process_id, running=running))
    assert (rig.time.sleeps, rig.table.ids) == ([], ALL)


@pytest.mark.parametrize(
    ("machine", "running"),
    [("machine-1", (1,)), ("machine-2", ()), ("", ())],
    ids=["its process runs", "another machine", "a machine without a name"],
)
def test_takeover_never_refuses_while_the_driver_may_be_alive(
    machine: str, running: tuple[int, ...]
) -> None:
    """The error names the other driver, and nothing is written: that driver is not disturbed."""
    rig = rig_with_dead_driver()
    rig.time.now_s += 5
    objects = dict(rig.storage.objects)
    ports = manual_ports(rig.time, machine=machine, process_id=2, running=running)
    with pytest.raises(RunBusyError, match=r"process 1 on host-1 .* 5 s ago"):
        rig.start(ports=ports, takeover="never")
    assert (rig.storage.objects, rig.time.sleeps) == (objects, [])


def test_machines_without_a_name_are_not_taken_for_one() -> None:
    """If the system does not name the machine, a process id means nothing."""
    rig, submitter = Rig(), two_partitions()
    submitter.before_task[1] = rig.storage.kill
    rig.start_and_die(submitter, ports=manual_ports(rig.time, machine=""))
    with pytest.raises(RunBusyError):
        rig.start(ports=manual_ports(rig.time, machine="", process_id=2), takeover="never")


def test_takeover_now_does_not_wait() -> None:
    """A user who says so knows that the other driver is dead, or wants it fenced."""
    rig = rig_with_dead_driver()
    rig.start(ports=elsewhere(rig), takeover="now")
    assert (rig.time.sleeps, rig.table.ids) == ([], ALL)


def test_a_driver_that_stopped_in_good_order_is_not_waited_for() -> None:
    """It said so in the log."""
    rig, failing = Rig(), WatchedTransform()
    failing.fails_at = {3}
    with pytest.raises(TransformError):
        rig.start(transform=failing)
    rig.start(ports=elsewhere(rig), transform=WatchedTransform(), takeover="never")
    assert (rig.time.sleeps, rig.table.ids) == ([], ALL)


def test_a_stop_of_an_earlier_driver_says_nothing_about_the_last_one() -> None:
    """Only records after the last claim count."""
    rig, failing, dying = Rig(), WatchedTransform(), WatchedTransform()
    failing.fails_at = {3}
    with pytest.raises(TransformError):
        rig.start(transform=failing)
    dying.at[3] = rig.storage.kill
    rig.start_and_die(transform=dying)
    with pytest.raises(RunBusyError):
        rig.start(ports=elsewhere(rig), takeover="never")


@pytest.mark.parametrize("end", ["stop", "receipt"])
def test_the_wait_ends_when_the_other_driver_does(end: str) -> None:
    """It gives up or commits while it is waited for; the wait ends with the driver."""
    rig = rig_with_dead_driver()

    def other_driver_ends() -> None:
        if end == "receipt":
            rig.start()
        else:
            log = rig.log()
            log._own_claim = 1  # noqa: SLF001 - it acts as that driver.
            log.append(Stop(reason="JobFailedError"))

    rig.time.meanwhile = other_driver_ends
    with pytest.warns(UserWarning, match="waiting for it to end"):
        driven = rig.start(ports=elsewhere(rig))
    assert len(rig.time.sleeps) == 1
    assert (driven.outcome == "already_committed", rig.table.ids) == (end == "receipt", ALL)
    assert len(rig.table.data_snapshots) == 1


def test_the_wait_ends_when_the_run_is_aborted() -> None:
    """Abort is final: there is nothing to wait for, and nothing to take over."""
    rig = rig_with_dead_driver()
    rig.time.meanwhile = lambda: rig.log().claim(Abort(reason="no longer wanted"))
    with (
        pytest.warns(UserWarning, match="waiting for it to end"),
        pytest.raises(RunAbortedError, match="no longer wanted"),
    ):
        rig.start(ports=elsewhere(rig))
    assert (len(rig.time.sleeps), rig.table.data_snapshots) == (1, [])


def test_a_landed_run_is_never_waited_for() -> None:
    """A receipt is an answer, however recent it is."""
    rig = Rig()
    rig.start()
    assert rig.start(ports=elsewhere(rig), takeover="never").outcome == "already_committed"
    assert rig.time.sleeps == []


def test_a_driver_whose_run_was_taken_over_is_fenced() -> None:
    """The other driver does the rest and commits; the first one no longer changes anything."""
    rig, first, second = Rig(), two_partitions(), two_partitions()
    first.before_task[1] = lambda: rig.start(second)
    with pytest.raises(RunFencedError, match=r"log record 3"):
        rig.start(first)
    assert (len(second.plans), rig.table.ids) == (1, ALL)
    assert rig.kinds()[-1] == "Receipt"  # No stop of the fenced driver after it.
    assert len(rig.table.data_snapshots) == 1


def test_a_task_of_a_fenced_driver_stops_paying_at_its_next_checkpoint() -> None:
    """It may be in the middle of a thousand costly rows."""
    rig, fenced, second = Rig(), WatchedTransform(), WatchedTransform()
    fenced.at[12] = lambda: rig.start(transform=second, batch_rows=2, checkpoint_every=1e-9)
    with pytest.raises(RunFencedError):
        rig.start(transform=fenced, batch_rows=2, checkpoint_every=1e-9)
    assert fenced.ids == list(range(14))
    assert second.ids == list(range(12, 20))
    assert rig.table.ids == ALL


def test_a_driver_that_is_fenced_between_intent_and_post_does_not_post_a_second_time() -> None:
    """The other driver lands first; the mark shows it, and there is one snapshot."""
    rig = Rig()
    rig.table.before_post = rig.start
    with pytest.raises(RunFencedError):
        rig.start()
    assert (rig.table.ids, len(rig.table.data_snapshots)) == (ALL, 1)


def test_a_driver_that_is_overtaken_while_it_measures_starts_no_job() -> None:
    """Its plan would come after the other driver's claim: no task is started for it."""
    rig, slow = Rig(), two_partitions()
    slow.before_measure = rig.start
    with pytest.raises(RunFencedError):
        rig.start(slow)
    assert (slow.plans, rig.table.ids, len(rig.table.data_snapshots)) == ([], ALL, 1)


def other_code(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Do the same as no transform, with other code."""
    return batch


def test_changed_code_is_a_warning_and_the_report_counts_rows_by_code() -> None:
    """Finished rows are kept as the old code made them, which a user must know."""
    rig = rig_with_dead_driver()
    with pytest.warns(UserWarning, match="transform's code has changed"):
        driven = rig.start(transform=other_code)
    assert sorted(driven.rows_by_code.values()) == [10, 10]
    claims = rig.log().claims
    assert list(driven.rows_by_code) == [claims[1].code, claims[3].code]
    assert rig.table.ids == ALL


def test_the_same_code_has_one_digest_over_all_starts_and_passes() -> None:
    """Rows of earlier starts, of this one and of a replay count together."""
    rig, first = Rig(), WatchedTransform()
    first.at[7] = rig.storage.kill
    rig.start_and_die(transform=first, batch_rows=2, checkpoint_every=1e-9)
    driven = rig.start(transform=WatchedTransform(), batch_rows=2, checkpoint_every=1e-9)
    assert list(driven.rows_by_code.values()) == [20]


def test_strict_code_refuses_before_anything_is_written() -> None:
    """The run is left as it is, for the old code to resume."""
    rig = rig_with_dead_driver()
    objects = dict(rig.storage.objects)
    with pytest.raises(RunMismatchError, match="code has changed"):
        rig.start(transform=other_code, strict_code=True)
    assert rig.storage.objects == objects
    assert rig.start(strict_code=True).kept_rows == 10
    assert rig.table.ids == ALL


@pytest.mark.parametrize("strict", [False, True])
def test_a_landed_run_warns_of_changed_code_and_refuses_nothing(*, strict: bool) -> None:
    """The table keeps the rows of the earlier code, which the user of the new one must know."""
    rig = Rig()
    rig.start()
    with pytest.warns(UserWarning, match="code has changed .* has landed .* nothing is computed"):
        driven = rig.start(transform=other_code, strict_code=strict)
    assert driven.outcome == "already_committed"


def test_a_landed_run_does_not_warn_of_code_that_is_the_same() -> None:
    """A retry of the same script is the usual case."""
    rig = Rig()
    rig.start(transform=other_code)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rig.start(transform=other_code).outcome == "already_committed"


def test_a_report_of_an_earlier_commit_says_when_the_post_was_made() -> None:
    """Not when its receipt was written: another start may have done that days later."""
    rig = Rig()
    first = rig.start()
    posted = next(r.written_at for r in rig.log().records if isinstance(r.body, Intent))
    assert first.landed_at == posted
    assert "landed" not in str(first)
    del rig.storage.objects[LAYOUT.record(5)]
    rig.time.sleep(86_400.0)
    again = rig.start()
    assert (again.outcome, again.landed_at) == ("already_committed", posted)
    day = posted.replace("T", " ")[:19]
    assert f"landed    {day} UTC, by an earlier start: this one computed nothing" in str(again)


@pytest.mark.parametrize("receipt_lost", [False, True])
def test_a_landed_run_reads_no_input_with_if_committed_return(*, receipt_lost: bool) -> None:
    """For schedulers that run a day's job again: no Spark job at all."""
    rig, submitter = Rig(), MemorySubmitter(range(99))
    rig.start()
    first = rig.log().receipt
    if receipt_lost:
        assert rig.kinds()[4] == "Receipt"
        del rig.storage.objects[LAYOUT.record(5)]
    driven = rig.start(submitter, if_committed="return")
    assert (driven.outcome, driven.input_compared) == ("already_committed", None)
    assert (rig.log().receipt, submitter.key_reads) == (first, 0)
    assert (submitter.plans, rig.table.ids) == ([], ALL)


def test_no_task_of_two_drivers_shares_a_log() -> None:
    """Each Spark application numbers attempts from zero; the claim distinguishes them."""
    rig, first = Rig(), two_partitions()
    first.after_task[0] = rig.storage.kill
    rig.start_and_die(first)
    rig.start()
    logs = [record.log for record in task_records(job_ledger(rig.storage))]
    assert len(logs) == len(set(logs)) == 2


def test_a_driver_whose_task_logs_were_swept_is_fenced() -> None:
    """The other driver has landed, and a sweep has deleted the logs: no object is damaged."""
    rig, submitter = Rig(), two_partitions()

    def land_and_sweep() -> None:
        rig.start(ports=elsewhere(rig), takeover="now")
        sweep(rig.ledger(), lambda _identity: rig.table)

    submitter.after_job = land_and_sweep
    with pytest.raises(RunFencedError):
        rig.start(submitter)
    assert rig.table.ids == ALL
