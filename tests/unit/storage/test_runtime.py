"""The IO runtime: its own threads, bounded bytes, one per process, counted."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from holdfast.storage.objects import ObjectStorage
from holdfast.storage.runtime import (
    _THREADS,
    Budget,
    IoCounters,
    IoRuntime,
    Lane,
    io_runtime,
)

MIB = 1024 * 1024
SOON_S = 0.1
LATE_S = 20.0


def begun(action: Callable[[], object]) -> threading.Thread:
    """Run an action in its own thread."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


def test_a_read_runs_in_another_thread_than_its_caller() -> None:
    """The caller continues, and gets the result or the error when it asks for it."""
    runtime, gate = IoRuntime(), threading.Event()

    def slow() -> str:
        gate.wait(LATE_S)
        return threading.current_thread().name

    future = runtime.read(slow, 1)
    assert not future.done()
    gate.set()
    assert future.result(LATE_S).startswith("holdfast-io")
    failed = runtime.read(lambda: int("x"), 1)
    with pytest.raises(ValueError, match="'x'"):
        failed.result(LATE_S)


def test_a_caller_waits_while_too_many_bytes_are_in_flight() -> None:
    """A slow store slows the reader down; unread bytes do not pile up."""
    runtime, gate = IoRuntime(), threading.Event()
    for _ in range(2):
        runtime.read(lambda: gate.wait(LATE_S), 30 * MIB)
    third = begun(lambda: runtime.read(lambda: None, 30 * MIB))
    third.join(SOON_S)
    assert third.is_alive()
    gate.set()
    third.join(LATE_S)
    assert not third.is_alive()
    assert runtime.reads.most_bytes == 60 * MIB
    assert runtime.counters.waited_s >= SOON_S / 2


def test_a_request_larger_than_the_budget_goes_alone() -> None:
    """It waits until nothing is in flight, and then for nothing else."""
    budget = Budget(10)
    budget.take(4)
    large = begun(lambda: budget.take(100))
    large.join(SOON_S)
    assert large.is_alive()
    budget.give_back(4)
    large.join(LATE_S)
    assert budget.in_flight_bytes == 100


def test_kept_bytes_leave_less_room_but_never_none() -> None:
    """Sixteen parts that are not full yet must not block each other for ever."""
    budget = Budget(10)
    budget.keep(50)
    budget.take(8, kept_bytes=8)
    second = begun(lambda: budget.take(1))
    second.join(SOON_S)
    assert second.is_alive()
    budget.give_back(8)
    second.join(LATE_S)
    assert not second.is_alive()


def test_a_cancelled_read_frees_its_budget() -> None:
    """It never runs, and the bytes that it did not read block no other caller."""
    runtime, gate, ran = IoRuntime(), threading.Event(), threading.Event()
    busy = [runtime.read(lambda: gate.wait(LATE_S), 1) for _ in range(_THREADS)]
    waiting = runtime.read(ran.set, 1)
    assert waiting.cancel()
    gate.set()
    for future in busy:
        future.result(LATE_S)
    for _ in range(100):
        if not runtime.reads.in_flight_bytes:
            break
        time.sleep(0.02)
    assert runtime.reads.in_flight_bytes == 0
    assert not ran.is_set()


def test_many_items_keep_their_order_and_the_first_error_is_raised() -> None:
    """All have ended by then: nothing runs on after the call."""
    runtime, ended = IoRuntime(), []
    assert runtime.each(lambda n: n * n, range(100)) == [n * n for n in range(100)]

    def one(number: int) -> None:
        time.sleep(0.01 * number)
        ended.append(number)
        if number in (1, 3):
            raise ValueError(number)

    with pytest.raises(ValueError, match="1"):
        runtime.each(one, range(5))
    assert sorted(ended) == list(range(5))


def test_an_item_costs_little_memory_however_many_there_are() -> None:
    """A commit asks for the size of every staged file, and there may be a million."""
    runtime, items = IoRuntime(), 20_000
    runtime.each(lambda n: n, range(100))
    tracemalloc.start()
    try:
        runtime.each(lambda _: None, range(items))
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes / items < 300


def test_an_io_thread_that_starts_more_reads_does_not_wait_for_itself() -> None:
    """Nested reads: with as many of them as threads, no thread would be left."""
    runtime = IoRuntime()

    def nested(_: int) -> int:
        return (
            sum(runtime.each(lambda n: n, range(3))) + runtime.read(lambda: 1, 100 * MIB).result()
        )

    assert runtime.each(nested, range(64)) == [4] * 64


def test_the_steps_of_a_lane_run_one_after_the_other() -> None:
    """Parts of one object keep their order, whatever the threads do."""
    lane, done = Lane(IoRuntime()), threading.Event()
    seen: list[int] = []

    def note(number: int) -> None:
        time.sleep(0.001)
        seen.append(number)

    for number in range(50):
        lane.add(partial(note, number))
    lane.add(done.set)
    assert done.wait(LATE_S)
    assert seen == list(range(50))


def test_counters_show_the_requests_to_storage(tmp_path: Path) -> None:
    """Bytes both ways and calls; a task's share is the difference of two readings."""
    storage, before = ObjectStorage(), io_runtime().counters
    storage.put(f"file://{tmp_path}/x", b"12345")
    storage.get(f"file://{tmp_path}/x")
    storage.get_range(f"file://{tmp_path}/x", 1, 3)
    sink = storage.open_sink(f"file://{tmp_path}/y")
    sink.write(b"0" * 9 * MIB)
    sink.close()
    counted = io_runtime().counters.since(before)
    assert counted.bytes_read == 7
    assert counted.bytes_written == 5 + 9 * MIB
    assert counted.requests >= 5
    assert counted.busy_s > 0
    assert counted.waited_s > 0
    assert IoCounters() == IoCounters().since(IoCounters())


def test_nothing_is_lost_when_many_threads_count() -> None:
    """The sum is exact."""
    runtime = IoRuntime()

    def count() -> None:
        for _ in range(500):
            runtime.count(requests=1)

    threads = [begun(count) for _ in range(8)]
    for thread in threads:
        thread.join()
    assert runtime.counters.requests == 4000


def test_inline_does_everything_in_the_callers_thread() -> None:
    """For the benchmark that shows what the runtime gains."""
    runtime, here = IoRuntime(is_inline=True), threading.current_thread()
    assert runtime.read(threading.current_thread, 1).result() is here
    assert runtime.each(lambda _: threading.current_thread(), range(3)) == [here] * 3


FORK = """
import os, sys, threading
from holdfast.storage.runtime import io_runtime
gate = threading.Event()
ours = io_runtime()
ours.read(lambda: gate.wait(60), 64 << 20)       # A thread is busy, the budget is used up.
ours.reads._changed.acquire()                    # A lock is held while we fork.
child = os.fork()
if not child:
    other = io_runtime()
    assert other is not ours and other is io_runtime()
    assert other.read(lambda: 7, 64 << 20).result(20) == 7
    ours.reads.give_back(1)                      # As when a part of the parent's is freed.
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
ours.reads._changed.release()
gate.set()
assert io_runtime() is ours
"""


def test_a_forked_child_has_its_own_runtime() -> None:
    """Threads do not survive a fork, and a held lock stays locked."""
    command = [sys.executable, "-W", "ignore", "-c", FORK]
    subprocess.run(command, check=True, timeout=60)
