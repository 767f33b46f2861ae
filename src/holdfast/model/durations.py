"""Durations as people write them: "30s", "5 min", "1h", or a number of seconds."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS_S = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")


def seconds_of(duration: str | float | timedelta) -> float:
    """Return a duration in seconds.

    Raises:
        ValueError: It is no duration, or not longer than nothing.
    """
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, str):
        found = _TEXT.fullmatch(duration.lower())
        if found is None or found[2] not in _UNITS_S:
            raise ValueError(f"{duration!r} is no duration")
        seconds = float(found[1]) * _UNITS_S[found[2]]
    else:
        seconds = float(duration)
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{duration!r} is no time at all")
    return seconds
