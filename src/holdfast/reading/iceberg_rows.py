"""Rows of an Iceberg file as the snapshot has them: columns by field id, filters, deletes."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    LiteralPredicate,
    Not,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    Or,
    Reference,
    SetPredicate,
)
from pyiceberg.expressions.literals import (
    AboveMax,
    BelowMin,
    DecimalLiteral,
    FloatLiteral,
    LongLiteral,
    StringLiteral,
    TimestampLiteral,
)
from pyiceberg.expressions.visitors import BooleanExpressionVisitor, bind, extract_field_ids, visit
from pyiceberg.io.pyarrow import expression_to_pyarrow, schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from holdfast.errors import InputChangedError, SettingsError, UnsupportedTableError
from holdfast.model.arrow_types import is_any_list
from holdfast.model.coverage import PinnedFile
from holdfast.reading.filter_text import only_true, parsed_filter
from holdfast.reading.parquet_file import Numbers
from holdfast.storage.port import Storage
from holdfast.text import in_short

# ---- Columns by field id: a file may have them under other names, in narrower types, or not at all

_FIELD_ID = b"PARQUET:field_id"
# What a column holds in files that were written before it was added, as JSON.
DEFAULT = b"holdfast:default"
# Column ids by name, as JSON, for files without ids; kept on the schema.
NAMES = b"holdfast:names"


class FieldsDifferError(ValueError):
    """A file's columns cannot be matched to the table's."""


def compact_first(table: str) -> str:
    """Return the cure for files that are not read; without the options Spark leaves most."""
    return (
        "compact the table first: CALL <catalog>.system.rewrite_data_files(table => "
        f"'{table}', options => map('rewrite-all', 'true', 'remove-dangling-deletes', 'true'))"
    )


def names_of(table: str, metadata: TableMetadata) -> NameMapping | None:
    """Return how a table finds columns in files without ids; None if it does not.

    Args:
        table: The table's name, for the error.
        metadata: Its metadata.

    Raises:
        UnsupportedTableError: Its property cannot be read.
    """
    try:
        return metadata.name_mapping()
    except ValueError as error:
        raise UnsupportedTableError(
            table=table,
            what="its property schema.name-mapping.default is not a name mapping: "
            f"{in_short(error)}",
            cure="correct it, or remove it if all data files have field ids",
        ) from error


def field_id(column: pa.Field) -> int | None:
    """Return a field's id, if it has one."""
    text = (column.metadata or {}).get(_FIELD_ID)
    return None if text is None else int(text)


@dataclass(frozen=True, kw_only=True)
class ByFieldId:
    """Finds columns by their ids. Pickled with a task."""

    # With ids and defaults as metadata.
    schema: pa.Schema
    # Values of columns that may be missing from a file, because its partition has them; by id.
    constants: Mapping[int, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        fields: Sequence[NestedField],
        names: NameMapping | None = None,
        constants: Mapping[int, Any] | None = None,
    ) -> ByFieldId:
        """Return how columns of a table are found in a file of it.

        Args:
            fields: The columns.
            names: How the table finds columns in files without ids.
            constants: Values that only the file's partition has, by column id.

        Raises:
            FieldsDifferError: A column has a default that cannot be used.
        """
        return cls(schema=columns_to_read(fields, names), constants=constants or {})

    def wanted(self, own: pa.Schema) -> Iterable[str]:
        """Choose from a file's own columns."""
        return self._places(own).values()

    def fit(self, batch: pa.RecordBatch, file: PinnedFile | None = None) -> pa.RecordBatch:  # noqa: ARG002
        """Return a file's rows in the table's schema."""
        places = self._places(batch.schema)
        columns = [
            cast_to(batch.column(places[number]), column.type)
            if (number := field_id(column)) in places
            else self._missing(column, batch.num_rows)
            for column in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._plain)

    def check(self, own: pa.Schema) -> set[int]:
        """Return the ids of columns that are missing from a file.

        Raises:
            FieldsDifferError: The file cannot be read by ids.
        """
        places = self._places(own)
        missing = set()
        for column in self.schema:
            number = field_id(column)
            if number is None:
                raise FieldsDifferError(f"column {column.name!r} has no id")
            if number not in places:
                missing.add(number)
            elif not _agree(own.field(places[number]), column):
                raise FieldsDifferError(f"the nested type of column {column.name!r} has changed")
        return missing

    def _missing(self, column: pa.Field, rows: int) -> pa.Array:
        number = field_id(column)
        if number is not None and number in self.constants:
            return pa.repeat(pa.scalar(self.constants[number], _bare(column.type)), rows)
        return _missing(column, rows)

    @cached_property
    def _plain(self) -> pa.Schema:
        return without_metadata(self.schema)

    @cached_property
    def _names(self) -> Mapping[str, int]:
        found: dict[str, int] = json.loads((self.schema.metadata or {}).get(NAMES, b"{}"))
        return found

    def _places(self, own: pa.Schema) -> dict[int, str]:
        """Return the names of the wanted columns in a file, by id."""
        wanted = {field_id(column) for column in self.schema}
        ids = {column.name: field_id(column) for column in own}
        if all(number is None for number in ids.values()):
            ids = {name: self._names.get(name) for name in ids}
        return {n: name for name, n in ids.items() if n is not None and n in wanted}


