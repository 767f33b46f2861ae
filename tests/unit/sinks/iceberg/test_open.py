"""Creating and describing a table: one winner, and refusals that name their cause."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    ForbiddenError,
    NoSuchTableError,
    ServerError,
    UnauthorizedError,
)
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimestampType

from holdfast import Create, IcebergTable
from holdfast.errors import (
    CatalogUnavailableError,
    CommitRefusedError,
    HoldfastError,
    SettingsError,
    TableMissingError,
    UnsupportedTableError,
)
from holdfast.sinks.iceberg.catalog import open_catalog
from holdfast.sinks.iceberg.data_file import WriteOptions
from holdfast.sinks.iceberg.open import create_table, open_sink, partition_spec
from holdfast.sinks.iceberg.sink import IcebergSink

# ---- Creating a table: partitions in Spark's spelling, one winner, clear refusals
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
    """The message lists the columns that exist."""
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
    """It is refused before the catalog is asked."""
    with pytest.raises(error, match=said):
        open_with(tmp_path, create)
    with pytest.raises(TableMissingError):
        open_with(tmp_path, None).load()


def test_a_missing_namespace_is_named(tmp_path: Path) -> None:
    """The user must create namespaces."""
    with pytest.raises(TableMissingError, match="namespace"):
        open_with(tmp_path, Create(), namespace=False)


# ---- Creating and describing a table: every refusal is an error of ours that names its cause
ARROW_SCHEMA = pa.schema([("id", pa.int64()), ("s", pa.string()), ("ts", pa.timestamp("us"))])


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """Return a catalog with a namespace and no table."""
    properties = {"type": "sql", "uri": "sqlite://", "warehouse": f"file://{tmp_path}"}
    opened = open_catalog("lake", properties)
    opened.create_namespace("db")
    return opened


@pytest.mark.parametrize(
    "answer",
    [
        ForbiddenError("AccessDenied: not yours"),
        UnauthorizedError("who are you"),
        BadRequestError("no such location"),
        ServerError("503"),
        requests.ConnectionError("refused"),
        OSError("no bucket"),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_a_catalog_that_does_not_create_the_table_is_an_error_of_ours(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, answer: Exception
) -> None:
    """The message names the table, and what the catalog said."""
    monkeypatch.setattr(catalog, "create_table", Mock(side_effect=answer))
    with pytest.raises((CommitRefusedError, CatalogUnavailableError)) as caught:
        create_table(catalog, "db.t", Create(), ARROW_SCHEMA)
    assert "lake.db.t" in str(caught.value)
    assert str(answer) in str(caught.value)


@pytest.mark.parametrize(
    ("partition_by", "said"),
    [
        (["day(s)"], r"day\(s\)"),
        (["hour(id)"], r"hour\(id\)"),
        (["year(id)"], r"year\(id\)"),
        (["bucket(0, id)"], r"bucket\(0, id\)"),
        (["truncate(0, s)"], r"truncate\(0, s\)"),
        (["truncate(4, ts)"], r"truncate\(4, ts\)"),
        (["id", "id"], "'id' twice"),
        (["day(ts)", "days(ts)"], r"'days\(ts\)' twice"),
        (["bucket(8, id)", "bucket(16, id)"], "twice"),
        ("id", "'id' is a string"),
        ("day(ts)", "is a string"),
    ],
    ids=str,
)
def test_partitions_that_make_no_sense_are_refused_before_the_catalog_is_asked(
    catalog: Catalog,
    monkeypatch: pytest.MonkeyPatch,
    partition_by: str | list[str],
    said: str,
) -> None:
    """A transform that does not fit its type would fail on the executors, or never prune."""
    create = Mock(side_effect=AssertionError("asked"))
    monkeypatch.setattr(catalog, "create_table", create)
    with pytest.raises(SettingsError, match=said):
        create_table(catalog, "db.t", Create(partition_by=partition_by), ARROW_SCHEMA)
    assert create.call_count == 0
    with pytest.raises(NoSuchTableError):
        catalog.load_table("db.t")


def test_different_partitions_of_the_same_column_are_fine(catalog: Catalog) -> None:
    """Only the same field twice is a mistake."""
    both = Create(partition_by=["bucket(8, id)", "truncate(10, id)", "id", "hour(ts)"])
    create_table(catalog, "db.t", both, ARROW_SCHEMA)
    names = [field.name for field in catalog.load_table("db.t").spec().fields]
    assert names == ["id_bucket", "id_trunc", "id", "ts_hour"]


NUMBERS = [
    "write.parquet.page-size-bytes",
    "write.parquet.dict-size-bytes",
    "write.parquet.page-row-limit",
    "write.parquet.compression-level",
    "write.parquet.row-group-size-bytes",
    "write.parquet.row-group-limit",
    "write.target-file-size-bytes",
]


@pytest.mark.parametrize("text", ["1MB", "", "1.5", "many"])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_property_that_is_not_a_number_is_named(name: str, text: str) -> None:
    """It may have been set by another user, so the error names the property."""
    with pytest.raises(UnsupportedTableError) as caught:
        WriteOptions.of("lake.db.t", {name: text})
    assert isinstance(caught.value, HoldfastError)
    assert "lake.db.t" in str(caught.value)
    assert name in str(caught.value)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("codec", "level"), [("zstd", -5), ("gzip", 0), ("brotli", 0), ("zstd", 19)]
)
def test_a_compression_level_is_used_unchanged(codec: str, level: int) -> None:
    """Sizes must be at least one; levels may be zero or less."""
    options = WriteOptions.of(
        "t",
        {
            "write.parquet.compression-codec": codec,
            "write.parquet.compression-level": str(level),
        },
    )
    assert options.parquet["compression_level"] == level
