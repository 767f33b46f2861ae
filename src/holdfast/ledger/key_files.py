"""Key files: the keys of the input rows that a task record covers, as they came, in Parquet.

Raw and unsorted, because that is cheap for the tasks and exact for the join that leaves finished
rows out: ADR 0006 has the figures. A file is written piece by piece, so its size costs no memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.failpoints import failpoint
from holdfast.ledger.decoded import parquet_batches
from holdfast.model.ranges import Span
from holdfast.storage.arrow_file import ArrowFile
from holdfast.storage.port import Storage

_ROW_GROUP_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class KeyFiles:
    """The keys of finished rows, and how executors reach them. Pickled with a task."""

    storage: Storage
    # The object of each task record's keys, by the record's name.
    uris: Mapping[str, str] = field(default_factory=dict)
    # How many keys there are in all.
    rows: int = 0
    # For a scan instead: the row numbers that each record covers.
    ranges: Mapping[str, Sequence[Span]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.uris or self.ranges)


class KeyFile:
    """One key file on its way."""

    def __init__(self, storage: Storage, uri: str) -> None:
        """Open nothing yet: a record that covers nothing has no key file."""
        self._storage = storage
        self._uri = uri
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._file: ArrowFile | None = None
        self._writer: pq.ParquetWriter | None = None

    def add(self, names: Sequence[str], columns: Sequence[pa.Array]) -> None:
        """Take the keys of more rows."""
        # Copied: a column from Spark holds the memory of its whole batch.
        copies = [pa.concat_arrays([column, column.slice(0, 0)]) for column in columns]
        batch = pa.RecordBatch.from_arrays(copies, names=list(names))
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._write_row_group()

    def finish(self) -> int:
        """Make the file visible and return its size; 0 if there are no keys."""
        if self._waiting:
            self._write_row_group()
        if self._writer is None or self._file is None:
            return 0
        self._writer.close()
        failpoint("before-keys")
        self._file.finish()
        failpoint("after-keys")
        return self._file.size_bytes

    def abandon(self) -> None:
        """Give the file up."""
        if self._writer is not None and self._file is not None:
            self._file.discard()
            self._writer.close()

    def _write_row_group(self) -> None:
        rows = pa.Table.from_batches(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        if self._writer is None:
            self._file = ArrowFile(self._storage.open_sink(self._uri))
            self._writer = pq.ParquetWriter(
                pa.PythonFile(self._file, mode="w"),
                rows.schema,
                compression="zstd",
                use_dictionary=False,
                write_statistics=False,
                write_page_checksum=True,
                # Numbers that grow from row to row nearly vanish; for the rest it costs nothing.
                column_encoding={
                    field.name: "DELTA_BINARY_PACKED"
                    for field in rows.schema
                    if pa.types.is_int32(field.type) or pa.types.is_int64(field.type)
                }
                or None,
            )
        self._writer.write_table(rows, row_group_size=rows.num_rows)


def read_key_table(uri: str, data: bytes, rows: int) -> pa.Table:
    """Return all keys of one file as they were written.

    Args:
        uri: Which file, for errors.
        data: Its bytes.
        rows: How many keys it must have.

    Raises:
        LedgerDamagedError: They are not as many as were written, or no keys at all.
    """
    return pa.Table.from_batches(parquet_batches(uri, data, rows=rows))


def read_keys(storage: Storage, uri: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the keys of one file in the given schema. Runs on executors.

    Args:
        storage: How the store is reached.
        uri: Which file.
        schema: The key columns' names and types as the session has them now.

    Raises:
        LedgerDamagedError: The file is not as it was written.
    """
    for batch in parquet_batches(uri, storage.get_sure(uri)):
        columns = [column.cast(field.type) for column, field in zip(batch, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
