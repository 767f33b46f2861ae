"""Pace: how fast a start goes, by the moments at which its tasks have made rows durable.

Rows become durable in steps, one each checkpoint. So the time is counted from step to step, and
not from look to look: otherwise the rate would jump, and the time left with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from holdfast.engine.watch import Observation
from holdfast.model.records import Plan
from holdfast.model.starts import unix_seconds

_WINDOW_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast rows are done, and how long the others will take; None while nothing tells."""

    rows_per_s: float | None = None
    left_s: float | None = None


NO_PACE = Pace()


def pace_of(seen: Observation, now: float) -> Pace:
    """Return the pace of the start that is at work, without the rows that it has inherited.

    Args:
        seen: What is known of the run.
        now: Unix seconds.
    """
    if seen.progress.state != "started":
        return NO_PACE
    first = seen.starts[-1].first_claim
    steps = sorted(
        (one.usage.at, one.coverage.rows)
        for one in seen.gathered.work.records
        if one.claim >= first and one.coverage.rows and one.usage.at
    )
    rate = rows_per_s(steps, _job_began(seen, first), now)
    rows = seen.progress.remaining_rows
    return Pace(rows_per_s=rate, left_s=rows / rate if rows and rate else None)


def rows_per_s(steps: Sequence[tuple[float, int]], began_at: float, now: float) -> float | None:
    """Return how many rows were done in each second of about the last minute.

    Args:
        steps: When rows were made durable, and how many, the oldest first.
        began_at: When the work began.
        now: All in Unix seconds.
    """
    if not steps:
        return None
    until = steps[-1][0]
    since = max((at for at, _ in steps if at <= until - _WINDOW_S), default=began_at)
    recent = [(at, rows) for at, rows in steps if at > since]
    if not recent:
        return None
    gap = max(later - earlier for earlier, later in pairwise([since, *(at for at, _ in recent)]))
    if now - until > gap:  # The next step is late: it goes slower than it did.
        until = now
    return sum(rows for _, rows in recent) / (until - since)


def _job_began(seen: Observation, first_claim: int) -> float:
    """Return when the first job of a start was planned: before that, the input is measured."""
    planned = (
        unix_seconds(record.written_at)
        for record in seen.log
        if record.number > first_claim and isinstance(record.body, Plan)
    )
    return next(planned, seen.progress.began_at)