def columns_to_read(fields: Sequence[NestedField], names: NameMapping | None) -> pa.Schema:
    """Return columns as `ByFieldId` takes them: with ids, defaults, and names in old files.

    Args:
        fields: The columns of the table.
        names: How the table finds columns in files without ids.

    Raises:
        FieldsDifferError: A column has a default of a kind that cannot be recorded.
    """
    found = schema_to_pyarrow(Schema(*fields), include_field_ids=True)
    ids = {name: entry.field_id for entry in (names.root if names else ()) for name in entry.names}
    return pa.schema(
        [
            _with_default(arrow, column.initial_default)
            for arrow, column in zip(found, fields, strict=True)
        ],
        metadata={NAMES: json.dumps(ids)},
    )


def _with_default(column: pa.Field, default: object) -> pa.Field:
    if default is None:
        return column
    try:
        return column.with_metadata({**column.metadata, DEFAULT: json.dumps(default)})
    except TypeError as error:
        raise FieldsDifferError(
            f"the default of column {column.name!r} has the unsupported type {column.type}"
        ) from error


def without_metadata(schema: pa.Schema) -> pa.Schema:
    """Return the columns in the form that a transform sees."""
    return pa.schema(
        [pa.field(column.name, _bare(column.type), column.nullable) for column in schema]
    )


def _bare(kind: pa.DataType) -> pa.DataType:
    """Return a type without the ids inside it."""
    if pt.is_struct(kind):
        return pa.struct([_bare_field(kind.field(n)) for n in range(kind.num_fields)])
    if pt.is_map(kind):
        return pa.map_(_bare_field(kind.key_field), _bare_field(kind.item_field))
    if pt.is_large_list(kind):
        return pa.large_list(_bare_field(kind.value_field))
    if pt.is_list(kind):
        return pa.list_(_bare_field(kind.value_field))
    return kind


def _bare_field(column: pa.Field) -> pa.Field:
    return pa.field(column.name, _bare(column.type), column.nullable)


def _agree(own: pa.Field, column: pa.Field) -> bool:
    """Whether the children of a column have the same ids and names, at every depth."""
    pairs = list(zip(_children(own.type), _children(column.type), strict=False))
    if len(_children(own.type)) != len(_children(column.type)):
        return False
    inside_struct = pt.is_struct(column.type)
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


def _missing(column: pa.Field, rows: int) -> pa.Array:
    default = (column.metadata or {}).get(DEFAULT)
    if default is None:
        return pa.nulls(rows, _bare(column.type))
    return pa.repeat(pa.scalar(json.loads(default), column.type), rows)


def cast_to(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return a file's column in another type, which may have ids inside it."""
    kind = _bare(wanted)
    if column.type == kind:
        return column
    if isinstance(kind, pa.BaseExtensionType):
        storage = column.storage if isinstance(column, pa.ExtensionArray) else column
        return pa.ExtensionArray.from_storage(kind, storage.cast(kind.storage_type))
    return column.cast(kind)


# ---- From a user's filter to PyIceberg's expression, which finds files, and Arrow's, for rows

_OPERATORS: dict[str, Any] = {
    "=": EqualTo,
    "==": EqualTo,
    "!=": NotEqualTo,
    "<": LessThan,
    "<=": LessThanOrEqual,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
    "in": In,
    "not in": NotIn,
}
_PRESENT: tuple[Any, ...] = (NotNull, NotNaN)
# How SQL writes values in quotes. PyIceberg would also read what Python does.
_WHOLE = re.compile(r" *[+-]?\d+(?:\.\d*)? *", re.ASCII)
_REAL = re.compile(
    r" *[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?) *", re.ASCII | re.IGNORECASE
)
_FORMS: tuple[tuple[Any, re.Pattern[str]], ...] = (
    ((IntegerType, LongType, DecimalType), _WHOLE),
    ((FloatType, DoubleType), _REAL),
    (DateType, re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)),
)
_TIMES = (
    DateType,
    TimeType,
    TimestampType,
    TimestamptzType,
    TimestampNanoType,
    TimestamptzNanoType,
)
_FLOAT = struct.Struct("<f")
_EXACT = Context(prec=100)
_DAY_US = 24 * 3600 * 1_000_000
_CURE = 'pass a string ("price > 3") or a list of triples (("price", ">", 3))'


