"""The time axis of a page: all starts in one row, long pauses between them cut out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from holdfast.pages.lives import Life

Point = tuple[float, float]

# A job that dies at night is started again in the morning: drawn as it was, the work would be two
# thin lines. Pauses are cut to this part of the time at work once they take more of it than that.
_PAUSES_SHARE_MAX = 0.5
_CUT_SHARE = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Turns moments into places on the axis, in seconds from its left end."""

    # Each start: when it began and ended, and where it begins on the axis.
    lives: Sequence[tuple[float, float, float]]
    # How much time is left out.
    cut_s: float = 0.0

    @property
    def length_s(self) -> float:
        """Where the last start ends."""
        return self.place(len(self.lives) - 1, self.lives[-1][1]) if self.lives else 0.0

    def place(self, life: int, at: float) -> float:
        """Return where a moment of a start stands on the axis.

        Args:
            life: The start's place in the list.
            at: Unix seconds.
        """
        began, ended, left = self.lives[life]
        return left + min(max(at, began), ended) - began


def axis_of(lives: Sequence[Life]) -> Axis:
    """Return an axis on which all starts stand."""
    if not lives:
        return Axis(lives=())
    pauses = [max(0.0, later.began_at - earlier.last_at) for earlier, later in pairwise(lives)]
    working = sum(life.lasted_s for life in lives)
    drawn = pauses
    if sum(pauses) > _PAUSES_SHARE_MAX * working:
        drawn = [min(pause, _CUT_SHARE * working) for pause in pauses]
    left, places = 0.0, []
    for life, pause in zip(lives, [*drawn, 0.0], strict=True):
        places.append((life.began_at, life.last_at, left))
        left += life.lasted_s + pause
    return Axis(lives=places, cut_s=sum(pauses) - sum(drawn))


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most about so many points of a line that only grows: its first, last, and between.

    Args:
        points: From left to right.
        most: How many the picture can show.
    """
    if len(points) <= most:
        return list(points)
    step = (len(points) - 1) / (most - 1)
    return [points[round(number * step)] for number in range(most)]


def highest(points: Iterable[Point], length: float, most: int) -> list[Point]:
    """Return the highest of all points in each of so many parts of the axis.

    Args:
        points: In any order.
        length: How long the axis is.
        most: How many parts it has.
    """
    width = length / most or 1.0
    found: dict[int, Point] = {}
    for point in points:
        part = min(most - 1, int(point[0] / width))
        if part not in found or point[1] > found[part][1]:
            found[part] = point
    return [found[part] for part in sorted(found)]
