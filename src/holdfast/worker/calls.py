"""Calls: one task's calls of a row function, on the process's event loop.

There is one loop for the whole process, not one per task: clients that a worker builds once keep
their connections in the loop that they were made in.

The loop's thread makes the calls; the task's own thread submits rows and collects answers. A plain
function gets a thread for each call, because a hanging call cannot be ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from holdfast.worker.reports import TransformFailedError
from holdfast.worker.transforms import PerRow, RowFunction, is_rate_limit

# ---- The event loop of this worker process, on its own thread

_LOOPS: dict[int, asyncio.AbstractEventLoop] = {}
_LOCK = threading.Lock()


def event_loop() -> asyncio.AbstractEventLoop:
    """Return this process's loop; start it on the first call.

    Kept by process id, because PySpark forks its workers, and threads do not survive a fork.
    """
    with _LOCK:
        loop = _LOOPS.get(os.getpid())
        if loop is None:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="holdfast-calls", daemon=True).start()
            _LOOPS.clear()
            _LOOPS[os.getpid()] = loop
        return loop


# ---- Calls: one task's calls of a row function, on the process's event loop
@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How the calls for one row ended."""

    number: int
    value: Any = None
    # The exception of the last call.
    error: Exception | None = None
    # How many calls were made, not counting rate-limited ones.
    attempts: int = 0
    # The row was dropped before there was an answer: it is neither done nor failed.
    is_undone: bool = False


class CallsStuckError(RuntimeError):
    """Too many calls of a plain function have passed their timeout without returning."""


