"""Read whole objects on an executor: the next ones are fetched while the current are at work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from holdfast.model.pins import FileSlice, PinnedFile
from holdfast.model.ranges import Span
from holdfast.sources.as_pinned import as_pinned
from holdfast.sources.base import TAG_COLUMN
from holdfast.storage.long_read import Answer, long_read
from holdfast.storage.port import Storage
from holdfast.storage.read_ahead import read_ahead

# What one batch holds: as many rows, or the object with which it reaches so many bytes.
_BATCH_ROWS = 64
_BATCH_BYTES = 16 << 20


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
        rows: list[tuple[FileSlice, bytes | memoryview]] = []
        size = 0
        for one, content in self._contents(slices):
            rows.append((one, content))
            size += len(content)
            if size >= _BATCH_BYTES or len(rows) == _BATCH_ROWS:
                yield self._batch(rows)
                rows, size = [], 0
        if rows:
            yield self._batch(rows)

    def _contents(
        self, slices: Sequence[FileSlice]
    ) -> Iterator[tuple[FileSlice, bytes | memoryview]]:
        """Yield each object's bytes; a large one is fetched when its turn comes.

        Raises:
            InputChangedError: An object is not the one that was pinned.
        """
        asked = read_ahead(
            slices,
            size_of=lambda one: one.file.size_bytes,
            ask=lambda one: self._ask(one.file),
            at_least=0,
        )
        for one, answer in asked:
            with as_pinned(one.file):
                content = answer()
            yield one, content

    def _ask(self, file: PinnedFile) -> Answer:
        """Begin to fetch an object."""
        fetch = partial(self.storage.get_range, file.uri, tag=file.tag)
        return long_read(fetch, 0, file.size_bytes)

    def _batch(self, rows: Sequence[tuple[FileSlice, bytes | memoryview]]) -> pa.RecordBatch:
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
