"""Replay: the rows of waiting chunks are written to table files, each once, without computing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import pyarrow as pa
import pytest

from holdfast.errors import SchemaMismatchError, StoreUnavailableError
from holdfast.ledger.row_files import ChunkFile
from holdfast.model.coverage import Coverage
from holdfast.model.work import TaskRecord, Work
from holdfast.storage import runtime
from holdfast.storage.port import StorageError
from holdfast.storage.runtime import IoRuntime
from holdfast.worker.replay import ITEM_COLUMN, ReplayPlan, work_items
from holdfast.worker.reports import TaskReport
from tests.fakes.memory_storage import bit_flipped
from tests.fakes.task_ledgers import (
    ATTEMPT,
    PLACE,
    ListWriter,
    ListWriterSpec,
    WatchedStorage,
    job_ledger,
    logged,
    record,
    task_log,
)

TABLE = pa.schema([("id", pa.int64()), ("text", pa.string())])
JOB = "replay"


@pytest.fixture
def storage() -> WatchedStorage:
    """Return an empty store."""
    return WatchedStorage()


@pytest.fixture
def spec() -> ListWriterSpec:
    """Return a table to write to."""
    return ListWriterSpec(TABLE)


def waiting(storage: WatchedStorage, number: int, *ids: int) -> TaskRecord:
    """Write the chunk that a dead task left, in two batches, and return its record."""
    name = f"00000001/rows/{number:06d}/000000000001/0000"
    file = ChunkFile(storage, job_ledger(storage).layout.chunk(name), TABLE)
    rows = [{"id": i, "text": f"text {i}"} for i in ids]
    for part in (rows[:1], rows[1:]):
        file.write([pa.RecordBatch.from_pylist(part, schema=TABLE)])
    coverage = Coverage(rows=len(ids), low=1, high=1, keys_bytes=1)
    return TaskRecord(name=name, coverage=coverage, seconds=1.0, chunk=file.finish())


def replay(
    storage: WatchedStorage,
    spec: ListWriterSpec,
    *items: Sequence[TaskRecord],
    attempt: int = ATTEMPT,
) -> TaskReport:
    """Replay items of chunks in one task, as batches of one row each."""
    plan = ReplayPlan(writer=spec, ledger=job_ledger(storage, job=JOB), job_nonce="job")
    batches = []
    for item in items:
        (text,) = work_items(item, 1 << 40)
        batches.append(pa.RecordBatch.from_pydict({ITEM_COLUMN: [text]}))
    return plan.run(batches, place=PLACE, attempt=attempt)


def replayed(storage: WatchedStorage) -> list[TaskRecord]:
    """Return the records in the replay's log."""
    return logged(job_ledger(storage, job=JOB))


def test_rows_are_written_to_files_as_they_are_in_the_chunks(
    storage: WatchedStorage, spec: ListWriterSpec
) -> None:
    """One record names the files, and the records whose chunks are in them."""
    one, two = waiting(storage, 1, 1, 2, 3), waiting(storage, 2, 4, 5)
    report = replay(storage, spec, [one, two])
    (done,) = replayed(storage)
    assert spec.rows_in(done) == [{"id": i, "text": f"text {i}"} for i in (1, 2, 3, 4, 5)]
    assert (done.supersedes, done.end) == ((one.name, two.name), "complete")
    assert (done.coverage.rows, done.seconds, done.chunk) == (0, 0.0, None)
    assert (report.end, report.records, report.log) == ("complete", 1, done.log)
    work, refused = Work().plus([one, two, done])
    assert (refused, work.waiting, work.sums.rows) == ((), (), 5)


def test_a_task_takes_several_items_and_batches(
    storage: WatchedStorage, spec: ListWriterSpec
) -> None:
    """Spark may hand any number of items to one task."""
    records = [waiting(storage, number, number) for number in range(3)]
    replay(storage, spec, records[:1], records[1:])
    (done,) = replayed(storage)
    assert done.supersedes == tuple(chunk.name for chunk in records)
    assert [row["id"] for row in spec.rows_in(done)] == [0, 1, 2]


