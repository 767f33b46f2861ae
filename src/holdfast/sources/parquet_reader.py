"""Read Parquet on an executor: only the columns asked for, the next row groups ahead of time."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.model.coverage import FileSlice, PinnedFile, Span
from holdfast.sources.base import Numbers, Tagging, as_pinned
from holdfast.sources.find import typed
from holdfast.sources.schemas import fitted
from holdfast.storage.port import ObjectChangedError, Storage
from holdfast.storage.runtime import io_runtime, read_ahead


# ---- A file of which only some bytes are at hand: those that were fetched for the next read
class RangedFile(io.RawIOBase):
    """What pyarrow takes for a file; a read outside the bytes at hand is an error."""

    def __init__(self, size_bytes: int) -> None:
        """Hold nothing yet."""
        super().__init__()
        self._size = size_bytes
        self._at = 0
        self._held: list[tuple[int, memoryview]] = []

    @contextlib.contextmanager
    def holding(self, pieces: Iterable[tuple[int, bytes | memoryview]]) -> Iterator[None]:
        """Have these bytes at hand, each piece by where it starts."""
        self._held = [(start, memoryview(data)) for start, data in pieces]
        try:
            yield
        finally:
            self._held = []

    def readable(self) -> bool:
        """Say so."""
        return True

    def seekable(self) -> bool:
        """Say so."""
        return True

    def tell(self) -> int:
        """Return where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place in the file."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> memoryview:
        """Return bytes that are at hand, without a copy.

        Raises:
            OSError: They are not.
        """
        stop = self._size if size < 0 else min(self._size, self._at + size)
        for start, data in self._held:
            if start <= self._at and stop <= start + len(data):
                piece = data[self._at - start : stop - start]
                self._at = stop
                return piece
        if stop <= self._at:
            return memoryview(b"")
        raise OSError(f"bytes {self._at} to {stop} were not fetched")


# ---- Footers: what a Parquet file says of itself, read without its rows

_MAGIC = b"PAR1"
# What the first read brings: more than most footers are long.
TAIL_BYTES = 64 * 1024
_TRAILER_BYTES = 8


class NoParquetError(ValueError):
    """The object is no Parquet file."""


def read_footer(storage: Storage, uri: str, size_bytes: int, tag: str) -> bytes:
    """Return a file that has the footer of a Parquet file, and nothing else.

    Raises:
        NoParquetError: It is no Parquet file.
        ObjectChangedError: It is not the object that had the tag.
        StorageError: The storage does not answer.
    """
    start = max(0, size_bytes - TAIL_BYTES)
    tail = bytes(storage.get_range(uri, start, size_bytes, tag=tag)) if size_bytes else b""
    if tail[-len(_MAGIC) :] != _MAGIC or size_bytes < _TRAILER_BYTES:
        raise NoParquetError(f"{uri} is no Parquet file")
    length = int.from_bytes(tail[-_TRAILER_BYTES : -len(_MAGIC)], "little") + _TRAILER_BYTES
    if length > size_bytes:
        raise NoParquetError(f"{uri} is no Parquet file")
    if length > len(tail):
        tail = bytes(storage.get_range(uri, size_bytes - length, size_bytes, tag=tag))
    return _MAGIC + tail[-length:]


def parse_footer(footer: bytes) -> pq.FileMetaData:
    """Return what a footer says.

    Raises:
        NoParquetError: It cannot be read.
    """
    try:
        return pq.read_metadata(pa.BufferReader(footer))
    except (pa.ArrowException, OSError) as error:
        raise NoParquetError(str(error)) from error


# ---- One Parquet file that is being read: only the columns that are asked for, group by group

Pieces = Sequence[tuple[int, Future[bytes | memoryview]]]

_BATCH_ROWS = 64 * 1024
# Decoded at a time, about: rows of a megabyte must not come by the thousand.
_BATCH_BYTES = 16 * 1024 * 1024
# Reading a gap this wide costs less than another request.
_GAP_BYTES = 1 << 20


class UnreadableFileError(ValueError):
    """The file is the one that was pinned, and cannot be decoded."""


