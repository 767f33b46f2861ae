"""Passes: run jobs until all rows of the run are in table files, or an error ends it.

Each pass is one claim and one job. A *rows* job transforms the missing rows. When none are
missing, a *replay* job writes the chunks of tasks that died into table files. After each job a
seal records what counts; once it says complete, only the commit is left to do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NoReturn, Protocol

from holdfast.engine.input_check import InputCheck
from holdfast.engine.options import WriteOptions, removes_of
from holdfast.engine.ports import Submitter, interruptible
from holdfast.engine.workbook import Workbook, without_lost
from holdfast.errors import (
    BudgetReachedError,
    ExecutorSetupError,
    InputChangedError,
    JobFailedError,
    LedgerDamagedError,
    NullKeyError,
    SchemaMismatchError,
    TooManyErrorsError,
    TransformError,
    UnsupportedTableError,
)
from holdfast.failpoints import failpoint
from holdfast.ledger.layout import tasks_name
from holdfast.ledger.ledger import Ledger, log_step
from holdfast.ledger.task_log import JobLedger
from holdfast.model.history import pass_reason, starts_of
from holdfast.model.identity import Identity
from holdfast.model.records import Claim, PartReference, Plan, Stop
from holdfast.model.work import TaskRecord, Work
from holdfast.sinks.base import Sink, TableView, WriterSpec
from holdfast.worker.budget import Allowance
from holdfast.worker.replay import ReplayPlan, work_items
from holdfast.worker.reports import TaskProblem, TaskReport, WorkerTraceback, transform_example
from holdfast.worker.task import TaskPlan


# ---- Problems: turn the tasks' reports into the one error that the user sees
def raise_problems(reports: Sequence[TaskReport]) -> None:
    """Raise the most serious problem that tasks reported, if there is one.

    Raises:
        ExecutorSetupError: An executor cannot run this job.
        InputChangedError: A file is not the one that was pinned.
        UnsupportedTableError: A file of the table cannot be rewritten.
        SchemaMismatchError: The output does not fit the table.
        NullKeyError: Rows have no key.
        TransformError: The transform failed.
        JobFailedError: Spark lost or doubled a task's report.
    """
    places = [report.place for report in reports]
    problems = [report.problem for report in reports if report.problem is not None]
    by_kind: dict[str, list[TaskProblem]] = {}
    for problem in problems:
        by_kind.setdefault(problem.kind, []).append(problem)
    if setup := by_kind.get("setup"):
        raise ExecutorSetupError(host=setup[0].host, **setup[0].facts)
    if changed := by_kind.get("input"):
        raise InputChangedError(**changed[0].facts)
    if table := by_kind.get("table"):
        raise UnsupportedTableError(**table[0].facts)
    if schema := by_kind.get("schema"):
        raise SchemaMismatchError(**schema[0].facts)
    if null_keys := by_kind.get("null key"):
        raise NullKeyError(rows=sum(int(problem.facts["rows"]) for problem in null_keys))
    if transform := by_kind.get("transform"):
        # Show a permanent failure first: it must be fixed before the job can succeed.
        first = next((problem for problem in transform if problem.facts.get("lasts")), transform[0])
        raise TransformError(
            failed_tasks=len(transform),
            tasks=len(reports),
            example=transform_example(first),
            retry_safe=not first.facts.get("lasts"),
        ) from WorkerTraceback.of(first.facts.get("traceback", ""))
    for problem in problems:
        # Whatever the kind, the task's rows are not done, and must not be lost.
        raise JobFailedError(reason=f"a task reported {problem.kind!r}: {problem.facts}")
    if len(set(places)) != len(places):
        raise JobFailedError(reason=f"{len(places) - len(set(places))} tasks reported twice")


# ---- Failed rows: which of them are retried, and when there are too many
def to_keep(work: Work, claims: Mapping[int, Claim], code: str, limit: int) -> Work:
    """Return the work without the failed rows that a new start retries.

    Rows that failed with other code may work now. If more rows have failed than the limit allows,
    all of them are retried: otherwise the next start could only fail as the last one did.

    Args:
        work: The work accepted so far.
        claims: All claims of the run, by number.
        code: The digest of the transform's current code.
        limit: How many rows may fail.
    """
    others = [record.name for record in work.quarantined if claims[record.claim].code != code]
    kept = work.without(others) if others else work
    if kept.quarantined_rows > limit:
        kept = kept.without(record.name for record in kept.quarantined)
    return kept


def refuse_too_many(work: Work, limit: int, reports: Sequence[TaskReport]) -> None:
    """Stop if more rows have failed than the limit allows.

    Raises:
        TooManyErrorsError: More rows have failed than the limit allows.
    """
    if work.quarantined_rows <= limit:
        return
    first = next((report for report in reports if report.failed_example), None)
    raise TooManyErrorsError(
        rows=work.quarantined_rows,
        limit=limit,
        example=first.failed_example if first else "see run.quarantined()",
        retry_safe=any(report.failed_may_pass for report in reports),
    ) from (WorkerTraceback.of(first.failed_traceback) if first else None)


# ---- Stages: a run's kinds of jobs, and when each is due

Job = Literal["rows", "replay"]

# One replay task takes chunks of up to this size: a good file size, whatever the compression.
# Less is spread over all task slots, as long as the files do not get too small.
_REPLAY_ITEM_BYTES = 512 * 1024 * 1024
_REPLAY_ITEM_BYTES_MIN = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What all passes of one start share; the run is already claimed."""

    ledger: Ledger
    book: Workbook
    identity: Identity
    claim: Claim
    options: WriteOptions
    sink: Sink
    view: TableView
    writer: WriterSpec
    submitter: Submitter
    # The whole input, if `submitter` reads a *derived* one: made from the rows that `remaining`
    # returned, and so without the finished rows.
    source: Submitter | None = None


