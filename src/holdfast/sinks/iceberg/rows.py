"""Rows on their way to a file: split by partition, sorted, kept until a row group is full.

Values are transformed column by column (by pyiceberg-core, the same code that readers rely on),
then rows are sorted by partition once and cut: the cost does not grow with the number of partitions
in a batch.

Rows are split by partition only once many have gathered. If each batch were split on arrival, a
table with many partitions would get its rows in many small pieces, and each piece has a cost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote_plus

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortOrder
from pyiceberg.transforms import IdentityTransform, TruncateTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)
from pyiceberg.utils.decimal import unscaled_to_decimal

from holdfast.sinks.conform import ValueMisfitError
from holdfast.sinks.iceberg.data_file import OpenDataFile, WriteOptions

# ---- A table's sort order, as far as a row group can follow it

_PYARROW_WITH_NULLS_PER_KEY = 25
_SORTABLE = (
    BooleanType,
    IntegerType,
    LongType,
    DecimalType,
    DateType,
    TimeType,
    TimestampType,
    TimestamptzType,
    StringType,
    BinaryType,
)


class RowSorter:
    """Sorts row groups by a table's sort order, if Arrow's order is the same.

    Orders on transforms, nested columns, UUIDs and floats (Arrow puts NaN beside NULL) are not
    applied; then no file claims to be sorted.
    """

    def __init__(self, schema: Schema, order: SortOrder) -> None:
        """Work out the sort keys.

        Args:
            schema: The table's schema, with the column names of the rows.
            order: The table's sort order.
        """
        self._keys: list[tuple[str, str]] = []
        self._nulls = "at_start"
        self.order_id: int | None = None
        placements = {field.null_order for field in order.fields}
        columns = {
            field.field_id: field.name
            for field in schema.fields
            if isinstance(field.field_type, _SORTABLE)
        }
        plain = all(
            isinstance(field.transform, IdentityTransform) and field.source_id in columns
            for field in order.fields
        )
        # Before pyarrow 25, NULLs go to one side for all keys, so only such orders are followed.
        if order.is_unsorted or not plain or len(placements) != 1:
            return
        self._keys = [
            (
                columns[field.source_id],
                "ascending" if field.direction == SortDirection.ASC else "descending",
            )
            for field in order.fields
        ]
        self._nulls = "at_start" if placements == {NullOrder.NULLS_FIRST} else "at_end"
        self.order_id = order.order_id

    def sort(self, rows: pa.Table) -> pa.Table:
        """Return the rows in order."""
        if not self._keys:
            return rows
        if int(pa.__version__.partition(".")[0]) >= _PYARROW_WITH_NULLS_PER_KEY:
            keys = [(name, direction, self._nulls) for name, direction in self._keys]
            return rows.take(pc.sort_indices(rows, sort_keys=keys))
        order = pc.sort_indices(rows, sort_keys=self._keys, null_placement=self._nulls)
        return rows.take(order)


# ---- Split batches by the table's partitions

# Stores allow 255 bytes for one name, or 1,024 for a whole path.
_FOLDER_MAX = 200
_FOLDER_KEPT = 160


class PartitionSplitter:
    """Splits batches of one schema by one spec."""

    def __init__(self, schema: Schema, spec: PartitionSpec) -> None:
        """Keep schema and spec.

        Args:
            schema: The table's schema.
            spec: The spec that files are written with.
        """
        self._schema = schema
        self._spec = spec

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[Record, pa.RecordBatch]]:
        """Yield each partition in the batch with its rows, in order."""
        if self._spec.is_unpartitioned():
            yield Record(), batch
            return
        if batch.num_rows == 0:
            return
        columns = [self._transformed(batch, field) for field in self._spec.fields]
        codes = _codes(columns)
        # 16-bit numbers are sorted in linear time.
        narrow = codes.astype(np.uint16) if codes.max() < 1 << 16 else codes
        order = np.argsort(narrow, kind="stable")
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        ends = np.append(starts[1:], len(order))
        # One take copies the rows, so that a kept slice does not keep Spark's whole batch alive.
        clustered = batch if len(starts) == 1 else batch.take(pa.array(order))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            row = int(order[start])
            yield self._record(columns, row), clustered.slice(start, end - start)

    def _transformed(self, batch: pa.RecordBatch, field: PartitionField) -> pa.Array:
        source = self._schema.find_field(field.source_id)
        column = _source_column(self._schema, batch, field.source_id)
        if isinstance(field.transform, VoidTransform):
            return pa.nulls(batch.num_rows, pa.int32())
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        if isinstance(field.transform, IdentityTransform):
            return column
        if pa.types.is_decimal(column.type):
            # pyiceberg-core panics on buffers that are not aligned to 16 bytes, and Spark's stream
            # aligns to 8. Concatenation copies into an aligned buffer.
            column = pa.concat_arrays([column, column.slice(0, 0)])
        result = field.transform.pyarrow_transform(source.field_type)(column)
        return result.combine_chunks() if isinstance(result, pa.ChunkedArray) else result

    def _record(self, columns: list[pa.Array], row: int) -> Record:
        return Record(*(_plain(column[row]) for column in columns))


class PartitionLimits:
    """Finds rows whose partition value does not fit its type.

    `truncate` rounds down, and below the smallest numbers there is nothing. With a width of 50 the
    decimal -9999999.99 becomes -10000000.00, one digit more than decimal(9, 2) has: Java then
    refuses to write the file's manifest, with all other rows in it. The smallest int becomes one of
    the largest in Java and in pyiceberg-core: written that way, `WHERE d < 0` does not find it.
    """

    def __init__(self, table: str, schema: Schema, spec: PartitionSpec) -> None:
        """Work out the smallest value of each column.

        Args:
            table: The table's name, for errors.
            schema: The table's schema.
            spec: The spec that files are written with.
        """
        self._table = table
        self._schema = schema
        self._fields: list[tuple[PartitionField, pa.Scalar]] = []
        for field in spec.fields:
            kind = schema.find_field(field.source_id).field_type
            if isinstance(field.transform, TruncateTransform):
                least = _least(kind, field.transform.width)
                if least is not None:
                    self._fields.append((field, least))

    def check(self, rows: pa.RecordBatch) -> None:
        """Check rows before they share a file with others.

        Raises:
            ValueMisfitError: A row does not fit into any partition.
        """
        for field, least in self._fields:
            column = _source_column(self._schema, rows, field.source_id)
            below = pc.less(column, least)
            if pc.any(below).as_py():
                row = pc.index(below, value=True).as_py()
                raise ValueMisfitError(
                    table=self._table,
                    column=self._schema.find_column_name(field.source_id) or field.name,
                    problem=(
                        f"value {column[row].as_py()} in row {row} of a batch has no partition: "
                        f"{field.transform} makes it smaller than {column.type} can hold"
                    ),
                )


def _least(kind: IcebergType, width: int) -> pa.Scalar | None:
    """Return the smallest number that `truncate` keeps within its type; None for other types."""
    if isinstance(kind, DecimalType):
        least = -((10**kind.precision - 1) // width * width)
        arrow = pa.decimal128(kind.precision, kind.scale)
        return pa.scalar(unscaled_to_decimal(least, kind.scale), arrow)
    if isinstance(kind, IntegerType | LongType):
        arrow = pa.int32() if isinstance(kind, IntegerType) else pa.int64()
        return pa.scalar(-(2 ** (arrow.bit_width - 1) // width * width), arrow)
    return None


def partition_path(spec: PartitionSpec, record: Record, schema: Schema) -> str:
    """Return the folder path of a partition's files. Readers ignore these names."""
    try:
        path = spec.partition_to_path(record, schema)
    except OverflowError:  # Python has no date outside the years 1 to 9999: use its number.
        values = (record[position] for position in range(len(record)))
        pairs = zip(spec.fields, values, strict=True)
        path = "/".join(
            f"{quote_plus(field.name)}={quote_plus('null' if value is None else str(value))}"
            for field, value in pairs
        )
    return "/".join(_short(folder) for folder in path.split("/"))


