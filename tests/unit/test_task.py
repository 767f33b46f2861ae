"""One task: what is reported, what is raised, and what is left behind."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from holdfast import per_worker
from holdfast.model.work import NOTHING, TaskRecord
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import TaskPlan
from holdfast.worker.transforms import PerWorker, Transform
from tests.fakes.logs import job_ledger, task_records
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.memory_writer import MemoryWriterSpec

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def batch(*ids: int) -> pa.RecordBatch:
    """Return input rows of these ids."""
    return pa.RecordBatch.from_pydict({"id": list(ids), "name": [str(i) for i in ids]})


def run(
    writer: MemoryWriterSpec,
    transform: Transform | PerWorker | None = None,
    batches: Iterable[pa.RecordBatch] = (),
    **options: Any,  # noqa: ANN401 - any field of the plan.
) -> TaskReport:
    """Run one task over the batches."""
    fields = {
        "batch_rows": None,
        "key": ("id",),
        "job_nonce": "job",
        "ledger": job_ledger(),
        **options,
    }
    plan = TaskPlan(transform=transform, writer=writer, **fields)
    return plan.run(batches, place=3, attempt=17)


@pytest.fixture
def storage() -> MemoryStorage:
    """Return the store of the run's ledger."""
    return MemoryStorage()


def records(storage: MemoryStorage) -> list[TaskRecord]:
    """Return what the task has made durable."""
    return task_records(job_ledger(storage))


@pytest.fixture
def writer() -> MemoryWriterSpec:
    """Return a table to write to."""
    return MemoryWriterSpec(SCHEMA)


def test_rows_are_transformed_written_and_counted(
    writer: MemoryWriterSpec, storage: MemoryStorage
) -> None:
    """The report says how many rows went in, and the record names them and what is staged."""

    def twice(rows: pa.RecordBatch) -> list[pa.RecordBatch]:
        return [rows, rows]

    batches = [batch(1, 2), batch(3)]
    report = run(writer, twice, batches, rows="any", ledger=job_ledger(storage))
    (opened,) = writer.opened
    assert (report.place, report.end, report.rows_in, report.problem) == (3, "complete", 3, None)
    assert [one.num_rows for one in opened.batches] == [2, 2, 1, 1]
    (record,) = records(storage)
    assert (record.log, record.end, report.records) == (report.log, "complete", 1)
    assert record.coverage.rows == 3
    assert [file.rows for group in record.groups for file in group.files] == [6]
    assert (opened.cuts, opened.abandoned) == (1, False)


def test_no_two_attempts_share_a_file_name(writer: MemoryWriterSpec) -> None:
    """Job, place and attempt are in the name: a twin or a retry writes files of its own."""
    run(writer)
    assert writer.opened[0].task_name == "job-00003-17"


