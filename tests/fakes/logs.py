"""Run logs over a store in memory, and one record of each kind."""

from __future__ import annotations

import time

from holdfast.ledger.layout import RunLayout, tasks_name
from holdfast.ledger.run_log import RunLog
from holdfast.ledger.task_log import JobLedger, read_task_records
from holdfast.model.records import (
    Body,
    Claim,
    Intent,
    PartReference,
    Receipt,
    Record,
    encode_record,
)
from holdfast.model.work import TaskRecord
from holdfast.storage.port import Storage
from holdfast.worker.code_digest import code_digest
from tests.fakes.manual_ports import ManualTime, nonces
from tests.fakes.memory_storage import MemoryStorage

LAYOUT = RunLayout.of("s3://store", "r")
WRITTEN_AT = "2026-11-14T00:00:00+00:00"
# From a driver with `manual_ports` and no transform.
CLAIM = Claim(
    holdfast_version="0",
    host="host-1",
    process_id=1,
    machine="machine-1",
    code=code_digest(None),
    checkpoint_every_s=30.0,
)
PART = PartReference(name="p", digest="d", records=1)
INTENT = Intent(
    table_uuid="u",
    branch="main",
    parent_snapshot_id=1,
    snapshot_id=2,
    sequence_number=3,
    staged=PART,
    rows=4,
    files=5,
    size_bytes=6,
)
RECEIPT = Receipt(
    intent_number=2, snapshot_id=2, sequence_number=3, staged=PART, rows=4, files=5, size_bytes=6
)


def new_log(storage: MemoryStorage, time: ManualTime | None = None) -> RunLog:
    """Return one driver's view of the log, with nonces of its own."""
    time = time or ManualTime()
    return RunLog(
        run_id="r",
        layout=LAYOUT,
        storage=storage,
        new_nonce=nonces(),
        now=time.now,
        sleep=time.sleep,
    )


def claimed(storage: MemoryStorage) -> RunLog:
    """Return a driver that has claimed the run."""
    log = new_log(storage)
    log.claim(CLAIM)
    return log


def put_record(storage: MemoryStorage, number: int, body: Body) -> None:
    """Put a record into the log without going through `RunLog`."""
    record = Record(number=number, nonce="theirs", written_at=WRITTEN_AT, body=body)
    storage.objects[LAYOUT.record(number)] = encode_record(record)


def job_ledger(storage: Storage | None = None, layout: RunLayout = LAYOUT) -> JobLedger:
    """Return what the tasks of a claim's first job get; claim and plan are in the log."""
    return JobLedger(
        storage=storage or MemoryStorage(),
        layout=layout,
        claim=1,
        tasks=tasks_name(1),
        job="rows",
        next_number=3,
        planned_at=time.time(),
    )


def task_records(ledger: JobLedger) -> list[TaskRecord]:
    """Return the records of all tasks, sorted by name."""
    uris = ledger.storage.list(ledger.layout.tasks)
    return read_task_records(ledger.storage, ledger.layout, uris)
