"""Progress: how far a run has come, added up from what its tasks have made durable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.model.staged import StagedTotals
from holdfast.model.starts import Pass, Start
from holdfast.model.status import RunState
from holdfast.model.work import TaskRecord, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a person wants to know while a job runs. Rows count once they are durable."""

    run_id: str
    state: RunState
    # None where the input was not measured.
    input_rows: int | None
    done_rows: int
    # Of these: what earlier starts had done, and what has failed.
    kept_rows: int = 0
    quarantined_rows: int = 0
    # Task logs of the current job: how many were begun, and how many have ended.
    tasks_begun: int = 0
    tasks_ended: int = 0
    # Chunks that wait to be put into table files, and the files that are staged.
    waiting_chunks: int = 0
    files: int = 0
    size_bytes: int = 0
    # How long tasks have worked for what counts, and how long of it they waited for storage.
    task_seconds: float = 0.0
    waited_s: float = 0.0
    kept_seconds: float = 0.0
    cost: float = 0.0
    kept_cost: float = 0.0
    # The most that a worker process has held.
    memory_bytes: int = 0
    start: int = 0
    # Which job of this start is under way, and why it is run.
    passes: int = 0
    reason: str = ""
    # When this start began, and when its last record was written, in Unix seconds.
    began_at: float = 0.0
    last_at: float = 0.0

    @property
    def remaining_rows(self) -> int | None:
        """How many rows are left, as far as that is known."""
        return None if self.input_rows is None else max(0, self.input_rows - self.done_rows)

    @property
    def share(self) -> float | None:
        """Which part of the input is done."""
        if self.input_rows is None:
            return None
        return min(1.0, self.done_rows / self.input_rows) if self.input_rows else 1.0


def progress_of(  # noqa: PLR0913 - each is a part of what was found.
    *,
    run_id: str,
    state: RunState,
    input_rows: int | None,
    starts: Sequence[Start],
    work: Work,
    logs: Sequence[Sequence[TaskRecord]],
) -> Progress:
    """Add up what is known of a run.

    Args:
        run_id: The user's id.
        state: Where the run stands.
        input_rows: How many rows there are to do, if that is known.
        starts: All starts, the last one last.
        work: All records that count.
        logs: The task logs of the job that is under way.
    """
    start = starts[-1] if starts else None
    first = start.first_claim if start else 0
    kept = Work(records=tuple(one for one in work.records if one.claim < first))
    staged = StagedTotals.of(work.groups)
    fresh = [one for one in work.records if one.claim >= first]
    return Progress(
        run_id=run_id,
        state=state,
        input_rows=input_rows,
        done_rows=work.sums.rows,
        # As the report of a start counts them: of failed rows nothing was saved.
        kept_rows=kept.sums.rows - kept.quarantined_rows,
        quarantined_rows=work.quarantined_rows,
        tasks_begun=len(logs),
        tasks_ended=sum(1 for log in logs if log[-1].end),
        waiting_chunks=len(work.waiting),
        files=staged.files,
        size_bytes=staged.size_bytes,
        task_seconds=sum(one.seconds for one in fresh),
        waited_s=sum(one.usage.waited_s for one in fresh),
        kept_seconds=kept.seconds,
        cost=work.cost,
        kept_cost=kept.cost,
        memory_bytes=max((one.usage.memory_bytes for one in fresh), default=0),
        start=start.number if start else 0,
        passes=len(start.jobs) if start else 0,
        reason=pass_reason(start, start.jobs[-1]) if start and start.jobs else "",
        began_at=start.began_at if start else 0.0,
        last_at=max([start.last_at, *(one.usage.at for one in fresh)]) if start else 0.0,
    )


def pass_reason(start: Start, one: Pass) -> str:
    """Say why a job is run; nothing if there is none.

    Args:
        start: The start that runs it.
        one: One of its passes.
    """
    if one.plan is None:
        return ""
    if one.plan.job == "replay":
        return "puts chunks of ended tasks into table files"
    if any(job.plan is not None and job.plan.job != "replay" for job in _before(start, one)):
        return "does the rows that lost or failed tasks have left"
    return "goes on where the last start ended" if start.number > 1 else "does all rows"


def _before(start: Start, one: Pass) -> list[Pass]:
    return [job for job in start.jobs if job.claim < one.claim]
