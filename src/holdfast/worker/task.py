"""One task: take batches, transform them, write the output, report.

Transform and writer share one process: two consecutive steps of Spark would run in two, and
every row would cross between them.
"""

from __future__ import annotations

import socket
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from holdfast.errors import SchemaMismatchError
from holdfast.sinks.base import TaskWriter, WriterSpec
from holdfast.worker.batches import resize
from holdfast.worker.reports import TaskProblem, TaskReport
from holdfast.worker.transforms import (
    PerWorker,
    Transform,
    TransformOutputError,
    output_batches,
    ready,
)

RowCount = Literal["same", "any"]

# A model's error may carry a whole document; Spark collects one from every task.
_ERROR_LENGTH_MAX = 2000
_KEY_LENGTH_MAX = 200


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """What every task of a job does. Pickled on the driver, never stored."""

    transform: Transform | PerWorker | None
    batch_rows: int | None
    key: tuple[str, ...]
    writer: WriterSpec
    # Names the files of this job; no other job uses it.
    job_nonce: str
    # "same": as many rows out as in, for every batch; anything else is the transform's error.
    rows: RowCount = "same"


@dataclass(kw_only=True)
class _Progress:
    rows_in: int = 0
    rows_out: int = 0
    problem: TaskProblem | None = field(default=None)


def run_task(
    plan: TaskPlan, batches: Iterable[pa.RecordBatch], *, place: int, attempt: int
) -> TaskReport:
    """Do one task's work. Runs on an executor.

    Args:
        plan: What to do.
        batches: The task's input.
        place: Spark's partition id: where in the job this task stands.
        attempt: Spark's task attempt id: the only number that no other attempt has.
    """
    writer = plan.writer.open(f"{plan.job_nonce}-{place:05d}-{attempt}")
    progress = _Progress()
    try:
        _work(plan, batches, writer, progress)
        groups = [] if progress.problem else writer.finish()
    except BaseException:
        writer.abandon()
        raise
    if progress.problem:
        writer.abandon()
    return TaskReport(
        place=place,
        rows_in=progress.rows_in,
        rows_out=progress.rows_out,
        groups=tuple(groups),
        problem=progress.problem,
    )


def _work(
    plan: TaskPlan,
    batches: Iterable[pa.RecordBatch],
    writer: TaskWriter,
    progress: _Progress,
) -> None:
    for batch in resize(batches, plan.batch_rows):
        rows_out = 0
        try:
            for output in _transformed(plan, batch):
                writer.write(output)
                rows_out += output.num_rows
            _check_rows(plan, batch.num_rows, rows_out)
        except _TransformFailedError as failure:
            progress.problem = _transform_problem(plan, batch, progress.rows_in, failure.error)
            return
        except SchemaMismatchError as error:
            progress.problem = TaskProblem(
                kind="schema",
                host=socket.gethostname(),
                facts={"table": error.table, "column": error.column, "problem": error.problem},
            )
            return
        progress.rows_in += batch.num_rows
        progress.rows_out += rows_out


class _TransformFailedError(Exception):
    """Tells the transform's own error from the writer's."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def _transformed(plan: TaskPlan, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the batch's output piece by piece: a generator's output is never held as a whole.

    Raises:
        _TransformFailedError: The transform raised, or returned what is no rows.
    """
    try:
        yield from output_batches(ready(plan.transform)(batch))
    except Exception as error:  # A transform may raise anything.
        raise _TransformFailedError(error) from error


def _check_rows(plan: TaskPlan, rows_in: int, rows_out: int) -> None:
    if plan.rows == "same" and rows_in != rows_out:
        complaint = (
            f"it returned {rows_out} rows for a batch of {rows_in}; "
            'if it is meant to drop or multiply rows, pass rows="any"'
        )
        raise _TransformFailedError(TransformOutputError(complaint))


def _transform_problem(
    plan: TaskPlan, batch: pa.RecordBatch, rows_before: int, error: Exception
) -> TaskProblem:
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown"
    return TaskProblem(
        kind="transform",
        host=socket.gethostname(),
        facts={
            "rows": f"rows {rows_before} to {rows_before + batch.num_rows - 1} of the task",
            "keys": _key_range(plan.key, batch),
            "error": f"{type(error).__name__}: {error}"[:_ERROR_LENGTH_MAX],
            "where": where,
        },
    )


def _key_range(key: tuple[str, ...], batch: pa.RecordBatch) -> str:
    """Return the batch's first and last key, which is what a person can look up."""

    def at(row: int) -> str:
        values = [f"{name}={batch.column(name)[row].as_py()!r}" for name in key]
        return f"({', '.join(values)[:_KEY_LENGTH_MAX]})"

    if not key or any(batch.schema.names.count(name) != 1 for name in key):
        return ""
    return f"keys {at(0)} to {at(batch.num_rows - 1)}"
