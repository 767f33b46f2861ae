"""The picture of a run's progress: one line over all starts, and how each of them ended."""

from __future__ import annotations

from typing import Any

from holdfast.pages.charts import XY
from holdfast.pages.drawing import WIDE, settings, svg_of
from holdfast.pages.facts import Facts
from holdfast.pages.ticks import number_ticks, short_number, short_time, time_ticks

END_WORDS = {
    "gone": "killed or taken over",
    "stopped": "stopped with an error",
    "committed": "committed",
    "aborted": "given up",
}


def draw_progress(facts: Facts, title: str, text: str) -> tuple[list[str], dict[str, str]]:
    """Return the drawings, and the colours of what is in them by name.

    Args:
        facts: What is known of the run; there are points to draw.
        title: What the picture is called.
        text: What is to be seen.
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
    # An area has no line around it: at its right end that would look like one more mark.
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
    """Return a dot at each end of a start, with the words that are shown over it."""
    found = []
    for mark in facts.timeline.ends:
        if mark.end == end:
            life = facts.starts[mark.start - 1]
            rows = life.kept_rows + life.rows
            words = f"start {mark.start}: {END_WORDS[end]}, {rows:,} rows done"
            found.append({"value": (mark.place_s, rows), "formatter": lambda _, words=words: words})
    return found
