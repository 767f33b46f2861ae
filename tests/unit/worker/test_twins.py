"""Twins: wait for another attempt while its log grows, then leave the rest to the next pass."""

from __future__ import annotations

import pytest

from holdfast.errors import LedgerDamagedError, StoreUnavailableError
from holdfast.ledger.task_log import JobLedger, TaskLog
from holdfast.model.work import TaskEnd
from holdfast.worker.twins import wait_for_twin
from tests.fakes.task_ledgers import (
    ATTEMPT,
    PLACE,
    ManualClock,
    WatchedStorage,
    job_ledger,
    record,
    task_log,
)

EVERY_S = 32.0
POLL_S = EVERY_S / 8
PATIENCE_S = 2 * EVERY_S


@pytest.fixture
def storage() -> WatchedStorage:
    """Return an empty store."""
    return WatchedStorage()


@pytest.fixture
def ledger(storage: WatchedStorage) -> JobLedger:
    """Return the ledger of a job."""
    return job_ledger(storage)


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock."""
    return ManualClock()


@pytest.fixture
def twin(ledger: JobLedger) -> TaskLog:
    """Return the log of another attempt at the same place."""
    return task_log(ledger, attempt=ATTEMPT - 1)


def grow(log: TaskLog, *, end: TaskEnd = "", seconds: float = 1.0) -> None:
    """Let another attempt make more of its work durable."""
    log.append(record(log.next_name, 1, seconds=seconds, end=end))


def wait(ledger: JobLedger, clock: ManualClock, every_s: float | None = EVERY_S) -> bool:
    """Wait as the attempt does, without taking time."""
    return wait_for_twin(
        ledger, place=PLACE, attempt=ATTEMPT, every_s=every_s, clock=clock, sleep=clock.sleep
    )


def test_without_a_twin_there_is_no_wait(
    storage: WatchedStorage, ledger: JobLedger, clock: ManualClock
) -> None:
    """It costs every task one request and no time."""
    assert not wait(ledger, clock)
    assert (clock.sleeps, [kind for kind, _ in storage.calls]) == ([], ["list"])


def test_an_attempt_is_not_its_own_twin(ledger: JobLedger, clock: ManualClock) -> None:
    """Records under its own name are not a reason to leave."""
    grow(task_log(ledger))
    assert not wait(ledger, clock)


@pytest.mark.parametrize("stranger", ["place", "job"])
def test_attempts_at_other_places_and_jobs_are_not_twins(
    storage: WatchedStorage, ledger: JobLedger, clock: ManualClock, stranger: str
) -> None:
    """Only an attempt at the same rows counts."""
    other = job_ledger(storage, job="replay" if stranger == "job" else ledger.job)
    name = other.log_name(PLACE + (stranger == "place"), ATTEMPT - 1)
    grow(TaskLog(storage, ledger.layout, name))
    assert not wait(ledger, clock)


def test_objects_without_a_record_are_not_durable_work(
    storage: WatchedStorage, ledger: JobLedger, twin: TaskLog, clock: ManualClock
) -> None:
    """A twin that was killed before its first record has done nothing that counts."""
    storage.put(ledger.layout.keys(twin.next_name), b"keys")
    storage.put(ledger.layout.chunk(twin.next_name), b"chunk")
    assert not wait(ledger, clock)


@pytest.mark.parametrize("end", ["complete", "failed", "stopped"])
def test_an_attempt_does_not_wait_for_a_twin_that_has_ended(
    ledger: JobLedger, twin: TaskLog, clock: ManualClock, end: TaskEnd
) -> None:
    """Its log says that it has ended, so the next pass does the rest at once."""
    grow(twin)
    grow(twin, end=end)
    assert wait(ledger, clock)
    assert clock.sleeps == []


def test_a_growing_twin_is_waited_for(ledger: JobLedger, twin: TaskLog, clock: ManualClock) -> None:
    """It is alive: ending before it would make Spark kill it."""
    grow(twin)
    later = [lambda: None] * 15 + [lambda: grow(twin)]
    clock.meanwhile = [*later, *later, lambda: grow(twin, end="complete")]
    started = clock()
    assert wait(ledger, clock)
    assert clock() - started == 33 * POLL_S > PATIENCE_S
    assert clock.meanwhile == []


def test_a_twin_that_stops_growing_is_left(
    ledger: JobLedger, twin: TaskLog, clock: ManualClock
) -> None:
    """After twice the time in which it should have written something it is considered dead."""
    grow(twin)
    clock.meanwhile = [lambda: None, lambda: grow(twin)]
    started = clock()
    assert wait(ledger, clock)
    grown_at = started + 2 * POLL_S
    assert PATIENCE_S < clock() - grown_at <= PATIENCE_S + POLL_S


def test_a_twin_whose_steps_take_long_is_waited_for_longer(
    ledger: JobLedger, twin: TaskLog, clock: ManualClock
) -> None:
    """The wait is twice the longest step that it has recorded."""
    grow(twin, seconds=500.0)
    grow(twin, seconds=10.0)
    started = clock()
    assert wait(ledger, clock)
    assert 1000.0 < clock() - started <= 1000.0 + POLL_S


def test_without_checkpoints_a_twin_gets_two_minutes(
    ledger: JobLedger, twin: TaskLog, clock: ManualClock
) -> None:
    """Its log grows only when its files are full."""
    grow(twin)
    started = clock()
    assert wait(ledger, clock, every_s=None)
    assert 120.0 < clock() - started <= 130.0


@pytest.mark.parametrize(("every_s", "pause_s"), [(0.001, 0.2), (EVERY_S, 4.0), (3600.0, 10.0)])
def test_the_store_is_polled_neither_too_often_nor_too_rarely(
    ledger: JobLedger, twin: TaskLog, clock: ManualClock, every_s: float, pause_s: float
) -> None:
    """Thousands of tasks may wait at once."""
    grow(twin)
    clock.meanwhile = [lambda: grow(twin, end="complete")]
    assert wait(ledger, clock, every_s)
    assert clock.sleeps == [pause_s]


def test_a_fenced_attempt_does_not_wait(
    storage: WatchedStorage, ledger: JobLedger, twin: TaskLog, clock: ManualClock
) -> None:
    """The run has moved on: neither attempt counts any more."""
    grow(twin)
    clock.meanwhile = [storage.fence]
    assert wait(ledger, clock)
    assert clock.sleeps == [POLL_S]


def test_each_record_is_read_once(
    storage: WatchedStorage, ledger: JobLedger, twin: TaskLog, clock: ManualClock
) -> None:
    """A longer wait does not read the same records again."""
    for _ in range(5):
        grow(twin)
    clock.meanwhile = [lambda: None, lambda: grow(twin), lambda: grow(twin, end="failed")]
    storage.calls.clear()
    assert wait(ledger, clock)
    assert len(storage.names_called("get")) == len(set(storage.names_called("get"))) == 7


@pytest.mark.parametrize("failing", ["list", "get", "size"])
def test_a_store_that_does_not_answer_is_not_a_missing_twin(
    storage: WatchedStorage, ledger: JobLedger, twin: TaskLog, clock: ManualClock, failing: str
) -> None:
    """Going on would pay for rows that may be done: the attempt fails, and Spark retries."""
    grow(twin)
    storage.failures[failing] = 1
    with pytest.raises(StoreUnavailableError):
        wait(ledger, clock)


def test_a_damaged_twin_is_an_error(
    storage: WatchedStorage, ledger: JobLedger, twin: TaskLog, clock: ManualClock
) -> None:
    """It is unknown what it covers."""
    storage.put(ledger.layout.task_record(twin.next_name), b"{}")
    with pytest.raises(LedgerDamagedError):
        wait(ledger, clock)


def test_a_twin_that_covers_nothing_has_no_durable_work(
    ledger: JobLedger, twin: TaskLog, clock: ManualClock
) -> None:
    """Its first batch failed and its report was lost: this attempt must hit the error again."""
    twin.append(record(twin.next_name, 0, end="stopped"))
    assert not wait(ledger, clock)
