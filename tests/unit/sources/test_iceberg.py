"""A scan of an Iceberg table: which snapshot it pins, and what its reader returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    UUIDType,
)

from holdfast.errors import (
    InputChangedError,
    SettingsError,
    TableMissingError,
    UnsupportedTableError,
)
from holdfast.model.coverage import PinnedFile, Ranges
from holdfast.reading.iceberg_rows import DEFAULT, ByFieldId, without_metadata
from holdfast.sinks.targets import IcebergTable
from holdfast.sources.scans import scan_iceberg
from tests.fakes.iceberg_scans import ARROW, SCHEMA, Tables, ids, stored
from tests.fakes.iceberg_tables import local_path
from tests.fakes.parquet_scans import read


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """Return a catalog of its own."""
    return Tables(tmp_path)


def test_an_older_snapshot_can_be_named(tables: Tables) -> None:
    """It is read with the schema that it was written with."""
    tables.create()
    first = tables.append(1)
    with tables.load().update_schema() as update:
        update.add_column("later", LongType())
    tables.append(2)
    found = read(tables.scan(snapshot_id=first, where="id > 0"))
    assert [list(row) for row in found.rows] == [["id", "n", "name"]]
    with pytest.raises(SettingsError, match="has no snapshot 7"):
        tables.scan(snapshot_id=7).pin()


def test_a_table_that_has_moved_is_reported_with_the_way_to_go_on(tables: Tables) -> None:
    """The message names both snapshots; the pinned one can be requested explicitly."""
    tables.create()
    before = tables.append(1)
    scan = tables.scan()
    pins = stored(scan.pin())
    assert scan.compare(pins) == ""
    now = tables.append(2)
    difference = scan.compare(pins)
    assert f"moved from snapshot {before} to {now}" in difference
    assert f"pass snapshot_id={before}" in difference
    named = tables.scan(snapshot_id=before)
    assert named.compare(pins) == ""
    assert named.identity == scan.identity
    assert f"but this start names {now}" in tables.scan(snapshot_id=now).compare(pins)


def test_another_table_of_the_same_name_is_another_input(tables: Tables) -> None:
    """A table that was dropped and created again has other rows, whatever it looks like."""
    tables.create()
    tables.append(1)
    pins = stored(tables.scan().pin())
    tables.catalog.drop_table("db.t")
    with pytest.raises(TableMissingError):
        tables.scan().compare(pins)
    tables.create(location=f"{tables.catalog.properties['warehouse']}/other")
    with pytest.raises(InputChangedError, match=r"db\.t is not the table"):
        tables.scan().compare(pins)


def test_a_table_without_a_snapshot_has_no_rows(tables: Tables) -> None:
    """This is so until rows are added."""
    tables.create()
    scan = tables.scan(columns=["n"])
    pins = stored(scan.pin())
    assert pins.whole == Ranges()
    assert scan.schema(pins) == pa.schema([("n", pa.int32())])
    tables.append(1)
    assert "moved from snapshot None" in scan.compare(pins)


def test_columns_are_found_by_id(tables: Tables) -> None:
    """They may be renamed, reordered, added, widened, or dropped and added again."""
    tables.create(
        Schema(
            *SCHEMA.fields, NestedField(4, "f", FloatType()), NestedField(5, "d", DecimalType(5, 2))
        )
    )
    tables.append(1)
    with tables.load().update_schema() as update:
        update.rename_column("name", "title")
        update.update_column("n", LongType())
        update.update_column("f", DoubleType())
        update.update_column("d", DecimalType(9, 2))
    with tables.load().update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("n")
    with tables.load().update_schema() as update:
        update.add_column("n", LongType())
        update.add_column("name", StringType())
        update.move_first("title")
    scan = tables.scan()
    found = read(scan, stored(scan.pin()))
    (row,) = found.rows
    assert (row["id"], row["title"], row["name"], row["n"]) == (1, "name 1", None, None)
    assert next(iter(row)) == "title"
    assert found.schema is not None
    assert found.schema.field("f").type == pa.float64()
    assert found.schema.field("d").type == pa.decimal128(9, 2)
    assert read(tables.scan(columns=["name", "title"])).rows == [{"name": None, "title": "name 1"}]
    assert read(tables.scan(columns=["name"])).rows == [{"name": None}]


def test_nested_columns_and_odd_types_arrive_whole(tables: Tables, tmp_path: Path) -> None:
    """This holds with and without ids; NULL stays NULL at every depth."""
    inner = StructType(NestedField(11, "x", IntegerType()), NestedField(12, "y", StringType()))
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "s", inner),
        NestedField(
            3,
            "l",
            ListType(13, StructType(NestedField(14, "z", LongType())), element_required=False),
        ),
        NestedField(4, "m", MapType(15, StringType(), 16, LongType())),
        NestedField(5, "u", UUIDType()),
        NestedField(6, "day", DateType()),
        NestedField(7, "ts", TimestamptzType()),
    )
    table = tables.create(schema)
    rows: list[dict[str, Any]] = [
        {"id": 1, "s": {"x": 1, "y": None}, "l": [{"z": 1}, None], "m": [("a", 1)], "u": b"u" * 16},
        {"id": 2, "s": None, "l": None, "m": None, "u": None},
        {"id": 3, "s": {"x": None, "y": "y"}, "l": [], "m": [], "u": b"v" * 16},
    ]
    filled = [{"day": 20000 + n, "ts": n, **row} for n, row in enumerate(rows)]
    whole = pa.Table.from_pylist(filled, table.schema().as_arrow())
    # PyIceberg writes a missing list as an empty one, so its writer is not used here.
    file = tmp_path / "a.parquet"
    pq.write_table(whole.cast(without_metadata(whole.schema)), file)
    table.add_files([f"file://{file}"])
    table.append(whole.slice(2))
    scan = tables.scan()
    found = read(scan, stored(scan.pin()))
    found.rows.sort(key=lambda row: (int(row["id"]), row["l"] is None))
    expected = whole.to_pylist()
    assert found.rows == [*expected, expected[2]]
    assert found.accounted == [0, 1, 2, 3]


def test_a_column_changed_inside_is_refused(tables: Tables) -> None:
    """A field renamed or added inside a struct could only be matched by name."""
    inner = StructType(NestedField(11, "x", IntegerType()))
    table = tables.create(Schema(NestedField(1, "id", LongType()), NestedField(2, "s", inner)))
    table.append(pa.Table.from_pylist([{"id": 1, "s": {"x": 1}}], table.schema().as_arrow()))
    with tables.load().update_schema() as update:
        update.rename_column("s.x", "z")
    with pytest.raises(
        UnsupportedTableError, match=r"(?s)nested type of column 's' has changed.*rewrite_data"
    ):
        tables.scan().pin()
    assert read(tables.scan(columns=["id"])).rows == [{"id": 1}]


def test_a_column_added_with_a_default_has_it_in_older_files() -> None:
    """This is a feature of format v3."""
    ids = [{b"PARQUET:field_id": str(number).encode()} for number in (1, 2, 3)]
    default = {**ids[1], DEFAULT: b'"new"'}
    fit = ByFieldId(
        schema=pa.schema(
            [
                pa.field("id", pa.int64(), metadata=ids[0]),
                pa.field("kind", pa.large_string(), metadata=default),
                pa.field("later", pa.large_string(), metadata=ids[2]),
            ]
        )
    )
    own = pa.schema([pa.field("old", pa.int32(), metadata=ids[0])])
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2], pa.int32())], schema=own)
    file = PinnedFile(uri="f", size_bytes=1, tag="", group_rows=(2,), group_bytes=(1,))
    assert fit.check(own) == {2, 3}
    assert fit.fit(batch, file).to_pylist() == [
        {"id": 1, "kind": "new", "later": None},
        {"id": 2, "kind": "new", "later": None},
    ]


def test_a_table_with_two_partition_specs_is_one_input(tables: Tables) -> None:
    """However it is partitioned, the columns are in the files."""
    tables.create(partition_spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "n")))
    tables.append(1, 2, 3)
    with tables.load().update_spec() as update:
        update.remove_field("n")
        update.add_field("id", BucketTransform(2), "id_bucket")
    tables.append(4, 5, 6)
    scan = tables.scan()
    found = read(scan, stored(scan.pin()))
    assert ids(found) == [1, 2, 3, 4, 5, 6]
    assert {row["id"]: row["n"] for row in found.rows}[6] == 6


def test_a_file_that_is_gone_is_named(tables: Tables) -> None:
    """Its snapshot may have been expired."""
    tables.create()
    tables.append(1, 2)
    scan = tables.scan()
    pins = scan.pin()
    local_path(pins.files[0].uri).unlink()
    with pytest.raises(InputChangedError, match=f"{pins.files[0].uri} is gone"):
        read(scan, pins)


def test_files_without_ids_are_read_by_the_name_mapping(tables: Tables, tmp_path: Path) -> None:
    """`add_files` leaves such files; a partition column that is in no file is refused."""
    tables.create()
    pq.write_table(
        pa.table({"id": [1], "n": [1], "name": ["x"]}, schema=ARROW), tmp_path / "f.parquet"
    )
    tables.load().add_files([f"file://{tmp_path}/f.parquet"])
    scan = tables.scan()
    assert read(scan, stored(scan.pin())).rows == [{"id": 1, "n": 1, "name": "x"}]
    with tables.load().update_schema() as update:
        update.rename_column("name", "title")
    assert read(tables.scan()).rows == [{"id": 1, "n": 1, "title": "x"}]


def test_credentials_are_not_shown() -> None:
    """They are in the catalog's properties."""
    target = IcebergTable("db.t", catalog={"token": "hunter2"})
    assert "hunter2" not in repr(scan_iceberg(target))