def _short(folder: str) -> str:
    """Return a name that every store accepts: a long partition value must not fail the job."""
    if len(folder) <= _FOLDER_MAX:
        return folder
    return f"{folder[:_FOLDER_KEPT]}-{hashlib.sha256(folder.encode()).hexdigest()[:16]}"


def _source_column(schema: Schema, batch: pa.RecordBatch, field_id: int) -> pa.Array:
    # Descend by id and position, not by name: a name may contain a dot.
    for index, field in enumerate(schema.fields):
        path = _path_to(field, field_id)
        if path is not None:
            column = batch.column(index)
            return pc.struct_field(column, indices=path) if path else column
    raise KeyError(f"partition source {field_id}")  # The spec was made for this schema.


def _plain(value: pa.Scalar) -> Any:  # noqa: ANN401 - of whatever type the partition is.
    """Return a value in its manifest form: dates and times as integers.

    Python has no objects for those outside the years 1 to 9999.
    """
    return value.value if pa.types.is_temporal(value.type) else value.as_py()


def _path_to(field: NestedField, field_id: int) -> list[int] | None:
    if field.field_id == field_id:
        return []
    for position, child in enumerate(getattr(field.field_type, "fields", ())):
        below = _path_to(child, field_id)
        if below is not None:
            return [position, *below]
    return None


