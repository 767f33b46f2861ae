"""Fitting columns: by name, losslessly, or with an error that names the column."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import SchemaMismatchError
from holdfast.sinks.base import MayLack
from holdfast.sinks.conform import Conformer

UTC = dt.timezone.utc
MOMENT = dt.datetime(1969, 12, 31, 23, 59, 59, 123000)  # noqa: DTZ001 - Iceberg has such a type.


def fit(
    values: pa.Array,
    target: pa.DataType,
    *,
    nullable: bool = True,
    may_lack: MayLack = frozenset(),
) -> pa.Array:
    """Fit one column named `c` to a table that has only it."""
    batch = pa.RecordBatch.from_arrays([values], names=["c"])
    schema = pa.schema([pa.field("c", target, nullable=nullable)])
    fitted = Conformer("lake.db.t", batch.schema, schema, may_lack=may_lack)(batch)
    fitted.validate(full=True)
    assert fitted.schema == schema
    return fitted.column(0)


WIDENINGS: list[tuple[pa.DataType, pa.DataType, Any]] = [
    (pa.int8(), pa.int32(), -(2**7)),
    (pa.int16(), pa.int32(), 2**15 - 1),
    (pa.int32(), pa.int64(), -(2**31)),
    (pa.uint8(), pa.int32(), 2**8 - 1),
    (pa.uint16(), pa.int32(), 2**16 - 1),
    (pa.uint32(), pa.int64(), 2**32 - 1),
    (pa.float16(), pa.float32(), np.float16(1.5)),  # PyArrow 20 takes no other.
    (pa.float32(), pa.float64(), 1.5),
    (pa.float64(), pa.float64(), float("-inf")),
    (pa.decimal128(5, 2), pa.decimal128(9, 2), Decimal("-123.45")),
    (pa.decimal128(5, 2), pa.decimal128(9, 4), Decimal("123.45")),
    (pa.decimal256(9, 2), pa.decimal128(9, 2), Decimal("1234567.89")),
    (pa.decimal64(9, 2), pa.decimal128(9, 2), Decimal("1.10")),
    (pa.large_string(), pa.string(), "größe"),
    (pa.string_view(), pa.string(), "a text that is longer than twelve bytes"),
    (pa.large_binary(), pa.binary(), b"\0\xff"),
    (pa.binary_view(), pa.binary(), b"\0\xff"),
    (pa.binary(4), pa.binary(), b"abcd"),
    (pa.binary(), pa.binary(4), b"abcd"),
    (pa.date64(), pa.date32(), dt.date(1900, 2, 28)),
    (pa.time32("s"), pa.time64("us"), dt.time(23, 59, 59)),
    (pa.time64("ns"), pa.time64("us"), dt.time(23, 59, 59, 999999)),
    (pa.timestamp("ms"), pa.timestamp("us"), MOMENT),
    (pa.timestamp("ns"), pa.timestamp("us"), MOMENT),
    (pa.timestamp("s", "UTC"), pa.timestamp("us", "UTC"), dt.datetime(1900, 1, 1, tzinfo=UTC)),
    (
        pa.timestamp("us", "Europe/Berlin"),
        pa.timestamp("us", "UTC"),
        dt.datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
    ),
    (pa.bool_(), pa.bool_(), False),
    (pa.dictionary(pa.int8(), pa.string()), pa.string(), "a"),
    (pa.dictionary(pa.int32(), pa.int32()), pa.int64(), 7),
]


@pytest.mark.parametrize(("source", "target", "value"), WIDENINGS, ids=str)
def test_each_widening_keeps_every_value(
    source: pa.DataType, target: pa.DataType, value: object
) -> None:
    """Values and NULLs are the same after as before, also in a slice."""
    values = pa.array([None, value, None, value], source).slice(1)
    assert fit(values, target).to_pylist() == [value, None, value]


NARROWINGS = [
    (pa.int64(), pa.int32()),
    (pa.uint32(), pa.int32()),
    (pa.uint64(), pa.int64()),
    (pa.float64(), pa.float32()),
    (pa.float64(), pa.int64()),
    (pa.int64(), pa.float32()),
    (pa.int64(), pa.string()),
    (pa.string(), pa.int64()),
    (pa.string(), pa.binary()),
    (pa.binary(), pa.string()),
    (pa.bool_(), pa.int32()),
    (pa.decimal128(9, 2), pa.decimal128(8, 2)),
    (pa.decimal128(9, 2), pa.decimal128(9, 1)),
    (pa.decimal128(9, 2), pa.decimal128(9, 4)),
    (pa.decimal128(9, 2), pa.float64()),
    (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (pa.timestamp("us", "UTC"), pa.timestamp("us")),
    (pa.timestamp("us"), pa.date32()),
    (pa.date32(), pa.timestamp("us")),
    (pa.duration("us"), pa.int64()),
    (pa.list_(pa.int64()), pa.int64()),
    (pa.int64(), pa.list_(pa.int64())),
    (pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int64())),
    (pa.dictionary(pa.int8(), pa.int64()), pa.int32()),
]


@pytest.mark.parametrize(("source", "target"), NARROWINGS, ids=str)
def test_each_narrowing_is_refused_before_any_row(source: pa.DataType, target: pa.DataType) -> None:
    """It is refused by type, not by luck of the values, and the message names all three."""
    with pytest.raises(SchemaMismatchError) as caught:
        Conformer("lake.db.t", pa.schema([("c", source)]), pa.schema([("c", target)]))
    assert (caught.value.table, caught.value.column) == ("lake.db.t", "c")
    assert str(target) in caught.value.problem


LOSSES: list[tuple[pa.Array, pa.DataType]] = [
    (pa.array([1_000, 1_001], pa.timestamp("ns")), pa.timestamp("us")),
    (pa.array([1_000, 1_001], pa.timestamp("ns", "UTC")), pa.timestamp("us", "UTC")),
    (pa.array([2**60], pa.timestamp("s")), pa.timestamp("us")),
    (pa.array([1_001], pa.time64("ns")), pa.time64("us")),
    (pa.array([86_400_001], pa.date64()), pa.date32()),
    (pa.array([b"abc"], pa.binary()), pa.binary(4)),
    (pa.array([b"abcde"], pa.binary(5)), pa.binary(4)),
]


@pytest.mark.parametrize(("values", "target"), LOSSES, ids=str)
def test_a_value_that_would_lose_something_is_refused(
    values: pa.Array, target: pa.DataType
) -> None:
    """Nanoseconds, time of day, width: a single such value is an error that names the column."""
    with pytest.raises(SchemaMismatchError) as caught:
        fit(values, target)
    assert caught.value.column == "c"


def test_columns_are_matched_by_name_in_the_tables_order() -> None:
    """The order of the output does not matter; a column that may be missing is NULL."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.list_(pa.int32()))])
    batch = pa.RecordBatch.from_pydict({"b": ["x", None], "a": pa.array([1, 2], pa.int32())})
    fitted = Conformer("t", batch.schema, schema, may_lack=frozenset({("c",)}))(batch)
    assert fitted.schema == schema
    assert fitted.to_pylist() == [
        {"a": 1, "b": "x", "c": None},
        {"a": 2, "b": None, "c": None},
    ]


