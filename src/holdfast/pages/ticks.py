"""Ticks: the round numbers at the axes of a plot."""

from __future__ import annotations

from math import floor, log10

_DAY_S = 86_400
# Steps that people count time in.
_TIMES_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
_MOST = 6
# Labels such as `1 min 30` need room: so many pixels each.
_TIME_WIDTH = 95
_KILO, _MILLION = 1_000, 1_000_000
_MINUTE_S, _HOUR_S = 60, 3_600


def number_ticks(top: float) -> list[float]:
    """Return round numbers from 0 to at least the top."""
    if top <= 0:
        return [0.0, 1.0]
    power = 10.0 ** floor(log10(top / (_MOST - 1)))
    step = next(power * one for one in (1, 2, 5, 10) if power * one * (_MOST - 1) >= top)
    return _up_to(top, max(step, 1.0))


def time_ticks(top: float, width: int) -> list[float]:
    """Return round times from 0 to at least the top, in seconds.

    Args:
        top: The longest time.
        width: How many pixels wide the drawing is.
    """
    if top < _TIMES_S[0]:
        return [0.0, 0.5, 1.0]
    step = next((one for one in _TIMES_S if one * (width // _TIME_WIDTH) >= top), 0)
    if step:
        return _up_to(top, step)
    return [day * _DAY_S for day in number_ticks(top / _DAY_S)]


def short_number(value: float) -> str:
    """Return a number that takes little room: `1.5M`."""
    if value >= _MILLION:
        return f"{value / _MILLION:,.4g}M"
    if value >= 10 * _KILO:
        return f"{value / _KILO:,.4g}k"
    return f"{value:,.4g}" if value < _KILO else f"{value:,.0f}"


def short_time(seconds: float) -> str:
    """Return a time that takes little room: `1 h 30`."""
    if seconds < _MINUTE_S:
        return f"{seconds:g} s"
    if seconds < _HOUR_S:
        minutes, rest = divmod(round(seconds), _MINUTE_S)
        return f"{minutes} min {rest}" if rest else f"{minutes} min"
    if seconds < _DAY_S:
        hours, rest = divmod(round(seconds) // _MINUTE_S, 60)
        return f"{hours} h {rest}" if rest else f"{hours} h"
    return f"{seconds / _DAY_S:g} d"


def _up_to(top: float, step: float) -> list[float]:
    found = [0.0]
    while found[-1] < top:
        found.append(len(found) * step)
    return found
