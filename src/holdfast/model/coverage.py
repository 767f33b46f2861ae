"""What a run reads and has covered: row ranges, key examples, input sums, pinned files.

A count alone is not enough: an input that changes may lose as many rows as it duplicates. The sums
run over a 64-bit hash of each row's key, in halves, so that they neither overflow nor depend on
the order of rows. The same keys may come with other values: two further sums, over a hash of each
whole row, detect this. They exist only if a start was asked for them.

Rows are numbered through all files, in the order of the pins, so a range of numbers says which
rows are done. That holds as long as each file is the one that was pinned.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import pyarrow as pa

from holdfast.model.stored import Count, Sum

# ---- Ranges of row numbers: the rows of a scan are numbered through all its files

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Ranges:
    """Row numbers as spans `[start, stop)`: sorted, disjoint and never adjacent."""

    spans: tuple[Span, ...] = ()

    @classmethod
    def of(cls, spans: Iterable[Span]) -> Ranges:
        """Sort spans and join those that touch or overlap."""
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
        """Whether there are any rows."""
        return bool(self.spans)

    def __iter__(self) -> Iterator[Span]:
        """Iterate over the spans in order."""
        return iter(self.spans)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(stop - start for start, stop in self.spans)

    def plus(self, other: Ranges) -> Ranges:
        """Return the union."""
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


# ---- Key examples: the keys that an error shows
@dataclass(frozen=True, slots=True, kw_only=True)
class KeyExamples:
    """How many keys of some kind there are, and a few of them as examples."""

    keys: int
    examples: str


# ---- Input sums: a start's input, in a few numbers
@dataclass(frozen=True, slots=True, kw_only=True)
class InputSums:
    """The number of rows, how many have NULL in their key, and the sums of their keys' hashes."""

    rows: Count
    null_keys: Count
    low: Sum
    high: Sum
    # Sums over the hashes of whole rows; None if they were not asked for.
    row_low: Sum | None = None
    row_high: Sum | None = None
    # The columns of these rows, each with its type: for messages, not for comparison.
    columns: Sequence[str] = field(default=(), compare=False)

    @property
    def has_row_sums(self) -> bool:
        """Whether values can be compared, and not only keys."""
        return self.row_low is not None

    def has_keys_of(self, other: InputSums) -> bool:
        """Whether both have the same number of rows and the same keys."""
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
            return f"the input still has {now.rows:,} rows with the same keys, but different values"
        if now.rows == self.rows:
            return f"the input still has {now.rows:,} rows, but different keys"
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


