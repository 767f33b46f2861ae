"""Quarantine: input rows for which the transform gave no output, on their way to the ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from holdfast.failpoints import failpoint
from holdfast.ledger.row_files import ChunkFile
from holdfast.model.arrow_types import is_any_string
from holdfast.model.coverage import Coverage
from holdfast.model.work import Chunk
from holdfast.sinks.conform import null_array, refuse_broken_text
from holdfast.storage.port import Storage
from holdfast.worker.batch_steps import FailedRow
from holdfast.worker.coverage import CoveredKeys, CoveredRanges, spans_of
from holdfast.worker.reports import error_text

Locate = Callable[[int], tuple[str, int]]

# The most bytes that wait in memory for the next checkpoint.
_HELD_BYTES_MAX = 16 << 20


class Quarantine:
    """Rows that have failed since the last checkpoint."""

    def __init__(self, key: Sequence[str], epoch: int, locate: Locate | None = None) -> None:
        """Start empty.

        Args:
            key: The key columns of the input; none for a scan.
            epoch: The number of the claim under which the task works.
            locate: For a scan: the file that holds a row, and the row's number there.
        """
        self._locate = locate
        self._key = tuple(key)
        self._epoch = epoch
        self._held: list[FailedRow] = []
        self._held_bytes = 0
        # Rows since the task began.
        self.rows = 0

    def __len__(self) -> int:
        """Return how many rows are waiting to be written."""
        return len(self._held)

    @property
    def is_full(self) -> bool:
        """Whether so much is waiting that it should be written now."""
        return self._held_bytes >= _HELD_BYTES_MAX

    def add(self, failed: Sequence[FailedRow]) -> None:
        """Add rows that have failed."""
        self._held += failed
        self._held_bytes += sum(failure.row.nbytes for failure in failed)
        self.rows += len(failed)

    def write(
        self, storage: Storage, uri: str, keys: CoveredKeys | CoveredRanges
    ) -> tuple[Chunk, Coverage]:
        """Make the waiting rows durable, and return what a record needs to name them."""
        held, self._held, self._held_bytes = self._held, [], 0
        rows = pa.concat_batches([failure.row for failure in held])
        tags = [failure.tags for failure in held if failure.tags is not None]
        keys.add(rows, pa.concat_arrays(tags) if tags else None)
        batch = self._described(_readable(rows), held)
        failpoint("before-failed-rows")
        file = ChunkFile(storage, uri, batch.schema)
        file.write([batch])
        chunk = file.finish()
        failpoint("after-failed-rows")
        return chunk, keys.finish()

    def _described(self, rows: pa.RecordBatch, held: Sequence[FailedRow]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict(
            {
                "key": self._keys(rows, held),
                "input": rows.to_struct_array(),
                "error": pa.array([error_text(failure.error) for failure in held], pa.string()),
                "attempts": pa.array([failure.attempts for failure in held], pa.int32()),
                "epoch": pa.array([self._epoch] * len(held), pa.int64()),
            }
        )

    def _keys(self, rows: pa.RecordBatch, held: Sequence[FailedRow]) -> pa.StructArray:
        """Return what a person finds each row by: its key, or its position in a file."""
        if self._locate is None:
            return rows.select(list(self._key)).to_struct_array()
        places = []
        for failure in held:
            tags = failure.tags if failure.tags is not None else pa.array([], pa.int64())
            file, row = self._locate(spans_of(tags)[0][0])
            places.append({"file": file, "row": row})
        kind = pa.struct([("file", pa.string()), ("row", pa.int64())])
        return pa.array(places, kind)


def _readable(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows whose texts are UTF-8: a record with another could not be read back."""
    return pa.RecordBatch.from_arrays([_repaired(column) for column in rows], schema=rows.schema)


def _repaired(column: pa.Array) -> pa.Array:
    """Return a column in which only broken texts are changed, each in its own row."""
    try:
        refuse_broken_text(column)
    except ValueError:
        if len(column) > 1:
            halves = column.slice(0, len(column) // 2), column.slice(len(column) // 2)
            return pa.concat_arrays([_repaired(half) for half in halves])
        if not is_any_string(column.type):
            return null_array(len(column), column.type)
        (stored,) = column.cast(pa.large_binary()).to_pylist()
        return pa.array([stored.decode(errors="replace")], column.type)
    return column
