"""What a scan reads: which rows by a filter, and which columns."""

from __future__ import annotations

import hashlib
import pickle
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pyarrow.types as pt

from holdfast.errors import SettingsError
from holdfast.model.arrow_types import is_any_list, widens

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


# ---- Which columns
_UNITS = ("s", "ms", "us", "ns")


def file_schema(metadata: pq.FileMetaData) -> pa.Schema:
    """Return one file's columns. Spark's INT96 timestamps are in UTC."""
    leaves = [metadata.schema.column(number) for number in range(len(metadata.schema))]
    old = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
    return pa.schema(
        [
            field.with_type(pa.timestamp("us", "UTC")) if field.name in old else field
            for field in metadata.schema.to_arrow_schema()
        ]
    )


class CommonSchema:
    """The columns of all files, each with a type that holds the values of every file."""

    def __init__(self) -> None:
        """Start without a file."""
        self._fields: dict[str, pa.Field] = {}
        self._first: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._files = 0
        self._last: pa.Schema | None = None

    def add(self, uri: str, schema: pa.Schema) -> None:
        """Add one more file.

        Raises:
            SettingsError: A column's types do not fit together; the error names two files.
        """
        self._files += 1
        self._counts.update(schema.names)
        if self._last is not None and schema.equals(self._last):
            return
        self._last = schema
        if twice := [name for name, count in Counter(schema.names).items() if count > 1]:
            raise SettingsError(
                what=f"{uri} has two columns {twice[0]!r}", cure="write it with distinct names"
            )
        for field in schema:
            plain = pa.field(field.name, _plain(field.type), field.nullable)
            known = self._fields.setdefault(field.name, plain)
            first = self._first.setdefault(field.name, uri)
            if (common := _common(known, plain)) is None:
                raise SettingsError(
                    what=f"column {field.name!r} is {known.type} in {first} "
                    f"and {plain.type} in {uri}",
                    cure="scan these files in separate runs, or write them with one type",
                )
            self._fields[field.name] = common

    def schema(self) -> pa.Schema:
        """Return the columns, in order of first appearance."""
        return pa.schema(
            [
                field if self._counts[name] == self._files else field.with_nullable(nullable=True)
                for name, field in self._fields.items()
            ]
        )


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a file's rows in the common schema; missing columns are NULL."""
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
        else:
            column = batch.column(index)
            columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def chosen(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return the requested columns, in that order.

    Raises:
        SettingsError: There is no such column.
    """
    if columns is None:
        return schema
    if missing := [name for name in columns if name not in schema.names]:
        raise SettingsError(
            what=f"columns: there is no column {missing[0]!r}", cure=f"choose from {schema.names}"
        )
    return pa.schema([schema.field(name) for name in columns])


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values, without a writer's encoding."""
    return kind.value_type if pt.is_dictionary(kind) else kind


def _common(known: pa.Field, field: pa.Field) -> pa.Field | None:
    """Return a field that holds the values of both; None if there is none."""
    kind = _common_type(known.type, field.type)
    return None if kind is None else pa.field(known.name, kind, known.nullable or field.nullable)


def _common_type(known: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if known == other or pt.is_null(other):
        return known
    if pt.is_null(known):
        return other
    if is_any_list(known) and known.id == other.id and not pt.is_fixed_size_list(known):
        item = _common(known.value_field, other.value_field)
        maker = pa.large_list if pt.is_large_list(known) else pa.list_
        return None if item is None else maker(item)
    if pt.is_struct(known) and pt.is_struct(other):
        return _common_struct(known, other)
    fitting = [(_breadth(b), b) for a, b in ((known, other), (other, known)) if widens(a, b)]
    return max(fitting, key=lambda ranked: ranked[0])[1] if fitting else None


def _common_struct(known: pa.StructType, other: pa.StructType) -> pa.DataType | None:
    fields = [known.field(number) for number in range(known.num_fields)]
    names = [field.name for field in fields]
    if names != [other.field(number).name for number in range(other.num_fields)]:
        return None
    found = [_common(field, other.field(number)) for number, field in enumerate(fields)]
    return None if any(field is None for field in found) else pa.struct(found)


def _breadth(kind: pa.DataType) -> tuple[bool, int, bool]:
    """Rank types that may each hold the other's values, so that the result holds all values."""
    unit = _UNITS.index(kind.unit) if hasattr(kind, "unit") and kind.unit in _UNITS else 0
    return not pt.is_fixed_size_binary(kind), unit, str(kind).startswith("large_")
