"""Covered ranges: which rows of a scan the record to come will cover."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from holdfast.model.ranges import Ranges, Span
from holdfast.model.work import NOTHING, Coverage


class CoveredRanges:
    """Adds up the row numbers of one record."""

    def __init__(self, passed_over: list[Span]) -> None:
        """Start empty.

        Args:
            passed_over: Where the scan notes the rows that it leaves out. Emptied here.
        """
        self._passed_over = passed_over
        self._spans: list[Span] = []
        self._rows = 0

    @property
    def rows(self) -> int:
        """How many rows were added, or left out by the scan."""
        return self._rows + sum(stop - start for start, stop in self._passed_over)

    def add(self, batch: pa.RecordBatch, tags: pa.Array | None) -> None:
        """Cover more input rows.

        Args:
            batch: The rows.
            tags: The row numbers that each of them stands for: a number, or a span.
        """
        assert tags is not None  # noqa: S101 - a scan tags every row.
        self._rows += batch.num_rows
        self._spans += spans_of(tags)

    def finish(self) -> Coverage:
        """Return what is covered, with the rows that the scan has passed over."""
        ranges = Ranges.of((*self._spans, *self._passed_over))
        self._passed_over.clear()
        if not ranges:
            return NOTHING
        return Coverage(rows=ranges.rows, low=0, high=0, keys_bytes=0, ranges=ranges.spans)

    def abandon(self) -> None:
        """Give up what was added: there is nothing to clean up."""


def spans_of(tags: pa.Array) -> list[Span]:
    """Return the tags of rows as few spans, in the order in which they come."""
    if pa.types.is_struct(tags.type):
        starts, stops = (np.asarray(one) for one in tags.flatten())
    else:
        starts = np.asarray(tags)
        stops = starts + 1
    if not len(starts):
        return []
    breaks = np.flatnonzero(starts[1:] != stops[:-1]) + 1
    firsts = np.concatenate(([0], breaks))
    lasts = np.concatenate((breaks, [len(starts)])) - 1
    return [(int(starts[a]), int(stops[b])) for a, b in zip(firsts, lasts, strict=True)]
