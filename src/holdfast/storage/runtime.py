"""The IO runtime: storage traffic on its own threads, bounded in bytes, and counted.

There is one per process, made when it is first used: PySpark forks its workers, and threads and
locks do not survive a fork. Encoding and decoding stay with the caller.

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


# ---- How many bytes may be on their way at once: a slow store slows the producer down
class Budget:
    """Bytes on their way, bounded over everything in this process that shares it.

    What is on its way ends by itself, so whoever waits here is let in at last. Bytes that cannot
    be sent yet, because they do not make a part, leave less room but never none.
    """

    def __init__(self, limit_bytes: int) -> None:
        """Start with nothing on its way."""
        self._limit = limit_bytes
        # Its lock can be taken twice: the collector may free a part while this thread holds it.
        self._changed = threading.Condition()
        self._process_id = os.getpid()
        self._in_flight = 0
        self._kept = 0
        self._most = 0

    def bound(self, limit_bytes: int) -> None:
        """Say how much may be on its way from now on."""
        with self._changed:
            self._limit = limit_bytes
            self._changed.notify_all()

    @property
    def in_flight_bytes(self) -> int:
        """How much is on its way now."""
        return self._in_flight

    @property
    def most_bytes(self) -> int:
        """The most that was ever held at once: on its way, and kept for a part."""
        return self._most

    def take(self, size_bytes: int, *, kept_bytes: int = 0) -> None:
        """Wait until there is room. What is larger than the whole budget goes alone.

        Args:
            size_bytes: How much is about to go.
            kept_bytes: How much of it was kept until now.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._has_room(size_bytes - kept_bytes))
            self._kept -= kept_bytes
            self._in_flight += size_bytes
            self._most = max(self._most, self._in_flight + self._kept)

    def give_back(self, size_bytes: int) -> None:
        """Say that bytes have arrived, or are given up."""
        # A forked child frees its copy of the parent's parts, whose lock may be held for ever.
        if os.getpid() != self._process_id:
            return
        with self._changed:
            self._in_flight -= size_bytes
            self._changed.notify_all()

    def keep(self, change_bytes: int) -> None:
        """Say how many more bytes, or fewer, wait to make a part."""
        if os.getpid() != self._process_id:
            return
        with self._changed:
            self._kept += change_bytes
            self._most = max(self._most, self._in_flight + self._kept)
            if change_bytes < 0:
                self._changed.notify_all()

    def _has_room(self, more_bytes: int) -> bool:
        # The kept bytes do not end by themselves: alone they must not stop anybody.
        return not self._in_flight or self._in_flight + self._kept + more_bytes <= self._limit


# ---- The IO runtime: storage traffic on threads of its own, bounded in bytes, and counted

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_THREADS = 32
# For tests and benchmarks only: `inline` does everything in the caller's thread, one by one.
_MODE_VARIABLE = "HOLDFAST_IO"


@dataclass(frozen=True, slots=True, kw_only=True)
class IoCounters:
    """What a process has asked of its stores so far."""

    bytes_read: int = 0
    bytes_written: int = 0
    # Calls to the store's client, which splits some of them and repeats those that failed.
    requests: int = 0
    # Summed over all calls, many of which run at once: it may be more than the time that passed.
    busy_s: float = 0.0
    # How long threads that compute stood still for storage.
    waited_s: float = 0.0

    def since(self, earlier: IoCounters) -> IoCounters:
        """Return what was added since an earlier reading."""
        return IoCounters(
            **{
                one.name: getattr(self, one.name) - getattr(earlier, one.name)
                for one in fields(self)
            }
        )


