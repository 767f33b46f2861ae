"""Task logs: created once, read back as a gapless prefix, and ended when the run moves on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.errors import LedgerDamagedError, StoreUnavailableError
from holdfast.ledger import task_log as task_log_module
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.ledger import TaskPorts
from holdfast.ledger.task_log import JobLedger, TaskLog, read_logs, read_task_records
from holdfast.model.records import Record, Stop, encode_record, seal_json
from holdfast.model.usage import NO_USAGE
from holdfast.model.work import TaskRecord
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import Storage
from tests.fakes.logs import CLAIM, WRITTEN_AT
from tests.fakes.memory_storage import CreateFault, MemoryStorage, bit_flipped, truncated
from tests.fakes.task_ledgers import (
    ATTEMPT,
    NEXT_NUMBER,
    PLACE,
    ManualClock,
    group_of,
    job_ledger,
    logged,
    record,
    task_log,
)

LOG = "00000003/rows/000007/000000000021"


@pytest.fixture
def storage() -> MemoryStorage:
    """Return an empty store."""
    return MemoryStorage()


@pytest.fixture
def ledger(storage: MemoryStorage) -> JobLedger:
    """Return the ledger of a job."""
    return job_ledger(storage)


@pytest.fixture(params=["memory", "files"])
def any_ledger(request: pytest.FixtureRequest, tmp_path: Path) -> JobLedger:
    """Return a ledger in memory, and one in a folder whose name is hard to write in a URI."""
    if request.param == "memory":
        return job_ledger(MemoryStorage())
    return job_ledger(ObjectStorage(), store=f"file://{tmp_path}/a store")


def test_appended_records_are_read_back_in_order(any_ledger: JobLedger) -> None:
    """More than ten records, so that the order of names is the order of numbers."""
    log = task_log(any_ledger)
    written = []
    for number in range(12):
        appended = record(log.next_name, number, chunk=number, groups=[group_of(str(number), 3)])
        log.append(appended)
        written.append(appended)
    assert logged(any_ledger) == written
    assert written[-1].name == f"{LOG}/0011"


def test_only_records_are_read(any_ledger: JobLedger) -> None:
    """Keys and chunks share the folder, and are far too large to be read as well."""
    log, storage = task_log(any_ledger), any_ledger.storage
    appended = record(log.next_name, 3, chunk=3)
    storage.put(any_ledger.layout.keys(appended.name), b"keys")
    storage.put(any_ledger.layout.chunk(appended.name), b"chunk")
    storage.put(any_ledger.layout.part("work-1.json"), b"no task record")
    log.append(appended)
    found = storage.list(any_ledger.layout.folder)
    assert len(found) == 4
    assert read_task_records(storage, any_ledger.layout, found) == [appended]
    assert read_task_records(storage, any_ledger.layout, []) == []


@pytest.mark.parametrize("fault", list(CreateFault))
def test_a_lost_or_false_answer_leaves_one_record(
    storage: MemoryStorage, ledger: JobLedger, fault: CreateFault
) -> None:
    """Whatever the store answered, the stored object decides, and the log continues."""
    log = task_log(ledger)
    storage.create_faults.append(fault)
    log.append(record(log.next_name, 1))
    log.append(record(log.next_name, 2))
    assert [found.coverage.rows for found in logged(ledger)] == [1, 2]


def test_without_an_answer_the_next_number_stays_the_same(
    storage: MemoryStorage, ledger: JobLedger
) -> None:
    """A record that may or may not have landed is never skipped."""
    log = task_log(ledger)
    storage.create_faults.extend([CreateFault.FAILS] * 6)
    with pytest.raises(StoreUnavailableError):
        log.append(record(log.next_name, 1))
    assert log.next_name == f"{LOG}/0000"
    assert logged(ledger) == []


def test_another_attempts_record_is_not_overwritten(
    storage: MemoryStorage, ledger: JobLedger
) -> None:
    """Two attempts under one name would mix their rows: the later one stops."""
    theirs, ours = task_log(ledger), task_log(ledger)
    theirs.append(record(theirs.next_name, 1))
    before = dict(storage.objects)
    with pytest.raises(LedgerDamagedError, match="another task attempt"):
        ours.append(record(ours.next_name, 2))
    assert storage.objects == before


def test_another_attempts_equal_record_is_not_taken_for_its_own(ledger: JobLedger) -> None:
    """Equal content from two writers is distinguished, even if both have used nothing yet."""
    ports = TaskPorts(sleep=ManualClock().sleep, usage=lambda: NO_USAGE)
    theirs, ours = (TaskLog(ledger.storage, ledger.layout, LOG, ports=ports) for _ in range(2))
    theirs.append(record(theirs.next_name, 1))
    with pytest.raises(LedgerDamagedError):
        ours.append(record(ours.next_name, 1))


@pytest.mark.parametrize("number", [0, 2])
def test_a_record_out_of_turn_is_refused(
    storage: MemoryStorage, ledger: JobLedger, number: int
) -> None:
    """Neither a gap nor a repeated number is written."""
    log = task_log(ledger)
    log.append(record(log.next_name, 1))
    with pytest.raises(LedgerDamagedError, match="0001 should come next"):
        log.append(record(f"{LOG}/{number:04d}", 1))
    assert len(storage.objects) == 1


def test_a_log_ends_where_its_numbers_would_stop_sorting(
    ledger: JobLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name has only four digits; one more record would sort before the others."""
    monkeypatch.setattr(task_log_module, "_NUMBERS_MAX", 2)
    log = task_log(ledger)
    log.append(record(log.next_name, 1))
    log.append(record(log.next_name, 1))
    with pytest.raises(LedgerDamagedError):
        log.append(record(log.next_name, 1))
    assert len(logged(ledger)) == 2


