"""Replay into Iceberg files: every type is preserved, even after the table has changed."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from holdfast.errors import TableChangedError
from holdfast.sinks.iceberg.writer import IcebergWriterSpec
from holdfast.worker.replay import ITEM_COLUMN, ReplayPlan, work_items
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import TaskPlan
from tests.fakes.task_ledgers import ATTEMPT, PLACE, Row, WatchedStorage, job_ledger, logged

COLUMNS = [
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "a name / with signs", StringType()),
    NestedField(3, "flag", BooleanType()),
    NestedField(4, "int", IntegerType()),
    NestedField(5, "float", FloatType()),
    NestedField(6, "double", DoubleType()),
    NestedField(7, "decimal", DecimalType(20, 3)),
    NestedField(8, "day", DateType()),
    NestedField(9, "time", TimeType()),
    NestedField(10, "moment", TimestampType()),
    NestedField(11, "instant", TimestamptzType()),
    NestedField(12, "uuid", UUIDType()),
    NestedField(13, "fixed", FixedType(4)),
    NestedField(14, "bytes", BinaryType()),
    NestedField(15, "list", ListType(16, FloatType(), element_required=False)),
    NestedField(17, "map", MapType(18, StringType(), 19, LongType(), value_required=False)),
    NestedField(20, "parts", StructType(NestedField(21, "x y", LongType()))),
]
# How files spell names that Avro does not allow.
PARTS_X = "parts.x_x20y"
ADDED = NestedField(30, "added later", StringType())
FIRST: Row = {
    "id": 1,
    "a name / with signs": "ä",
    "flag": True,
    "int": -5,
    "float": 0.5,
    "double": 1e300,
    "decimal": Decimal("12345678901234567.891"),
    "day": date(1969, 12, 31),
    "time": time(23, 59, 59, 999_999),
    "moment": datetime(2026, 11, 14, 1, 2, 3, 4),  # noqa: DTZ001 - a timestamp without a zone.
    "instant": datetime(2026, 11, 14, 1, 2, 3, 4, tzinfo=timezone.utc),
    "uuid": uuid.UUID(int=7).bytes,
    "fixed": b"abcd",
    "bytes": b"\0\xff",
    "list": [1.5, None],
    "map": [("k", 1), ("l", None)],
    "parts": {"x y": 3},
}
EMPTY: Row = dict.fromkeys(FIRST) | {"id": 2}


def spec(
    folder: Path, *more: NestedField, columns: Sequence[NestedField] = COLUMNS
) -> IcebergWriterSpec:
    """Return a writer of the table, with columns added to it."""
    return IcebergWriterSpec(
        table="lake.db.t",
        schema_json=Schema(*columns, *more).model_dump_json(),
        spec_json=UNPARTITIONED_PARTITION_SPEC.model_dump_json(),
        sort_order_json=UNSORTED_SORT_ORDER.model_dump_json(),
        location=f"file://{folder}/t",
        properties={},
        io_properties={},
    )


def staged(storage: WatchedStorage, job: str) -> pa.Table:
    """Return the rows of all files that a job has staged."""
    records = logged(job_ledger(storage, job=job))
    paths = [file.path for record in records for group in record.groups for file in group.files]
    return pa.concat_tables(pq.ParquetFile(path.removeprefix("file://")).read() for path in paths)


def transformed(batch: pa.RecordBatch) -> pa.Table:
    """Return a row of every type for each input row."""
    kinds = {"uuid": pa.binary(16), "fixed": pa.binary(4), "decimal": pa.decimal128(20, 3)}
    kinds |= {"int": pa.int32(), "float": pa.float32()}
    kinds |= {"map": pa.map_(pa.string(), pa.int64()), "list": pa.list_(pa.float32())}
    rows = [FIRST if i == 1 else EMPTY for i in batch.column("id").to_pylist()]
    return pa.table(
        {name: pa.array([row[name] for row in rows], kinds.get(name)) for name in FIRST}
    )


def fails_at_three(batch: pa.RecordBatch) -> pa.Table:
    """Transform the first two rows and fail at the third, so that they are in a chunk."""
    if 3 in batch.column("id").to_pylist():
        raise ValueError("bad row 3")
    return transformed(batch)


def run(storage: WatchedStorage, writer: IcebergWriterSpec, *ids: int, job: str) -> TaskReport:
    """Run a task over these ids, two at a time."""
    plan = TaskPlan(
        transform=fails_at_three,
        batch_rows=2,
        key=("id",),
        writer=writer,
        ledger=job_ledger(storage, job=job),
        job_nonce=job,
        checkpoint_every_s=1e9,
    )
    batch = pa.RecordBatch.from_pydict({"id": list(ids)})
    return plan.run([batch], place=PLACE, attempt=ATTEMPT)


def replay(
    storage: WatchedStorage, writer: IcebergWriterSpec, items: Sequence[str], *, job: str
) -> None:
    """Put the chunks of work items into files."""
    plan = ReplayPlan(writer=writer, ledger=job_ledger(storage, job=job), job_nonce=job)
    batch = pa.RecordBatch.from_pydict({ITEM_COLUMN: list(items)})
    plan.run([batch], place=PLACE, attempt=ATTEMPT)


def chunk_items(storage: WatchedStorage, folder: Path) -> list[str]:
    """Leave a chunk of two rows behind, and return the work items of its replay."""
    run(storage, spec(folder), 1, 2, 3, job="stopped")
    (left,) = logged(job_ledger(storage, job="stopped"))
    return work_items([left], 1 << 20)


@pytest.mark.parametrize(
    ("number", "column", "path"),
    [
        (3, NestedField(31, "flag", BooleanType()), "flag"),
        (20, NestedField(20, "parts", StructType(NestedField(32, "x y", LongType()))), PARTS_X),
    ],
)
def test_a_chunk_is_replayed_by_column_ids(
    tmp_path: Path, number: int, column: NestedField, path: str
) -> None:
    """A column that was dropped and added again has its old name but is another column."""
    storage = WatchedStorage()
    items = chunk_items(storage, tmp_path)
    columns = [column if field.field_id == number else field for field in COLUMNS]
    with pytest.raises(TableChangedError, match=f"column '{path}' was dropped"):
        replay(storage, spec(tmp_path, columns=columns), items, job="other")


def test_a_chunk_is_replayed_into_wider_types(tmp_path: Path) -> None:
    """Rows of a chunk are widened as Iceberg allows for files: the values are the same."""
    storage = WatchedStorage()
    items = chunk_items(storage, tmp_path)
    wide = {
        4: NestedField(4, "int", LongType()),
        5: NestedField(5, "float", DoubleType()),
        7: NestedField(7, "decimal", DecimalType(30, 3)),
    }
    columns = [wide.get(field.field_id, field) for field in COLUMNS]
    replay(storage, spec(tmp_path, columns=columns), items, job="wide")
    rows = staged(storage, "wide")
    assert [rows.field(name).type for name in ("int", "float")] == [pa.int64(), pa.float64()]
    for name in ("int", "float", "decimal"):
        assert rows[name].to_pylist() == [FIRST[name], None]


def test_rows_of_every_type_are_the_same_through_a_chunk(tmp_path: Path) -> None:
    """A task that succeeds and one whose chunk is replayed later stage equal rows."""
    storage = WatchedStorage()
    assert run(storage, spec(tmp_path), 1, 2, job="whole").problem is None
    items = chunk_items(storage, tmp_path)
    for job, writer in {"replay": spec(tmp_path), "later": spec(tmp_path, ADDED)}.items():
        replay(storage, writer, items, job=job)
    whole, replayed, later = (staged(storage, job) for job in ("whole", "replay", "later"))
    assert replayed.schema.equals(whole.schema, check_metadata=True)
    assert replayed.equals(whole)
    assert whole.num_rows == 2
    *old, added = later.column_names
    assert later.select(old).equals(whole)
    assert later.column(added).to_pylist() == [None, None]
