"""Plots: the pictures of a page, from its facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.model.report import readable_size, readable_time
from holdfast.pages.charts import (
    WIDE,
    XY,
    Bar,
    HorizontalStackedBar,
    number_ticks,
    settings,
    short_number,
    short_time,
    svg_of,
    time_ticks,
)
from holdfast.pages.facts import Facts, Host
from holdfast.pages.timeline import StartSummary

# ---- The plot of a run's progress: one line over all starts, and how each of them ended

END_WORDS = {
    "gone": "killed or taken over",
    "stopped": "stopped with an error",
    "committed": "committed",
    "aborted": "given up",
}


def draw_progress(facts: Facts, title: str, text: str) -> tuple[list[str], dict[str, str]]:
    """Return the drawings, and the colours of their series by name.

    Args:
        facts: The facts of the run, with points to draw.
        title: The title of the plot.
        text: A description of the plot.
    """
    ends = [end for end in END_WORDS if any(mark.end == end for mark in facts.timeline.ends)]
    legend = {"rows done": "rows", "all rows": "all"} if facts.totals.input_rows else {}
    legend = legend or {"rows done": "rows"}
    legend |= {END_WORDS[end]: end for end in ends}
    svgs = [_draw(facts, ends, size, title, text) for size in WIDE]
    return svgs, legend


def _draw(facts: Facts, ends: list[str], size: tuple[int, int], title: str, text: str) -> str:
    line = facts.timeline
    known = facts.totals.input_rows or 0
    ticks = time_ticks(line.length_s, size[0])
    tops = number_ticks(max(known, *(rows for _, rows in line.points)))
    right, high = max(line.length_s, 1.0), tops[-1]
    chart = XY(
        **settings(*size),
        x_labels=[tick for tick in ticks if tick <= right],
        y_labels=tops,
        xrange=(0, right),
        range=(0, high),
        x_value_formatter=short_time,
        value_formatter=short_number,
        show_dots=False,
    )
    # The area has no outline: at its right end that would look like one more mark.
    chart.add("rows done", line.points, fill=True)
    chart.add("rows done", line.points)
    chart.add("all rows", [(0, known), (right, known)] if known else [])
    for end in ends:
        lines: list[tuple[float, float | None]] = []
        for mark in line.ends:
            if mark.end == end:
                lines += [(mark.place_s, 0), (mark.place_s, high), (mark.place_s, None)]
        chart.add(END_WORDS[end], lines, allow_interruptions=True)
    for end in ends:
        chart.add(None, _dots(facts, end), stroke=False, show_dots=True, dots_size=4)
    return svg_of(chart, title=title, text=text, colours=("rows", "rows", "all", *ends, *ends))


def _dots(facts: Facts, end: str) -> list[dict[str, Any]]:
    """Return a dot at each end of a start, with the text that is shown over it."""
    found = []
    for mark in facts.timeline.ends:
        if mark.end == end:
            summary = facts.starts[mark.start - 1]
            rows = summary.kept_rows + summary.rows
            words = f"start {mark.start}: {END_WORDS[end]}, {rows:,} rows done"
            found.append({"value": (mark.place_s, rows), "formatter": lambda _, words=words: words})
    return found


# ---- Plots: the pictures of a page, from its facts

_WIDTH, _HEIGHT = 520, 280
_BAR_HEIGHT, _AXIS_HEIGHT = 30, 50
_STARTS_MAX = 20
_LABEL_LENGTH_MAX = 18

NO_USAGE = "Not known: an earlier version of Holdfast has written these records."


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One plot, and the text around it."""

    title: str
    # A description in a sentence or two.
    text: str
    # The same drawing for a wide page and for a phone, or one for both.
    svgs: list[str] = field(default_factory=list)
    # Series by name and colour, in order.
    legend: dict[str, str] = field(default_factory=dict)
    # Whether it takes the whole width of the page.
    wide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """One horizontal bar for each of several things, each bar in two parts."""

    labels: Sequence[str]
    parts: dict[str, Sequence[float]]
    is_time: bool


