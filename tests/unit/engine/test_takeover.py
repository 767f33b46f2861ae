"""Heartbeats: a second start never stops a live driver, and never waits for a dead one."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from holdfast.engine.advice import driver_alive
from holdfast.engine.claim import claim_run, prepare
from holdfast.engine.cleanup import sweep
from holdfast.engine.drive import Driver
from holdfast.engine.options import WriteOptions
from holdfast.engine.takeover import Heartbeat
from holdfast.engine.watch import Watcher
from holdfast.errors import (
    RunBusyError,
    RunFencedError,
    RunMismatchError,
    SettingsError,
    TableChangedError,
)
from holdfast.ledger.ledger import Ledger, Ports, in_a_thread
from holdfast.model.records import Stop
from holdfast.pages.facts import head_of
from holdfast.pages.timeline import summaries_of
from tests.fakes.logs import CLAIM
from tests.fakes.manual_ports import manual_ports
from tests.fakes.rig import LAYOUT, Rig, two_partitions
from tests.fakes.unpinned import Unpinned

ALL = list(range(20))
BEAT_S, QUIET_S = 30.0, 60.0  # By the default of `checkpoint_every`.
WAITS = "waiting for it to end"


class Living:
    """A driver that has claimed the run, and does nothing but stay alive."""

    def __init__(self, rig: Rig, **options: object) -> None:
        """Create the run, claim it, and begin to beat."""
        rig.commit_step()
        self.ledger = rig.ledger(manual_ports(rig.time, process_id=1))
        self.ledger.log.refresh()
        self.ledger.run_file()
        self.ledger.log.claim(CLAIM)
        chosen = WriteOptions(**options)  # type: ignore[arg-type]
        self.heartbeat = Heartbeat(self.ledger, chosen.checkpoint_every_s)
        self.rig = rig

    def at(self, seconds: float, act: Callable[[], object]) -> None:
        """Call a function after some seconds."""

        def once() -> None:
            act()

        self.rig.time.beside("a test", seconds, once)

    def stop(self) -> None:
        """End in good order."""
        self.heartbeat.stop()
        self.ledger.log.append(Stop(reason="JobFailedError"))


def elsewhere(rig: Rig) -> Ports:
    """Return the ports of a driver on another machine."""
    return manual_ports(rig.time, machine="machine-2", process_id=2)


def beats(rig: Rig) -> list[float]:
    """Return when beats of the claims were written."""
    return [rig.storage.written_at[uri] for uri in rig.storage.written if "/beats/0" in uri]


def test_a_driver_that_beats_is_never_taken_over() -> None:
    """It works for an hour without a record: the second start waits for it, then continues."""
    rig = Rig()
    first = Living(rig)
    first.at(3600.0, first.stop)
    with pytest.warns(UserWarning, match=WAITS):
        driven = rig.start(ports=elsewhere(rig))
    assert 3600 <= sum(rig.time.sleeps) <= 3610
    assert (driven.outcome, rig.table.ids) == ("committed", ALL)


def test_a_start_that_waited_for_a_driver_returns_its_receipt() -> None:
    """Nothing is computed twice, and one snapshot has landed."""
    rig, submitter = Rig(), two_partitions()
    first = Living(rig)

    def land() -> None:
        first.heartbeat.stop()
        rig.start()

    first.at(600.0, land)
    with pytest.warns(UserWarning, match=WAITS):
        driven = rig.start(submitter, ports=elsewhere(rig))
    assert driven.outcome == "already_committed"
    assert (submitter.plans, rig.table.ids, len(rig.table.data_snapshots)) == ([], ALL, 1)


def test_when_the_beats_end_the_second_start_continues() -> None:
    """Killed or stopped: two intervals after the last beat it counts as dead."""
    rig = Rig()
    first = Living(rig)
    first.at(300.5, first.heartbeat.stop)
    with pytest.warns(UserWarning, match=WAITS):
        rig.start(ports=elsewhere(rig))
    assert sum(rig.time.sleeps) == pytest.approx(300 + QUIET_S, abs=2)
    assert rig.table.ids == ALL


def test_takeover_never_names_a_driver_that_beats() -> None:
    """However old its last record is; and the look writes nothing to the ledger."""
    rig = Rig()
    Living(rig, checkpoint_every="30s")
    first = Living(rig)
    rig.time.pass_by(1000.0)
    before = dict(rig.storage.objects)
    with pytest.raises(RunBusyError, match=r"process 1 on .*wrote 10 s ago"):
        rig.start(ports=elsewhere(rig), takeover="never")
    assert rig.storage.objects == before
    first.heartbeat.stop()


def test_a_driver_that_beats_without_progress_is_named_in_every_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The user decides, not the second start."""
    rig = Rig()
    first = Living(rig)
    first.at(600.0, first.stop)
    rig.time.pass_by(200.0)
    with (
        caplog.at_level(logging.WARNING, "holdfast"),
        pytest.warns(UserWarning, match=WAITS) as said,
    ):
        rig.start(ports=elsewhere(rig))
    (warning,) = said
    assert "but has recorded no progress for 200 s and may be hanging" in str(warning.message)
    lines = [record.getMessage() for record in caplog.records if WAITS in record.getMessage()]
    assert len(lines) == 6  # One each minute, of the 400 s that were left.
    assert "no progress for 260 s" in lines[0]
    assert all("process 1 on" in line and "may be hanging" in line for line in lines)


