"""The writer keeps its own rows in memory, not the batches that they were cut from."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField, StringType

from tests.fakes.iceberg_tables import entries, rows_of, writer_spec

ROW_GROUP_BYTES = 4 * 1024 * 1024
ROWS, BATCHES = 1_000, 60
SCHEMA = Schema(NestedField(1, "part", StringType()), NestedField(2, "text", StringType()))
BY_PART = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "part"))


def batch(number: int) -> pa.RecordBatch:
    """Return a megabyte of rows, all but the last one in the same partition."""
    return pa.RecordBatch.from_pydict(
        {
            "part": ["often"] * (ROWS - 1) + ["rare"],
            "text": [f"{number:>6}-{row:>6}".ljust(1_000, "x") for row in range(ROWS)],
        }
    )


def whole(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Pass the batch on."""
    return rows


def last_row(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Keep one row of the batch as a view of the whole, as a filter does."""
    return rows.slice(ROWS - 1)


@pytest.mark.slow_unit
@pytest.mark.parametrize(
    ("spec", "output", "rows"),
    [
        (BY_PART, whole, ROWS * BATCHES),
        (UNPARTITIONED_PARTITION_SPEC, last_row, BATCHES),
        (BY_PART, last_row, BATCHES),
    ],
    ids=["a rare partition", "a slice", "a slice of a rare partition"],
)
def test_a_kept_slice_does_not_pin_the_batch_it_was_cut_from(
    tmp_path: Path,
    spec: PartitionSpec,
    output: Callable[[pa.RecordBatch], pa.RecordBatch],
    rows: int,
) -> None:
    """Sixty megabytes pass through; at most a few row groups are held at any time."""
    properties = {"write.parquet.row-group-size-bytes": str(ROW_GROUP_BYTES)}
    writer = writer_spec(tmp_path, SCHEMA, spec=spec, properties=properties).open("job-0-0")
    gc.collect()
    before, held = pa.total_allocated_bytes(), []
    for number in range(BATCHES):
        writer.write(writer.fit(output(batch(number))))
        held.append(pa.total_allocated_bytes() - before)
    assert max(held) < 3 * ROW_GROUP_BYTES
    (group,) = writer.cut()
    assert sum(file.rows for file in group.files) == rows


def test_a_copied_slice_holds_the_same_rows(tmp_path: Path) -> None:
    """The rows that were cut out are written, in their order."""
    writer = writer_spec(tmp_path, SCHEMA).open("job-0-0")
    for number in range(3):
        writer.write(writer.fit(last_row(batch(number))))
    (group,) = writer.cut()
    (entry,) = entries(group)
    assert [row["text"].rstrip("x") for row in rows_of(entry.data_file)] == [
        f"{number:>6}-{ROWS - 1:>6}" for number in range(3)
    ]