# ---- Pins: the files that a scan reads, as they were when the run began
@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedFile:
    """One file of the input."""

    uri: str
    size_bytes: Count
    # The store's tag of this version of the object; empty if the store has none.
    tag: str
    # Rows and stored bytes of each part that can be read separately: a row group, or the file.
    group_rows: tuple[Count, ...]
    group_bytes: tuple[Count, ...]
    # The parts that cannot hold a wanted row.
    left_out: tuple[Count, ...] = ()
    # Columns whose values are in the file's path, not in the file.
    values: Mapping[str, Any] = field(default_factory=dict)
    # Files that list the deleted rows of this one.
    deletes: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(self.group_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlice:
    """Some rows of one file. Pickled with a task."""

    file: PinnedFile
    # The number of the file's first row, and the slice's rows, counted from it.
    base: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Which state of a table was pinned, to compare at a later start; empty for plain files."""

    # For a Lance dataset.
    version: Count | None = None
    # Empty for a dataset that no run has written to.
    table_uuid: str = ""
    # For an Iceberg table; one without rows has no snapshot.
    snapshot_id: int | None = None
    # Not in ledgers of 0.1.
    branch: str = ""


@dataclass(frozen=True, kw_only=True)
class Pins:
    """All files of a scan, and the schema of their rows."""

    files: tuple[PinnedFile, ...]
    schema: pa.Schema
    origin: Origin = Origin()

    @cached_property
    def bases(self) -> tuple[int, ...]:
        """The number of each file's first row, followed by the total number of rows."""
        return tuple(accumulate((file.rows for file in self.files), initial=0))

    @cached_property
    def whole(self) -> Ranges:
        """All rows to be read."""
        return Ranges.of((base, base + rows) for base, rows, _ in self._groups())

    def items(self, left: Ranges, slots: int, item_bytes: int) -> list[tuple[FileSlice, ...]]:
        """Split rows into work items of about the same size, between groups if possible.

        Args:
            left: The rows to split.
            slots: How many tasks run at a time: each gets about the same share.
            item_bytes: The most stored bytes in an item.
        """
        pieces = list(self._pieces(left))
        total = sum(size for _, _, size in pieces)
        if not pieces:
            return []
        count = slots * max(1, -(-total // (item_bytes * slots)))
        # A group that is a little too large stays whole: if split, it would be read twice.
        tolerance = total // count // 4
        items: list[list[Span]] = [[]]
        done = 0
        for first, stop, size in pieces:
            start, rest = first, size
            while start < stop:
                room = total * len(items) // count - done
                too_much = rest - room if len(items) < count else 0
                if items[-1] and room <= tolerance and too_much > max(0, room):
                    items.append([])
                    continue
                rows, share = stop - start, rest
                if too_much > tolerance:
                    rows = max(1, rows * room // rest)
                    share = rest * rows // (stop - start)
                items[-1].append((start, start + rows))
                start, rest, done = start + rows, rest - share, done + share
        return [self._slices(Ranges.of(item)) for item in items]

    def _slices(self, ranges: Ranges) -> tuple[FileSlice, ...]:
        slices: list[FileSlice] = []
        for first, stop in ranges:
            start = first
            while start < stop:
                # If several files begin at the same number, only the last of them has rows.
                number = bisect_right(self.bases, start) - 1
                base, end = self.bases[number], min(stop, self.bases[number + 1])
                slices.append(
                    FileSlice(
                        file=self.files[number], base=base, start=start - base, stop=end - base
                    )
                )
                start = end
        return tuple(slices)

    def _groups(self) -> Iterable[tuple[int, int, int]]:
        """Yield the first row, the number of rows and the bytes of each group to be read."""
        for file, base in zip(self.files, self.bases, strict=False):
            left_out, first = set(file.left_out), base
            sizes = zip(file.group_rows, file.group_bytes, strict=True)
            for number, (rows, size) in enumerate(sizes):
                if rows and number not in left_out:
                    yield first, rows, size
                first += rows

    def _pieces(self, left: Ranges) -> Iterable[tuple[int, int, int]]:
        """Yield the first row, the end and the approximate bytes of each piece, by group."""
        spans: Sequence[Span] = left.spans
        at = 0
        for first, rows, size in self._groups():
            while at < len(spans) and spans[at][1] <= first:
                at += 1
            here = at
            while here < len(spans) and spans[here][0] < first + rows:
                start, stop = max(first, spans[here][0]), min(first + rows, spans[here][1])
                yield start, stop, max(1, size * (stop - start) // rows)
                here += 1


# ---- Coverage: the input rows that one task record adds
@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The input rows that one record adds: how many, and their keys."""

    rows: int
    # Sums over the 64-bit hashes of the keys, by halves: see `InputSums`.
    low: int
    high: int
    # The size of the key file; 0 if there is none.
    keys_bytes: int
    # The same over the hashes of whole rows; None if these are not compared.
    row_low: int | None = None
    row_high: int | None = None
    # First and last key, if the key is one integer that increases from row to row: then no key
    # is there twice, and disjoint spans share none.
    span: tuple[int, int] | None = None
    # The row numbers, for rows of a scan, which have no keys; their sums are 0.
    ranges: tuple[Span, ...] | None = None

    @classmethod
    def sum(cls, parts: Sequence[Coverage]) -> Coverage:
        """Add up the sums of several; their keys and ranges are left out."""
        has_rows = all(part.row_low is not None and part.row_high is not None for part in parts)
        return cls(
            rows=sum(part.rows for part in parts),
            low=sum(part.low for part in parts),
            high=sum(part.high for part in parts),
            keys_bytes=0,
            row_low=sum(part.row_low or 0 for part in parts) if has_rows else None,
            row_high=sum(part.row_high or 0 for part in parts) if has_rows else None,
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "rows": self.rows,
            "low": self.low,
            "high": self.high,
            "row_low": self.row_low,
            "row_high": self.row_high,
            "keys_bytes": self.keys_bytes,
            "span": self.span,
            "ranges": self.ranges,
        }


NOTHING = Coverage(rows=0, low=0, high=0, keys_bytes=0)
