"""Rows in a ledger: key files and chunks, checked before they are used.

Arrow trusts the offsets inside a buffer, so a crafted object could make it read out of bounds; and
a few kilobytes can unpack into more memory than any machine has. Digests do not help: an attacker
who can write the object can also write the record that names it.

Keys are stored raw and unsorted, which is cheap for the tasks and exact for the join that leaves
finished rows out: ADR 0006 has the figures. Files are streamed, so their size costs no memory.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import LedgerDamagedError
from holdfast.failpoints import failpoint
from holdfast.ledger.store import answers, read_whole
from holdfast.model.coverage import Span
from holdfast.model.limits import DECODED_BYTES_FREE, DECODED_BYTES_MAX, DECODED_RATIO_MAX
from holdfast.model.stored import RecordDamagedError
from holdfast.model.work import Chunk
from holdfast.storage.port import Storage
from holdfast.storage.upload import ArrowFile, DigestingArrowFile

# ---- Decoded objects: a ledger's Arrow and Parquet data, checked before it is used

_ROW_BYTES = 8
# Below this size, handing columns to threads takes three times as long as decoding them.
_THREADS_FROM_BYTES = 1024 * 1024


@contextlib.contextmanager
def damage_at(uri: str) -> Iterator[None]:
    """Turn a decoding error into one that names the object.

    Raises:
        LedgerDamagedError: The object is damaged.
    """
    try:
        yield
    # Parquet reports a damaged page header as an OSError; Arrow asks for absurd amounts of memory
    # if a length is damaged. A column's name need not be text then.
    except (RecordDamagedError, pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise LedgerDamagedError(uri=uri, reason=str(error)) from error


def arrow_batches(uri: str, data: bytes, rows: int) -> list[pa.RecordBatch]:
    """Return the batches of an Arrow stream.

    Args:
        uri: The object's URI, for errors.
        data: Its bytes.
        rows: How many rows it must have.

    Raises:
        LedgerDamagedError: It is not such a stream, has no batch, or unpacks into more than can
            have been written.
    """
    batches, found, size = [], 0, 0
    size_max = len(data) * DECODED_RATIO_MAX + DECODED_BYTES_FREE
    with damage_at(uri), pa.ipc.open_stream(pa.BufferReader(data)) as reader:
        _refuse_other_codecs(data)
        for batch in reader:
            found += batch.num_rows
            size += sum(map(_own_bytes, batch.columns))
            _refuse_over(size_max, max(size, batch.nbytes))
            batch.validate(full=True)
            batches.append(batch)
        _refuse_other(found, rows)
    if not batches:
        raise LedgerDamagedError(uri=uri, reason="it has no batch")
    return batches


def parquet_batches(
    uri: str, data: bytes, *, rows: int | None = None, batch_rows: int = 64 * 1024
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a Parquet object, each with the file's schema.

    Args:
        uri: The object's URI, for errors.
        data: Its bytes.
        rows: How many rows it must have; None if that is not known.
        batch_rows: How many rows are decoded at a time.

    Raises:
        LedgerDamagedError: It is not such an object, or unpacks into too much.
    """
    found = seen = 0
    with (
        damage_at(uri),
        pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file,
    ):
        facts = file.metadata
        if rows is not None:
            _refuse_other(facts.num_rows, rows)
        groups = (facts.row_group(number) for number in range(facts.num_row_groups))
        promised = sum(group.total_byte_size for group in groups)
        # Numbers can compress to almost nothing.
        _refuse_over(DECODED_BYTES_MAX, max(promised, facts.num_rows * _ROW_BYTES))
        # An empty file has a schema, too.
        yield pa.RecordBatch.from_pylist([], schema=file.schema_arrow)
        # The footer may promise little while the pages hold much.
        use_threads = len(data) >= _THREADS_FROM_BYTES
        for batch in file.iter_batches(batch_size=batch_rows, use_threads=use_threads):
            found += batch.nbytes
            seen += batch.num_rows
            _refuse_over(DECODED_BYTES_MAX, found)
            batch.validate(full=True)
            yield batch
        # Pages have checksums, the footer has none: it may hide pages.
        _refuse_other(seen, facts.num_rows)


def _refuse_over(size_max: int, size: int) -> None:
    if size > size_max:
        raise RecordDamagedError(f"it unpacks to more than {size_max:,} bytes")


def _refuse_other(rows: int, written: int) -> None:
    if rows != written:
        raise RecordDamagedError(f"{rows} rows, but {written} were written")


def _refuse_other_codecs(data: bytes) -> None:
    """Refuse a stream compressed with a codec other than ours, before it is decompressed.

    A zstd batch can unpack to ten thousand times its size, and only unpacking it shows that.
    pyarrow does not expose a batch's codec, so it is read from the message: `header` is the third
    field of a Message, `compression` the fourth of a RecordBatch (which is the second of a
    DictionaryBatch), and `codec` the first of that; 0, or no field, is LZ4.

    Raises:
        RecordDamagedError: Another codec is named, or a message is cut short.
    """
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(data)):
        if message.type == "schema":
            continue
        path = [2, 1, 3] if message.type == "dictionary" else [2, 3]
        try:
            codec = _byte_at(message.metadata.to_pybytes(), path)
        except struct.error as error:
            raise RecordDamagedError(f"not an Arrow message: {error}") from error
        if codec:
            raise RecordDamagedError(
                "it is compressed with a codec that chunks are not written with"
            )


