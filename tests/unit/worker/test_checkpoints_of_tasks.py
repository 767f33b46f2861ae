"""Whole tasks with checkpoints: what is reported, and what a reader finds afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BinaryType, DoubleType, LongType, NestedField, StringType

from holdfast.ledger.row_files import read_chunk
from holdfast.model.work import TaskRecord, Work
from holdfast.sinks.base import WriterSpec
from holdfast.sinks.iceberg.writer import IcebergWriterSpec
from holdfast.sources.base import TAG_COLUMN
from holdfast.worker import checkpoints
from holdfast.worker.checkpoints import Checkpoints
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import TaskPlan
from tests.fakes.task_ledgers import (
    ATTEMPT,
    PLACE,
    ListWriterSpec,
    WatchedStorage,
    done_step,
    job_ledger,
    logged,
    record,
    task_log,
)

DUE_AT_ONCE_S, NEVER_DUE_S = 1e-9, 1e9
TABLE = pa.schema([("id", pa.int64())])
ICEBERG = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "part", StringType(), required=False),
    NestedField(3, "payload", BinaryType(), required=False),
    NestedField(4, "value", DoubleType(), required=False),
)
BY_PART = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))


@pytest.fixture
def storage() -> WatchedStorage:
    """Return an empty store."""
    return WatchedStorage()


def numbers(*ids: int) -> pa.RecordBatch:
    """Return input rows."""
    return pa.RecordBatch.from_pydict({"id": list(ids)})


def run(
    storage: WatchedStorage,
    batches: Iterable[pa.RecordBatch],
    *,
    writer: WriterSpec | None = None,
    **options: Any,  # noqa: ANN401 - any field of the plan.
) -> TaskReport:
    """Run one task; by default a checkpoint is due after every batch."""
    fields: dict[str, Any] = {"transform": None, "batch_rows": None, "key": ("id",)}
    fields |= {"writer": writer or ListWriterSpec(TABLE), "ledger": job_ledger(storage)}
    fields |= {"checkpoint_every_s": DUE_AT_ONCE_S, "job_nonce": "job", **options}
    plan = TaskPlan(**fields)
    return plan.run(batches, place=PLACE, attempt=ATTEMPT)


def iceberg_spec(folder: Path, properties: dict[str, str] | None = None) -> IcebergWriterSpec:
    """Return a writer of a table partitioned by `part`."""
    return IcebergWriterSpec(
        table="lake.db.t",
        schema_json=ICEBERG.model_dump_json(),
        spec_json=BY_PART.model_dump_json(),
        sort_order_json=UNSORTED_SORT_ORDER.model_dump_json(),
        location=f"file://{folder}/t",
        properties=properties or {},
        may_lack=None,
        io_properties={},
    )


def in_files(records: Iterable[TaskRecord], column: str = "id") -> list[Any]:
    """Return a column of all table files that the records name, as another reader sees it."""
    paths = [file.path for entry in records for group in entry.groups for file in group.files]
    found = []
    for path in paths:
        with pq.ParquetFile(path.removeprefix("file://")) as file:
            found += file.read([column])[column].to_pylist()
    return found


def test_a_task_reports_how_many_records_it_has_written(storage: WatchedStorage) -> None:
    """The driver must find as many, whatever its listing shows."""
    report = run(storage, [numbers(1, 2), numbers(3)])
    (last,) = logged(job_ledger(storage))
    assert (report.end, report.rows_in, report.problem) == ("complete", 3, None)
    assert (report.log, report.records) == (last.log, last.number + 1) == (report.log, 3)
    assert (last.coverage.rows, last.replaces) == (3, (0, 1))


def test_a_fenced_task_does_not_pay_for_another_batch(storage: WatchedStorage) -> None:
    """At a checkpoint it finds that the run has moved on, and does not call the transform again."""
    calls = []

    def costly(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(batch.column("id").to_pylist())
        if len(calls) == 2:
            storage.fence()
        return batch

    report = run(storage, [numbers(1), numbers(2), numbers(3)], transform=costly)
    assert calls == [[1], [2]]
    assert (report.end, report.rows_in) == ("fenced", 2)
    assert [entry.end for entry in logged(job_ledger(storage))] == ["", "failed"]


def test_a_task_checks_for_a_stop_between_two_checkpoints_too(
    storage: WatchedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an interval of ten minutes, Ctrl-C must not take ten minutes to notice."""
    calls = []

    def costly(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(batch.column("id").to_pylist())
        storage.fence()
        return batch

    some, every_s = [numbers(1), numbers(2)], NEVER_DUE_S
    assert run(storage, some, transform=costly, checkpoint_every_s=every_s).end == "complete"
    monkeypatch.setattr(checkpoints, "_LOOK_EVERY_S", 0.0)
    assert run(storage, some, transform=costly, checkpoint_every_s=every_s).end == "fenced"
    assert calls == [[1], [2], [1]]


def test_a_task_that_starts_fenced_pays_for_nothing(storage: WatchedStorage) -> None:
    """A superseded driver goes on starting tasks, each of which would pay for a while.

    A task that starts with its job need not check: the store is asked only once the plan is old.
    """
    storage.fence()
    calls = []

    def costly(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(batch.num_rows)
        return batch

    old = job_ledger(storage, planned_at=time.time() - 2 * NEVER_DUE_S)
    every_s = NEVER_DUE_S
    report = run(storage, [numbers(1)], transform=costly, checkpoint_every_s=every_s, ledger=old)
    assert (report.end, calls) == ("fenced", [])


def test_a_failing_batch_ends_the_task_but_keeps_what_is_done(storage: WatchedStorage) -> None:
    """The report says which rows failed; the chunk holds the batches before, and no half batch."""

    def fails_late(batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        yield batch.slice(0, 1)
        if 4 in batch.column("id").to_pylist():
            raise ValueError("bad row 4")
        yield batch.slice(1)

    spec = ListWriterSpec(TABLE)
    batches = [numbers(1, 2), numbers(3, 4), numbers(5)]
    report = run(
        storage, batches, writer=spec, transform=fails_late, checkpoint_every_s=NEVER_DUE_S
    )
    assert report.problem is not None
    assert (report.end, report.rows_in, report.records) == ("stopped", 2, 1)
    assert report.problem.facts["keys"] == "keys (id=3) to (id=4)"
    (one,) = logged(job_ledger(storage))
    assert one.chunk is not None
    chunk = read_chunk(storage, job_ledger(storage).layout.chunk(one.name), one.chunk)
    assert [i for rows in chunk for i in rows["id"].to_pylist()] == [1, 2]
    assert (spec.files, spec.opened[0].abandons) == ({}, 1)


def test_a_transient_error_is_raised_and_ends_the_log(storage: WatchedStorage) -> None:
    """Spark retries; the next attempt need not wait to see whether this log grows."""

    def batches() -> Iterable[pa.RecordBatch]:
        yield numbers(1)
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        run(storage, batches())
    assert [entry.end for entry in logged(job_ledger(storage))] == ["", "failed"]


def test_a_task_with_a_twin_does_nothing(storage: WatchedStorage) -> None:
    """The other attempt has durable work for this place: the next pass does the rest."""
    twin = task_log(job_ledger(storage), attempt=ATTEMPT + 1)
    twin.append(record(twin.next_name, 1, end="failed"))
    spec, before = ListWriterSpec(TABLE), dict(storage.objects)
    report = run(storage, [numbers(1)], writer=spec)
    assert (report.end, report.records, report.log) == ("left", 0, "")
    assert (spec.opened, storage.objects) == ([], before)


def test_sparks_own_hash_is_removed_and_added_up(storage: WatchedStorage) -> None:
    """The transform does not see the hash, and it covers keys that cannot be hashed here."""
    seen = []

    def watch(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch.schema.names)
        return {"id": pa.array([1, 2])}

    hashes = pa.array([-1, (5 << 32) + 7], pa.int64())
    batch = pa.RecordBatch.from_pydict({"name": ["a", "b"], TAG_COLUMN: hashes})
    run(storage, [batch], transform=watch, key=("name",))
    work, _ = Work().plus(logged(job_ledger(storage)))
    assert seen == [["name"]]
    assert (work.sums.low, work.sums.high) == (0xFFFFFFFF + 7, 0xFFFFFFFF + 5)


def test_output_in_two_partitions_is_covered_when_both_files_are_closed(
    storage: WatchedStorage, tmp_path: Path
) -> None:
    """The file of one partition is full and closed before the file of the other."""
    properties = {"write.target-file-size-bytes": "100000", "write.parquet.row-group-limit": "1"}
    ledger, random = job_ledger(storage), np.random.default_rng(1)
    checkpoints = Checkpoints(
        ledger=ledger,
        log=task_log(ledger),
        writer=iceberg_spec(tmp_path, properties).open("task"),
        key=("id",),
        every_s=None,
    )
    done: list[int] = []
    while not list(tmp_path.glob("t/data/part=often/*.parquet")):
        assert logged(ledger) == []
        done.append(len(done))
        rows = [
            {"id": done[-1], "part": "rare", "payload": b""},
            {"id": done[-1], "part": "often", "payload": random.bytes(30_000)},
        ]
        checkpoints.hold(pa.RecordBatch.from_pylist(rows))
        checkpoints.cover(done_step(numbers(done[-1]), 1.0))
        if len(done) > 3:  # An IO thread closes the file: give it time before more are full.
            time.sleep(0.5)
    assert list(tmp_path.glob("t/data/part=rare/*.parquet")) == []
    assert logged(ledger) == []
    checkpoints.finish()
    (one,) = logged(ledger)
    assert one.coverage.rows == len(done) > 1
    assert sorted(in_files([one])) == sorted(done * 2)


@pytest.mark.parametrize("checkpoint_every_s", [None, NEVER_DUE_S])
def test_a_transform_may_reuse_its_output_buffer(
    storage: WatchedStorage, tmp_path: Path, checkpoint_every_s: float | None
) -> None:
    """Many models write into one buffer; Spark's own mapInArrow allows it."""
    buffer = np.zeros(2)

    def model(batch: pa.RecordBatch) -> dict[str, pa.Array]:
        buffer[:] = batch.column("id").to_numpy()
        return {"id": batch.column("id"), "value": pa.array(buffer)}

    spec = iceberg_spec(tmp_path)
    batches = [numbers(1, 2), numbers(3, 4)]
    run(storage, batches, writer=spec, transform=model, checkpoint_every_s=checkpoint_every_s)
    assert in_files(logged(job_ledger(storage)), "value") == [1.0, 2.0, 3.0, 4.0]


def test_rows_that_wait_do_not_hold_the_batch_that_they_came_from(
    storage: WatchedStorage,
) -> None:
    """A transform that drops most rows returns small slices of large batches."""
    base, peaks = pa.total_allocated_bytes(), []
    table = pa.schema([("id", pa.int64()), ("payload", pa.binary())])

    def large_batches() -> Iterable[pa.RecordBatch]:
        for start in range(20):
            rows = [{"id": start * 100 + i, "payload": b"x" * 10_000} for i in range(100)]
            yield pa.RecordBatch.from_pylist(rows, schema=table)
            peaks.append(pa.total_allocated_bytes() - base)

    run(
        storage,
        large_batches(),
        writer=ListWriterSpec(table),
        transform=lambda batch: batch.slice(0, 1),
        one_to_one=False,
        batch_rows=100,
        checkpoint_every_s=NEVER_DUE_S,
    )
    assert max(peaks) < 4_000_000
