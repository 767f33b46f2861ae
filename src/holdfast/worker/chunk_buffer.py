"""The chunk buffer: output rows that are in no closed table file, kept for the next checkpoint.

Rows of a batch that is still being transformed are held apart, because a record covers whole
batches only. What is kept in memory is bounded. Beyond the bound it depends on the rate: rows
that come slowly are streamed into the chunk, rows that come fast are let go, because by the next
checkpoint they make a table file of a good size, and a cut serves better.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from holdfast.ledger.chunks import ChunkFile
from holdfast.model.work import Chunk
from holdfast.storage.port import Storage

_KEPT_BYTES_MAX = 64 * 1024 * 1024
# Output of this size in one checkpoint, before encoding, is worth a table file of its own.
_WORTH_A_CUT_BYTES = 128 * 1024 * 1024


class ChunkBuffer:
    """The output since the last record."""

    def __init__(self, storage: Storage, every_s: float | None, clock: Callable[[], float]) -> None:
        """Start empty; without checkpoints nothing is ever kept."""
        self._storage = storage
        self._every_s = every_s
        self._clock = clock
        self._uri = ""
        self._begun = 0.0
        self._file: ChunkFile | None = None
        self._held: list[pa.RecordBatch] = []
        self._kept: list[pa.RecordBatch] = []
        self._held_bytes = self._kept_bytes = 0
        self.let_go = every_s is None

    def begin(self, uri: str) -> None:
        """Forget everything, and start the next chunk."""
        if self._file is not None:
            self._file.abandon()
        self._file = None
        self._uri = uri
        self._begun = self._clock()
        self._held, self._kept = [], []
        self._held_bytes = self._kept_bytes = 0
        self.let_go = self._every_s is None

    def hold(self, rows: pa.RecordBatch) -> None:
        """Take output of the batch that is being transformed."""
        if self.let_go or not rows.num_rows:
            return
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes > _KEPT_BYTES_MAX:
            self._let_go()

    def keep(self) -> None:
        """The batch is done: what is held belongs to the chunk."""
        if self.let_go:
            return
        self._kept += self._held
        self._kept_bytes += self._held_bytes
        self._held, self._held_bytes = [], 0
        if self._kept_bytes <= _KEPT_BYTES_MAX and self._file is None:
            return
        if self._file is None and self._is_fast():
            self._let_go()
        else:
            self._stream()

    def drop_held(self) -> None:
        """The batch failed: what is held belongs to nothing."""
        self._held, self._held_bytes = [], 0

    def write(self) -> Chunk | None:
        """Make the chunk durable; None if there are no rows in it."""
        if self._file is None and not self._kept:
            return None
        self._stream()
        file, self._file = self._file, None
        return file.finish() if file is not None else None

    def _is_fast(self) -> bool:
        seconds = max(self._clock() - self._begun, 1e-3)
        return self._kept_bytes / seconds * (self._every_s or 0.0) >= _WORTH_A_CUT_BYTES

    def _stream(self) -> None:
        if self._file is None:
            self._file = ChunkFile(self._storage, self._uri, self._kept[0].schema)
        self._file.write(self._kept)
        self._kept, self._kept_bytes = [], 0

    def _let_go(self) -> None:
        self.begin(self._uri)
        self.let_go = True
