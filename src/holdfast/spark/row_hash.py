"""A hash of the whole row, as a SQL expression that Spark evaluates.

Spark alone computes it: once when the input is measured, and once beside the rows that go to the
tasks. So both sides agree without a second implementation. `xxhash64` alone would not do: it skips
NULLs, wherever they are, and refuses maps. Here each value follows a mark that says whether there
is one, each array its length, and a map is hashed as its sorted entries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    NullType,
    StringType,
    StructType,
)

from holdfast.spark.keys import quoted

# 63 bits: a literal without a sign.
_SALT_BYTES, _SALT_SHIFT = 8, 1


def column_types(schema: StructType) -> tuple[str, ...]:
    """Return the name and type of each column, sorted: the order of columns does not matter."""
    return tuple(sorted(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields))


def row_hash_sql(schema: StructType, names: Sequence[str]) -> str:
    """Return the SQL expression of a row's hash.

    Columns are taken in the order of their names. A column that is added, dropped or renamed, or
    has another type, changes the hash of every row. 0.0 and -0.0 have one hash, as they are equal
    to Spark; so have all NaNs.

    Args:
        schema: The columns as the user knows them.
        names: What the columns are called in the expression, in the same order.
    """
    salt = hashlib.sha256("\n".join(column_types(schema)).encode()).digest()[:_SALT_BYTES]
    parts = [f"{int.from_bytes(salt, 'big') >> _SALT_SHIFT}L"]
    found = zip(schema.fields, names, strict=True)
    for field, name in sorted(found, key=lambda one: one[0].name):
        parts += _parts(name, field.dataType, 0)
    return f"xxhash64({', '.join(parts)})"


def _parts(value: str, kind: DataType, depth: int) -> list[str]:
    """Return what is hashed of one value: enough to tell it from any other of its type."""
    if isinstance(kind, ArrayType):
        return [_size(value), *_elements(value, kind.elementType, depth)]
    if isinstance(kind, MapType):
        return [_size(value), _entries(value, kind, depth)]
    return [f"{value} IS NULL", *_inner(value, kind, depth)]


def _inner(value: str, kind: DataType, depth: int) -> list[str]:
    """Return what is hashed of a value besides whether it is NULL."""
    if isinstance(kind, NullType):
        return []
    if isinstance(kind, StructType):
        fields = [(f"{value}.{quoted(field.name)}", field.dataType) for field in kind.fields]
        return [part for name, inner in fields for part in _parts(name, inner, depth)]
    if isinstance(kind, StringType) and kind.simpleString() != "string":
        return [f"CAST({value} AS BINARY)"]  # Different texts of one collation may have one hash.
    if kind.typeName() == "variant":  # Neither its text nor its type alone is enough.
        return [f"to_json({value})", f"schema_of_variant({value})"]
    return [value]


def _entries(value: str, kind: MapType, depth: int) -> str:
    entry = f"e{depth}"
    parts = [
        *_parts(f"{entry}.key", kind.keyType, depth + 1),
        *_parts(f"{entry}.value", kind.valueType, depth + 1),
    ]
    return f"sort_array(transform(map_entries({value}), {entry} -> xxhash64({', '.join(parts)})))"


def _elements(array: str, kind: DataType, depth: int) -> list[str]:
    """Return what is hashed of an array besides its length."""
    element = f"e{depth}"
    parts = _parts(element, kind, depth + 1)
    if parts != [f"{element} IS NULL", element]:
        return [f"transform({array}, {element} -> xxhash64({', '.join(parts)}))"]
    # Quicker for plain values, which may be a vector's: only where one is NULL must be known.
    is_null = f"{element} -> {element} IS NULL"
    where = f"xxhash64(transform({array}, {is_null}))"
    return [f"if(exists({array}, {is_null}), {where}, 0L)", array]


def _size(value: str) -> str:
    # Of NULL it is -1 or NULL, by a setting of the session.
    return f"coalesce(size({value}), -1)"
