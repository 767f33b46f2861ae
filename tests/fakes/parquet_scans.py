"""Parquet scans without Spark: pin files of a folder, and read them as a task does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.model.coverage import FileSlice, PinnedFile, Pins, Ranges, Span
from holdfast.sources.base import TAG_COLUMN, PinnedScan
from holdfast.sources.parquet import PinnedParquetScan, scan_parquet
from holdfast.storage.objects import ObjectStorage
from holdfast.worker.coverage import spans_of

STORAGE = ObjectStorage({})


def write_parquet(path: Path, columns: Any, **options: Any) -> str:  # noqa: ANN401 - pyarrow's own.
    """Write a file of columns, or a table, and return its URI."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), path, **options)
    return f"file://{path}"


def on_disk(paths: str | Path | Sequence[str], **options: Any) -> PinnedParquetScan:  # noqa: ANN401
    """Return a scan of local files."""
    return scan_parquet(str(paths) if isinstance(paths, Path) else paths, **options).on(STORAGE)


@dataclass
class Read:
    """What a reader gave."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    # The span of each row's tag.
    tags: list[Span] = field(default_factory=list)
    passed_over: list[Span] = field(default_factory=list)
    schema: pa.Schema | None = None

    @property
    def accounted(self) -> list[int]:
        """The number of each row that a tag or the passed-over rows name."""
        spans = [*self.tags, *self.passed_over]
        return sorted(number for start, stop in spans for number in range(start, stop))


def read(scan: PinnedScan, pins: Pins | None = None, rows: Ranges | None = None) -> Read:
    """Read some rows, or all, in one work item."""
    pins = pins or scan.pin()
    items = pins.items(pins.whole if rows is None else rows, slots=1, item_bytes=1 << 40)
    return read_slices(scan, pins, items[0] if items else ())


def read_slices(scan: PinnedScan, pins: Pins, slices: Sequence[FileSlice]) -> Read:
    """Read the rows of slices."""
    found = Read()
    for batch in scan.reader(pins).read(slices, found.passed_over):
        index = batch.schema.get_field_index(TAG_COLUMN)
        for row in range(batch.num_rows):
            found.tags += spans_of(batch.column(index).slice(row, 1))
        without = batch.remove_column(index)
        found.schema = without.schema
        found.rows += without.to_pylist()
    return found


def whole_file(file: PinnedFile) -> FileSlice:
    """Return all rows of a file that is the whole input."""
    return FileSlice(file=file, base=0, start=0, stop=file.rows)
