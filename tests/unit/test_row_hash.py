"""The SQL of a row's hash, by type. What Spark makes of it: tests/integration/test_input_values."""

from __future__ import annotations

import re

import pytest
from pyspark.sql import types as st

from holdfast.spark.dataframe import column_types, row_hash_sql

INT = st.IntegerType()


def hash_of(kind: st.DataType, name: str = "c") -> str:
    """Return what is hashed of one column, without the salt."""
    schema = st.StructType([st.StructField(name, kind)])
    found = re.fullmatch(r"xxhash64\(\d+L(?:, (.*))?\)", row_hash_sql(schema, ["_0"]))
    assert found is not None
    return found[1]


# What decides that two values have different hashes: a mark for NULL, a length, sorted entries.
NULL_AT = "if(exists({0}, {1} -> {1} IS NULL), xxhash64(transform({0}, {1} -> {1} IS NULL)), 0L)"
EXPRESSIONS = {
    "plain": (INT, "_0 IS NULL, _0"),
    "void": (st.NullType(), "_0 IS NULL"),
    "struct": (
        st.StructType([st.StructField("a`b", INT), st.StructField("c", st.NullType())]),
        "_0 IS NULL, _0.`a``b` IS NULL, _0.`a``b`, _0.`c` IS NULL",
    ),
    "array": (
        st.ArrayType(INT),
        f"coalesce(size(_0), -1), {NULL_AT.format('_0', 'e0')}, _0",
    ),
    "array of structs": (
        st.ArrayType(st.StructType([st.StructField("x", INT)])),
        "coalesce(size(_0), -1), transform(_0, e0 -> xxhash64(e0 IS NULL, e0.`x` IS NULL, e0.`x`))",
    ),
    "array of arrays": (
        st.ArrayType(st.ArrayType(INT)),
        (
            "coalesce(size(_0), -1), transform(_0, e0 -> xxhash64(coalesce(size(e0), -1), "
            f"{NULL_AT.format('e0', 'e1')}, e0))"
        ),
    ),
    "map": (
        st.MapType(st.StringType(), INT),
        (
            "coalesce(size(_0), -1), sort_array(transform(map_entries(_0), e0 -> xxhash64("
            "e0.key IS NULL, e0.key, e0.value IS NULL, e0.value)))"
        ),
    ),
}


@pytest.mark.parametrize("kind", EXPRESSIONS)
def test_each_type_is_hashed_so_that_different_values_differ(kind: str) -> None:
    """Spark's hash alone skips NULLs, knows no lengths and refuses maps."""
    given, expected = EXPRESSIONS[kind]
    assert hash_of(given) == expected


def schema_of(**columns: st.DataType) -> st.StructType:
    """Return a schema of some columns."""
    return st.StructType([st.StructField(name, kind) for name, kind in columns.items()])


def test_the_order_of_columns_does_not_matter_and_their_names_and_types_do() -> None:
    """A column that is new, renamed or of another type changes every row's hash."""
    one = row_hash_sql(schema_of(a=INT, b=INT), ["x", "y"])
    assert one == row_hash_sql(schema_of(b=INT, a=INT), ["y", "x"])
    others = [
        row_hash_sql(schema_of(a=INT, c=INT), ["x", "y"]),
        row_hash_sql(schema_of(a=INT, b=st.LongType()), ["x", "y"]),
        row_hash_sql(schema_of(a=INT), ["x"]),
    ]
    assert len({one, *others}) == 4


def test_columns_are_named_with_their_types() -> None:
    """So that an error can say which of them are new or gone."""
    schema = schema_of(b=st.MapType(INT, INT), a=st.StringType())
    assert column_types(schema) == ("a string", "b map<int,int>")


def test_whether_a_column_may_be_null_is_not_hashed() -> None:
    """The same values may come from a file that declares it and from one that does not."""
    loose, strict = (
        st.StructType([st.StructField("a", INT, nullable)]) for nullable in (True, False)
    )
    assert row_hash_sql(loose, ["x"]) == row_hash_sql(strict, ["x"])