def _codes(columns: list[pa.Array]) -> npt.NDArray[np.int64]:
    """Number the combinations of partition values; NULL counts as a value."""
    codes = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        encoded = pc.dictionary_encode(column, null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        indices = encoded.indices.to_numpy(zero_copy_only=False)
        codes = codes * max(1, len(encoded.dictionary)) + indices
        if len(columns) > 1:
            # Renumbered after each column, so that the product stays below rows squared.
            codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    return codes


# ---- Rows that wait for their row group: in order of arrival, then by partition

# How much of the memory for rows waits unsplit: during a split there are two copies of it.
_UNSPLIT_SHARE = 1 / 8
# How much of a row group's rows wait unsplit: the group may exceed its size by this much.
_UNSPLIT_ROWS_SHARE = 1 / 2
# How much more than its own bytes a kept slice may keep alive.
_PINNED_SHARE_MAX = 2
_PINNED_BYTES_MAX = 4096


class Partition:
    """The waiting rows of one partition, and the file that takes them."""

    def __init__(self, record: Record) -> None:
        """Start without rows and without a file."""
        self.record = record
        self.batches: list[pa.RecordBatch] = []
        self.rows = 0
        self.size_bytes = 0
        self.file: OpenDataFile | None = None


class KeptRows:
    """All waiting rows of a task."""

    def __init__(self, schema: Schema, spec: PartitionSpec, options: WriteOptions) -> None:
        """Start empty.

        Args:
            schema: The table's schema.
            spec: The spec that files are written with.
            options: The size of row groups; all waiting rows stay within the bytes of one.
        """
        self._splitter = PartitionSplitter(schema, spec)
        self._rows_max, self._bytes_max = options.row_group_rows, options.row_group_bytes
        self._unsplit_rows_max = self._rows_max * _UNSPLIT_ROWS_SHARE
        self._unsplit_bytes_max = self._bytes_max * _UNSPLIT_SHARE
        if spec.is_unpartitioned():  # Then a split is free, but joining batches is not.
            self._unsplit_rows_max = 0
        self._unsplit: list[pa.RecordBatch] = []
        self._unsplit_rows = self._unsplit_bytes = 0
        self.partitions: dict[tuple[Any, ...], Partition] = {}
        self.size_bytes = 0

    def add(self, rows: pa.RecordBatch) -> Iterator[Partition]:
        """Add rows; yield partitions whose rows the caller must take at once, to make room."""
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
            yield max(self.partitions.values(), key=lambda partition: partition.size_bytes)

    def split(self) -> Iterator[Partition]:
        """Give all rows to their partitions; yield those with enough rows for a row group."""
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
        """Remove and return the waiting rows of a partition."""
        rows = pa.Table.from_batches(partition.batches)
        self.size_bytes -= partition.size_bytes
        partition.batches = []
        partition.rows = partition.size_bytes = 0
        return rows

    def _keep(self, record: Record, rows: pa.RecordBatch) -> Partition:
        # NaN is not equal to itself, but 0.0 equals -0.0; their text forms identify partitions.
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
    """Return a copy of the rows if they would keep alive a much larger batch.

    A rare partition, or a transform that keeps few rows, would otherwise pin every batch of the
    task.
    """
    if rows.get_total_buffer_size() > _PINNED_SHARE_MAX * rows.nbytes + _PINNED_BYTES_MAX:
        return pa.concat_batches([rows, rows.slice(0, 0)])
    return rows
