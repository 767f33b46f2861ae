"""Footers: what a Parquet file says of itself, read without its rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.storage.port import Storage

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
