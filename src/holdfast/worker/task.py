"""One task: take batches, transform them, write the output, make it durable, report.

Transform and writer share one process: two consecutive steps of Spark would run in two, and
every row would cross between them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from holdfast.errors import HoldfastError, SchemaMismatchError
from holdfast.ledger.task_log import JobLedger, TaskLog
from holdfast.sinks.base import WriterSpec
from holdfast.storage.port import StorageError
from holdfast.worker.batches import resize
from holdfast.worker.checkpoints import Checkpoints, TaskFencedError, TaskYieldsError
from holdfast.worker.covered_keys import NullKeysError, refuse_null_keys, split_hash
from holdfast.worker.pace import Pace, paced
from holdfast.worker.problems import TransformFailedError, problem_of
from holdfast.worker.reports import TaskReport
from holdfast.worker.transforms import (
    PerWorker,
    Transform,
    TransformOutputError,
    output_batches,
    ready,
)
from holdfast.worker.twins import reason_to_do_nothing, twin_is_at_work, wait_for_twin

RowCount = Literal["same", "any"]


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """What every task of a job does. Pickled on the driver, never stored."""

    transform: Transform | PerWorker | None
    batch_rows: int | None
    key: tuple[str, ...]
    writer: WriterSpec
    ledger: JobLedger
    # Names the files of this job; no other job uses it.
    job_nonce: str
    # How much work may be lost, in seconds; None: only what is in closed table files is kept.
    checkpoint_every_s: float | None = None
    # "same": as many rows out as in, for every batch; anything else is the transform's error.
    rows: RowCount = "same"

    def run(self, batches: Iterable[pa.RecordBatch], *, place: int, attempt: int) -> TaskReport:
        """Do one task's work. Runs on an executor.

        Args:
            batches: The task's input.
            place: Spark's partition id: where in the job this task stands.
            attempt: Spark's task attempt id: the only number that no other attempt has.
        """
        ledger, every_s = self.ledger, self.checkpoint_every_s
        end = reason_to_do_nothing(ledger, place=place, attempt=attempt, every_s=every_s)
        if end is not None:
            return TaskReport(place=place, end=end)
        name = ledger.log_name(place, attempt)
        checkpoints = Checkpoints(
            ledger=ledger,
            log=TaskLog(ledger.storage, ledger.layout, name),
            writer=self.writer.open(f"{self.job_nonce}-{place:05d}-{attempt}"),
            key=self.key,
            every_s=every_s,
            twin_is_at_work=lambda earlier: twin_is_at_work(
                ledger, place=place, attempt=attempt, only_earlier=earlier
            ),
        )
        report = TaskReport(place=place, log=name)
        try:
            report = _work(self, batches, checkpoints, report)
        except TaskYieldsError:
            checkpoints.fail()
            # Ending before the other would make Spark kill it.
            wait_for_twin(ledger, place=place, attempt=attempt, every_s=every_s)
            report = replace(report, end="left")
        except BaseException:
            with contextlib.suppress(HoldfastError, StorageError, OSError):
                checkpoints.fail()
            raise
        return replace(report, records=checkpoints.records)


def _work(
    plan: TaskPlan, batches: Iterable[pa.RecordBatch], checkpoints: Checkpoints, report: TaskReport
) -> TaskReport:
    pace = Pace(plan.checkpoint_every_s)
    pieces = resize(batches, plan.batch_rows) if plan.batch_rows else paced(batches, pace)
    rows_in = 0
    for piece in pieces:
        batch, hashes = split_hash(piece)
        started = time.monotonic()
        try:
            refuse_null_keys(batch, plan.key)
            _transform(plan, batch, checkpoints)
            seconds = time.monotonic() - started
            checkpoints.cover(batch, hashes, seconds)
        except (TransformFailedError, SchemaMismatchError, NullKeysError) as error:
            checkpoints.stop()
            problem = problem_of(error, plan.key, batch, rows_in)
            return replace(report, end="stopped", rows_in=rows_in, problem=problem)
        except TaskFencedError:
            checkpoints.fail()
            return replace(report, end="fenced", rows_in=rows_in)
        pace.took(seconds)
        rows_in += batch.num_rows
    checkpoints.finish()
    return replace(report, rows_in=rows_in)


def _transform(plan: TaskPlan, batch: pa.RecordBatch, checkpoints: Checkpoints) -> None:
    """Hand the batch's output on piece by piece: a generator's output is never held as a whole.

    Raises:
        TransformFailedError: The transform raised, or returned what is no rows.
    """
    rows_out = 0
    for output in _outputs(plan, batch):
        checkpoints.hold(output)
        rows_out += output.num_rows
    if plan.rows == "same" and batch.num_rows != rows_out:
        complaint = (
            f"it returned {rows_out} rows for a batch of {batch.num_rows}; "
            'if it is meant to drop or multiply rows, pass rows="any"'
        )
        raise TransformFailedError(TransformOutputError(complaint))


def _outputs(plan: TaskPlan, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Call the transform.

    Raises:
        TransformFailedError: It raised, or returned what is no rows.
    """
    try:
        yield from output_batches(ready(plan.transform)(batch))
    except Exception as error:  # A transform may raise anything.
        raise TransformFailedError(error) from error