class Stage(Protocol):
    """One kind of job. A mode is a list of stages: the first that is due runs next."""

    @property
    def job(self) -> Job:
        """The name of the job in plans and task logs."""

    def is_due(self) -> bool:
        """Whether it has anything to do."""

    def deal(self) -> Allowance | None:
        """Return what the tasks of its next job may spend; None for any amount.

        Raises:
            BudgetReachedError: What is left does not pay for a row.
        """

    def run(
        self,
        ledger: JobLedger,
        files: str,
        ask_to_stop: Callable[[str], None],
        allowance: Allowance | None,
    ) -> list[TaskReport]:
        """Run one job.

        Args:
            ledger: The ledger that its tasks write to.
            files: The prefix of its file names; no other job uses it.
            ask_to_stop: Asks all tasks of the job to stop; takes the reason.
            allowance: What its tasks may spend.

        Raises:
            JobError: The job could not be run at all.
        """


class RowsStage:
    """Transforms the missing rows."""

    job: Job = "rows"

    def __init__(self, start: Start, check: InputCheck) -> None:
        """Take the parts; nothing runs yet."""
        self._start = start
        self._check = check

    def is_due(self) -> bool:
        """Whether some input rows are not done."""
        return self._check.rows_are_missing()

    def deal(self) -> Allowance | None:
        """Divide what is left of the budget, if there is one.

        Raises:
            BudgetReachedError: It does not pay for a row.
        """
        start, options, book = self._start, self._start.options, self._start.book
        if options.budget is None:
            return None
        cost, rows = book.work.cost_and_rows
        mean = max(0.0, cost / max(1, rows))
        allowance = Allowance.of(
            max(0.0, options.budget - book.spent.at_most),
            slots=start.submitter.slots,
            row_cost=mean if callable(options.cost) else float(options.cost),
            is_exact=not callable(options.cost),
        )
        # Without an input check only a job shows whether a row is left.
        if options.verify_input and not allowance.pays_for_a_row:
            _refuse_to_spend(start)
        return allowance

    def run(
        self,
        ledger: JobLedger,
        files: str,
        ask_to_stop: Callable[[str], None],
        allowance: Allowance | None,
    ) -> list[TaskReport]:
        """Run one job over the missing rows; their keys may be compared at the same time.

        Raises:
            JobError: The job could not be run at all.
        """
        start, options, book = self._start, self._start.options, self._start.book
        plan = TaskPlan(
            transform=options.transform,
            batch_rows=options.batch_rows,
            key=start.identity.key,
            writer=start.writer,
            ledger=ledger,
            job_nonce=files,
            checkpoint_every_s=options.checkpoint_every_s,
            one_to_one=options.one_to_one,
            batch_format=options.batch_format,
            on_error=options.on_error,
            errors_max=self._errors_of_a_task(),
            cost=options.cost,
            allowance=allowance,
            limits=options.limits,
            whole_rows=options.compares_rows,
            # Rows that failed before may all lack a column again.
            judges_answers=not start.identity.retry_of and not book.work.records,
            numbers_rows=removes_of(start.identity) == "columns",
        )
        with contextlib.ExitStack() as beside:
            beside.callback(self._check.compare_beside(ask_to_stop))
            return start.submitter.submit(plan, book.finished)

    def _errors_of_a_task(self) -> int | None:
        """Return how many rows one task may quarantine; None if that depends on all tasks."""
        options = self._start.options
        if not options.verify_input and isinstance(options.max_errors, float):
            return None
        return self._check.errors_max(0) - self._start.book.work.quarantined_rows


