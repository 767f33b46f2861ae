"""What a filter says: text is read as SQL does, and a filter holds only where it is true.

The parser turns tabs into blanks, even inside texts, stops at line breaks, takes a backslash now as
an escape and now as a character, and `_` in LIKE as itself. A filter decides which rows are read or
removed. So texts do not pass through the parser: a number takes each one's place meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundPredicate,
    EqualTo,
    In,
    LiteralPredicate,
    Not,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    SetPredicate,
)
from pyiceberg.expressions.literals import StringLiteral
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import BooleanExpressionVisitor, rewrite_not, visit
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType

from holdfast.errors import SettingsError

_QUOTED = re.compile(
    r"(?P<like>\blike\s*)?'(?P<text>(?:[^']|'')*)'|\"(?P<name>[^\"]*)\"", re.IGNORECASE
)
_ODD_IN_NAME = re.compile(r"[\\\t\n\r]")
_TRIPLES = 'pass a list of triples, which are taken literally: (("name", "=", value),)'


def parsed_filter(text: str) -> BooleanExpression:
    """Return a filter in SQL as PyIceberg's expression.

    Raises:
        SettingsError: It has a part that SQL would read otherwise.
        Exception: It is not a filter; the parser has its own errors.
    """
    texts: list[str] = []

    def numbered(quoted: re.Match[str]) -> str:
        if quoted["name"] is not None:
            _refuse_odd_name(quoted["name"])
            return quoted[0]
        value = quoted["text"].replace("''", "'")
        _refuse_backslash(quoted["text"])
        number, like, end = len(texts), quoted["like"] or "", ""
        if like:
            _refuse_wildcards(quoted["text"])
            value, end = (value[:-1], "%") if value.endswith("%") else (value, "")
        texts.append(value)
        return f"{like}'{number}{end}'"

    return _with_texts(parse(_QUOTED.sub(numbered, text)), texts)


def _with_texts(part: Any, texts: Sequence[str]) -> BooleanExpression:  # noqa: ANN401
    """Return an expression with texts in place of their numbers."""

    def text_of(literal: Any) -> Any:  # noqa: ANN401 - a literal of any type.
        is_text = isinstance(literal, StringLiteral)
        return StringLiteral(texts[int(literal.value)]) if is_text else literal

    make: Any = type(part)
    found: BooleanExpression = part
    if isinstance(part, And | Or):
        found = make(_with_texts(part.left, texts), _with_texts(part.right, texts))
    elif isinstance(part, Not):
        found = make(_with_texts(part.child, texts))
    elif isinstance(part, LiteralPredicate):
        found = make(part.term, text_of(part.literal))
    elif isinstance(part, SetPredicate):
        found = make(part.term, {text_of(literal) for literal in part.literals})
    return found


def _refuse_backslash(text: str) -> None:
    """Refuse a text that Spark reads otherwise than the SQL standard.

    Raises:
        SettingsError: It has a backslash.
    """
    if "\\" in text:
        raise SettingsError(
            what=f"where: '{text}' has a backslash, which Spark takes as an escape and the SQL "
            "standard as a character",
            cure=_TRIPLES,
        )


def _refuse_wildcards(pattern: str) -> None:
    """Refuse a pattern that is more than the beginning of a text.

    Raises:
        SettingsError: It has `_`, or `%` before its end.
    """
    if "_" in pattern or "%" in pattern[:-1]:
        raise SettingsError(
            what=f"where: LIKE '{pattern}' has a wildcard other than % at its end; _ is one too",
            cure="compare with >= and <, or choose the rows in the transform",
        )


def _refuse_odd_name(name: str) -> None:
    """Refuse a column's name that the parser would change.

    Raises:
        SettingsError: It has a backslash, a tab or a line break.
    """
    if _ODD_IN_NAME.search(name):
        raise SettingsError(
            what=f"where: the name {name!r} has a backslash, a tab or a line break", cure=_TRIPLES
        )


# ---- The filter as a file's metadata and its rows both understand it


def only_true(where: BooleanExpression, schema: Schema) -> BooleanExpression:
    """Return a filter without NOT that holds only where the given one is true, as in SQL.

    PyIceberg finds files by such a form, and lets NULL pass some comparisons. Of rows another form
    would be asked something else: NaN is neither below a number nor not below it.

    Args:
        where: The filter, not bound.
        schema: The schema of the rows.

    Raises:
        ValueError: There is no such column.
    """
    return visit(rewrite_not(where), _OnlyTrue(schema))


class _OnlyTrue(BooleanExpressionVisitor[BooleanExpression]):
    """Adds IS NOT NULL where NULL could pass. Expects no NOT."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def visit_true(self) -> BooleanExpression:
        return AlwaysTrue()

    def visit_false(self) -> BooleanExpression:
        return AlwaysFalse()

    def visit_not(self, child_result: BooleanExpression) -> BooleanExpression:
        raise ValueError(f"NOT is left: {child_result}")

    def visit_and(self, left_result: Any, right_result: Any) -> BooleanExpression:  # noqa: ANN401
        return And(left_result, right_result)

    def visit_or(self, left_result: Any, right_result: Any) -> BooleanExpression:  # noqa: ANN401
        return Or(left_result, right_result)

    def visit_bound_predicate(self, predicate: BoundPredicate) -> BooleanExpression:
        raise ValueError(f"already bound: {predicate}")

    def visit_unbound_predicate(self, predicate: Any) -> BooleanExpression:  # noqa: ANN401
        given: BooleanExpression = predicate
        if isinstance(given, SetPredicate) and self._is_float(predicate.term.name):
            given = _one_by_one(predicate)
        if isinstance(predicate, NotEqualTo | NotIn | NotStartsWith | NotNaN):
            present: Any = NotNull
            return And(given, present(predicate.term))
        return given

    def _is_float(self, name: str) -> bool:
        return isinstance(self._schema.find_field(name).field_type, FloatType | DoubleType)


def _one_by_one(predicate: Any) -> BooleanExpression:  # noqa: ANN401 - In or NotIn.
    """Return comparisons instead of a set: to Arrow -0.0 is not in a set of 0.0, but equals it."""
    is_in = isinstance(predicate, In)
    make: Callable[..., BooleanExpression] = EqualTo if is_in else NotEqualTo
    parts = [make(predicate.term, literal) for literal in predicate.literals]
    join: Callable[..., BooleanExpression] = Or if is_in else And
    return join(*parts) if len(parts) > 1 else parts[0]
