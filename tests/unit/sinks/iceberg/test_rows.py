"""Rows of a file: split by partition as PyIceberg does, and sorted where the file says so."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec, partition_record_value
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from holdfast.sinks.conform import Conformer
from holdfast.sinks.iceberg.rows import PartitionSplitter
from holdfast.sinks.iceberg.schemas import arrow_schema
from tests.fakes.iceberg_tables import rows_of, write, writer_spec

# ---- Partitions: the splitter agrees with PyIceberg's own transforms, row by row
UTC = dt.timezone.utc
DATES = [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2024, 2, 29), None]
AWARE = [
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    dt.datetime(2024, 2, 29, 12, tzinfo=UTC),
    None,
]
NAIVE = [moment and moment.replace(tzinfo=None) for moment in AWARE]
UUIDS = [uuid.UUID(int=1), uuid.UUID(int=2**127), None]
TEXTS = ["iceberg", "", "größe 冰山", "ice", None]
INTEGERS = [0, 1, -1, 34, 2**31 - 1, None]
DECIMALS = [Decimal("1.23"), Decimal("-1.23"), Decimal("0.00"), None]

Case = tuple[IcebergType, Transform[Any, Any], list[Any]]
MOMENTS: list[tuple[IcebergType, list[Any]]] = [
    (TimestampType(), NAIVE),
    (TimestamptzType(), AWARE),
]
BUCKETED: list[tuple[IcebergType, list[Any]]] = [
    *MOMENTS,
    (IntegerType(), [*INTEGERS, -(2**31)]),
    (LongType(), [*INTEGERS, 2**62]),
    (StringType(), TEXTS),
    (DateType(), DATES),
    (DecimalType(9, 2), DECIMALS),
    (BinaryType(), [b"", b"\0\xff", None]),
    (FixedType(2), [b"ab", b"\0\xff", None]),
    (UUIDType(), UUIDS),
]
KEPT: list[tuple[IcebergType, list[Any]]] = [
    *BUCKETED,
    (StringType(), ["a/b=c%", " ", None]),
    (TimeType(), [dt.time(1, 2, 3, 4), None]),
    (BooleanType(), [True, False, None]),
    (DoubleType(), [1.5, -1.5, float("inf"), None]),
]
TRUNCATED: list[tuple[IcebergType, list[Any]]] = [
    (IntegerType(), INTEGERS),
    (LongType(), INTEGERS),
    (StringType(), TEXTS),
    (DecimalType(9, 2), DECIMALS),
    (BinaryType(), [b"", b"abcd", None]),
]
CALENDAR: list[Transform[Any, Any]] = [YearTransform(), MonthTransform(), DayTransform()]
IDENTITY: Transform[Any, Any] = IdentityTransform()
BUCKET: Transform[Any, Any] = BucketTransform(16)
TRUNCATE: Transform[Any, Any] = TruncateTransform(3)
HOUR: Transform[Any, Any] = HourTransform()
CASES: list[Case] = [
    *((kind, IDENTITY, values) for kind, values in KEPT),
    *((kind, BUCKET, values) for kind, values in BUCKETED),
    *((kind, TRUNCATE, values) for kind, values in TRUNCATED),
    *(
        (kind, unit, values)
        for unit in CALENDAR
        for kind, values in [(DateType(), DATES), *MOMENTS]
    ),
    *((kind, HOUR, values) for kind, values in MOMENTS),
    (LongType(), VoidTransform(), [1, 2, None]),
]


def row_wise(field: PartitionField, schema: Schema, value: Any) -> Any:  # noqa: ANN401
    """Return one row's partition value as PyIceberg computes it."""
    if isinstance(value, uuid.UUID):
        value = value.bytes
    if isinstance(field.transform, VoidTransform):
        return None
    represented = partition_record_value(field, value, schema)
    kind = schema.find_field(field.source_id).field_type
    return field.transform.transform(kind)(represented)


def split(
    schema: Schema, spec: PartitionSpec, columns: dict[str, Any]
) -> list[tuple[Record, list[Any]]]:
    """Split one batch; return each partition with its row numbers."""
    numbers = len(next(iter(columns.values())))
    batch = pa.RecordBatch.from_pydict({"n": pa.array(range(numbers), pa.int64()), **columns})
    fitted = Conformer("t", batch.schema, arrow_schema(schema))(batch)
    return [
        (record, rows.column(0).to_pylist())
        for record, rows in PartitionSplitter(schema, spec).split(fitted)
    ]


def with_number(*fields: NestedField) -> Schema:
    """Return a schema whose first column numbers the rows."""
    return Schema(NestedField(1, "n", LongType()), *fields)


@pytest.mark.parametrize(("kind", "transform", "values"), CASES, ids=str)
def test_each_transform_agrees_with_pyicebergs_own(
    kind: IcebergType, transform: Transform[Any, Any], values: list[Any]
) -> None:
    """Every row is in exactly the partition that PyIceberg computes for it."""
    schema = with_number(NestedField(2, "c", kind))
    field = PartitionField(2, 1000, transform, "c_part")
    rows = [*values, *reversed(values)]
    source: Any = [str(v) if v else v for v in rows] if isinstance(kind, UUIDType) else rows
    if not isinstance(kind, UUIDType):
        source = pa.array(rows, arrow_schema(schema).field("c").type)
    found = split(schema, PartitionSpec(field), {"c": source})
    expected: dict[Any, list[int]] = {}
    for number, value in enumerate(rows):
        expected.setdefault(row_wise(field, schema, value), []).append(number)
    assert {record[0]: numbers for record, numbers in found} == expected
    assert len(found) == len(expected)


