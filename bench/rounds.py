"""Measure sides against each other: in turns, in one session, so that noise hits them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

ROUNDS = 3


@dataclass
class Times:
    """How long each side took, round by round."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def ratio(self, side: str, over: str) -> float:
        """Return how long one side takes per second of another.

        Both sides of a round run close together in time, so their ratio is less affected by the
        noise of a shared machine than a ratio of medians.
        """
        pairs = zip(self.seconds[side], self.seconds[over], strict=True)
        return round(statistics.median(seconds / other for seconds, other in pairs), 3)

    def figures(self) -> dict[str, Any]:
        """Return all times, for the record."""
        return {
            f"{side}_s": [round(seconds, 2) for seconds in found]
            for side, found in self.seconds.items()
        }


def alternate(
    sides: Mapping[str, Callable[[str], None]],
    prepare: Callable[[str], str],
    clean_up: Callable[[str], object],
    *,
    is_warm: bool = False,
    rounds: int = ROUNDS,
) -> Times:
    """Run all sides in turns; a first round that does not count warms the session up.

    Args:
        sides: What to measure. Each is given what `prepare` returned.
        prepare: Makes what a side needs, under a unique name, outside the measured time.
        clean_up: Removes it again.
        is_warm: Whether the session has done such work before: then every round counts.
        rounds: How many rounds count.
    """
    times = Times({side: [] for side in sides})
    for number in range(int(is_warm), rounds + 1):
        # Each side goes first as often as the others: a machine that slows down favours none.
        order = list(sides.items())
        for side, action in order[number % len(order) :] + order[: number % len(order)]:
            made = prepare(f"{side}_{number}")
            started = time.monotonic()
            action(made)
            seconds = time.monotonic() - started
            print(f"  round {number} {side:<12} {seconds:6.2f} s", flush=True)
            if number:
                times.seconds[side].append(seconds)
            clean_up(made)
    return times
