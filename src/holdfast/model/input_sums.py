"""Input sums: what a start's input was, in four numbers.

A count alone is not enough: an input that changes may lose as many rows as it doubles. The sums
run over a 64-bit hash of each row's key, in halves, so that they neither overflow nor depend on
the order of rows.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSums:
    """The number of rows, how many have NULL in their key, and the sums of their keys' hashes."""

    rows: int
    null_keys: int
    low: int
    high: int

    def difference(self, now: InputSums) -> str:
        """Say how the input differs from what it was; empty if it does not."""
        if now == self:
            return ""
        if now.rows == self.rows:
            return f"the input has {now.rows:,} rows as before, but other keys"
        more = "more" if now.rows > self.rows else "fewer"
        return (
            f"the input had {self.rows:,} rows and now has {now.rows:,}: "
            f"{abs(now.rows - self.rows):,} {more}"
        )

    def plus(self, other: InputSums) -> InputSums:
        """Return the sums of both together."""
        return InputSums(
            rows=self.rows + other.rows,
            null_keys=self.null_keys + other.null_keys,
            low=self.low + other.low,
            high=self.high + other.high,
        )