def test_the_transform_sees_batches_of_the_size_asked_for(writer: MemoryWriterSpec) -> None:
    """Whatever Spark sends, batch_rows decides."""
    seen: list[int] = []

    def watch(rows: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(rows.num_rows)
        return rows

    run(writer, watch, [batch(1, 2, 3)], batch_rows=2)
    assert seen == [2, 1]


def test_a_task_without_rows_reports_and_builds_nothing(
    writer: MemoryWriterSpec, storage: MemoryStorage
) -> None:
    """A model is not loaded for an empty partition, and nothing is written for it."""

    def never() -> Transform:
        raise AssertionError("built")

    report = run(writer, per_worker(never), [], ledger=job_ledger(storage))
    assert (report.end, report.rows_in, report.problem) == ("complete", 0, None)
    assert storage.objects == {}


def test_a_failing_transform_is_reported_with_what_a_person_needs(
    writer: MemoryWriterSpec, storage: MemoryStorage
) -> None:
    """Spark would run it four times and pay for the same rows again, so it is not raised."""

    def fails_at_three(rows: pa.RecordBatch) -> pa.RecordBatch:
        if 3 in rows.column("id").to_pylist():
            raise ValueError("bad row 3")
        return rows

    batches = [batch(1, 2), batch(3, 4), batch(5)]
    report = run(writer, fails_at_three, batches, ledger=job_ledger(storage))
    assert report.problem is not None
    assert (report.problem.kind, report.end, report.rows_in) == ("transform", "stopped", 2)
    facts = report.problem.facts
    assert facts["error"] == "ValueError: bad row 3"
    assert facts["rows"] == "rows 2 to 3 of the task"
    assert facts["keys"] == "keys (id=3) to (id=4)"
    assert facts["where"].startswith(__file__)
    assert (writer.opened[0].cuts, writer.opened[0].abandoned) == (0, True)
    (record,) = records(storage)
    assert (record.end, record.coverage, record.groups) == ("stopped", NOTHING, ())


def test_batches_before_the_one_that_fails_are_kept_as_a_chunk(
    writer: MemoryWriterSpec, storage: MemoryStorage
) -> None:
    """They were paid for: with checkpoints on, a failing batch costs itself and no other."""

    def fails_at_three(rows: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        yield rows.slice(0, 1)
        if 3 in rows.column("id").to_pylist():
            raise ValueError("bad row 3")
        yield rows.slice(1)

    report = run(
        writer,
        fails_at_three,
        [batch(1, 2), batch(3, 4)],
        ledger=job_ledger(storage),
        checkpoint_every_s=3600.0,
    )
    (record,) = records(storage)
    assert (report.end, record.end, record.coverage.span) == ("stopped", "stopped", (1, 2))
    assert (record.groups, record.chunk is not None and record.chunk.rows) == ((), 2)


def test_a_problem_names_no_key_that_the_batch_lacks(writer: MemoryWriterSpec) -> None:
    """A key that a projection removed costs only the hint."""
    report = run(writer, lambda _: 1 / 0, [batch(1)], key=("day", "id"))
    assert report.problem is not None
    assert report.problem.facts["keys"] == ""


@pytest.mark.parametrize("late", [False, True])
def test_an_error_in_a_generator_or_a_factory_is_the_transforms_own(
    writer: MemoryWriterSpec, storage: MemoryStorage, *, late: bool
) -> None:
    """It is reported the same way, wherever in the user's code it was raised."""

    def generator(rows: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        yield rows
        raise RuntimeError("half way")

    def factory() -> Transform:
        raise RuntimeError("half way")

    transform = generator if late else per_worker(factory)
    report = run(writer, transform, [batch(1)], ledger=job_ledger(storage))
    assert report.problem is not None
    assert report.problem.facts["error"] == "RuntimeError: half way"
    assert [(one.coverage, one.groups) for one in records(storage)] == [(NOTHING, ())]
    assert writer.opened[0].abandoned


def test_output_that_is_no_rows_is_the_transforms_problem(writer: MemoryWriterSpec) -> None:
    """None for rows is a mistake that the report explains."""
    report = run(writer, lambda _: None, [batch(1)])
    assert report.problem is not None
    assert report.problem.kind == "transform"
    assert "NoneType" in report.problem.facts["error"]


def test_output_that_does_not_fit_is_a_schema_problem(writer: MemoryWriterSpec) -> None:
    """No retry mends it: it is reported with table, column and reason."""
    report = run(writer, lambda rows: {"id": ["x"] * rows.num_rows}, [batch(1)])
    assert report.problem is not None
    assert (report.problem.kind, report.problem.facts["column"]) == ("schema", "id")
    assert "does not fit" in report.problem.facts["problem"]
    assert writer.opened[0].abandoned


@pytest.mark.parametrize("moment", ["write_error", "cut_error"])
def test_an_error_of_storage_is_raised_so_that_spark_retries(
    writer: MemoryWriterSpec, moment: str
) -> None:
    """A lost connection passes; what was begun is given up."""
    setattr(writer, moment, OSError("connection lost"))
    with pytest.raises(OSError, match="connection lost"):
        run(writer, None, [batch(1)])
    assert writer.opened[0].abandoned


def test_an_error_of_the_input_is_raised(writer: MemoryWriterSpec) -> None:
    """What Spark could not read is Spark's to retry."""

    def broken() -> Iterable[pa.RecordBatch]:
        yield batch(1)
        raise OSError("shuffle file lost")

    with pytest.raises(OSError, match="shuffle"):
        run(writer, None, broken())
    assert writer.opened[0].abandoned


def test_a_plan_survives_pickle(writer: MemoryWriterSpec) -> None:
    """What the driver sends is what the executor runs."""
    plan = TaskPlan(
        transform=None,
        batch_rows=5,
        key=("id",),
        writer=writer,
        ledger=job_ledger(),
        job_nonce="j",
        checkpoint_every_s=30.0,
        rows="any",
    )
    copy: TaskPlan = pickle.loads(pickle.dumps(plan))  # noqa: S301 - ours.
    ledger = replace(copy.ledger, storage=plan.ledger.storage)  # A copy that is equal to no other.
    assert replace(copy, ledger=ledger) == plan
