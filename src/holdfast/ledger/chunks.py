"""Chunks: finished output rows as one Arrow IPC object, until they are in a table file."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from holdfast.failpoints import failpoint
from holdfast.ledger.answers import read_whole
from holdfast.ledger.decoded import arrow_batches
from holdfast.model.work import Chunk
from holdfast.storage.arrow_file import DigestingArrowFile
from holdfast.storage.port import Storage


class ChunkFile:
    """One chunk on its way; written piece by piece, so its size costs no memory."""

    def __init__(self, storage: Storage, uri: str, schema: pa.Schema) -> None:
        """Open the upload; nothing is visible before `finish`."""
        self._file = DigestingArrowFile(storage.open_sink(uri))
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_stream(
            pa.PythonFile(self._file, mode="w"), schema, options=options
        )
        self._rows = 0

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Pass rows on."""
        for batch in batches:
            self._writer.write_batch(batch)
            self._rows += batch.num_rows

    def finish(self) -> Chunk:
        """Make the chunk visible, and say what a record needs to name it."""
        self._writer.close()
        failpoint("before-chunk")
        self._file.finish()
        failpoint("after-chunk")
        return Chunk(rows=self._rows, size_bytes=self._file.size_bytes, digest=self._file.digest)

    def abandon(self) -> None:
        """Give the chunk up."""
        self._file.discard()
        self._writer.close()


def read_chunk(storage: Storage, uri: str, chunk: Chunk) -> list[pa.RecordBatch]:
    """Return a chunk's rows as they were written.

    Raises:
        LedgerDamagedError: The chunk is gone, or not as it was written.
        StoreUnavailableError: The store did not answer.
    """
    return decode_chunk(uri, chunk, read_whole(storage, uri, chunk.digest))


def decode_chunk(uri: str, chunk: Chunk, data: bytes) -> list[pa.RecordBatch]:
    """Return a chunk's rows, from the bytes of its object.

    Raises:
        LedgerDamagedError: They are not as many as were written, or no rows at all.
    """
    return arrow_batches(uri, data, chunk.rows)
