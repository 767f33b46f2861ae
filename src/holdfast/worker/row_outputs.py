"""Row outputs: the dicts that a row function returns, as a batch that fits the table."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.model.widening import is_any_list
from holdfast.sinks.base import ColumnPath
from holdfast.sinks.conform import ELEMENT, KEY, VALUE
from holdfast.worker.transforms import TransformOutputError

_PAIR = 2


def rows_of(answer: object, *, same: bool) -> list[Mapping[str, Any]]:
    """Return the output rows that one answer holds.

    Args:
        answer: What the function returned.
        same: Whether it must be exactly one row.

    Raises:
        TransformOutputError: It is no row.
    """
    if isinstance(answer, Mapping) and answer:
        return [answer]
    if not same:
        if answer is None:
            return []
        if isinstance(answer, list | tuple) and all(isinstance(one, Mapping) for one in answer):
            return list(answer)
    kind = "an empty dict" if isinstance(answer, Mapping) else type(answer).__name__
    wanted = "a dict of columns" if same else "a dict of columns, a list of them, or None"
    raise TransformOutputError(f"it returned {kind} for a row, not {wanted}")


def lacking(
    row: Mapping[str, Any],
    fields: Iterable[pa.Field],
    may_lack: frozenset[ColumnPath],
    above: ColumnPath = (),
) -> ColumnPath | None:
    """Return the first column that a row has no value for, not even None; None if it has all.

    Args:
        row: A row, or a value of a struct.
        fields: The columns that are wanted.
        may_lack: Those that need not be there.
        above: The columns that the row is below.
    """
    for field in fields:
        path = (*above, field.name)
        if field.name not in row:
            if path not in may_lack:
                return path
        elif pa.types.is_nested(field.type):
            found = _lacking_below(row[field.name], field.type, may_lack, path)
            if found is not None:
                return found
    return None


def _lacking_below(
    value: object, kind: pa.DataType, may_lack: frozenset[ColumnPath], path: ColumnPath
) -> ColumnPath | None:
    if pa.types.is_struct(kind):
        return lacking(value, kind, may_lack, path) if isinstance(value, Mapping) else None
    if isinstance(value, Mapping):
        value = list(value.items())
    if not isinstance(value, list | tuple | np.ndarray):
        return None
    parts: list[tuple[str, pa.DataType, Iterable[object]]] = []
    if pa.types.is_map(kind):  # A dict, or pairs, which is what a row function is given.
        pairs = [one for one in value if isinstance(one, list | tuple) and len(one) == _PAIR]
        parts.append((KEY, kind.key_type, [one[0] for one in pairs]))
        parts.append((VALUE, kind.item_type, [one[1] for one in pairs]))
    elif is_any_list(kind):
        parts.append((ELEMENT, kind.value_type, value))
    for name, below, values in parts:
        if pa.types.is_nested(below):
            found = (_lacking_below(one, below, may_lack, (*path, name)) for one in values)
            if (lacks := next((one for one in found if one is not None), None)) is not None:
                return lacks
    return None


def as_batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as one batch: with the table's types where the values have them.

    Other values keep a type of their own, and fitting them to the table tells what is wrong.

    Raises:
        TransformOutputError: The values of a column have no common type.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    arrays = []
    for name in names:
        values = [row.get(name) for row in rows]
        index = schema.get_field_index(name)
        try:
            arrays.append(_array(values, None if index < 0 else schema.field(index).type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise TransformOutputError(f"column {name!r}: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _array(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    if kind is not None and all(_is_kept(value, kind) for value in values):
        try:
            return _whole(pa.array(values, type=kind))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            pass
    return _whole(pa.array(values))


def _whole(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return values as one array.

    Raises:
        OverflowError: Arrow has made several, as one would be too large.
    """
    if isinstance(array, pa.ChunkedArray):
        raise OverflowError(
            f"{array.nbytes:,} bytes in {len(array):,} rows, too many for one array"
        )
    return array


def _is_kept(value: Any, kind: pa.DataType) -> bool:  # noqa: ANN401 - whatever a row holds.
    """Whether a value keeps its meaning in a type: pyarrow would cut 1.9 down to 1 by itself."""
    if value is None:
        return True
    if pa.types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        return isinstance(value, Mapping) and all(
            name in fields and _is_kept(one, fields[name]) for name, one in value.items()
        )
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return all(
            _is_kept(key, kind.key_type) and _is_kept(item, kind.item_type) for key, item in pairs
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        is_array = isinstance(value, np.ndarray) and value.dtype.kind in "fiu"
        some = value[:1] if is_array else value  # Of an array one value tells for all.
        return isinstance(value, Sequence | np.ndarray) and all(
            _is_kept(one, kind.value_type) for one in some
        )
    if isinstance(value, datetime):
        # It is a date as well, but not only; and without a zone it may be any moment of a day.
        return (
            pa.types.is_timestamp(kind)
            and (value.tzinfo is None) == (kind.tz is None)
            and value.microsecond % _MICROSECONDS[kind.unit] == 0
        )
    return next((isinstance(value, of) for is_kind, of in _KEPT if is_kind(kind)), True)


_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
_KEPT: tuple[tuple[Callable[[pa.DataType], bool], tuple[type, ...]], ...] = (
    (pa.types.is_integer, (numbers.Integral,)),
    (pa.types.is_floating, (numbers.Real,)),
    (pa.types.is_decimal, (Decimal, numbers.Integral)),
    (pa.types.is_date, (date,)),
    (pa.types.is_timestamp, (datetime,)),
)
