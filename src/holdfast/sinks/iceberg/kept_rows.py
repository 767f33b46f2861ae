"""Rows that wait for their row group: in the order they came, then by partition.

They are split by partition when there are many. If each batch were split as it comes, a table of
many partitions would get its rows in many small pieces, and each piece has its price.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from holdfast.sinks.iceberg.data_file import OpenDataFile
from holdfast.sinks.iceberg.partitions import PartitionSplitter
from holdfast.sinks.iceberg.write_options import WriteOptions

# How much of the memory for rows waits unsplit: while it is split there are two copies of it.
_UNSPLIT_SHARE = 1 / 8
# How much of a row group's rows wait unsplit: it may get so many more than it should have.
_UNSPLIT_ROWS_SHARE = 1 / 2
# How much more than its own bytes a kept slice may hold.
_PINNED_SHARE_MAX = 2
_PINNED_BYTES_MAX = 4096


class Partition:
    """The rows of one partition that wait, and the file that takes them."""

    def __init__(self, record: Record) -> None:
        """Start without rows and without a file."""
        self.record = record
        self.batches: list[pa.RecordBatch] = []
        self.rows = 0
        self.size_bytes = 0
        self.file: OpenDataFile | None = None


class KeptRows:
    """All rows of a task that wait."""

    def __init__(self, schema: Schema, spec: PartitionSpec, options: WriteOptions) -> None:
        """Start empty.

        Args:
            schema: The table's schema.
            spec: The spec that files are written with.
            options: How large row groups are; all rows that wait are within the bytes of one.
        """
        self._splitter = PartitionSplitter(schema, spec)
        self._rows_max, self._bytes_max = options.row_group_rows, options.row_group_bytes
        self._unsplit_rows_max = self._rows_max * _UNSPLIT_ROWS_SHARE
        self._unsplit_bytes_max = self._bytes_max * _UNSPLIT_SHARE
        if spec.is_unpartitioned():  # Then a split costs nothing, and to join batches would.
            self._unsplit_rows_max = 0
        self._unsplit: list[pa.RecordBatch] = []
        self._unsplit_rows = self._unsplit_bytes = 0
        self.partitions: dict[tuple[Any, ...], Partition] = {}
        self.size_bytes = 0

    def add(self, rows: pa.RecordBatch) -> Iterator[Partition]:
        """Take rows; yield partitions whose rows the caller takes at once, to make room."""
        rows = _apart(rows)
        self._unsplit.append(rows)
        self._unsplit_rows += rows.num_rows
        self._unsplit_bytes += rows.nbytes
        self.size_bytes += rows.nbytes
        if (
            self._unsplit_rows >= self._unsplit_rows_max
            or self._unsplit_bytes >= self._unsplit_bytes_max
        ):
            yield from self.split()
        while self.size_bytes >= self._bytes_max:
            yield max(self.partitions.values(), key=lambda one: one.size_bytes)

    def split(self) -> Iterator[Partition]:
        """Give all rows to their partitions; yield those that have enough for a row group."""
        waiting, self._unsplit = self._unsplit, []
        self.size_bytes -= self._unsplit_bytes
        self._unsplit_rows = self._unsplit_bytes = 0
        if not waiting:
            return
        for rows in pa.Table.from_batches(waiting).combine_chunks().to_batches():
            for record, part in self._splitter.split(rows):
                partition = self._keep(record, _apart(part))
                if partition.rows >= self._rows_max:
                    yield partition

    def take(self, partition: Partition) -> pa.Table:
        """Return the rows of a partition, which wait no more."""
        rows = pa.Table.from_batches(partition.batches)
        self.size_bytes -= partition.size_bytes
        partition.batches = []
        partition.rows = partition.size_bytes = 0
        return rows

    def _keep(self, record: Record, rows: pa.RecordBatch) -> Partition:
        # NaN is not equal to itself, and 0.0 is to -0.0; their texts tell partitions apart.
        key = tuple(
            repr(record[i]) if isinstance(record[i], float) else record[i]
            for i in range(len(record))
        )
        if (partition := self.partitions.get(key)) is None:
            partition = self.partitions[key] = Partition(record)
        size_bytes = rows.nbytes
        partition.batches.append(rows)
        partition.rows += rows.num_rows
        partition.size_bytes += size_bytes
        self.size_bytes += size_bytes
        return partition


def _apart(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows without the batch that they were cut from, if they would hold it all.

    A rare partition, or a transform that keeps few rows, would pin every batch of the task.
    """
    if rows.get_total_buffer_size() > _PINNED_SHARE_MAX * rows.nbytes + _PINNED_BYTES_MAX:
        return pa.concat_batches([rows, rows.slice(0, 0)])
    return rows
