"""The chunk buffer: whole batches only, with bounded memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from holdfast.ledger.row_files import read_chunk
from holdfast.model.work import Chunk
from holdfast.worker import checkpoints
from holdfast.worker.checkpoints import ChunkBuffer
from tests.fakes.task_ledgers import ManualClock, WatchedStorage

URI = "mem://store/tasks/0000.chunk"
EVERY_S = 30.0
KEPT_MAX, WORTH_A_CUT = 1 << 16, 1 << 20
SMALL, LARGE = 100, 1 << 12  # Rows of eight bytes: two large batches exceed the bound.


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the bounds small, so that a test needs few rows."""
    monkeypatch.setattr(checkpoints, "_KEPT_BYTES_MAX", KEPT_MAX)
    monkeypatch.setattr(checkpoints, "_WORTH_A_CUT_BYTES", WORTH_A_CUT)


@pytest.fixture
def storage() -> WatchedStorage:
    """Return an empty store."""
    return WatchedStorage()


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock."""
    return ManualClock()


@pytest.fixture
def buffer(storage: WatchedStorage, clock: ManualClock) -> ChunkBuffer:
    """Return a buffer that has begun its first chunk."""
    begun = ChunkBuffer(storage, EVERY_S, clock)
    begun.begin(URI)
    return begun


def numbers(first: int, count: int = SMALL) -> pa.RecordBatch:
    """Return a batch of consecutive numbers in memory of its own."""
    return pa.RecordBatch.from_arrays(
        [pa.array(np.arange(first, first + count)).cast(pa.uint64())], names=["id"]
    )


def read(storage: WatchedStorage, chunk: Chunk | None, uri: str = URI) -> list[int]:
    """Return the numbers in a chunk."""
    assert chunk is not None
    return [i for batch in read_chunk(storage, uri, chunk) for i in batch["id"].to_pylist()]


def slowly(buffer: ChunkBuffer, clock: ManualClock, batches: int) -> None:
    """Keep large batches that take ten seconds each."""
    for number in range(batches):
        clock.now_s += 10
        buffer.hold(numbers(number * LARGE, LARGE))
        buffer.keep()


def test_kept_rows_are_in_the_chunk_in_their_order(
    storage: WatchedStorage, buffer: ChunkBuffer
) -> None:
    """A batch may return its output in many pieces."""
    buffer.hold(numbers(0))
    buffer.hold(numbers(SMALL))
    buffer.keep()
    buffer.hold(numbers(2 * SMALL))
    buffer.keep()
    assert read(storage, buffer.write()) == list(range(3 * SMALL))


def test_rows_of_a_failed_batch_are_not_in_the_chunk(
    storage: WatchedStorage, buffer: ChunkBuffer
) -> None:
    """A record covers whole batches: half a batch would be written twice after the next pass."""
    buffer.hold(numbers(0))
    buffer.keep()
    buffer.hold(numbers(SMALL))
    buffer.drop_held()
    buffer.hold(numbers(5, 2))
    buffer.keep()
    assert read(storage, buffer.write()) == [*range(SMALL), 5, 6]


def test_rows_that_are_only_held_are_not_in_the_chunk(
    storage: WatchedStorage, buffer: ChunkBuffer
) -> None:
    """Holding is not keeping."""
    buffer.hold(numbers(0))
    buffer.keep()
    buffer.hold(numbers(SMALL))
    assert read(storage, buffer.write()) == list(range(SMALL))


def test_rows_of_a_failed_batch_are_not_in_a_streamed_chunk(
    storage: WatchedStorage, buffer: ChunkBuffer, clock: ManualClock
) -> None:
    """Only what was streamed before the failing batch counts."""
    slowly(buffer, clock, 4)
    buffer.hold(numbers(4 * LARGE))
    buffer.drop_held()
    assert read(storage, buffer.write()) == list(range(4 * LARGE))


def test_without_rows_there_is_no_chunk(storage: WatchedStorage, buffer: ChunkBuffer) -> None:
    """This holds for batches without output and for no batches."""
    buffer.hold(numbers(0, 0))
    buffer.keep()
    assert buffer.write() is None
    assert storage.sinks == []


def test_below_the_bound_nothing_is_sent_before_it_is_due(
    storage: WatchedStorage, buffer: ChunkBuffer
) -> None:
    """A cut that comes first makes the chunk unnecessary, so it must have cost nothing."""
    buffer.hold(numbers(0))
    buffer.keep()
    assert storage.sinks == []


def test_the_next_chunk_starts_empty(storage: WatchedStorage, buffer: ChunkBuffer) -> None:
    """Rows that are durable or in a closed file are no longer kept."""
    other = "mem://store/tasks/0001.chunk"
    buffer.hold(numbers(0))
    buffer.keep()
    buffer.hold(numbers(SMALL))
    buffer.begin(other)
    buffer.hold(numbers(7, 3))
    buffer.keep()
    assert read(storage, buffer.write(), other) == [7, 8, 9]
    assert list(storage.objects) == [other]


def test_beyond_the_bound_slow_rows_are_streamed(
    storage: WatchedStorage, buffer: ChunkBuffer, clock: ManualClock
) -> None:
    """They are expensive, so none is let go; what waits in memory stays bounded."""
    base, peak = pa.total_allocated_bytes(), 0
    for number in range(40):
        clock.now_s += 10
        buffer.hold(numbers(number * LARGE, LARGE))
        buffer.keep()
        peak = max(peak, pa.total_allocated_bytes() - base)
    assert peak <= KEPT_MAX + 2 * LARGE * 8
    assert not buffer.let_go
    assert storage.objects == {}
    assert read(storage, buffer.write()) == list(range(40 * LARGE))


def test_beyond_the_bound_fast_rows_are_let_go(
    storage: WatchedStorage, buffer: ChunkBuffer, clock: ManualClock
) -> None:
    """By the next checkpoint they fill a table file of a good size: a cut is better."""
    base, peak = pa.total_allocated_bytes(), 0
    for number in range(40):
        clock.now_s += 0.1
        buffer.hold(numbers(number * LARGE, LARGE))
        buffer.keep()
        peak = max(peak, pa.total_allocated_bytes() - base)
    assert peak <= KEPT_MAX + 2 * LARGE * 8
    assert buffer.let_go
    assert storage.sinks == []
    assert buffer.write() is None


def test_the_rate_decides_whether_a_cut_is_worth_it(
    buffer: ChunkBuffer, clock: ManualClock
) -> None:
    """Three batches in this many seconds just reach the size of a good file, or just miss it."""
    seconds = 3 * LARGE * 8 * EVERY_S / WORTH_A_CUT
    for number, moment in enumerate([0.0, 0.0, seconds]):
        clock.now_s += moment
        buffer.hold(numbers(number, LARGE))
        buffer.keep()
    assert buffer.let_go
    buffer.begin(URI)
    for number, moment in enumerate([0.0, 0.0, seconds + 0.01]):
        clock.now_s += moment
        buffer.hold(numbers(number, LARGE))
        buffer.keep()
    assert not buffer.let_go


def test_a_stream_that_was_begun_goes_on_however_fast_rows_arrive(
    storage: WatchedStorage, buffer: ChunkBuffer, clock: ManualClock
) -> None:
    """Rows that are already streaming are not discarded because the next ones are quick."""
    slowly(buffer, clock, 4)
    for number in range(4, 50):
        buffer.hold(numbers(number * LARGE, LARGE))
        buffer.keep()
    assert read(storage, buffer.write()) == list(range(50 * LARGE))


def test_a_batch_larger_than_the_bound_is_let_go(
    storage: WatchedStorage, buffer: ChunkBuffer, clock: ManualClock
) -> None:
    """A generator's output may not fit into memory, so its rows go only to files."""
    slowly(buffer, clock, 4)
    base, peak = pa.total_allocated_bytes(), 0
    for number in range(20):
        buffer.hold(numbers(number, LARGE))
        peak = max(peak, pa.total_allocated_bytes() - base)
    assert peak <= KEPT_MAX + LARGE * 8
    buffer.keep()
    assert buffer.let_go
    assert buffer.write() is None
    assert [sink.end for sink in storage.sinks] == ["abandoned"]


