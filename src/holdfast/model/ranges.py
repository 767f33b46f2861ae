"""Ranges of row numbers: which rows of a scan, whose rows are numbered through all its files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Ranges:
    """Row numbers as spans `[start, stop)`: in order, disjoint, and never touching."""

    spans: tuple[Span, ...] = ()

    @classmethod
    def of(cls, spans: Iterable[Span]) -> Ranges:
        """Put spans in order and join those that touch or overlap."""
        joined: list[Span] = []
        for start, stop in sorted(spans):
            if start >= stop:
                continue
            if joined and start <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
            else:
                joined.append((start, stop))
        return cls(tuple(joined))

    def __bool__(self) -> bool:
        """Whether there is any row."""
        return bool(self.spans)

    def __iter__(self) -> Iterator[Span]:
        """Give the spans in order."""
        return iter(self.spans)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(stop - start for start, stop in self.spans)

    def plus(self, other: Ranges) -> Ranges:
        """Return the rows of either."""
        return Ranges.of((*self.spans, *other.spans))

    def minus(self, other: Ranges) -> Ranges:
        """Return the rows that the other does not have."""
        left: list[Span] = []
        taken = iter((*other.spans, None))
        hole = next(taken)
        for first, stop in self.spans:
            start = first
            while hole is not None and hole[1] <= start:
                hole = next(taken)
            while hole is not None and hole[0] < stop:
                if hole[0] > start:
                    left.append((start, hole[0]))
                start = hole[1]
                if start >= stop:
                    break
                hole = next(taken)
            if start < stop:
                left.append((start, stop))
        return Ranges(tuple(left))

    def overlap(self, other: Ranges) -> Ranges:
        """Return the rows that both have."""
        return self.minus(self.minus(other))