def test_tasks_that_write_count_as_progress(caplog: pytest.LogCaptureFixture) -> None:
    """A driver records nothing while its job runs, but its tasks do."""
    rig, submitter = Rig(), two_partitions()
    submitter.before_task[1] = rig.storage.kill
    rig.start_and_die(submitter)
    tasks = LAYOUT.job_tasks(rig.log().task_folders[1])
    ends: list[Callable[[], None]] = []

    def work() -> float:
        rig.storage.put(f"{tasks}/rows/000001/000000000001/0000.keys", b"")
        rig.storage.put(LAYOUT.beat(1), b"")
        return 20.0

    ends.append(rig.time.beside("tasks", 20.0, work))

    def end() -> None:
        ends[0]()

    rig.time.beside("end", 500.0, end)
    with caplog.at_level(logging.WARNING, "holdfast"), pytest.warns(UserWarning, match=WAITS):
        rig.start(ports=elsewhere(rig))
    lines = [record.getMessage() for record in caplog.records if WAITS in record.getMessage()]
    assert len(lines) >= 8
    assert not any("may be hanging" in line for line in lines[:8])


def test_without_a_heartbeat_a_drivers_tasks_are_its_sign_of_life() -> None:
    """A driver of an earlier version has no heartbeat."""
    rig, submitter = Rig(), two_partitions()
    submitter.before_task[1] = rig.storage.kill
    rig.start_and_die(submitter)
    tasks = LAYOUT.job_tasks(rig.log().task_folders[1])

    def work() -> float | None:
        rig.storage.put(f"{tasks}/rows/000001/000000000001/0000.keys", b"")
        return 40.0 if rig.time.now_s < began + 400 else None

    began = rig.time.now_s
    rig.time.beside("tasks", 40.0, work)
    with pytest.warns(UserWarning, match=WAITS):
        rig.start(ports=elsewhere(rig))
    assert sum(rig.time.sleeps) >= 400


def test_of_two_waiting_starts_one_continues_and_the_other_waits_for_it() -> None:
    """Both find the first driver dead at the same moment; only one create succeeds."""
    rig = Rig()
    first = Living(rig)
    first.heartbeat.stop()
    rig.time.pass_by(1000.0)
    rivals: list[Living] = []

    def rival() -> None:
        log = rig.log()
        log.claim(replace(CLAIM, process_id=7, host="host-7", machine="machine-7"))
        ledger = replace(first.ledger, log=log, ports=manual_ports(rig.time, process_id=7))
        rivals.append(first)
        first.ledger, first.heartbeat = ledger, Heartbeat(ledger, 30.0)
        first.at(500.0, first.stop)

    ports = elsewhere(rig)
    ledger = Ledger.open("r", "s3://store", rig.storage, ports)
    ledger.log.refresh()
    ledger.run_file()
    rig.storage.before_create = rival
    with pytest.warns(UserWarning, match=f"process 7 on host-7 .*{WAITS}"):
        claim_run(ledger, WriteOptions())
    assert 500 <= sum(rig.time.sleeps) <= 510


def test_a_clock_that_is_ahead_does_not_make_a_driver_look_dead() -> None:
    """The store's clock decides how old a sign of life is; ours may be minutes off."""
    rig = Rig()
    first = Living(rig)
    first.at(100.0, first.stop)
    ports = replace(elsewhere(rig), now=lambda: rig.time.now_s + 600.0)
    with pytest.warns(UserWarning, match="sign of life 0 s ago"):
        rig.start(ports=ports)
    assert sum(rig.time.sleeps) == pytest.approx(100, abs=2)


