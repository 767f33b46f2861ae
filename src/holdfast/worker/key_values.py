"""Values of keys: compared, hashed, put in order, and the stretches of values that they make.

Keys are compared by value; where that is slow, their hashes are compared first. A hash is that of
`key_hashes`, so that equal keys have equal hashes in every process.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from holdfast.worker.coverage import is_text, key_hashes

# How many stretches of keys without a large gap are told apart in one file.
_STRETCHES_MAX = 256
# How many values are looked at together: their bytes are copied.
_BLOCK_ROWS = 1 << 16

Numbers = npt.NDArray[np.int64]
Places = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]


# ---- Keys in memory, to be found by the keys of other rows


class KeySet:
    """Keys without duplicates, held so that the keys of other rows are found among them."""

    def __init__(self, keys: Sequence[pa.Array]) -> None:
        """Prepare the search.

        Args:
            keys: The key columns, none of them with NULL; sorted, if there is one column.
        """
        self._columns = [comparable(column) for column in keys]
        self._is_number = len(keys) == 1 and pt.is_int64(self._columns[0].type)
        if self._is_number:
            self._sorted: npt.NDArray[Any] = numbers(self._columns[0])
        else:
            hashes = key_hashes(self._columns)
            self._order = np.argsort(hashes)
            self._sorted = hashes[self._order]

    def found(self, keys: Sequence[pa.Array]) -> Places:
        """Return the place of each row's key among these; -1 if it is not, or has a NULL."""
        columns = [comparable(column) for column in keys]
        found = np.full(len(columns[0]), -1, dtype=np.int64)
        if not len(self._sorted) or not len(found):
            return found
        rows = known_rows(columns)
        if self._is_number:
            values = numbers(columns[0])[rows]
            at = np.minimum(np.searchsorted(self._sorted, values), len(self._sorted) - 1)
            same = self._sorted[at] == values
            found[rows[same]] = at[same]
            return found
        hashes = key_hashes(columns)[rows]
        for rows_found, places in same_keys(
            self._sorted, hashes, lambda some, at: self._same(columns, rows[some], self._order[at])
        ):
            found[rows[rows_found]] = self._order[places]
        return found

    def _same(self, columns: Sequence[pa.Array], rows: Numbers, places: Numbers) -> Flags:
        return equal_keys(columns, rows, self._columns, places)


def known_rows(columns: Sequence[pa.Array]) -> Numbers:
    """Return the numbers of the rows that have a value in each column: NULL equals nothing."""
    known = np.ones(len(columns[0]), dtype=bool)
    for column in columns:
        if column.null_count:
            known &= column.is_valid().to_numpy(zero_copy_only=False)
    return np.flatnonzero(known)


def same_keys(
    known: Words, hashes: Words, is_same: Callable[[Numbers, Numbers], Flags]
) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield numbers of rows, each with the place of its key.

    Args:
        known: The hashes of the keys, in order.
        hashes: Those of the rows.
        is_same: Whether some rows have the keys at some places, which have the same hashes.
    """
    rows, at = np.arange(len(hashes)), np.searchsorted(known, hashes)
    while len(rows):  # As often as different keys share a hash.
        inside = at < len(known)
        rows, at = rows[inside], at[inside]
        alike = known[at] == hashes[rows]
        rows, at = rows[alike], at[alike]
        if not len(rows):
            return
        same = is_same(rows, at)
        yield rows[same], at[same]
        rows, at = rows[~same], at[~same] + 1


def equal_keys(
    theirs: Sequence[pa.Array], rows: Numbers, ours: Sequence[pa.Array], places: Numbers
) -> Flags:
    """Return whether each of some rows has the key at a place; all are `comparable`."""
    same = np.ones(len(rows), dtype=bool)
    for column, own in zip(theirs, ours, strict=True):
        equal = pc.equal(column.take(pa.array(rows)), own.take(pa.array(places)))
        same &= equal.to_numpy(zero_copy_only=False)
    return same


def comparable(column: pa.Array) -> pa.Array:
    """Return a key column as int64, text or bytes: equal if and only if the values are."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if pt.is_timestamp(kind) or pt.is_time64(kind):
        return column.view(pa.int64())
    if pt.is_date32(kind):
        return column.view(pa.int32()).cast(pa.int64())
    if pt.is_integer(kind) or pt.is_boolean(kind):
        return column.cast(pa.int64())
    if pt.is_decimal(kind):
        width = kind.bit_width // 8
        column = pa.Array.from_buffers(
            pa.binary(width), len(column), column.buffers(), offset=column.offset
        )
    return column if is_text(column.type) else column.cast(pa.binary())


