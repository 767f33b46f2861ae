"""Read Parquet on an executor: only the requested columns, with row groups fetched ahead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import pyarrow as pa

from holdfast.model.coverage import FileSlice, PinnedFile, Span
from holdfast.reading.parquet_file import Numbers, OpenFile, Pieces, ask_footer
from holdfast.sources.base import Tagging, as_pinned
from holdfast.sources.filters import fitted
from holdfast.sources.find import typed
from holdfast.storage.port import Storage
from holdfast.storage.runtime import read_ahead


# ---- Read Parquet on an executor: the next row groups are fetched ahead of time
class Fit(Protocol):
    """Converts rows of any file into rows of one schema. Pickled with a task."""

    def wanted(self, own: pa.Schema) -> Iterable[str]:
        """Choose from a file's own columns."""

    def fit(self, batch: pa.RecordBatch, file: PinnedFile) -> pa.RecordBatch:
        """Return a file's rows in that schema."""


class Deleted(Protocol):
    """Says which rows of a file are deleted. Pickled with a task."""

    def numbers(self, file: PinnedFile) -> Numbers | None:
        """Return their numbers in the file, in order; None if there are none."""


@dataclass(frozen=True, kw_only=True)
class ByName:
    """Finds columns by name; some are in the file's path."""

    schema: pa.Schema

    def wanted(self, own: pa.Schema) -> Iterable[str]:
        """Choose from a file's own columns."""
        return [name for name in own.names if name in self.schema.names]

    def fit(self, batch: pa.RecordBatch, file: PinnedFile) -> pa.RecordBatch:
        """Return a file's rows in that schema."""
        for name, text in file.values.items():
            if name in self.schema.names:
                value = typed(file.uri, name, text, self.schema.field(name).type)
                batch = batch.append_column(name, pa.repeat(value, len(batch)))
        return fitted(batch, self.schema)


@dataclass(frozen=True, kw_only=True)
class ParquetReader:
    """Reads slices of Parquet files. Pickled with a task."""

    storage: Storage
    fit: Fit
    tagging: Tagging
    deleted: Deleted | None = None

    def read(
        self, slices: Sequence[FileSlice], passed_over: list[Span]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some slices, tagged with their numbers.

        Raises:
            InputChangedError: A file is not the one that was pinned.
        """
        asked = read_ahead(
            self._groups(slices),
            size_of=lambda group: group.opened.size_bytes(group.number),
            ask=lambda group: group.opened.fetch(group.number),
            at_least=1,
        )
        for group, pieces in asked:
            with as_pinned(group.opened.file):
                yield from self._rows(group, pieces, passed_over)

    def _groups(self, slices: Sequence[FileSlice]) -> Iterator[_Group]:
        """Yield the row groups to read."""
        for file_slice, opened, deleted in self._opened(slices):
            first = 0
            for number, rows in enumerate(file_slice.file.group_rows):
                start, stop = max(first, file_slice.start), min(first + rows, file_slice.stop)
                if start < stop and number not in file_slice.file.left_out:
                    yield _Group(
                        opened=opened,
                        deleted=None if deleted is None else deleted + file_slice.base,
                        number=number,
                        base=file_slice.base + first,
                        start=start - first,
                        stop=stop - first,
                    )
                first += rows

    def _opened(
        self, slices: Sequence[FileSlice]
    ) -> Iterator[tuple[FileSlice, OpenFile, Numbers | None]]:
        """Yield each slice with its file, while the next file's footer is being fetched."""
        files = [
            list(same) for _, same in groupby(slices, key=lambda file_slice: id(file_slice.file))
        ]
        footers = (ask_footer(self.storage, same[0].file) for same in files)
        ahead = next(footers, None)
        for same in files:
            footer, ahead = ahead, next(footers, None)
            assert footer is not None  # noqa: S101 - there is one for each file.
            file = same[0].file
            with as_pinned(file):
                opened = OpenFile(self.storage, file, footer, self.fit.wanted)
            deleted = self.deleted.numbers(file) if self.deleted is not None else None
            for file_slice in same:
                yield file_slice, opened, deleted

    def _rows(
        self, group: _Group, pieces: Pieces, passed_over: list[Span]
    ) -> Iterator[pa.RecordBatch]:
        at = 0
        for batch in group.opened.batches(group.number, pieces):
            first, last = max(at, group.start), min(at + batch.num_rows, group.stop)
            if first < last:
                rows = self.fit.fit(batch.slice(first - at, last - first), group.opened.file)
                tagged = self.tagging.tagged(rows, group.base + first, passed_over, group.deleted)
                if tagged is not None:
                    yield tagged
            at += batch.num_rows
            if at >= group.stop:
                break


@dataclass(frozen=True, kw_only=True)
class _Group:
    """One row group to read."""

    opened: OpenFile
    deleted: Numbers | None
    number: int
    # The number of its first row, and the rows to read, counted from it.
    base: int
    start: int
    stop: int
