"""Cut batches: input to the size that the transform is to see, output to what memory can hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from holdfast.model.limits import DEFAULT_LIMITS
from holdfast.model.widening import is_any_binary, is_any_string

Sizes = npt.NDArray[np.int64]

# A view is a length, and three words of what it shows or where that is.
_VIEW_WORDS = 4


def within_bytes(batch: pa.RecordBatch, bytes_max: int) -> pa.RecordBatch:
    """Return the batch, or so many of its first rows that they are not too large together."""
    while batch.num_rows > 1 and batch.nbytes > bytes_max:
        batch = batch.slice(0, batch.num_rows // 2)
    return batch


def pieces(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Yield the batch, or copies of so many of its rows that they are not too large together.

    Copies: a slice holds all that it was cut from, and its offsets may need more than 32 bits.

    Args:
        batch: Output of a transform, which may be of any size.
        bytes_max: What a copy may hold, once its values are written out; one row may hold more.
    """
    is_small = batch.get_total_buffer_size() <= bytes_max or batch.nbytes <= bytes_max
    if batch.num_rows < 2 or (is_small and not any(map(_is_encoded, batch.schema.types))):  # noqa: PLR2004
        yield batch
        return
    ends = np.cumsum(sum(_row_bytes(column) for column in batch.columns))
    if is_small and ends[-1] <= bytes_max:
        yield batch
        return
    start = done = 0
    while start < batch.num_rows:
        stop = max(start + 1, int(np.searchsorted(ends, done + bytes_max, side="right")))
        yield copied(batch.slice(start, stop - start))
        start, done = stop, int(ends[stop - 1])


def copied(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows in memory of their own."""
    return pa.concat_batches([rows, rows.slice(0, 0)])


def _is_encoded(kind: pa.DataType) -> bool:
    """Whether values take more room than they seem to once they are written out."""
    below = (kind.field(i).type for i in range(kind.num_fields))
    return bool(pt.is_dictionary(kind)) or any(map(_is_encoded, below))


def _row_bytes(array: pa.Array) -> Sizes:
    """Return how many bytes the value of each row has.

    `nbytes` of a slice counts all that views show, and the whole of a dictionary but each of its
    values only once.
    """
    kind, rows = array.type, len(array)
    sizes: Sizes
    if isinstance(array, pa.ExtensionArray):
        return _row_bytes(array.storage)
    if pt.is_struct(kind):
        return sum(map(_row_bytes, array.flatten()), np.zeros(rows, np.int64))
    if pt.is_map(kind) or pt.is_list(kind) or pt.is_large_list(kind):
        offsets = array.offsets.to_numpy()
        first, values = (
            offsets[0],
            (array.keys, array.items) if pt.is_map(kind) else (array.values,),
        )
        below = sum(_row_bytes(one.slice(first, offsets[-1] - first)) for one in values)
        sizes = np.diff(np.concatenate([[0], np.cumsum(below)])[offsets - first])
    elif pt.is_fixed_size_list(kind) and rows and kind.list_size:
        width = kind.list_size
        values = array.values.slice(array.offset * width, rows * width)
        sizes = _row_bytes(values).reshape(rows, width).sum(axis=1)
    elif pt.is_dictionary(kind):
        entries = np.concatenate([_row_bytes(array.dictionary), [0]])  # The last is that of NULL.
        sizes = entries[array.indices.cast(pa.int64()).fill_null(len(entries) - 1).to_numpy()]
    elif pt.is_binary_view(kind) or pt.is_string_view(kind):
        views = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, _VIEW_WORDS)
        lengths = views[array.offset : array.offset + rows, 0]
        sizes = np.where(array.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    elif is_any_string(kind) or is_any_binary(kind):
        sizes = pc.binary_length(array).fill_null(0).to_numpy()
    else:
        sizes = np.full(rows, array.nbytes // max(rows, 1))
    return sizes.astype(np.int64)


def resize(
    batches: Iterable[pa.RecordBatch],
    rows: int | None,
    bytes_max: int = DEFAULT_LIMITS.batch_bytes,
) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of at most `rows`.

    Only the last one is smaller, and those whose rows are so large that fewer fill the memory
    that a batch may have.

    Args:
        batches: What Spark hands over.
        rows: The size wanted; None leaves batches as they come.
        bytes_max: What a batch may hold, unless a single row is larger.
    """
    if rows is None:
        yield from (batch for batch in batches if batch.num_rows)
        return
    waiting: list[pa.RecordBatch] = []
    waiting_rows = waiting_bytes = 0
    for batch in batches:
        start = 0
        while batch.num_rows - start > 0:
            wanted = batch.slice(start, min(rows - waiting_rows, batch.num_rows - start))
            piece = within_bytes(wanted, bytes_max)
            if waiting and waiting_bytes + piece.nbytes > bytes_max:
                yield from _joined(waiting)
                waiting, waiting_rows, waiting_bytes = [], 0, 0
                continue
            start += piece.num_rows
            waiting.append(piece)
            waiting_rows += piece.num_rows
            waiting_bytes += piece.nbytes
            if waiting_rows == rows:
                yield from _joined(waiting)
                waiting, waiting_rows, waiting_bytes = [], 0, 0
    if waiting:
        yield from _joined(waiting)


def _joined(pieces: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the rows as one batch, or as several where one array cannot hold them."""
    if len(pieces) == 1:
        return pieces
    batches: list[pa.RecordBatch] = pa.Table.from_batches(pieces).combine_chunks().to_batches()
    return batches
