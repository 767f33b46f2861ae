"""One task: take batches, transform them, write the output, report.

Transform and writer share one process: two consecutive steps of Spark would run in two, and
every row would cross between them.
"""

from __future__ import annotations

import socket
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.errors import SchemaMismatchError
from holdfast.sinks.base import TaskWriter, WriterSpec
from holdfast.worker.batches import resize
from holdfast.worker.reports import TaskProblem, TaskReport
from holdfast.worker.transforms import PerWorker, Transform, output_batches, ready


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """What every task of a job does. Pickled on the driver, never stored."""

    transform: Transform | PerWorker | None
    batch_rows: int | None
    key: tuple[str, ...]
    writer: WriterSpec
    # Names the files of this job; no other job uses it.
    job_nonce: str


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
    call: Transform | None = None
    for batch in resize(batches, plan.batch_rows):
        output: list[pa.RecordBatch] = []
        try:
            call = call or ready(plan.transform)
            output.extend(output_batches(call(batch)))
        except Exception as error:  # noqa: BLE001 - a transform may raise anything.
            progress.problem = _transform_problem(plan, batch, progress.rows_in, error)
            return
        try:
            for one in output:
                writer.write(one)
                progress.rows_out += one.num_rows
        except SchemaMismatchError as error:
            progress.problem = TaskProblem(
                kind="schema",
                host=socket.gethostname(),
                facts={"table": error.table, "column": error.column, "problem": error.problem},
            )
            return
        progress.rows_in += batch.num_rows


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
            "error": f"{type(error).__name__}: {error}",
            "where": where,
        },
    )


def _key_range(key: tuple[str, ...], batch: pa.RecordBatch) -> str:
    """Return the batch's first and last key, which is what a person can look up."""

    def at(row: int) -> str:
        values = [f"{name}={batch.column(name)[row].as_py()!r}" for name in key]
        return "(" + ", ".join(values) + ")"

    if not key or not set(key) <= set(batch.schema.names):
        return ""
    return f"keys {at(0)} to {at(batch.num_rows - 1)}"
