"""Fitting columns, including nested ones: losslessly, or with an error that names the column."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import SchemaMismatchError
from holdfast.sinks.base import MayLack
from holdfast.sinks.conform import Conformer, ValueMisfitError, refuse_broken_text
from tests.fakes.broken_texts import texts

# ---- Fitting columns: by name, losslessly, or with an error that names the column
UTC = dt.timezone.utc
MOMENT = dt.datetime(1969, 12, 31, 23, 59, 59, 123000)  # noqa: DTZ001 - Iceberg has such a type.


def fit(
    values: pa.Array,
    target: pa.DataType,
    *,
    nullable: bool = True,
    may_lack: MayLack = frozenset(),
) -> pa.Array:
    """Fit one column named `c` to a table with only that column."""
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
    (pa.float16(), pa.float32(), np.float16(1.5)),  # PyArrow 20 accepts no other.
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
    """Values and NULLs are unchanged, including in a slice."""
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
    """It is refused by type, whatever the values; the message names table, column and type."""
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
def test_a_value_that_does_not_fit_without_loss_is_refused(
    values: pa.Array, target: pa.DataType
) -> None:
    """One value that loses nanoseconds, time of day or width is an error naming the column."""
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
    """These are an extra column, a missing required one, and a duplicate."""
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
    """This holds however the NULL is stored; the message says in which row it is."""
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


# ---- Fitting nested columns: offsets, NULL parents, required children, UUIDs
ONE, TWO = uuid.UUID(int=1), uuid.UUID("12345678-1234-5678-1234-567812345678")
S32 = pa.struct([("a", pa.int32()), ("b", pa.string())])
S64 = pa.struct([("a", pa.int64()), ("b", pa.string())])
STRUCTS = [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}, {"a": 4, "b": None}]
LISTS = [[1, 2], None, [], [None, 3], [4]]
PAIRS = [[("a", 1)], None, [], [("b", None), ("c", 3)]]

NESTED: list[tuple[pa.DataType, pa.DataType, list[Any]]] = [
    (S32, S64, STRUCTS),
    (pa.list_(pa.int32()), pa.list_(pa.field("element", pa.int64())), LISTS),
    (pa.large_list(pa.int32()), pa.list_(pa.int64()), LISTS),
    (pa.list_(pa.int32(), 2), pa.list_(pa.int64()), [[1, 2], None, [None, 3], [4, 5]]),
    (pa.list_(pa.large_string()), pa.list_(pa.string()), [["a"], None, [None, "b"], []]),
    (
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
        pa.list_(pa.string()),
        [["a", "b"], None, ["a", None]],
    ),
    (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), PAIRS),
    (pa.map_(pa.large_string(), pa.int32()), pa.map_(pa.string(), pa.int32()), PAIRS),
    (pa.list_(S32), pa.list_(S64), [STRUCTS, None, [], STRUCTS[1:]]),
    (
        pa.map_(pa.string(), pa.list_(S32)),
        pa.map_(pa.string(), pa.list_(S64)),
        [[("k", STRUCTS)], None, [("k", None), ("l", [None])]],
    ),
    (
        pa.struct([("l", pa.list_(pa.int32())), ("m", pa.map_(pa.string(), pa.int32()))]),
        pa.struct([("l", pa.list_(pa.int64())), ("m", pa.map_(pa.string(), pa.int64()))]),
        [{"l": [1], "m": [("a", 1)]}, None, {"l": None, "m": None}],
    ),
]


@pytest.mark.parametrize("start", [0, 1, 2])
@pytest.mark.parametrize(("source", "target", "rows"), NESTED, ids=str)
def test_nested_values_are_kept_even_in_a_slice(
    source: pa.DataType, target: pa.DataType, rows: list[Any], start: int
) -> None:
    """Offsets, NULL parents and NULL children are unchanged."""
    assert fit(pa.array(rows, source).slice(start), target).to_pylist() == rows[start:]
    assert fit(pa.array(rows, source).slice(0, 0), target).to_pylist() == []


ENTRY = pa.struct([("key", pa.large_string()), ("value", pa.int32())])


@pytest.mark.parametrize("start", [0, 1, 2])
def test_a_list_of_entries_is_a_map(start: int) -> None:
    """Polars returns maps so; in a slice too."""
    rows = [
        None
        if pairs is None
        else [dict(zip(["key", "value"], pair, strict=True)) for pair in pairs]
        for pairs in PAIRS
    ]
    source = pa.array(rows, pa.large_list(ENTRY)).slice(start)
    assert fit(source, pa.map_(pa.string(), pa.int64())).to_pylist() == PAIRS[start:]


@pytest.mark.parametrize("entry", [{"key": None, "value": 1}, None])
def test_an_entry_without_a_key_is_refused(entry: dict[str, Any] | None) -> None:
    """No reader expects a map with a NULL key."""
    source = pa.array([[entry]], pa.large_list(ENTRY))
    with pytest.raises(SchemaMismatchError, match=r"'c\.key' .*required, but NULL"):
        fit(source, pa.map_(pa.string(), pa.int64()))


def test_struct_fields_are_matched_by_name() -> None:
    """Another order is fine, and a field that may be missing is NULL."""
    source = pa.struct([("b", pa.string()), ("a", pa.int32())])
    target = pa.struct([("a", pa.int64()), ("n", pa.int64()), ("b", pa.string())])
    rows = pa.array([{"b": "x", "a": 1}, None], source)
    assert fit(rows, target, may_lack=frozenset({("c", "n")})).to_pylist() == [
        {"a": 1, "n": None, "b": "x"},
        None,
    ]


def test_a_field_name_that_looks_like_a_path_is_a_name() -> None:
    """`.a` and `a` are different fields."""
    source = pa.struct([(".a", pa.int32()), ("a", pa.int32())])
    target = pa.struct([(".a", pa.int64()), ("a", pa.int64())])
    assert fit(pa.array([{".a": 1, "a": 2}], source), target).to_pylist() == [{".a": 1, "a": 2}]


def required(name: str, kind: pa.DataType) -> pa.Field:
    """Return a field that must not be NULL."""
    return pa.field(name, kind, nullable=False)


WIDE = pa.int64()
REFUSED: list[tuple[pa.DataType, pa.DataType, str]] = [
    (S64, S32, "c.a"),
    (S32, pa.struct([("a", WIDE)]), "c.b"),
    (S32, pa.struct([*S64, required("n", WIDE)]), "c.n"),
    (pa.list_(WIDE), pa.list_(pa.int32()), "c.element"),
    (pa.map_(WIDE, WIDE), pa.map_(pa.int32(), WIDE), "c.key"),
    (pa.map_(WIDE, WIDE), pa.map_(WIDE, pa.int32()), "c.value"),
    (pa.list_(S64), pa.list_(S32), "c.element.a"),
    (pa.map_(WIDE, pa.list_(S64)), pa.map_(WIDE, pa.list_(S32)), "c.value.element.a"),
]


@pytest.mark.parametrize(("source", "target", "path"), REFUSED, ids=str)
def test_a_field_that_does_not_fit_is_named_by_its_path(
    source: pa.DataType, target: pa.DataType, path: str
) -> None:
    """The error gives the path to the field, however deep it is."""
    with pytest.raises(SchemaMismatchError) as caught:
        Conformer("t", pa.schema([("c", source)]), pa.schema([("c", target)]))
    assert caught.value.column == path


def test_a_duplicate_struct_field_is_refused() -> None:
    """It is unknown which of the two is meant."""
    doubled = pa.struct([("a", pa.int32()), ("a", pa.int32())])
    with pytest.raises(SchemaMismatchError) as caught:
        Conformer("t", pa.schema([("c", doubled)]), pa.schema([("c", pa.struct([("a", WIDE)]))]))
    assert caught.value.column == "c.a"


# The narrow source is converted; the wide one is passed on as it is.
@pytest.mark.parametrize("kind", [pa.int32(), WIDE], ids=["converted", "passed on"])
@pytest.mark.parametrize("declared", [True, False], ids=["nullable", "declared required"])
@pytest.mark.parametrize("shape", ["struct", "list", "map"])
def test_null_in_a_required_child_is_refused(
    kind: pa.DataType, shape: str, *, declared: bool
) -> None:
    """Arrow does not enforce declared types, so the values are checked."""
    children = pa.array([1, None], kind)
    child = pa.field("x", kind, nullable=declared)
    offsets = pa.array([0, 2], pa.int32())
    values: pa.Array
    if shape == "struct":
        values = pa.StructArray.from_arrays([children], fields=[child])
        target = pa.struct([required("x", WIDE)])
    elif shape == "list":
        values = pa.ListArray.from_arrays(offsets, children, type=pa.list_(child))
        target = pa.list_(required("element", WIDE))
    else:
        keys = pa.array(["k", "l"])
        entries = pa.map_(pa.string(), child)
        values = pa.MapArray.from_arrays(offsets, keys, children, type=entries)
        target = pa.map_(pa.string(), required("value", WIDE))
    with pytest.raises(SchemaMismatchError, match="required, but NULL"):
        fit(values, target)


def test_a_null_parent_may_have_required_children() -> None:
    """A NULL struct or list has no children."""
    rows = [{"a": 1}, None]
    target = pa.struct([required("a", WIDE)])
    assert fit(pa.array(rows, pa.struct([("a", pa.int32())])), target).to_pylist() == rows
    lists = [[1], None, []]
    wanted = pa.list_(required("element", WIDE))
    assert fit(pa.array(lists, pa.list_(pa.int32())), wanted).to_pylist() == lists
    # A slot of a NULL list of fixed size still holds values; they must not count.
    fixed = pa.array([[1, 2], None], pa.list_(pa.int32(), 2))
    assert fit(fixed, wanted).to_pylist() == [[1, 2], None]


UUIDS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), [str(ONE), None, str(TWO).upper()]),
    (pa.large_string(), [ONE.hex, None, f"{{{TWO}}}"]),
    (pa.binary(16), [ONE.bytes, None, TWO.bytes]),
    (pa.binary(), [ONE.bytes, None, TWO.bytes]),
    (pa.dictionary(pa.int8(), pa.string()), [str(ONE), None, str(TWO)]),
]


@pytest.mark.parametrize(("source", "rows"), UUIDS, ids=str)
def test_uuids_may_be_text_or_bytes(source: pa.DataType, rows: list[Any]) -> None:
    """Spark has no UUID type: they arrive as strings."""
    assert fit(pa.array(rows, source), pa.uuid()).to_pylist() == [ONE, None, TWO]
    nested = pa.array([rows, None], pa.list_(source))
    assert fit(nested, pa.list_(pa.uuid())).to_pylist() == [[ONE, None, TWO], None]


def test_a_uuid_column_is_passed_on() -> None:
    """A column that already has Arrow's own type is unchanged."""
    assert fit(pa.array([ONE.bytes, None], pa.uuid()), pa.uuid()).to_pylist() == [ONE, None]