class OpenFile:
    """The footer of one file, and the bytes of the row group that is being decoded."""

    def __init__(
        self,
        storage: Storage,
        file: PinnedFile,
        footer: Future[bytes],
        wanted: Callable[[pa.Schema], Iterable[str]],
    ) -> None:
        """Wait for the footer.

        Args:
            storage: How the file is reached.
            file: Which.
            footer: What `ask_footer` gave.
            wanted: Chooses from the file's own columns.

        Raises:
            InputChangedError: The file is not the one that was pinned.
        """
        self.file = file
        self._storage = storage
        with as_pinned(file):
            self._metadata = _pinned_metadata(file, footer)
        self._ranged = RangedFile(file.size_bytes)
        self._parquet = pq.ParquetFile(
            pa.PythonFile(self._ranged, mode="r"),
            metadata=self._metadata,
            coerce_int96_timestamp_unit="us",
            page_checksum_verification=True,  # Where the writer has left any.
        )
        self._columns = list(wanted(self._metadata.schema.to_arrow_schema()))
        # As pyarrow reads a name: also as the beginning of a nested column's path.
        begins = tuple(f"{name}." for name in self._columns)
        leaves = self._metadata.schema
        paths = [leaves.column(one).path for one in range(len(leaves))]
        self._leaves = [n for n, path in enumerate(paths) if f"{path}.".startswith(begins)]

    def size_bytes(self, number: int) -> int:
        """Return how much `fetch` brings of a row group."""
        return sum(stop - start for start, stop in self._spans(number))

    def fetch(self, number: int) -> Pieces:
        """Begin to fetch what is wanted of a row group."""
        return [(start, self._ask(start, stop)) for start, stop in self._spans(number)]

    def batches(self, number: int, pieces: Pieces) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group, from its first one on.

        Raises:
            UnreadableFileError: They cannot be decoded.
        """
        if not self._columns:  # No column that is asked for stands in the file.
            yield _rows_without_columns(self.file.group_rows[number])
            return
        with self._ranged.holding([(start, answer.result()) for start, answer in pieces]):
            try:
                yield from self._parquet.iter_batches(
                    batch_size=self._batch_rows(number),
                    row_groups=[number],
                    columns=self._columns,
                    use_threads=False,
                )
            except (pa.ArrowException, OSError) as error:
                raise UnreadableFileError(
                    f"{self.file.uri}: row group {number} cannot be read: {error}"
                ) from error

    def _spans(self, number: int) -> list[Span]:
        group = self._metadata.row_group(number)
        return _joined(_chunk_span(group.column(leaf)) for leaf in self._leaves)

    def _batch_rows(self, number: int) -> int:
        group = self._metadata.row_group(number)
        size = sum(group.column(leaf).total_uncompressed_size for leaf in self._leaves)
        return int(max(1, min(_BATCH_ROWS, _BATCH_BYTES * group.num_rows // max(1, size))))

    def _ask(self, start: int, stop: int) -> Future[bytes | memoryview]:
        file = self.file
        return io_runtime().read(
            lambda: self._storage.get_range(file.uri, start, stop, tag=file.tag), stop - start
        )


def ask_footer(storage: Storage, file: PinnedFile) -> Future[bytes]:
    """Begin to fetch a file's footer."""
    return io_runtime().read(
        lambda: read_footer(storage, file.uri, file.size_bytes, file.tag),
        min(file.size_bytes, TAIL_BYTES),
    )


def _pinned_metadata(file: PinnedFile, footer: Future[bytes]) -> pq.FileMetaData:
    """Return what a footer says.

    Raises:
        ObjectChangedError: It is not the one that was pinned.
    """
    try:
        metadata = parse_footer(footer.result())
    except NoParquetError as error:
        raise ObjectChangedError(str(error)) from error
    groups = range(metadata.num_row_groups)
    # Not every store gives tags.
    if tuple(metadata.row_group(number).num_rows for number in groups) != file.group_rows:
        raise ObjectChangedError(f"{file.uri} has other row groups")
    return metadata


def _rows_without_columns(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(
        pa.StructArray.from_buffers(pa.struct([]), rows, [None])
    )


def _chunk_span(column: pq.ColumnChunkMetaData) -> Span:
    start = column.data_page_offset
    if column.dictionary_page_offset:  # Some writers say 0 where there is none.
        start = min(start, column.dictionary_page_offset)
    return start, start + column.total_compressed_size


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Return as few reads as are sensible, none larger than it must be."""
    ordered = sorted(spans)
    if not ordered:
        return []
    breaks = [
        number + 1
        for number, (one, other) in enumerate(pairwise(ordered))
        if other[0] - one[1] > _GAP_BYTES
    ]
    edges = [0, *breaks, len(ordered)]
    return [(ordered[a][0], max(s[1] for s in ordered[a:b])) for a, b in pairwise(edges)]


# ---- Read Parquet on an executor: the next row groups are fetched while the current is at work
class Fit(Protocol):
    """Turns the rows of any file into rows of one schema. Pickled with a task."""

    def wanted(self, own: pa.Schema) -> Iterable[str]:
        """Choose from a file's own columns."""

    def fit(self, batch: pa.RecordBatch, file: PinnedFile) -> pa.RecordBatch:
        """Return a file's rows in the one schema."""


class Deleted(Protocol):
    """Tells which rows of a file are deleted. Pickled with a task."""

    def numbers(self, file: PinnedFile) -> Numbers | None:
        """Return their numbers in the file, in order; None if there are none."""


@dataclass(frozen=True, kw_only=True)
class ByName:
    """Finds columns by their names; some stand in the file's path."""

    schema: pa.Schema

    def wanted(self, own: pa.Schema) -> Iterable[str]:
        """Choose from a file's own columns."""
        return [name for name in own.names if name in self.schema.names]

    def fit(self, batch: pa.RecordBatch, file: PinnedFile) -> pa.RecordBatch:
        """Return a file's rows in the one schema."""
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
        for one, opened, deleted in self._opened(slices):
            first = 0
            for number, rows in enumerate(one.file.group_rows):
                start, stop = max(first, one.start), min(first + rows, one.stop)
                if start < stop and number not in one.file.left_out:
                    yield _Group(
                        opened=opened,
                        deleted=None if deleted is None else deleted + one.base,
                        number=number,
                        base=one.base + first,
                        start=start - first,
                        stop=stop - first,
                    )
                first += rows

    def _opened(
        self, slices: Sequence[FileSlice]
    ) -> Iterator[tuple[FileSlice, OpenFile, Numbers | None]]:
        """Yield each slice with its file, while the next file's footer is on its way."""
        files = [list(same) for _, same in groupby(slices, key=lambda one: id(one.file))]
        footers = (ask_footer(self.storage, same[0].file) for same in files)
        ahead = next(footers, None)
        for same in files:
            footer, ahead = ahead, next(footers, None)
            assert footer is not None  # noqa: S101 - there is one for each file.
            file = same[0].file
            opened = OpenFile(self.storage, file, footer, self.fit.wanted)
            deleted = self.deleted.numbers(file) if self.deleted is not None else None
            for one in same:
                yield one, opened, deleted

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
    # The number of its first row, and which rows are meant, counted from it.
    base: int
    start: int
    stop: int
