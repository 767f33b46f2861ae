"""Values at the edge of their types: they are written, or only their own row fails."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from holdfast.engine.watch import quarantine_chunks
from holdfast.errors import SchemaMismatchError
from holdfast.ledger.row_files import read_chunk
from holdfast.sinks.conform import ValueMisfitError
from holdfast.sinks.iceberg.schemas import arrow_schema
from holdfast.sinks.iceberg.sink import IcebergSink
from tests.fakes.cli_lake import CliLake
from tests.fakes.iceberg_tables import entries, new_table, rows_of, writer_spec
from tests.fakes.memory_submitter import MemorySubmitter

LAST = chr(sys.maxunicode)
BEFORE_SURROGATES, AFTER_SURROGATES = "\ud7ff", "\ue000"
DAY_S, HOUR_S = 86_400, 3_600
# The last second that Python can represent.
END_OF_9999_S = 253_402_300_799


def partitioned(transform: Transform[Any, Any] | None) -> PartitionSpec:
    """Return a spec over the column `p`."""
    if transform is None:
        return UNPARTITIONED_PARTITION_SPEC
    return PartitionSpec(PartitionField(2, 1000, transform, "part"))


def array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an array; dates and times are given as their numbers."""
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int32() if pa.types.is_date32(kind) else pa.int64()).view(kind)
    return pa.array(values, kind)


