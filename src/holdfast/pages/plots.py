"""Plots: the pictures of a page, from its facts. What a run has nothing to show for is left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

from holdfast.model.report import counted, readable_size, readable_time
from holdfast.pages.charts import (
    NO_USAGE,
    BarTable,
    Box,
    Drawing,
    Line,
    Part,
    Plot,
    Scale,
    bar_row,
    number_axis,
    number_ticks,
    short_number,
)
from holdfast.pages.curve import pauses, progress_plot, time_axis
from holdfast.pages.facts import Facts, Host, Totals
from holdfast.pages.timeline import StartSummary
from holdfast.palette import FAILED, KEPT, NEW, PLAIN, WAITING

_STARTS_MAX = 20
_TABLE_ROWS_MAX = 10
_ROWS_APART_MAX = 2
_FILES_MIN = 5


def plots_of(facts: Facts) -> list[Plot]:
    """Draw every plot that there is data for; those without a drawing come last."""
    found = [
        *progress_plot(facts),
        *_memory(facts),
        *_kept(facts),
        *_waits(facts),
        *_host_waits(facts),
        *_places(facts),
        *_file_sizes(facts),
    ]
    drawn = _in_full_rows([plot for plot in found if plot.is_drawn])
    return [*drawn, *(plot for plot in found if not plot.is_drawn)]


def _in_full_rows(plots: Sequence[Plot]) -> list[Plot]:
    """Widen each plot that has no neighbour of about its height: nothing is half empty."""
    found: list[Plot] = []
    left: Plot | None = None
    for plot in plots:
        if left is not None and not plot.wide and _are_alike(left, plot):
            found += [left, plot]
            left = None
            continue
        if left is not None:
            found.append(replace(left, wide=True))
        left = None if plot.wide else plot
        found += [plot] if plot.wide else []
    return found if left is None else [*found, replace(left, wide=True)]


def _are_alike(left: Plot, right: Plot) -> bool:
    if left.table is None or right.table is None:  # A drawing is as high as its neighbour.
        return True
    return abs(len(left.table.rows) - len(right.table.rows)) <= _ROWS_APART_MAX


def whole_bar(totals: Totals) -> list[Part]:
    """Return all rows of the input as one bar: kept, new, failed and waiting.

    Args:
        totals: The figures of the run.
    """
    kept, failed = totals.kept_rows, totals.failed_rows
    waiting = max(0, (totals.input_rows or 0) - totals.done_rows)
    new = max(0, totals.done_rows - kept - failed)
    rows = {KEPT: kept, NEW: new, FAILED: failed, WAITING: waiting}
    top = sum(rows.values())
    found = bar_row(
        "",
        list(rows.values()),
        [f"{number:,} {ink.name}" for ink, number in rows.items()],
        [ink.name for ink in rows],
        top,
    )
    return [part for part in found.parts if part.share]


# ---- Bars: starts, hosts, places and file sizes


def _kept(facts: Facts) -> list[Plot]:
    summaries = facts.starts[-_STARTS_MAX:]
    if len(facts.starts) <= 1 or not facts.totals.done_rows:
        return []
    inks = {"kept": KEPT.name, "new": NEW.name, "failed": FAILED.name}
    # Failed rows saved no work: they are counted as what they are in all later starts, too.
    failed = list(accumulate((start.failed_rows for start in facts.starts), initial=0))
    values = [
        [start.kept_rows - failed[number - 1], start.rows - start.failed_rows, failed[number]]
        for number, start in list(enumerate(facts.starts, start=1))[-_STARTS_MAX:]
    ]
    if not failed[-1]:
        del inks["failed"]
        values = [found[:2] for found in values]
    table = _bars("start", inks, [f"start {start.number}" for start in summaries], values, _count)
    text = f"Rows. Those that a start kept were not computed again.{_last_of(facts)}"
    return [Plot(title="Rows that each start kept and added", text=text, table=table)]


def _waits(facts: Facts) -> list[Plot]:
    title, summaries = "Time on rows and waits for storage, by start", facts.starts[-_STARTS_MAX:]
    if not facts.totals.done_rows:
        return []
    if not any(summary.dated_records for summary in summaries):
        return [Plot(title=title, text=NO_USAGE)]
    if len(facts.starts) <= 1:  # The tiles say the same.
        return []
    text = f"The total time of all tasks, for rows that count.{_last_of(facts)}"
    labels = [f"start {summary.number}" for summary in summaries]
    return [Plot(title=title, text=text, table=_spent("start", labels, summaries))]


def _last_of(facts: Facts) -> str:
    starts = len(facts.starts)
    return f" The last {_STARTS_MAX} of {starts} starts." if starts > _STARTS_MAX else ""


def _host_waits(facts: Facts) -> list[Plot]:
    """Draw the same by host, if there are several."""
    if len(facts.hosts) <= 1:
        return []
    text = f"The busiest {len(facts.hosts)} hosts. Look at any that waits more than the others."
    title = "Time on rows and waits for storage, by host"
    table = _spent("host", [host.host for host in facts.hosts], facts.hosts)
    return [Plot(title=title, text=text, table=table)]


def _spent(of: str, labels: Sequence[str], by: Sequence[StartSummary | Host]) -> BarTable:
    inks = {"on rows": NEW.name, "waited": WAITING.name}
    return _bars(of, inks, labels, [(each.seconds, each.waited_s) for each in by], readable_time)


def _memory(facts: Facts) -> list[Plot]:
    title, hosts = "Peak memory of workers", facts.memory
    if not hosts:
        return [Plot(title=title, text=NO_USAGE)] if facts.totals.done_rows else []
    text = "The most memory that a worker process on each host held when it wrote a record."
    legend = {f"{hosts[0].host}: {readable_size(hosts[0].peak_bytes)}": NEW.name}
    if others := hosts[1:]:
        peak = readable_size(others[0].peak_bytes)
        legend[f"{counted(len(others), 'more host')}: up to {peak}"] = PLAIN.name
    tops = number_ticks(hosts[0].peak_bytes)
    scale = Scale(right=max(facts.timeline.length_s, 1.0), top=tops[-1])
    lines = [
        Line(
            path=scale.path(points if len(points) > 1 else points * 2),
            ink=(NEW if host is hosts[0] else PLAIN).name,
            kind="line" if host is hosts[0] else "faint",
            text=f"{host.host}: {readable_size(host.peak_bytes)}",
        )
        for host in reversed(hosts)
        for points in host.lines
    ]
    # On the same axis as the progress, and below it.
    drawing = Drawing(
        x_ticks=time_axis(facts.timeline, scale),
        y_ticks=number_axis(tops, scale, _short_size),
        boxes=pauses(facts.timeline, scale),
        lines=lines,
    )
    return [Plot(title=title, text=text, drawing=drawing, legend=legend, wide=True)]


def _places(facts: Facts) -> list[Plot]:
    title, found = "Rows by place, in the largest job", facts.places
    if found is None or found.places <= 1:
        return []
    some = "" if len(found.rows) == found.places else f" {len(found.rows)} of them are drawn."
    text = (
        f"{found.places:,} places in the job of claim {found.claim}, largest first: "
        f"{found.largest:,} rows in the largest, {found.median:,.0f} in the median one.{some}"
    )
    if found.places <= _TABLE_ROWS_MAX:
        labels = [str(number) for number in range(1, found.places + 1)]
        rows = [(rows,) for rows in found.rows]
        table = _bars("place", {"rows": PLAIN.name}, labels, rows, _count)
        return [Plot(title=title, text=text, table=table)]
    tops = number_ticks(found.largest)
    scale = Scale(right=len(found.rows), top=tops[-1])
    boxes = [
        Box(
            x=scale.x(number + 0.1),
            y=scale.y(rows),
            width=scale.x(0.8),
            height=round(100 - scale.y(rows), 2),
            ink=PLAIN.name,
            kind="column",
            text=counted(rows, "row"),
        )
        for number, rows in enumerate(found.rows)
    ]
    drawing = Drawing(y_ticks=number_axis(tops, scale, short_number), boxes=boxes)
    return [Plot(title=title, text=text, drawing=drawing)]


def _file_sizes(facts: Facts) -> list[Plot]:
    found = facts.file_sizes
    # The tiles say enough about few files, and about files of one size.
    if found is None or found.files < _FILES_MIN or len(found.classes) <= 1:
        return []
    text = (
        f"{found.files:,} files from {readable_size(found.smallest)} to "
        f"{readable_size(found.largest)}; {readable_size(int(found.median))} is the median."
    )
    labels = [f"from {readable_size(size.from_bytes)}" for size in found.classes]
    files = [(size.files,) for size in found.classes]
    table = _bars("size", {"files": PLAIN.name}, labels, files, _count)
    return [Plot(title="File sizes", text=text, table=table)]


def _bars(
    of: str,
    inks: dict[str, str],
    labels: Sequence[str],
    values: Sequence[Sequence[float]],
    text: Callable[[float], str],
) -> BarTable:
    top = max(sum(parts) for parts in values)
    rows = [
        bar_row(label, parts, [text(part) for part in parts], list(inks.values()), top)
        for label, parts in zip(labels, values, strict=True)
    ]
    return BarTable(of=of, columns=inks, rows=rows)


def _short_size(size: float) -> str:
    return readable_size(int(size)).replace(".0 ", " ")


def _count(number: float) -> str:
    return f"{number:,.0f}"
