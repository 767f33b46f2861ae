"""Row outputs: dicts become batches with the table's types, or one row's error."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from holdfast.worker.row_steps import as_batch, rows_of
from holdfast.worker.transforms import TransformOutputError

SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("score", pa.float32()),
        ("price", pa.decimal128(9, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.int64()), ("y", pa.int64())])),
    ]
)


def test_one_dict_is_one_row() -> None:
    """With either promise about the number of rows."""
    assert rows_of({"id": 1}, same=True) == [{"id": 1}]
    assert rows_of({"id": 1}, same=False) == [{"id": 1}]


def test_where_the_number_may_differ_a_list_is_its_rows_and_none_is_no_row() -> None:
    """An empty list is no row either."""
    assert rows_of([{"id": 1}, {"id": 2}], same=False) == [{"id": 1}, {"id": 2}]
    assert rows_of(({"id": 1},), same=False) == [{"id": 1}]
    assert rows_of(None, same=False) == rows_of([], same=False) == []


@pytest.mark.parametrize(
    ("answer", "kind"), [("text", "str"), (7, "int"), ({}, "an empty dict"), ([{}, "x"], "list")]
)
@pytest.mark.parametrize("same", [True, False])
def test_anything_else_is_no_row(answer: object, kind: str, *, same: bool) -> None:
    """The message says what came and what was wanted."""
    with pytest.raises(TransformOutputError, match=f"returned {kind} for a row") as caught:
        rows_of(answer, same=same)
    assert ("a list of them, or None" in str(caught.value)) is not same


@pytest.mark.parametrize("answer", [None, [], [{"id": 1}]])
def test_where_the_number_is_the_same_only_a_dict_is_a_row(answer: object) -> None:
    """Even a list of one: whoever returns lists means to return many."""
    with pytest.raises(TransformOutputError, match=r"not a dict of columns$"):
        rows_of(answer, same=True)


def test_values_get_the_tables_types() -> None:
    """Where Python's own would be other ones."""
    at = datetime(2026, 11, 15, 9, 0, tzinfo=timezone.utc)
    row = {
        "id": 1,
        "score": 0.5,
        "price": Decimal("1.5"),
        "at": at,
        "tags": [],
        "place": {"x": 1, "y": None},
    }
    found = as_batch([row], SCHEMA)
    assert found.schema.equals(SCHEMA)
    assert found.to_pylist() == [{**row, "price": Decimal("1.50")}]


def test_none_has_the_tables_type_too() -> None:
    """A group of rows without any value must not make a column without a type."""
    found = as_batch([{"id": 1, "tags": None}, {"id": None, "tags": None}], SCHEMA)
    assert found.schema.types == [pa.int32(), pa.list_(pa.string())]
    assert found.to_pylist() == [{"id": 1, "tags": None}, {"id": None, "tags": None}]


def test_a_column_that_one_row_leaves_out_is_none_there() -> None:
    """Columns stand in the order in which they came up."""
    found = as_batch([{"id": 1}, {"score": 2.0, "id": 2}], SCHEMA)
    assert found.schema.names == ["id", "score"]
    assert found.to_pylist() == [{"id": 1, "score": None}, {"id": 2, "score": 2.0}]


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"stranger": 7}, pa.int64()),
        ({"id": "text"}, pa.string()),
        ({"id": True}, pa.bool_()),
        ({"id": 1 << 40}, pa.int64()),
        ({"price": Decimal("1.239")}, pa.decimal128(4, 3)),
    ],
)
def test_values_that_the_tables_type_cannot_hold_keep_their_own(
    row: dict[str, Any], kind: pa.DataType
) -> None:
    """Fitting them to the table then tells what is wrong, and with which column."""
    assert as_batch([row], SCHEMA).schema.types == [kind]


@pytest.mark.parametrize("values", [(1, "text"), ({"a": 1}, 2), ("\ud800",), (object(),)])
def test_values_without_a_common_type_are_an_error_of_the_output(values: tuple[Any, ...]) -> None:
    """It names the column."""
    with pytest.raises(TransformOutputError, match="column 'id'"):
        as_batch([{"id": value} for value in values], SCHEMA)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 1.9),
        (pa.int64(), Decimal("1.9")),
        (pa.list_(pa.int64()), [1.9]),
        (pa.date32(), datetime(2026, 1, 2, 3, 4)),  # noqa: DTZ001 - dates have no zone.
        (pa.timestamp("s"), datetime(2026, 1, 2, 3, 4, 5, 678901)),  # noqa: DTZ001
        (pa.struct([("x", pa.int64())]), {"x": 1, "stranger": 2}),
    ],
    ids=["float", "decimal", "in a list", "date", "timestamp", "struct"],
)
def test_no_part_of_a_value_is_lost_on_the_way_to_the_tables_type(
    kind: pa.DataType,
    value: Any,  # noqa: ANN401 - of any type.
) -> None:
    """A batch with the same values is refused: rows must not be treated worse."""
    schema = pa.schema([("column", kind)])
    found = as_batch([{"column": value}], schema)
    assert found.column("column").to_pylist() == [value]