def test_a_start_that_is_suspended_does_not_take_the_other_for_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the other has written meanwhile counts, however old what was seen before is."""
    rig = Rig()
    first = Living(rig)
    first.at(900.0, first.stop)
    put = rig.storage.put

    def put_late(uri: str, data: bytes) -> None:
        if "/beats/now-" in uri:
            rig.time.pass_by(5 * QUIET_S)
        put(uri, data)

    monkeypatch.setattr(rig.storage, "put", put_late)
    rig.time.pass_by(BEAT_S)
    with pytest.warns(UserWarning, match=WAITS):
        rig.start(ports=elsewhere(rig))
    assert sum(rig.time.sleeps) >= 500


def test_another_thread_of_this_process_is_waited_for() -> None:
    """The process id alone is not enough: a notebook that starts again has the same."""
    rig = Rig()
    ports = manual_ports(rig.time, process_id=1)
    first, here = Living(rig), threading.get_ident()
    ports.drivers.append((first.ledger.log, here + 1))
    with pytest.raises(RunBusyError):
        rig.start(ports=ports, takeover="never")
    ports.drivers[:] = [(first.ledger.log, here)]  # Prepared by this thread, and left alone.
    rig.start(ports=ports, takeover="never")
    assert rig.table.ids == ALL
    first.heartbeat.stop()


@pytest.mark.parametrize(
    ("every", "beat_s"), [("30s", 30.0), (None, 30.0), ("5min", 300.0), ("6h", 300.0), ("1s", 5.0)]
)
def test_a_driver_beats_once_each_interval_and_not_before_the_first_has_passed(
    every: str | None, beat_s: float
) -> None:
    """A short job costs no request; a long one costs one each `checkpoint_every`."""
    rig = Rig()
    first = Living(rig, checkpoint_every=every)
    rig.time.pass_by(beat_s - 0.1)
    assert beats(rig) == []
    rig.time.pass_by(9 * beat_s + 0.2)
    assert len(beats(rig)) == 10
    first.heartbeat.stop()
    rig.time.pass_by(10 * beat_s)
    assert len(beats(rig)) == 10


def test_a_driver_beats_while_its_job_runs() -> None:
    """From its claim to its end, under the number of its claim."""
    rig, submitter = Rig(), two_partitions()
    submitter.before_task[1] = lambda: rig.time.pass_by(100.0)
    rig.start(submitter)
    assert len(beats(rig)) == 3
    assert LAYOUT.beat(1) in rig.storage.objects


def test_a_lost_beat_is_soon_repeated(caplog: pytest.LogCaptureFixture) -> None:
    """One failed request must not look like a dead driver; it is logged once."""
    rig = Rig()
    first = Living(rig)
    rig.storage.failures["put"] = 2
    rig.time.pass_by(BEAT_S + 11)
    assert len(beats(rig)) == 1
    (said,) = caplog.records
    assert "another start may take this driver for dead" in said.getMessage()
    first.heartbeat.stop()


def test_a_beat_that_raises_does_not_stop_the_next_one(caplog: pytest.LogCaptureFixture) -> None:
    """The user's credentials function may raise anything, once."""
    rig = Rig()
    first, put = Living(rig), rig.storage.put

    def refuses(uri: str, data: bytes) -> None:  # noqa: ARG001 - the real signature.
        rig.storage.put = put  # type: ignore[method-assign]
        raise SettingsError(what="no keys", cure="give them")

    rig.storage.put = refuses  # type: ignore[method-assign]
    rig.time.pass_by(BEAT_S + 6)
    assert (len(beats(rig)), len(caplog.records)) == (1, 1)
    first.heartbeat.stop()


def test_a_claim_that_is_being_made_is_seen_by_other_threads() -> None:
    """The answer may take seconds, and the record exists before it."""
    rig, seen = Rig(), list[int]()
    ledger = rig.ledger()
    rig.storage.before_create = lambda: seen.append(len(ledger.ports.drivers))
    claim_run(ledger, WriteOptions())
    assert (seen, ledger.ports.drivers) == ([1], [])


def test_a_driver_beats_until_its_stop_is_recorded() -> None:
    """The store may take long to accept the record: until then the driver is not dead."""
    rig, submitter = Rig(), two_partitions()
    counts: list[int] = []

    def lose_the_table() -> None:
        rig.table.uuid = "uuid-2"
        rig.storage.before_create = slow_record

    def slow_record() -> None:
        before = len(beats(rig))
        rig.time.pass_by(4 * BEAT_S)
        counts.append(len(beats(rig)) - before)
        rig.storage.before_create = slow_record  # The next one takes as long.

    submitter.before_task[1] = lose_the_table
    with pytest.raises(TableChangedError):
        rig.start(submitter)
    assert isinstance(rig.log().records[-1].body, Stop)
    assert counts[-1] == 4
    before = len(beats(rig))
    rig.time.pass_by(4 * BEAT_S)
    assert len(beats(rig)) == before


