"""Pins: the files that a scan reads, as they were when the run began.

Rows are numbered through all files, in the order of the pins, so a range of numbers says which
rows are done. That holds as long as each file is the very one that was pinned.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import pyarrow as pa

from holdfast.model.ranges import Ranges, Span
from holdfast.model.stored import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedFile:
    """One file of the input."""

    uri: str
    size_bytes: Count
    # The store's own mark of this very object; empty where it gives none.
    tag: str
    # Rows and stored bytes of each part that can be read by itself: a row group, or the file.
    group_rows: tuple[Count, ...]
    group_bytes: tuple[Count, ...]
    # The parts that cannot hold a row that is asked for.
    left_out: tuple[Count, ...] = ()
    # Columns that stand in the file's path, not in the file.
    values: Mapping[str, Any] = field(default_factory=dict)
    # Files that say which rows of this one are deleted.
    deletes: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(self.group_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlice:
    """Some rows of one file. Pickled with a task."""

    file: PinnedFile
    # The number of the file's first row, and which of its rows are meant, counted from it.
    base: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Which state of a table was pinned, for the comparison at a later start; of files, nothing."""

    # Of a Lance dataset.
    version: Count | None = None
    # Of an Iceberg table; one without rows has no snapshot.
    table_uuid: str = ""
    snapshot_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class Pins:
    """All files of a scan, and what their rows look like."""

    files: tuple[PinnedFile, ...]
    schema: pa.Schema
    origin: Origin = Origin()

    @cached_property
    def bases(self) -> tuple[int, ...]:
        """The number of each file's first row, and after the last file the number of rows."""
        return tuple(accumulate((file.rows for file in self.files), initial=0))

    @cached_property
    def whole(self) -> Ranges:
        """All rows that are to be read."""
        return Ranges.of((base, base + rows) for base, rows, _ in self._groups())

    def items(self, left: Ranges, slots: int, item_bytes: int) -> list[tuple[FileSlice, ...]]:
        """Share rows out into work items of about the same size, cut between groups if possible.

        Args:
            left: Which rows.
            slots: How many tasks run at a time: every one gets as much, as far as that goes.
            item_bytes: How many stored bytes make an item at most.
        """
        pieces = list(self._pieces(left))
        total = sum(size for _, _, size in pieces)
        if not pieces:
            return []
        count = slots * max(1, -(-total // (item_bytes * slots)))
        # A group that is a little too large stays whole: cut, it would be read twice.
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
                # Of files that begin at one number, the last is the one with rows.
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
        """Yield first row, rows and bytes of each group that is to be read."""
        for file, base in zip(self.files, self.bases, strict=False):
            left_out, first = set(file.left_out), base
            sizes = zip(file.group_rows, file.group_bytes, strict=True)
            for number, (rows, size) in enumerate(sizes):
                if rows and number not in left_out:
                    yield first, rows, size
                first += rows

    def _pieces(self, left: Ranges) -> Iterable[tuple[int, int, int]]:
        """Yield first row, last row and about how many bytes, group by group."""
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
