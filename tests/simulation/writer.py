"""Schemas as the tables show them, and writers that note which columns a file was written for."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.limits import DEFAULT_LIMITS, Limits
from holdfast.model.work import StagedGroup
from holdfast.sinks.base import MayLack
from holdfast.sinks.iceberg.schemas import schema_changes
from tests.fakes.memory_writer import MemoryWriter, MemoryWriterSpec, TimedFiles, size_of
from tests.simulation.columns import GONE, KEY, Column, Columns
from tests.simulation.world import World


@functools.cache
def changes_between(began: str, now: str) -> str:
    """Return the schema changes that files would not survive, as the Iceberg sink decides it."""
    return "; ".join(schema_changes(json.loads(began), json.loads(now)))


@functools.cache
def _schema_text(columns: Columns) -> str:
    fields = [
        {"id": column.number, "name": column.name, "type": column.kind, "required": False}
        | {"doc": str(column.origin)}
        for column in columns
    ]
    return json.dumps({"type": "struct", "schema-id": 0, "fields": fields})


def schema_of(columns: Columns) -> dict[str, Any]:
    """Return columns as an Iceberg schema; their origins are comments, which nothing reads."""
    return dict(json.loads(_schema_text(columns)))


def columns_of(schema: Mapping[str, Any]) -> Columns:
    """Return the columns of a schema from `schema_of`."""
    return tuple(
        Column(number=field["id"], name=field["name"], kind=field["type"], origin=int(field["doc"]))
        for field in schema["fields"]
    )


class Written(Protocol):
    """What a writer needs from its table."""

    files: TimedFiles
    file_rows: int | None
    # The columns that each file was written for.
    written_for: dict[str, Columns]


class SimWriterSpec(MemoryWriterSpec):
    """Opens writers that can be killed between two files."""

    def __init__(  # noqa: PLR0913 - they are the parts of one table.
        self,
        columns: Columns,
        world: World,
        table: Written,
        may_lack: MayLack,
        *,
        is_numbered: bool,
        deletes: bool = False,
    ) -> None:
        """Write into the table's storage.

        Args:
            columns: The columns to write for.
            world: The world that the writers' tasks run in.
            table: The table.
            may_lack: The columns that the output may lack.
            is_numbered: Whether rows carry the numbers of their columns, as Iceberg's do.
            deletes: Whether the output says which rows delete.
        """
        schema = _arrow_schema(columns, is_numbered)
        super().__init__(
            schema.append(pa.field(GONE, pa.bool_(), nullable=False)) if deletes else schema,
            files=table.files,
            file_rows=table.file_rows,
            may_lack=may_lack,
            delete_column=GONE if deletes else "",
        )
        self.columns, self.written_for = columns, table.written_for
        # Raises if the filter of an overwrite is not true for some rows.
        self.refuse_outside: Callable[[pa.RecordBatch], None] = lambda _rows: None
        self._world = world

    def open(self, task_name: str, limits: Limits = DEFAULT_LIMITS) -> MemoryWriter:  # noqa: ARG002
        """Start a writer."""
        return _SimWriter(self, task_name, self._world)


@functools.cache
def _arrow_schema(columns: Columns, is_numbered: bool) -> pa.Schema:  # noqa: FBT001 - cached.
    numbers = (
        {"PARQUET:field_id": str(column.number)} if is_numbered else None for column in columns
    )
    fields = zip((column.arrow for column in columns), numbers, strict=True)
    return pa.schema([field.with_metadata(number) for field, number in fields])


class _SimWriter(MemoryWriter):
    def __init__(self, spec: SimWriterSpec, task_name: str, world: World) -> None:
        super().__init__(spec, task_name)
        self._columns, self._written_for = spec.columns, spec.written_for
        self._refuse_outside = spec.refuse_outside
        self._world = world
        self._deletes = bool(spec.delete_column)
        self._key_files = 0

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = super().fit(batch)
        self._refuse_outside(rows)
        return rows

    def cut(self) -> list[StagedGroup]:
        self._world.pause("close the files")
        groups = super().cut()
        for group in groups:
            self._written_for.update({file.path: self._columns for file in group.with_keys})
        return groups

    def _staged(self, rows: pa.Table) -> list[StagedGroup]:
        if not self._deletes:
            return super()._staged(rows)
        flags = rows[GONE]
        groups = super()._staged(rows.filter(pc.invert(flags)).drop_columns([GONE]))
        keys = rows.filter(flags).select([KEY])
        if keys.num_rows:
            path = f"mem://metadata/{self.task_name}-k{self._key_files}.parquet"
            self._key_files += 1
            self._world.pause(f"write {path}")
            self._world.counts["files of keys to delete"] += 1
            self._spec.files[path] = keys
            size_bytes, count = size_of(keys), keys.num_rows
            groups.append(
                StagedGroup(
                    path=path, size_bytes=size_bytes, files=(), detail={}, deleted_keys=count
                )
            )
        return groups
