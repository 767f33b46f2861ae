"""Charts: axis ticks, and the shapes that the page's template draws as SVG or as a table.

Places are percentages of the drawing, and lines are stretched to it: one drawing fits a wide page,
a phone and paper, and its text has the same size on each. The template escapes every text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import floor, log10

# ---- Ticks: the round numbers at the axes of a plot

_DAY_S = 86_400
# Steps in which people count time.
_TIMES_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
_MOST = 6
_KILO, _MILLION = 1_000, 1_000_000
_MINUTE_S, _HOUR_S = 60, 3_600


def number_ticks(top: float) -> list[float]:
    """Return round numbers from 0 to at least the top."""
    if top <= 0:
        return [0.0, 1.0]
    power = 10.0 ** floor(log10(top / (_MOST - 1)))
    step = next(power * step for step in (1, 2, 5, 10) if power * step * (_MOST - 1) >= top)
    return _up_to(top, max(step, 1.0))


def time_ticks(top: float, most: int) -> list[float]:
    """Return round times from 0 to at least the top, in seconds.

    Args:
        top: The longest time.
        most: How many steps there is room for.
    """
    if top < _TIMES_S[0]:
        return [0.0, 0.5, 1.0]
    step = next((step for step in _TIMES_S if step * most >= top), 0)
    if step:
        return _up_to(top, step)
    return [day * _DAY_S for day in number_ticks(top / _DAY_S)]


def short_number(value: float) -> str:
    """Return a number in short form: `1.5M`."""
    if value >= _MILLION:
        return f"{value / _MILLION:,.4g}M"
    if value >= 10 * _KILO:
        return f"{value / _KILO:,.4g}k"
    return f"{value:,.4g}" if value < _KILO else f"{value:,.0f}"


def short_time(seconds: float) -> str:
    """Return a time in short form: `1 h 30`."""
    if seconds < _MINUTE_S:
        return f"{seconds:g} s"
    if seconds < _HOUR_S:
        minutes, rest = divmod(round(seconds), _MINUTE_S)
        return f"{minutes} min {rest}" if rest else f"{minutes} min"
    if seconds < _DAY_S:
        hours, rest = divmod(round(seconds) // _MINUTE_S, 60)
        return f"{hours} h {rest}" if rest else f"{hours} h"
    return f"{seconds / _DAY_S:.3g} d"


def rough_time(seconds: float) -> str:
    """Return a time in one unit, for a place with little room: `90 min`."""
    for unit, size in (("d", _DAY_S), ("h", _HOUR_S), ("min", _MINUTE_S)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _up_to(top: float, step: float) -> list[float]:
    found = [0.0]
    while found[-1] < top:
        found.append(len(found) * step)
    return found


# ---- Drawings: shapes in percent of the drawing's width and height, from its upper left corner

Point = tuple[float, float]

# A line is drawn in a square of this size, which is stretched.
_SQUARE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A labelled place on an axis."""

    at: float
    text: str
    # Whether a phone has room for it, too.
    is_major: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line, or the area below it."""

    # The path in a square of 1,000.
    path: str
    ink: str
    # "line", "area", "faint" or "dashed".
    kind: str = "line"
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A column, or a band behind the lines."""

    x: float
    y: float
    width: float
    height: float
    ink: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A point on a line."""

    x: float
    y: float
    ink: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A text in the drawing, above its place or below it."""

    x: float
    y: float
    text: str
    ink: str
    is_below: bool
    # What it is short enough for: "wide", "middle" or "phone".
    screen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Everything in one SVG."""

    x_ticks: Sequence[Tick] = ()
    y_ticks: Sequence[Tick] = ()
    boxes: Sequence[Box] = ()
    lines: Sequence[Line] = ()
    marks: Sequence[Mark] = ()
    labels: Sequence[Label] = ()
    is_tall: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Converts values into percentages of a drawing."""

    right: float
    top: float

    def x(self, value: float) -> float:
        """Return how far from the left edge a value is."""
        return round(100 * value / self.right, 2)

    def y(self, value: float) -> float:
        """Return how far from the upper edge a value is."""
        return round(100 * (1 - value / self.top), 2)

    def path(self, points: Sequence[Point], *, is_area: bool = False) -> str:
        """Return the path of a line, or of the area between it and the axis."""
        if is_area:
            points = [(points[0][0], 0.0), *points, (points[-1][0], 0.0)]
        places = [
            f"{x * _SQUARE / self.right:.1f} {_SQUARE * (1 - y / self.top):.1f}" for x, y in points
        ]
        return "M" + "L".join(places) + ("Z" if is_area else "")


def number_axis(tops: Sequence[float], scale: Scale, text: Callable[[float], str]) -> list[Tick]:
    """Return the ticks of a vertical axis.

    Args:
        tops: Their values.
        scale: Where they are.
        text: Returns the label of a value.
    """
    return [Tick(at=scale.y(top), text=text(top)) for top in tops]


# ---- Bars: a table with a bar in each row, whose parts are the columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a bar."""

    ink: str
    # Percent of the longest bar.
    share: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BarRow:
    """One bar, with its values as text."""

    label: str
    parts: list[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class BarTable:
    """Bars below each other."""

    of: str
    # The colour of each column by its heading; it is the legend, too.
    columns: dict[str, str] = field(default_factory=dict)
    rows: list[BarRow] = field(default_factory=list)


def bar_row(
    label: str, values: Sequence[float], texts: Sequence[str], inks: Sequence[str], top: float
) -> BarRow:
    """Return a bar whose parts are in proportion to the longest bar.

    Args:
        label: What the bar is of.
        values: The size of each part.
        texts: The same, for people.
        inks: The colour of each part.
        top: The longest bar.
    """
    # A part that is there is seen, however small it is.
    parts = [
        Part(ink=ink, share=max(0.01, round(100 * value / top, 2)) if value else 0.0, text=text)
        for value, text, ink in zip(values, texts, inks, strict=True)
    ]
    return BarRow(label=label, parts=parts)


# ---- Plots: a drawing or bars, and the text around them

NO_USAGE = "Unknown: an earlier version of Holdfast wrote these records."


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One plot, and the text around it. Without a drawing and a table the text says why."""

    title: str
    # A description in a sentence or two.
    text: str
    drawing: Drawing | None = None
    table: BarTable | None = None
    # Colours by what they mean, in order.
    legend: dict[str, str] = field(default_factory=dict)
    # Whether it takes the whole width of the page.
    wide: bool = False

    @property
    def is_drawn(self) -> bool:
        """Whether there is something to see."""
        return self.drawing is not None or self.table is not None
