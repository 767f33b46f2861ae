"""The rolling writer: output batches become data files of the table's target size.

Rows are kept per partition until they fill a row group; then they are encoded and sent. The bytes
kept over all partitions are bounded, and so is the number of open files, so memory does not grow
with the data or with the number of partitions.
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
from pyiceberg.table.locations import LocationProvider, load_location_provider
from pyiceberg.table.sorting import SortOrder
from pyiceberg.typedef import Record

from holdfast.failpoints import failpoint
from holdfast.model.limits import DEFAULT_LIMITS, Limits
from holdfast.model.work import StagedGroup
from holdfast.sinks.base import MayLack
from holdfast.sinks.conform import Conformer, ValueMisfitError
from holdfast.sinks.iceberg.data_file import FileLayout, OpenDataFile, WriteOptions, without_code
from holdfast.sinks.iceberg.deleted_keys import DeletedKeys, DeletingRows
from holdfast.sinks.iceberg.file_io import HoldfastFileIO
from holdfast.sinks.iceberg.manifests import write_staged_manifest
from holdfast.sinks.iceberg.rows import (
    KeptRows,
    Partition,
    PartitionLimits,
    RowSorter,
    partition_path,
)
from holdfast.sinks.iceberg.schemas import arrow_schema
from holdfast.sinks.iceberg.where import Where
from holdfast.storage.credentials import Vendor
from holdfast.storage.port import StorageError

_FILES_BEFORE_CUT_MAX = 8


@dataclass(frozen=True, kw_only=True)
class IcebergWriterSpec:
    """All that an executor needs to write to one table. Pickled with the task, never stored."""

    table: str
    schema_json: str
    spec_json: str
    sort_order_json: str
    location: str
    properties: Mapping[str, str]
    may_lack: MayLack = frozenset()
    # A filter that is true for all rows of the output.
    where: Where | None = None
    # The columns that have a value in all rows of the output.
    on: tuple[str, ...] = ()
    # The column of the output that says which rows only delete; empty if none do.
    delete_column: str = ""
    # Storage options with credentials: they are sent with the task and never stored.
    io_properties: Mapping[str, str] = field(repr=False)
    vendor: Vendor | None = field(default=None, repr=False)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the output: the table's, and the one that says which rows delete."""
        own = arrow_schema(Schema.model_validate_json(self.schema_json))
        if not self.delete_column:
            return own
        return own.append(pa.field(self.delete_column, pa.bool_(), nullable=False))

    def open(self, task_name: str, limits: Limits = DEFAULT_LIMITS) -> IcebergTaskWriter:
        """Start a writer whose files carry the task's name."""
        return IcebergTaskWriter(self, task_name, limits.open_files)


