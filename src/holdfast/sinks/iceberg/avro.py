"""Avro files: a header, then blocks of rows.

A table's bucket may hold anything under a manifest's name. So no stored length is trusted: none may
be negative or reach beyond the bytes that are there, and no block has more rows than bytes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from pyiceberg.avro.codecs import (
    CODEC_MAPPING_ICEBERG_TO_AVRO,
    KNOWN_CODECS,
    AvroCompressionCodec,
)

from holdfast.errors import HoldfastError
from holdfast.text import in_short

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
# Of the last of the ten bytes that a number of 64 bits may take.
_SHIFT_MAX = 63
_SCHEMA, _CODEC = "avro.schema", "avro.codec"
# As many are decoded at a time: one takes kilobytes, if the table has many columns.
_BLOCK_ROWS = 1024


class DamagedFileError(ValueError):
    """A file of a table cannot be decoded."""


@contextlib.contextmanager
def decoding(path: str) -> Iterator[None]:
    """Turn whatever a decoder raises into an error that names the file.

    Raises:
        DamagedFileError: The file cannot be decoded.
        OSError: Storage failed.
        HoldfastError: Storage cannot be used.
    """
    try:
        yield
    except (OSError, HoldfastError, DamagedFileError):
        raise
    except Exception as error:  # Damaged bytes make decoders raise errors of any kind.
        raise DamagedFileError(f"{path} cannot be read: {in_short(error)}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroHeader:
    """What an Avro file says about itself, and where its blocks begin."""

    metadata: Mapping[str, bytes]
    blocks_at: int

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of its rows, with all attributes."""
        return cast("dict[str, Any]", json.loads(self.metadata[_SCHEMA]))


def read_header(data: bytes) -> AvroHeader:
    """Return an Avro file's header.

    Raises:
        ValueError: It is not an Avro file, or is cut short.
    """
    if not data.startswith(_MAGIC):
        raise ValueError("not an Avro file")
    found: dict[str, bytes] = {}
    at = len(_MAGIC)
    while True:
        count, at = _number(data, at)
        if count == 0:
            return AvroHeader(metadata=found, blocks_at=_end(data, at, _SYNC_BYTES))
        if count < 0:  # Then its size in bytes follows.
            count, (_, at) = -count, _number(data, at)
        for _ in range(count):  # Each takes at least two bytes, or raises.
            name, at = _bytes(data, at)
            found[name.decode()], at = _bytes(data, at)


def blocks(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the blocks of an Avro file: how many rows each has, and its decompressed bytes.

    Raises:
        ValueError: It is not an Avro file, is cut short or damaged, or its codec is not supported.
    """
    header = read_header(data)
    codec = header.metadata.get(_CODEC, b"null").decode()
    if codec not in KNOWN_CODECS:
        raise ValueError(f"compressed with {codec!r}")
    unpack = KNOWN_CODECS[codec]
    at = header.blocks_at
    sync = data[at - _SYNC_BYTES : at]
    while at < len(data):
        rows, at = _number(data, at)
        stored, at = _bytes(data, at)
        start, at = at, _end(data, at, _SYNC_BYTES)
        if data[start:at] != sync:
            raise ValueError(f"a block does not end at byte {start}")
        block = unpack.decompress(stored) if unpack else stored
        if not 0 <= rows <= len(block):  # An entry takes at least a byte: its status.
            raise ValueError(f"a block of {len(block)} bytes cannot have {rows} rows")
        yield rows, block


def _end(data: bytes, at: int, size: int) -> int:
    """Return where so many bytes end.

    Raises:
        ValueError: There are not so many.
    """
    if not 0 <= size <= len(data) - at:
        raise ValueError(f"it is cut short, or a length is damaged: {size} at byte {at}")
    return at + size


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _number(data, at)
    end = _end(data, at, size)
    return data[at:end], end


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Read an Avro number: seven bits per byte, with the sign in the lowest bit.

    Raises:
        ValueError: It is longer than 64 bits, or cut short.
    """
    value = shift = 0
    while True:
        if shift > _SHIFT_MAX:
            raise ValueError(f"a number before byte {at} is too long")
        byte = data[_end(data, at, 1) - 1]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1), at


def _number_bytes(value: int) -> bytes:
    value, found = (value << 1) ^ (value >> 63), bytearray()
    while value >> 7:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def avro_file(
    schema: Mapping[str, Any], metadata: Mapping[str, bytes], rows: Iterable[bytes], codec: str
) -> bytes:
    """Return an Avro file of rows that are encoded by the schema.

    Raises:
        ValueError: The codec is not supported.
    """
    codec = CODEC_MAPPING_ICEBERG_TO_AVRO.get(codec, codec)
    if codec not in KNOWN_CODECS:
        raise ValueError(f"manifests cannot be compressed with {codec!r}")
    header = {**metadata, _SCHEMA: json.dumps(schema).encode(), _CODEC: codec.encode()}
    sync = os.urandom(_SYNC_BYTES)
    out = io.BytesIO()
    out.write(_MAGIC + _number_bytes(len(header)))
    for name, value in header.items():
        key = name.encode()
        out.write(_number_bytes(len(key)) + key + _number_bytes(len(value)) + value)
    out.write(_number_bytes(0) + sync)
    left = iter(rows)
    while some := list(islice(left, _BLOCK_ROWS)):
        out.write(avro_block(len(some), b"".join(some), codec, sync))
    return out.getvalue()


def avro_block(rows: int, data: bytes, codec: str, sync: bytes) -> bytes:
    """Return rows as a block of an Avro file with the codec and the sync marker."""
    pack = KNOWN_CODECS[cast("AvroCompressionCodec", codec)]
    packed, size = pack.compress(data) if pack else (data, len(data))
    return _number_bytes(rows) + _number_bytes(size) + packed + sync


# ---- An Avro file whose entries come from others

# How much is compressed at once.
_BLOCK_BYTES = 256 << 10


class Blocks:
    """An Avro file, made of entries that have the same header."""

    def __init__(self, head: bytes) -> None:
        """Begin like another Avro file: with its header, codec and sync marker."""
        header = read_header(head)
        head = head[: header.blocks_at]
        self._sync = head[-_SYNC_BYTES:]
        self._codec = header.metadata.get("avro.codec", b"null").decode()
        self._written: list[bytes] = [head]
        self._waiting: list[bytes] = []
        self._waiting_rows = self._waiting_bytes = 0
        self.size_bytes = len(head)

    def add(self, rows: int, entries: bytes) -> None:
        """Take entries."""
        self._waiting.append(entries)
        self._waiting_rows += rows
        self._waiting_bytes += len(entries)
        if self._waiting_bytes >= _BLOCK_BYTES:
            self._end_block()

    def finished(self) -> bytes:
        """Return the whole file."""
        if self._waiting:
            self._end_block()
        return b"".join(self._written)

    def _end_block(self) -> None:
        block = avro_block(self._waiting_rows, b"".join(self._waiting), self._codec, self._sync)
        self._written.append(block)
        self.size_bytes += len(block)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
