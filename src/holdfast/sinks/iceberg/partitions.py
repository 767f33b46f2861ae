"""Split batches by the table's partitions.

Values are transformed column by column (by pyiceberg-core, the same code that readers rely
on), then rows are sorted by partition once and cut: the cost does not grow with the number of
partitions in a batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField, PartitionSpec, partition_record_value
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField


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
        """Yield each partition in the batch with its rows, in their order."""
        if self._spec.is_unpartitioned():
            yield Record(), batch
            return
        if batch.num_rows == 0:
            return
        columns = [self._transformed(batch, field) for field in self._spec.fields]
        codes = _codes(columns)
        # Numbers of 16 bits are sorted in linear time.
        narrow = codes.astype(np.uint16) if codes.max() < 1 << 16 else codes
        order = np.argsort(narrow, kind="stable")
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        ends = np.append(starts[1:], len(order))
        # One take copies the rows, so that a kept slice does not hold the whole batch of Spark.
        clustered = batch if len(starts) == 1 else batch.take(pa.array(order))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            row = int(order[start])
            yield self._record(columns, row), clustered.slice(start, end - start)

    def _transformed(self, batch: pa.RecordBatch, field: PartitionField) -> pa.Array:
        source = self._schema.find_field(field.source_id)
        column = self._source_column(batch, field.source_id)
        if isinstance(field.transform, VoidTransform):
            return pa.nulls(batch.num_rows, pa.int32())
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        if isinstance(field.transform, IdentityTransform):
            return column
        if pa.types.is_decimal(column.type):
            # pyiceberg-core panics on buffers that are not aligned to 16 bytes, and Spark's
            # stream aligns to 8. Concatenation copies into an aligned one.
            column = pa.concat_arrays([column, column.slice(0, 0)])
        result = field.transform.pyarrow_transform(source.field_type)(column)
        return result.combine_chunks() if isinstance(result, pa.ChunkedArray) else result

    def _source_column(self, batch: pa.RecordBatch, field_id: int) -> pa.Array:
        # Walk down by id and position, not by name: a name may itself contain a dot.
        for index, field in enumerate(self._schema.fields):
            path = _path_to(field, field_id)
            if path is not None:
                column = batch.column(index)
                return pc.struct_field(column, indices=path) if path else column
        raise KeyError(f"partition source {field_id}")  # The spec was made for this schema.

    def _record(self, columns: list[pa.Array], row: int) -> Record:
        return Record(
            *(
                partition_record_value(field, column[row].as_py(), self._schema)
                for field, column in zip(self._spec.fields, columns, strict=True)
            )
        )


def _path_to(field: NestedField, field_id: int) -> list[int] | None:
    if field.field_id == field_id:
        return []
    for position, child in enumerate(getattr(field.field_type, "fields", ())):
        below = _path_to(child, field_id)
        if below is not None:
            return [position, *below]
    return None


def _codes(columns: list[pa.Array]) -> npt.NDArray[np.int64]:
    """Number the combinations of partition values; NULL is a value of its own."""
    codes = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        encoded = pc.dictionary_encode(column, null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        indices = encoded.indices.to_numpy(zero_copy_only=False)
        codes = codes * max(1, len(encoded.dictionary)) + indices
        if len(columns) > 1:
            # Numbered anew after each column, so that the product stays below rows squared.
            codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    return codes
