"""Python values as Arrow: each keeps its meaning in the table's type, or is refused.

pyarrow would silently cut 1.9 down to 1 and the nanoseconds off a pandas Timestamp, and write
infinity for a number that is too large for a type.
"""

from __future__ import annotations

import math
import numbers
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.model.arrow_types import is_any_list

# The largest number that is not rounded to infinity, by the bits of a type.
_FLOAT_MAX = {
    16: math.nextafter(65520.0, 0.0),
    32: math.nextafter((2 - 2**-24) * 2.0**127, 0.0),
    64: sys.float_info.max,
}
# pyarrow takes larger NumPy numbers for negative ones where it converts them to floats.
_INT64_MAX = np.iinfo(np.int64).max
_IN_MICROSECONDS = re.compile(r"(?:timestamp|duration)\[us")
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
_KEPT: tuple[tuple[Callable[[pa.DataType], bool], tuple[type, ...]], ...] = (
    (pa.types.is_integer, (numbers.Integral,)),
    (pa.types.is_floating, (numbers.Real,)),
    (pa.types.is_decimal, (Decimal, numbers.Integral)),
    (pa.types.is_date, (date,)),
    (pa.types.is_timestamp, (datetime,)),
    (pa.types.is_time, (time,)),
)


def arrow_array(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    """Return values as an array of a type, or of one that Arrow chooses if they do not fit it.

    Args:
        values: What a row function returned for one column.
        kind: The column's type; None if the table has no such column.

    Raises:
        ValueError: A value would be changed, whichever type Arrow chose.
        OverflowError: A value, or all of them, are too large.
    """
    if kind is not None and all(_is_kept(value, kind) for value in values):
        try:
            return _whole(pa.array(values, type=kind))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            pass
    return _whole(pa.array(values))


def _whole(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return values as one array.

    Raises:
        OverflowError: Arrow made several arrays, because one would be too large.
    """
    if isinstance(array, pa.ChunkedArray):
        raise OverflowError(
            f"{array.nbytes:,} bytes in {len(array):,} rows, too many for one array"
        )
    return array


def _is_kept(value: Any, kind: pa.DataType) -> bool:  # noqa: ANN401 - whatever a row holds.
    """Whether a value keeps its meaning in a type: pyarrow would silently cut 1.9 down to 1.

    Raises:
        ValueError: No type that Arrow would choose keeps it.
    """
    if value is None:
        return True
    if pa.types.is_nested(kind):
        return _is_kept_below(value, kind)
    if pa.types.is_floating(kind) and type(value) is np.uint64 and value > _INT64_MAX:
        raise ValueError(f"{value} would become a negative {kind}: return a float")
    if pa.types.is_floating(kind) and isinstance(value, numbers.Real):
        _refuse_infinite(value, kind)
    if isinstance(value, datetime | time | timedelta):
        return _is_moment_kept(value, kind)
    return next((isinstance(value, of) for is_kind, of in _KEPT if is_kind(kind)), True)


def _is_kept_below(value: Any, kind: pa.DataType) -> bool:  # noqa: ANN401 - whatever a row holds.
    if pa.types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        return isinstance(value, Mapping) and all(
            name in fields and _is_kept(item, fields[name]) for name, item in value.items()
        )
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return all(
            _is_kept(key, kind.key_type) and _is_kept(item, kind.item_type) for key, item in pairs
        )
    if not is_any_list(kind):
        return True
    is_array = isinstance(value, np.ndarray) and value.dtype.kind in "fiu"
    if is_array and not value.ndim:
        return False  # A number.
    if is_array and pa.types.is_floating(kind.value_type):
        _refuse_infinite_in(value, kind.value_type)
    some = value[:1] if is_array else value  # In an array one value represents all.
    return isinstance(value, Sequence | np.ndarray) and all(
        _is_kept(item, kind.value_type) for item in some
    )


def _is_moment_kept(value: datetime | time | timedelta, kind: pa.DataType) -> bool:
    """Whether a type keeps a time: one with nanoseconds is refused, as Arrow would drop them.

    Raises:
        ValueError: The value has nanoseconds, and the type has none.
    """
    types, unit = pa.types, getattr(kind, "unit", "us")
    if (lost := nanoseconds_of(value)) and unit != "ns":
        raise ValueError(f"{value} has {lost} ns beyond its microseconds, and {kind} has none")
    if isinstance(value, datetime):
        # A datetime is also a date, but not only that; and without a zone it is not a definite
        # time.
        is_kind = types.is_timestamp(kind) and (value.tzinfo is None) == (kind.tz is None)
    elif isinstance(value, time):
        is_kind = types.is_time(kind)
    else:
        is_kind = types.is_duration(kind)
    part = value.microseconds if isinstance(value, timedelta) else value.microsecond
    return bool(is_kind) and part % _MICROSECONDS[unit] == 0


def _refuse_infinite(value: Any, kind: pa.DataType) -> None:  # noqa: ANN401 - a real number.
    """Refuse a finite number that is too large for a type: Arrow would write infinity.

    Raises:
        ValueError: It is too large.
    """
    size = abs(value if isinstance(value, float | int) else np.longdouble(value))
    if size > _FLOAT_MAX[kind.bit_width] and size != math.inf:
        raise ValueError(f"{value} is too large for {kind}")


def _refuse_infinite_in(values: Any, kind: pa.DataType) -> None:  # noqa: ANN401 - of any shape.
    """Refuse an array that has such a number.

    Raises:
        ValueError: One is too large.
    """
    if values.dtype.kind == "f" and values.dtype.itemsize * 8 <= kind.bit_width:
        return
    sizes = np.abs(values.astype(np.longdouble))
    beyond = (sizes > _FLOAT_MAX[kind.bit_width]) & (sizes != math.inf)
    if beyond.any():
        raise ValueError(f"{values[beyond][0]} is too large for {kind}")


def nanoseconds_of(value: object) -> int:
    """Return the nanoseconds of a pandas Timestamp or Timedelta.

    pyarrow takes these for Python's own classes, which have none, and drops them.
    """
    found: float = getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0)
    return 0 if math.isnan(found) else int(found)  # NaT has NaN.


def drops_nanoseconds(kind: pa.DataType) -> bool:
    """Whether pyarrow may have dropped nanoseconds when it chose this type for objects."""
    return _IN_MICROSECONDS.search(str(kind)) is not None


def with_nanoseconds(value: Any) -> object | None:  # noqa: ANN401 - whatever is in a column.
    """Return the first value with nanoseconds, at any depth."""
    if isinstance(value, datetime | timedelta):
        return value if nanoseconds_of(value) else None
    if isinstance(value, Mapping):
        value = value.values()
    elif str(getattr(value, "dtype", "object")) != "object" or isinstance(value, str | bytes):
        return None  # Of a type that pyarrow converts as a whole.
    if not isinstance(value, Iterable) or isinstance(value, pa.Array | pa.ChunkedArray):
        return None
    return next((lost for item in value if (lost := with_nanoseconds(item)) is not None), None)