def _refuse_to_spend(start: Start) -> NoReturn:
    """Say that the budget is reached.

    Raises:
        BudgetReachedError: Always.
    """
    book, spent = start.book, start.book.spent
    left = book.input_sums.rows - book.work.sums.rows if book.input_sums else "unknown"
    raise BudgetReachedError(
        run_id=start.ledger.run_id,
        budget=start.options.budget or 0.0,
        spent=spent.paid,
        held=spent.held,
        rows_left=left,
    )


class ReplayStage:
    """Writes the chunks of tasks that died into table files."""

    job: Job = "replay"

    def __init__(self, start: Start) -> None:
        """Take the parts; nothing runs yet."""
        self._start = start

    def is_due(self) -> bool:
        """Whether some finished rows are not in a table file yet."""
        return bool(self._start.book.work.waiting)

    def deal(self) -> None:
        """Nothing is to be paid for."""

    def run(
        self,
        ledger: JobLedger,
        files: str,
        _ask_to_stop: Callable[[str], None],
        _allowance: Allowance | None,
    ) -> list[TaskReport]:
        """Run one job over all waiting chunks.

        Raises:
            JobError: The job could not be run at all.
        """
        start, waiting = self._start, self._start.book.work.waiting
        plan = ReplayPlan(
            writer=start.writer,
            ledger=ledger,
            job_nonce=files,
            checkpoint_every_s=start.options.checkpoint_every_s,
            limits=start.options.limits,
        )
        return start.submitter.items(plan, work_items(waiting, self._item_bytes(waiting)))

    def _item_bytes(self, waiting: Sequence[TaskRecord]) -> int:
        """Return how many bytes of chunks one task writes into files."""
        sizes = [record.chunk.size_bytes for record in waiting if record.chunk is not None]
        if sum(sizes) <= _REPLAY_ITEM_BYTES_MIN:
            return _REPLAY_ITEM_BYTES
        # With room for one chunk more than its share, all items fit into one round of tasks.
        share = sum(sizes) // self._start.submitter.slots + max(sizes)
        return min(_REPLAY_ITEM_BYTES, max(_REPLAY_ITEM_BYTES_MIN, share))


# ---- Passes: run the stages until none is due

_PASSES_MAX = 1000


