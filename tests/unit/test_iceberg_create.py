"""Creating a table: partitions in Spark's spelling, one winner, clear refusals."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimestampType

from holdfast import Create, IcebergTable
from holdfast.errors import SettingsError, TableMissingError, UnsupportedTableError
from holdfast.sinks.iceberg.open import open_sink, partition_spec
from holdfast.sinks.iceberg.sink import IcebergSink

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "name", StringType()),
    NestedField(3, "ts", TimestampType()),
)


@pytest.mark.parametrize(
    ("text", "transform", "name"),
    [
        ("name", "identity", "name"),
        ("bucket(16, id)", "bucket[16]", "id_bucket"),
        ("bucket( 16 ,id )", "bucket[16]", "id_bucket"),
        ("truncate(4, name)", "truncate[4]", "name_trunc"),
        ("day(ts)", "day", "ts_day"),
        ("days(ts)", "day", "ts_day"),
        ("hours( ts )", "hour", "ts_hour"),
        ("month(ts)", "month", "ts_month"),
        ("years(ts)", "year", "ts_year"),
    ],
)
def test_partitions_are_spelled_as_in_spark(text: str, transform: str, name: str) -> None:
    """The field gets the name that Spark would give it."""
    (field,) = partition_spec(SCHEMA, Create(partition_by=[text])).fields
    assert (str(field.transform), field.name, field.field_id) == (transform, name, 1000)


@pytest.mark.parametrize(
    "text", ["missing", "bucket(16, missing)", "day(missing)", "minute(ts)", ""]
)
def test_a_partition_that_names_no_column_is_refused(text: str) -> None:
    """The message lists the columns there are."""
    with pytest.raises(SettingsError, match="id, name, ts"):
        partition_spec(SCHEMA, Create(partition_by=[text]))


def open_with(folder: Path, create: Create | None, *, namespace: bool = True) -> IcebergSink:
    """Open `db.t` in a catalog that keeps its state in the folder."""
    folder.mkdir(exist_ok=True)
    target = IcebergTable(
        "db.t",
        catalog={
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
        },
    )
    if namespace:
        opened = open_sink(
            target, settings_under=lambda _: {}, create=None, default_schema=lambda: ARROW
        )
        opened._catalog.create_namespace_if_not_exists("db")  # noqa: SLF001 - the test's own.
    return open_sink(
        target, settings_under=lambda _: {}, create=create, default_schema=lambda: ARROW
    )


ARROW = pa.schema([("id", pa.int64()), ("name", pa.string())])


def test_a_missing_table_is_created_and_an_existing_one_left_alone(tmp_path: Path) -> None:
    """The second start finds the first one's table, whatever it asks for."""
    first = open_with(tmp_path, Create(partition_by=["name"], properties={"owner": "me"})).load()
    second = open_with(tmp_path, Create(schema=pa.schema([("other", pa.int32())]))).load()
    assert second.uuid == first.uuid
    assert [field["name"] for field in second.schema["fields"]] == ["id", "name"]
    assert second.handle.properties["owner"] == "me"
    assert second.handle.metadata.format_version == 2


@pytest.mark.parametrize(
    ("create", "error", "said"),
    [
        (Create(properties={"format-version": "3"}), UnsupportedTableError, "format v2"),
        (Create(schema="id long"), SettingsError, "Create\\(schema=\\) is a str"),
        (
            Create(schema=pa.schema([("d", pa.duration("us"))])),
            SettingsError,
            "type that Iceberg lacks",
        ),
    ],
)
def test_a_table_that_cannot_be_created_is_refused(
    tmp_path: Path, create: Create, error: type[Exception], said: str
) -> None:
    """Before the catalog is asked for it."""
    with pytest.raises(error, match=said):
        open_with(tmp_path, create)
    with pytest.raises(TableMissingError):
        open_with(tmp_path, None).load()


def test_a_missing_namespace_is_named(tmp_path: Path) -> None:
    """Namespaces are the user's to create."""
    with pytest.raises(TableMissingError, match="namespace"):
        open_with(tmp_path, Create(), namespace=False)
