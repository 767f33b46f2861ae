"""The rolling writer: output batches become data files of the table's target size.

Rows are kept per partition until they make a row group; then they are encoded and sent on.
What is kept is bounded in bytes over all partitions, and so is the number of open files, so
memory does not grow with the data or with the number of partitions.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.sorting import SortOrder
from pyiceberg.typedef import Record

from holdfast.failpoints import failpoint
from holdfast.model.staged import StagedGroup
from holdfast.sinks.conform import Conformer
from holdfast.sinks.iceberg.data_file import FileLayout, OpenDataFile
from holdfast.sinks.iceberg.file_io import HoldfastFileIO
from holdfast.sinks.iceberg.manifests import write_staged_manifest
from holdfast.sinks.iceberg.partitions import PartitionSplitter
from holdfast.sinks.iceberg.schemas import arrow_schema, parquet_schema
from holdfast.sinks.iceberg.sorting import RowSorter
from holdfast.sinks.iceberg.write_options import WriteOptions
from holdfast.storage.port import StorageError

_OPEN_FILES_MAX = 16
_FILES_BEFORE_CUT_MAX = 8
# Closed files that are still on their way. A table of many partitions closes many small ones, and
# each would cost a round trip to the store.
_FILES_ARRIVING_MAX = 16
# How much more than its own bytes a kept slice may hold.
_PINNED_SHARE_MAX = 2
_PINNED_BYTES_MAX = 4096
_LOCATION_CODE = TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL


@dataclass(frozen=True, kw_only=True)
class IcebergWriterSpec:
    """All that an executor needs to write for one table: pickled with the task, never stored."""

    table: str
    schema_json: str
    spec_json: str
    sort_order_json: str
    location: str
    properties: Mapping[str, str]
    # Storage options with credentials: they travel with the task and are never written down.
    io_properties: Mapping[str, str] = field(repr=False)

    @property
    def schema(self) -> pa.Schema:
        """The table's schema in Arrow's terms."""
        return arrow_schema(Schema.model_validate_json(self.schema_json))

    def open(self, task_name: str) -> IcebergTaskWriter:
        """Start a writer whose files carry the task's name."""
        return IcebergTaskWriter(self, task_name)