def test_nan_and_null_are_two_partitions() -> None:
    """NaN equals itself here, and NULL is not NaN."""
    schema = with_number(NestedField(2, "c", DoubleType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "c"))
    nan = float("nan")
    found = split(schema, spec, {"c": [nan, None, 1.0, nan, None]})
    assert sorted(numbers for _, numbers in found) == [[0, 3], [1, 4], [2]]


def test_two_fields_on_one_source_are_both_applied() -> None:
    """These are bucket and truncate of the same column."""
    schema = with_number(NestedField(2, "c", LongType()))
    spec = PartitionSpec(
        PartitionField(2, 1000, BucketTransform(4), "b"),
        PartitionField(2, 1001, TruncateTransform(10), "t"),
    )
    for record, numbers in split(schema, spec, {"c": list(range(30))}):
        for number in numbers:
            expected = [row_wise(field, schema, number) for field in spec.fields]
            assert [record[0], record[1]] == expected


def test_a_nested_source_is_followed_by_id() -> None:
    """A NULL parent has a NULL child; names may hold dots or look like paths."""
    inner = StructType(NestedField(4, ".x", LongType()), NestedField(5, "x", LongType()))
    schema = with_number(NestedField(2, "a.b", inner))
    spec = PartitionSpec(PartitionField(4, 1000, IdentityTransform(), "p"))
    rows = [{".x": 1, "x": 7}, None, {".x": None, "x": 7}, {".x": 2, "x": 7}, {".x": 1, "x": 8}]
    found = {record[0]: numbers for record, numbers in split(schema, spec, {"a.b": rows})}
    assert found == {1: [0, 4], None: [1, 2], 2: [3]}


def test_rows_keep_their_order_within_a_partition() -> None:
    """The split is stable: sorted rows stay sorted."""
    schema = with_number(NestedField(2, "c", LongType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "c"))
    found = split(schema, spec, {"c": [number % 3 for number in range(100)]})
    assert [numbers for _, numbers in found] == [list(range(start, 100, 3)) for start in range(3)]


def test_many_fields_of_many_values_do_not_overflow() -> None:
    """Five fields of 8,192 values have more combinations than 64 bits; none may be merged."""
    count = 8_192
    schema = with_number(*(NestedField(i, f"c{i}", LongType()) for i in range(2, 7)))
    spec = PartitionSpec(
        *(PartitionField(i, 998 + i, IdentityTransform(), f"p{i}") for i in range(2, 7))
    )
    # The last row differs from the first in one field only.
    columns = {f"c{i}": [*range(count), count // 2 if i == 2 else 0] for i in range(2, 7)}
    batch = pa.RecordBatch.from_pydict({"n": list(range(count + 1)), **columns})
    parts = list(PartitionSplitter(schema, spec).split(batch))
    assert len(parts) == count + 1


@pytest.mark.slow_unit
@pytest.mark.parametrize("count", [65_536, 65_537])
def test_more_partitions_than_16_bits_can_number(count: int) -> None:
    """The first and the last partition stay separate, and each has both of its rows."""
    schema = with_number(NestedField(2, "c", LongType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "c"))
    found = split(schema, spec, {"c": [*range(count), *range(count)]})
    assert found[0] == (Record(0), [0, count])
    assert found[-1] == (Record(count - 1), [count - 1, 2 * count - 1])
    assert len(found) == count


def test_batches_without_rows_and_tables_without_partitions() -> None:
    """No rows give no partition; no spec gives one part, unchanged."""
    schema = with_number(NestedField(2, "c", LongType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "c"))
    assert split(schema, spec, {"c": pa.array([], pa.int64())}) == []
    assert split(schema, PartitionSpec(), {"c": [1, 2]}) == [(Record(), [0, 1])]


# ---- Sort orders: rows of a row group follow them, and only a file that follows one says so
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
    """Direction and NULL order are as given; a file of one row group says that it is sorted."""
    made = writer_spec(tmp_path, SCHEMA, order=order_by(*fields))
    (file,) = write(made, pa.RecordBatch.from_pydict(COLUMNS))
    assert [row["a"] for row in rows_of(file)] == expected
    assert file.sort_order_id == 3


def test_the_second_field_decides_among_equals(tmp_path: Path) -> None:
    """Both fields are followed."""
    made = writer_spec(tmp_path, SCHEMA, order=order_by((1, ASC, LAST), (2, ASC, LAST)))
    (file,) = write(made, pa.RecordBatch.from_pydict(COLUMNS))
    assert [row["b"] for row in rows_of(file)] == ["z", "w", "x", "y"]


def test_a_file_of_several_row_groups_does_not_claim_to_be_sorted(tmp_path: Path) -> None:
    """Each row group is sorted; the file as a whole is not."""
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
    """For transforms and nested fields, rows keep their order."""
    made = writer_spec(tmp_path, SCHEMA, order=order)
    (file,) = write(made, pa.RecordBatch.from_pydict(COLUMNS))
    assert [row["b"] for row in rows_of(file)] == ["x", "y", "z", "w"]
    assert file.sort_order_id is None


def test_mixed_null_orders_are_followed_or_not_claimed(tmp_path: Path) -> None:
    """NULL is first in one field and last in the other."""
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
    """Either the rows are sorted, or the file does not claim it; it is never an error."""
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
def test_a_file_with_nan_claims_to_be_sorted_only_if_it_is(
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
