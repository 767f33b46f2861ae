"""Interrupts: a signal lets tasks end in good order, and then has its usual effect."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from holdfast import per_row
from holdfast.engine.ports import interruptible
from holdfast.errors import StoreUnavailableError
from holdfast.model.records import Abort, Body, Record, Stop, encode_record
from holdfast.model.work import Work
from holdfast.worker import row_steps
from holdfast.worker import task as attempt_module
from holdfast.worker.checkpoints import Checkpoints, TaskFencedError, TaskInterruptedError
from tests.fakes.logs import CLAIM, INTENT, WRITTEN_AT, task_records
from tests.fakes.logs import job_ledger as run_ledger
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.rig import Rig, durable_ids, two_partitions
from tests.fakes.row_functions import NEVER_DUE_S, QUICK, Row, RowFunction, batch, run_task, until
from tests.fakes.task_ledgers import (
    NEXT_NUMBER,
    ListWriterSpec,
    WatchedStorage,
    job_ledger,
    logged,
    task_log,
)
from tests.fakes.watched_transform import WatchedTransform

ALL = list(range(20))
SIGNALS = [signal.SIGINT, signal.SIGTERM]
CHUNKS: dict[str, Any] = {"batch_rows": 2, "checkpoint_every": 1e-9}


class EndedError(BaseException):
    """Raised by the earlier handler: the process is to end."""


@dataclass
class Before:
    """The handlers that were set before ours."""

    received: list[int] = field(default_factory=list)
    raises: bool = False

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Record the signal."""
        self.received.append(number)
        if self.raises:
            raise EndedError

    def are_set(self) -> bool:
        """Whether both handlers are in effect."""
        return all(signal.getsignal(number) == self.handle for number in SIGNALS)


@pytest.fixture
def before() -> Iterator[Before]:
    """Set handlers that record signals, for the length of a test."""
    found = Before()
    kept = {number: signal.signal(number, found.handle) for number in SIGNALS}
    yield found
    for number, handler in kept.items():
        signal.signal(number, handler)


def put(storage: WatchedStorage, body: Body) -> None:
    """Write a record that ends the job of `job_ledger`."""
    record = Record(number=NEXT_NUMBER, nonce="n", written_at=WRITTEN_AT, body=body)
    storage.objects[job_ledger(storage).layout.record(NEXT_NUMBER)] = encode_record(record)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_stops_the_tasks_and_is_passed_on_afterwards(
    number: signal.Signals, before: Before
) -> None:
    """The job runs to its end in between; then the earlier handler gets the signal."""
    asked: list[str] = []
    with interruptible(asked.append):
        assert not before.are_set()
        signal.raise_signal(number)
        assert (asked, before.received) == ([number.name], [])
    assert (asked, before.received, before.are_set()) == ([number.name], [number], True)


def test_without_a_signal_nothing_happens(before: Before) -> None:
    """The handlers are restored, also when the job fails."""
    asked: list[str] = []
    with interruptible(asked.append):
        pass
    assert before.are_set()
    with pytest.raises(ValueError, match="the job"), interruptible(asked.append):
        raise ValueError("the job")
    assert (asked, before.received, before.are_set()) == ([], [], True)


def test_a_job_that_fails_after_a_signal_passes_it_on_too(before: Before) -> None:
    """The signal must not be lost with the error."""

    def job() -> None:
        with interruptible(lambda _: None):
            signal.raise_signal(signal.SIGTERM)
            raise ValueError("the job")

    with pytest.raises(ValueError, match="the job"):
        job()
    assert before.received == [signal.SIGTERM]


@pytest.mark.parametrize("second", SIGNALS)
def test_a_second_signal_is_handled_at_once(second: signal.Signals, before: Before) -> None:
    """A user who presses Ctrl-C twice does not want to wait; the earlier handler runs once."""
    asked: list[str] = []
    with interruptible(asked.append):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(second)
        assert (before.received, before.are_set()) == ([second], True)
    assert (asked, before.received) == (["SIGINT"], [second])


class ManualTimer:
    """A timer that a test fires."""

    made: ClassVar[list[ManualTimer]] = []

    def __init__(
        self, wait_s: float, act: Callable[..., object], arguments: Sequence[object]
    ) -> None:
        """Wait, once started."""
        self.wait_s, self.is_waiting, self.daemon = wait_s, False, False
        self._act = partial(act, *arguments)
        self.made.append(self)

    def start(self) -> None:
        """Begin to wait."""
        self.is_waiting = True

    def cancel(self) -> None:
        """Stop waiting."""
        self.is_waiting = False

    def ring(self) -> None:
        """Act as a timer that fires, unless it is not waiting."""
        if self.is_waiting:
            self._act()


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[ManualTimer]:
    """Return the timers that are created during a test."""
    monkeypatch.setattr(ManualTimer, "made", [])
    monkeypatch.setattr(threading, "Timer", ManualTimer)
    return ManualTimer.made