def prefixes(records: Sequence[TaskRecord]) -> dict[str, list[TaskRecord]]:
    """Store records as they are, list them in this order, and read their logs."""
    storage, layout = MemoryStorage(), RunLayout.of("s3://store", "r")
    uris = [layout.task_record(each.name) for each in records]
    for uri, each in zip(uris, records, strict=True):
        storage.objects[uri] = seal_json(each.to_json())
    return read_logs(storage, layout, uris)


def test_a_log_counts_up_to_its_first_gap() -> None:
    """A record after a missing number may supersede the missing one."""
    there = [record(f"{LOG}/{number:04d}", number) for number in (0, 1, 3, 4)]
    (only,) = prefixes(there).values()
    assert only == there[:2]


def test_the_order_of_records_is_that_of_their_numbers() -> None:
    """From the ten thousandth on, names no longer sort as text."""
    there = [record(f"{LOG}/{number:04d}") for number in range(10_002)]
    (only,) = prefixes(there[::-1]).values()
    assert only == there


def test_a_log_without_its_first_record_does_not_count() -> None:
    """It is not even listed."""
    assert prefixes([record(f"{LOG}/0001"), record(f"{LOG}/0002")]) == {}


def test_logs_are_separated_whatever_the_order() -> None:
    """Each attempt has its own prefix, in the order of its numbers."""
    first = [record(f"{LOG}/{number:04d}") for number in range(12)]
    second = [record(f"00000003/rows/000007/000000000022/{number:04d}") for number in range(2)]
    mixed = sorted([*first, *second], key=lambda each: each.name[::-1])
    assert prefixes(mixed) == {first[0].log: first, second[0].log: second}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"not json",
        b"\xff\xfe",
        seal_json({"name": f"{LOG}/0000"}),
        seal_json({**record(f"{LOG}/0000").to_json(), "groups": [{"path": 1}]}),
        seal_json({**record(f"{LOG}/0000").to_json(), "chunk": 7}),
    ],
)
def test_a_record_that_is_not_what_was_written_is_refused(
    storage: MemoryStorage, ledger: JobLedger, data: bytes
) -> None:
    """A damaged record is an error that names the object; it is never left out silently."""
    uri = ledger.layout.task_record(f"{LOG}/0000")
    storage.objects[uri] = data
    with pytest.raises(LedgerDamagedError) as caught:
        logged(ledger)
    assert caught.value.uri == uri