def test_what_was_let_go_is_forgotten_at_the_next_record(
    storage: WatchedStorage, buffer: ChunkBuffer, clock: ManualClock
) -> None:
    """After the cut a new chunk may be kept, depending on the rate then."""
    for number in range(4):
        buffer.hold(numbers(number, LARGE))
        buffer.keep()
    assert buffer.let_go
    buffer.begin(URI)
    slowly(buffer, clock, 4)
    assert read(storage, buffer.write()) == list(range(4 * LARGE))


def test_a_stream_that_is_not_needed_is_abandoned(
    storage: WatchedStorage, buffer: ChunkBuffer, clock: ManualClock
) -> None:
    """A cut came first: the chunk never becomes an object."""
    slowly(buffer, clock, 4)
    buffer.begin("mem://store/tasks/0001.chunk")
    assert storage.sinks[0].tell() > 0
    assert (storage.sinks[0].end, storage.objects) == ("abandoned", {})


def test_without_checkpoints_nothing_is_kept(storage: WatchedStorage, clock: ManualClock) -> None:
    """Only closed table files count."""
    buffer = ChunkBuffer(storage, None, clock)
    buffer.begin(URI)
    base = pa.total_allocated_bytes()
    for number in range(10):
        buffer.hold(numbers(number, LARGE))
        buffer.keep()
    assert pa.total_allocated_bytes() - base < LARGE * 8
    assert buffer.let_go
    assert buffer.write() is None