class Calls:
    """Makes calls, retries them, and delivers the answers as they come."""

    def __init__(self, transform: PerRow) -> None:
        """Keep the transform; nothing is built or called before the first row."""
        self._transform = transform
        self._loop = event_loop()
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._futures: dict[int, Future[None]] = {}
        self._threads = 0
        self._function: RowFunction = _not_built
        self._is_async = self._is_cancelled = False
        self._stopping = asyncio.Event()
        # No call before this time on the loop's clock: the server has asked for a pause.
        self._open_at = 0.0

    @property
    def in_flight(self) -> int:
        """How many rows are waiting for an answer."""
        return len(self._futures)

    def start(self, number: int, row: dict[str, Any]) -> None:
        """Start the calls for one row.

        Raises:
            TransformFailedError: The function had to be built first, and that failed.
        """
        if self._function is _not_built:
            # Some clients can only be created in the loop where they are used.
            built = asyncio.run_coroutine_threadsafe(self._built(), self._loop)
            try:
                self._function = built.result()
            except Exception as error:  # A factory may raise anything.
                raise TransformFailedError(error) from error
            self._is_async = _is_async(self._function)
        work = self._row(number, row)
        self._futures[number] = asyncio.run_coroutine_threadsafe(work, self._loop)

    def answers(self, timeout_s: float) -> list[Answer]:
        """Return all available answers; wait for the first one, but not longer than the timeout."""
        found = []
        try:
            found.append(self._answers.get(timeout=max(timeout_s, 0.0)))
            while True:
                found.append(self._answers.get_nowait())
        except Empty:
            pass
        for answer in found:
            self._futures.pop(answer.number, None)
        return found

    def stop_waiting(self) -> None:
        """Make no further call: rows that wait for their next call end undone."""
        self._loop.call_soon_threadsafe(self._stopping.set)

    def cancel(self) -> None:
        """Cancel the calls in progress; their rows are undone, and no answer comes."""
        self._is_cancelled = True
        self.stop_waiting()
        for future in self._futures.values():
            future.cancel()
        self._futures.clear()

    async def _built(self) -> RowFunction:
        with _no_exit():
            return self._transform.build()

    async def _row(self, number: int, row: dict[str, Any]) -> None:
        try:
            answer = await self._answer(number, row)
        except BaseException as error:
            if not self._is_cancelled:
                # A client may cancel its own call. Without an answer the task would wait forever.
                failure = RuntimeError(f"the call was aborted: {error!r}")
                failure.__cause__ = error
                self._answers.put(Answer(number=number, error=failure, attempts=1))
            raise
        self._answers.put(answer)

    async def _answer(self, number: int, row: dict[str, Any]) -> Answer:
        retry, began, attempts, refusals = self._transform.retry, 0.0, 0, 0
        while True:
            while (pause := self._open_at - self._loop.time()) > 0:
                if await self._is_stopped_after(pause):
                    return Answer(number=number, is_undone=True)
            began = began or self._loop.time()
            try:
                value = await self._call(row)
            except Exception as error:  # noqa: BLE001 - a model's client may raise anything.
                refused = is_rate_limit(error)
                attempts += not refused
                refusals += refused
                wait = retry.wait_s(error, attempts, self._loop.time() - began, refusals)
                if wait is None:
                    return Answer(number=number, error=error, attempts=max(attempts, 1))
                if refused:
                    self._open_at = max(self._open_at, self._loop.time() + wait)
                if await self._is_stopped_after(wait):
                    return Answer(number=number, is_undone=True)
            else:
                return Answer(number=number, value=value, attempts=attempts + 1)

    async def _is_stopped_after(self, seconds: float) -> bool:
        """Wait; return True at once if no further call is to be made."""
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except (TimeoutError, asyncio.TimeoutError):
            return bool(self._stopping.is_set())
        return True

    async def _call(self, row: dict[str, Any]) -> Any:  # noqa: ANN401 - the user's own value.
        timeout_s = self._transform.timeout_s
        if timeout_s is None:
            return await self._once(row)
        try:
            return await asyncio.wait_for(self._once(row), timeout_s)
        except (TimeoutError, asyncio.TimeoutError) as error:
            if str(error):
                raise
            raise TimeoutError(f"the call took longer than {timeout_s:g} s") from error

    async def _once(self, row: dict[str, Any]) -> Any:  # noqa: ANN401 - the user's own value.
        with _no_exit():
            value = await (self._function(row) if self._is_async else self._in_thread(row))
            # A plain function may return a coroutine, as a lambda around one does.
            return await value if inspect.isawaitable(value) else value

    def _in_thread(self, row: dict[str, Any]) -> asyncio.Future[Any]:
        """Call a plain function.

        Raises:
            CallsStuckError: Too many threads do not end.
        """
        if self._threads >= 2 * self._transform.concurrency:
            raise CallsStuckError(
                f"{self._threads} calls are running or past their timeout, and a plain function "
                "cannot be cancelled: set a timeout in its client, or use async def"
            )
        outcome: asyncio.Future[Any] = self._loop.create_future()
        self._threads += 1

        def end(settle: Callable[[Any], None], result: object) -> None:
            self._threads -= 1
            if not outcome.done():
                settle(result)

        def work() -> None:
            try:
                settle, result = outcome.set_result, self._function(row)
            except BaseException as error:  # noqa: BLE001 - it must reach the row, not the thread.
                settle, result = outcome.set_exception, _plain(error)
            self._loop.call_soon_threadsafe(end, settle, result)

        threading.Thread(target=work, name="holdfast-call", daemon=True).start()
        return outcome


@contextlib.contextmanager
def _no_exit() -> Iterator[None]:
    """Keep user code from ending the loop, and with it every other row's call.

    Raises:
        RuntimeError: The user's code tried to end the process.
    """
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the call raised {error!r}") from error


def _not_built(row: dict[str, Any]) -> None:
    raise NotImplementedError


def _plain(error: BaseException) -> Exception:
    """Return an error that a future can carry."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    plain = RuntimeError(f"the call raised {error!r}")
    plain.__cause__ = error
    return plain


def _is_async(function: RowFunction) -> bool:
    # For a callable object, its method decides.
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - the method itself is looked at.
    )
