"""Read Lance on an executor: one version, the next rows fetched while the current are at work.

Lance's own scanner reads far ahead of its consumer. So it is asked for only as many rows at a time
as should be in memory, estimated from the rows that came before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from holdfast.errors import InputChangedError, StoreUnavailableError
from holdfast.model.coverage import FileSlice, PinnedFile, Span
from holdfast.model.lasting import lasts
from holdfast.reading.parquet_file import Numbers
from holdfast.sources.base import TAG_COLUMN, Tagging
from holdfast.sources.lance_fragments import (
    ADDRESS,
    Place,
    address_of,
    blob_columns,
    gone_file,
    open_pinned,
    place_of,
    refuse_other,
    with_blobs,
)
from holdfast.storage.port import StorageError
from holdfast.storage.runtime import io_runtime
from holdfast.text import reason_and_cause

# ---- One version of a dataset that is being read, on an executor

# After this time the dataset is reopened.
_OPEN_S = 600.0
_LANCE_ERRORS = (pa.ArrowException, ValueError, OSError)


class UnreadableFragmentError(ValueError):
    """Lance returned other rows than the requested ones."""


@dataclass(frozen=True)
class FoundRows:
    """Rows that have arrived, and their positions in the fragment."""

    batch: pa.RecordBatch | None
    places: Numbers


class OpenVersion:
    """The dataset at the pinned version. Used by the task and by IO threads."""

    def __init__(self, place: Place, version: int, columns: Sequence[str]) -> None:
        """Open nothing yet.

        Args:
            place: The dataset's location.
            version: The version to read.
            columns: The columns to read.
        """
        self._place = place
        self._version = version
        self._columns = list(columns)
        self._opening = threading.Lock()
        self._dataset: Any = None
        self._opened_at = 0.0
        # For the fragment that was requested last.
        self._live: tuple[int, Numbers] | None = None

    def live(self, file: PinnedFile) -> Numbers:
        """Return the positions of a fragment's rows that are not deleted, in order.

        Raises:
            InputChangedError: The fragment is not the one that was pinned.
            StoreUnavailableError: The store does not answer.
        """
        number = file.values["fragment"]
        if self._live is None or self._live[0] != number:
            try:
                found = self._fragment(file).scanner(columns=[], with_row_address=True).to_table()
            except _LANCE_ERRORS as error:
                self._explain(file, error)
            self._live = number, place_of(np.asarray(found[ADDRESS]), number)
        return self._live[1]

    def fetch(self, file: PinnedFile, offset: int, places: Numbers) -> FoundRows:
        """Return some rows of a fragment. Runs on an IO thread.

        Args:
            file: The fragment.
            offset: How many undeleted rows come before.
            places: The positions of the rows.

        Raises:
            InputChangedError: The fragment is not the one that was pinned.
            StoreUnavailableError: The store does not answer.
            UnreadableFragmentError: Lance returned other rows.
        """
        started = time.perf_counter()
        try:
            table = (
                self._fragment(file)
                .scanner(
                    columns=self._columns,
                    offset=offset,
                    limit=len(places),
                    batch_size=len(places),
                    with_row_address=True,
                    blob_handling="blobs_descriptions",
                )
                .to_table()
            )
        except _LANCE_ERRORS as error:
            self._explain(file, error)
        self._count(time.perf_counter() - started)
        found = place_of(np.asarray(table[ADDRESS]), file.values["fragment"])
        if not np.array_equal(found, places):
            raise UnreadableFragmentError(
                f"{file.uri}: {len(places)} rows from {places[0]} on were requested, but Lance "
                "returned others"
            )
        (batch,) = table.drop_columns([ADDRESS]).combine_chunks().to_batches()
        return FoundRows(batch, places)

    def with_blobs(
        self, one: FileSlice, tagged: pa.RecordBatch, blobs: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield tagged rows with the bytes of their blobs.

        Raises:
            InputChangedError: The fragment is not the one that was pinned.
            StoreUnavailableError: The store does not answer.
            UnsupportedTableError: A blob is stored outside the dataset.
        """
        tags = tagged.column(TAG_COLUMN)
        numbers = np.asarray(tags.field(0) if pa.types.is_struct(tags.type) else tags)
        addresses = numbers - one.base + address_of(one.file.values["fragment"], 0)
        pieces = with_blobs(self._at_version(), tagged, blobs, addresses)
        while True:
            started = time.perf_counter()
            try:
                piece = next(pieces, None)
            except _LANCE_ERRORS as error:
                self._explain(one.file, error)
            took = time.perf_counter() - started
            self._count(took, waited_s=took)
            if piece is None:
                return
            yield piece

    def _fragment(self, file: PinnedFile) -> Any:  # noqa: ANN401 - Lance ships no types.
        fragment = self._at_version().get_fragment(file.values["fragment"])
        refuse_other(self._place.uri, file, fragment)
        return fragment

    def _at_version(self) -> Any:  # noqa: ANN401
        """Return the dataset, reopened from time to time: a long task outlives credentials."""
        with self._opening:
            if self._dataset is None or time.monotonic() - self._opened_at > _OPEN_S:
                self._dataset = open_pinned(self._place, self._version)
                self._opened_at = time.monotonic()
            return self._dataset

    def _count(self, busy_s: float, waited_s: float = 0.0) -> None:
        read = self._dataset.io_stats_incremental()
        io_runtime().count(
            requests=read.read_iops, bytes_read=read.read_bytes, busy_s=busy_s, waited_s=waited_s
        )

    def _explain(self, file: PinnedFile, error: Exception) -> NoReturn:
        """Raise the reason why a fragment cannot be read.

        Raises:
            InputChangedError: One of its files is gone.
            StoreUnavailableError: Any other reason.
        """
        try:
            gone = gone_file(self._place, file)
        except StorageError:
            gone = ""
        if gone:
            raise InputChangedError(what=f"{gone} is gone") from error
        reason, cause = reason_and_cause(error, {})
        raise StoreUnavailableError(
            uri=file.uri, reason=reason, retry_safe=not lasts(error)
        ) from cause


