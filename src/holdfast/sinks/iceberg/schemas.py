"""Iceberg schemas: in Arrow's terms, compared over time, and those that partition specs need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, _index_parents, index_by_id, sanitize_column_names
from pyiceberg.table import Table
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
)

from holdfast.model.stored import RecordDamagedError
from holdfast.sinks.base import ColumnPath
from holdfast.text import in_short

# Format v2 allows these type promotions, and a higher decimal precision.
_PROMOTIONS = {(IntegerType, LongType), (FloatType, DoubleType)}


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema that Spark produces for this table: small offsets, no ids.

    PyIceberg maps to Arrow's large types; a batch never needs 64-bit offsets, and Spark's batches
    would have to be copied to get them.
    """
    large = schema_to_pyarrow(schema, include_field_ids=False)
    return pa.schema([_small_field(field) for field in large])


def parquet_schema(schema: Schema) -> pa.Schema:
    """Return the schema of a data file: with field ids, and names that Avro allows."""
    large = schema_to_pyarrow(sanitize_column_names(schema), include_field_ids=True)
    return pa.schema([_small_field(field) for field in large])


def schema_json(schema: Schema) -> dict[str, Any]:
    """Return the schema as plain JSON values."""
    return dict(json.loads(schema.model_dump_json()))


def schema_changes(began: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Name every change that makes files staged for the first schema unusable.

    What Iceberg allows for files in a table is fine for staged ones: added optional columns read as
    NULL, a wider type holds every value, and a column may become optional. Comments do not matter.

    Args:
        began: The schema that files were staged for, as JSON.
        now: The table's schema now, as JSON.

    Raises:
        RecordDamagedError: `began`, which comes from a ledger, is not a schema.
    """
    old, new = _read(began), Schema.model_validate(now)
    old_fields, new_fields = index_by_id(old), index_by_id(new)
    found = []
    for field_id, field in old_fields.items():
        name = old.find_column_name(field_id)
        current = new_fields.get(field_id)
        if current is None:
            found.append(f"column {name!r} was dropped")
            continue
        if (new_name := new.find_column_name(field_id)) != name:
            found.append(f"column {name!r} was renamed to {new_name!r}")
        if not reads_as(field.field_type, current.field_type):
            found.append(f"column {name!r} was {field.field_type} and is now {current.field_type}")
        if current.required and not field.required:
            found.append(f"column {name!r} is now required")
    parents = _index_parents(new)
    found.extend(
        f"required column {new.find_column_name(field_id)!r} was added"
        for field_id, field in new_fields.items()
        # Nothing is missing below a new optional column: all of it reads as NULL.
        if field.required
        and field_id not in old_fields
        and parents.get(field_id) in (None, *old_fields)
    )
    return found


def added_columns(began: Mapping[str, Any], now: Mapping[str, Any]) -> frozenset[ColumnPath]:
    """Return the columns that were added since the first schema, whatever their names.

    Args:
        began: The earlier schema, as JSON.
        now: The table's schema now, as JSON.

    Raises:
        RecordDamagedError: `began`, which comes from a ledger, is not a schema.
    """
    known, new = index_by_id(_read(began)), Schema.model_validate(now)
    fields, parents = index_by_id(new), _index_parents(new)
    return frozenset(_path(number, fields, parents) for number in fields.keys() - known.keys())


def _path(number: int, fields: Mapping[int, NestedField], parents: Mapping[int, int]) -> ColumnPath:
    above = _path(parents[number], fields, parents) if number in parents else ()
    return (*above, fields[number].name)


def _read(value: Mapping[str, Any]) -> Schema:
    try:
        schema = Schema.model_validate({**value, "fields": value["fields"]})
        _ = index_by_id(schema), schema.column_names  # Fails on duplicate names or ids.
    except Exception as error:
        # PyIceberg's own validators raise errors of every kind.
        raise RecordDamagedError(f"not a table schema: {in_short(error)}") from error
    return schema


def reads_as(old: IcebergType, new: IcebergType) -> bool:
    """Whether readers of the new type can read values written as the old one."""
    if isinstance(old, PrimitiveType) and isinstance(new, PrimitiveType):
        if isinstance(old, DecimalType) and isinstance(new, DecimalType):
            return old.scale == new.scale and old.precision <= new.precision
        return old == new or (type(old), type(new)) in _PROMOTIONS
    # Nested types are compared field by field; only their kind matters here.
    return type(old) is type(new)


def _small_field(field: pa.Field) -> pa.Field:
    return field.with_type(_small(field.type))


def _small(kind: pa.DataType) -> pa.DataType:
    if pt.is_large_string(kind):
        return pa.string()
    if pt.is_large_binary(kind):
        return pa.binary()
    if pt.is_large_list(kind):
        return pa.list_(_small_field(kind.value_field))
    if pt.is_map(kind):
        return pa.map_(_small_field(kind.key_field), _small_field(kind.item_field))
    if pt.is_struct(kind):
        return pa.struct([_small_field(kind.field(i)) for i in range(kind.num_fields)])
    return kind


# ---- Partition specs, each with a schema that has its columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A partition spec, and a schema of the table that has its columns."""

    spec: PartitionSpec
    schema: Schema

    @classmethod
    def of(cls, spec_json: str, schema_json: str) -> Layout:
        """Read them back from JSON."""
        return cls(
            spec=PartitionSpec.model_validate_json(spec_json),
            schema=Schema.model_validate_json(schema_json),
        )


def layouts_of(table: Table) -> dict[int, tuple[str, str]]:
    """Return each partition spec, and a schema of the table that has its columns, as JSON."""
    schemas = [table.schema(), *sorted(table.schemas().values(), key=_newest_first)]
    found = {}
    for spec_id, spec in table.specs().items():
        sources = {field.source_id for field in spec.fields}
        # A column that only an older spec uses may have been dropped from the table.
        having = [schema for schema in schemas if sources <= index_by_id(schema).keys()]
        if having:
            found[spec_id] = (spec.model_dump_json(), having[0].model_dump_json())
    return found


def _newest_first(schema: Schema) -> int:
    return -schema.schema_id
