"""Calls: every row gets one answer, never too many at a time, and pauses are respected."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import per_row, per_worker
from holdfast.errors import SettingsError
from holdfast.worker import calls as calls_module
from holdfast.worker import calls as event_loop_module
from holdfast.worker import transforms
from holdfast.worker.calls import Answer, Calls, CallsStuckError, event_loop
from holdfast.worker.transforms import PerWorker, Retry
from holdfast.worker.transforms import RowFunction as Function
from tests.fakes.row_functions import QUICK, HttpError, Row, RowFunction, refused, take, until


# ---- Calls: every row gets one answer, whatever its calls do, and never too many at a time
def calls_of(
    function: Function | PerWorker,
    retry: Retry = QUICK,
    **options: Any,  # noqa: ANN401 - any of `per_row`.
) -> Calls:
    """Return the calls of one task."""
    return Calls(per_row(function, retry=retry, **options))


def answered(
    function: Function | PerWorker,
    count: int = 1,
    **options: Any,  # noqa: ANN401 - any of `per_row`.
) -> dict[int, Answer]:
    """Return the answers for this many rows, from row 0."""
    calls = calls_of(function, **options)
    for number in range(count):
        calls.start(number, {"id": number})
    return take(calls, count)


@pytest.fixture
def own_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Thread]:
    """Run calls on a loop that may end, and return its thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(calls_module, "event_loop", lambda: loop)
    yield thread
    if thread.is_alive():
        loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    # A loop that ended too soon leaves work behind, which asyncio would report.
    loop.set_exception_handler(lambda _loop, _context: None)
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0.01))
    gc.collect()
    loop.close()


def test_an_async_function_is_called_on_the_loop() -> None:
    """It needs no thread, and all clients share one loop."""
    threads: list[str] = []

    async def function(row: Row) -> Row:
        threads.append(threading.current_thread().name)
        assert asyncio.get_running_loop() is event_loop()
        return {"twice": row["id"] * 2}

    answers = answered(function, 3)
    assert [answers[i].value for i in range(3)] == [{"twice": 0}, {"twice": 2}, {"twice": 4}]
    assert [(answer.attempts, answer.error, answer.is_undone) for answer in answers.values()] == [
        (1, None, False)
    ] * 3
    assert set(threads) == {"holdfast-calls"}


def test_an_object_whose_call_is_async_is_called_on_the_loop() -> None:
    """Clients are often objects."""
    function = RowFunction()
    assert answered(function, 2)[1].value == {"id": 1}
    assert sorted(function.ids) == [0, 1]


def test_a_plain_function_gets_a_thread_for_each_call() -> None:
    """Two calls are made at once, and neither blocks the loop."""
    both = threading.Barrier(2, timeout=5)

    def function(row: Row) -> tuple[int, str]:
        both.wait()
        return row["id"], threading.current_thread().name

    answers = answered(function, 2)
    assert [answers[i].value for i in range(2)] == [(0, "holdfast-call"), (1, "holdfast-call")]


def test_a_plain_function_may_return_a_coroutine() -> None:
    """A lambda around an async function is not itself async."""
    function = RowFunction()
    assert answered(lambda row: function({"id": row["id"] + 5}))[0].value == {"id": 5}


class Client:
    """A client that must be made on the loop, and counts how often it is made."""

    made: int = 0

    def __init__(self, name: str) -> None:
        """Find the loop that it is used in."""
        self._name = name
        self._loop = asyncio.get_running_loop()
        Client.made += 1

    async def __call__(self, row: Row) -> tuple[str, Any]:
        """Answer on that loop only."""
        assert asyncio.get_running_loop() is self._loop
        return self._name, row["id"]


def test_a_client_is_built_once_in_a_process_and_on_the_loop() -> None:
    """All tasks of a process share it; nothing is built before the first row."""
    Client.made = 0
    transform = per_row(per_worker(Client, "c"))
    tasks = [Calls(transform), Calls(transform)]
    assert Client.made == 0
    for calls in tasks:
        calls.start(7, {"id": 7})
        assert take(calls, 1)[7].value == ("c", 7)
    assert Client.made == 1
    transforms._BUILT.clear()  # noqa: SLF001 - or other tests would find this loop's client.


