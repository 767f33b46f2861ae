"""Input sums: what a start's input was, in a few numbers.

A count alone is not enough: an input that changes may lose as many rows as it doubles. The sums
run over a 64-bit hash of each row's key, in halves, so that they neither overflow nor depend on
the order of rows. The same keys may come with other values: two further sums, over a hash of each
whole row, tell these apart. They are there only where a start was asked for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.model.stored import Count, Sum


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSums:
    """The number of rows, how many have NULL in their key, and the sums of their keys' hashes."""

    rows: Count
    null_keys: Count
    low: Sum
    high: Sum
    # Sums over the hashes of whole rows; None where they were not asked for.
    row_low: Sum | None = None
    row_high: Sum | None = None
    # The columns of these rows, each with its type: to say what has changed, not to compare.
    columns: Sequence[str] = field(default=(), compare=False)

    @property
    def has_row_sums(self) -> bool:
        """Whether values can be compared, and not only keys."""
        return self.row_low is not None

    def has_keys_of(self, other: InputSums) -> bool:
        """Whether these are as many rows as the others, with the same keys."""
        return (self.rows, self.null_keys, self.low, self.high) == (
            other.rows,
            other.null_keys,
            other.low,
            other.high,
        )

    def matches(self, other: InputSums) -> bool:
        """Whether these are the same rows, as far as both sides know them."""
        if not self.has_keys_of(other):
            return False
        if not (self.has_row_sums and other.has_row_sums):
            return True
        return (self.row_low, self.row_high) == (other.row_low, other.row_high)

    def difference(self, now: InputSums) -> str:
        """Say how the input differs from what it was; empty if it does not."""
        if self.matches(now):
            return ""
        if self.has_keys_of(now):
            return f"the input has {now.rows:,} rows with the same keys as before, but other values"
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
            row_low=_both(self.row_low, other.row_low),
            row_high=_both(self.row_high, other.row_high),
        )


def changed_columns(then: Sequence[str], now: Sequence[str]) -> str:
    """Say which columns the input has gained or lost; empty if none, or if that is not known."""
    if not then or not now or set(then) == set(now):
        return ""
    gone = ", ".join(sorted(set(then) - set(now))) or "none"
    new = ", ".join(sorted(set(now) - set(then))) or "none"
    return f"its columns have changed (gone: {gone}; new: {new})"


def _both(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