# ---- Read Lance on an executor: the next rows are fetched while the current ones are processed

# Roughly how many bytes are decoded at a time.
_BATCH_BYTES = 16 * 1024 * 1024
_BATCH_ROWS = 64 * 1024
# Stored data may be many times as large in memory: the first rows show by how much.
_FIRST_ROWS = 1024
_GROWTH = 4


@dataclass(frozen=True, kw_only=True)
class LanceReader:
    """Reads slices of fragments. Pickled with a task."""

    place: Place
    version: int
    # With marks on blob columns as metadata.
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
            ahead = next(windows, None)  # This starts fetching the next rows.
            yield from self._rows(opened, window, rows, passed_over)

    def _windows(
        self, opened: OpenVersion, slices: Sequence[FileSlice], pace: _Pace
    ) -> Iterator[_Window]:
        """Yield the rows to read, as many at a time as fit, as soon as they start to arrive."""
        for file_slice in slices:
            live = opened.live(file_slice.file) if file_slice.file.deletes else None
            # Lance counts only rows that are not deleted.
            edges = (
                (file_slice.start, file_slice.stop)
                if live is None
                else np.searchsorted(live, _edges(file_slice))
            )
            at, last, start = int(edges[0]), int(edges[1]), file_slice.start
            if at == last:
                yield _Window(one=file_slice, span=_edges(file_slice), answer=_no_rows())
            while at < last:
                rows = min(last - at, pace.rows(file_slice.file))
                places = np.arange(at, at + rows) if live is None else live[at : at + rows]
                at += rows
                # The last rows of a slice also cover the deleted ones after them.
                stop = file_slice.stop if at == last else int(places[-1]) + 1
                ask = partial(opened.fetch, file_slice.file, at - rows, places)
                yield _Window(
                    one=file_slice,
                    span=(start, stop),
                    answer=io_runtime().read(ask, pace.size_bytes(file_slice.file, rows)),
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
    """Rows of a fragment that are being fetched."""

    one: FileSlice
    # The positions in the fragment that they cover, including deleted rows among them.
    span: Span
    answer: Future[FoundRows]


class _Pace:
    """How many rows to request at a time."""

    def __init__(self) -> None:
        self._row_bytes = 0.0
        self._most = 0

    def saw(self, found: FoundRows) -> None:
        """Adjust to rows that have arrived."""
        if found.batch is not None:
            rows = found.batch.num_rows
            self._most, self._row_bytes = max(self._most, rows), found.batch.nbytes / rows

    def rows(self, file: PinnedFile) -> int:
        """Return how many rows to request next."""
        most = min(_BATCH_ROWS, self._most * _GROWTH) if self._most else _FIRST_ROWS
        return max(1, min(most, int(_BATCH_BYTES / max(1.0, self._bytes_of(file)))))

    def size_bytes(self, file: PinnedFile, rows: int) -> int:
        """Return how many bytes some rows are likely to take."""
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
    """Return rows in the pinned schema; blobs are still descriptions."""
    columns, fields = [], []
    for field in schema:
        column = batch.column(field.name)
        kind = column.type if field.name in blobs else field.type
        columns.append(column if column.type == kind else column.cast(kind))
        fields.append(pa.field(field.name, kind, field.nullable))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