def _byte_at(data: bytes, path: Sequence[int]) -> int:
    """Follow flatbuffer tables by field number; return the first field of the last table."""
    (table,) = struct.unpack_from("<I", data)
    for number in (*path, None):
        vtable = table - struct.unpack_from("<i", data, table)[0]
        entry = 4 + 2 * (number or 0)
        (size,) = struct.unpack_from("<H", data, vtable)
        offset = struct.unpack_from("<H", data, vtable + entry)[0] if entry < size else 0
        if not offset:
            return 0
        if number is None:
            return int(struct.unpack_from("<b", data, table + offset)[0])
        table += offset + struct.unpack_from("<I", data, table + offset)[0]
    return 0


def _own_bytes(column: pa.Array) -> int:
    # A dictionary is stored once and shared by all batches.
    is_packed = pa.types.is_dictionary(column.type)
    return int((column.indices if is_packed else column).nbytes)


# ---- Key files: the keys of the input rows that a task record covers, unsorted, in Parquet

_ROW_GROUP_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class KeyFiles:
    """The keys of finished rows, and how executors reach them. Pickled with a task."""

    storage: Storage
    # The URI of each task record's key file, by the record's name.
    uris: Mapping[str, str] = field(default_factory=dict)
    # The total number of keys, and that of each file.
    rows: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    # For a scan instead: the row numbers that each record covers.
    ranges: Mapping[str, Sequence[Span]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there are any finished rows."""
        return bool(self.uris or self.ranges)


class KeyFile:
    """One key file that is being written."""

    def __init__(
        self, storage: Storage, uri: str, *, step: str = "keys", schema: pa.Schema | None = None
    ) -> None:
        """Open nothing yet: a record that covers nothing has no key file.

        Args:
            storage: How the store is reached.
            uri: Where the file is written.
            step: What its failpoints are named for.
            schema: The columns with the metadata that the file keeps; None if it has none.
        """
        self._storage, self._uri, self._step, self._schema = storage, uri, step, schema
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._file: ArrowFile | None = None
        self._writer: pq.ParquetWriter | None = None

    @property
    def size_bytes(self) -> int:
        """How many bytes have been encoded."""
        return self._file.size_bytes if self._file is not None else 0

    def add(self, names: Sequence[str], columns: Sequence[pa.Array]) -> None:
        """Add the keys of more rows."""
        # Copied: a column from Spark holds the memory of its whole batch.
        copies = [pa.concat_arrays([column, column.slice(0, 0)]) for column in columns]
        named = {"schema": self._schema} if self._schema is not None else {"names": list(names)}
        batch = pa.RecordBatch.from_arrays(copies, **named)
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
        failpoint(f"before-{self._step}")
        self._file.finish()
        failpoint(f"after-{self._step}")
        return self._file.size_bytes

    def abandon(self) -> None:
        """Discard the file."""
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
                store_decimal_as_integer=True,
                # Increasing numbers compress to almost nothing; for others it costs nothing.
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
        uri: The file's URI, for errors.
        data: Its bytes.
        rows: How many keys it must have.

    Raises:
        LedgerDamagedError: The number of keys is not what was written, or these are not keys.
    """
    return pa.Table.from_batches(parquet_batches(uri, data, rows=rows))


def sampled_key_bytes(storage: Storage, uri: str) -> int:
    """Return how many bytes a key has on average, judged by the first keys of one file.

    Raises:
        LedgerDamagedError: The file is gone, or not as it was written.
        StoreUnavailableError: The store did not answer.
    """
    try:
        with answers(uri):
            data = storage.get_sure(uri)
    except FileNotFoundError as error:
        raise LedgerDamagedError(uri=uri, reason="missing") from error
    first = next((batch for batch in parquet_batches(uri, data) if batch.num_rows), None)
    return 0 if first is None else -(-first.nbytes // first.num_rows)


def read_keys(
    storage: Storage, uri: str, schema: pa.Schema, rows: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the keys of one file in the given schema. Runs on executors.

    Args:
        storage: How the store is reached.
        uri: The file's URI.
        schema: The key columns' names and types as the session has them now.
        rows: How many keys it must have; None if that is not known.

    Raises:
        LedgerDamagedError: The file is not as it was written.
    """
    for batch in parquet_batches(uri, storage.get_sure(uri), rows=rows):
        columns = [column.cast(field.type) for column, field in zip(batch, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


# ---- Chunks: finished output rows as one Arrow IPC object, until they are in a table file
class ChunkFile:
    """One chunk that is being written; it is streamed, so its size costs no memory."""

    def __init__(self, storage: Storage, uri: str, schema: pa.Schema) -> None:
        """Open the upload; nothing is visible before `finish`."""
        self._file = DigestingArrowFile(storage.open_sink(uri))
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_stream(
            pa.PythonFile(self._file, mode="w"), schema, options=options
        )
        self._rows = 0

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Write rows."""
        for batch in batches:
            self._writer.write_batch(batch)
            self._rows += batch.num_rows

    def finish(self) -> Chunk:
        """Make the chunk visible, and return the reference for a record."""
        self._writer.close()
        failpoint("before-chunk")
        self._file.finish()
        failpoint("after-chunk")
        return Chunk(rows=self._rows, size_bytes=self._file.size_bytes, digest=self._file.digest)

    def abandon(self) -> None:
        """Discard the chunk."""
        self._file.discard()
        self._writer.close()


def read_chunk(storage: Storage, uri: str, chunk: Chunk) -> list[pa.RecordBatch]:
    """Return a chunk's rows as they were written.

    Raises:
        LedgerDamagedError: The chunk is gone, or not as it was written.
        StoreUnavailableError: The store did not answer.
    """
    return decode_chunk(uri, chunk, read_whole(storage, uri, chunk.digest))


def decode_chunk(uri: str, chunk: Chunk, data: bytes) -> list[pa.RecordBatch]:
    """Return a chunk's rows, from the bytes of its object.

    Raises:
        LedgerDamagedError: The number of rows is not what was written, or these are not rows.
    """
    return arrow_batches(uri, data, chunk.rows)
