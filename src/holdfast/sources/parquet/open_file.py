"""One Parquet file that is being read: only the columns that are asked for, group by group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.model.pins import PinnedFile
from holdfast.model.ranges import Span
from holdfast.sources.as_pinned import as_pinned
from holdfast.sources.parquet.footers import (
    TAIL_BYTES,
    NoParquetError,
    parse_footer,
    read_footer,
)
from holdfast.sources.ranged_file import RangedFile
from holdfast.storage.port import ObjectChangedError, Storage
from holdfast.storage.runtime import io_runtime

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
