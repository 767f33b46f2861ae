"""The IO runtime: storage traffic on its own threads, bounded in bytes, and counted.

There is one per process, created on first use: PySpark forks its workers, and threads and locks do
not survive a fork. Encoding and decoding stay in the caller's thread.

Work comes in bursts: rows pass quickly until a row group is full, and then it is encoded. A reader
that fetches several items meanwhile keeps the store busy, and never waits for the next one.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

from holdfast.model.limits import DEFAULT_LIMITS


# ---- How many bytes may be in flight at once: a slow store slows the producer down
class Budget:
    """Bytes in flight, bounded over everything in this process that shares the budget.

    Transfers in flight always end, so every waiting thread gets its turn. Bytes that cannot be
    sent yet, because they do not make a part, reduce the room but never use it up.
    """

    def __init__(self, limit_bytes: int) -> None:
        """Start with nothing in flight."""
        self._limit = limit_bytes
        # A reentrant lock: the garbage collector may free a part while this thread holds it.
        self._changed = threading.Condition()
        self._process_id = os.getpid()
        self._in_flight = 0
        self._kept = 0
        self._most = 0

    def bound(self, limit_bytes: int) -> None:
        """Set how many bytes may be in flight from now on."""
        with self._changed:
            self._limit = limit_bytes
            self._changed.notify_all()

    @property
    def in_flight_bytes(self) -> int:
        """How many bytes are in flight now."""
        return self._in_flight

    @property
    def most_bytes(self) -> int:
        """The most bytes ever held at once: in flight, and kept for a part."""
        return self._most

    def take(self, size_bytes: int, *, kept_bytes: int = 0) -> None:
        """Wait until there is room; a transfer larger than the whole budget runs alone.

        Args:
            size_bytes: How many bytes are about to be transferred.
            kept_bytes: How many of them were kept until now.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._has_room(size_bytes - kept_bytes))
            self._kept -= kept_bytes
            self._in_flight += size_bytes
            self._most = max(self._most, self._in_flight + self._kept)

    def give_back(self, size_bytes: int) -> None:
        """Return bytes that have arrived, or were abandoned, to the budget."""
        # A forked child frees its copy of the parent's parts, whose lock may be held for ever.
        if os.getpid() != self._process_id:
            return
        with self._changed:
            self._in_flight -= size_bytes
            self._changed.notify_all()

    def keep(self, change_bytes: int) -> None:
        """Change how many bytes wait to make a part; a negative number reduces it."""
        if os.getpid() != self._process_id:
            return
        with self._changed:
            self._kept += change_bytes
            self._most = max(self._most, self._in_flight + self._kept)
            if change_bytes < 0:
                self._changed.notify_all()

    def _has_room(self, more_bytes: int) -> bool:
        # Kept bytes need not go away: on their own they must not block a transfer.
        return not self._in_flight or self._in_flight + self._kept + more_bytes <= self._limit


# ---- The IO runtime: storage traffic on its own threads, bounded in bytes, and counted

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# They wait far more than they work: at 20 ms a request, 64 make 3,200 requests a second.
_THREADS = 64
# For tests and benchmarks only: `inline` runs everything in the caller's thread, one at a time.
_MODE_VARIABLE = "HOLDFAST_IO"


@dataclass(frozen=True, slots=True, kw_only=True)
class IoCounters:
    """A process's use of its stores so far."""

    bytes_read: int = 0
    bytes_written: int = 0
    # Calls to the store's client, which splits some of them and retries those that failed.
    requests: int = 0
    # Summed over all calls, many of which run at once: it may exceed the elapsed time.
    busy_s: float = 0.0
    # How long computing threads waited for storage.
    waited_s: float = 0.0

    def since(self, earlier: IoCounters) -> IoCounters:
        """Return the difference from an earlier reading."""
        return IoCounters(
            **{
                field.name: getattr(self, field.name) - getattr(earlier, field.name)
                for field in fields(self)
            }
        )


