"""A task writer that keeps its rows, and fails on request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.model.limits import DEFAULT_LIMITS, Limits
from holdfast.model.work import StagedFile, StagedGroup
from holdfast.sinks.base import MayLack
from holdfast.sinks.conform import Conformer

_ROW_BYTES = 100


def size_of(rows: pa.Table) -> int:
    """Return the size of a file of these rows."""
    return _ROW_BYTES * int(rows.num_rows)


class TimedFiles(dict[str, pa.Table]):
    """Files by path, with the time each was written."""

    def __init__(self) -> None:
        """Start empty, with a clock that stands still."""
        super().__init__()
        self.now: Callable[[], float] = lambda: 0.0
        self.written_at: dict[str, float] = {}

    def __setitem__(self, path: str, rows: pa.Table) -> None:
        """Keep a file."""
        super().__setitem__(path, rows)
        self.written_at[path] = self.now()


@dataclass
class MemoryWriterSpec:
    """Opens writers over one schema and remembers them."""

    schema: pa.Schema
    # Closed files by path: the table's storage.
    files: dict[str, pa.Table] = field(default_factory=dict)
    # How many rows fill a task's files; None: they are never full.
    file_rows: int | None = None
    # Raised by the next writes or cuts, as a store that fails would.
    write_error: Exception | None = None
    cut_error: Exception | None = None
    opened: list[MemoryWriter] = field(default_factory=list)
    may_lack: MayLack = frozenset()
    delete_column: str = ""
    table: str = "t"

    def open(self, task_name: str, limits: Limits = DEFAULT_LIMITS) -> MemoryWriter:  # noqa: ARG002
        """Start a writer."""
        writer = MemoryWriter(self, task_name)
        self.opened.append(writer)
        return writer


class MemoryWriter:
    """Keeps fitted rows; a cut turns them into one staged group of one file."""

    def __init__(self, spec: MemoryWriterSpec, task_name: str) -> None:
        """Start empty."""
        self.task_name = task_name
        # All rows that were ever taken, and those since the last cut.
        self.batches: list[pa.RecordBatch] = []
        self.open_batches: list[pa.RecordBatch] = []
        self.cuts = 0
        self.abandoned = False
        self._spec = spec

    @property
    def stored_schema(self) -> pa.Schema:
        """The schema of rows as `fit` returns them."""
        return self._spec.schema

    @property
    def fullness(self) -> float:
        """How much of the file is full."""
        rows = sum(batch.num_rows for batch in self.open_batches)
        return rows / self._spec.file_rows if self._spec.file_rows else 0.0

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows in the table's schema."""
        spec = self._spec
        return Conformer(spec.table, batch.schema, spec.schema, may_lack=spec.may_lack)(batch)

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows that are fitted already."""
        if self._spec.write_error is not None:
            raise self._spec.write_error
        assert rows.schema.equals(self._spec.schema)
        self.batches.append(rows)
        self.open_batches.append(rows)

    def cut(self) -> list[StagedGroup]:
        """Close the file, if there are rows for one, and return what is staged."""
        if self._spec.cut_error is not None:
            raise self._spec.cut_error
        rows = pa.Table.from_batches(self.open_batches, self._spec.schema)
        self.open_batches = []
        return self._staged(rows)

    def _staged(self, rows: pa.Table) -> list[StagedGroup]:
        if not rows.num_rows:
            return []
        group = staged_group(f"{self.task_name}-{self.cuts}", rows=rows.num_rows)
        self._spec.files[group.files[0].path] = rows
        self.cuts += 1
        return [group]

    def abandon(self) -> None:
        """Give up what is not closed."""
        self.open_batches = []
        self.abandoned = True


def staged_group(name: str, *, rows: int = 10) -> StagedGroup:
    """Return a group of one file, both named after `name`."""
    file = StagedFile(path=f"mem://data/{name}.parquet", size_bytes=_ROW_BYTES * rows, rows=rows)
    return StagedGroup(
        path=f"mem://metadata/{name}.avro", size_bytes=50, files=(file,), detail={"spec_id": 0}
    )
