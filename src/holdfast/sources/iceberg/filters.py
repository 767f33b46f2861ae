"""From a user's filter to PyIceberg's expression, which finds files, and Arrow's, for rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow.compute as pc
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotIn,
    Or,
)
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import bind, extract_field_ids
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema

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
        bound = bind(schema, where, case_sensitive=True)
        return expression_to_pyarrow(bound, schema), extract_field_ids(bound)
    except (ValueError, TypeError) as error:
        raise SettingsError(
            what=f"where={where}: {error}", cure=f"the columns are {schema.column_names}"
        ) from error


def _all_of(triples: Sequence[Any]) -> BooleanExpression:
    return _joined(And, [_OPERATORS[operator](name, value) for name, operator, value in triples])


def _joined(join: Any, parts: Sequence[BooleanExpression]) -> BooleanExpression:  # noqa: ANN401
    joined: BooleanExpression = join(*parts) if len(parts) > 1 else parts[0]
    return joined


def _plain(value: object) -> object:
    return sorted(map(str, value)) if isinstance(value, set | frozenset) else str(value)
