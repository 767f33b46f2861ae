"""One task: what is reported, what is raised, how many rows, and what is left behind."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from holdfast import per_worker
from holdfast.engine.passes import raise_problems
from holdfast.errors import TransformError
from holdfast.model.coverage import NOTHING
from holdfast.model.work import TaskRecord
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import TaskPlan
from holdfast.worker.transforms import PerWorker, Transform, TransformOutputError, output_batches
from tests.fakes.logs import job_ledger, task_records
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.memory_writer import MemoryWriter, MemoryWriterSpec

# ---- One task: what is reported, what is raised, and what is left behind
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def batch(*ids: int) -> pa.RecordBatch:
    """Return input rows with these ids."""
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
    """The report says how many rows went in; the record names them and what is staged."""

    def twice(rows: pa.RecordBatch) -> list[pa.RecordBatch]:
        return [rows, rows]

    batches = [batch(1, 2), batch(3)]
    report = run(writer, twice, batches, one_to_one=False, ledger=job_ledger(storage))
    (opened,) = writer.opened
    assert (report.place, report.end, report.rows_in, report.problem) == (3, "complete", 3, None)
    assert [rows.num_rows for rows in opened.batches] == [2, 2, 1, 1]
    (record,) = records(storage)
    assert (record.log, record.end, report.records) == (report.log, "complete", 1)
    assert record.coverage.rows == 3
    assert [file.rows for group in record.groups for file in group.files] == [6]
    assert (opened.cuts, opened.abandoned) == (1, False)


def test_no_two_attempts_share_a_file_name(writer: MemoryWriterSpec) -> None:
    """Job, place and attempt are in the name: a twin or a retry writes files of its own."""
    run(writer)
    assert writer.opened[0].task_name == "job-00003-17"


def test_the_transform_sees_batches_of_the_requested_size(writer: MemoryWriterSpec) -> None:
    """batch_rows decides, whatever Spark sends."""
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


def test_a_failing_transform_is_reported_with_error_rows_and_keys(
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
    """They were paid for: with checkpoints on, a failing batch costs only itself."""

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
    assert [(record.coverage, record.groups) for record in records(storage)] == [(NOTHING, ())]
    assert writer.opened[0].abandoned


def test_output_that_is_not_rows_is_the_transforms_problem(writer: MemoryWriterSpec) -> None:
    """Returning None is a mistake that the report explains."""
    report = run(writer, lambda _: None, [batch(1)])
    assert report.problem is not None
    assert report.problem.kind == "transform"
    assert "NoneType" in report.problem.facts["error"]


def test_output_that_does_not_fit_is_a_schema_problem(writer: MemoryWriterSpec) -> None:
    """A retry would not help: it is reported with table, column and reason."""
    report = run(writer, lambda rows: {"id": ["x"] * rows.num_rows}, [batch(1)])
    assert report.problem is not None
    assert (report.problem.kind, report.problem.facts["column"]) == ("schema", "id")
    assert "cannot be cast" in report.problem.facts["problem"]
    assert writer.opened[0].abandoned


@pytest.mark.parametrize("moment", ["write_error", "cut_error"])
def test_a_storage_error_is_raised_so_that_spark_retries(
    writer: MemoryWriterSpec, moment: str
) -> None:
    """A lost connection is transient; files that were begun are abandoned."""
    setattr(writer, moment, OSError("connection lost"))
    with pytest.raises(OSError, match="connection lost"):
        run(writer, None, [batch(1)])
    assert writer.opened[0].abandoned


def test_an_input_error_is_raised(writer: MemoryWriterSpec) -> None:
    """Spark must retry what it could not read."""

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
        one_to_one=False,
    )
    copy: TaskPlan = pickle.loads(pickle.dumps(plan))  # noqa: S301 - ours.
    ledger = replace(copy.ledger, storage=plan.ledger.storage)  # A copy that equals no other.
    assert replace(copy, ledger=ledger) == plan


# ---- One task's output: as many rows as went in, piece by piece, and errors that stay short
ONE_COLUMN = pa.schema([("id", pa.int64())])
SEVEN = pa.RecordBatch.from_pydict({"id": list(range(7))})


def plan(
    transform: Callable[[pa.RecordBatch], Any],
    *,
    one_to_one: bool = True,
    batch_rows: int | None = None,
) -> TaskPlan:
    """Return a plan over a table of one column."""
    return TaskPlan(
        transform=transform,
        batch_rows=batch_rows,
        key=("id",),
        writer=MemoryWriterSpec(ONE_COLUMN),
        ledger=job_ledger(),
        job_nonce="job",
        one_to_one=one_to_one,
    )


def run_plan(the_plan: TaskPlan, *batches: pa.RecordBatch) -> tuple[TaskReport, MemoryWriter]:
    """Run one task and return its report and its writer."""
    assert isinstance(the_plan.writer, MemoryWriterSpec)
    report = the_plan.run(batches or [SEVEN], place=0, attempt=1)
    return report, the_plan.writer.opened[0]


def staged_rows(the_plan: TaskPlan) -> list[int]:
    """Return how many rows are in each file that the task's records name."""
    groups = [group for record in task_records(the_plan.ledger) for group in record.groups]
    return [file.rows for group in groups for file in group.files]


