"""Chance: every decision of a history, drawn from a seed or taken from a list.

Decision 0 always means that nothing special happens. So a list of decisions can be shortened, and
its members set to 0, until only those that a failure needs are left.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


class Chance:
    """Draws decisions and remembers them."""

    def __init__(self, seed: int, given: Sequence[int] | None = None) -> None:
        """Start a history.

        Args:
            seed: Where decisions come from.
            given: Decisions to follow instead; after the last of them, nothing special happens.
        """
        self._random = random.Random(seed)
        self._given = given
        self.taken: list[int] = []

    def of(self, options: int, special: float = 1.0) -> int:
        """Decide between `options` outcomes; 0 is the ordinary one.

        Args:
            options: How many outcomes there are.
            special: How likely it is that the decision is drawn at all.
        """
        if self._given is not None:
            number = len(self.taken)
            decision = self._given[number] % options if number < len(self._given) else 0
        elif options > 1 and (special >= 1.0 or self._random.random() < special):
            decision = self._random.randrange(options)
        else:
            decision = 0
        self.taken.append(decision)
        return decision

    def happens(self, likely: float) -> bool:
        """Decide whether something special happens."""
        return self.of(2, min(1.0, 2 * likely)) == 1