def test_a_process_has_one_loop_and_a_forked_process_has_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PySpark forks its workers, and the thread of a loop does not outlive a fork."""
    ours = event_loop()
    assert event_loop() is ours
    monkeypatch.setattr(event_loop_module, "_LOOPS", {os.getpid(): ours})
    monkeypatch.setattr(os, "getpid", lambda: -1)
    theirs = event_loop()
    assert theirs is event_loop() is not ours
    until(theirs.is_running)
    theirs.call_soon_threadsafe(theirs.stop)
    until(lambda: not theirs.is_running())
    theirs.close()


def test_a_call_that_takes_too_long_is_an_error() -> None:
    """It says how long was allowed, and is retried like other timeouts."""
    function = RowFunction()
    function.seconds[0] = 9.0
    answer = answered(function, timeout=0.01, retry=Retry(attempts=2, first_wait=0.001))[0]
    assert (str(answer.error), answer.attempts) == ("the call took longer than 0.01 s", 2)
    assert isinstance(answer.error, TimeoutError)
    assert function.cancelled == [0, 0]


def test_a_timeout_of_the_client_itself_keeps_its_own_message() -> None:
    """Only a timeout without a message gets ours."""
    function = RowFunction()
    function.fails_at[0] = TimeoutError("read timed out")
    assert str(answered(function, timeout=5, retry=Retry(attempts=1))[0].error) == "read timed out"


def test_a_coroutine_that_a_plain_function_returns_has_the_timeout_too() -> None:
    """Otherwise one row that hangs would block its task for ever."""
    function = RowFunction()
    function.seconds[0] = 0.5
    answer = answered(lambda row: function({**row}), timeout=0.01, retry=Retry(attempts=1))[0]
    assert isinstance(answer.error, TimeoutError)


def test_a_call_that_fails_is_made_again() -> None:
    """It is retried as often as allowed, and the answer says how many calls it took."""
    function = RowFunction()
    function.errors[0] = deque([HttpError(503), ConnectionResetError()])
    function.fails_at[1] = HttpError(503)
    function.fails_at[2] = ValueError("bad row")
    answers = answered(function, 3)
    assert (answers[0].value, answers[0].attempts) == ({"id": 0}, 3)
    assert (answers[1].error, answers[1].attempts) == (function.fails_at[1], QUICK.attempts)
    assert (answers[2].error, answers[2].attempts) == (function.fails_at[2], 1)
    assert [function.ids.count(number) for number in range(3)] == [3, 5, 1]


def test_a_plain_function_that_fails_is_called_again() -> None:
    """Its error comes back from the thread unchanged."""
    errors: deque[BaseException] = deque([HttpError(503), StopIteration(), SystemExit(3)])

    def function(row: Row) -> Row:
        if errors:
            raise errors.popleft()
        return row

    found = answered(function)[0]
    assert (repr(found.error), found.attempts) == (
        "RuntimeError('the call raised StopIteration()')",
        2,
    )
    assert repr(answered(function)[0].error) == "RuntimeError('the call raised SystemExit(3)')"
    assert answered(function)[0].value == {"id": 0}


def test_rows_that_wait_for_their_next_call_end_undone_when_calls_stop() -> None:
    """They are neither done nor failed: the next start calls them."""
    function = RowFunction()
    function.fails_at[0] = HttpError(503)  # It waits for its next attempt.
    function.fails_at[1] = refused(60)
    function.seconds[3] = 0.2  # It is being called.
    calls = calls_of(function, Retry(first_wait=60))
    for made, number in enumerate((3, 0, 1), start=1):
        calls.start(number, {"id": number})
        until(lambda made=made: len(function.ids) == made)  # type: ignore[misc]
    time.sleep(0.01)
    calls.start(2, {"id": 2})  # It waits for the pause to end.
    calls.stop_waiting()
    answers = take(calls, 4)
    assert [answers[number].is_undone for number in range(4)] == [True, True, True, False]
    assert answers[3].value == {"id": 3}
    assert sorted(function.ids) == [0, 1, 3]


def test_cancelling_ends_the_calls_under_way() -> None:
    """Their rows count as never started."""
    function = RowFunction()
    function.seconds[0] = 60.0
    calls = calls_of(function)
    calls.start(0, {"id": 0})
    until(lambda: function.at_work == 1)
    assert calls.in_flight == 1
    calls.cancel()
    assert calls.in_flight == 0
    until(lambda: function.cancelled == [0])


def test_after_cancelling_no_answer_comes() -> None:
    """A cancelled row must not look like a failed one."""
    function = RowFunction()
    function.seconds[0] = 60.0
    calls = calls_of(function)
    calls.start(0, {"id": 0})
    until(lambda: function.at_work == 1)
    calls.cancel()
    assert calls.answers(0.1) == []


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3), KeyboardInterrupt()])
def test_a_call_that_ends_itself_still_gives_an_answer(error: BaseException) -> None:
    """Without one the task would wait for ever; other rows' calls go on."""
    function = RowFunction()
    function.fails_at[0] = error
    function.seconds[1] = 0.02
    answers = answered(function, 2)
    assert type(error).__name__ in repr(answers[0].error)
    assert isinstance(answers[0].error, RuntimeError)
    assert answers[1].value == {"id": 1}