def plots_of(facts: Facts) -> list[Plot]:
    """Draw every plot that there is data for."""
    return [
        _progress(facts),
        _kept(facts),
        _waits(facts),
        _memory(facts),
        *_host_waits(facts),
        _places(facts),
        _file_sizes(facts),
    ]


def _progress(facts: Facts) -> Plot:
    title, line = "Progress", facts.timeline
    if not line.points:
        text = NO_USAGE if facts.totals.done_rows else "Nothing was done yet."
        return Plot(title=title, text=text, wide=True)
    text = "Rows that count now, by when they became durable; a line marks the end of a start."
    if line.source == "seals":
        text = (
            "Rows that were done at each seal of the run log; "
            "these records do not say when each row was done."
        )
    if line.cut_s:
        text += f" {readable_time(line.cut_s)} of pauses between starts are left out."
    svgs, legend = draw_progress(facts, title, text)
    return Plot(title=title, text=text, svgs=svgs, legend=legend, wide=True)


def _kept(facts: Facts) -> Plot:
    title, summaries = "What each start found done, and added", facts.starts[-_STARTS_MAX:]
    if not any(summary.rows or summary.kept_rows for summary in summaries):
        return Plot(title=title, text="Nothing was done yet.")
    bars = Bars(
        labels=[f"start {summary.number}" for summary in summaries],
        parts={
            "kept from earlier starts": [summary.kept_rows for summary in summaries],
            "computed": [summary.rows for summary in summaries],
        },
        is_time=False,
    )
    text = "Rows. What a start has kept was not computed again."
    return _bars(title, text, bars, ("kept", "rows"))


def _waits(facts: Facts) -> Plot:
    title, summaries = "Time on rows and waits for storage, by start", facts.starts[-_STARTS_MAX:]
    if not any(summary.dated_records for summary in summaries):
        return Plot(title=title, text=NO_USAGE if facts.starts else "Nothing was done yet.")
    text = "The time of all tasks together, for rows that count."
    return _spent(title, text, [f"start {summary.number}" for summary in summaries], summaries)


def _host_waits(facts: Facts) -> list[Plot]:
    """Draw the same by host, if there are several."""
    if len(facts.hosts) <= 1:
        return []
    text = f"The busiest {len(facts.hosts)} hosts. One that waits more than others is worth a look."
    title = "Time on rows and waits for storage, by host"
    return [_spent(title, text, [_label(host.host) for host in facts.hosts], facts.hosts)]


def _spent(title: str, text: str, labels: Sequence[str], by: Sequence[StartSummary | Host]) -> Plot:
    parts: dict[str, Sequence[float]] = {
        "on rows": [one.seconds for one in by],
        "waited for storage": [one.waited_s for one in by],
    }
    return _bars(title, text, Bars(labels=labels, parts=parts, is_time=True), ("rows", "wait"))


def _memory(facts: Facts) -> Plot:
    title, hosts = "Peak memory of workers", facts.memory
    if not hosts:
        return Plot(title=title, text=NO_USAGE if facts.starts else "Nothing was done yet.")
    text = "The most that a worker process of a host had held when it wrote a record."
    if len(hosts) < len(facts.hosts):
        text += f" The {len(hosts)} hosts with the most are drawn."
    if facts.timeline.cut_s:
        text += " Pauses between starts are left out."
    legend = {host.host: f"p{number}" for number, host in enumerate(hosts)}
    # On the same axis as the progress, unless it is next to the hosts.
    wide = len(facts.hosts) <= 1
    sizes = WIDE if wide else ((_WIDTH, _HEIGHT),)
    charts = [_memory_chart(facts, size) for size in sizes]
    colours = list(legend.values())
    svgs = [svg_of(chart, title=title, text=text, colours=colours) for chart in charts]
    return Plot(title=title, text=text, svgs=svgs, legend=legend, wide=wide)