@pytest.mark.parametrize(
    ("output", "table", "column", "said"),
    [
        (["a", "extra"], [pa.field("a", pa.int64())], "extra", "no such column"),
        (["A"], [pa.field("a", pa.int64())], "A", "no such column"),
        (
            ["a"],
            [pa.field("a", pa.int64()), pa.field("b", pa.int64(), nullable=False)],
            "b",
            "required",
        ),
        (["a", "a"], [pa.field("a", pa.int64())], "a", "twice"),
    ],
)
def test_columns_that_do_not_match_are_named(
    output: list[str], table: list[pa.Field], column: str, said: str
) -> None:
    """An extra column, a missing required one, and one that is there twice."""
    source = pa.schema([pa.field(name, pa.int64()) for name in output])
    with pytest.raises(SchemaMismatchError, match=said) as caught:
        Conformer("t", source, pa.schema(table))
    assert caught.value.column == column


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, None], pa.int64()),
        pa.array([1, None], pa.int32()),
        pa.nulls(2),
        pa.array([1, None]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array([1, None])),
    ],
    ids=lambda values: str(values.type),
)
def test_null_in_a_required_column_is_refused(values: pa.Array) -> None:
    """However the NULL is kept; the message says in which row it stands."""
    with pytest.raises(SchemaMismatchError, match="required, but NULL in row") as caught:
        fit(values, pa.int64(), nullable=False)
    assert caught.value.column == "c"


def test_required_columns_without_null_pass() -> None:
    """The check is for NULL, not for a type that allows it."""
    assert fit(pa.array([None, 1]).slice(1), pa.int64(), nullable=False).to_pylist() == [1]


def test_a_column_that_fits_is_not_copied() -> None:
    """The same buffers are passed on."""
    values = pa.array(["a", "b"])
    assert fit(values, pa.string()).buffers()[2].address == values.buffers()[2].address


def test_a_null_typed_column_is_null_of_the_tables_type() -> None:
    """`{"c": [None]}` has no type of its own; it fits every nullable column."""
    for target in (pa.int64(), pa.uuid(), pa.struct([("a", pa.int64())]), pa.list_(pa.string())):
        assert fit(pa.nulls(2), target).to_pylist() == [None, None]