class Passes:
    """All passes of one start of a run."""

    def __init__(self, start: Start) -> None:
        """Take the parts, and set up the stages of an append."""
        self._start = start
        self._book = start.book
        self._log = start.ledger.log
        self._ports = start.ledger.ports
        self._options = start.options
        self._input = InputCheck(
            start.book, start.submitter, start.source, start.options, self._ports
        )
        self._stages = self._all_stages()
        self._retries_left = start.options.retries
        # A signal or a concurrent check may ask tasks to stop: once, and only while they run.
        self._asking = self._ports.new_lock()
        self._may_ask = False

    def _all_stages(self) -> tuple[Stage, ...]:
        return (RowsStage(self._start, self._input), ReplayStage(self._start))

    def take_more_rows(self, writer: WriterSpec) -> None:
        """Go on with an input that has gained rows.

        Args:
            writer: Writes their output, too.
        """
        self._start = replace(self._start, writer=writer)
        self._stages = self._all_stages()
        self._book.reopen()
        self._book.input_sums = None

    def withdraw_lost(self) -> None:
        """Leave out work that has lost an object, and seal what still counts.

        Raises:
            StoreError: The ledger does not answer.
            RunFencedError: Another driver has claimed the run.
            JobFailedError: The input lacks the rows to compute again.
        """
        start = self._start
        kept = without_lost(start.ledger, self._book.work, start.sink, start.view)
        if kept is not self._book.work:
            self._book.withdraw(kept)
            failpoint("before-withdrawal-is-sealed")
        self._book.seal_changes()
        self._input.stop_if_out_of_reach()

    def run(self) -> PartReference:
        """Run passes until nothing is left, and return the part that lists the accepted work.

        Raises:
            JobError: The work could not be done; durable work is kept.
            JobFailedError: A pass added nothing.
            BudgetReachedError: What is left of the budget does not pay for another row.
            DuplicateKeyError: A check that ran during a job found a key in two rows.
            InputChangedError: The input does not hold the missing rows.
            RunFencedError: Another driver has claimed the run.
        """
        book, claim = self._book, self._start.claim
        # A derived input holds no finished rows, and so no failed ones to retry.
        if book.work.quarantined and not book.is_complete and self._start.source is None:
            limit = self._input.errors_max(book.work.sums.rows)
            book.release(to_keep(book.work, self._log.claims, claim.code, limit))
        for _ in range(_PASSES_MAX):
            stage = None if book.is_complete else self._next_stage()
            if stage is None:
                if not book.is_complete:
                    refuse_too_many(book.work, self._input.errors_max(book.work.sums.rows), ())
                return book.complete()
            book.seal_changes()
            allowance = stage.deal()
            if book.tally.passes:
                self._log.claim_next_pass(claim)
            before = book.progress
            reports = self._run_job(stage, allowance)
            failpoint("after-job")
            self._take(stage.job, reports)
            self._input.refuse_found()
            refuse_too_many(book.work, self._input.errors_max(book.work.sums.rows), reports)
            self._raise_unless_worth_retrying(reports, added=book.progress != before)
            # Without an input check, a job over rows that are all finished adds nothing.
            if book.progress == before and any(report.end == "spent" for report in reports):
                _refuse_to_spend(self._start)
            done = stage.job == "rows" and book.all_rows_seen and not self._options.verify_input
            if book.progress == before and not done:
                self._input.stop_if_rows_are_gone()
                raise JobFailedError(reason=_nothing_added(reports))
        raise JobFailedError(reason=f"{_PASSES_MAX} passes did not finish the run")

    def _next_stage(self) -> Stage | None:
        return next((stage for stage in self._stages if stage.is_due()), None)

    def _take(self, job: Job, reports: Sequence[TaskReport]) -> None:
        """Accept what a job's tasks wrote, except records that have lost an object.

        Raises:
            RunFencedError: Another driver has claimed the run.
            LedgerDamagedError: A task's record is damaged, or was not found.
            JobFailedError: The input lacks the rows to compute again.
        """
        book = self._book
        if any(report.end == "fenced" for report in reports):
            self._log.stop_if_taken_over()
        try:
            book.take_tasks(reports)
        except LedgerDamagedError:
            # Another driver may have landed meanwhile, and a sweep may have deleted the task logs.
            self._log.stop_if_taken_over()
            raise
        book.tally.tasks += len(reports)
        for report in reports:
            book.tally.io.update(report.io)
        book.tally.passes += 1
        if job == "rows":
            book.all_rows_seen = all(report.end == "complete" for report in reports)
        if damaged := [name for report in reports for name in report.damaged]:
            book.withdraw(book.work.without(damaged))
            self._input.stop_if_out_of_reach()

    def _run_job(self, stage: Stage, allowance: Allowance | None) -> list[TaskReport]:
        book, ledger = self._book, self._start.ledger
        known = book.input_sums.rows - book.work.sums.rows if book.input_sums else None
        nonce = self._ports.new_nonce()
        tasks = tasks_name(self._log.own_claim, nonce)
        self._log.append(
            Plan(
                job=stage.job,
                input=book.input_sums,
                remaining_rows=known,
                chunks=len(book.work.waiting) if stage.job == "replay" else 0,
                schema=self._start.view.schema,
                tasks=tasks,
                may_spend=allowance.amount if allowance else 0.0,
                chains=allowance.chains if allowance else 0,
            )
        )
        self._log_pass(stage.job, known)
        job_ledger = JobLedger(
            storage=ledger.storage,
            layout=ledger.layout,
            claim=self._log.own_claim,
            tasks=tasks,
            job=stage.job,
            next_number=self._log.next_number,
            planned_at=self._ports.now(),
            ports=self._ports.tasks,
        )
        with self._at_work():
            names = ledger.layout.file_names(nonce)
            return stage.run(job_ledger, names, self._ask_to_stop, allowance)

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        """Allow asking tasks to stop while a job runs, and not afterwards."""
        self._may_ask = True
        try:
            with interruptible(self._ask_to_stop):
                yield
        finally:
            with self._asking:
                self._may_ask = False

    def _log_pass(self, job: Job, rows_left: int | None) -> None:
        start = starts_of(self._log.records)[-1]
        reason = pass_reason(start, start.jobs[-1])
        rows = "unknown number of rows left" if rows_left is None else f"{rows_left:,} rows left"
        log_step(self._log.run_id, f"pass {self._book.tally.passes + 1} ({job}): {rows}; {reason}")

    def _ask_to_stop(self, reason: str) -> None:
        with self._asking:
            if self._may_ask:
                self._log.append(Stop(reason=reason))
                self._may_ask = False
                log_step(self._log.run_id, f"stopping: {reason}")

    def _raise_unless_worth_retrying(self, reports: Sequence[TaskReport], *, added: bool) -> None:
        try:
            raise_problems(reports)
        except TransformError:
            if not added or self._retries_left <= 0:
                raise
            self._retries_left -= 1


def _nothing_added(reports: Sequence[TaskReport]) -> str:
    ends = sorted({report.end for report in reports})
    return (
        f"a pass of {len(reports)} tasks added nothing to the finished work (they ended: "
        f"{', '.join(ends) or 'without a report'})"
    )