def text_of(where: str | Sequence[Any] | None) -> str:
    """Return a filter as a string: a different string is a different filter."""
    if where is None or isinstance(where, str):
        return where or ""
    return json.dumps(where, default=_plain)


def as_expression(where: str | Sequence[Any] | None) -> BooleanExpression:
    """Return a user's filter as PyIceberg's expression.

    Raises:
        SettingsError: It is not a filter.
    """
    if where is None:
        return AlwaysTrue()
    try:
        if isinstance(where, str):
            return parsed_filter(where)
        if isinstance(where[0], tuple):
            return _all_of(where)
        return _joined(Or, [_all_of(triples) for triples in where])
    except SettingsError:
        raise
    except Exception as error:  # The parser has its own errors.
        raise SettingsError(what=f"where={where!r}: {error}", cure=_CURE) from error


def for_rows(where: BooleanExpression, schema: Schema) -> tuple[pc.Expression | None, set[int]]:
    """Return a filter as Arrow's expression, and the ids of the fields that it uses.

    Raises:
        SettingsError: The filter does not fit the schema.
    """
    if isinstance(where, AlwaysTrue):
        return None, set()
    try:
        bound = bind(schema, for_columns(where, schema), case_sensitive=True)
        return expression_to_pyarrow(bound, schema), extract_field_ids(bound)
    except (ValueError, TypeError) as error:
        raise SettingsError(
            what=f"where={where}: {error}", cure=f"the columns are {schema.column_names}"
        ) from error


def for_columns(where: BooleanExpression, schema: Schema) -> BooleanExpression:
    """Return a filter that holds only where it is true, with values that the columns can hold.

    PyIceberg compares a float column with a double when it looks for files, so `f = 0.1` finds
    none; it treats infinity as a value that no float has; and it lets NULL pass if a value is
    beyond the column's type.

    Raises:
        SettingsError: The filter uses values that cannot be compared.
        ValueError: There is no such column.
    """
    return visit(only_true(where, schema), _ForColumns(schema))


class _ForColumns(BooleanExpressionVisitor[BooleanExpression]):
    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def visit_true(self) -> BooleanExpression:
        return AlwaysTrue()

    def visit_false(self) -> BooleanExpression:
        return AlwaysFalse()

    def visit_not(self, child_result: BooleanExpression) -> BooleanExpression:
        return Not(child_result)

    def visit_and(self, left_result: Any, right_result: Any) -> BooleanExpression:  # noqa: ANN401
        return And(left_result, right_result)

    def visit_or(self, left_result: Any, right_result: Any) -> BooleanExpression:  # noqa: ANN401
        return Or(left_result, right_result)

    def visit_bound_predicate(self, predicate: Any) -> BooleanExpression:  # noqa: ANN401
        bound: BooleanExpression = predicate
        return bound

    def visit_unbound_predicate(self, predicate: Any) -> BooleanExpression:  # noqa: ANN401
        given: BooleanExpression = predicate
        if not isinstance(given, LiteralPredicate | SetPredicate):
            return given
        term: Any = given.term
        if not isinstance(term, Reference):
            return given
        kind = self._schema.find_field(term.name).field_type
        if isinstance(kind, UUIDType):
            raise SettingsError(
                what=f"where: {term.name!r} is a UUID, which Arrow cannot compare",
                cure="leave it out of the filter, and drop rows in the transform",
            )
        make: Any = type(given)
        for literal in given.literals if isinstance(given, SetPredicate) else [given.literal]:
            _refuse_rounded(term.name, literal, kind)
        if isinstance(given, SetPredicate):
            held = {_held(literal, kind) for literal in given.literals}
            # No row has a value beyond the type; PyIceberg would look for the type's last value.
            held = {
                literal for literal in held if not isinstance(literal.to(kind), AboveMax | BelowMin)
            }
            return make(term, held)  # type: ignore[no-any-return]
        held_one = _held(given.literal, kind)
        if isinstance(held_one.to(kind), AboveMax | BelowMin) and isinstance(
            make(term, held_one).bind(self._schema), AlwaysTrue
        ):
            # All values are on one side of it; NULL and NaN are on neither.
            has_order = not isinstance(given, NotEqualTo) and isinstance(kind, FloatType)
            return _joined(
                And, [present(term) for present in (_PRESENT if has_order else _PRESENT[:1])]
            )
        return make(term, held_one)  # type: ignore[no-any-return]


