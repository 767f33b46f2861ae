"""Coverage: which input rows a task record covers, by key or by row number.

Spark and the tasks each sum these hashes, and the sums are compared, so every bit must agree. Spark
hashes a value by its storage type: a 32-bit int, a 64-bit long, or bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from holdfast.errors import LedgerDamagedError, SchemaMismatchError
from holdfast.ledger.row_files import KeyFile, read_key_table
from holdfast.ledger.store import answers
from holdfast.model.coverage import NOTHING, Coverage, Ranges, Span
from holdfast.sinks.conform import refuse_broken_text
from holdfast.sources.base import KEY_HASH, ROW_HASH, TAG_COLUMN
from holdfast.storage.port import Storage


# ---- Tags: what Holdfast itself needs to know about each input row, next to the user's columns
def split_tag(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array | None]:
    """Remove the tags, if there are any: the transform must not see them."""
    index = batch.schema.get_field_index(TAG_COLUMN)
    if index < 0:
        return batch, None
    return batch.remove_column(index), batch.column(index)


def numbers_of(tags: pa.Array | None) -> pa.Array:
    """Return the number of each row of a scan, in the order of their tags."""
    if tags is None:
        return pa.array([], pa.int64())
    return tags.flatten()[0] if pa.types.is_struct(tags.type) else tags


def hashes_of(tags: pa.Array | None) -> dict[str, npt.NDArray[np.uint64]]:
    """Return Spark's hashes of each row of a DataFrame, by their names in the tags."""
    if tags is None:
        return {}
    if not pa.types.is_struct(tags.type):
        return {KEY_HASH: _words(tags)}
    names = [tags.type.field(index).name for index in range(tags.type.num_fields)]
    return {name: _words(tags.field(name)) for name in names}


def _words(hashes: pa.Array) -> npt.NDArray[np.uint64]:
    words: npt.NDArray[np.uint64] = hashes.to_numpy(zero_copy_only=False).view("uint64")
    return words


# ---- Covered ranges: which rows of a scan the next record will cover
class CoveredRanges:
    """Collects the row numbers of one record."""

    def __init__(self, passed_over: list[Span]) -> None:
        """Start empty.

        Args:
            passed_over: Where the scan notes the rows that it leaves out. Emptied here.
        """
        self._passed_over = passed_over
        self._spans: list[Span] = []
        self._rows = 0

    @property
    def rows(self) -> int:
        """How many rows were added here or left out by the scan."""
        return self._rows + sum(stop - start for start, stop in self._passed_over)

    def add(self, batch: pa.RecordBatch, tags: pa.Array | None) -> None:
        """Cover more input rows.

        Args:
            batch: The rows.
            tags: The row numbers of each row: a number, or a span.
        """
        assert tags is not None  # noqa: S101 - a scan tags every row.
        self._rows += batch.num_rows
        self._spans += spans_of(tags)

    def take_over(self, earlier: Sequence[tuple[str, Coverage]]) -> None:
        """Also cover what earlier records of the task cover."""
        for _, coverage in earlier:
            self._rows += coverage.rows
            self._spans += coverage.ranges or ()

    def finish(self) -> Coverage:
        """Return the coverage, including the rows that the scan left out."""
        ranges = Ranges.of((*self._spans, *self._passed_over))
        self._passed_over.clear()
        if not ranges:
            return NOTHING
        return Coverage(rows=ranges.rows, low=0, high=0, keys_bytes=0, ranges=ranges.spans)

    def abandon(self) -> None:
        """Discard what was added: there is nothing to clean up."""


def spans_of(tags: pa.Array) -> list[Span]:
    """Return the tags of rows as few spans, in input order."""
    if pa.types.is_struct(tags.type):
        starts, stops = (np.asarray(bound) for bound in tags.flatten())
    else:
        starts = np.asarray(tags)
        stops = starts + 1
    if not len(starts):
        return []
    breaks = np.flatnonzero(starts[1:] != stops[:-1]) + 1
    firsts = np.concatenate(([0], breaks))
    lasts = np.concatenate((breaks, [len(starts)])) - 1
    return [(int(starts[a]), int(stops[b])) for a, b in zip(firsts, lasts, strict=True)]


