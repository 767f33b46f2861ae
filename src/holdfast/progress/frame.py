"""Frame: what is shown of a run at one time, its pace, and its text form.

Rows become durable in steps, one per checkpoint. So time is counted from step to step, not from
look to look: otherwise the rate would jump, and the remaining time with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from holdfast.engine.advice import doing
from holdfast.engine.takeover import silent_after_s
from holdfast.engine.watch import Observation
from holdfast.model.costs import budget_text, cost_lines, cost_text, held_text
from holdfast.model.history import Progress, steps_of, unix_seconds
from holdfast.model.records import Plan
from holdfast.model.report import (
    counted,
    readable_size,
    readable_time,
)

# ---- Pace: how fast a start progresses, from the times at which its tasks made rows durable

_WINDOW_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast rows are done, and how long the rest will take; None if that is not known."""

    rows_per_s: float | None = None
    left_s: float | None = None


NO_PACE = Pace()


def pace_of(seen: Observation, now: float) -> Pace:
    """Return the pace of the current start, without the rows that it inherited.

    Args:
        seen: What is known about the run.
        now: Unix seconds.
    """
    if seen.progress.state != "started":
        return NO_PACE
    first = seen.starts[-1].first_claim
    steps = sorted(
        step
        for record in seen.gathered.work.records
        if record.claim >= first and record.coverage.rows and record.usage.at
        for step in steps_of(record)
    )
    rate = rows_per_s(steps, _job_began(seen, first), now)
    rows = seen.progress.remaining_rows
    return Pace(rows_per_s=rate, left_s=rows / rate if rows and rate else None)


def rows_per_s(steps: Sequence[tuple[float, int]], began_at: float, now: float) -> float | None:
    """Return how many rows per second were done in about the last minute.

    Args:
        steps: When rows were made durable, and how many, oldest first.
        began_at: When the work began.
        now: The current time; all times are in Unix seconds.
    """
    if not steps:
        return None
    until = steps[-1][0]
    since = max((at for at, _ in steps if at <= until - _WINDOW_S), default=began_at)
    recent = [(at, rows) for at, rows in steps if at > since]
    if not recent:
        return None
    gap = max(later - earlier for earlier, later in pairwise([since, *(at for at, _ in recent)]))
    if now - until > gap:  # The next step is late: the pace has dropped.
        until = now
    return sum(rows for _, rows in recent) / (until - since)


def _job_began(seen: Observation, first_claim: int) -> float:
    """Return when a start planned its first job; before that, the input is measured."""
    planned = (
        unix_seconds(record.written_at)
        for record in seen.log
        if record.number > first_claim and isinstance(record.body, Plan)
    )
    return next(planned, seen.progress.began_at)


# ---- Frame: what is shown of a run at one time, in every display
@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One snapshot of a run for display."""

    run_id: str
    table: str = ""
    # What the run does to it, if it is not an append: "replace all rows of".
    verb: str = ""
    # None before the run is claimed.
    progress: Progress | None = None
    pace: Pace = NO_PACE
    # How long this start has taken, so far or in total.
    elapsed_s: float = 0.0
    # How long there has been no sign of activity, if that is longer than expected.
    silent_s: float = 0.0
    # The reason that an ended start recorded, and its message.
    reason: str = ""
    message: str = ""
    # While the input is counted: how many of Spark's tasks have ended, and how many there are.
    tasks: tuple[int, int] | None = None

    @property
    def is_counting(self) -> bool:
        """Whether the input is being read to count its rows, before the first job."""
        progress = self.progress
        return progress is not None and progress.state == "started" and not progress.passes

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen without a new start."""
        return self.progress is not None and self.progress.state in {
            "committed",
            "ready",
            "stopped",
            "aborted",
        }

    def to_json(self) -> dict[str, Any]:
        """Return all figures, for programs."""
        progress = self.progress
        found: dict[str, Any] = {"run_id": self.run_id, "table": self.table}
        if progress is not None:
            found |= asdict(progress)
            found |= {"remaining_rows": progress.remaining_rows, "share": progress.share}
        found |= asdict(self.pace)
        return found | {
            "elapsed_s": round(self.elapsed_s, 1),
            "stop_reason": self.reason,
            "stop_message": self.message,
        }


def frame_of(seen: Observation, now: float, table: str = "") -> Frame:
    """Return the frame for an observation.

    Args:
        seen: What the ledger shows.
        now: Unix seconds.
        table: The table's name; by default the one in the ledger.
    """
    progress = seen.progress
    start = seen.starts[-1] if seen.starts else None
    frame = Frame(
        run_id=progress.run_id,
        table=table or (seen.identity.table if seen.identity else ""),
        verb=seen.identity.verb if seen.identity and seen.identity.mode != "append" else "",
        progress=progress,
        pace=pace_of(seen, now),
        elapsed_s=max(0.0, progress.last_at - progress.began_at),
        reason=start.reason if start else "",
        message=start.message if start else "",
    )
    if start is None or frame.is_over:
        return frame
    # Clocks of two machines may differ: no duration is below zero.
    silent_s = now - progress.last_at
    return replace(
        frame,
        elapsed_s=max(0.0, now - progress.began_at),
        silent_s=silent_s if silent_s > silent_after_s(start.checkpoint_every_s) else 0.0,
    )


