"""Draw bars as an SVG that is readable on a light and on a dark page.

The same figures give the same bytes, so a plot that is made again changes only if a figure has.
Text stays text: the file is small, and the browser's own font is used.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Each stands out from white and from black.
_TEXT = "#888888"
_OURS = "#3d8fd1"
_OTHERS = "#b4b4b4"
_ROUND = "#d4550f"
_GOAL = "#d62f4b"

_WIDTH_INCHES = 8.0
_ROW_INCHES = 0.38
_FRAME_INCHES = 1.15
_BAR_HEIGHT = 0.66
# A group's heading and the gap above it, in rows.
_HEADING_ROWS = 1.0
# Room for the text after the longest bar, as a share of it: a number, or a sentence.
_NUMBER_SHARE = 0.2
_NOTE_SHARE = 0.55

_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    # Names inside the file are made from it; by default it differs each time.
    "svg.hashsalt": "holdfast",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "sans-serif"],
    "font.size": 9.0,
    "text.color": _TEXT,
    "axes.edgecolor": _TEXT,
    "axes.labelcolor": _TEXT,
    "xtick.color": _TEXT,
    "ytick.color": _TEXT,
}
# No date, and no version of the drawing library: neither says anything about the figures.
_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The median of some figures, with a dot for each of them."""

    label: str
    # One value per round. Empty if there is none: then the note says why.
    values: tuple[float, ...]
    is_ours: bool = False
    # Printed after the median.
    note: str = ""
    # The goal: the figure should be at most this.
    goal: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Bars that are compared with each other."""

    bars: tuple[Bar, ...]
    heading: str = ""

    def rows(self) -> float:
        """Return how many rows it takes."""
        return len(self.bars) + (_HEADING_ROWS if self.heading else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """All that is drawn in one file."""

    title: str
    groups: tuple[Group, ...]
    unit: str = "s"
    axis: str = "seconds"
    # What the figures depend on, in small letters below.
    footer: str = ""

    def bars(self) -> list[Bar]:
        """Return the bars of all groups."""
        return [bar for group in self.groups for bar in group.bars]


def draw(chart: Chart, path: Path) -> None:
    """Write a chart as an SVG file; its folder must exist."""
    rows = sum(group.rows() for group in chart.groups)
    with rc_context(_SETTINGS):
        height = _FRAME_INCHES + _ROW_INCHES * rows
        figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
        axes = figure.add_subplot()
        longest = max((_reach(bar) for bar in chart.bars()), default=0.0) or 1.0
        room = _NOTE_SHARE if any(bar.note for bar in chart.bars()) else _NUMBER_SHARE
        labels = _draw_groups(axes, chart, gap=longest / 60)
        axes.set_yticks(list(labels), labels=list(labels.values()))
        axes.set_xlim(0, longest * (1 + room))
        axes.set_ylim(rows - 0.4, -0.6)
        axes.set_title(chart.title, loc="left", fontsize=10, fontweight="bold", x=0)
        axes.set_xlabel(f"{_legend(chart)}\n{chart.footer}".strip(), fontsize=8, loc="left")
        axes.tick_params(left=False)
        axes.spines[["top", "right", "left"]].set_visible(False)
        figure.savefig(path, format="svg", transparent=True, metadata=_METADATA)


def _draw_groups(axes: Axes, chart: Chart, *, gap: float) -> dict[float, str]:
    """Draw all bars from the top down; return the label at each height."""
    labels: dict[float, str] = {}
    row = 0.0
    for group in chart.groups:
        if group.heading:
            axes.text(0, row + 0.15, group.heading, va="center", fontweight="bold")
            row += _HEADING_ROWS
        for bar in group.bars:
            labels[row] = bar.label
            _draw_bar(axes, bar, row, chart.unit, gap)
            row += 1
    return labels


def _draw_bar(axes: Axes, bar: Bar, row: float, unit: str, gap: float) -> None:
    if bar.values:
        median = statistics.median(bar.values)
        axes.barh(row, median, height=_BAR_HEIGHT, color=_OURS if bar.is_ours else _OTHERS)
        notes = [f"{_number(median)} {unit}", bar.note]
    else:
        notes = [bar.note or "no figure"]
    if len(bar.values) > 1:
        axes.plot(bar.values, [row] * len(bar.values), "o", color=_ROUND, markersize=4)
    if bar.goal is not None:
        half = _BAR_HEIGHT / 2 + 0.08
        axes.plot([bar.goal] * 2, [row - half, row + half], color=_GOAL, linewidth=2)
        notes.append(f"goal {_number(bar.goal)} {unit}")
    axes.text(_reach(bar) + gap, row, ", ".join(filter(None, notes)), va="center")


def _reach(bar: Bar) -> float:
    """Return how far right a bar and its marks go."""
    return max((*bar.values, bar.goal or 0.0), default=0.0)


def _number(value: float) -> str:
    """Return three digits: more would claim more than three rounds can show."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:#.3g}"  # noqa: PLR2004 - three digits.


def _legend(chart: Chart) -> str:
    """Explain the marks that are there."""
    bars = chart.bars()
    has_rounds = any(len(bar.values) > 1 for bar in bars)
    parts = [
        chart.axis,
        *(["a bar is the median, a dot is a round"] if has_rounds else []),
        *(["the red mark is the goal"] if any(bar.goal is not None for bar in bars) else []),
    ]
    return "; ".join(parts)