# ---- The hash of each row's key, exactly as Spark SQL's `xxhash64` computes it

_SEED = 42  # The seed of Spark's function; SQL cannot change it.
_PRIME_1 = np.uint64(0x9E3779B185EBCA87)
_PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = np.uint64(0x165667B19E3779F9)
_PRIME_4 = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_5 = 0x27D4EB2F165667C5
# The algorithm adds the value's length in bytes to its fifth prime.
_INT_START, _LONG_START = np.uint64(_PRIME_5 + 4), np.uint64(_PRIME_5 + 8)

_INT_KINDS = (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.date32())
_LARGE_KINDS = (pt.is_large_string, pt.is_large_binary)
_LONG_DIGITS_MAX = 18  # Spark stores a longer decimal as bytes, and hashes those.
# About twenty passes go over each block, so it has to stay in the processor's cache.
_BLOCK_ROWS = 1 << 14

# Texts are hashed by stripes, then by words.
_STRIPE_BYTES, _WORD_BYTES, _HALF_WORD_BYTES = 32, 8, 4

_Words = npt.NDArray[np.uint64]
_Bytes = npt.NDArray[np.uint8]
_Places = npt.NDArray[np.int64]


def hashable(kind: pa.DataType) -> bool:
    """Whether keys of this type can be hashed here; Spark has to hash the others."""
    return is_number(kind) or is_text(kind)


def is_text(kind: pa.DataType) -> bool:
    """Whether values of this type are bytes of any length."""
    return any(is_kind(kind) for is_kind in (pt.is_string, pt.is_binary, *_LARGE_KINDS))


def is_number(kind: pa.DataType) -> bool:
    """Whether Spark stores values of this type as an int or a long."""
    if pt.is_decimal128(kind):
        return bool(kind.precision <= _LONG_DIGITS_MAX)
    if pt.is_timestamp(kind):
        return bool(kind.unit == "us")  # Spark has no other unit.
    return kind in _INT_KINDS or bool(pt.is_int64(kind))


def key_hashes(columns: Sequence[pa.Array]) -> _Words:
    """Return what Spark's `xxhash64(column, ...)` returns for each row, as unsigned integers.

    Runs on an executor. A NULL leaves the hash of the preceding columns unchanged.

    Args:
        columns: The key columns in order; at least one, all of the same length.

    Raises:
        TypeError: A column's type is not `hashable`.
        ValueError: There are no columns, or their lengths differ.
    """
    if len({len(column) for column in columns}) != 1:
        raise ValueError("a key needs one or more columns of equal length")
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
    """Return the sums of the hashes' low 32 bits and of their high 32 bits.

    Both are exact up to 2^32 rows, because that many 32-bit halves fit into a 64-bit sum.
    """
    low = np.sum(hashes & np.uint64(0xFFFFFFFF), dtype=np.uint64)
    high = np.sum(hashes >> np.uint64(32), dtype=np.uint64)
    return int(low), int(high)


def _add_column(hashes: _Words, column: pa.Array) -> None:
    """Update the hashes in place with one more column."""
    before = hashes.copy() if column.null_count else None
    if is_text(column.type):
        _add_texts(hashes, column)
    elif column.type in _INT_KINDS:
        _add_ints(hashes, column)
    else:
        _add_longs(hashes, column)
    hashes ^= hashes >> np.uint64(33)
    hashes *= _PRIME_2
    hashes ^= hashes >> np.uint64(29)
    hashes *= _PRIME_3
    hashes ^= hashes >> np.uint64(32)
    if before is not None:
        # The memory under a NULL was hashed along with the values.
        np.copyto(hashes, before, where=column.is_null().to_numpy(zero_copy_only=False))