@pytest.mark.parametrize(("ahead_bytes", "begun"), [(1, [2, 3, 4, 4]), (1 << 20, [4, 4, 4, 4])])
def test_chunks_are_fetched_while_others_are_encoded(
    storage: WatchedStorage,
    spec: ListWriterSpec,
    monkeypatch: pytest.MonkeyPatch,
    ahead_bytes: int,
    begun: list[int],
) -> None:
    """As many are fetched as fit; a worker holds at most two large ones."""
    monkeypatch.setattr(runtime, "AHEAD_BYTES", ahead_bytes)
    asked: list[int] = []
    seen: list[int] = []
    read, write = IoRuntime.read, ListWriter.write

    def ask(runtime: IoRuntime, action: Callable[[], bytes], size: int) -> Future[bytes]:
        asked.append(size)
        return read(runtime, action, size)

    def watch(writer: ListWriter, rows: pa.RecordBatch) -> None:
        seen.append(len(asked))
        write(writer, rows)

    monkeypatch.setattr(IoRuntime, "read", ask)
    monkeypatch.setattr(ListWriter, "write", watch)
    replay(storage, spec, [waiting(storage, n, n, n + 10) for n in range(4)])
    assert seen[::2] == begun


def test_full_files_are_cut_between_chunks(storage: WatchedStorage) -> None:
    """Each record supersedes the chunks in its own files, and no others."""
    spec = ListWriterSpec(TABLE, full_rows=3)
    records = [waiting(storage, n, 10 * n, 10 * n + 1) for n in range(3)]
    report = replay(storage, spec, records)
    first, last = replayed(storage)
    assert (first.supersedes, first.end) == ((records[0].name, records[1].name), "")
    assert (last.supersedes, last.end) == ((records[2].name,), "complete")
    assert [row["id"] for row in spec.rows_in(first)] == [0, 1, 10, 11]
    assert [row["id"] for row in spec.rows_in(last)] == [20, 21]
    assert report.records == 2


def test_a_replay_whose_last_chunk_filled_its_files_is_complete_too(
    storage: WatchedStorage,
) -> None:
    """Otherwise a twin would wait for a log that never grows again."""
    replay(storage, ListWriterSpec(TABLE, full_rows=1), [waiting(storage, 1, 1)])
    assert replayed(storage)[-1].end == "complete"


def test_a_chunk_is_never_split_over_two_records(storage: WatchedStorage) -> None:
    """A record supersedes whole chunks: files that fill up inside one are not cut there."""
    spec = ListWriterSpec(TABLE, full_rows=1)
    one = waiting(storage, 1, 1, 2, 3)
    replay(storage, spec, [one])
    done, ended = replayed(storage)
    assert (ended.end, ended.supersedes) == ("complete", ())
    assert (done.supersedes, len(spec.rows_in(done))) == ((one.name,), 3)


def test_a_column_that_was_added_to_the_table_since_is_null(storage: WatchedStorage) -> None:
    """An added optional column does not stop a run; its rows were made earlier."""
    one = waiting(storage, 1, 1, 2)
    spec = ListWriterSpec(pa.schema([("new", pa.float64()), *TABLE]))
    replay(storage, spec, [one])
    (done,) = replayed(storage)
    assert spec.rows_in(done) == [{"new": None, "id": i, "text": f"text {i}"} for i in (1, 2)]


def test_a_column_that_the_table_has_lost_stops_the_replay(storage: WatchedStorage) -> None:
    """Output that was paid for is not dropped silently."""
    one = waiting(storage, 1, 1, 2)
    spec = ListWriterSpec(pa.schema([("id", pa.int64())]))
    with pytest.raises(SchemaMismatchError):
        replay(storage, spec, [one])
    assert replayed(storage) == []


@pytest.mark.parametrize("lost", ["damaged", "gone"])
def test_a_damaged_or_missing_chunk_is_reported_and_skipped(
    storage: WatchedStorage, spec: ListWriterSpec, lost: str
) -> None:
    """Its rows are computed again; rows of other chunks are not."""
    one, two = waiting(storage, 1, 1, 2, 3), waiting(storage, 2, 4, 5)
    uri = job_ledger(storage).layout.chunk(two.name)
    if lost == "damaged":
        storage.damage[uri] = bit_flipped
    else:
        storage.delete([uri])
    report = replay(storage, spec, [one, two])
    assert report.damaged == (two.name,)
    (done,) = replayed(storage)
    assert (done.supersedes, len(spec.rows_in(done))) == ((one.name,), 3)


