"""One task's output: as many rows as went in, piece by piece, and errors that stay short."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pyarrow as pa
import pytest

from holdfast.engine.passes import raise_problems
from holdfast.errors import TransformError
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import TaskPlan
from holdfast.worker.transforms import TransformOutputError, output_batches
from tests.fakes.logs import job_ledger, task_records
from tests.fakes.memory_writer import MemoryWriter, MemoryWriterSpec

SCHEMA = pa.schema([("id", pa.int64())])
SEVEN = pa.RecordBatch.from_pydict({"id": list(range(7))})
Rule = Literal["same", "any"]


def plan(
    transform: Callable[[pa.RecordBatch], Any], rows: Rule = "same", batch_rows: int | None = None
) -> TaskPlan:
    """Return a plan over a table of one column."""
    return TaskPlan(
        transform=transform,
        batch_rows=batch_rows,
        key=("id",),
        writer=MemoryWriterSpec(SCHEMA),
        ledger=job_ledger(),
        job_nonce="job",
        rows=rows,
    )


def run(the_plan: TaskPlan, *batches: pa.RecordBatch) -> tuple[TaskReport, MemoryWriter]:
    """Run one task and return its report and its writer."""
    assert isinstance(the_plan.writer, MemoryWriterSpec)
    report = the_plan.run(batches or [SEVEN], place=0, attempt=1)
    return report, the_plan.writer.opened[0]


def staged_rows(the_plan: TaskPlan) -> list[int]:
    """Return how many rows stand in each file that the task's records name."""
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


@pytest.mark.parametrize(("transform", "count"), [one[1:] for one in OTHER_COUNTS])
def test_another_number_of_rows_is_the_transforms_problem(
    transform: Callable[[pa.RecordBatch], Any], count: int
) -> None:
    """Rows that vanish in silence are the loss that nobody notices: both counts are named."""
    the_plan = plan(transform)
    report, writer = run(the_plan)
    assert report.problem is not None
    assert (report.problem.kind, staged_rows(the_plan)) == ("transform", [])
    error = report.problem.facts["error"]
    assert error.startswith("TransformOutputError")
    assert {int(number) for number in re.findall(r"\d+", error)} == {count, 7}
    assert 'rows="any"' in error
    assert (writer.cuts, writer.abandoned) == (0, True)
    with pytest.raises(TransformError, match=f"{count} rows for a batch of 7"):
        raise_problems([report])


@pytest.mark.parametrize(("transform", "count"), [one[1:] for one in OTHER_COUNTS])
def test_a_transform_that_may_drop_and_multiply_rows_does(
    transform: Callable[[pa.RecordBatch], Any], count: int
) -> None:
    """Filters and exploders say so with `rows="any"`."""
    the_plan = plan(transform, "any")
    report, _ = run(the_plan)
    assert (report.problem, report.end, report.rows_in) == (None, "complete", 7)
    assert sum(staged_rows(the_plan)) == count
    assert [record.coverage.rows for record in task_records(the_plan.ledger)] == [7]


def test_the_rule_holds_for_each_batch_not_for_their_sum() -> None:
    """One row more here and one less there is still a row that belongs to no input."""

    def shifts_a_row(batch: pa.RecordBatch) -> Any:  # noqa: ANN401 - what a transform may return.
        return [batch, batch.slice(0, 1)] if 0 in batch["id"].to_pylist() else batch.slice(1)

    report, _ = run(plan(shifts_a_row, batch_rows=3))
    assert report.problem is not None
    assert "4 rows for a batch of 3" in report.problem.facts["error"]


def test_the_same_rows_in_other_pieces_are_fine() -> None:
    """It is the number of rows that counts, not that of batches."""
    the_plan = plan(lambda batch: [batch.slice(0, 2), {"id": batch["id"].slice(2)}])
    report, _ = run(the_plan)
    assert (report.problem, report.rows_in, staged_rows(the_plan)) == (None, 7, [7])


@pytest.mark.parametrize("rows", ["same", "any"])
@pytest.mark.parametrize("output", [{}, [{}]], ids=str)
def test_a_dict_without_columns_is_always_refused(output: object, rows: Rule) -> None:
    """It has no rows because it has no columns: that is a mistake, never a filter."""
    with pytest.raises(TransformOutputError, match="dict without columns"):
        list(output_batches(output))
    report, writer = run(plan(lambda _: output, rows))
    assert report.problem is not None
    error = report.problem.facts["error"]
    assert error == "TransformOutputError: it returned a dict without columns"
    assert writer.abandoned


@pytest.mark.parametrize("rows", ["same", "any"])
def test_a_generators_output_is_written_piece_by_piece(rows: Rule) -> None:
    """At most one piece is held: each is written before the next one is asked for."""
    the_plan = plan(lambda _: None, rows)
    assert isinstance(the_plan.writer, MemoryWriterSpec)
    written: list[int] = []
    opened = the_plan.writer.opened

    def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for row in range(batch.num_rows):
            written.append(len(opened[0].batches))
            yield batch.slice(row, 1)

    object.__setattr__(the_plan, "transform", pieces)
    report, _ = run(the_plan)
    assert (report.problem, staged_rows(the_plan)) == (None, [7])
    assert written == list(range(7))


def test_a_generator_that_fails_half_way_leaves_nothing_staged() -> None:
    """What was written by then is given up with its task."""

    def half(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield batch.slice(0, 3)
        raise ValueError("row 3 is bad")

    the_plan = plan(half)
    report, writer = run(the_plan)
    assert report.problem is not None
    assert report.problem.facts["error"] == "ValueError: row 3 is bad"
    assert (len(writer.batches), writer.abandoned, staged_rows(the_plan)) == (1, True, [])


def fails(_: pa.RecordBatch) -> pa.RecordBatch:
    """Fail as a user's code does."""
    raise RuntimeError("the model is gone")


def test_a_column_that_is_there_twice_does_not_hide_the_transforms_error() -> None:
    """The keys are a hint; which of two columns is meant, nobody can say."""
    doubled = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
    report, _ = run(plan(fails), doubled)
    assert report.problem is not None
    assert report.problem.facts["error"] == "RuntimeError: the model is gone"
    assert report.problem.facts["keys"] == ""


def test_a_long_error_is_cut() -> None:
    """A model's error may hold a whole document, and Spark collects one from every task."""

    def talks(_: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("x" * 100_000)

    report, _ = run(plan(talks))
    assert report.problem is not None
    error = report.problem.facts["error"]
    assert error.startswith("ValueError: xxx")
    assert len(error) <= 2_000