class _Partition:
    """Rows that wait for their row group, and the file that takes it."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.batches: list[pa.RecordBatch] = []
        self.rows = 0
        self.size_bytes = 0
        self.file: OpenDataFile | None = None


class IcebergTaskWriter:
    """Writes one task's output."""

    def __init__(self, spec: IcebergWriterSpec, task_name: str) -> None:
        """Open nothing yet: a task without rows leaves no file."""
        self._table = spec.table
        self._task_name = task_name
        self._schema = Schema.model_validate_json(spec.schema_json)
        self._spec = PartitionSpec.model_validate_json(spec.spec_json)
        self._options = WriteOptions.of(spec.table, spec.properties)
        self._properties = dict(spec.properties)
        self._layout = FileLayout(
            schema=self._schema,
            properties=spec.properties,
            parquet=self._options.parquet,
            spec_id=self._spec.spec_id,
        )
        self._sorter = RowSorter(
            sanitize_column_names(self._schema),
            SortOrder.model_validate_json(spec.sort_order_json),
        )
        self._splitter = PartitionSplitter(self._schema, self._spec)
        self._locations = load_location_provider(
            spec.location,
            # A table's property does not get to name code that executors import.
            {k: v for k, v in self._properties.items() if k != _LOCATION_CODE},
        )
        self._io = HoldfastFileIO(dict(spec.io_properties))
        self._target = arrow_schema(self._schema)
        self._written = parquet_schema(self._schema)
        self._conformer: tuple[pa.Schema, Conformer] | None = None
        # Insertion order is order of use: the first one was used longest ago.
        self._partitions: dict[tuple[Any, ...], _Partition] = {}
        self._kept_bytes = 0
        self._files_begun = 0
        self._cuts = 0
        self._files_at_cut = 0
        self._closed: list[DataFile] = []
        self._arriving: deque[OpenDataFile] = deque()

    @property
    def stored_schema(self) -> pa.Schema:
        """The schema of rows as `fit` returns them."""
        return self._written

    @property
    def fullness(self) -> float:
        """How much of what makes good files was written since the last cut; 1.0 is all."""
        written = sum(file.file_size_in_bytes for file in self._closed)
        written += sum(p.file.size_bytes for p in self._partitions.values() if p.file is not None)
        # A cut closes the files of all partitions: with many open, wait until they are larger.
        files = min(max(1, self._files_begun - self._files_at_cut), _FILES_BEFORE_CUT_MAX)
        return written / (self._options.target_file_bytes * files)

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return output rows as they are stored.

        Raises:
            SchemaMismatchError: They do not fit the table.
        """
        if self._conformer is None or self._conformer[0] != batch.schema:
            conformer = Conformer(self._table, batch.schema, self._target, self._written)
            self._conformer = (batch.schema, conformer)
        return self._conformer[1](batch)

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows that `fit` has returned."""
        if not rows.num_rows:
            return
        for record, part in self._splitter.split(rows):
            self._keep(record, part)
        while self._kept_bytes >= self._options.row_group_bytes:
            self._write_row_group(max(self._partitions.values(), key=lambda p: p.size_bytes))

    def cut(self) -> list[StagedGroup]:
        """Close all files, write a manifest over them, and return what is staged."""
        failpoint("before-files-are-closed")
        for partition in list(self._partitions.values()):
            if partition.batches:
                self._write_row_group(partition)
            self._close_file(partition)
        self._partitions.clear()
        self._wait_for_files(0)
        if not self._closed:
            return []
        failpoint("after-files-are-closed")
        uri = self._locations.new_metadata_location(f"{self._task_name}-m{self._cuts}.avro")
        group = write_staged_manifest(
            self._io,
            uri,
            schema=self._schema,
            spec=self._spec,
            properties=self._properties,
            data_files=self._closed,
        )
        failpoint("after-manifest")
        self._closed = []
        self._cuts += 1
        self._files_at_cut = self._files_begun
        return [group]

    def abandon(self) -> None:
        """Give up what is not finished."""
        for partition in self._partitions.values():
            if partition.file is not None:
                partition.file.abandon()
        self._partitions.clear()
        while self._arriving:
            with contextlib.suppress(StorageError):  # Nobody needs them any more.
                self._arriving.popleft().arrived()

    def _keep(self, record: Record, rows: pa.RecordBatch) -> None:
        # NaN is not equal to itself, and 0.0 is to -0.0; their texts tell partitions apart.
        key = tuple(
            repr(record[i]) if isinstance(record[i], float) else record[i]
            for i in range(len(record))
        )
        if rows.get_total_buffer_size() > _PINNED_SHARE_MAX * rows.nbytes + _PINNED_BYTES_MAX:
            # A slice holds the whole batch that it was cut from: a rare partition would pin
            # every batch of the task.
            rows = pa.concat_batches([rows, rows.slice(0, 0)])
        partition = self._partitions.pop(key, None) or _Partition(record)
        self._partitions[key] = partition
        partition.batches.append(rows)
        partition.rows += rows.num_rows
        partition.size_bytes += rows.nbytes
        self._kept_bytes += rows.nbytes
        if partition.rows >= self._options.row_group_rows:
            self._write_row_group(partition)

    def _write_row_group(self, partition: _Partition) -> None:
        rows = self._sorter.sort(pa.Table.from_batches(partition.batches))
        partition.batches = []
        self._kept_bytes -= partition.size_bytes
        partition.rows = partition.size_bytes = 0
        if partition.file is None:
            self._make_room()
            partition.file = self._open_file(partition.record, rows)
        partition.file.write_row_group(rows)
        if partition.file.size_bytes >= self._options.target_file_bytes:
            self._close_file(partition)

    def _make_room(self) -> None:
        open_now = [p for p in self._partitions.values() if p.file is not None]
        if len(open_now) >= _OPEN_FILES_MAX:
            self._close_file(open_now[0])

    def _close_file(self, partition: _Partition) -> None:
        if partition.file is not None:
            self._closed.append(partition.file.close(self._sorter.order_id))
            self._arriving.append(partition.file)
            partition.file = None
            self._wait_for_files(_FILES_ARRIVING_MAX)

    def _wait_for_files(self, left: int) -> None:
        """Wait until no more closed files than these are on their way.

        Raises:
            StorageError: One did not arrive.
        """
        while len(self._arriving) > left:
            self._arriving.popleft().arrived()

    def _open_file(self, record: Record, sample: pa.Table) -> OpenDataFile:
        name = f"{self._task_name}-{self._files_begun:05d}.parquet"
        self._files_begun += 1
        if not self._spec.is_unpartitioned():
            path: Any = _PartitionPath(self._spec.partition_to_path(record, self._schema))
            uri = self._locations.new_data_location(name, path)
        else:
            uri = self._locations.new_data_location(name)
        return OpenDataFile(self._io.storage, uri, record, self._layout, sample)


class _PartitionPath:
    """What a location provider asks of a partition: its path."""

    def __init__(self, path: str) -> None:
        self._path = path

    def to_path(self) -> str:
        return self._path