class IoRuntime:
    """The IO threads of one process. Get it from `io_runtime`."""

    def __init__(self, *, is_inline: bool = False) -> None:
        """Start no thread yet.

        Args:
            is_inline: Whether to do everything in the caller's thread. For tests only.
        """
        self.is_inline = is_inline
        # Apart: a reader must not wait for the writes that only its own rows would bring forth.
        self.reads = Budget(DEFAULT_LIMITS.in_flight_bytes)
        self.uploads = Budget(DEFAULT_LIMITS.in_flight_bytes)
        self._here = threading.local()
        self._pool = ThreadPoolExecutor(
            _THREADS, thread_name_prefix="holdfast-io", initializer=self._enter_thread
        )
        # It can be taken twice: the collector may free a part, which counts, in this thread.
        self._counting = threading.RLock()
        self._counters = IoCounters()

    @property
    def counters(self) -> IoCounters:
        """What was asked of the stores so far."""
        return self._counters

    @contextlib.contextmanager
    def bounded(self, in_flight_bytes: int) -> Iterator[None]:
        """Let so many bytes be on their way, each way, while a task is at work."""
        self._bound(in_flight_bytes)
        try:
            yield
        finally:  # Spark gives the process to a task of another job next.
            self._bound(DEFAULT_LIMITS.in_flight_bytes)

    def read(self, action: Callable[[], _Result], size: int) -> Future[_Result]:
        """Run a read on an IO thread; what it returns or raises is in the future.

        Blocks while as many bytes are on their way as may be. They count until they have
        arrived: how many finished reads wait for a reader is for the reader to bound.

        Args:
            action: What to run.
            size: How many bytes it will bring.
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
        """Run an action on many items at once, and return what it gave, in their order.

        Raises:
            Exception: What the action raised for the first item that failed; all have ended.
        """
        asked = list(items)
        # An IO thread that waited for others could be what they wait for.
        if self._runs_here() or len(asked) <= 1:
            return [action(item) for item in asked]
        # A future for each item would cost more memory than all else that a large commit needs.
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
        """Run an action that raises nothing on an IO thread."""
        if self._runs_here():
            action()
        else:
            self._pool.submit(action)

    def request(self, action: Callable[[], _Result], *, written: int = 0) -> _Result:
        """Run one call to a store in this thread, and count it.

        Args:
            action: The call. Bytes that it returns are counted as read.
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
        """Run what waits for storage in this thread, and count how long."""
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
    """Steps that run on IO threads one after the other, in the order they came."""

    def __init__(self, runtime: IoRuntime) -> None:
        """Start empty."""
        self._runtime = runtime
        self._lock = threading.Lock()
        self._steps: deque[Callable[[], None]] = deque()
        self._is_running = False

    def add(self, step: Callable[[], None]) -> None:
        """Run a step, which raises nothing, after those before it."""
        with self._lock:
            self._steps.append(step)
            if self._is_running:
                return
            self._is_running = True
        self._runtime.submit(self._run)

    def clear(self) -> None:
        """Forget the steps that have not begun."""
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
    """A future that counts how long its result was waited for."""

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


# By process id. A child keeps the entry of its parent: to free it would touch its threads.
_runtimes: dict[int, IoRuntime] = {}


def io_runtime() -> IoRuntime:
    """Return this process's runtime; a forked child gets one of its own."""
    found = _runtimes.get(os.getpid())
    if found is None:
        new = IoRuntime(is_inline=os.environ.get(_MODE_VARIABLE) == "inline")
        found = _runtimes.setdefault(os.getpid(), new)  # One of two threads is first.
    return found


# ---- Reading ahead: what comes next is fetched while the current item is at work

_Answer = TypeVar("_Answer")

# What is fetched beyond the current item.
AHEAD_BYTES = 32 << 20


def read_ahead(
    items: Iterable[_Item],
    *,
    size_of: Callable[[_Item], int],
    ask: Callable[[_Item], _Answer],
    at_least: int,
) -> Iterator[tuple[_Item, _Answer]]:
    """Yield each item with what asking for it gave; those behind it are asked for already.

    Args:
        items: What to fetch, in order.
        size_of: How many bytes an item brings.
        ask: Begins to fetch one.
        at_least: How many items are asked for beyond the current one, however large they are.
    """
    ahead: deque[tuple[_Item, _Answer]] = deque()
    # Of the items behind the first one, which is current.
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