def numbers(column: pa.Array) -> Numbers:
    """Return a column of int64, with any number in place of NULL."""
    filled = column.fill_null(0) if column.null_count else column
    return np.asarray(filled.to_numpy(zero_copy_only=False), dtype=np.int64)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column of a table as one array."""
    chunks = column.chunks
    return pa.concat_arrays(chunks) if chunks else pa.array([], column.type)


# ---- Keys in order, and which are there twice


def by_value(keys: pa.Table) -> pa.Table:
    """Return keys in the order of their values; of bytes, if they are no numbers."""
    columns = {str(n): comparable(one_array(c)) for n, c in enumerate(keys.columns)}
    order = pa.table(columns)
    if pt.is_decimal(keys.schema.field(0).type):  # Its bytes are not in the order of its values.
        order = order.set_column(0, "0", keys.column(0))
    return keys.take(pc.sort_indices(order, [(name, "ascending") for name in columns]))


def doubles(ordered: pa.Table) -> pa.Table:
    """Return the keys that are there more than once, once each; the keys are sorted."""
    rows = ordered.num_rows
    if rows < 2:  # noqa: PLR2004
        return ordered.slice(0, 0)
    same = np.ones(rows - 1, dtype=bool)
    for column in ordered.columns:
        values = comparable(one_array(column))
        same &= pc.equal(values.slice(1), values.slice(0, rows - 1)).to_numpy(zero_copy_only=False)
    # Of a key that is there three times, only the first pair.
    firsts = same & ~np.concatenate(([False], same[:-1]))
    return ordered.take(pa.array(np.flatnonzero(firsts)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arranged:
    """Keys in the order of their hashes; those that share one, in the order of their bytes."""

    order: Numbers
    hashes: Words
    # Whether a key is the same as the one before it.
    is_again: Flags

    @property
    def is_second(self) -> Flags:
        """Whether a key is there for the second time."""
        return self.is_again & ~self._follows_again

    @property
    def few(self) -> Numbers:
        """The order without what is there a third time: two show that a key is doubled."""
        return self.order[~(self.is_again & self._follows_again)]

    @property
    def few_hashes(self) -> Words:
        """The hashes of these."""
        return self.hashes[~(self.is_again & self._follows_again)]

    @property
    def _follows_again(self) -> Flags:
        return np.concatenate(([False], self.is_again[:-1]))[: len(self.is_again)]


def by_hash(columns: Sequence[pa.Array]) -> Arranged:
    """Return the order of keys by their hashes.

    Args:
        columns: The key columns, as `comparable` returns them, without NULL.
    """
    hashes = key_hashes(columns)
    order = np.argsort(hashes)
    hashes = hashes[order]
    is_again = np.zeros(len(order), dtype=bool)
    is_again[1:] = hashes[1:] == hashes[:-1]
    shared = np.flatnonzero(is_again | np.append(is_again[1:], [False])[: len(is_again)])
    if not len(shared):
        return Arranged(order=order, hashes=hashes, is_again=is_again)
    some = order[shared]
    table = {str(n): column.take(pa.array(some)) for n, column in enumerate(columns)}
    by = pa.table({"hash": pa.array(hashes[shared]), **table})
    inner = pc.sort_indices(by, [(name, "ascending") for name in by.column_names]).to_numpy()
    order[shared] = some[inner]  # Those with the same hash stay among themselves.
    later = shared[is_again[shared]]
    is_again[later] = equal_keys(columns, order[later], columns, order[later - 1])
    return Arranged(order=order, hashes=hashes, is_again=is_again)


# ---- Stretches: between which values there are keys


def stretches_of(values: pa.Array) -> str:
    """Return the first and last value of stretches of sorted values, cut at the largest gaps."""
    cuts = _cuts(places_of(values), _STRETCHES_MAX)
    firsts = np.append([0], cuts + 1)[: len(values)]
    lasts = np.append(cuts, [len(values) - 1])[: len(values)]
    return as_text(*(values.take(pa.array(ends.astype(np.int64))) for ends in (firsts, lasts)))


def rough_stretches(values: pa.Array) -> str:
    """Return the same of values in any order, without putting all of them in order by value."""
    if not len(values):
        return as_text(values, values)
    places = places_of(values)
    order = np.argsort(places)
    places = places[order]
    gaps = np.flatnonzero(np.diff(places))
    widest = np.argsort(np.diff(places)[gaps])[max(0, len(gaps) - _STRETCHES_MAX + 1) :]
    cuts = np.sort(gaps[widest])
    firsts, lasts = np.append([0], cuts + 1), np.append(cuts, [len(values) - 1])
    # Values at the same place differ in what places leave out.
    stops = np.searchsorted(places, places[firsts], "right")
    starts = np.searchsorted(places, places[lasts], "left")
    lows = [_ends(values, order[a:b])[0] for a, b in zip(firsts, stops, strict=True)]
    highs = [_ends(values, order[a : b + 1])[1] for a, b in zip(starts, lasts, strict=True)]
    chosen = [values.take(pa.array(ends, pa.int64())) for ends in (lows, highs)]
    return as_text(*chosen)


def _ends(values: pa.Array, rows: Numbers) -> tuple[int, int]:
    """Return which of some rows have the least and the greatest value."""
    if len(rows) == 1:
        return int(rows[0]), int(rows[0])
    some = _ordered(values.take(pa.array(rows)))
    ends = pc.min_max(some)
    return tuple(int(rows[pc.index(some, ends[name]).as_py()]) for name in ("min", "max"))  # type: ignore[return-value]


def united_stretches(texts: Sequence[str]) -> str:
    """Return stretches that hold all values of others, as few as one file has.

    Raises:
        ArrowInvalid: A text is damaged.
    """
    batches = [stretches_in(text) for text in texts]
    firsts = pa.concat_arrays([batch.column(0) for batch in batches])
    lasts = pa.concat_arrays([batch.column(1) for batch in batches])
    if not len(firsts):
        return as_text(firsts, lasts)
    both = _ordered(pa.concat_arrays([firsts, lasts]))
    ranks = pc.rank(both, tiebreaker="dense").to_numpy().astype(np.int64)
    order = np.argsort(ranks[: len(firsts)])
    starts, stops = ranks[: len(firsts)][order], ranks[len(firsts) :][order]
    reach = np.maximum.accumulate(stops)
    holder = np.zeros(ranks.max() + 1, dtype=np.int64)
    holder[ranks[len(firsts) :]] = np.arange(len(lasts))
    cuts = np.flatnonzero(starts[1:] > reach[:-1])
    heads = order[np.append([0], cuts + 1)]
    tails = holder[reach[np.append(cuts, [len(order) - 1])]]
    lows, highs = firsts.take(pa.array(heads)), lasts.take(pa.array(tails))
    ends = pa.concat_arrays([lows, highs]).take(
        pa.array(np.arange(2 * len(lows)).reshape(2, -1).T.ravel())
    )
    gaps = np.diff(places_of(ends))[1::2]
    kept = np.sort(np.argsort(gaps)[max(0, len(gaps) - _STRETCHES_MAX + 1) :])
    chosen = np.append([0], kept + 1), np.append(kept, [len(lows) - 1])
    return as_text(lows.take(pa.array(chosen[0])), highs.take(pa.array(chosen[1])))


def _cuts(places: npt.NDArray[np.float64], stretches: int) -> Numbers:
    """Return after which of sorted places the widest gaps are."""
    gaps = np.diff(places)
    count = min(stretches, len(places)) - 1
    return np.sort(np.argsort(gaps)[len(gaps) - max(0, count) :])


def as_text(firsts: pa.Array, lasts: pa.Array) -> str:
    """Return stretches as text."""
    stream = pa.BufferOutputStream()
    found = pa.record_batch([firsts, lasts], ["first", "last"])
    with pa.ipc.new_stream(stream, found.schema) as writer:
        writer.write_batch(found)
    return base64.b64encode(stream.getvalue()).decode()


def _ordered(values: pa.Array) -> pa.Array:
    """Return values whose order is that of values: Arrow has none for some types."""
    return values if pt.is_decimal(values.type) else comparable(values)


def places_of(values: pa.Array) -> npt.NDArray[np.float64]:
    """Return numbers in the order of values, roughly as far apart as these."""
    if not len(values):
        return np.array([])
    if pt.is_decimal(values.type):
        return np.asarray(values.cast(pa.float64()), dtype=np.float64)
    keys = comparable(values)
    if pt.is_int64(keys.type):
        return numbers(keys).astype(np.float64)
    data = keys.cast(pa.large_binary())
    ends = pc.min_max(data)
    pairs = zip(ends["min"].as_py(), ends["max"].as_py(), strict=False)
    alike = next((at for at, pair in enumerate(pairs) if pair[0] != pair[1]), 0)
    return _heads(data, alike).astype(np.float64)


def _heads(data: pa.Array, skipped: int) -> Words:
    """Return eight bytes of each value as a number, after those that are skipped."""
    parts = (data.slice(at, _BLOCK_ROWS) for at in range(0, len(data), _BLOCK_ROWS))
    return np.concatenate([_heads_of_block(part, skipped) for part in parts])


def _heads_of_block(data: pa.Array, skipped: int) -> Words:
    _, ends, held = data.buffers()
    bounds = np.frombuffer(ends, np.int64, count=len(data) + 1, offset=data.offset * 8)
    source = np.frombuffer(held, np.uint8) if held is not None else np.zeros(0, np.uint8)
    padded = np.concatenate((source[bounds[0] : bounds[-1]], np.zeros(skipped + 8, np.uint8)))
    at = bounds[:-1] - bounds[0] + skipped
    words = np.lib.stride_tricks.sliding_window_view(padded, 8)[at].view(">u8").ravel()
    missing = 8 - np.clip(np.diff(bounds) - skipped, 0, 8)
    masks = np.array([(1 << 64) - (1 << (8 * n)) for n in range(8)] + [0], dtype=np.uint64)
    heads: Words = words.astype(np.uint64) & masks[missing]
    return heads


def stretches_in(text: str) -> pa.RecordBatch:
    """Return the stretches of a file.

    Raises:
        ArrowInvalid: The text is damaged.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise pa.ArrowInvalid(str(error)) from error
    with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
        batch = reader.read_next_batch()
    batch.validate(full=True)
    return batch