@pytest.mark.parametrize(
    "values", [pa.array(["no uuid"]), pa.array([b"short"]), pa.array([b"x" * 15], pa.binary(15))]
)
def test_a_value_that_is_not_a_uuid_is_refused(values: pa.Array) -> None:
    """The error names the column."""
    with pytest.raises(SchemaMismatchError) as caught:
        fit(values, pa.uuid())
    assert caught.value.column == "c"


def test_a_number_is_not_a_uuid() -> None:
    """It is refused by type, before any row."""
    with pytest.raises(SchemaMismatchError, match="int64 cannot be cast to a UUID"):
        fit(pa.array([1]), pa.uuid())


# ---- Texts that are not UTF-8
BROKEN = texts(b"fine", b"\xc3\x28", b"fine, too")
EACH = pa.array([0, 1, 2, 3], pa.int32())


@pytest.mark.parametrize(
    "column",
    [
        BROKEN,
        BROKEN.cast(pa.large_string()),
        BROKEN.cast(pa.string_view()),
        BROKEN.dictionary_encode(),
        pa.StructArray.from_arrays([BROKEN], ["a"]),
        pa.ListArray.from_arrays(EACH, BROKEN),
        pa.LargeListArray.from_arrays(EACH.cast(pa.int64()), BROKEN),
        pa.FixedSizeListArray.from_arrays(BROKEN, 1),
        pa.MapArray.from_arrays(EACH, BROKEN, BROKEN),
        pa.ListArray.from_arrays(EACH, pa.StructArray.from_arrays([BROKEN], ["a"])),
    ],
    ids=lambda column: str(column.type),
)
def test_a_text_that_is_not_utf_8_does_not_fit(column: pa.Array) -> None:
    """Spark has such texts. Only the row that holds one fails, whatever it was cut from."""
    for rows in (column, column.slice(1, 1)):
        with pytest.raises(ValueMisfitError, match=r"'c' does not fit .* a text is not UTF-8"):
            fit(rows, column.type)
    for row in (0, 2):
        refuse_broken_text(column.slice(row, 1))
