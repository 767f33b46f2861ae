"""One task: take batches, transform them, write the output, make it durable, report.

However the task ends, finished and paid work is made durable as far as allowed.

Transform and writer share one process: two consecutive Spark steps would run in two, and every row
would have to pass between them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol

import pyarrow as pa

from holdfast.errors import HoldfastError, InputChangedError, SchemaMismatchError
from holdfast.failpoints import failpoint
from holdfast.ledger.task_log import JobLedger
from holdfast.model.coverage import FileSlice, Span
from holdfast.model.lasting import code_lasts
from holdfast.model.limits import DEFAULT_LIMITS, Limits
from holdfast.model.stored import CostError, cost_of
from holdfast.sinks.base import TaskWriter, WriterSpec
from holdfast.sources.base import ScanReader
from holdfast.storage.port import StorageError
from holdfast.storage.runtime import io_runtime
from holdfast.worker.batch_steps import (
    Apply,
    FailedRow,
    Pace,
    Step,
    apply_to,
    batch_steps,
    fitting_to,
    halving_steps,
    numbered,
)
from holdfast.worker.budget import Account, Allowance, Purse
from holdfast.worker.calls import Calls
from holdfast.worker.checkpoints import (
    Checkpoints,
    TaskFencedError,
    TaskInterruptedError,
    TaskYieldsError,
)
from holdfast.worker.coverage import NullKeysError, refuse_null_keys
from holdfast.worker.reports import (
    TaskProblem,
    TaskReport,
    TransformFailedError,
    problem_of,
    transform_example,
)
from holdfast.worker.row_steps import RowSteps, RowWindow
from holdfast.worker.transforms import BatchFormat, PerRow, PerWorker, Transform
from holdfast.worker.twins import reason_to_do_nothing, twin_is_at_work, wait_for_twin

# ---- The input of a task that reads its rows itself

# The only column of the DataFrame that Spark runs over: the numbers of work items.
ITEM_COLUMN = "id"


@dataclass(frozen=True, kw_only=True)
class ScanTask:
    """All work items of a job, and how they are read. Pickled with the task plan."""

    reader: ScanReader
    items: Sequence[Sequence[FileSlice]]

    def rows(
        self, batches: Iterable[pa.RecordBatch], passed_over: list[Span]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's items.

        Args:
            batches: The task's input from Spark: numbers of items. A batch can hold several.
            passed_over: Where the reader notes rows that it leaves out.
        """
        for batch in batches:
            for number in batch.column(ITEM_COLUMN).to_pylist():
                yield from self.reader.read(self.items[number], passed_over)

    def locate(self, number: int) -> tuple[str, int]:
        """Return the file that holds a row, and the row's number there."""
        for item in self.items:
            for file_slice in item:
                if file_slice.base + file_slice.start <= number < file_slice.base + file_slice.stop:
                    return file_slice.file.uri, number - file_slice.base
        return "", number


# ---- The plan, and how one task carries it out

# "raise": a failing row ends its task. "quarantine": the row is set aside.
OnError = Literal["raise", "quarantine"]


def item_texts(batches: Iterable[pa.RecordBatch]) -> Iterator[str]:
    """Yield the work items of a task: a batch may hold several, and a task several batches."""
    return (text for batch in batches for text in batch.column(0).to_pylist())


