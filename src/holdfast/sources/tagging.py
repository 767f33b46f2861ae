"""Tagging: rows of a scan with their numbers, and none of those left out forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.ranges import Span
from holdfast.sources.base import TAG_COLUMN

Numbers = npt.NDArray[np.int64]
_SPAN_TYPE = pa.struct([("start", pa.int64()), ("stop", pa.int64())])


@dataclass(frozen=True, kw_only=True)
class Tagging:
    """Which rows and columns are handed on. Pickled with a task."""

    columns: tuple[str, ...]
    where: pc.Expression | None = None
    # Whether rows may be left out: then a tag is a span, else one number.
    is_sparse: bool = False

    def tagged(
        self,
        batch: pa.RecordBatch,
        number: int,
        passed_over: list[Span],
        deleted: Numbers | None = None,
    ) -> pa.RecordBatch | None:
        """Return the rows that are asked for, tagged; None if there are none.

        Each takes along the others that follow it, so that what is done stays few spans.

        Args:
            batch: Rows as they stand in the file.
            number: The number of the first.
            passed_over: Where to note rows that no tag speaks of.
            deleted: The numbers of deleted rows, in order.
        """
        stop = number + batch.num_rows
        rows = batch.append_column(TAG_COLUMN, pa.array(np.arange(number, stop)))
        if not self.is_sparse:
            return rows
        if deleted is not None:
            rows = _without(rows, number, deleted)
        return self._asked_for(rows, (number, stop), passed_over)

    def numbered(
        self, batch: pa.RecordBatch, numbers: Numbers, span: Span, passed_over: list[Span]
    ) -> pa.RecordBatch | None:
        """Return the rows that are asked for, tagged; None if there are none.

        Args:
            batch: Rows of a file, without those that are deleted.
            numbers: Their numbers, in order.
            span: The numbers that they stand for, together with the deleted rows.
            passed_over: Where to note rows that no tag speaks of.
        """
        rows = batch.append_column(TAG_COLUMN, pa.array(numbers))
        return self._asked_for(rows, span, passed_over) if self.is_sparse else rows

    def _asked_for(
        self, rows: pa.RecordBatch, span: Span, passed_over: list[Span]
    ) -> pa.RecordBatch | None:
        first, stop = span
        if self.where is not None:
            rows = _whole(pa.Table.from_batches([rows]).filter(self.where))
        if not rows.num_rows:
            passed_over.append(span)
            return None
        starts = np.asarray(rows.column(TAG_COLUMN))
        if starts[0] > first:
            passed_over.append((first, int(starts[0])))
        stops = np.append(starts[1:], stop)
        spans = pa.StructArray.from_arrays(
            [pa.array(starts), pa.array(stops)], fields=list(_SPAN_TYPE)
        )
        return _selected(rows, self.columns).append_column(TAG_COLUMN, spans)


def _without(rows: pa.RecordBatch, number: int, deleted: Numbers) -> pa.RecordBatch:
    first, last = np.searchsorted(deleted, [number, number + rows.num_rows])
    if first == last:
        return rows
    kept = np.ones(rows.num_rows, dtype=bool)
    kept[deleted[first:last] - number] = False
    return rows.filter(pa.array(kept))


def _whole(table: pa.Table) -> pa.RecordBatch:
    """Return a table of few rows as one batch."""
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _selected(rows: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    return rows if rows.schema.names == [*columns] else rows.select(list(columns))