OTHER_COUNTS: list[tuple[str, Callable[[pa.RecordBatch], Any], int]] = [
    ("an empty list", lambda _: [], 0),
    ("an empty generator", lambda _: iter(()), 0),
    ("no rows", lambda batch: batch.slice(0, 0), 0),
    ("a slice", lambda batch: batch.slice(0, 1), 1),
    ("twice", lambda batch: [batch, batch], 14),
    ("a column", lambda batch: {"id": batch.column("id").slice(3)}, 4),
]


@pytest.mark.parametrize(("transform", "count"), [case[1:] for case in OTHER_COUNTS])
def test_another_number_of_rows_is_the_transforms_problem(
    transform: Callable[[pa.RecordBatch], Any], count: int
) -> None:
    """Rows must not vanish silently: the error names both counts."""
    the_plan = plan(transform)
    report, writer = run_plan(the_plan)
    assert report.problem is not None
    assert (report.problem.kind, staged_rows(the_plan)) == ("transform", [])
    error = report.problem.facts["error"]
    assert error.startswith("TransformOutputError")
    assert {int(number) for number in re.findall(r"\d+", error)} == {count, 7}
    assert "one_to_one=False" in error
    assert (writer.cuts, writer.abandoned) == (0, True)
    with pytest.raises(TransformError, match=f"{count} rows for a batch of 7"):
        raise_problems([report])


@pytest.mark.parametrize(("transform", "count"), [case[1:] for case in OTHER_COUNTS])
def test_a_transform_that_may_drop_and_multiply_rows_does(
    transform: Callable[[pa.RecordBatch], Any], count: int
) -> None:
    """Filters and exploders pass `one_to_one=False`."""
    the_plan = plan(transform, one_to_one=False)
    report, _ = run_plan(the_plan)
    assert (report.problem, report.end, report.rows_in) == (None, "complete", 7)
    assert sum(staged_rows(the_plan)) == count
    assert [record.coverage.rows for record in task_records(the_plan.ledger)] == [7]


def test_the_rule_holds_for_each_batch_not_for_their_sum() -> None:
    """One row more here and one less there is still a row without an input row."""

    def shifts_a_row(batch: pa.RecordBatch) -> Any:  # noqa: ANN401 - what a transform may return.
        return [batch, batch.slice(0, 1)] if 0 in batch["id"].to_pylist() else batch.slice(1)

    report, _ = run_plan(plan(shifts_a_row, batch_rows=3))
    assert report.problem is not None
    assert "4 rows for a batch of 3" in report.problem.facts["error"]


def test_the_same_rows_in_other_pieces_are_fine() -> None:
    """The number of rows counts, not that of batches."""
    the_plan = plan(lambda batch: [batch.slice(0, 2), {"id": batch["id"].slice(2)}])
    report, _ = run_plan(the_plan)
    assert (report.problem, report.rows_in, staged_rows(the_plan)) == (None, 7, [7])


@pytest.mark.parametrize("one_to_one", [True, False])
@pytest.mark.parametrize("output", [{}, [{}]], ids=str)
def test_a_dict_without_columns_is_always_refused(output: object, *, one_to_one: bool) -> None:
    """It has no rows because it has no columns: a mistake, never a filter."""
    with pytest.raises(TransformOutputError, match="dict without columns"):
        list(output_batches(output))
    report, writer = run_plan(plan(lambda _: output, one_to_one=one_to_one))
    assert report.problem is not None
    error = report.problem.facts["error"]
    assert error == "TransformOutputError: it returned a dict without columns"
    assert writer.abandoned


@pytest.mark.parametrize("one_to_one", [True, False])
def test_a_generators_output_is_written_piece_by_piece(*, one_to_one: bool) -> None:
    """At most one piece is held: each is written before the next is requested."""
    the_plan = plan(lambda _: None, one_to_one=one_to_one)
    assert isinstance(the_plan.writer, MemoryWriterSpec)
    written: list[int] = []
    opened = the_plan.writer.opened

    def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for row in range(batch.num_rows):
            written.append(len(opened[0].batches))
            yield batch.slice(row, 1)

    object.__setattr__(the_plan, "transform", pieces)
    report, _ = run_plan(the_plan)
    assert (report.problem, staged_rows(the_plan)) == (None, [7])
    assert written == list(range(7))


def test_a_generator_that_fails_half_way_leaves_nothing_staged() -> None:
    """What was written by then is abandoned with its task."""

    def half(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield batch.slice(0, 3)
        raise ValueError("row 3 is bad")

    the_plan = plan(half)
    report, writer = run_plan(the_plan)
    assert report.problem is not None
    assert report.problem.facts["error"] == "ValueError: row 3 is bad"
    assert (len(writer.batches), writer.abandoned, staged_rows(the_plan)) == (1, True, [])


def fails(_: pa.RecordBatch) -> pa.RecordBatch:
    """Fail as a user's code does."""
    raise RuntimeError("the model is gone")


def test_a_duplicate_column_does_not_hide_the_transforms_error() -> None:
    """The keys are only a hint, and it is unknown which of the two columns is meant."""
    doubled = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
    report, _ = run_plan(plan(fails), doubled)
    assert report.problem is not None
    assert report.problem.facts["error"] == "RuntimeError: the model is gone"
    assert report.problem.facts["keys"] == ""


def test_a_long_error_is_cut() -> None:
    """A model's error may hold a whole document, and Spark collects one from every task."""

    def talks(_: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("x" * 100_000)

    report, _ = run_plan(plan(talks))
    assert report.problem is not None
    error = report.problem.facts["error"]
    assert error.startswith("ValueError: xxx")
    assert len(error) <= 2_000