def files_of(
    folder: Path,
    kind: IcebergType,
    values: Sequence[Any],
    transform: Any = None,  # noqa: ANN401
) -> list[DataFile]:
    """Write a row for each value, as a task does, and return the files in its manifest."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "p", kind))
    arrow = arrow_schema(schema)
    writer = writer_spec(folder, schema, spec=partitioned(transform)).open("task-0")
    columns = [pa.array(range(len(values))), array(values, arrow.field("p").type)]
    writer.write(writer.fit(pa.RecordBatch.from_arrays(columns, schema=arrow)))
    return [entry.data_file for group in writer.cut() for entry in entries(group)]


def bounds(file: DataFile, kind: PrimitiveType) -> tuple[Any, Any]:
    """Return the bounds of `p`."""
    lower, upper = file.lower_bounds.get(2), file.upper_bounds.get(2)
    return (
        None if lower is None else from_bytes(kind, lower),
        None if upper is None else from_bytes(kind, upper),
    )


@pytest.mark.parametrize(
    ("text", "upper"),
    [
        (BEFORE_SURROGATES * 17, BEFORE_SURROGATES * 15 + AFTER_SURROGATES),
        ("a" * 15 + BEFORE_SURROGATES + "b", "a" * 15 + AFTER_SURROGATES),
        (BEFORE_SURROGATES * 15 + LAST * 4, BEFORE_SURROGATES * 14 + AFTER_SURROGATES),
        ("a" * 15 + LAST * 3, "a" * 14 + "b"),
        ("a" * 17, "a" * 15 + "b"),
        ("a" * 16, "a" * 16),
        (LAST * 20, None),
        ("", ""),
    ],
    ids=ascii,
)
def test_the_upper_bound_of_a_long_text_is_a_text(
    tmp_path: Path, text: str, upper: str | None
) -> None:
    """Surrogates are not characters: U+E000 follows U+D7FF, as in Java."""
    (file,) = files_of(tmp_path, StringType(), [text])
    assert bounds(file, StringType()) == (text[:16], upper)
    assert upper is None or text.encode() <= upper.encode()
    assert rows_of(file)[0]["p"] == text


MOMENTS = [TimestampType(), TimestamptzType()]
LAST_OF_9999 = {
    "identity": END_OF_9999_S * 1_000_000,
    "hour": END_OF_9999_S // HOUR_S,
    "day": END_OF_9999_S // DAY_S,
    "month": 12 * (9999 - 1970) + 11,
    "year": 9999 - 1970,
}
IN_TIME: list[tuple[PrimitiveType, Transform[Any, Any] | None]] = [
    *((kind, None) for kind in (DateType(), *MOMENTS)),
    *((kind, BucketTransform(3)) for kind in (DateType(), *MOMENTS)),
    *((kind, IdentityTransform()) for kind in (DateType(), *MOMENTS)),
    *((kind, YearTransform()) for kind in (DateType(), *MOMENTS)),
    *((kind, MonthTransform()) for kind in (DateType(), *MOMENTS)),
    *((kind, DayTransform()) for kind in (DateType(), *MOMENTS)),
    *((kind, HourTransform()) for kind in MOMENTS),
]


@pytest.mark.parametrize(("kind", "transform"), IN_TIME, ids=str)
@pytest.mark.parametrize("after", [0, 1])
def test_dates_and_times_after_the_year_9999_are_written(
    tmp_path: Path, kind: PrimitiveType, transform: Transform[Any, Any] | None, after: int
) -> None:
    """The end of 9999 in New York is in the year 10000 in UTC, which Python cannot represent."""
    last = {**LAST_OF_9999}
    if isinstance(kind, DateType):
        last["identity"] = last["day"]
    step = 1 if isinstance(kind, DateType) else 1_000_000
    value = last["identity"] + after * step
    (file,) = files_of(tmp_path, kind, [value], transform)
    size = 4 if isinstance(kind, DateType) else 8
    assert file.lower_bounds[2] == file.upper_bounds[2] == value.to_bytes(size, "little")
    if str(transform) == "identity":
        assert file.partition[0] == value
    elif str(transform) in last:
        assert file.partition[0] == last[str(transform)] + after


def test_bounds_of_times_span_all_rows(tmp_path: Path) -> None:
    """NULL is in no bound; a day before 1970 is below a day after it."""
    (file,) = files_of(tmp_path, DateType(), [3, None, -5])
    assert bounds(file, DateType()) == (-5, 3)
    assert file.null_value_counts[2] == 1
    (file,) = files_of(tmp_path / "b", TimeType(), [7, 86_399_999_999])
    assert bounds(file, TimeType()) == (7, 86_399_999_999)
    (file,) = files_of(tmp_path / "c", TimestampType(), [None, None])
    assert bounds(file, TimestampType()) == (None, None)


def test_a_time_can_be_the_source_of_buckets(tmp_path: Path) -> None:
    """PyIceberg mistakes the bucket number for a time."""
    files = files_of(tmp_path, TimeType(), [0, 86_399_999_999, None], BucketTransform(5))
    assert sum(file.record_count for file in files) == 3
    assert all(file.partition[0] in (None, *range(5)) for file in files)


@pytest.mark.parametrize(
    ("kind", "value"), [(StringType(), "größe " * 900), (BinaryType(), b"\xff" * 5_000)], ids=str
)
def test_a_long_partition_value_does_not_make_a_long_file_name(
    tmp_path: Path,
    kind: PrimitiveType,
    value: Any,  # noqa: ANN401 - text or bytes.
) -> None:
    """A name may have 255 bytes; two values with the same beginning are in two folders."""
    files = files_of(tmp_path, kind, [value, value + value[:1]], IdentityTransform())
    folders = {file.file_path.rsplit("/", 2)[-2] for file in files}
    assert len(folders) == 2
    assert max(map(len, folders)) <= 200
    assert {file.partition[0] for file in files} == {value, value + value[:1]}


@pytest.mark.parametrize("values", [[0.0, -0.0], [-0.0, 0.0], [0.0], [-0.0, 0.5, 0.0]])
@pytest.mark.parametrize("kind", [DoubleType(), FloatType()])
def test_both_zeros_are_within_the_bounds_of_partitions(
    tmp_path: Path, kind: PrimitiveType, values: list[float]
) -> None:
    """In Java -0.0 is less than 0.0, so it would skip the manifest."""
    sink, _ = new_table(
        tmp_path,
        Schema(NestedField(1, "id", LongType()), NestedField(2, "p", kind)),
        partition_spec=partitioned(IdentityTransform()),
    )
    writer = sink.writer_spec(sink.load()).open("task-0")
    arrow = writer.stored_schema
    columns = [pa.array(range(len(values))), pa.array(values, arrow.field(1).type)]
    writer.write(pa.RecordBatch.from_arrays(columns, schema=arrow))
    (group,) = writer.cut()
    (summary,) = group.detail["partitions"]
    lower: Any = from_bytes(kind, bytes.fromhex(summary["lower"]))
    upper: Any = from_bytes(kind, bytes.fromhex(summary["upper"]))
    assert (lower, math.copysign(1, lower)) == (0.0, -1)
    assert (upper, math.copysign(1, upper)) == (max(values), 1)


SMALLEST: list[tuple[PrimitiveType, int, Any, Any]] = [
    (DecimalType(9, 2), 50, Decimal("-9999999.99"), Decimal("-9999999.50")),
    (DecimalType(1, 0), 10, Decimal(-1), Decimal(0)),
    (DecimalType(38, 10), 7, Decimal("-" + "9" * 28 + "." + "9" * 10), Decimal(-1)),
    (DecimalType(18, 18), 2**31 - 1, Decimal("-0." + "9" * 18), Decimal("-0.999999998")),
    (IntegerType(), 50, -(2**31), -(2**31) + 48),
    (LongType(), 50, -(2**63), -(2**63) + 8),
]


@pytest.mark.parametrize(("kind", "width", "bad", "good"), SMALLEST, ids=str)
def test_a_number_without_a_partition_is_refused_before_it_is_written(
    tmp_path: Path,
    kind: PrimitiveType,
    width: int,
    bad: Any,  # noqa: ANN401 - a number.
    good: Any,  # noqa: ANN401 - a number.
) -> None:
    """Java cannot write such a decimal either; it writes such an int, but cannot find it again."""
    transform: Transform[Any, Any] = TruncateTransform(width)
    with pytest.raises(ValueMisfitError, match=r"'p'.*in row 1 of a batch.*truncate") as caught:
        files_of(tmp_path, kind, [0, bad, None], transform)
    assert str(bad) in str(caught.value)
    files = files_of(tmp_path, kind, [0, good, None], transform)
    assert sum(file.record_count for file in files) == 3
    assert files_of(tmp_path / "b", kind, [bad], IdentityTransform())


def test_a_width_that_divides_the_smallest_int_accepts_it(tmp_path: Path) -> None:
    """It then has a partition of its own."""
    (file,) = files_of(tmp_path, IntegerType(), [-(2**31)], TruncateTransform(64))
    assert file.partition[0] == -(2**31)


def test_a_decimal_inside_a_struct_is_checked_too(tmp_path: Path) -> None:
    """Partition columns may be at any depth of structs; the error names the path."""
    inner = StructType(NestedField(3, "d", DecimalType(9, 2)))
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "p", inner))
    spec = PartitionSpec(PartitionField(3, 1000, TruncateTransform(50), "part"))
    writer = writer_spec(tmp_path, schema, spec=spec).open("task-0")
    rows = [{"id": 1, "p": {"d": Decimal("-9999999.99")}}, {"id": 2, "p": None}]
    batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(schema))
    with pytest.raises(ValueMisfitError, match=r"'p\.d'"):
        writer.fit(batch)
    assert writer.fit(batch.slice(1)).num_rows == 1


class Priced:
    """A transform whose last row has a price that fits no partition."""

    def __init__(self) -> None:
        """Start without batches."""
        self.sizes: list[int] = []

    def __call__(self, rows: pa.RecordBatch) -> dict[str, Any]:
        """Return prices, and record the size of the batch."""
        self.sizes.append(rows.num_rows)
        ids = rows["id"].to_pylist()
        prices = [Decimal("-9999999.99") if number == 9 else Decimal(number) for number in ids]
        return {"id": rows["id"], "price": pa.array(prices, pa.decimal128(9, 2))}


def by_price(folder: Path) -> tuple[CliLake, IcebergSink]:
    """Return a table partitioned by a truncated price."""
    lake = CliLake(folder)
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "price", DecimalType(9, 2)))
    spec = PartitionSpec(PartitionField(2, 1000, TruncateTransform(50), "part"))
    sink = lake.make_table()
    catalog = sink._catalog  # noqa: SLF001 - the table is created again with another schema.
    catalog.drop_table("db.t")
    catalog.create_table("db.t", schema=schema, partition_spec=spec)
    return lake, sink


def test_a_row_that_cannot_be_written_is_quarantined_with_its_error(tmp_path: Path) -> None:
    """All other rows are committed; the batch was halved to find it."""
    lake, sink = by_price(tmp_path)
    transform = Priced()
    options: dict[str, Any] = {"transform": transform, "batch_rows": 8, "on_error": "quarantine"}
    lake.start("r", MemorySubmitter(range(10)), sink=sink, **options)
    assert sorted(sink.load().handle.scan().to_arrow()["id"].to_pylist()) == list(range(9))
    assert transform.sizes == [8, 2, 1, 1]
    ledger = lake.ledger("r")
    ((uri, chunk),) = quarantine_chunks(ledger).items()
    (failed,) = read_chunk(ledger.storage, uri, chunk)
    assert failed["key"].to_pylist() == [{"id": 9}]
    assert "ValueMisfitError: column 'price' does not fit" in failed["error"][0].as_py()


def test_a_row_that_cannot_be_written_ends_the_run_with_its_key(tmp_path: Path) -> None:
    """This is the default: the error names column, value and keys, and nothing is committed."""
    lake, sink = by_price(tmp_path)
    with pytest.raises(SchemaMismatchError, match=r"-9999999\.99.*\(id=8\) to \(id=9\)") as caught:
        lake.start("r", MemorySubmitter(range(10)), sink=sink, transform=Priced(), batch_rows=8)
    assert (caught.value.column, caught.value.table) == ("price", "lake.db.t")
    assert sink.load().handle.current_snapshot() is None
