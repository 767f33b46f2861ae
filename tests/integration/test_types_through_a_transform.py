"""Types that Spark lacks reach the table through a transform."""

from __future__ import annotations

import datetime as dt
import uuid
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import FixedType, LongType, NestedField, TimeType, UUIDType
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.worker.transforms import BatchFormat
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "u", UUIDType()),
    NestedField(3, "t", TimeType()),
    NestedField(4, "f", FixedType(4)),
)
WITHOUT_TIME = Schema(*(field for field in SCHEMA.fields if field.name != "t"))


def expected(number: int) -> dict[str, Any]:
    """Return the row that a transform makes from an id; every third has NULLs."""
    if number % 3 == 2:
        return {"id": number, "u": None, "t": None, "f": None}
    return {
        "id": number,
        "u": uuid.uuid5(uuid.NAMESPACE_OID, str(number)),
        "t": dt.time(number % 24, 59, 59, 999_999),
        "f": number.to_bytes(4, "big"),
    }


def columns(batch: pa.RecordBatch, uuids: pa.DataType) -> dict[str, pa.Array]:
    """Return the rows of a batch's ids as Arrow columns, UUIDs as the given type."""
    rows = [expected(number) for number in batch.column("id").to_pylist()]
    as_text = pa.types.is_string(uuids)
    values = [row["u"] and (str(row["u"]) if as_text else row["u"].bytes) for row in rows]
    storage = uuids.storage_type if isinstance(uuids, pa.BaseExtensionType) else uuids
    array = pa.array(values, storage)
    if isinstance(uuids, pa.BaseExtensionType):
        array = pa.ExtensionArray.from_storage(uuids, array)
    return {
        "id": batch.column("id"),
        "u": array,
        "t": pa.array([row["t"] for row in rows], pa.time64("us")),
        "f": pa.array([row["f"] for row in rows], pa.binary(4)),
    }


def test_uuid_time_and_fixed_arrive_as_they_were_made(
    lake: SparkSession, stack: Stack, namespace: str, ledger: dict[str, Any]
) -> None:
    """Each value is in the table once, whichever way a transform writes a UUID.

    Method: PyIceberg reads all of it; Spark's reader, which rejects `time`, the rest.
    """
    properties = stack.rest_catalog_properties()
    catalog = load_catalog("default", **properties)
    df = lake.range(0, 30, 1, 2)
    ways = {"bytes": pa.binary(16), "text": pa.string(), "uuid": pa.uuid()}
    for way, kind in ways.items():
        table = catalog.create_table(f"{namespace}.by_{way}", SCHEMA)
        report = hf.Run(way, **ledger).append(
            df,
            to=hf.IcebergTable(f"{namespace}.by_{way}", catalog=properties),
            key="id",
            transform=partial(columns, uuids=kind),
        )
        assert report.rows == 30
        rows = table.refresh().scan().to_arrow().sort_by("id").to_pylist()
        found = [{**row, "u": row["u"] and uuid.UUID(bytes=as_bytes(row["u"]))} for row in rows]
        assert found == [expected(number) for number in range(30)]


def test_spark_reads_uuid_and_fixed_that_it_cannot_make(
    lake: SparkSession, stack: Stack, namespace: str, ledger: dict[str, Any]
) -> None:
    """Spark's own reader shows the UUIDs as text and the fixed values as bytes."""
    properties = stack.rest_catalog_properties()
    load_catalog("default", **properties).create_table(f"{namespace}.t", WITHOUT_TIME)

    def without_time(batch: pa.RecordBatch) -> dict[str, pa.Array]:
        return {name: values for name, values in columns(batch, pa.uuid()).items() if name != "t"}

    hf.Run("r", **ledger).append(
        lake.range(30), to=f"lake.{namespace}.t", key="id", transform=without_time
    )
    rows = lake.table(f"lake.{namespace}.t").orderBy("id").collect()
    for row in rows:
        wanted = expected(row["id"])
        assert row["u"] == (wanted["u"] and str(wanted["u"]))
        assert row["f"] == wanted["f"]
    # A filter on a UUID is left out: with Iceberg 1.12 Spark finds no row with it, even in tables
    # from its own writer.
    assert len(rows) == 30


@pytest.mark.parametrize("batch_format", ["pandas", "polars"])
def test_values_survive_a_transform_of_frames(
    lake: SparkSession, namespace: str, ledger: dict[str, Any], batch_format: BatchFormat
) -> None:
    """NULL beside whole numbers that a float cannot hold, through Spark and into the table."""
    large = "if(id % 3 = 0, NULL, id + 9007199254740993) AS large"
    df = lake.range(0, 30, 1, 2).selectExpr("id", large, "concat('row ', id) AS text")

    def checked(frame: Any) -> Any:  # noqa: ANN401 - of pandas or polars.
        assert type(frame).__module__.startswith(batch_format)
        return frame

    table = f"lake.{namespace}.frames"
    report = hf.Run(batch_format, **ledger).append(
        df,
        to=table,
        key="id",
        transform=checked,
        batch_format=batch_format,
        create=hf.Create(),
    )
    assert report.rows == 30
    assert lake.table(table).orderBy("id").collect() == df.orderBy("id").collect()


def as_bytes(value: uuid.UUID | bytes) -> bytes:
    """Return a UUID's bytes, however this version of pyarrow shows it."""
    return value.bytes if isinstance(value, uuid.UUID) else value
