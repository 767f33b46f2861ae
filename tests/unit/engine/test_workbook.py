"""Seal: which task records count when a partition has been worked on more than once."""

from __future__ import annotations

import pytest

from holdfast.engine.workbook import gather
from holdfast.errors import StoreUnavailableError
from holdfast.ledger.layout import task_log_name, tasks_name
from holdfast.ledger.task_log import TaskLog
from holdfast.model.coverage import Coverage
from holdfast.model.usage import NO_USAGE
from holdfast.model.work import Chunk, TaskEnd, TaskRecord, Work
from tests.fakes.logs import LAYOUT
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.memory_writer import staged_group

CHUNK = Chunk(rows=1, size_bytes=1, digest="d")


def log(claim: int = 1, job: str = "rows", place: int = 0, attempt: int = 0) -> str:
    """Return the name of a task log."""
    return task_log_name(tasks_name(claim), job, place, attempt)


def write(
    storage: MemoryStorage,
    name: str,
    rows: int,
    *,
    end: TaskEnd = "",
    supersedes: tuple[str, ...] = (),
) -> str:
    """Append a record that covers this many rows to a log, and return the record's name."""
    number = len([uri for uri in storage.objects if f"/{name}/" in uri])
    record = TaskRecord(
        name=f"{name}/{number:04d}",
        coverage=Coverage(rows=rows, low=rows, high=rows, keys_bytes=0),
        seconds=1.0,
        groups=(staged_group(f"{name}-{number}"),) if supersedes else (),
        chunk=None if supersedes else CHUNK,
        supersedes=supersedes,
        end=end,
    )
    task_log = TaskLog(storage, LAYOUT, name)
    task_log._next = number  # noqa: SLF001 - it continues where the last call stopped.
    task_log._counts = dict.fromkeys(range(number), NO_USAGE)  # noqa: SLF001 - the same.
    task_log.append(record)
    return record.name


def accepted(
    storage: MemoryStorage, *claims: int, work: Work | None = None
) -> tuple[set[str], int]:
    """Return the logs that count, and how many rows were left out."""
    found = gather(storage, LAYOUT, work or Work(), map(tasks_name, claims))
    return {record.log for record in found.work.records}, found.dropped_rows


def test_of_two_attempts_the_complete_one_counts() -> None:
    """Both have the same input: counting both would put rows into the table twice."""
    storage, first, second = MemoryStorage(), log(attempt=1), log(attempt=2)
    write(storage, first, 9)
    write(storage, second, 5, end="complete")
    assert accepted(storage, 1) == ({second}, 9)


def test_of_two_complete_attempts_one_counts() -> None:
    """A twin that could not be stopped in time: either of the two may count."""
    storage, first, second = MemoryStorage(), log(attempt=1), log(attempt=2)
    write(storage, first, 5, end="complete")
    write(storage, second, 5, end="complete")
    assert accepted(storage, 1) == ({first}, 5)


def test_of_two_attempts_that_died_the_one_that_covers_most_counts() -> None:
    """It holds the most finished work."""
    storage, first, second = MemoryStorage(), log(attempt=1), log(attempt=2)
    write(storage, first, 4)
    for _ in range(3):
        write(storage, second, 2)
    write(storage, first, 1, end="failed")
    assert accepted(storage, 1) == ({second}, 5)


def test_of_two_replays_the_one_that_put_most_into_files_counts() -> None:
    """A replay covers no rows of its own."""
    storage, rows = MemoryStorage(), log()
    chunks = [write(storage, rows, 2) for _ in range(3)]
    work = gather(storage, LAYOUT, Work(), [tasks_name(1)]).work
    first, second = log(2, "replay", attempt=1), log(2, "replay", attempt=2)
    write(storage, first, 0, supersedes=(chunks[0],))
    write(storage, second, 0, supersedes=(chunks[0], chunks[1]))
    assert accepted(storage, 2, work=work) == ({rows, second}, 0)


def test_attempts_compete_only_within_a_partition_job_and_claim() -> None:
    """Only attempts at the same partition of the same job and claim have the same input."""
    storage = MemoryStorage()
    logs = {log(), log(place=1), log(claim=2), log(job="replay")}
    for name in logs:
        write(storage, name, 1)
    assert accepted(storage, 1, 2) == (logs, 0)


def test_tasks_of_another_claim_do_not_count() -> None:
    """A sealed claim is final: a zombie's claim is not read again."""
    storage = MemoryStorage()
    write(storage, log(claim=1), 1)
    write(storage, log(claim=2), 1)
    assert accepted(storage, 2) == ({log(claim=2)}, 0)


def test_records_after_a_gap_do_not_count() -> None:
    """A listing may lack a record that was just written; later records depend on it."""
    storage = MemoryStorage()
    names = [write(storage, log(), 2) for _ in range(3)]
    del storage.objects[LAYOUT.task_record(names[1])]
    found = gather(storage, LAYOUT, Work(), [tasks_name(1)])
    assert [record.name for record in found.work.records] == names[:1]


def test_a_record_over_an_unknown_chunk_is_left_out_and_counted() -> None:
    """Its files hold rows that another log has, or will have."""
    storage, first, second = MemoryStorage(), log(attempt=1), log(place=1)
    chunk = write(storage, first, 5)
    write(storage, log(attempt=2), 9, end="complete")
    write(storage, second, 3, supersedes=(chunk,))
    assert accepted(storage, 1) == ({log(attempt=2)}, 5 + 3)


def test_keys_and_chunks_next_to_the_records_are_not_records() -> None:
    """They share the folder and the number."""
    storage = MemoryStorage()
    name = write(storage, log(), 2)
    storage.put(LAYOUT.keys(name), b"keys")
    storage.put(LAYOUT.chunk(name), b"chunk")
    assert accepted(storage, 1) == ({log()}, 0)


@pytest.mark.parametrize("kind", ["list", "get"])
def test_a_store_that_does_not_answer_is_not_an_empty_log(kind: str) -> None:
    """Finding nothing would mean that all rows are computed again."""
    storage = MemoryStorage()
    write(storage, log(), 2)
    storage.failures[kind] = 1
    with pytest.raises(StoreUnavailableError):
        accepted(storage, 1)