# ---- Text: a frame as lines of `name  value`, and as one line for a log

_SHORT_S = 10
_SLOW = 0.1


def lines_of(frame: Frame) -> list[tuple[str, str]]:
    """Return what is known as names and values, without the bar and the clock."""
    progress = frame.progress
    if progress is None or progress.state == "new":
        return [("start", _doing(frame))]
    # Before the first job the number of rows is not known.
    lines = [("rows", _rows(progress, frame.pace))] if _has_rows(progress) else []
    if progress.quarantined_rows:
        lines.append(("failed", f"{counted(progress.quarantined_rows, 'row')} set aside"))
    if staged := _staged(progress):
        lines.append(("staged", staged))
    if progress.tasks_begun:
        lines.append(("tasks", _tasks(progress)))
    if progress.kept_rows:
        saved = calm_time(progress.kept_seconds)
        lines.append(("kept", f"{progress.kept_rows:,} rows of earlier starts, {saved} of work"))
    lines += cost_lines(progress)
    lines.append(("start", _doing(frame)))
    if frame.message:  # Not in a log line: it may hold values of a row.
        lines.append(("error", f"{frame.reason}: {frame.message}"))
    if frame.silent_s:
        lines.append(("silent", f"no record for {calm_time(frame.silent_s)}"))
    return lines


def one_line(frame: Frame) -> str:
    """Return the most important figures on one line, for a log."""
    progress = frame.progress
    if progress is None or progress.state == "new":
        return _doing(frame)
    parts = [share] if (share := percent(progress)) else []
    if _has_rows(progress):
        parts.append(f"rows {_rows(progress, frame.pace)}")
    if progress.quarantined_rows:
        parts.append(f"{progress.quarantined_rows:,} failed")
    if staged := _staged(progress):
        parts.append(staged)
    if progress.kept_rows:
        parts.append(f"{progress.kept_rows:,} rows kept")
    if progress.cost:
        parts.append(cost_text(progress.cost, 0.0, progress.lost_cost))
    if progress.held_cost:
        parts.append(f"held {held_text(progress.held_cost)}")
    if progress.budget is not None:
        budget = budget_text(progress.budget, progress.cost, progress.held_cost)
        parts.append(f"budget {budget}")
    parts += [f"start {_doing(frame)}", calm_time(frame.elapsed_s)]
    if frame.silent_s:
        parts.append(f"no record for {calm_time(frame.silent_s)}")
    return "; ".join(parts)


def _doing(frame: Frame) -> str:
    text = doing(frame.progress, frame.reason)
    if frame.tasks is None:
        return text
    ended, tasks = frame.tasks
    return f"{text}: {ended:,} of {counted(tasks, 'Spark task')} done"


def percent(progress: Progress) -> str:
    """Return how much is done, as a whole percentage that is never too high."""
    if progress.share is None:
        return ""
    # In integers: 0.29 * 100 is less than 29.
    rows = progress.input_rows or 0
    return f"{min(100, 100 * progress.good_rows // rows) if rows else 100}%"


def calm_time(seconds: float) -> str:
    """Return a time in whole seconds: tenths would only flicker."""
    whole = int(seconds)
    return f"{whole} s" if whole < _SHORT_S else readable_time(whole)


def _has_rows(progress: Progress) -> bool:
    return bool(progress.passes or progress.done_rows)


def _rows(progress: Progress, pace: Pace) -> str:
    done = f"{progress.good_rows:,}"
    if progress.input_rows is None:
        done += " so far"
    else:
        done += f" of {progress.input_rows:,}"
    if pace.rows_per_s is not None:
        done += f"; {_rate(pace.rows_per_s)}"
    if pace.left_s is not None:
        done += f"; about {calm_time(pace.left_s)} left"
    return done


def _rate(rows_per_s: float) -> str:
    if rows_per_s >= _SHORT_S:
        return f"{rows_per_s:,.0f} rows/s"
    return f"{rows_per_s:.1f} rows/s" if rows_per_s >= _SLOW else f"{rows_per_s * 60:.1f} rows/min"


def _staged(progress: Progress) -> str:
    files, chunks = progress.files, progress.waiting_chunks
    parts = []
    if files:
        parts.append(f"{counted(files, 'file')} ({readable_size(progress.size_bytes)})")
    if chunks:
        parts.append(f"{counted(chunks, 'chunk')} to put into files")
    return ", ".join(parts)


def _tasks(progress: Progress) -> str:
    at_work = progress.tasks_begun - progress.tasks_ended
    tasks = f"{at_work:,} at work, {progress.tasks_ended:,} ended"
    if not progress.task_seconds:
        return tasks
    waited = min(1.0, progress.waited_s / progress.task_seconds)
    return f"{tasks}, IO wait {waited:.0%}"
