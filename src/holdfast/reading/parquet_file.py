"""One Parquet file that is being read: its footer, then its row groups, of which few are held.

Any object of a store can be read this way: a file of a scan, or of the table that is written.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.model.coverage import PinnedFile, Span
from holdfast.storage.port import ObjectChangedError, Storage
from holdfast.storage.runtime import io_runtime, read_ahead

# Numbers of rows in a file.
Numbers = npt.NDArray[np.int64]


# ---- A file of which only some bytes are in memory: those that were fetched for the next read
class RangedFile(io.RawIOBase):
    """A file object for pyarrow; reading outside the bytes in memory is an error."""

    def __init__(self, size_bytes: int) -> None:
        """Hold nothing yet."""
        super().__init__()
        self._size = size_bytes
        self._at = 0
        self._held: list[tuple[int, memoryview]] = []

    @contextlib.contextmanager
    def holding(self, pieces: Iterable[tuple[int, bytes | memoryview]]) -> Iterator[None]:
        """Put these bytes in memory, each piece with its start offset."""
        self._held = [(start, memoryview(data)) for start, data in pieces]
        try:
            yield
        finally:
            self._held = []

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the offset of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to an offset in the file."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> memoryview:
        """Return bytes that are in memory, without a copy.

        Raises:
            OSError: The bytes are not in memory.
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


# ---- Footers: a Parquet file's metadata, read without its rows

_MAGIC = b"PAR1"
# The size of the first read: more than most footers need.
TAIL_BYTES = 64 * 1024
_TRAILER_BYTES = 8


class NoParquetError(ValueError):
    """The object is not a Parquet file."""


def read_footer(storage: Storage, uri: str, size_bytes: int, tag: str) -> bytes:
    """Return the footer of a Parquet file as a complete file.

    Raises:
        NoParquetError: The object is not a Parquet file.
        ObjectChangedError: The object no longer has the tag.
        StorageError: The storage does not answer.
    """
    start = max(0, size_bytes - TAIL_BYTES)
    tail = bytes(storage.get_range(uri, start, size_bytes, tag=tag)) if size_bytes else b""
    if tail[-len(_MAGIC) :] != _MAGIC or size_bytes < _TRAILER_BYTES:
        raise NoParquetError(f"{uri} is not a Parquet file")
    length = int.from_bytes(tail[-_TRAILER_BYTES : -len(_MAGIC)], "little") + _TRAILER_BYTES
    if length > size_bytes:
        raise NoParquetError(f"{uri} is not a Parquet file")
    if length > len(tail):
        tail = bytes(storage.get_range(uri, size_bytes - length, size_bytes, tag=tag))
    return _MAGIC + tail[-length:]


def parse_footer(footer: bytes) -> pq.FileMetaData:
    """Return the metadata in a footer.

    Raises:
        NoParquetError: The footer cannot be read.
    """
    try:
        return pq.read_metadata(pa.BufferReader(footer))
    except (pa.ArrowException, OSError) as error:
        raise NoParquetError(str(error)) from error


# ---- One Parquet file that is being read: only the requested columns, group by group

Pieces = Sequence[tuple[int, Future[bytes | memoryview]]]

_BATCH_ROWS = 64 * 1024
# Roughly how many bytes are decoded at a time: rows of a megabyte must not come by the thousand.
_BATCH_BYTES = 16 * 1024 * 1024
# Reading a gap this wide costs less than another request.
_GAP_BYTES = 1 << 20


