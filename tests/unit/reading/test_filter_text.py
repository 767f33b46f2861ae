"""Filters as text: a text in one means what SQL says, or is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg import expressions
from pyiceberg.expressions.parser import parse

from holdfast.errors import SettingsError
from holdfast.reading.filter_text import parsed_filter

# Its classes take arguments by position, which their types do not say.
px: Any = expressions


@pytest.mark.parametrize(
    "text",
    [
        "x\ty",
        "x       y",
        "x\ny",
        "x\r\ny",
        "\t",
        "it's",
        "''",
        "",
        '"quoted"',
        "7",
        "50%_é",
        "a\0b",
    ],
    ids=repr,
)
def test_a_text_is_compared_as_it_is_written(text: str) -> None:
    """PyIceberg's parser would take a tab for blanks, and stop at a line break."""
    quoted = "'" + text.replace("'", "''") + "'"
    assert parsed_filter(f"name = {quoted}") == px.EqualTo("name", text)
    assert parsed_filter(f"{quoted} <> name") == px.NotEqualTo("name", text)
    assert parsed_filter(f"name in ('a', {quoted})") == px.In("name", {"a", text})
    assert parsed_filter(f"name not in ('a', {quoted})") == px.NotIn("name", {"a", text})
    whole = parsed_filter(f"not (a = {quoted} or b = 'b') and\tc >= 3")
    assert whole == px.And(
        px.Not(px.Or(px.EqualTo("a", text), px.EqualTo("b", "b"))), parse("c >= 3")
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name like 'x\ty%'", px.StartsWith("name", "x\ty")),
        ("name NOT LIKE\n'it''s%'", px.NotStartsWith("name", "it's")),
        ("name like '%'", px.StartsWith("name", "")),
        ("name like 'x'", px.EqualTo("name", "x")),
        ("like = 'x_'", px.EqualTo("like", "x_")),
        ("alike = 'x_'", px.EqualTo("alike", "x_")),
        ("\"a 'b' c\" = 'd'", px.EqualTo("a 'b' c", "d")),
        ("\"like\" = '_'", px.EqualTo("like", "_")),
        ("name in ('a', 'a')", px.EqualTo("name", "a")),
    ],
    ids=repr,
)
def test_patterns_and_names_mean_what_sql_says(text: str, expected: object) -> None:
    """A pattern is the beginning of a text; what is between double quotes is a name."""
    assert parsed_filter(text) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name like 'x_%'", "wildcard"),
        ("name not like 'x_'", "wildcard"),
        ("name like '_'", "wildcard"),
        ("name like '%x'", "wildcard"),
        ("name like 'x%%'", "wildcard"),
        ("name like 'x%\n'", "wildcard"),
        ("name like 'x\\_%'", "backslash"),
        ("name like '100\\%'", "backslash"),
        ("name like 'x\\\\%'", "backslash"),
        ("name = 'C:\\temp'", "backslash"),
        ("name = 'it\\'s'", "backslash"),
        ("name in ('a', 'a\\b')", "backslash"),
        ("\"a\\b\" = 'x'", "the name"),
        ("\"a\tb\" = 'x'", "the name"),
    ],
    ids=repr,
)
def test_what_sql_reads_otherwise_than_the_parser_is_refused(text: str, problem: str) -> None:
    """Spark takes a backslash as an escape, and `_` for any character."""
    with pytest.raises(SettingsError, match=problem):
        parsed_filter(text)
