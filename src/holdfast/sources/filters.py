"""Filters: which rows of a scan are read."""

from __future__ import annotations

import hashlib
import pickle
import re
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pyarrow.types as pt

from holdfast.errors import SettingsError

_CURE = 'pass pc.field("price") > 3, or a list of triples such as ("price", ">", 3)'
# Filters that a NaN may satisfy although it is outside the bounds of its row group, which ignore
# NaN.
_NAN_MAY_MATCH = re.compile(r"!=|\w\(")


def as_expression(where: pc.Expression | Sequence[object] | None) -> pc.Expression | None:
    """Return a user's filter as an expression.

    Raises:
        SettingsError: It is not a filter.
    """
    if where is None:
        return None
    if not isinstance(where, pc.Expression):
        try:
            where = pq.filters_to_expression(where)
        except (TypeError, ValueError) as error:
            raise SettingsError(what=f"where={where!r}: {error}", cure=_CURE) from error
    if "FieldPath(" in str(where):
        raise SettingsError(what=f"where={where} refers to a column by position", cure=_CURE)
    return where


def text_of(where: pc.Expression | None) -> str:
    """Return a filter as a string: a different string is a different filter."""
    if where is None:
        return ""
    text = str(where)
    if "..." in text:  # A long list of values is shown only in part.
        digest = hashlib.sha256(pickle.dumps(where, protocol=4)).hexdigest()
        text = f"{text} {digest}"
    return text


def with_needed(wanted: pa.Schema, where: pc.Expression | None, schema: pa.Schema) -> pa.Schema:
    """Return the wanted columns, followed by those that the filter uses.

    Raises:
        SettingsError: The filter does not fit the columns.
    """
    if where is None:
        return wanted
    _refuse_unfit(where, schema)
    # pyarrow does not report which columns an expression needs. One too many costs little.
    text = str(where)
    more = [field for field in schema if field.name not in wanted.names and field.name in text]
    needed = pa.schema([*wanted, *more])
    _refuse_unfit(where, needed)
    return needed


def groups_left_out(
    footer: bytes, where: pc.Expression, schema: pa.Schema, known: Mapping[str, pa.Scalar]
) -> tuple[int, ...]:
    """Return the row groups whose statistics show that none of their rows match.

    Args:
        footer: The file's footer.
        where: The filter.
        schema: The columns of all files.
        known: Columns that have a single value in the whole file.
    """
    text = str(where)
    if _NAN_MAY_MATCH.search(text) and any(
        pt.is_floating(field.type) and field.name in text for field in schema
    ):
        return ()
    guarantee = None
    for name, value in known.items():
        clause = pc.field(name) == value if value.is_valid else pc.field(name).is_null()
        guarantee = clause if guarantee is None else guarantee & clause
    fragment = ds.ParquetFileFormat().make_fragment(
        pa.BufferReader(footer), partition_expression=guarantee
    )
    kept = {group.id for group in fragment.subset(where, schema=schema).row_groups}
    return tuple(group.id for group in fragment.row_groups if group.id not in kept)


def _refuse_unfit(where: pc.Expression, schema: pa.Schema) -> None:
    """Refuse a filter that cannot be applied to these columns.

    Raises:
        SettingsError: The filter does not fit the columns.
    """
    try:
        schema.empty_table().filter(where)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SettingsError(
            what=f"where={where}: {str(error).splitlines()[0]}",
            cure=f"{_CURE}; the columns are {schema.names}",
        ) from error
