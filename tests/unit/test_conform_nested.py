"""Fitting nested columns: offsets, NULL parents, required children, UUIDs."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import SchemaMismatchError
from holdfast.sinks.conform import Conformer
from tests.unit.test_conform_columns import fit

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
def test_nested_values_are_kept_also_in_a_slice(
    source: pa.DataType, target: pa.DataType, rows: list[Any], start: int
) -> None:
    """Offsets, NULL parents and NULL children are the same after as before."""
    assert fit(pa.array(rows, source).slice(start), target).to_pylist() == rows[start:]
    assert fit(pa.array(rows, source).slice(0, 0), target).to_pylist() == []


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
    """`.a` is another field than `a`, however odd."""
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
def test_what_does_not_fit_is_named_by_its_path(
    source: pa.DataType, target: pa.DataType, path: str
) -> None:
    """The error leads to the field, however deep it stands."""
    with pytest.raises(SchemaMismatchError) as caught:
        Conformer("t", pa.schema([("c", source)]), pa.schema([("c", target)]))
    assert caught.value.column == path


def test_a_struct_field_that_is_there_twice_is_refused() -> None:
    """Which of the two is meant, nobody can say."""
    doubled = pa.struct([("a", pa.int32()), ("a", pa.int32())])
    with pytest.raises(SchemaMismatchError) as caught:
        Conformer("t", pa.schema([("c", doubled)]), pa.schema([("c", pa.struct([("a", WIDE)]))]))
    assert caught.value.column == "c.a"


# The narrow source goes the way of conversion, the wide one is passed on as it is.
@pytest.mark.parametrize("kind", [pa.int32(), WIDE], ids=["converted", "passed on"])
@pytest.mark.parametrize("declared", [True, False], ids=["nullable", "declared required"])
@pytest.mark.parametrize("shape", ["struct", "list", "map"])
def test_null_in_a_required_child_is_refused(
    kind: pa.DataType, shape: str, *, declared: bool
) -> None:
    """Types are promises that nobody checks: the values are looked at, whatever is declared."""
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
    """A NULL struct or list has no children that could be missing."""
    rows = [{"a": 1}, None]
    target = pa.struct([required("a", WIDE)])
    assert fit(pa.array(rows, pa.struct([("a", pa.int32())])), target).to_pylist() == rows
    lists = [[1], None, []]
    wanted = pa.list_(required("element", WIDE))
    assert fit(pa.array(lists, pa.list_(pa.int32())), wanted).to_pylist() == lists
    # A slot of a NULL list of fixed size holds values all the same; they must not count.
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
def test_uuids_come_as_text_or_as_bytes(source: pa.DataType, rows: list[Any]) -> None:
    """Spark has no UUID type: strings are how they arrive."""
    assert fit(pa.array(rows, source), pa.uuid()).to_pylist() == [ONE, None, TWO]
    nested = pa.array([rows, None], pa.list_(source))
    assert fit(nested, pa.list_(pa.uuid())).to_pylist() == [[ONE, None, TWO], None]


def test_a_uuid_column_is_passed_on() -> None:
    """What already has Arrow's own type is not touched."""
    assert fit(pa.array([ONE.bytes, None], pa.uuid()), pa.uuid()).to_pylist() == [ONE, None]


@pytest.mark.parametrize(
    "values", [pa.array(["no uuid"]), pa.array([b"short"]), pa.array([b"x" * 15], pa.binary(15))]
)
def test_what_is_no_uuid_is_refused(values: pa.Array) -> None:
    """The error names the column."""
    with pytest.raises(SchemaMismatchError) as caught:
        fit(values, pa.uuid())
    assert caught.value.column == "c"


def test_a_number_is_no_uuid() -> None:
    """It is refused by type, before any row."""
    with pytest.raises(SchemaMismatchError, match="int64 is no uuid"):
        fit(pa.array([1]), pa.uuid())