def _add_ints(hashes: _Words, column: pa.Array) -> None:
    if pt.is_boolean(column.type):
        column = column.cast(pa.int8())  # Eight booleans share a byte.
    values = _memory(column).view(f"i{column.type.bit_width // 8}")
    # The sign fills only 32 bits: Spark widens to int, then takes that as unsigned.
    words = values.astype(np.int32, copy=False).view(np.uint32).astype(np.uint64)
    words *= _PRIME_1
    hashes += _INT_START
    hashes ^= words
    _rotate_left(hashes, 23)
    hashes *= _PRIME_2
    hashes += _PRIME_3


def _add_longs(hashes: _Words, column: pa.Array) -> None:
    # A decimal takes two words, the low one first; up to 18 digits fit into the low one.
    words = _memory(column).view(np.uint64)[:: column.type.bit_width // 64] * _PRIME_2
    _rotate_left(words, 31)
    words *= _PRIME_1
    hashes += _LONG_START
    hashes ^= words
    _rotate_left(hashes, 27)
    hashes *= _PRIME_1
    hashes += _PRIME_4


def _add_texts(hashes: _Words, column: pa.Array) -> None:
    """Update the hashes with bytes: stripes of 32, then words of 8 and 4, then single bytes."""
    data, at, sizes = _bytes_of(column)
    left = sizes.copy()
    is_long = sizes >= _STRIPE_BYTES
    if is_long.any():
        rows = np.flatnonzero(is_long)
        hashes[rows] = _striped(hashes[rows], data, at[rows], sizes[rows])
        left[rows] %= _STRIPE_BYTES
    at = at + sizes - left
    hashes[~is_long] += np.uint64(_PRIME_5)
    hashes += sizes.astype(np.uint64)
    rows = np.flatnonzero(left >= _WORD_BYTES)
    while len(rows):
        hashes[rows] ^= _round(np.uint64(0), _words_at(data, at[rows]))
        hashes[rows] = _rotated(hashes[rows], 27) * _PRIME_1 + _PRIME_4
        at[rows] += _WORD_BYTES
        left[rows] -= _WORD_BYTES
        rows = rows[left[rows] >= _WORD_BYTES]
    rows = np.flatnonzero(left >= _HALF_WORD_BYTES)
    hashes[rows] ^= (_words_at(data, at[rows]) & np.uint64(0xFFFFFFFF)) * _PRIME_1
    hashes[rows] = _rotated(hashes[rows], 23) * _PRIME_2 + _PRIME_3
    at[rows] += _HALF_WORD_BYTES
    left[rows] -= _HALF_WORD_BYTES
    rows = np.flatnonzero(left)
    while len(rows):
        hashes[rows] ^= data[at[rows]].astype(np.uint64) * np.uint64(_PRIME_5)
        hashes[rows] = _rotated(hashes[rows], 11) * _PRIME_1
        at[rows] += 1
        left[rows] -= 1
        rows = rows[left[rows] > 0]


def _striped(seeds: _Words, data: _Bytes, at: _Places, sizes: _Places) -> _Words:
    """Return the hashes of texts after their whole stripes, each of which four lanes share."""
    lanes = [seeds + _PRIME_1 + _PRIME_2, seeds + _PRIME_2, seeds.copy(), seeds - _PRIME_1]
    stripes, done = sizes // _STRIPE_BYTES, 0
    rows = np.arange(len(seeds))
    while len(rows):
        for number, lane in enumerate(lanes):
            places = at[rows] + (_STRIPE_BYTES * done + _WORD_BYTES * number)
            lane[rows] = _round(lane[rows], _words_at(data, places))
        done += 1
        rows = rows[stripes[rows] > done]
    turns = zip(lanes, (1, 7, 12, 18), strict=True)
    hashes = np.zeros(len(seeds), np.uint64)
    for lane, bits in turns:
        hashes += _rotated(lane, bits)
    for lane in lanes:
        hashes ^= _round(np.uint64(0), lane)
        hashes *= _PRIME_1
        hashes += _PRIME_4
    return hashes


def _round(lane: _Words | np.uint64, words: _Words) -> _Words:
    mixed: _Words = _rotated(lane + words * _PRIME_2, 31) * _PRIME_1
    return mixed


def _rotated(words: _Words, bits: int) -> _Words:
    rotated: _Words = (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))
    return rotated