def test_a_call_with_a_timeout_that_exits_does_not_end_the_loop(
    own_loop: threading.Thread,
) -> None:
    """Otherwise the calls of all other rows would hang, in this task and in later ones."""

    async def exits(_row: Row) -> None:
        raise SystemExit(3)

    calls = calls_of(exits, timeout=5)
    calls.start(0, {"id": 0})
    found = calls.answers(0.2)
    assert own_loop.is_alive()
    assert "SystemExit" in repr(found[0].error)


def test_plain_functions_that_hang_do_not_pile_up_threads() -> None:
    """They cannot be ended: beyond twice the concurrency, rows fail with a clear error."""
    release, at_work = threading.Event(), threading.Semaphore(0)

    def hangs(_row: Row) -> None:
        at_work.release()
        release.wait(10)

    before = threading.active_count()
    answers = answered(hangs, 6, concurrency=2, timeout=0.01, retry=Retry(attempts=1))
    stuck = [
        answer.error for answer in answers.values() if isinstance(answer.error, CallsStuckError)
    ]
    assert len(stuck) == 2
    assert "4 calls are running" in str(stuck[0])
    assert threading.active_count() - before <= 4
    release.set()


def test_threads_that_return_make_room_again() -> None:
    """Only calls that are still running count."""
    calls = calls_of(lambda row: row["id"], concurrency=1)
    for number in range(20):
        calls.start(number, {"id": number})
        assert take(calls, 1)[number].value == number


def test_a_late_end_of_a_call_that_timed_out_is_not_a_second_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The row has its answer; the thread's late result is ignored."""
    release, has_ended = threading.Event(), threading.Event()

    def late(row: Row) -> Row:
        release.wait(5)
        has_ended.set()
        return row

    calls = calls_of(late, Retry(attempts=1), timeout=0.01)
    calls.start(0, {"id": 0})
    assert isinstance(take(calls, 1)[0].error, TimeoutError)
    release.set()
    until(has_ended.is_set)
    assert calls.answers(0.02) == []
    assert caplog.records == []  # The loop would log a result that it cannot set.