class IcebergTaskWriter:
    """Writes one task's output."""

    def __init__(self, spec: IcebergWriterSpec, task_name: str, open_files_max: int) -> None:
        """Open nothing yet: a task without rows leaves no file."""
        self._table = spec.table
        self._may_lack = spec.may_lack
        self._where, self._on = spec.where, spec.on
        self._task_name = task_name
        self._open_files_max = open_files_max
        self._schema = Schema.model_validate_json(spec.schema_json)
        self._names = [field.name for field in self._schema.fields]
        self._spec = PartitionSpec.model_validate_json(spec.spec_json)
        self._options = WriteOptions.of(spec.table, spec.properties)
        self._properties = dict(spec.properties)
        self._layout = FileLayout(
            self._schema, self._spec.spec_id, spec.properties, self._options.parquet
        )
        self._sorter = RowSorter(
            sanitize_column_names(self._schema),
            SortOrder.model_validate_json(spec.sort_order_json),
        )
        # A table's property must not name code that executors import.
        self._locations = load_location_provider(spec.location, without_code(self._properties))
        self._io = HoldfastFileIO(dict(spec.io_properties), spec.vendor)
        self._target = arrow_schema(self._schema)
        self._written = self._layout.schema
        self._conformer: tuple[pa.Schema, Conformer] | None = None
        self._limits = PartitionLimits(spec.table, self._schema, self._spec)
        self._kept = KeptRows(self._schema, self._spec, self._options)
        # Partitions that have a file, least recently written first.
        self._open: list[Partition] = []
        self._files_begun = 0
        self._cuts = 0
        self._files_at_cut = 0
        self._closed: list[DataFile] = []
        self._closed_bytes = 0
        self._arriving: deque[OpenDataFile] = deque()
        self._deleting: DeletingRows | None = None
        if spec.delete_column:
            self._deleting = DeletingRows(spec.table, spec.delete_column, self._schema, spec.on)
            self._deleted = DeletedKeys(self._io.storage, self._deleting.keys)
            self._deleted_cuts = 0

    @property
    def stored_schema(self) -> pa.Schema:
        """The schema of the rows that `fit` returns."""
        return self._written if self._deleting is None else self._deleting.stored

    @property
    def fullness(self) -> float:
        """How much of a good file size has been written since the last cut; 1.0 is all of it."""
        written = self._closed_bytes + sum(p.file.size_bytes for p in self._open if p.file)
        if self._deleting is not None:
            written += self._deleted.size_bytes
        # A cut closes the files of all partitions: with many open, wait until they are larger.
        files = min(max(1, self._files_begun - self._files_at_cut), _FILES_BEFORE_CUT_MAX)
        return written / (self._options.target_file_bytes * files)

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return output rows in their stored form.

        Raises:
            SchemaMismatchError: The output does not fit the table.
            ValueMisfitError: Some of the rows do not fit.
        """
        if self._deleting is None:
            return self._fitted(batch)
        kept, going = self._deleting.told_apart(batch)
        rows, keys = self._fitted(kept), self._deleting.fitted(going)
        self._refuse_null_keys(keys)
        return self._deleting.joined(rows, keys)

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows that are written in the table's form.

        Raises:
            SchemaMismatchError: The output does not fit the table.
            ValueMisfitError: Some of the rows do not fit.
        """
        if self._conformer is None or self._conformer[0] != batch.schema:
            conformer = Conformer(
                self._table, batch.schema, self._target, self._written, may_lack=self._may_lack
            )
            self._conformer = (batch.schema, conformer)
        rows = self._conformer[1](batch)
        self._limits.check(rows)
        self._refuse_outside(rows)
        self._refuse_null_keys(rows)
        return rows

    def _refuse_null_keys(self, rows: pa.RecordBatch) -> None:
        """Refuse rows that an upsert could not find again: NULL equals nothing.

        Raises:
            ValueMisfitError: There are such rows.
        """
        for name in self._on:
            nulls = rows.column(self._names.index(name)).null_count
            if nulls:
                raise ValueMisfitError(
                    table=self._table,
                    column=name,
                    problem=f"it is NULL in {nulls:,} of {rows.num_rows:,} rows, and rows are "
                    "merged on it",
                    cure="leave these rows out of the output, or merge on other columns",
                )

    def _refuse_outside(self, rows: pa.RecordBatch) -> None:
        """Refuse rows for which the filter of an overwrite is not true.

        Rows like them are not replaced, so that each run would add them once more.

        Raises:
            ValueMisfitError: There are such rows.
        """
        outside = self._where.outside(rows) if self._where else None
        if outside is not None and outside.rows and self._where is not None:
            raise ValueMisfitError(
                table=self._table,
                column=", ".join(self._where.names),
                problem=f"{outside.rows:,} of {rows.num_rows:,} rows are outside "
                f"where={self._where.text}, for example {'; '.join(outside.examples)}",
                cure="leave them out of the output, or widen where",
            )

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows that `fit` has returned."""
        if self._deleting is not None:
            rows, keys = self._deleting.split(rows)
            if keys.num_rows:
                name = f"{self._task_name}-k{self._deleted_cuts}.parquet"
                self._deleted.add(keys, self._locations.new_metadata_location(name))
        if rows.num_rows:
            for partition in self._kept.add(rows):
                self._write_row_group(partition)

    def cut(self) -> list[StagedGroup]:
        """Close all files, write a manifest over them, and return what is staged."""
        keys: list[StagedGroup] = []
        if self._deleting is not None and (keys := self._deleted.finish()):
            self._deleted_cuts += 1
        failpoint("before-files-are-closed")
        for partition in self._kept.split():
            self._write_row_group(partition)
        for partition in self._kept.partitions.values():
            if partition.batches:
                self._write_row_group(partition)
            self._close_file(partition)
        self._kept.partitions.clear()
        self._wait_for_files(0)
        if not self._closed:
            return keys
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
        self._closed, self._closed_bytes = [], 0
        self._cuts += 1
        self._files_at_cut = self._files_begun
        return [group, *keys]

    def abandon(self) -> None:
        """Discard what is not finished."""
        if self._deleting is not None:
            self._deleted.abandon()
        for partition in self._open:
            if partition.file is not None:
                partition.file.abandon()
        self._open.clear()
        self._kept = KeptRows(self._schema, self._spec, self._options)
        while self._arriving:
            with contextlib.suppress(StorageError):  # They are no longer needed.
                self._arriving.popleft().arrived()

    def _write_row_group(self, partition: Partition) -> None:
        rows = self._sorter.sort(self._kept.take(partition))
        if partition.file is None:
            if len(self._open) >= self._open_files_max:
                self._close_file(self._open[0])
            partition.file = self._open_file(partition.record, rows)
        else:
            self._open.remove(partition)
        self._open.append(partition)
        partition.file.write_row_group(rows)
        if partition.file.size_bytes >= self._options.target_file_bytes:
            self._close_file(partition)

    def _close_file(self, partition: Partition) -> None:
        if partition.file is not None:
            closed = partition.file.close(self._sorter.order_id)
            self._closed.append(closed)
            self._closed_bytes += closed.file_size_in_bytes
            self._arriving.append(partition.file)
            partition.file = None
            self._open.remove(partition)
            # A table with many partitions closes many small files, and each would cost a round trip
            # to the store: as many may be in transit as are open.
            self._wait_for_files(self._open_files_max)

    def _wait_for_files(self, left: int) -> None:
        """Wait until at most this many closed files are still in transit.

        Raises:
            StorageError: A file did not arrive.
        """
        while len(self._arriving) > left:
            self._arriving.popleft().arrived()

    def _open_file(self, record: Record, sample: pa.Table) -> OpenDataFile:
        name = f"{self._task_name}-{self._files_begun:05d}.parquet"
        self._files_begun += 1
        uri = data_location(self._locations, name, self._spec, record, self._schema)
        return OpenDataFile(self._io.storage, uri, record, self._layout, sample)


def data_location(
    locations: LocationProvider, name: str, spec: PartitionSpec, record: Record, schema: Schema
) -> str:
    """Return where a table wants a data file.

    Args:
        locations: The table's layout.
        name: The file's own name.
        spec: The file's partition spec.
        record: Its partition values.
        schema: A schema of the table that has the spec's columns.
    """
    if spec.is_unpartitioned():
        return locations.new_data_location(name)
    path: Any = _PartitionPath(partition_path(spec, record, schema))
    return locations.new_data_location(name, path)


class _PartitionPath:
    """What a location provider needs of a partition: its path."""

    def __init__(self, path: str) -> None:
        self._path = path

    def to_path(self) -> str:
        return self._path
