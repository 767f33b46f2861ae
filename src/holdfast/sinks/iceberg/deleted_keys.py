"""Rows of an upsert's output that only delete: told apart by a flag, their keys written apart.

Such a row says which row of the table goes, and nothing else: only its key is looked at. In memory
and in chunks it is a row of the table with a flag behind its columns, so that a checkpoint keeps it
in its place among the others. A cut writes its key into a file of its own, which is staged like
the manifests beside it and never enters the table.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from holdfast.errors import SchemaMismatchError
from holdfast.ledger.row_files import KeyFile
from holdfast.model.work import StagedGroup
from holdfast.sinks.conform import NO_FLAG, Conformer, null_array
from holdfast.sinks.iceberg.schemas import arrow_schema, parquet_schema
from holdfast.storage.port import Storage

# The flag in rows in their stored form. Columns in files have no dot in their names.
FLAG = pa.field("holdfast.deletes", pa.bool_(), nullable=False)


class DeletingRows:
    """The rows of one task's output that only delete."""

    def __init__(self, table: str, column: str, schema: Schema, on: Sequence[str]) -> None:
        """Keep what tells them apart.

        Args:
            table: The table's name, for errors.
            column: The column of the output that says which rows delete.
            schema: The table's schema.
            on: The key columns.
        """
        self._table, self._column, self._on = table, column, list(on)
        self._target, self._written = arrow_schema(schema), parquet_schema(schema)
        self._positions = [self._target.get_field_index(name) for name in on]
        self.keys = pa.schema([self._written.field(position) for position in self._positions])
        # A row that deletes has NULL in all columns but its key.
        loose = [
            field if position in self._positions else field.with_nullable(nullable=True)
            for position, field in enumerate(self._written)
        ]
        self.stored = pa.schema([*loose, FLAG])
        self._conformer: tuple[pa.Schema, Conformer] | None = None

    def told_apart(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return output without the flag: rows to write, and rows that delete.

        Raises:
            SchemaMismatchError: The output does not say which rows delete.
        """
        found = batch.schema.get_all_field_indices(self._column)
        if len(found) != 1:
            raise self._mismatch("it appears twice in the output" if found else NO_FLAG)
        flags = self._flags(batch.column(found[0]))
        rows = batch.drop_columns([self._column])
        if not flags.true_count:
            return rows, rows.slice(0, 0)
        return rows.filter(pc.invert(flags)), rows.filter(flags)

    def fitted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows that delete, with the table's columns: all but the key are NULL.

        Raises:
            SchemaMismatchError: A column of the key does not fit the table.
            ValueMisfitError: A value of the key does not fit it.
        """
        given = rows.select([name for name in self._on if name in rows.schema.names])
        if self._conformer is None or self._conformer[0] != given.schema:
            target = pa.schema([self._target.field(name) for name in self._on])
            # A column that is missing is NULL, and refused for that if there are such rows.
            conformer = Conformer(self._table, given.schema, target, self.keys, may_lack=None)
            self._conformer = (given.schema, conformer)
        columns = dict(zip(self._positions, self._conformer[1](given).columns, strict=True))
        arrays = [
            columns[position] if position in columns else null_array(len(rows), field.type)
            for position, field in enumerate(self._written)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(list(self.stored)[:-1]))

    def joined(self, kept: pa.RecordBatch, deleting: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of both kinds in their stored form: with the flag."""
        parts = [(rows, flag) for rows, flag in ((kept, False), (deleting, True)) if len(rows)]
        flagged = [
            pa.RecordBatch.from_arrays(
                [*rows.columns, pa.repeat(pa.scalar(flag), len(rows))], schema=self.stored
            )
            for rows, flag in parts
        ]
        if len(flagged) == 1:  # Most often; joining would copy it.
            return flagged[0]
        return pa.concat_batches(flagged or [pa.RecordBatch.from_pylist([], schema=self.stored)])

    def split(self, stored: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return rows in their stored form as rows to write and keys to delete."""
        flags = stored.column(len(self._written))
        keys, rows = stored.select(self._positions), stored.select(range(len(self._written)))
        if flags.true_count:
            keys, rows = keys.filter(flags), rows.filter(pc.invert(flags))
        else:
            keys = keys.slice(0, 0)
        return (
            pa.RecordBatch.from_arrays(rows.columns, schema=self._written),
            pa.RecordBatch.from_arrays(keys.columns, schema=self.keys),
        )

    def _flags(self, column: pa.Array) -> pa.BooleanArray:
        """Return the flag of each row; NULL means that the row is written.

        Raises:
            SchemaMismatchError: It is not a boolean column.
        """
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_null(column.type):
            column = column.cast(pa.bool_())
        if not pa.types.is_boolean(column.type):
            raise self._mismatch(
                f"{column.type}, and it says which rows delete (delete_column=): it must be boolean"
            )
        return pc.fill_null(column, fill_value=False)

    def _mismatch(self, problem: str) -> SchemaMismatchError:
        return SchemaMismatchError(table=self._table, column=self._column, problem=problem)


class DeletedKeys:
    """The file of keys to delete that is being written."""

    def __init__(self, storage: Storage, schema: pa.Schema) -> None:
        """Open nothing yet: output without such rows has no file."""
        self._storage, self._schema = storage, schema
        self._uri, self._rows = "", 0
        self._file: KeyFile | None = None

    @property
    def size_bytes(self) -> int:
        """How many bytes have been encoded since the last cut."""
        return self._file.size_bytes if self._file is not None else 0

    def add(self, keys: pa.RecordBatch, uri: str) -> None:
        """Take keys.

        Args:
            keys: The keys.
            uri: Where the file is written, if it is not yet begun.
        """
        if self._file is None:
            self._uri = uri
            self._file = KeyFile(self._storage, uri, step="deleted-keys", schema=self._schema)
        self._file.add(self._schema.names, keys.columns)
        self._rows += keys.num_rows

    def finish(self) -> list[StagedGroup]:
        """Make the file visible, and return it as staged; nothing if there are no keys.

        Raises:
            StorageError: It did not arrive.
        """
        if self._file is None:
            return []
        group = StagedGroup(
            path=self._uri,
            size_bytes=self._file.finish(),
            files=(),
            detail={},
            deleted_keys=self._rows,
        )
        self._file, self._uri, self._rows = None, "", 0
        return [group]

    def abandon(self) -> None:
        """Discard what is not finished."""
        if self._file is not None:
            self._file.abandon()
        self._file, self._uri, self._rows = None, "", 0
