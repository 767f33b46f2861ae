"""What is known of a guard."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """One guard of the protocol."""

    name: str
    file: str
    before: str
    after: str
    # What pytest is to run; with the guard away it must fail.
    test: str
