"""Ticks and labels of a page's charts: few, round and short."""

from __future__ import annotations

import pytest

from holdfast.pages.charts import number_ticks, short_number, short_time, time_ticks


@pytest.mark.parametrize("top", [0, 0.3, 1, 7, 19, 20, 6_000, 123_456, 8e9, 3.5e15])
def test_ticks_of_numbers_are_few_round_and_reach_the_top(top: float) -> None:
    """The first tick is zero."""
    ticks = number_ticks(top)
    assert (ticks[0], ticks[-1] >= top, 2 <= len(ticks) <= 7) == (0, True, True)


@pytest.mark.parametrize("top", [0, 0.3, 1, 7, 59, 61, 3_599, 40_000, 86_401, 3e6])
@pytest.mark.parametrize("most", [5, 9])
def test_ticks_of_time_are_few_and_reach_the_top(top: float, most: int) -> None:
    """Steps are common units of time; a narrow drawing has room for fewer."""
    ticks = time_ticks(top, most)
    assert (ticks[0], ticks[-1] >= top, 2 <= len(ticks) <= most + 2) == (0, True, True)


def test_labels_are_short() -> None:
    """There is little room at an axis."""
    numbers = [short_number(number) for number in (0, 0.5, 950, 6_000, 25_000, 1_500_000)]
    assert numbers == ["0", "0.5", "950", "6,000", "25k", "1.5M"]
    times = [short_time(seconds) for seconds in (0, 0.5, 45, 60, 90, 5_400, 7_200, 172_800)]
    assert times == ["0 s", "0.5 s", "45 s", "1 min", "1 min 30", "1 h 30", "2 h", "2 d"]
