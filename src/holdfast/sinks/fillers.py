"""Values that stand where nothing is read.

Arrow and Parquet ask that a required child has a value in every slot, even below a parent that
is NULL, where no reader ever looks. Fillers stand there.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt


def null_array(length: int, kind: pa.DataType) -> pa.Array:
    """Return NULLs of any type, with fillers in required children."""
    if not pt.is_struct(kind):
        return pa.nulls(length, kind)
    fields = [kind.field(i) for i in range(kind.num_fields)]
    children = [null_array(length, field.type) for field in fields]
    children = [
        child if field.nullable else filled(child)
        for field, child in zip(fields, children, strict=True)
    ]
    mask = pa.array([True] * length, pa.bool_())
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def filled(array: pa.Array) -> pa.Array:
    """Return the array with a filler in place of each NULL."""
    if not array.null_count:
        return array
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(array.type, filled(array.storage))
    with_filler = pa.concat_arrays([array, pa.array([_filler(array.type)], array.type)])
    positions = pa.array(range(len(array)), pa.int64())
    return with_filler.take(pc.if_else(array.is_null(), len(array), positions))


def _filler(kind: pa.DataType) -> Any:  # noqa: ANN401 - one of Arrow's many Python values.
    if isinstance(kind, pa.BaseExtensionType):
        return _filler(kind.storage_type)
    if pt.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return {field.name: None if field.nullable else _filler(field.type) for field in fields}
    if pt.is_fixed_size_binary(kind):
        return bytes(kind.byte_width)
    if pt.is_temporal(kind):
        return _temporal_filler(kind)
    if pt.is_map(kind) or pt.is_list(kind):
        return []
    return pa.scalar(0, pa.int8()).cast(kind).as_py() if _is_number(kind) else _empty(kind)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind))


def _empty(kind: pa.DataType) -> str | bytes | bool:
    if pt.is_boolean(kind):
        return False
    return b"" if pt.is_binary(kind) else ""


def _temporal_filler(kind: pa.DataType) -> Any:  # noqa: ANN401 - one of Arrow's many Python values.
    if pt.is_date(kind):
        return dt.date(1970, 1, 1)
    return dt.time() if pt.is_time(kind) else pa.scalar(0, pa.int64()).cast(kind)
