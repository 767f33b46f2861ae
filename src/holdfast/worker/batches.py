"""Cut a stream of batches to the size that the transform is to see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa


def resize(batches: Iterable[pa.RecordBatch], rows: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of at most `rows`.

    Only the last one is smaller, and those around two gigabytes of text or bytes in one column,
    which no Arrow array can hold.

    Args:
        batches: What Spark hands over.
        rows: The size wanted; None leaves batches as they come.
    """
    if rows is None:
        yield from (batch for batch in batches if batch.num_rows)
        return
    waiting: list[pa.RecordBatch] = []
    waiting_rows = 0
    for batch in batches:
        start = 0
        while batch.num_rows - start > 0:
            piece = batch.slice(start, min(rows - waiting_rows, batch.num_rows - start))
            start += piece.num_rows
            waiting.append(piece)
            waiting_rows += piece.num_rows
            if waiting_rows == rows:
                yield from _joined(waiting)
                waiting, waiting_rows = [], 0
    if waiting:
        yield from _joined(waiting)


def _joined(pieces: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the rows as one batch, or as several where one array cannot hold them."""
    if len(pieces) == 1:
        return pieces
    batches: list[pa.RecordBatch] = pa.Table.from_batches(pieces).combine_chunks().to_batches()
    return batches
