"""A run's history for people: its starts, its progress, its status."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from holdfast.model.costs import Spent, budget_text, held_text
from holdfast.model.records import Abort, Body, Claim, Plan, Ready, Receipt, Record, Stop
from holdfast.model.report import counted
from holdfast.model.work import StagedTotals, TaskRecord, Work
from holdfast.text import done_of, printable

# ---- Starts: driver starts, reconstructed from the run log

# "": the last start, without a recorded end: it may be running. "gone": another start came after
# it, and it left no stop record: it was killed, or taken over.
StartEnd = Literal["", "committed", "ready", "stopped", "aborted", "gone"]


@dataclass(slots=True, kw_only=True)
class Pass:
    """One claim of a start, and the job that ran under it."""

    claim: int
    # Unix seconds, by the driver's clock.
    began_at: float
    # None until a job is planned under the claim.
    plan: Plan | None = None


@dataclass(slots=True, kw_only=True)
class Start:
    """One start of a run by one driver, from its first claim on."""

    number: int
    host: str
    process_id: int
    machine: str
    code: str
    checkpoint_every_s: float | None
    # The budget that it was given, if any.
    budget: float | None = None
    began_at: float
    last_at: float
    passes: list[Pass] = field(default_factory=list)
    end: StartEnd = ""
    # The name of the error or signal in the driver's stop record.
    reason: str = ""
    # The message of that error.
    message: str = ""

    @property
    def why(self) -> str:
        """The reason with its message, for people."""
        return f"{self.reason}: {self.message}" if self.message else self.reason

    @property
    def first_claim(self) -> int:
        """The number of its first claim."""
        return self.passes[0].claim

    @property
    def jobs(self) -> list[Pass]:
        """The passes that ran a job."""
        return [pass_ for pass_ in self.passes if pass_.plan is not None]


def unix_seconds(written_at: str) -> float:
    """Return a record's time in Unix seconds."""
    return datetime.fromisoformat(written_at).timestamp()


def starts_of(records: Iterable[Record]) -> list[Start]:
    """Return all starts of a run, the first one first.

    A process that claims again without having stopped continues with its next pass. Any driver
    that finds the mark may write the receipt, so a receipt ends the last start.
    """
    starts: list[Start] = []
    for record in records:
        at, body = unix_seconds(record.written_at), record.body
        if isinstance(body, Claim):
            _claim(starts, body, record.number, at)
        elif starts:
            _go_on(starts[-1], body, at)
    return starts


def _claim(starts: list[Start], claim: Claim, number: int, at: float) -> None:
    last = starts[-1] if starts else None
    if last is None or last.end or not _is_same(last, claim):
        if last is not None and not last.end:
            last.end = "gone"
        last = _begun(len(starts) + 1, claim, at)
        starts.append(last)
    last.passes.append(Pass(claim=number, began_at=at))
    last.last_at = at


def _go_on(start: Start, body: Body, at: float) -> None:
    start.last_at = at
    if isinstance(body, Plan):
        start.passes[-1].plan = body
    elif isinstance(body, Stop):
        start.end, start.reason, start.message = "stopped", body.reason, body.message
    elif isinstance(body, Ready):
        start.end, start.reason, start.message = "ready", "", ""
    elif isinstance(body, Abort):
        start.end, start.reason, start.message = "aborted", body.reason, ""
    elif isinstance(body, Receipt):
        start.end, start.reason, start.message = "committed", "", ""


def _is_same(start: Start, claim: Claim) -> bool:
    return (start.host, start.process_id, start.machine) == (
        claim.host,
        claim.process_id,
        claim.machine,
    )


def _begun(number: int, claim: Claim, at: float) -> Start:
    return Start(
        number=number,
        host=claim.host,
        process_id=claim.process_id,
        machine=claim.machine,
        code=claim.code,
        checkpoint_every_s=claim.checkpoint_every_s,
        budget=claim.budget,
        began_at=at,
        last_at=at,
    )


# ---- Status: what a run's ledger says, in readable form

