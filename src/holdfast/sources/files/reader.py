"""Read whole objects on an executor: the next ones are fetched while the current are at work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import pyarrow as pa

from holdfast.model.pins import FileSlice, PinnedFile
from holdfast.model.ranges import Span
from holdfast.sources.as_pinned import as_pinned
from holdfast.sources.base import TAG_COLUMN
from holdfast.storage.port import Storage
from holdfast.storage.read_ahead import read_ahead
from holdfast.storage.runtime import io_runtime

# What one batch holds: as many rows, or the object with which it reaches so many bytes.
_BATCH_ROWS = 64
_BATCH_BYTES = 16 << 20
# One request must end before the client gives it up.
_PART_BYTES = 16 << 20

_Parts = Sequence["Future[bytes | memoryview]"]


@dataclass(frozen=True, kw_only=True)
class FilesReader:
    """Reads objects as rows. Pickled with a task."""

    storage: Storage
    schema: pa.Schema

    def read(
        self,
        slices: Sequence[FileSlice],
        passed_over: list[Span],  # noqa: ARG002 - no row is left out.
    ) -> Iterator[pa.RecordBatch]:
        """Yield the objects of some slices, tagged with their numbers.

        Raises:
            InputChangedError: An object is not the one that was pinned.
        """
        rows: list[tuple[FileSlice, bytes]] = []
        size = 0
        for one, content in self._contents(slices):
            rows.append((one, content))
            size += len(content)
            if size >= _BATCH_BYTES or len(rows) == _BATCH_ROWS:
                yield self._batch(rows)
                rows, size = [], 0
        if rows:
            yield self._batch(rows)

    def _contents(self, slices: Sequence[FileSlice]) -> Iterator[tuple[FileSlice, bytes]]:
        """Yield each object's bytes; a large one is fetched when its turn comes."""
        asked = read_ahead(
            slices,
            size_of=lambda one: one.file.size_bytes,
            ask=lambda one: self._ask(one.file),
            at_least=0,
        )
        for one, parts in asked:
            yield one, _whole(one.file, parts)

    def _ask(self, file: PinnedFile) -> _Parts:
        """Begin to fetch an object."""

        def ask(start: int) -> Future[bytes | memoryview]:
            stop = min(start + _PART_BYTES, file.size_bytes)
            return io_runtime().read(
                lambda: self.storage.get_range(file.uri, start, stop, tag=file.tag), stop - start
            )

        return [ask(start) for start in range(0, file.size_bytes, _PART_BYTES)]

    def _batch(self, rows: Sequence[tuple[FileSlice, bytes]]) -> pa.RecordBatch:
        files = [one.file for one, _ in rows]
        columns = {
            "path": [file.uri for file in files],
            "size": [file.size_bytes for file in files],
            "modified": [file.values["modified"] for file in files],
            "bytes": [content for _, content in rows],
        }
        batch = pa.RecordBatch.from_pydict(columns, schema=self.schema)
        numbers = pa.array([one.base for one, _ in rows], pa.int64())
        return batch.append_column(TAG_COLUMN, numbers)


def _whole(file: PinnedFile, parts: _Parts) -> bytes:
    """Return an object's bytes.

    Raises:
        InputChangedError: It is not the one that was pinned.
    """
    with as_pinned(file):
        return b"".join(part.result() for part in parts)
