"""Cut a stream of batches to the size that the transform is to see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from holdfast.model.limits import DEFAULT_LIMITS


def within_bytes(batch: pa.RecordBatch, bytes_max: int) -> pa.RecordBatch:
    """Return the batch, or so many of its first rows that they are not too large together."""
    while batch.num_rows > 1 and batch.nbytes > bytes_max:
        batch = batch.slice(0, batch.num_rows // 2)
    return batch


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