def test_a_refused_append_ends_the_heartbeat_of_remaining() -> None:
    """The run does not match: this driver does not continue it, and no other should wait."""
    rig, submitter = Rig(), two_partitions()
    submitter.before_task[1] = rig.storage.kill
    rig.start_and_die(submitter)
    other = Rig(table=rig.table, time=rig.time)
    other.storage = rig.storage
    ledger = other.ledger()
    prepared = prepare(ledger, submitter, ("id",), WriteOptions())
    driver = Driver(ledger=ledger, sink=other.table, input=Unpinned(submitter), prepared=prepared)
    with pytest.raises(RunMismatchError):
        driver.write(other.table.load(), replace(other.identity(), version="2"), WriteOptions())
    rig.time.pass_by(100.0)
    assert (beats(rig), ledger.ports.drivers) == ([], [])


def test_the_table_is_looked_at_again_after_a_wait() -> None:
    """The table was created again meanwhile: no row is paid for before the error."""
    rig, submitter = Rig(), two_partitions()
    first = Living(rig)

    def make_again() -> None:
        rig.table.uuid = "uuid-2"
        first.stop()

    first.at(100.0, make_again)
    with pytest.warns(UserWarning, match=WAITS), pytest.raises(TableChangedError):
        rig.start(submitter, ports=elsewhere(rig))
    assert submitter.plans == []


def test_a_finished_run_no_longer_beats() -> None:
    """Neither one that has landed, nor one that was fenced, nor one that found a receipt."""
    rig, fenced = Rig(), two_partitions()
    fenced.before_task[1] = lambda: rig.start(takeover="now")
    with pytest.raises(RunFencedError):
        rig.start(fenced)
    rig.start()
    rig.time.pass_by(1000.0)
    assert beats(rig) == []


def test_a_run_with_remaining_rows_beats_until_it_is_dropped() -> None:
    """The driver is alive between `remaining` and `append`; a notebook may never call `append`."""
    rig = Rig()
    prepared = prepare(rig.ledger(), two_partitions(), ("id",), WriteOptions())
    rig.time.pass_by(BEAT_S + 1)
    assert len(beats(rig)) == 1
    del prepared
    gc.collect()
    rig.time.pass_by(100.0)
    assert len(beats(rig)) == 1


def test_others_wait_for_at_most_an_hour_for_a_run_with_remaining_rows() -> None:
    """A user who only looks how much is left must not hold up the nightly job."""
    rig = Rig()
    prepared = prepare(rig.ledger(), two_partitions(), ("id",), WriteOptions())
    rig.time.pass_by(7200.0)
    assert len(beats(rig)) == 119
    prepared.heartbeat.stop()


def test_a_run_that_could_not_be_prepared_no_longer_beats() -> None:
    """A notebook keeps the last error, and with it everything that its frames hold."""
    rig, interrupted = Rig(), two_partitions()

    def interrupt() -> None:
        raise KeyboardInterrupt

    interrupted.before_measure = interrupt
    with pytest.raises(KeyboardInterrupt) as kept:
        prepare(rig.ledger(), interrupted, ("id",), WriteOptions())
    rig.time.pass_by(100.0)
    assert (kept.value.args, beats(rig)) == ((), [])


def test_a_sweep_deletes_the_beats() -> None:
    """They are of no use once the run has landed."""
    rig = Rig()
    first = Living(rig)
    rig.time.pass_by(BEAT_S + 1)
    first.stop()
    rig.start()
    assert [uri for uri in rig.storage.objects if "/beats/" in uri]
    sweep(rig.ledger(), lambda _identity: rig.table)
    assert not [uri for uri in rig.storage.objects if "/beats/" in uri]


def test_users_see_that_a_driver_that_beats_is_alive() -> None:
    """A batch of an hour leaves no record: the run is running, not silent."""
    rig = Rig()
    first = Living(rig)
    rig.time.pass_by(1000.0)
    ports = elsewhere(rig)
    seen = Watcher(ledger=rig.ledger(ports)).look()
    assert seen.beat_at == rig.time.now_s - 10
    assert "gave a sign of life 10 s ago" in (driver_alive(seen, ports) or "")
    assert head_of(seen, summaries_of(seen.starts, ()), rig.time.now_s).word == "running"
    first.heartbeat.stop()
    rig.time.pass_by(100.0)
    seen = Watcher(ledger=rig.ledger(ports)).look()
    assert driver_alive(seen, ports) is None
    assert head_of(seen, summaries_of(seen.starts, ()), rig.time.now_s).word == "silent"


def test_background_work_of_the_driver_runs_in_a_thread() -> None:
    """It repeats while it returns a delay; its errors stay in its thread, and it can be ended."""
    called: list[float] = []

    def act() -> float | None:
        called.append(time.monotonic())
        if len(called) == 3:
            raise ValueError("not the job's")
        return 0.01

    in_a_thread("test", 0.01, act)
    until = time.monotonic() + 10
    while len(called) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(called) == 3
    end = in_a_thread("test", 0.2, act)
    end()
    time.sleep(0.3)
    assert len(called) == 3
