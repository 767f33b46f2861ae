"""Bugs that are none: the changed code does the same, for the reason given.

A reader has checked each; `python -m tests.mutants` shows them, and does not count them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalent:
    """A change of a line that changes nothing."""

    # Without what is around them.
    before: str
    after: str
    reason: str


EQUIVALENT = (
    Equivalent(
        before="firsts = np.flatnonzero(np.diff(places, prepend=-1))",
        after="firsts = np.flatnonzero(np.diff(places, prepend=-2))",
        reason="places are not negative, so that the first always differs from what is before it",
    ),
)