# "started": a driver has claimed it, alive or dead. "stopped": its driver left a stop record.
# "staged": all rows are in table files, and only the commit is missing. "ready": so they are, and
# the user commits them. "damaged": its ledger cannot be read; a list of runs continues with the
# next one.
RunState = Literal[
    "new", "started", "stopped", "staged", "ready", "committed", "aborted", "damaged"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The status of a run. `print(status)` shows it as a small table."""

    run_id: str
    state: RunState
    table: str
    # None until the input is measured.
    input_rows: int | None
    done_rows: int
    # How many of them have failed, as counted by the last seal.
    quarantined_rows: int
    # How many drivers have claimed the run.
    starts: int
    host: str
    process_id: int
    last_record_at: str
    snapshot_id: int | None
    # What is wrong with a damaged ledger.
    error: str = ""
    # The error or signal that ended the last start of a stopped run, with its message.
    stopped_by: str = ""
    # The budget that the last start was given, and what of it is recorded as paid; None without
    # one. And what killed tasks held of it, and may have spent.
    budget: float | None = None
    spent: float | None = None
    held: float = 0.0

    @classmethod
    def damaged(cls, run_id: str, error: str) -> RunStatus:
        """Return the status of a run whose ledger cannot be read."""
        return cls(
            run_id=run_id,
            state="damaged",
            table="",
            input_rows=None,
            done_rows=0,
            quarantined_rows=0,
            starts=0,
            host="",
            process_id=0,
            last_record_at="",
            snapshot_id=None,
            error=error,
        )

    def __str__(self) -> str:
        """Return the status as lines of `name  value`."""
        lines = [("run", self.run_id), ("state", self.state)]
        if self.error:
            lines.append(("error", self.error))
        if self.stopped_by:
            lines.append(("stopped", f"by {self.stopped_by}"))
        if self.table:
            lines.append(("table", self.table))
        failed = self.quarantined_rows
        lines.append(("done", done_of(self.done_rows, self.input_rows, failed, "rows")))
        if failed:
            lines.append(("failed", f"{counted(failed, 'row')}: see run.quarantined()"))
        if self.budget is not None:
            if self.held:
                lines.append(("held", held_text(self.held)))
            lines.append(("budget", budget_text(self.budget, self.spent or 0.0, self.held)))
        if self.snapshot_id is not None:
            lines.append(("snapshot", str(self.snapshot_id)))
        if self.starts:
            lines.append(
                ("starts", f"{self.starts}, last on {self.host} (process {self.process_id})")
            )
            lines.append(("written", self.last_record_at))
        return "\n".join(f"  {name:<9} {printable(value)}" for name, value in lines)


# ---- Progress: how far a run has come, added up from its tasks' durable records
@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a run while a job runs; rows count once they are durable."""

    run_id: str
    state: RunState
    # None if the input was not measured.
    input_rows: int | None
    done_rows: int
    # Of these, the rows that earlier starts had done, and the rows that have failed.
    kept_rows: int = 0
    quarantined_rows: int = 0
    # How many tasks of the current job have begun a log, and how many have ended it.
    tasks_begun: int = 0
    tasks_ended: int = 0
    # Chunks that wait to be written into table files, and the staged files.
    waiting_chunks: int = 0
    files: int = 0
    size_bytes: int = 0
    # How long tasks worked on accepted rows, and how much of that they waited for storage.
    task_seconds: float = 0.0
    waited_s: float = 0.0
    kept_seconds: float = 0.0
    # As in a start's report: all that is recorded as paid; of it, what earlier starts had paid for
    # rows that count, and what was paid for rows that do not; and what killed tasks may have spent
    # besides.
    cost: float = 0.0
    kept_cost: float = 0.0
    lost_cost: float = 0.0
    held_cost: float = 0.0
    # The most that all may cost, as given to the last start; None without a limit.
    budget: float | None = None
    # The peak memory of a worker process.
    memory_bytes: int = 0
    start: int = 0
    # The number of this start's current job, and why it runs.
    passes: int = 0
    reason: str = ""
    # When this start began, and when its last record was written, in Unix seconds.
    began_at: float = 0.0
    last_at: float = 0.0

    @property
    def good_rows(self) -> int:
        """How many rows are done and have not failed."""
        return self.done_rows - self.quarantined_rows

    @property
    def remaining_rows(self) -> int | None:
        """How many rows are left; None if that is not known."""
        return None if self.input_rows is None else max(0, self.input_rows - self.done_rows)

    @property
    def share(self) -> float | None:
        """The share of the input that is done and has not failed; None if that is not known."""
        if self.input_rows is None:
            return None
        return min(1.0, self.good_rows / self.input_rows) if self.input_rows else 1.0


def progress_of(  # noqa: PLR0913 - each is a part of what was found.
    *,
    run_id: str,
    state: RunState,
    input_rows: int | None,
    starts: Sequence[Start],
    work: Work,
    logs: Sequence[Sequence[TaskRecord]],
    spent: Spent,
) -> Progress:
    """Add up the progress of a run.

    Args:
        run_id: The user's id.
        state: The state of the run.
        input_rows: How many rows the input has, if that is known.
        starts: All starts, the last one last.
        work: All records that count.
        logs: The task logs of the current job.
        spent: What it has spent on answers.
    """
    start = starts[-1] if starts else None
    first = start.first_claim if start else 0
    kept = Work(records=tuple(record for record in work.records if record.claim < first))
    staged = StagedTotals.of(work.groups)
    fresh = [record for record in work.records if record.claim >= first]
    return Progress(
        run_id=run_id,
        state=state,
        input_rows=input_rows,
        done_rows=work.sums.rows,
        # Counted as in a start's report: failed rows saved no work.
        kept_rows=kept.sums.rows - kept.quarantined_rows,
        quarantined_rows=work.quarantined_rows,
        tasks_begun=len(logs),
        tasks_ended=sum(1 for log in logs if log[-1].end),
        waiting_chunks=len(work.waiting),
        files=staged.files,
        size_bytes=staged.size_bytes,
        task_seconds=sum(record.seconds for record in fresh),
        waited_s=sum(record.usage.waited_s for record in fresh),
        kept_seconds=kept.seconds,
        cost=spent.paid,
        kept_cost=kept.cost,
        lost_cost=spent.lost,
        held_cost=spent.held,
        budget=start.budget if start else None,
        memory_bytes=max((record.usage.memory_bytes for record in fresh), default=0),
        start=start.number if start else 0,
        passes=len(start.jobs) if start else 0,
        reason=pass_reason(start, start.jobs[-1]) if start and start.jobs else "",
        began_at=start.began_at if start else 0.0,
        last_at=max([start.last_at, *(record.usage.at for record in fresh)]) if start else 0.0,
    )


def steps_of(record: TaskRecord) -> list[tuple[float, int]]:
    """Return when a record's rows were made durable, and how many.

    Of rows that records were replaced for, only the span of time is known: they count evenly.
    """
    rows, at, parts = record.coverage.rows, record.usage.at, len(record.replaces) + 1
    between_s = record.usage.over_s / parts
    return [
        (at - between_s * (parts - part), rows * part // parts - rows * (part - 1) // parts)
        for part in range(1, parts + 1)
    ]


def pass_reason(start: Start, one: Pass) -> str:
    """Say why a job runs; empty if there is none.

    Args:
        start: The start that runs it.
        one: One of its passes.
    """
    if one.plan is None:
        return ""
    if one.plan.job == "replay":
        return "writes chunks of ended tasks to table files"
    if any(job.plan is not None and job.plan.job != "replay" for job in _before(start, one)):
        return "computes the rows that lost or failed tasks left"
    return "resumes where the last start ended" if start.number > 1 else "computes all rows"


def _before(start: Start, one: Pass) -> list[Pass]:
    return [job for job in start.jobs if job.claim < one.claim]