class IoRuntime:
    """The IO threads of one process; get it from `io_runtime`."""

    def __init__(self, *, is_inline: bool = False) -> None:
        """Set up the runtime; no thread starts yet.

        Args:
            is_inline: Whether to run everything in the caller's thread. For tests only.
        """
        self.is_inline = is_inline
        # Two budgets: a reader must not wait for writes that only its own rows would trigger.
        self.reads = Budget(DEFAULT_LIMITS.in_flight_bytes)
        self.uploads = Budget(DEFAULT_LIMITS.in_flight_bytes)
        self._here = threading.local()
        self._pool = ThreadPoolExecutor(
            _THREADS, thread_name_prefix="holdfast-io", initializer=self._enter_thread
        )
        # Reentrant: the garbage collector may free a part, which counts, in this thread.
        self._counting = threading.RLock()
        self._counters = IoCounters()

    @property
    def counters(self) -> IoCounters:
        """The counters so far."""
        return self._counters

    @contextlib.contextmanager
    def bounded(self, in_flight_bytes: int) -> Iterator[None]:
        """Allow `in_flight_bytes` in flight in each direction while a task runs."""
        self._bound(in_flight_bytes)
        try:
            yield
        finally:  # Spark may give the process to a task of another job next.
            self._bound(DEFAULT_LIMITS.in_flight_bytes)

    def read(self, action: Callable[[], _Result], size: int) -> Future[_Result]:
        """Run a read on an IO thread; the future holds what it returns or raises.

        Blocks while the budget has no room. Bytes count until they have arrived: the reader must
        bound how many finished reads wait for it.

        Args:
            action: The read.
            size: How many bytes it will return.
        """
        future: _Awaited[_Result] = _Awaited(self)
        if self._runs_here():
            _fulfil(future, action)
            return future
        self.wait_for(lambda: self.reads.take(size))

        def run() -> None:
            try:
                _fulfil(future, action)
            finally:
                self.reads.give_back(size)

        self._pool.submit(run)
        return future

    def each(self, action: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        """Run an action on many items at once, and return its results in the items' order.

        Raises:
            Exception: What the action raised for the first item that failed; all have ended.
        """
        asked = list(items)
        # If an IO thread waited for others, they could deadlock.
        if self._runs_here() or len(asked) <= 1:
            return [action(item) for item in asked]
        # A future for each item would cost more memory than everything else in a large commit.
        numbers = iter(range(len(asked)))
        results: dict[int, _Result] = {}
        failed: dict[int, BaseException] = {}

        def some() -> None:
            for number in numbers:
                try:
                    results[number] = action(asked[number])
                except BaseException as error:  # noqa: BLE001, PERF203 - it is the caller's.
                    failed[number] = error

        threads = [self._pool.submit(some) for _ in range(min(_THREADS, len(asked)))]
        self.wait_for(lambda: wait(threads))
        if failed:
            raise failed[min(failed)]
        return [results[number] for number in range(len(asked))]

    def submit(self, action: Callable[[], None]) -> None:
        """Run an action on an IO thread; it must not raise."""
        if self._runs_here():
            action()
        else:
            self._pool.submit(action)

    def request(self, action: Callable[[], _Result], *, written: int = 0) -> _Result:
        """Run one call to a store in this thread, and count it.

        Args:
            action: The call; bytes that it returns count as read.
            written: How many bytes it sends.
        """
        started = time.perf_counter()
        read = 0
        try:
            result = action()
            read = len(result) if isinstance(result, bytes | memoryview) else 0
        finally:
            took = time.perf_counter() - started
            self.count(
                requests=1,
                bytes_read=read,
                bytes_written=written,
                busy_s=took,
                waited_s=0.0 if self._is_io_thread() else took,
            )
        return result

    def wait_for(self, action: Callable[[], _Result]) -> _Result:
        """Run an action that waits for storage in this thread, and count how long it takes."""
        started = time.perf_counter()
        try:
            return action()
        finally:
            if not self._is_io_thread():
                self.count(waited_s=time.perf_counter() - started)

    def count(
        self,
        *,
        requests: int = 0,
        bytes_read: int = 0,
        bytes_written: int = 0,
        busy_s: float = 0.0,
        waited_s: float = 0.0,
    ) -> None:
        """Add to the counters."""
        with self._counting:
            now = self._counters
            self._counters = IoCounters(
                bytes_read=now.bytes_read + bytes_read,
                bytes_written=now.bytes_written + bytes_written,
                requests=now.requests + requests,
                busy_s=now.busy_s + busy_s,
                waited_s=now.waited_s + waited_s,
            )

    def _bound(self, in_flight_bytes: int) -> None:
        self.reads.bound(in_flight_bytes)
        self.uploads.bound(in_flight_bytes)

    def _enter_thread(self) -> None:
        self._here.is_io = True

    def _is_io_thread(self) -> bool:
        return getattr(self._here, "is_io", False)

    def _runs_here(self) -> bool:
        return self.is_inline or self._is_io_thread()


class Lane:
    """Steps that run on IO threads one at a time, in the order they were added."""

    def __init__(self, runtime: IoRuntime) -> None:
        """Start empty."""
        self._runtime = runtime
        self._lock = threading.Lock()
        self._steps: deque[Callable[[], None]] = deque()
        self._is_running = False

    def add(self, step: Callable[[], None]) -> None:
        """Run a step after those before it; it must not raise."""
        with self._lock:
            self._steps.append(step)
            if self._is_running:
                return
            self._is_running = True
        self._runtime.submit(self._run)

    def clear(self) -> None:
        """Drop the steps that have not begun."""
        with self._lock:
            self._steps.clear()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._steps:
                    self._is_running = False
                    return
                step = self._steps.popleft()
            step()


class _Awaited(Future[_Result], Generic[_Result]):
    """A future that counts how long callers wait for its result."""

    def __init__(self, runtime: IoRuntime) -> None:
        super().__init__()
        self._runtime = runtime

    def result(self, timeout: float | None = None) -> _Result:
        if self.done():
            return super().result()
        return self._runtime.wait_for(lambda: super(_Awaited, self).result(timeout))


def _fulfil(future: Future[_Result], action: Callable[[], _Result]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(action())
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's.
        future.set_exception(error)


# By process id. A child keeps its parent's entry: freeing it would touch the parent's threads.
_runtimes: dict[int, IoRuntime] = {}


def io_runtime() -> IoRuntime:
    """Return this process's runtime; a forked child gets its own."""
    found = _runtimes.get(os.getpid())
    if found is None:
        new = IoRuntime(is_inline=os.environ.get(_MODE_VARIABLE) == "inline")
        found = _runtimes.setdefault(os.getpid(), new)  # If two threads race, the first wins.
    return found


# ---- Reading ahead: the next items are fetched while the current one is processed

_Answer = TypeVar("_Answer")

# How many bytes are fetched beyond the current item.
AHEAD_BYTES = 32 << 20


def read_ahead(
    items: Iterable[_Item],
    *,
    size_of: Callable[[_Item], int],
    ask: Callable[[_Item], _Answer],
    at_least: int,
) -> Iterator[tuple[_Item, _Answer]]:
    """Yield each item with the result of `ask`; the items after it are already asked for.

    Args:
        items: The items to fetch, in order.
        size_of: Returns how many bytes an item has.
        ask: Begins to fetch an item.
        at_least: How many items to ask for beyond the current one, however large they are.
    """
    ahead: deque[tuple[_Item, _Answer]] = deque()
    # The bytes of all items after the first one, which is current.
    ahead_bytes = 0
    for item in items:
        size = size_of(item)
        while len(ahead) > at_least and ahead_bytes + size > AHEAD_BYTES:
            yield ahead.popleft()
            ahead_bytes -= size_of(ahead[0][0]) if ahead else 0
        ahead_bytes += size if ahead else 0
        ahead.append((item, ask(item)))
    while ahead:
        yield ahead.popleft()
