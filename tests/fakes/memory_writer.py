"""A task writer that keeps its rows, and can be told to fail."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.model.staged import StagedFile, StagedGroup
from holdfast.sinks.conform import Conformer


@dataclass
class MemoryWriterSpec:
    """Opens writers over one schema and remembers them."""

    schema: pa.Schema
    # Raised by the n-th write or by finish, as a store that fails would.
    write_error: Exception | None = None
    finish_error: Exception | None = None
    opened: list[MemoryWriter] = field(default_factory=list)

    def open(self, task_name: str) -> MemoryWriter:
        """Start a writer."""
        writer = MemoryWriter(self, task_name)
        self.opened.append(writer)
        return writer


class MemoryWriter:
    """Keeps conformed batches; finishing turns them into one staged group of one file."""

    def __init__(self, spec: MemoryWriterSpec, task_name: str) -> None:
        """Start empty."""
        self.task_name = task_name
        self.batches: list[pa.RecordBatch] = []
        self.finished = False
        self.abandoned = False
        self._spec = spec

    def write(self, batch: pa.RecordBatch) -> None:
        """Take output rows, fitted to the schema."""
        if self._spec.write_error is not None:
            raise self._spec.write_error
        self.batches.append(Conformer("t", batch.schema, self._spec.schema)(batch))

    def finish(self) -> list[StagedGroup]:
        """Return what is staged."""
        if self._spec.finish_error is not None:
            raise self._spec.finish_error
        self.finished = True
        rows = sum(batch.num_rows for batch in self.batches)
        return [staged_group(self.task_name, rows=rows)]

    def abandon(self) -> None:
        """Give up what is not finished."""
        self.abandoned = True


def staged_group(name: str, *, rows: int = 10) -> StagedGroup:
    """Return a group of one file, both named after `name`."""
    file = StagedFile(path=f"mem://data/{name}.parquet", size_bytes=100 * rows, rows=rows)
    return StagedGroup(
        path=f"mem://metadata/{name}.avro", size_bytes=50, files=(file,), detail={"spec_id": 0}
    )