def away(_: bytes) -> bytes:
    """Act as a store that does not answer.

    Raises:
        StorageError: Always.
    """
    raise StorageError("away")


def test_what_was_cut_before_a_failure_stays_done(storage: WatchedStorage) -> None:
    """The log says that the rest is not worth waiting for."""
    spec = ListWriterSpec(TABLE, full_rows=2)
    one, two = waiting(storage, 1, 1, 2), waiting(storage, 2, 3)
    storage.damage[job_ledger(storage).layout.chunk(two.name)] = away
    with pytest.raises(StoreUnavailableError):
        replay(storage, spec, [one, two])
    done, last = replayed(storage)
    assert (done.supersedes, last.supersedes, last.end) == ((one.name,), (), "failed")
    assert spec.opened[-1].abandons == 1  # No partial file is left behind.
    work, refused = Work().plus([one, two, done, last])
    assert (refused, work.waiting) == ((), (two,))


def test_a_replay_with_a_twin_does_nothing(storage: WatchedStorage, spec: ListWriterSpec) -> None:
    """Of two replays of one chunk, the second leaves before it opens a file."""
    one = waiting(storage, 1, 1)
    twin = task_log(job_ledger(storage, job=JOB), attempt=ATTEMPT + 1)
    twin.append(record(twin.next_name, supersedes=[one.name], end="complete"))
    report = replay(storage, spec, [one])
    assert (report.end, report.records, spec.opened) == ("left", 0, [])
    assert replayed(storage) == []


def test_two_replays_at_the_same_time_count_once(
    storage: WatchedStorage, spec: ListWriterSpec
) -> None:
    """Neither saw the other's record; the driver takes one, and the other's files are unused."""
    one = waiting(storage, 1, 1, 2)
    replay(storage, spec, [one])
    (first,) = replayed(storage)
    storage.delete([job_ledger(storage).layout.task_record(first.name)])
    replay(storage, spec, [one], attempt=ATTEMPT + 1)
    (second,) = logged(job_ledger(storage, job=JOB), attempt=ATTEMPT + 1)
    work, refused = Work().plus([one, first, second])
    assert refused == (second.name,)
    assert sum(file.rows for group in work.groups for file in group.files) == 2


def test_a_replay_of_nothing_writes_nothing(storage: WatchedStorage, spec: ListWriterSpec) -> None:
    """Spark may start a task without items."""
    report = replay(storage, spec)
    assert (report.end, report.records) == ("complete", 0)
    assert (storage.objects, spec.files) == ({}, {})


def test_items_are_filled_up_to_their_size() -> None:
    """Chunks have eight bytes per row; an item holds as many as fit, in their order."""
    records = [record(f"1/rows/0/0/{n:04d}", n, chunk=n) for n in (3, 1, 2, 10, 1, 1)]
    items = [json.loads(item) for item in work_items(records, 4 * 8)]
    assert [[chunk[1] for chunk in item] for item in items] == [[3, 1], [2], [10], [1, 1]]
    assert [chunk[0] for item in items for chunk in item] == [made.name for made in records]


def test_a_chunk_larger_than_an_item_is_an_item_of_its_own() -> None:
    """It cannot be split, and it does not stop the others."""
    records = [record(f"1/rows/0/0/{n:04d}", n, chunk=n) for n in (50, 60)]
    assert len(work_items(records, 8)) == 2


def test_records_without_a_chunk_make_no_item() -> None:
    """There is nothing to replay."""
    assert work_items([record("1/rows/0/0/0000", 5)], 8) == []
    assert work_items([], 8) == []


def test_items_name_all_that_is_needed_to_check_a_chunk(storage: WatchedStorage) -> None:
    """A task reads no record: rows, size and digest are sent with the name."""
    one = waiting(storage, 1, 1, 2)
    assert one.chunk is not None
    (item,) = work_items([one], 1 << 20)
    assert json.loads(item) == [[one.name, one.chunk.rows, one.chunk.size_bytes, one.chunk.digest]]
