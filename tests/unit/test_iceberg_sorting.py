"""Sort orders: rows of a row group follow them, and only a file that follows one says so."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    UUIDType,
)

from tests.fakes.iceberg_tables import rows_of, write, writer_spec

ASC, DESC = SortDirection.ASC, SortDirection.DESC
FIRST, LAST = NullOrder.NULLS_FIRST, NullOrder.NULLS_LAST
SCHEMA = Schema(
    NestedField(1, "a", LongType()),
    NestedField(2, "b", StringType()),
    NestedField(3, "s", StructType(NestedField(4, "x", LongType()))),
    NestedField(5, ".a", LongType()),
)
COLUMNS = {"a": [2, None, 1, 2], "b": ["x", "y", "z", "w"], ".a": [4, 3, 2, 1]}


def order_by(*fields: tuple[int, SortDirection, NullOrder]) -> SortOrder:
    """Return a sort order over plain columns."""
    return SortOrder(
        *(
            SortField(
                source_id=source, transform=IdentityTransform(), direction=way, null_order=nulls
            )
            for source, way, nulls in fields
        ),
        order_id=3,
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([(1, ASC, FIRST)], [None, 1, 2, 2]),
        ([(1, ASC, LAST)], [1, 2, 2, None]),
        ([(1, DESC, FIRST)], [None, 2, 2, 1]),
        ([(1, DESC, LAST)], [2, 2, 1, None]),
        ([(1, ASC, LAST), (2, ASC, LAST)], [1, 2, 2, None]),
        ([(5, ASC, LAST)], [2, 1, None, 2]),
    ],
)
def test_rows_follow_the_order(
    tmp_path: Path, fields: list[tuple[int, SortDirection, NullOrder]], expected: list[Any]
) -> None:
    """Direction and place of NULL are the order's own; a file of one row group says so."""
    made = writer_spec(tmp_path, SCHEMA, order=order_by(*fields))
    (file,) = write(made, pa.RecordBatch.from_pydict(COLUMNS))
    assert [row["a"] for row in rows_of(file)] == expected
    assert file.sort_order_id == 3


def test_the_second_field_decides_among_equals(tmp_path: Path) -> None:
    """Two fields, both followed."""
    made = writer_spec(tmp_path, SCHEMA, order=order_by((1, ASC, LAST), (2, ASC, LAST)))
    (file,) = write(made, pa.RecordBatch.from_pydict(COLUMNS))
    assert [row["b"] for row in rows_of(file)] == ["z", "w", "x", "y"]


def test_a_file_of_several_row_groups_does_not_say_that_it_is_sorted(tmp_path: Path) -> None:
    """Each row group is sorted, the file as a whole is not."""
    made = writer_spec(
        tmp_path,
        SCHEMA,
        order=order_by((1, ASC, FIRST)),
        properties={"write.parquet.row-group-limit": "4"},
    )
    batch = pa.RecordBatch.from_pydict(COLUMNS)
    (file,) = write(made, batch, batch)
    assert [row["a"] for row in rows_of(file)] == [None, 1, 2, 2] * 2
    assert file.sort_order_id is None


UNFOLLOWED = [
    SortOrder(
        SortField(source_id=1, transform=BucketTransform(4), direction=ASC, null_order=FIRST),
        order_id=3,
    ),
    order_by((4, ASC, FIRST)),
]


@pytest.mark.parametrize("order", UNFOLLOWED, ids=str)
def test_an_order_that_cannot_be_followed_is_not_claimed(tmp_path: Path, order: SortOrder) -> None:
    """Transforms and nested fields: rows stay as they came."""
    made = writer_spec(tmp_path, SCHEMA, order=order)
    (file,) = write(made, pa.RecordBatch.from_pydict(COLUMNS))
    assert [row["b"] for row in rows_of(file)] == ["x", "y", "z", "w"]
    assert file.sort_order_id is None


def test_mixed_places_of_null_are_followed_or_not_claimed(tmp_path: Path) -> None:
    """NULL first in one field and last in the other."""
    order = order_by((1, ASC, FIRST), (2, ASC, LAST))
    batch = pa.RecordBatch.from_pydict({"a": [1, None, 1, None], "b": ["x", None, None, "y"]})
    (file,) = write(writer_spec(tmp_path, SCHEMA, order=order), batch)
    found = [(row["a"], row["b"]) for row in rows_of(file)]
    followed = [(None, "y"), (None, None), (1, "x"), (1, None)]
    as_it_came = [(1, "x"), (None, None), (1, None), (None, "y")]
    assert (found, file.sort_order_id) in [(followed, 3), (as_it_came, None)]


SORTED, AS_IT_CAME = ([2, 1], 3), ([1, 2], None)
KINDS: list[tuple[IcebergType, list[Any], tuple[list[int], int | None]]] = [
    (BooleanType(), [True, False], SORTED),
    (DateType(), [dt.date(2024, 1, 2), dt.date(2024, 1, 1)], SORTED),
    (TimestamptzType(), [dt.datetime(2024, 1, n, tzinfo=dt.timezone.utc) for n in (2, 1)], SORTED),
    (DecimalType(5, 2), [Decimal("2.00"), Decimal("1.00")], SORTED),
    (BinaryType(), [b"b", b"a"], SORTED),
    (UUIDType(), [str(uuid.UUID(int=2)), str(uuid.UUID(int=1))], AS_IT_CAME),
]


@pytest.mark.parametrize(("kind", "values", "expected"), KINDS, ids=str)
def test_tables_sorted_by_any_plain_type_can_be_written(
    tmp_path: Path, kind: IcebergType, values: list[Any], expected: tuple[list[int], int | None]
) -> None:
    """Either the rows are sorted, or the file does not say so; it is never an error."""
    schema = Schema(NestedField(1, "n", LongType()), NestedField(2, "c", kind))
    made = writer_spec(tmp_path, schema, order=order_by((2, ASC, FIRST)))
    (file,) = write(made, pa.RecordBatch.from_pydict({"n": [1, 2], "c": values}))
    found = [row["n"] for row in rows_of(file)]
    assert (found, file.sort_order_id) == expected


@pytest.mark.parametrize(
    ("way", "nulls", "sorted_rows"),
    [
        (ASC, FIRST, [None, 1.0, 2.0, "nan"]),
        (ASC, LAST, [1.0, 2.0, "nan", None]),
        (DESC, FIRST, [None, "nan", 2.0, 1.0]),
        (DESC, LAST, ["nan", 2.0, 1.0, None]),
    ],
)
def test_a_file_with_nan_says_that_it_is_sorted_only_if_it_is(
    tmp_path: Path, way: SortDirection, nulls: NullOrder, sorted_rows: list[Any]
) -> None:
    """Iceberg sorts NaN above every number; Arrow puts it beside NULL."""
    schema = Schema(NestedField(1, "c", DoubleType()))
    made = writer_spec(tmp_path, schema, order=order_by((1, way, nulls)))
    batch = pa.RecordBatch.from_pydict({"c": [2.0, float("nan"), None, 1.0]})
    (file,) = write(made, batch)
    found = ["nan" if row["c"] not in (None, 1.0, 2.0) else row["c"] for row in rows_of(file)]
    as_it_came = [2.0, "nan", None, 1.0]
    assert (found, file.sort_order_id) in [(sorted_rows, 3), (as_it_came, None)]