def test_waiting_too_long_counts_as_a_second_signal(
    before: Before, timers: list[ManualTimer]
) -> None:
    """A task that cannot end must not hold up the driver."""
    with interruptible(lambda _: None):
        signal.raise_signal(signal.SIGTERM)
        (timer,) = timers
        # Long enough for tasks to look, to finish their calls, and to write.
        assert (timer.daemon, 6.0 < timer.wait_s < 10.0) == (True, True)
        timer.ring()
        until(lambda: before.received == [signal.SIGTERM])
    assert before.received == [signal.SIGTERM]


def test_a_job_that_ends_in_time_gets_no_second_signal(
    before: Before, timers: list[ManualTimer]
) -> None:
    """It could hit whatever runs next."""
    with interruptible(lambda _: None):
        signal.raise_signal(signal.SIGTERM)
        (timer,) = timers
        assert timer.is_waiting
    timer.ring()
    assert before.received == [signal.SIGTERM]


def test_if_the_tasks_cannot_be_stopped_the_signal_is_handled_at_once(before: Before) -> None:
    """An unavailable store must not make a process impossible to end."""

    def fails(_reason: str) -> None:
        raise StoreUnavailableError(uri="s3://store", reason="away")

    with interruptible(fails):
        signal.raise_signal(signal.SIGTERM)
        assert before.received == [signal.SIGTERM]
    assert before.received == [signal.SIGTERM]


def test_ctrl_c_ends_a_script_as_always() -> None:
    """Python's own handler raises KeyboardInterrupt, once the tasks have ended."""
    kept = signal.signal(signal.SIGINT, signal.default_int_handler)
    steps = []

    def job() -> None:
        with interruptible(lambda _: None):
            signal.raise_signal(signal.SIGINT)
            steps.append("went on")

    try:
        with pytest.raises(KeyboardInterrupt):
            job()
    finally:
        signal.signal(signal.SIGINT, kept)
    assert steps == ["went on"]


def test_other_threads_change_nothing(before: Before) -> None:
    """Signals reach only the main thread, and only there may a handler be set."""
    were_set = []

    def job() -> None:
        with interruptible(lambda _: None):
            were_set.append(before.are_set())

    thread = threading.Thread(target=job)
    thread.start()
    thread.join(5)
    assert were_set == [True]


@pytest.mark.parametrize(
    ("body", "end"),
    [
        (None, ""),
        (Stop(reason="SIGTERM"), "stopped"),
        (CLAIM, "fenced"),
        (Abort(reason="no"), "fenced"),
        (INTENT, "fenced"),
    ],
)
def test_tasks_read_from_the_log_whether_and_how_to_end(body: Body | None, end: str) -> None:
    """Finished rows count only if their own driver stops the tasks."""
    storage = WatchedStorage()
    if body is not None:
        put(storage, body)
    assert job_ledger(storage).end() == end
    # Usually there is no record, and one small request shows it.
    assert len(storage.names_called("get")) == (0 if body is None else 1)


def test_an_unreadable_record_fences_a_job() -> None:
    """Whatever it is, the driver no longer waits for this job."""
    storage = WatchedStorage()
    storage.fence()
    assert job_ledger(storage).end() == "fenced"


def test_a_task_finds_out_from_the_log_how_to_end() -> None:
    """Fenced: nothing counts any more. Stopped: finished rows count."""
    storage = WatchedStorage()
    ledger = job_ledger(storage)
    writer = ListWriterSpec(pa.schema([("id", pa.int64())])).open("task")
    checkpoints = Checkpoints(
        ledger=ledger, log=task_log(ledger), writer=writer, key=("id",), every_s=None
    )
    checkpoints.look()
    put(storage, Stop(reason="SIGINT"))
    with pytest.raises(TaskInterruptedError):
        checkpoints.look()
    put(storage, CLAIM)
    with pytest.raises(TaskFencedError):
        checkpoints.look()


def test_a_task_that_starts_after_the_signal_pays_for_nothing() -> None:
    """Spark keeps starting tasks until the job is ended."""
    storage, function = WatchedStorage(), RowFunction()
    put(storage, Stop(reason="SIGTERM"))
    report = run_task(storage, batch(range(3)), transform=per_row(function), batch_rows=None)
    assert (report.end, function.ids, logged(job_ledger(storage))) == ("interrupted", [], [])
    old = job_ledger(storage, planned_at=time.time() - 2 * NEVER_DUE_S)
    transform = WatchedTransform()
    report = run_task(storage, batch(range(3)), transform=transform, ledger=old)
    assert (report.end, transform.ids, report.log) == ("interrupted", [], "")