def _memory_chart(facts: Facts, size: tuple[int, int]) -> XY:
    right = max(facts.timeline.length_s, 1.0)
    tops = number_ticks(max(host.peak_bytes for host in facts.memory))
    chart = XY(
        **settings(*size),
        x_labels=[tick for tick in time_ticks(right, size[0]) if tick <= right],
        y_labels=tops,
        xrange=(0, right),
        range=(0, tops[-1]),
        x_value_formatter=short_time,
        value_formatter=lambda size: readable_size(int(size)),
        dots_size=1.5,
    )
    for host in facts.memory:
        points: list[tuple[float | None, float | None]] = []
        for line in host.lines:
            points += [*line, (None, None)]
        chart.add(host.host, points, allow_interruptions=True)
    return chart


def _places(facts: Facts) -> Plot:
    title, found = "Rows by place, in the largest job", facts.places
    if found is None:
        return Plot(title=title, text="Nothing was done yet.")
    some = "" if len(found.rows) == found.places else f" {len(found.rows)} of them are drawn."
    text = (
        f"{found.places:,} places of the job of claim {found.claim}, the largest first: "
        f"{found.largest:,} rows in the largest, {found.median:,.0f} in the middle one.{some}"
    )
    tops = number_ticks(found.largest)
    chart = Bar(
        **settings(_WIDTH, _HEIGHT),
        y_labels=tops,
        range=(0, tops[-1]),
        value_formatter=short_number,
        show_x_labels=False,
    )
    # Keeps the bars narrow if there are few.
    chart.add("rows", [*found.rows, *[None] * (8 - len(found.rows))], formatter=_rows)
    return Plot(
        title=title,
        text=text,
        svgs=[svg_of(chart, title=title, text=text, colours=("rows",))],
        legend={"rows of a place": "rows"},
    )


def _file_sizes(facts: Facts) -> Plot:
    title, found = "File sizes", facts.file_sizes
    if found is None:
        return Plot(title=title, text="No table file was written yet.")
    text = (
        f"{found.files:,} files from {readable_size(found.smallest)} to "
        f"{readable_size(found.largest)}, {readable_size(int(found.median))} in the middle."
    )
    tops = number_ticks(max(one.files for one in found.classes))
    labels = [readable_size(one.from_bytes) for one in found.classes]
    missing = max(0, 8 - len(labels))
    chart = Bar(
        **settings(_WIDTH, _HEIGHT),
        x_labels=[*labels, *[""] * missing],
        y_labels=tops,
        range=(0, tops[-1]),
        value_formatter=short_number,
    )
    chart.add("files", [*(one.files for one in found.classes), *[None] * missing])
    return Plot(
        title=title,
        text=text,
        svgs=[svg_of(chart, title=title, text=text, colours=("rows",))],
        legend={"files from this size on": "rows"},
    )


def _bars(title: str, text: str, bars: Bars, colours: Sequence[str]) -> Plot:
    top = max(sum(values) for values in zip(*bars.parts.values(), strict=True))
    ticks = time_ticks(top, _WIDTH) if bars.is_time else number_ticks(top)
    chart = HorizontalStackedBar(
        **settings(_WIDTH, _AXIS_HEIGHT + _BAR_HEIGHT * len(bars.labels)),
        # pygal counts from the bottom.
        x_labels=list(reversed(bars.labels)),
        y_labels=ticks,
        range=(0, ticks[-1]),
        value_formatter=short_time if bars.is_time else short_number,
    )
    exact = readable_time if bars.is_time else _rows
    for name, values in bars.parts.items():
        chart.add(name, list(reversed(values)), formatter=exact)
    legend = dict(zip(bars.parts, colours, strict=True))
    svg = svg_of(chart, title=title, text=text, colours=colours)
    return Plot(title=title, text=text, svgs=[svg], legend=legend)


def _rows(number: float) -> str:
    return f"{number:,.0f} rows"


def _label(text: str) -> str:
    return text if len(text) <= _LABEL_LENGTH_MAX else f"…{text[1 - _LABEL_LENGTH_MAX :]}"
