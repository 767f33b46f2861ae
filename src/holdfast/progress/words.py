"""Words: a frame as lines of `name  value`, and as one line for a log."""

from __future__ import annotations

from holdfast.model.progress import Progress
from holdfast.model.report import counted, readable_size, readable_time
from holdfast.progress.frame import Frame
from holdfast.progress.pace import Pace

_SHORT_S = 10
_SLOW = 0.1


def lines_of(frame: Frame) -> list[tuple[str, str]]:
    """Return what is known, each thing by its name; the bar and the clock are not among it."""
    progress = frame.progress
    if progress is None or progress.state == "new":
        return [("start", standing(frame))]
    # Before the first job nobody knows how many rows there are.
    lines = [("rows", _rows(progress, frame.pace))] if _has_rows(progress) else []
    if progress.quarantined_rows:
        lines.append(("failed", f"{progress.quarantined_rows:,} of them: see run.quarantined()"))
    if staged := _staged(progress):
        lines.append(("staged", staged))
    if progress.tasks_begun:
        lines.append(("tasks", _tasks(progress)))
    if progress.kept_rows:
        saved = calm_time(progress.kept_seconds)
        lines.append(("kept", f"{progress.kept_rows:,} rows of earlier starts, {saved} of work"))
    if progress.cost:
        saved = f"; {progress.kept_cost:,.6g} of it saved by resuming" if progress.kept_cost else ""
        lines.append(("cost", f"{progress.cost:,.6g}{saved}"))
    lines.append(("start", standing(frame)))
    if frame.message:  # Not in a log line: it may hold values of a row.
        lines.append(("error", f"{frame.reason}: {frame.message}"))
    if frame.silent_s:
        lines.append(("silent", f"no record for {calm_time(frame.silent_s)}"))
    return lines


def one_line(frame: Frame) -> str:
    """Return the most important of it, for a log."""
    progress = frame.progress
    if progress is None or progress.state == "new":
        return standing(frame)
    parts = [share] if (share := percent(progress)) else []
    if _has_rows(progress):
        parts.append(f"rows {_rows(progress, frame.pace)}")
    if staged := _staged(progress):
        parts.append(staged)
    if progress.kept_rows:
        parts.append(f"{progress.kept_rows:,} rows kept")
    if progress.cost:
        parts.append(f"cost {progress.cost:,.6g}")
    parts += [f"start {standing(frame)}", calm_time(frame.elapsed_s)]
    if frame.silent_s:
        parts.append(f"no record for {calm_time(frame.silent_s)}")
    return "; ".join(parts)


def standing(frame: Frame) -> str:
    """Say what the run is doing, or how it has ended."""
    progress = frame.progress
    if progress is None:
        return "opening"
    if progress.state == "new":
        return "nobody has started it yet"
    why = f" ({frame.reason})" if frame.reason else ""
    told = {
        "staged": "all rows are staged; commits",
        "committed": "committed",
        "stopped": f"stopped{why}; run it again to go on",
        "aborted": f"aborted{why}",
    }.get(progress.state)
    if told is None and not progress.passes:
        told = "looks at the input"
    if told is None:
        return f"{progress.start}, pass {progress.passes}: {progress.reason}"
    return f"{progress.start}: {told}"


def percent(progress: Progress) -> str:
    """Return how much is done, as a whole number that is never too high."""
    if progress.share is None:
        return ""
    # In whole numbers: 0.29 * 100 is less than 29.
    rows = progress.input_rows or 0
    return f"{min(100, 100 * progress.done_rows // rows) if rows else 100}%"


def calm_time(seconds: float) -> str:
    """Return a time in whole seconds: tenths would only flicker."""
    whole = int(seconds)
    return f"{whole} s" if whole < _SHORT_S else readable_time(whole)


def _has_rows(progress: Progress) -> bool:
    return bool(progress.passes or progress.done_rows)


def _rows(progress: Progress, pace: Pace) -> str:
    done = f"{progress.done_rows:,}"
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