def _refuse_rounded(name: str, literal: Any, kind: IcebergType) -> None:  # noqa: ANN401
    """Refuse a value that PyIceberg would change: `n = 3.5` would find rows with 4.

    Raises:
        SettingsError: The column cannot hold the value, or SQL would read it otherwise.
    """
    _refuse_other_forms(name, literal, kind)
    held, given = _held(literal, kind).to(kind), literal.value
    is_same = True
    if isinstance(held, AboveMax | BelowMin):
        return
    if isinstance(kind, IntegerType | LongType | DecimalType):
        is_same = Decimal(str(given)) == Decimal(str(held.value))
    elif isinstance(kind, DateType) and isinstance(literal, TimestampLiteral):
        is_same = given % _DAY_US == 0
    if not is_same:
        raise SettingsError(
            what=f"where: {name!r} is {kind}, and cannot hold {given}",
            cure="compare it with a value of its type",
        )


def _refuse_other_forms(name: str, literal: Any, kind: IcebergType) -> None:  # noqa: ANN401
    """Refuse what PyIceberg reads and SQL does not: 20260105 as a number of days, '1_0' as 10.

    Raises:
        SettingsError: The value has another form than SQL has for the column's type.
    """
    wanted = next((wanted for kinds, wanted in _FORMS if isinstance(kind, kinds)), None)
    if isinstance(literal, StringLiteral):
        is_other = wanted is not None and not wanted.fullmatch(literal.value)
    else:
        is_other = isinstance(literal, LongLiteral) and isinstance(kind, _TIMES)
    if is_other:
        raise SettingsError(
            what=f"where: {name!r} is {kind}, and {literal.value!r} is not how SQL writes one",
            cure="write numbers in digits, and dates and times in quotes: '2026-01-31', "
            "'2026-01-31T10:00:00'",
        )


def _held(value: Any, kind: IcebergType) -> Any:  # noqa: ANN401 - a literal of any type.
    """Return a literal as a float or decimal column holds it; for other columns unchanged."""
    number = value.value
    if isinstance(kind, DecimalType) and isinstance(number, Decimal):
        # PyIceberg only takes a decimal with as many digits as the column has.
        scaled = _EXACT.quantize(number, Decimal(1).scaleb(-kind.scale))
        return DecimalLiteral(scaled) if scaled == number else value
    if not isinstance(kind, FloatType) or not isinstance(number, int | float | Decimal):
        return value
    try:
        return FloatLiteral(_FLOAT.unpack(_FLOAT.pack(float(number)))[0])
    except OverflowError:  # No float is that large: PyIceberg handles it.
        return value


def _all_of(triples: Sequence[Any]) -> BooleanExpression:
    return _joined(And, [_OPERATORS[operator](name, value) for name, operator, value in triples])


def _joined(join: Any, parts: Sequence[BooleanExpression]) -> BooleanExpression:  # noqa: ANN401
    joined: BooleanExpression = join(*parts) if len(parts) > 1 else parts[0]
    return joined


def _plain(value: object) -> object:
    return sorted(map(str, value)) if isinstance(value, set | frozenset) else str(value)


# ---- Position deletes: files that name deleted rows of other files

# Many files of one partition share a delete file.
_FILES_HELD = 8


@dataclass(frozen=True, kw_only=True)
class PositionDeletes:
    """Reads the delete files that apply to a file. Pickled with a task."""

    storage: Storage
    _held: dict[str, pa.Table] = field(default_factory=dict, compare=False, repr=False)

    def numbers(self, file: PinnedFile) -> Numbers | None:
        """Return the numbers of a file's deleted rows, in order; None if there are none.

        Raises:
            InputChangedError: A delete file is gone.
        """
        found = [
            positions
            for uri in file.deletes
            if len(positions := _positions(self._read(uri), file.uri))
        ]
        return np.unique(np.concatenate(found)) if found else None

    def _read(self, uri: str) -> pa.Table:
        if uri in self._held:
            return self._held[uri]
        try:
            data = self.storage.get(uri)
        except FileNotFoundError as error:
            raise InputChangedError(what=f"{uri} is gone") from error
        with pq.ParquetFile(pa.BufferReader(data), read_dictionary=["file_path"]) as deletes:
            table = deletes.read(columns=["file_path", "pos"])
        if len(self._held) == _FILES_HELD:
            self._held.pop(next(iter(self._held)))
        self._held[uri] = table
        return table


def _positions(deletes: pa.Table, uri: str) -> Numbers:
    named: Numbers = deletes.filter(pc.field("file_path") == uri)["pos"].to_numpy()
    return named
