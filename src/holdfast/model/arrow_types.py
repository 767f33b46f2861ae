"""Which Arrow types can be cast to which others without loss."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.types as pt

_INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_UNSIGNED_BITS = {"uint8": 8, "uint16": 16, "uint32": 32}
_FLOAT_BITS = {"halffloat": 16, "float": 32, "double": 64}


def widens(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a safe cast loses nothing, or fails for a value that would be changed."""
    kind, wanted = str(source), str(target)
    if wanted in _INTEGER_BITS:
        signed = _INTEGER_BITS.get(kind, 0)
        unsigned = _UNSIGNED_BITS.get(kind, 0)
        bits = _INTEGER_BITS[wanted]
        return 0 < signed <= bits or 0 < unsigned < bits
    if wanted in _FLOAT_BITS:
        bits = _FLOAT_BITS[wanted]
        # A 32-bit float holds every 16-bit integer, a 64-bit float every 32-bit integer.
        whole = {**_INTEGER_BITS, **_UNSIGNED_BITS}.get(kind, bits)
        return 0 < _FLOAT_BITS.get(kind, 0) <= bits or 2 * whole <= bits
    if pt.is_decimal(target):
        return bool(
            pt.is_decimal(source)
            and source.scale <= target.scale
            and source.precision - source.scale <= target.precision - target.scale
        )
    if pt.is_timestamp(target):
        return bool(pt.is_timestamp(source) and (source.tz is None) == (target.tz is None))
    families: list[Callable[[pa.DataType], bool]] = [
        is_any_string,
        is_any_binary,
        pt.is_date,
        pt.is_time,
    ]
    return any(family(source) and family(target) for family in families)


def is_uuid(kind: pa.DataType) -> bool:
    """Whether it is Arrow's own type for UUIDs."""
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.uuid"


def is_any_list(kind: pa.DataType) -> bool:
    """Whether it is a list, whatever the type of its offsets."""
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def is_any_string(kind: pa.DataType) -> bool:
    """Whether it is text, whatever the type of its offsets."""
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def is_any_binary(kind: pa.DataType) -> bool:
    """Whether it is bytes, of fixed or variable length."""
    return bool(
        pt.is_binary(kind)
        or pt.is_large_binary(kind)
        or pt.is_binary_view(kind)
        or pt.is_fixed_size_binary(kind)
    )