def _bytes_of(column: pa.Array) -> tuple[_Bytes, _Places, _Places]:
    """Return the bytes of all texts, with room for a word after them, and each one's place."""
    is_large = any(is_kind(column.type) for is_kind in _LARGE_KINDS)
    kind = np.dtype(np.int64 if is_large else np.int32)
    _, offsets, values = column.buffers()
    ends = np.frombuffer(
        offsets, kind, count=len(column) + 1, offset=column.offset * kind.itemsize
    ).astype(np.int64)
    data = np.frombuffer(values, np.uint8) if values is not None else np.zeros(0, np.uint8)
    padded = np.concatenate((data[ends[0] : ends[-1]], np.zeros(8, np.uint8)))
    return padded, ends[:-1] - ends[0], np.diff(ends)


def _words_at(data: _Bytes, at: _Places) -> _Words:
    """Return the 8 bytes at each place as a little-endian number."""
    words: _Words = np.lib.stride_tricks.sliding_window_view(data, 8)[at].view("<u8").ravel()
    return words


def _memory(column: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of the column's own values; a slice shares a longer buffer."""
    width = column.type.bit_width // 8
    start, size = column.offset * width, len(column) * width
    return np.frombuffer(column.buffers()[1], np.uint8, count=size, offset=start)


def _rotate_left(words: _Words, bits: int) -> None:
    carried = words >> np.uint64(64 - bits)
    words <<= np.uint64(bits)
    words |= carried


# ---- Covered keys: which input rows the next record will cover

# How many key files of earlier records are held in memory.
_READ_AT_ONCE = 8


class NullKeysError(Exception):
    """Rows have NULL in their key. Tasks see such rows only if the input check is off."""

    def __init__(self, rows: int) -> None:
        """Keep the number of rows."""
        super().__init__(rows)
        self.rows = rows


def refuse_null_keys(batch: pa.RecordBatch, key: Sequence[str]) -> None:
    """Stop before rows without a key are paid for: a join would never find them finished.

    Raises:
        NullKeysError: Some rows have NULL in their key.
    """
    columns = zip(batch.schema.names, batch.columns, strict=True)
    if nulls := max((column.null_count for name, column in columns if name in key), default=0):
        raise NullKeysError(nulls)


def _refuse_broken_key(name: str, column: pa.Array) -> None:
    """Refuse keys that could not be read back from a record.

    Raises:
        SchemaMismatchError: A key is a text that is not UTF-8.
    """
    try:
        refuse_broken_text(column)
    except ValueError as error:
        problem = f"as a key, {error}; leave such rows out of the input"
        raise SchemaMismatchError(table="the ledger", column=name, problem=problem) from error


class CoveredKeys:
    """Collects the keys of one record and writes them to storage."""

    def __init__(self, storage: Storage, uri: str, key: Sequence[str]) -> None:
        """Start empty.

        Args:
            storage: How the store is reached.
            uri: Where the keys are written.
            key: The key columns.
        """
        self._key = tuple(key)
        self._storage = storage
        self._file = KeyFile(storage, uri)
        self._rows = self._low = self._high = 0
        self._row_low: int | None = None
        self._row_high: int | None = None
        self._span: tuple[int, int] | None = None
        self._grows = True

    @property
    def rows(self) -> int:
        """How many rows were added."""
        return self._rows

    def add(self, batch: pa.RecordBatch, tags: pa.Array | None) -> None:
        """Cover more input rows.

        Args:
            batch: The rows.
            tags: Spark's own hashes of each row; None to hash the key here.

        Raises:
            SchemaMismatchError: A key is a text that is not UTF-8.
        """
        columns = [batch.column(name) for name in self._key]
        for name, column in zip(self._key, columns, strict=True):
            _refuse_broken_key(name, column)
        hashed = hashes_of(tags)
        low, high = hash_sums(hashed[KEY_HASH] if KEY_HASH in hashed else key_hashes(columns))
        if ROW_HASH in hashed:
            row_low, row_high = hash_sums(hashed[ROW_HASH])
            self._row_low = (self._row_low or 0) + row_low
            self._row_high = (self._row_high or 0) + row_high
        self._rows += batch.num_rows
        self._low += low
        self._high += high
        self._follow(columns)
        self._file.add(self._key, columns)

    def take_over(self, earlier: Sequence[tuple[str, Coverage]]) -> None:
        """Also cover what earlier records of the task cover: their keys go into this file, too.

        Args:
            earlier: The key file of each, and what it covers; the oldest first.

        Raises:
            LedgerDamagedError: A key file is not as it was written.
            StoreUnavailableError: The store did not answer.
        """
        for start in range(0, len(earlier), _READ_AT_ONCE):
            some = earlier[start : start + _READ_AT_ONCE]
            with answers(some[0][0]):
                files = self._storage.get_many([uri for uri, _ in some])
            for (uri, coverage), data in zip(some, files, strict=True):
                if data is None:
                    raise LedgerDamagedError(uri=uri, reason="missing")
                for batch in read_key_table(uri, data, coverage.rows).to_batches():
                    self._file.add(batch.schema.names, batch.columns)
        parts = [coverage for _, coverage in earlier]
        spans = [part.span for part in parts]
        if self._rows:
            spans.append(self._span if self._grows else None)
            parts.append(self._so_far(0))
        whole = Coverage.sum(parts)
        self._rows, self._low, self._high = whole.rows, whole.low, whole.high
        self._row_low, self._row_high = whole.row_low, whole.row_high
        known = [span for span in spans if span is not None]
        self._grows = len(known) == len(spans) and all(a[1] < b[0] for a, b in pairwise(known))
        self._span = (known[0][0], known[-1][1]) if self._grows and known else None

    def finish(self) -> Coverage:
        """Make the keys durable."""
        return self._so_far(self._file.finish()) if self._rows else NOTHING

    def abandon(self) -> None:
        """Discard the keys."""
        self._file.abandon()

    def _so_far(self, keys_bytes: int) -> Coverage:
        return Coverage(
            rows=self._rows,
            low=self._low,
            high=self._high,
            row_low=self._row_low,
            row_high=self._row_high,
            keys_bytes=keys_bytes,
            span=self._span if self._grows else None,
        )

    def _follow(self, columns: Sequence[pa.Array]) -> None:
        """Track the span as long as the keys grow from row to row."""
        if not self._grows:
            return
        (first, *others) = columns
        if others or not pa.types.is_integer(first.type) or first.null_count or not len(first):
            self._grows = False
            return
        low, high = first[0].as_py(), first[-1].as_py()
        goes_on = self._span is None or low > self._span[1]
        # With a single row there is nothing to compare, and pyarrow returns NULL for an empty
        # array.
        self._grows = goes_on and pc.all(pc.greater(first[1:], first[:-1])).as_py() is not False
        if self._grows:
            self._span = (low if self._span is None else self._span[0], high)


def needs_hash_column(types: Sequence[pa.DataType]) -> bool:
    """Whether Spark must add the hash to each row.

    It has to if a type cannot be hashed here, and it hashes texts faster: one million of 36
    characters take 0.3 s here.
    """
    return not all(is_number(kind) for kind in types)
