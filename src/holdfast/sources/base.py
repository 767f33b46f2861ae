"""What the engine needs of an input that workers read themselves, and what all scans share.

A scan pins its files once; every start after that reads exactly those. On executors a reader
turns slices of files into batches whose rows carry their numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import InputChangedError, SettingsError
from holdfast.model.coverage import FileSlice, PinnedFile, Pins, Span
from holdfast.storage.port import ObjectChangedError

# ---- What the engine needs of an input that workers read themselves

# What Holdfast must know of each input row: Spark's hash of its key where that is not computed
# here, or the numbers of the rows of a scan that it stands for. Where values are compared it is a
# struct: Spark's hash of the whole row, and beside it that of the key, if it is needed.
TAG_COLUMN = "__holdfast_tag"
ROW_HASH, KEY_HASH = "row", "key"


class ScanReader(Protocol):
    """Reads rows on an executor: pickled with the task, never stored."""

    def read(
        self, slices: Sequence[FileSlice], passed_over: list[Span]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some slices, tagged with their numbers.

        Args:
            slices: Which rows of which files.
            passed_over: Where to note rows that are not handed on, as the scan's `where` wants.

        Raises:
            InputChangedError: A file is not the one that was pinned.
        """


class PinnedScan(Protocol):
    """A scan as the driver sees it, with storage at hand."""

    @property
    def identity(self) -> str:
        """What is read of the files, as one text: another text is another input."""

    def pin(self) -> Pins:
        """Find the files, and what is in them.

        Raises:
            SettingsError: There are none, or they do not fit together.
            StoreUnavailableError: The storage does not answer.
        """

    def compare(self, pins: Pins) -> str:
        """Say how the input that this start names differs from the pins; empty if it does not.

        Raises:
            InputChangedError: A pinned file was changed or deleted.
            StoreUnavailableError: The storage does not answer.
        """

    def schema(self, pins: Pins) -> pa.Schema:
        """Return the columns that are handed on."""

    def reader(self, pins: Pins) -> ScanReader:
        """Return what reads the pinned files on executors."""


# ---- Reading a pinned file: that it is another one now is told in the user's terms
@contextlib.contextmanager
def as_pinned(file: PinnedFile) -> Iterator[None]:
    """Stop if a file turns out not to be the one that was pinned.

    Raises:
        InputChangedError: It is not.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise InputChangedError(what=f"{file.uri} is gone") from error
    except ObjectChangedError as error:
        raise InputChangedError(what=f"{file.uri} was written anew since the run began") from error


# ---- Tagging: rows of a scan with their numbers, and none of those left out forgotten

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


# ---- Arguments that several scans share

# What to do about files that came since the run began.
NewFiles = Literal["refuse", "leave"]


def checked_paths(scan: str, paths: str | Sequence[str], new_files: NewFiles) -> tuple[str, ...]:
    """Return the paths of a scan.

    Raises:
        SettingsError: There are none, or `new_files` is unknown.
    """
    named = (paths,) if isinstance(paths, str) else tuple(paths)
    if not named:
        raise SettingsError(what=f"{scan} without a path", cure="name a file or a glob")
    if new_files not in {"refuse", "leave"}:
        raise SettingsError(what=f"new_files={new_files!r}", cure='give "refuse" or "leave"')
    return named


def checked_columns(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the names of columns.

    Raises:
        SettingsError: There are none, one stands there twice, or it is one text.
    """
    if columns is None:
        return None
    if isinstance(columns, str) or not columns or len(set(columns)) != len(columns):
        raise SettingsError(
            what=f"columns={columns!r}", cure="give a list of different names, or leave it out"
        )
    return tuple(columns)