class UnreadableFileError(ValueError):
    """The file is the pinned one, but cannot be decoded."""


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
            file: The file.
            footer: The result of `ask_footer`.
            wanted: Chooses from the file's own columns.

        Raises:
            FileNotFoundError: The file is gone.
            ObjectChangedError: The file is not the one that was pinned.
        """
        self.file = file
        self._storage = storage
        self._metadata = _pinned_metadata(file, footer)
        self._ranged = RangedFile(file.size_bytes)
        self._parquet = pq.ParquetFile(
            pa.PythonFile(self._ranged, mode="r"),
            metadata=self._metadata,
            coerce_int96_timestamp_unit="us",
            page_checksum_verification=True,  # If the writer stored any.
        )
        self._columns = list(wanted(self._metadata.schema.to_arrow_schema()))
        # pyarrow also takes a name as the beginning of a nested column's path.
        begins = tuple(f"{name}." for name in self._columns)
        leaves = self._metadata.schema
        paths = [leaves.column(number).path for number in range(len(leaves))]
        self._leaves = [n for n, path in enumerate(paths) if f"{path}.".startswith(begins)]

    def size_bytes(self, number: int) -> int:
        """Return how many bytes `fetch` reads of a row group."""
        return sum(stop - start for start, stop in self._spans(number))

    def fetch(self, number: int) -> Pieces:
        """Start fetching the wanted columns of a row group."""
        return [(start, self._ask(start, stop)) for start, stop in self._spans(number)]

    def batches(self, number: int, pieces: Pieces) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group, from the first one on.

        Raises:
            UnreadableFileError: The rows cannot be decoded.
        """
        if not self._columns:  # None of the requested columns is in the file.
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
    """Start fetching a file's footer."""
    return io_runtime().read(
        lambda: read_footer(storage, file.uri, file.size_bytes, file.tag),
        min(file.size_bytes, TAIL_BYTES),
    )


@dataclass(frozen=True, kw_only=True)
class ParquetSource:
    """A file that is known by its path and size, read row group by row group."""

    storage: Storage
    footer: bytes
    leaves: pq.ParquetSchema
    pinned: PinnedFile

    @classmethod
    def of(
        cls, storage: Storage, path: str, size_bytes: int, deletes: tuple[str, ...] = ()
    ) -> ParquetSource:
        """Read a file's footer.

        Raises:
            NoParquetError: It is not a Parquet file.
            FileNotFoundError: The file is gone.
        """
        footer = read_footer(storage, path, size_bytes, "")
        metadata = parse_footer(footer)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        pinned = PinnedFile(
            uri=path,
            size_bytes=size_bytes,
            tag="",  # A data file is never written again under its name.
            group_rows=tuple(group.num_rows for group in groups),
            group_bytes=tuple(group.total_byte_size for group in groups),
            deletes=deletes,
        )
        return cls(storage=storage, footer=footer, leaves=metadata.schema, pinned=pinned)

    @property
    def own(self) -> pa.Schema:
        """The file's columns, in Arrow's terms."""
        return self.leaves.to_arrow_schema()

    def groups(
        self, wanted: Callable[[pa.Schema], Iterable[str]], numbers: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
        """Yield the rows of row groups, one after the other.

        Args:
            wanted: Chooses from the file's columns.
            numbers: The row groups to read; by default all.
        """
        footer: Future[bytes] = Future()
        footer.set_result(self.footer)
        opened = OpenFile(self.storage, self.pinned, footer, wanted)
        if numbers is None:
            numbers = range(len(self.pinned.group_rows))
        asked = read_ahead(numbers, size_of=opened.size_bytes, ask=opened.fetch, at_least=1)
        for number, pieces in asked:
            yield number, opened.batches(number, pieces)


def _pinned_metadata(file: PinnedFile, footer: Future[bytes]) -> pq.FileMetaData:
    """Return the metadata in a footer.

    Raises:
        ObjectChangedError: The file is not the one that was pinned.
    """
    try:
        metadata = parse_footer(footer.result())
    except NoParquetError as error:
        raise ObjectChangedError(str(error)) from error
    groups = range(metadata.num_row_groups)
    # Not every store has tags.
    if tuple(metadata.row_group(number).num_rows for number in groups) != file.group_rows:
        raise ObjectChangedError(f"{file.uri} has different row groups")
    return metadata


def _rows_without_columns(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(
        pa.StructArray.from_buffers(pa.struct([]), rows, [None])
    )


def _chunk_span(column: pq.ColumnChunkMetaData) -> Span:
    start = column.data_page_offset
    if column.dictionary_page_offset:  # Some writers store 0 if there is none.
        start = min(start, column.dictionary_page_offset)
    return start, start + column.total_compressed_size


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Return the spans as few reads, none larger than necessary."""
    ordered = sorted(spans)
    if not ordered:
        return []
    breaks = [
        number + 1
        for number, (before, after) in enumerate(pairwise(ordered))
        if after[0] - before[1] > _GAP_BYTES
    ]
    edges = [0, *breaks, len(ordered)]
    return [(ordered[a][0], max(s[1] for s in ordered[a:b])) for a, b in pairwise(edges)]
