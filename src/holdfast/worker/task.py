"""One task: take batches, transform them, write the output, make it durable, report.

Transform and writer share one process: two consecutive steps of Spark would run in two, and
every row would cross between them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import pyarrow as pa

from holdfast.errors import HoldfastError, SchemaMismatchError
from holdfast.ledger.task_log import JobLedger, TaskLog
from holdfast.sinks.base import TaskWriter, WriterSpec
from holdfast.storage.port import StorageError
from holdfast.worker.calls import Calls
from holdfast.worker.checkpoints import (
    Checkpoints,
    TaskFencedError,
    TaskInterruptedError,
    TaskYieldsError,
)
from holdfast.worker.covered_keys import NullKeysError, refuse_null_keys
from holdfast.worker.pace import Pace
from holdfast.worker.per_row import PerRow
from holdfast.worker.problems import TransformFailedError, problem_of
from holdfast.worker.reports import TaskProblem, TaskReport, transform_example
from holdfast.worker.row_steps import RowSteps
from holdfast.worker.row_window import RowWindow
from holdfast.worker.steps import FailedRow, Step, apply_to, batch_steps, halving_steps
from holdfast.worker.transforms import PerWorker, Transform
from holdfast.worker.twins import reason_to_do_nothing, twin_is_at_work, wait_for_twin

RowCount = Literal["same", "any"]
# "raise": a failing row ends its task. "quarantine": it is set aside.
OnError = Literal["raise", "quarantine"]

# How long calls that are being made may still take when the driver gives up.
_GRACE_S = 5.0
_NO_ROWS = pa.RecordBatch.from_pydict({})


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """What every task of a job does. Pickled on the driver, never stored."""

    transform: Transform | PerWorker | PerRow | None
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
    on_error: OnError = "raise"
    # How many rows of one task may be set aside; None: any number.
    errors_max: int | None = None
    # What a row's answer costs: a number, or a function of the answer or the output batch.
    cost: float | Callable[[Any], float] = 0.0

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
        writer = self.writer.open(f"{self.job_nonce}-{place:05d}-{attempt}")
        checkpoints = Checkpoints(
            ledger=ledger,
            log=TaskLog(ledger.storage, ledger.layout, name),
            writer=writer,
            key=self.key,
            every_s=every_s,
            twin_is_at_work=lambda earlier: twin_is_at_work(
                ledger, place=place, attempt=attempt, only_earlier=earlier
            ),
        )
        report = TaskReport(place=place, log=name)
        try:
            report = _Task(self, checkpoints, writer).run(batches, report)
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


class _Task:
    """One attempt at one place, from its first row to its report."""

    def __init__(self, plan: TaskPlan, checkpoints: Checkpoints, writer: TaskWriter) -> None:
        self._plan = plan
        self._checkpoints = checkpoints
        self._writer = writer
        self._rows_in = 0
        self._example = ""
        self._rows: RowSteps | None = None

    def run(self, batches: Iterable[pa.RecordBatch], report: TaskReport) -> TaskReport:
        """Work on all rows, as far as that goes."""
        checkpoints, problem = self._checkpoints, None
        try:
            if self._plan.cost:  # So that what a kill has cost can be told.
                checkpoints.say_begun()
            for step in self._steps(batches):
                failed = self._take(step)
                checkpoints.cover(step)
                self._refuse(failed)
            checkpoints.finish()
        except TaskFencedError:
            checkpoints.fail()
            report = replace(report, end="fenced")
        except TaskInterruptedError:
            self._drain(_GRACE_S)
            checkpoints.stop()
            report = replace(report, end="interrupted")
        except _BatchFailedError as error:
            checkpoints.stop_at_failed_batch()
            problem = error.problem
        except (TransformFailedError, SchemaMismatchError, NullKeysError) as error:
            # Nothing of the rows that it is about has been taken.
            checkpoints.stop()
            problem = problem_of(error, self._plan.key, _NO_ROWS, self._rows_in)
        except _RowsFailedError as error:
            self._drain(None)
            checkpoints.stop()
            problem = error.problem
        finally:
            if self._rows is not None:
                self._rows.cancel()
        if problem is not None:
            report = replace(report, end="stopped", problem=problem)
        return replace(
            report,
            rows_in=self._rows_in,
            failed_rows=checkpoints.failed_rows,
            failed_example=self._example,
        )

    def _steps(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Step]:
        plan = self._plan
        if isinstance(plan.transform, PerRow):
            self._rows = self._row_steps(plan.transform)
            return self._rows.all(_with_keys(batches, plan.key))
        pace = Pace(plan.checkpoint_every_s)
        apply = partial(apply_to, plan.transform, same=plan.rows == "same")
        if plan.on_error == "quarantine":
            keyed = _with_keys(batches, plan.key)
            return halving_steps(keyed, apply, batch_rows=plan.batch_rows, pace=pace)
        return batch_steps(batches, apply, batch_rows=plan.batch_rows, pace=pace)

    def _row_steps(self, transform: PerRow) -> RowSteps:
        plan, checkpoints = self._plan, self._checkpoints
        window = RowWindow(
            Calls(transform),
            concurrency=transform.concurrency,
            is_due=lambda: checkpoints.is_due,
            look=checkpoints.look,
        )
        return RowSteps(
            window,
            schema=plan.writer.schema,
            fit=self._writer.fit,
            same=plan.rows == "same",
            cost_of=plan.cost if callable(plan.cost) else None,
        )

    def _take(self, step: Step) -> Sequence[FailedRow]:
        """Take a step's output; return its failed rows.

        Raises:
            _BatchFailedError: There is no output, or it does not fit the table.
        """
        plan = self._plan
        try:
            refuse_null_keys(step.rows, plan.key)
            for output in step.outputs:
                self._checkpoints.hold(output)
                step.cost += self._cost_of_batch(output)
        except (TransformFailedError, SchemaMismatchError, NullKeysError) as error:
            problem = problem_of(error, plan.key, step.rows, self._rows_in)
            raise _BatchFailedError(problem) from error
        if not callable(plan.cost):
            step.cost = plan.cost * step.rows.num_rows
        step.seconds = time.monotonic() - step.began
        failed = step.failed
        self._rows_in += step.rows.num_rows + len(failed)
        if plan.on_error == "raise":
            step.failed = ()  # They are not done: they stay in the input.
        return failed

    def _cost_of_batch(self, output: pa.RecordBatch) -> float:
        """Return what a batch of output has cost, by the user's function of it.

        Raises:
            TransformFailedError: That function raised.
        """
        cost = self._plan.cost
        if not callable(cost) or self._rows is not None:
            return 0.0
        try:
            return float(cost(output))
        except Exception as error:  # It may raise anything.
            raise TransformFailedError(error) from error

    def _refuse(self, failed: Sequence[FailedRow]) -> None:
        """Stop when rows have failed and may not, or too many have.

        Raises:
            _RowsFailedError: So it is.
        """
        if not failed:
            return
        first = TransformFailedError(failed[0].error)
        position = failed[0].position
        before = self._rows_in - 1 if position is None else position
        problem = problem_of(first, self._plan.key, failed[0].row, before)
        self._example = self._example or transform_example(problem)
        too_many = self._plan.errors_max is not None and (
            self._checkpoints.failed_rows > self._plan.errors_max
        )
        if self._plan.on_error == "raise" or too_many:
            raise _RowsFailedError(problem)

    def _drain(self, grace_s: float | None) -> None:
        """Take what the calls that are being made still bring."""
        with contextlib.suppress(SchemaMismatchError):  # Then they bring nothing.
            if self._rows is not None and (step := self._rows.drained(grace_s)) is not None:
                self._take(step)
                self._checkpoints.count(step)


def _with_keys(batches: Iterable[pa.RecordBatch], key: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Hand batches on whose rows all have keys: the others must not be paid for.

    Raises:
        NullKeysError: Rows have none.
    """
    for batch in batches:
        refuse_null_keys(batch, key)
        yield batch


class _RowsFailedError(Exception):
    """Rows have failed; what came before and beside them is whole."""

    def __init__(self, problem: TaskProblem) -> None:
        super().__init__(problem)
        self.problem = problem


class _BatchFailedError(_RowsFailedError):
    """A batch has failed while its output was being written: the open files are spoilt."""
