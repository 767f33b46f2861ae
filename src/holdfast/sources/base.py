"""What the engine needs from an input that workers read themselves, and what all scans share.

A scan pins its files once; every later start reads exactly those. On executors a reader turns
slices of files into batches whose rows carry their numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InputChangedError, SettingsError
from holdfast.model.coverage import FileSlice, PinnedFile, Pins, Span
from holdfast.reading.parquet_file import Numbers
from holdfast.storage.port import ObjectChangedError

# ---- What the engine needs from an input that workers read themselves

# What Holdfast must know about each input row: Spark's hash of its key if that is not computed
# here, or the numbers of the scan's rows that it covers. If values are compared, it is a struct:
# Spark's hash of the whole row, and next to it the hash of the key, if needed.
TAG_COLUMN = "__holdfast_tag"
ROW_HASH, KEY_HASH = "row", "key"


class ScanReader(Protocol):
    """Reads rows on an executor. Pickled with the task, never stored."""

    def read(
        self, slices: Sequence[FileSlice], passed_over: list[Span]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some slices, tagged with their numbers.

        Args:
            slices: The rows to read, by file.
            passed_over: Where to note rows that the scan's `where` leaves out.

        Raises:
            InputChangedError: A file is not the one that was pinned.
        """


class PinnedScan(Protocol):
    """A scan together with its storage, on the driver."""

    @property
    def identity(self) -> str:
        """What is read from the files, as a string: a different string is a different input."""

    def pin(self) -> Pins:
        """Find the files and their contents.

        Raises:
            SettingsError: There are no files, or they do not fit together.
            StoreUnavailableError: The storage does not answer.
        """

    def compare(self, pins: Pins) -> str:
        """Return how this start's input differs from the pins; empty if it does not.

        Raises:
            InputChangedError: A pinned file was changed or deleted.
            StoreUnavailableError: The storage does not answer.
        """

    def schema(self, pins: Pins) -> pa.Schema:
        """Return the columns that the transform gets."""

    def reader(self, pins: Pins) -> ScanReader:
        """Return the reader that executors use for the pinned files."""


# ---- Reading a pinned file: if it has changed, the error says so in the user's terms
@contextlib.contextmanager
def as_pinned(file: PinnedFile) -> Iterator[None]:
    """Stop if a file is not the one that was pinned.

    Raises:
        InputChangedError: The file has changed.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise InputChangedError(what=f"{file.uri} is gone") from error
    except ObjectChangedError as error:
        raise InputChangedError(what=f"{file.uri} was rewritten since the run began") from error


# ---- Tagging: rows of a scan with their numbers, accounting for the rows left out

_SPAN_TYPE = pa.struct([("start", pa.int64()), ("stop", pa.int64())])


@dataclass(frozen=True, kw_only=True)
class Tagging:
    """Which rows and columns are passed on. Pickled with a task."""

    columns: tuple[str, ...]
    where: pc.Expression | None = None
    # Whether rows may be left out: then a tag is a span, otherwise one number.
    is_sparse: bool = False

    def tagged(
        self,
        batch: pa.RecordBatch,
        number: int,
        passed_over: list[Span],
        deleted: Numbers | None = None,
    ) -> pa.RecordBatch | None:
        """Return the requested rows, tagged; None if there are none.

        Each tag also covers the left-out rows after it, so that finished rows form few spans.

        Args:
            batch: Rows in file order.
            number: The number of the first row.
            passed_over: Where to note rows that no tag covers.
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
        """Return the requested rows, tagged; None if there are none.

        Args:
            batch: Rows of a file, without the deleted ones.
            numbers: Their numbers, in order.
            span: The numbers that the rows cover, including deleted rows.
            passed_over: Where to note rows that no tag covers.
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
    """Return a small table as one batch."""
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _selected(rows: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    return rows if rows.schema.names == [*columns] else rows.select(list(columns))


# ---- Arguments that several scans share

# What to do about files that were added since the run began.
NewFiles = Literal["refuse", "leave"]


def checked_paths(scan: str, paths: str | Sequence[str], new_files: NewFiles) -> tuple[str, ...]:
    """Return the paths of a scan.

    Raises:
        SettingsError: There are no paths, or `new_files` is unknown.
    """
    named = (paths,) if isinstance(paths, str) else tuple(paths)
    if not named:
        raise SettingsError(what=f"{scan}() needs a path", cure="pass a file or a glob")
    if new_files not in {"refuse", "leave"}:
        raise SettingsError(what=f"new_files={new_files!r}", cure='pass "refuse" or "leave"')
    return named


def checked_columns(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the column names.

    Raises:
        SettingsError: There are no names, one is repeated, or `columns` is a single string.
    """
    if columns is None:
        return None
    if isinstance(columns, str) or not columns or len(set(columns)) != len(columns):
        raise SettingsError(
            what=f"columns={columns!r}", cure="pass a list of distinct names, or leave it out"
        )
    return tuple(columns)
