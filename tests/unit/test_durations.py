"""Durations: what people write, in seconds, or an error that repeats it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.text import seconds_of


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        ("30s", 30.0),
        ("5 min", 300.0),
        ("1h", 3600.0),
        (" 2 D ", 172_800.0),
        ("250ms", 0.25),
        ("1.5m", 90.0),
        ("10 sec", 10.0),
        (45, 45.0),
        (0.5, 0.5),
        (timedelta(minutes=2), 120.0),
    ],
)
def test_a_duration_is_read_in_seconds(duration: str | float | timedelta, seconds: float) -> None:
    """Texts with a unit, plain numbers of seconds and timedeltas all mean the same."""
    assert seconds_of(duration) == seconds


@pytest.mark.parametrize(
    "duration",
    ["", "30", "s", "half an hour", "1h 30m", "-5s", "5 parsecs", "1e3s", "nan", "inf s", "1.s"],
)
def test_a_text_that_is_no_duration_is_refused_and_repeated(duration: str) -> None:
    """A number without a unit is refused too: nobody knows what was meant."""
    with pytest.raises(ValueError, match="is no duration") as caught:
        seconds_of(duration)
    assert repr(duration) in str(caught.value)


@pytest.mark.parametrize(
    "duration",
    [0, -1, 0.0, "0s", timedelta(0), timedelta(seconds=-1), float("nan"), float("inf")],
)
def test_no_time_at_all_is_refused(duration: str | float | timedelta) -> None:
    """A checkpoint every zero seconds, or never, is not what anybody means."""
    with pytest.raises(ValueError, match="no time at all"):
        seconds_of(duration)