@pytest.mark.parametrize("damage", [truncated, bit_flipped])
def test_a_damaged_record_is_noticed(
    storage: MemoryStorage, ledger: JobLedger, damage: Callable[[bytes], bytes]
) -> None:
    """Truncated or with one bit flipped: the digest shows it."""
    log = task_log(ledger)
    log.append(record(log.next_name, 1000, groups=[group_of("x", 1000)]))
    storage.damage[ledger.layout.task_record(f"{LOG}/0000")] = damage
    with pytest.raises(LedgerDamagedError):
        logged(ledger)


def test_a_record_under_another_name_is_refused(storage: MemoryStorage, ledger: JobLedger) -> None:
    """A copy of a whole record in place of another would cover rows twice."""
    log = task_log(ledger)
    log.append(record(log.next_name, 1))
    first = ledger.layout.task_record(f"{LOG}/0000")
    storage.objects[ledger.layout.task_record(f"{LOG}/0001")] = storage.objects[first]
    with pytest.raises(LedgerDamagedError, match=f"it is named {LOG}/0000"):
        logged(ledger)


def test_a_record_that_is_listed_but_gone_is_an_error(
    storage: MemoryStorage, ledger: JobLedger
) -> None:
    """Nothing is ever deleted from a log before the receipt."""
    uri = ledger.layout.task_record(f"{LOG}/0000")
    with pytest.raises(LedgerDamagedError, match="gone when read"):
        read_task_records(storage, ledger.layout, [uri])


def test_a_store_that_does_not_answer_is_not_a_missing_record(
    storage: MemoryStorage, ledger: JobLedger
) -> None:
    """The error asks for a retry and does not call the ledger damaged."""
    log = task_log(ledger)
    log.append(record(log.next_name, 1))
    storage.failures["get"] = 1
    with pytest.raises(StoreUnavailableError):
        logged(ledger)


def test_a_job_is_fenced_by_any_record_at_the_logs_next_number(any_ledger: JobLedger) -> None:
    """One request finds it; a record before or after that number does not count."""
    storage: Storage = any_ledger.storage
    storage.put(any_ledger.layout.record(NEXT_NUMBER - 1), b"own plan")
    storage.put(any_ledger.layout.record(NEXT_NUMBER + 1), b"not there yet")
    assert any_ledger.end() == ""
    storage.put(any_ledger.layout.record(NEXT_NUMBER), b"another's claim")
    assert any_ledger.end() == "fenced"


def test_a_job_is_fenced_by_a_claim_and_not_stopped(any_ledger: JobLedger) -> None:
    """Nothing of it counts any more, so its tasks do not record what they have."""
    claim = Record(number=NEXT_NUMBER, nonce="n", written_at=WRITTEN_AT, body=CLAIM)
    any_ledger.storage.put(any_ledger.layout.record(NEXT_NUMBER), encode_record(claim))
    assert any_ledger.end() == "fenced"


def test_a_job_that_began_long_ago_is_stale(ledger: JobLedger) -> None:
    """A task then checks first whether the run has moved on without it."""
    older = replace(ledger, planned_at=ledger.ports.now() - 10.0)
    assert [older.is_stale(after_s) for after_s in (9.0, 11.0)] == [True, False]


def test_a_job_whose_own_driver_gives_up_is_stopped_not_fenced(any_ledger: JobLedger) -> None:
    """Its tasks' finished work still counts, so they may record it."""
    stop = Record(
        number=NEXT_NUMBER,
        nonce="n",
        written_at=WRITTEN_AT,
        body=Stop(reason="SIGTERM"),
    )
    any_ledger.storage.put(any_ledger.layout.record(NEXT_NUMBER), encode_record(stop))
    assert any_ledger.end() == "stopped"


def test_a_store_that_does_not_answer_does_not_fence_a_job(
    storage: MemoryStorage, ledger: JobLedger
) -> None:
    """Unknown is neither yes nor no."""
    storage.failures["size"] = 1
    with pytest.raises(StoreUnavailableError):
        ledger.end()
    assert ledger.end() == ""


def test_the_names_of_logs_sort_by_claim_then_place(ledger: JobLedger) -> None:
    """Numbers are padded, so that text order is the order of age."""
    assert ledger.log_name(PLACE, ATTEMPT) == LOG
    assert ledger.log_name(9, 1) < ledger.log_name(10, 1)
    assert ledger.log_name(9, 9) < ledger.log_name(9, 10)
