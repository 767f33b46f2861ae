"""From a user's filter to PyIceberg's expression, which finds files, and Arrow's, for rows."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow.compute as pc
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
from pyiceberg.expressions.literals import AboveMax, BelowMin, FloatLiteral
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import (
    BooleanExpressionVisitor,
    bind,
    extract_field_ids,
    visit,
)
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import FloatType, IcebergType, UUIDType

from holdfast.errors import SettingsError
from holdfast.sources.iceberg.scan import Triples

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
_FLOAT = struct.Struct("<f")
_CURE = 'give a text ("price > 3") or a list of triples (("price", ">", 3))'


def text_of(where: str | Triples | None) -> str:
    """Return a filter as one text: another text is another filter."""
    if where is None or isinstance(where, str):
        return where or ""
    return json.dumps(where, default=_plain)


def as_expression(where: str | Triples | None) -> BooleanExpression:
    """Return a user's filter as PyIceberg's expression.

    Raises:
        SettingsError: It is none.
    """
    if where is None:
        return AlwaysTrue()
    try:
        if isinstance(where, str):
            return parse(where)
        if isinstance(where[0], tuple):
            return _all_of(where)
        return _joined(Or, [_all_of(one) for one in where])
    except Exception as error:  # The parser has errors of its own.
        raise SettingsError(what=f"where={where!r}: {error}", cure=_CURE) from error


def for_rows(where: BooleanExpression, schema: Schema) -> tuple[pc.Expression | None, set[int]]:
    """Return a filter as Arrow's expression, and the ids of the fields that it asks for.

    Raises:
        SettingsError: It does not fit the schema.
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
    """Return a filter whose values are those that the columns can hold.

    PyIceberg compares a float column with a double when it looks for files, so `f = 0.1` finds
    none; takes infinity for a value that no float has; and lets NULL pass where a value is beyond
    the column's type.

    Raises:
        SettingsError: It asks for values that cannot be compared.
        ValueError: There is no such column.
    """
    return visit(where, _ForColumns(schema))


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
                what=f"where: {term.name!r} is a uuid, and Arrow cannot compare them",
                cure="leave it out of the filter, and drop rows in the transform",
            )
        make: Any = type(given)
        if isinstance(given, SetPredicate):
            held = {_held(one, kind) for one in given.literals}
            # No row has what is beyond the type; PyIceberg would look for the type's last value.
            held = {one for one in held if not isinstance(one.to(kind), AboveMax | BelowMin)}
            return make(term, held)  # type: ignore[no-any-return]
        if isinstance(given.literal.to(kind), AboveMax | BelowMin) and isinstance(
            make(term, _held(given.literal, kind)).bind(self._schema), AlwaysTrue
        ):
            # All values are on one side of it; NULL and NaN are on none.
            has_order = not isinstance(given, NotEqualTo) and isinstance(kind, FloatType)
            return _joined(And, [one(term) for one in (_PRESENT if has_order else _PRESENT[:1])])
        return make(term, _held(given.literal, kind))  # type: ignore[no-any-return]


def _held(value: Any, kind: IcebergType) -> Any:  # noqa: ANN401 - a literal of any type.
    """Return a literal as a float column holds it; of other columns as it is."""
    number = value.value
    if not isinstance(kind, FloatType) or not isinstance(number, int | float | Decimal):
        return value
    try:
        return FloatLiteral(_FLOAT.unpack(_FLOAT.pack(float(number)))[0])
    except OverflowError:  # No float is as large: PyIceberg knows what that means.
        return value


def _all_of(triples: Sequence[Any]) -> BooleanExpression:
    return _joined(And, [_OPERATORS[operator](name, value) for name, operator, value in triples])


def _joined(join: Any, parts: Sequence[BooleanExpression]) -> BooleanExpression:  # noqa: ANN401
    joined: BooleanExpression = join(*parts) if len(parts) > 1 else parts[0]
    return joined


def _plain(value: object) -> object:
    return sorted(map(str, value)) if isinstance(value, set | frozenset) else str(value)
