"""Pace: how much the transform gets at a time: no batch outlasts a checkpoint or fills memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from holdfast.model.limits import DEFAULT_LIMITS
from holdfast.worker.batches import within_bytes

# Small, because the first batch's cost is unknown: at one second a row it must end soon. Ten
# quick batches later the transform gets whatever Spark hands over at once.
_FIRST_ROWS = 8
_ROWS_MAX = 1 << 20
# A batch that takes longer than this share of `checkpoint_every` is halved the next time.
_SLOW_SHARE = 1 / 4
_QUICK_SHARE = 1 / 16


class Pace:
    """Doubles while batches are quick, halves while they are slow."""

    def __init__(
        self, checkpoint_every_s: float | None, batch_bytes: int = DEFAULT_LIMITS.batch_bytes
    ) -> None:
        """Start small; without checkpoints batches are left as they come.

        Args:
            checkpoint_every_s: How much work may be lost.
            batch_bytes: What a batch may hold, however quick it is.
        """
        self._every_s = checkpoint_every_s
        self.batch_bytes = batch_bytes
        self.rows = _ROWS_MAX if checkpoint_every_s is None else _FIRST_ROWS

    def took(self, seconds: float) -> None:
        """Learn from one batch."""
        if self._every_s is None:
            return
        if seconds > self._every_s * _SLOW_SHARE:
            self.rows = max(1, self.rows // 2)
        elif seconds < self._every_s * _QUICK_SHARE:
            self.rows = min(_ROWS_MAX, self.rows * 2)


def paced(batches: Iterable[pa.RecordBatch], pace: Pace) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in pieces: as many as the pace says then, and memory can hold."""
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            wanted = batch.slice(start, min(pace.rows, batch.num_rows - start))
            piece = within_bytes(wanted, pace.batch_bytes)
            start += piece.num_rows
            yield piece
