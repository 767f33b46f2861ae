"""The hash of each row's key, exactly as Spark SQL's `xxhash64` computes it.

Spark sums these hashes on its side and tasks sum them on theirs; comparing the sums needs every
bit to agree. Spark hashes a value by how it stores it: as an int of 32 bits or a long of 64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

_SEED = 42  # The one of Spark's function; it cannot be changed in SQL.
_PRIME_1 = np.uint64(0x9E3779B185EBCA87)
_PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = np.uint64(0x165667B19E3779F9)
_PRIME_4 = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_5 = 0x27D4EB2F165667C5
# The algorithm adds the value's length in bytes to its fifth prime.
_INT_START, _LONG_START = np.uint64(_PRIME_5 + 4), np.uint64(_PRIME_5 + 8)

_INT_KINDS = (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.date32())
_LONG_DIGITS_MAX = 18  # Spark stores a decimal of more digits as bytes, and hashes those.
# Some twenty passes go over each block: it has to stay in the processor's cache meanwhile.
_BLOCK_ROWS = 1 << 14

_Words = npt.NDArray[np.uint64]


def hashable(kind: pa.DataType) -> bool:
    """Say whether keys of this type can be hashed here; Spark has to hash the others."""
    if pt.is_decimal128(kind):
        return bool(kind.precision <= _LONG_DIGITS_MAX)
    if pt.is_timestamp(kind):
        return bool(kind.unit == "us")  # Spark knows no other unit.
    return kind in _INT_KINDS or bool(pt.is_int64(kind))


def key_hashes(columns: Sequence[pa.Array]) -> _Words:
    """Return for each row what Spark's `xxhash64(column, ...)` returns, as unsigned numbers.

    Runs on an executor. A NULL leaves the hash of the columns before it as it is.

    Args:
        columns: The key's columns in their order; at least one, all of one length.

    Raises:
        TypeError: A column's type is not `hashable`.
        ValueError: There is no column, or their lengths differ.
    """
    if len({len(column) for column in columns}) != 1:
        raise ValueError("a key is made of one or more columns of one length")
    for column in columns:
        if not hashable(column.type):
            raise TypeError(f"keys of type {column.type} cannot be hashed here")
    hashes = np.full(len(columns[0]), _SEED, dtype=np.uint64)
    for start in range(0, len(hashes), _BLOCK_ROWS):
        block = hashes[start : start + _BLOCK_ROWS]
        for column in columns:
            _add_column(block, column.slice(start, len(block)))
    return hashes


def hash_sums(hashes: _Words) -> tuple[int, int]:
    """Return the sum of the hashes' low 32 bits and that of their high 32 bits.

    Both are exact up to 2^32 rows: so many halves fit into the 64 bits they are added up in.
    """
    low = np.sum(hashes & np.uint64(0xFFFFFFFF), dtype=np.uint64)
    high = np.sum(hashes >> np.uint64(32), dtype=np.uint64)
    return int(low), int(high)


def _add_column(hashes: _Words, column: pa.Array) -> None:
    """Turn the hashes of the columns so far, in place, into those with one column more."""
    before = hashes.copy() if column.null_count else None
    if column.type in _INT_KINDS:
        _add_ints(hashes, column)
    else:
        _add_longs(hashes, column)
    hashes ^= hashes >> np.uint64(33)
    hashes *= _PRIME_2
    hashes ^= hashes >> np.uint64(29)
    hashes *= _PRIME_3
    hashes ^= hashes >> np.uint64(32)
    if before is not None:
        # Whatever stands in memory below a NULL was hashed along with the values.
        np.copyto(hashes, before, where=column.is_null().to_numpy(zero_copy_only=False))


def _add_ints(hashes: _Words, column: pa.Array) -> None:
    if pt.is_boolean(column.type):
        column = column.cast(pa.int8())  # Eight of them share a byte.
    values = _memory(column).view(f"i{column.type.bit_width // 8}")
    # The sign fills 32 bits and no more: Spark widens to int, then takes that as unsigned.
    words = values.astype(np.int32, copy=False).view(np.uint32).astype(np.uint64)
    words *= _PRIME_1
    hashes += _INT_START
    hashes ^= words
    _rotate_left(hashes, 23)
    hashes *= _PRIME_2
    hashes += _PRIME_3


def _add_longs(hashes: _Words, column: pa.Array) -> None:
    # A decimal takes two words, the low one first; up to 18 digits fit into that one.
    words = _memory(column).view(np.uint64)[:: column.type.bit_width // 64] * _PRIME_2
    _rotate_left(words, 31)
    words *= _PRIME_1
    hashes += _LONG_START
    hashes ^= words
    _rotate_left(hashes, 27)
    hashes *= _PRIME_1
    hashes += _PRIME_4


def _memory(column: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of the column's own values; a slice shares a longer buffer."""
    width = column.type.bit_width // 8
    start, size = column.offset * width, len(column) * width
    return np.frombuffer(column.buffers()[1], np.uint8, count=size, offset=start)


def _rotate_left(words: _Words, bits: int) -> None:
    carried = words >> np.uint64(64 - bits)
    words <<= np.uint64(bits)
    words |= carried