@pytest.mark.parametrize(
    "arguments",
    [
        {"function": 7},
        {"function": len, "concurrency": 0},
        {"function": len, "concurrency": 2.0},
        {"function": len, "concurrency": True},
        {"function": len, "timeout": "soon"},
        {"function": len, "timeout": 0},
    ],
)
def test_an_argument_that_cannot_be_used_is_refused(arguments: dict[str, Any]) -> None:
    """The driver refuses it before any task starts."""
    with pytest.raises(SettingsError):
        per_row(**arguments)


# ---- Rate limits: a pause that a server asks for applies to all rows of a task, and ends
def test_rate_limit_refusals_are_not_attempts() -> None:
    """They are not the row's fault; a row that they end had at least one call."""
    function = RowFunction()
    function.errors[0] = deque([refused(), refused(0.001), HttpError(503)])
    retry = Retry(attempts=2, first_wait=0.001, longest_wait=0.001, patience=5)
    answer = answered(function, retry=retry)[0]
    assert (answer.value, answer.attempts, len(function.ids)) == ({"id": 0}, 2, 4)


def test_refusals_end_with_patience() -> None:
    """A server that is never ready fails the row in the end."""
    function = RowFunction()
    function.fails_at[0] = refused()
    answer = answered(function, retry=Retry(attempts=1, first_wait=0.004, patience=0.3))[0]
    assert (answer.error, answer.attempts) == (function.fails_at[0], 1)
    assert len(function.ids) > 2


def test_waits_grow_from_refusal_to_refusal() -> None:
    """Otherwise a busy server would be called at the same pace until patience ends."""
    function = RowFunction()
    function.errors[0] = deque([refused(), refused(), refused(), refused()])
    assert answered(function, retry=Retry(first_wait=0.02))[0].value == {"id": 0}
    # A wait is at least half of what it may be: 0.02, 0.04, 0.08, 0.16.
    assert function.times[4] - function.times[3] >= 0.08
    assert function.times[4] - function.times[0] >= 0.15


def test_after_a_refusal_no_row_of_the_task_is_called_before_the_pause_ends() -> None:
    """The server has asked for it: other rows would only be refused too."""
    function = RowFunction()
    function.errors[0] = deque([refused(0.1)])
    calls = calls_of(function)
    calls.start(0, {"id": 0})
    until(lambda: bool(function.ids) and not function.at_work)
    time.sleep(0.01)
    calls.start(1, {"id": 1})
    calls.start(2, {"id": 2})
    assert sorted(take(calls, 3)) == [0, 1, 2]
    first, *others = function.times
    assert len(others) == 3
    assert min(others) - first >= 0.1


def test_rows_that_wait_for_their_own_retry_wait_for_the_pause_too() -> None:
    """A row between two attempts must respect a pause that another row got meanwhile."""
    function = RowFunction()
    function.errors = {0: deque([HttpError(503)]), 1: deque([refused(0.2)])}
    calls = calls_of(function, Retry(first_wait=0.1, longest_wait=0.1))
    for number in (0, 1):
        calls.start(number, {"id": number})
        until(lambda number=number: function.ids == [0, 1][: number + 1])  # type: ignore[misc]
    take(calls, 2)
    assert min(function.times[2:]) - function.times[1] >= 0.2


def test_other_errors_do_not_delay_other_rows() -> None:
    """Only the server can ask for a pause."""
    function = RowFunction()
    function.errors[0] = deque([HttpError(503)])
    calls = calls_of(function, Retry(first_wait=30))
    calls.start(0, {"id": 0})
    calls.start(1, {"id": 1})
    assert list(take(calls, 1)) == [1]
    calls.cancel()


def test_patience_begins_with_the_rows_own_first_call() -> None:
    """A pause from before the row started does not count."""
    function = RowFunction()
    function.errors = {0: deque([refused(0.1)]), 1: deque([refused()])}
    calls = calls_of(function, Retry(first_wait=0.001, longest_wait=0.001, patience=0.05))
    calls.start(0, {"id": 0})
    until(lambda: bool(function.ids) and not function.at_work)
    time.sleep(0.01)
    calls.start(1, {"id": 1})
    assert take(calls, 2)[1].value == {"id": 1}