class ItemPlan(Protocol):
    """The work of every task of a job over work items, such as a replay. Pickled, never stored."""

    def run(self, batches: Iterable[pa.RecordBatch], *, place: int, attempt: int) -> TaskReport:
        """Do one task's work. Runs on an executor; arguments as for `TaskPlan.run`."""


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """The work of every task of a job. Pickled on the driver, never stored."""

    transform: Transform | PerWorker | PerRow | None
    batch_rows: int | None
    key: tuple[str, ...]
    writer: WriterSpec
    ledger: JobLedger
    # Names the files of this job; no other job uses it.
    job_nonce: str
    # How much work may be lost, in seconds; None: only rows in closed table files are kept.
    checkpoint_every_s: float | None = None
    # Whether the transform must return as many rows as it gets, for every batch.
    one_to_one: bool = True
    # The format that a batch transform gets.
    batch_format: BatchFormat = "arrow"
    on_error: OnError = "raise"
    # How many rows of one task may be set aside; None for any number.
    errors_max: int | None = None
    # For a scan: the task reads its rows itself, and Spark only says which.
    scan: ScanTask | None = None
    # The cost of a row's answer: a number, or a function of the answer or the output batch.
    cost: float | Callable[[Any], float] = 0.0
    # What all tasks of the job may spend together; None for any amount.
    allowance: Allowance | None = None
    limits: Limits = DEFAULT_LIMITS
    # Whether Spark adds the hash of each whole row, for the records to sum.
    whole_rows: bool = False
    # Whether the job fails if all answers lack a column, even if failing rows are set aside.
    judges_answers: bool = True
    # Whether the writer is told the number of each row: see `numbered`.
    numbers_rows: bool = False

    def run(self, batches: Iterable[pa.RecordBatch], *, place: int, attempt: int) -> TaskReport:
        """Do one task's work. Runs on an executor.

        Args:
            batches: The task's input.
            place: Spark's partition id: this task's position in the job.
            attempt: Spark's task attempt id, which no other attempt shares.
        """
        ledger, every_s = self.ledger, self.checkpoint_every_s
        end = reason_to_do_nothing(ledger, place=place, attempt=attempt, every_s=every_s)
        if end is not None:
            return TaskReport(place=place, end=end)
        if self.transform is not None and ledger.is_hopeless():
            return TaskReport(place=place, end="spent" if self.allowance else "left")
        failpoint("before-task")
        before = io_runtime().counters
        name = ledger.log_name(place, attempt)
        purse = self._purse(place)
        writer = self.writer.open(f"{self.job_nonce}-{place:05d}-{attempt}", self.limits)
        checkpoints = Checkpoints(
            ledger=ledger,
            log=ledger.log(place, attempt),
            writer=writer,
            key=self.key,
            locate=self.scan.locate if self.scan is not None else None,
            every_s=every_s,
            copies=self.transform is not None,
            batch_bytes=self.limits.batch_bytes,
            clock=ledger.ports.monotonic,
            spent=lambda: purse.spent,
            twin_is_at_work=lambda earlier: twin_is_at_work(
                ledger, place=place, attempt=attempt, only_earlier=earlier
            ),
        )
        report = TaskReport(place=place, log=name)
        rows = batches if self.scan is None else self.scan.rows(batches, checkpoints.passed_over)
        try:
            with io_runtime().bounded(self.limits.in_flight_bytes):
                report = Attempt(self, checkpoints, writer, purse).run(rows, report)
        except TaskYieldsError:
            checkpoints.fail()
            _settle(purse)  # The other attempt may need it.
            # If this attempt ended before the other, Spark would kill the other.
            wait_for_twin(ledger, place=place, attempt=attempt, every_s=every_s)
            report = replace(report, end="left")
        except BaseException:
            with contextlib.suppress(HoldfastError, StorageError, OSError):
                checkpoints.fail()
            raise
        finally:
            _settle(purse)
        if report.end == "spent" or (report.problem is not None and report.problem.of_the_job):
            with contextlib.suppress(HoldfastError):  # Only a hint: the driver gets the report.
                ledger.say_hopeless()
        failpoint("before-report")
        io = asdict(io_runtime().counters.since(before))
        return replace(report, records=checkpoints.records, io=io)

    def _purse(self, place: int) -> Purse:
        ledger, allowance = self.ledger, self.allowance
        if allowance is None:
            return Purse()
        account = Account(
            ledger.storage,
            ledger.layout,
            ledger.tasks,
            amount=allowance.amount,
            chains=allowance.chains,
            nonce=ledger.ports.new_nonce(),
            sleep=ledger.ports.sleep,
        )
        return Purse(account, allowance, place, has_ended=lambda: bool(ledger.end()))


