"""Key examples: what an error shows of the keys that it speaks of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyExamples:
    """How many keys there are of some kind, and a few of them for people."""

    keys: int
    examples: str