def test_an_interrupted_task_keeps_the_answers_that_arrive_within_the_grace_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Calls in progress finish; waiting rows and calls that hang are given up."""
    monkeypatch.setattr(row_steps, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(attempt_module, "_GRACE_S", 0.3)
    storage, function = WatchedStorage(), RowFunction()
    function.seconds = {0: 0.1, 1: 60.0, 2: 0.15}

    async def stops(row: Row) -> Any:  # noqa: ANN401 - the row.
        if row["id"] == 2:
            put(storage, Stop(reason="SIGTERM"))
        return await function(row)

    report = run_task(
        storage,
        batch(range(50)),
        transform=per_row(stops, concurrency=3, retry=QUICK),
        batch_rows=None,
    )
    assert (report.end, report.problem) == ("interrupted", None)
    until(lambda: function.cancelled == [1])
    assert function.ids[:3] == [0, 1, 2]
    (record,) = logged(job_ledger(storage))
    assert (record.end, record.coverage.rows, report.rows_in) == ("stopped", 2, 2)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_writes_one_stop_and_finished_rows_are_kept(
    number: signal.Signals, before: Before
) -> None:
    """The next start does not wait for this driver, and pays for no finished row again."""
    rig, first, second = Rig(), WatchedTransform(), WatchedTransform()
    first.at[5] = lambda: signal.raise_signal(number)
    before.raises = True
    with pytest.raises(EndedError):
        rig.start(transform=first, **CHUNKS)
    assert (rig.kinds(), before.received, before.are_set()) == (
        ["Claim", "Plan", "Stop"],
        [number],
        True,
    )
    assert rig.log().records[-1].body == Stop(reason=number.name)
    assert durable_ids(rig) == set(first.ids) == {0, 1, 2, 3, 4, 5, 10, 11}
    logs = Work().plus(task_records(run_ledger(rig.storage)))[0].records
    assert list({record.log: record.end for record in logs}.values()) == ["stopped", "stopped"]
    before.raises = False
    driven = rig.start(transform=second, **CHUNKS)
    assert sorted(second.ids) == sorted(set(ALL) - set(first.ids))
    assert (driven.kept_rows, rig.table.ids, rig.time.sleeps) == (8, ALL, [])


def test_a_signal_during_calls_keeps_the_answers_of_calls_in_progress(
    before: Before, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their answers are paid for."""
    monkeypatch.setattr(row_steps, "_LOOK_EVERY_S", 0.01)
    rig, function, before.raises = Rig(), RowFunction(), True
    function.seconds = dict.fromkeys(range(100), 0.02)

    async def calls(row: Row) -> Any:  # noqa: ANN401 - the row.
        if row["id"] == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        return await function(row)

    how: dict[str, Any] = {"transform": per_row(calls, concurrency=4, retry=QUICK)}
    with pytest.raises(EndedError):
        rig.start(MemorySubmitter(range(100)), **how)
    assert rig.kinds() == ["Claim", "Plan", "Stop"]
    assert 8 <= len(function.ids) < 100
    assert durable_ids(rig) == set(function.ids)


def test_if_the_earlier_handler_ignores_the_signal_the_run_continues(before: Before) -> None:
    """Another pass does the remaining rows."""
    rig, transform = Rig(), WatchedTransform()
    transform.at[5] = lambda: signal.raise_signal(signal.SIGTERM)
    driven = rig.start(transform=transform, **CHUNKS)
    assert (rig.table.ids, before.received) == (ALL, [signal.SIGTERM])
    assert (sorted(transform.ids), driven.passes > 1) == (ALL, True)


def test_a_signal_during_a_replay_is_passed_on_after_it(before: Before) -> None:
    """A replay makes no calls, so it runs to its end; the log says that its driver stopped."""
    rig, first, submitter = Rig(), WatchedTransform(), two_partitions()
    first.at[7] = rig.storage.kill
    rig.start_and_die(transform=first, **CHUNKS)
    hook = submitter.before_task
    submitter.after_job = lambda: hook.update({0: lambda: signal.raise_signal(signal.SIGTERM)})
    before.raises = True
    with pytest.raises(EndedError):
        rig.start(submitter, transform=WatchedTransform(), **CHUNKS)
    assert (len(submitter.replays), rig.kinds()[-2:]) == (1, ["Plan", "Stop"])
    second = WatchedTransform()
    rig.start(transform=second, **CHUNKS)
    assert (second.ids, rig.table.ids) == ([], ALL)
