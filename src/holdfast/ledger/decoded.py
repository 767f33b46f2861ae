"""Decoded objects: Arrow and Parquet of a ledger, checked before anything is done with them.

Arrow takes the offsets inside a buffer as they are, so a crafted object could make it read outside
of its memory; and some kilobytes can unpack into more than any machine has. Digests do not help:
who can write the object can write the record that names it.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import LedgerDamagedError
from holdfast.model.limits import DECODED_BYTES_FREE, DECODED_BYTES_MAX, DECODED_RATIO_MAX
from holdfast.model.stored import RecordDamagedError

_ROW_BYTES = 8
# Below that, handing columns to threads takes three times as long as decoding them.
_THREADS_FROM_BYTES = 1024 * 1024


@contextlib.contextmanager
def damage_at(uri: str) -> Iterator[None]:
    """Name the object whose bytes cannot be decoded.

    Raises:
        LedgerDamagedError: It is damaged.
    """
    try:
        yield
    # Parquet reports a damaged page header as an OSError; Arrow asks for absurd amounts of memory
    # where a length is damaged.
    except (RecordDamagedError, pa.ArrowException, OSError) as error:
        raise LedgerDamagedError(uri=uri, reason=str(error)) from error


def arrow_batches(uri: str, data: bytes, rows: int) -> list[pa.RecordBatch]:
    """Return the batches of an Arrow stream.

    Args:
        uri: Which object, for errors.
        data: Its bytes.
        rows: How many rows it must have.

    Raises:
        LedgerDamagedError: It is no such stream, has no batch, or unpacks into more than can have
            been written.
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
        uri: Which object, for errors.
        data: Its bytes.
        rows: How many rows it must have; None if that is not known.
        batch_rows: How many rows are decoded at a time.

    Raises:
        LedgerDamagedError: It is no such object, or unpacks into too much.
    """
    found = 0
    with (
        damage_at(uri),
        pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file,
    ):
        facts = file.metadata
        if rows is not None:
            _refuse_other(facts.num_rows, rows)
        groups = (facts.row_group(number) for number in range(facts.num_row_groups))
        promised = sum(group.total_byte_size for group in groups)
        # Numbers can be packed into next to nothing.
        _refuse_over(DECODED_BYTES_MAX, max(promised, facts.num_rows * _ROW_BYTES))
        # An empty file has a schema, too.
        yield pa.RecordBatch.from_pylist([], schema=file.schema_arrow)
        # The footer may promise little, and the pages hold much.
        use_threads = len(data) >= _THREADS_FROM_BYTES
        for batch in file.iter_batches(batch_size=batch_rows, use_threads=use_threads):
            found += batch.nbytes
            _refuse_over(DECODED_BYTES_MAX, found)
            batch.validate(full=True)
            yield batch


def _refuse_over(size_max: int, size: int) -> None:
    if size > size_max:
        raise RecordDamagedError(f"it unpacks into over {size_max:,} bytes")


def _refuse_other(rows: int, written: int) -> None:
    if rows != written:
        raise RecordDamagedError(f"{rows} rows, and {written} were written")


def _refuse_other_codecs(data: bytes) -> None:
    """Refuse a stream that is packed by another codec than ours, before it is unpacked.

    A batch of zstd can be ten thousand times its size, and only unpacking it tells. pyarrow does
    not say what a batch is packed with; the message does: `header` is the third field
    of a Message, `compression` the fourth of a RecordBatch, which is the second of a
    DictionaryBatch, and `codec` the first of that; 0, and no field, is LZ4.

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
            raise RecordDamagedError(f"no Arrow message: {error}") from error
        if codec:
            raise RecordDamagedError("it is packed by a codec that chunks are not written with")


def _byte_at(data: bytes, path: Sequence[int]) -> int:
    """Follow tables of a flatbuffer by the numbers of fields; return the last one's first field."""
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
    # A dictionary is stored once, and all batches share it.
    is_packed = pa.types.is_dictionary(column.type)
    return int((column.indices if is_packed else column).nbytes)
