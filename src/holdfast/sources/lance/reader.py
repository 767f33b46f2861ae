"""Read Lance on an executor: the next rows are fetched while the current ones are at work.

Lance's own scanner reads far ahead of whoever takes its batches. So it is asked for as many rows
at a time as are wanted in memory, and how many that are is told from those that came before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from holdfast.model.pins import FileSlice, PinnedFile
from holdfast.model.ranges import Span
from holdfast.sources.lance.blobs import blob_columns
from holdfast.sources.lance.fragments import Place
from holdfast.sources.lance.open_version import FoundRows, OpenVersion
from holdfast.sources.tagging import Tagging
from holdfast.storage.runtime import io_runtime

# Decoded at a time, about.
_BATCH_BYTES = 16 * 1024 * 1024
_BATCH_ROWS = 64 * 1024
# What a file stores may be many times as large in memory: the first rows show how much.
_FIRST_ROWS = 1024
_GROWTH = 4


@dataclass(frozen=True, kw_only=True)
class LanceReader:
    """Reads slices of fragments. Pickled with a task."""

    place: Place
    version: int
    # With marks on blobs as metadata.
    schema: pa.Schema
    tagging: Tagging

    def read(
        self, slices: Sequence[FileSlice], passed_over: list[Span]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some slices, tagged with their numbers.

        Raises:
            InputChangedError: A fragment is not the one that was pinned.
            StoreUnavailableError: The store does not answer.
        """
        opened, pace = OpenVersion(self.place, self.version, self.schema.names), _Pace()
        windows = self._windows(opened, slices, pace)
        ahead = next(windows, None)
        while ahead is not None:
            window, rows = ahead, ahead.answer.result()
            pace.saw(rows)
            ahead = next(windows, None)  # Which begins to fetch the next rows.
            yield from self._rows(opened, window, rows, passed_over)

    def _windows(
        self, opened: OpenVersion, slices: Sequence[FileSlice], pace: _Pace
    ) -> Iterator[_Window]:
        """Yield the rows to read, as many at a time as fit, each as they begin to arrive."""
        for one in slices:
            live = opened.live(one.file) if one.file.deletes else None
            # Lance counts only rows that are not deleted.
            edges = (one.start, one.stop) if live is None else np.searchsorted(live, _edges(one))
            at, last, start = int(edges[0]), int(edges[1]), one.start
            if at == last:
                yield _Window(one=one, span=_edges(one), answer=_no_rows())
            while at < last:
                rows = min(last - at, pace.rows(one.file))
                places = np.arange(at, at + rows) if live is None else live[at : at + rows]
                at += rows
                # The last rows of a slice take along the deleted ones that follow them.
                stop = one.stop if at == last else int(places[-1]) + 1
                ask = partial(opened.fetch, one.file, at - rows, places)
                yield _Window(
                    one=one,
                    span=(start, stop),
                    answer=io_runtime().read(ask, pace.size_bytes(one.file, rows)),
                )
                start = stop

    def _rows(
        self, opened: OpenVersion, window: _Window, rows: FoundRows, passed_over: list[Span]
    ) -> Iterator[pa.RecordBatch]:
        base = window.one.base
        span = (base + window.span[0], base + window.span[1])
        if rows.batch is None:
            passed_over.append(span)
            return
        blobs = blob_columns(self.schema)
        batch = _fitted(rows.batch, self.schema, blobs)
        tagged = self.tagging.numbered(batch, rows.places + base, span, passed_over)
        if tagged is None:
            return
        blobs = tuple(name for name in blobs if name in tagged.schema.names)
        if blobs:
            yield from opened.with_blobs(window.one, tagged, blobs)
        else:
            yield tagged


@dataclass(frozen=True, kw_only=True)
class _Window:
    """Rows of a fragment that are on their way."""

    one: FileSlice
    # Which places of the fragment they stand for, together with the deleted rows among them.
    span: Span
    answer: Future[FoundRows]


class _Pace:
    """How many rows to ask for at a time."""

    def __init__(self) -> None:
        self._row_bytes = 0.0
        self._most = 0

    def saw(self, found: FoundRows) -> None:
        """Learn from rows that have arrived."""
        if found.batch is not None:
            rows = found.batch.num_rows
            self._most, self._row_bytes = max(self._most, rows), found.batch.nbytes / rows

    def rows(self, file: PinnedFile) -> int:
        """Return how many to ask for next."""
        most = min(_BATCH_ROWS, self._most * _GROWTH) if self._most else _FIRST_ROWS
        return max(1, min(most, int(_BATCH_BYTES / max(1.0, self._bytes_of(file)))))

    def size_bytes(self, file: PinnedFile, rows: int) -> int:
        """Return how many bytes some rows are likely to bring."""
        return int(rows * self._bytes_of(file))

    def _bytes_of(self, file: PinnedFile) -> float:
        return self._row_bytes or file.size_bytes / max(1, file.rows)


def _edges(one: FileSlice) -> Span:
    return one.start, one.stop


def _no_rows() -> Future[FoundRows]:
    answer: Future[FoundRows] = Future()
    answer.set_result(FoundRows(None, np.array([], dtype=np.int64)))
    return answer


def _fitted(batch: pa.RecordBatch, schema: pa.Schema, blobs: Sequence[str]) -> pa.RecordBatch:
    """Return rows in the pinned schema; blobs are still described."""
    columns, fields = [], []
    for field in schema:
        column = batch.column(field.name)
        kind = column.type if field.name in blobs else field.type
        columns.append(column if column.type == kind else column.cast(kind))
        fields.append(pa.field(field.name, kind, field.nullable))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