def _settle(purse: Purse) -> None:
    """Give back what is left; what is not given back counts as spent."""
    with contextlib.suppress(HoldfastError, StorageError, OSError):
        purse.settle()


# ---- One attempt at a task's rows: step by step, until they are done or the attempt must stop

# How long calls in progress may still take when the driver is stopping.
_GRACE_S = 5.0
_NO_ROWS = pa.RecordBatch.from_pydict({})


class Attempt:
    """One attempt at one place, from its first row to its report."""

    def __init__(
        self, plan: TaskPlan, checkpoints: Checkpoints, writer: TaskWriter, purse: Purse
    ) -> None:
        """Keep the parts; no row is read yet."""
        self._plan = plan
        self._checkpoints = checkpoints
        self._writer = writer
        self._purse = purse
        # How much of what was spent is the cost of steps.
        self._of_steps = 0.0
        self._cost_error: CostError | None = None
        self._rows_in = 0
        self._example = self._traceback = ""
        self._may_pass = False
        self._rows: RowSteps | None = None

    def run(self, batches: Iterable[pa.RecordBatch], report: TaskReport) -> TaskReport:
        """Work on all rows, as far as possible."""
        checkpoints, problem = self._checkpoints, None
        try:
            if self._plan.cost:  # So that the cost of a kill can be reported.
                checkpoints.say_begun()
            for step in self._steps(batches):
                failpoint("after-batch")
                failed = self._take(step)
                checkpoints.cover(step)
                self._refuse(failed)
            report = self._ended(report)
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
        except (
            TransformFailedError,
            SchemaMismatchError,
            NullKeysError,
            InputChangedError,
        ) as error:
            # No output of the rows at fault has been taken.
            checkpoints.stop()
            problem = problem_of(
                error, self._plan.key, _NO_ROWS, self._rows_in, self._plan.transform
            )
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
            failed_traceback=self._traceback,
            failed_may_pass=self._may_pass,
        )

    def _ended(self, report: TaskReport) -> TaskReport:
        """End the log: the rows are all done, or the task cannot pay for the rest."""
        if self._purse.is_out:
            self._checkpoints.stop()
            return replace(report, end="spent")
        self._checkpoints.finish()
        return report

    def _steps(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Step]:
        plan = self._plan
        if isinstance(plan.transform, PerRow):
            self._rows = self._row_steps(plan.transform)
            return self._rows.all(_with_keys(batches, plan.key))
        pace = Pace(plan.checkpoint_every_s, plan.limits.batch_bytes)
        apply = partial(
            self._paid,
            partial(
                apply_to,
                plan.transform,
                batch_format=plan.batch_format,
                one_to_one=plan.one_to_one,
            ),
        )
        sizes: Any = {
            "batch_rows": plan.batch_rows,
            "pace": pace,
            "affords": self._purse.affords,
        }
        if plan.on_error == "quarantine":
            keyed = _with_keys(batches, plan.key)
            fitting = partial(fitting_to, apply, self._writer.fit, plan.limits.batch_bytes)
            return halving_steps(keyed, fitting, **sizes)
        return batch_steps(batches, apply, **sizes)

    def _row_steps(self, transform: PerRow) -> RowSteps:
        plan, checkpoints, cost = self._plan, self._checkpoints, self._plan.cost
        window = RowWindow(
            Calls(transform),
            concurrency=transform.concurrency,
            is_due=lambda: checkpoints.is_due,
            look=checkpoints.look,
            cost_of=cost if callable(cost) else lambda _: cost,
            purse=self._purse,
        )
        return RowSteps(
            window,
            spec=plan.writer,
            fit=self._writer.fit,
            one_to_one=plan.one_to_one,
            is_strict=plan.on_error == "raise",
            judges=plan.judges_answers,
        )

    def _take(self, step: Step) -> Sequence[FailedRow]:
        """Take a step's output; return its failed rows.

        Raises:
            _BatchFailedError: There is no output, or it does not fit the table.
        """
        plan = self._plan
        try:
            refuse_null_keys(step.rows, plan.key)
            outputs = numbered(step.outputs, step.tags) if plan.numbers_rows else step.outputs
            for output in outputs:
                self._checkpoints.hold(output)
                self._refuse_unpriced()
        except (TransformFailedError, SchemaMismatchError, NullKeysError) as error:
            problem = problem_of(error, plan.key, step.rows, self._rows_in, plan.transform)
            raise _BatchFailedError(problem) from error
        if self._rows is None:
            step.cost = self._purse.spent - self._of_steps
        self._of_steps += step.cost
        step.seconds = time.monotonic() - step.began
        failed = step.failed
        self._rows_in += step.rows.num_rows + len(failed)
        # Rows that are not done stay in the input.
        step.failed = [failure for failure in failed if not self._must_raise(failure)]
        return failed

    def _must_raise(self, failure: FailedRow) -> bool:
        """Whether a row may not be set aside: with a budget, an answer without a price is free."""
        is_unpriced = isinstance(failure.error, CostError) and self._purse.is_limited
        return self._plan.on_error == "raise" or is_unpriced

    def _paid(self, apply: Apply, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Pay for the transform's output as it comes, whatever becomes of it."""
        cost, unpaid = self._plan.cost, rows.num_rows
        for output in apply(rows):
            self._purse.pay(self._cost_of(output) if callable(cost) else cost * unpaid, unpaid)
            unpaid = 0
            yield output
        if unpaid:  # There was no output.
            self._purse.pay(0.0 if callable(cost) else cost * unpaid, unpaid)

    def _cost_of(self, output: pa.RecordBatch) -> float:
        """Return the cost of an output batch; if the user's function raises, `_take` says so."""
        try:
            return cost_of(self._plan.cost, output)  # type: ignore[arg-type]
        except CostError as error:
            self._cost_error = self._cost_error or error
            return 0.0

    def _refuse_unpriced(self) -> None:
        """Stop if the user's cost function has raised.

        Raises:
            TransformFailedError: It has.
        """
        if self._cost_error is not None:
            raise TransformFailedError(self._cost_error)

    def _refuse(self, failed: Sequence[FailedRow]) -> None:
        """Stop if rows have failed and may not, or too many have.

        Raises:
            _RowsFailedError: A row failed and failures are not allowed, or more failed than
                allowed.
        """
        if not failed:
            return
        raised = next(filter(self._must_raise, failed), None)
        first = raised or failed[0]
        before = self._rows_in - 1 if first.position is None else first.position
        error, plan = TransformFailedError(first.error), self._plan
        problem = problem_of(error, plan.key, first.row, before, plan.transform)
        self._example = self._example or transform_example(problem)
        self._traceback = self._traceback or problem.facts["traceback"]
        self._may_pass = self._may_pass or not all(code_lasts(failure.error) for failure in failed)
        too_many = plan.errors_max is not None and (self._checkpoints.failed_rows > plan.errors_max)
        if raised is not None or too_many:
            raise _RowsFailedError(problem)

    def _drain(self, grace_s: float | None) -> None:
        """Take the results of the calls still in progress."""
        with contextlib.suppress(SchemaMismatchError):  # Then there are no results.
            if self._rows is not None and (step := self._rows.drained(grace_s)) is not None:
                self._take(step)
                self._checkpoints.count(step)


def _with_keys(batches: Iterable[pa.RecordBatch], key: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Pass on batches whose rows all have keys; rows without one must not be paid for.

    Raises:
        NullKeysError: Some rows have NULL in their key.
    """
    for batch in batches:
        refuse_null_keys(batch, key)
        yield batch


class _RowsFailedError(Exception):
    """Rows have failed; the rows before and beside them are intact."""

    def __init__(self, problem: TaskProblem) -> None:
        super().__init__(problem)
        self.problem = problem


class _BatchFailedError(_RowsFailedError):
    """A batch failed while its output was being written, so the open files are unusable."""
