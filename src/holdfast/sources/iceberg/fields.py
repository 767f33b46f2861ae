"""Columns by field id: a file may know them by other names, in narrower types, or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.types as pt

from holdfast.model.pins import PinnedFile
from holdfast.model.widening import is_any_list

_FIELD_ID = b"PARQUET:field_id"
# What a column holds in files that were written before it was added, as JSON.
DEFAULT = b"holdfast:default"
# Ids of columns by their names, as JSON, for files that have none; on the schema.
NAMES = b"holdfast:names"


class FieldsDifferError(ValueError):
    """A file's columns cannot be told to be the table's."""


def field_id(field: pa.Field) -> int | None:
    """Return a field's id, if it has one."""
    text = (field.metadata or {}).get(_FIELD_ID)
    return None if text is None else int(text)


@dataclass(frozen=True, kw_only=True)
class ByFieldId:
    """Finds columns by their ids. Pickled with a task."""

    # With ids and defaults as metadata.
    schema: pa.Schema

    def wanted(self, own: pa.Schema) -> Iterable[str]:
        """Choose from a file's own columns."""
        return self._places(own).values()

    def fit(self, batch: pa.RecordBatch, file: PinnedFile) -> pa.RecordBatch:  # noqa: ARG002
        """Return a file's rows in the table's schema."""
        places = self._places(batch.schema)
        columns = [
            _cast(batch.column(places[number]), field.type)
            if (number := field_id(field)) in places
            else _missing(field, batch.num_rows)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._plain)

    def check(self, own: pa.Schema) -> set[int]:
        """Return the ids of columns that a file lacks.

        Raises:
            FieldsDifferError: The file cannot be read by ids.
        """
        places = self._places(own)
        missing = set()
        for field in self.schema:
            number = field_id(field)
            if number is None:
                raise FieldsDifferError(f"column {field.name!r} has no id")
            if number not in places:
                missing.add(number)
            elif not _agree(own.field(places[number]), field):
                raise FieldsDifferError(f"column {field.name!r} was changed inside")
        return missing

    @cached_property
    def _plain(self) -> pa.Schema:
        return without_metadata(self.schema)

    @cached_property
    def _names(self) -> Mapping[str, int]:
        found: dict[str, int] = json.loads((self.schema.metadata or {}).get(NAMES, b"{}"))
        return found

    def _places(self, own: pa.Schema) -> dict[int, str]:
        """Return the names that the wanted columns have in a file, by id."""
        wanted = {field_id(field) for field in self.schema}
        ids = {field.name: field_id(field) for field in own}
        if all(number is None for number in ids.values()):
            ids = {name: self._names.get(name) for name in ids}
        return {n: name for name, n in ids.items() if n is not None and n in wanted}


def without_metadata(schema: pa.Schema) -> pa.Schema:
    """Return the columns as a transform sees them."""
    return pa.schema([pa.field(one.name, _bare(one.type), one.nullable) for one in schema])


def _bare(kind: pa.DataType) -> pa.DataType:
    """Return a type without ids inside."""
    if pt.is_struct(kind):
        return pa.struct([_bare_field(kind.field(n)) for n in range(kind.num_fields)])
    if pt.is_map(kind):
        return pa.map_(_bare_field(kind.key_field), _bare_field(kind.item_field))
    if pt.is_large_list(kind):
        return pa.large_list(_bare_field(kind.value_field))
    if pt.is_list(kind):
        return pa.list_(_bare_field(kind.value_field))
    return kind


def _bare_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _bare(field.type), field.nullable)


def _agree(own: pa.Field, field: pa.Field) -> bool:
    """Whether what is inside a column has the same ids and names, at every depth."""
    pairs = list(zip(_children(own.type), _children(field.type), strict=False))
    if len(_children(own.type)) != len(_children(field.type)):
        return False
    inside_struct = pt.is_struct(field.type)
    return all(
        field_id(a) in {None, field_id(b)}
        and (a.name == b.name or not inside_struct)
        and _agree(a, b)
        for a, b in pairs
    )


def _children(kind: pa.DataType) -> list[pa.Field]:
    if pt.is_struct(kind):
        return [kind.field(number) for number in range(kind.num_fields)]
    if pt.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if is_any_list(kind) else []


def _missing(field: pa.Field, rows: int) -> pa.Array:
    default = (field.metadata or {}).get(DEFAULT)
    if default is None:
        return pa.nulls(rows, _bare(field.type))
    return pa.repeat(pa.scalar(json.loads(default), field.type), rows)


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    kind = _bare(wanted)
    if column.type == kind:
        return column
    if isinstance(kind, pa.BaseExtensionType):
        storage = column.storage if isinstance(column, pa.ExtensionArray) else column
        return pa.ExtensionArray.from_storage(kind, storage.cast(kind.storage_type))
    return column.cast(kind)
