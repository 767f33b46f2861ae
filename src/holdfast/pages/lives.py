"""Lives: what each start of a run has added, and how it ended."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from holdfast.model.progress import pass_reason
from holdfast.model.starts import Pass, Start, StartEnd
from holdfast.model.work import TaskRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One pass of a start."""

    claim: int
    # "" as long as no job was planned.
    kind: str
    reason: str


@dataclass(slots=True, kw_only=True)
class Life:
    """One start, with what counts of its work."""

    number: int
    host: str
    process_id: int
    code: str
    began_at: float
    # Its last sign of life: a record of its driver, or of one of its tasks.
    last_at: float
    end: StartEnd
    reason: str
    message: str
    jobs: list[Job] = field(default_factory=list)
    # What earlier starts had done when it began.
    kept_rows: int = 0
    rows: int = 0
    failed_rows: int = 0
    seconds: float = 0.0
    waited_s: float = 0.0
    cost: float = 0.0
    # How many records it has written, and how many of them say when.
    records: int = 0
    dated_records: int = 0

    @property
    def lasted_s(self) -> float:
        """How long it was seen at work."""
        return self.last_at - self.began_at

    def add(self, record: TaskRecord) -> None:
        """Count one record that was written under one of its claims."""
        self.records += 1
        self.rows += record.coverage.rows
        self.failed_rows += record.coverage.rows if record.quarantine is not None else 0
        self.seconds += record.seconds
        self.cost += record.cost
        self.waited_s += record.usage.waited_s
        self.dated_records += bool(record.usage.at)


def lives_of(starts: Sequence[Start], records: Iterable[TaskRecord]) -> list[Life]:
    """Return all starts, the first one first.

    Args:
        starts: As the run log tells them.
        records: The task records that count.
    """
    lives = [_begun(start) for start in starts]
    if not lives:
        return []
    of = StartOf(starts)
    for record in records:
        lives[of(record)].add(record)
    for earlier, life in pairwise(lives):
        life.kept_rows = earlier.kept_rows + earlier.rows
    return lives


class StartOf:
    """Tells which start has written a record: the last one whose first claim is not above it."""

    def __init__(self, starts: Sequence[Start]) -> None:
        """Take the starts, the first one first."""
        self._claims = [start.first_claim for start in starts]

    def __call__(self, record: TaskRecord) -> int:
        """Return the start's place in the list."""
        return max(0, bisect_right(self._claims, record.claim) - 1)


def moment(record: TaskRecord, starts: Sequence[Start], at: int) -> float:
    """Return when a record was written, never outside of its start's life.

    Tasks and drivers have clocks of their own, which may differ.

    Args:
        record: A record that says when, or does not.
        starts: All starts.
        at: Which of them has written it.
    """
    start = starts[at]
    if start.end in {"committed", "aborted", "stopped"}:
        latest = start.last_at
    else:
        latest = starts[at + 1].began_at if at + 1 < len(starts) else float("inf")
    return min(max(record.usage.at, start.began_at), latest)


def _begun(start: Start) -> Life:
    jobs = [
        Job(
            claim=one.claim,
            kind=one.plan.job if one.plan else "",
            reason=pass_reason(start, one) or _no_job(start, one),
        )
        for one in start.passes
    ]
    return Life(
        number=start.number,
        host=start.host,
        process_id=start.process_id,
        code=start.code,
        began_at=start.began_at,
        last_at=start.last_at,
        end=start.end,
        reason=start.reason,
        message=start.message,
        jobs=jobs,
    )


def _no_job(start: Start, one: Pass) -> str:
    """Say why nothing was run under a claim."""
    if one is not start.passes[-1]:
        return "no job"
    if start.end == "committed":
        return "no job: only the commit was left"
    return "ended before a job was planned" if start.end else "no job is planned yet"
