"""Rows of an Iceberg table that a scan leaves out: filtered or deleted ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import FileFormat
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DoubleType, FloatType, IntegerType, LongType, NestedField, UUIDType

from holdfast.errors import SettingsError, UnsupportedTableError
from holdfast.model.coverage import Ranges
from holdfast.reading.iceberg_rows import ByFieldId
from holdfast.sources.scans import scan_iceberg
from tests.fakes.iceberg_scans import Tables, ids, stored
from tests.fakes.parquet_scans import read
from tests.fakes.position_deletes import add_equality_deletes, delete_positions


# ---- Rows of an Iceberg table that a scan leaves out: filtered or deleted ones
@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """Return a catalog of its own."""
    return Tables(tmp_path)


@pytest.mark.parametrize(
    "where",
    [
        "id > 7 and name != 'name 9'",
        [("id", ">", 7), ("name", "!=", "name 9")],
        [[("id", "in", [8])], [("id", "in", {10, 11, 12})]],
    ],
    ids=str,
)
def test_files_and_rows_that_do_not_match_are_left_out(tables: Tables, where: Any) -> None:  # noqa: ANN401
    """Metrics exclude files, the filter excludes rows, and every other row is accounted for."""
    tables.create()
    tables.append(1, 2, 3)
    tables.append(6, 7, 8, 9, 10, 11, 12)
    scan = tables.scan(columns=["id"], where=where)
    pins = stored(scan.pin())
    assert len(pins.files) == 1
    found = read(scan, pins)
    assert found.rows == [{"id": number} for number in (8, 10, 11, 12)]
    assert found.accounted == list(range(7))


@pytest.mark.parametrize(
    "where", ["", "id >", "nope = 1", "id = 'x'", [("id", "~", 1)], []], ids=str
)
def test_a_filter_that_does_not_fit_is_refused(tables: Tables, where: Any) -> None:  # noqa: ANN401
    """The driver refuses it, and the error names the columns."""
    tables.create()
    with pytest.raises(SettingsError, match=r"where[=:]"):
        tables.scan(where=where).pin()
    with pytest.raises(SettingsError, match="where="):
        scan_iceberg("a.b.c", where=3)  # type: ignore[arg-type]


def test_a_value_that_the_column_cannot_hold_is_not_rounded(tables: Tables) -> None:
    """PyIceberg would look for 4 where the filter says 3.5."""
    tables.create()
    tables.append(3, 4)
    with pytest.raises(SettingsError, match=r"'id' is long, and cannot hold 3\.5"):
        tables.scan(where="id = 3.5").pin()
    assert ids(read(tables.scan(where="id = 4.0"))) == [4]


def test_a_filter_under_an_old_name_does_not_leave_out_the_wrong_files(tables: Tables) -> None:
    """A named snapshot is filtered by its own column names, though another column has one now."""
    tables.create()
    first = tables.append(8, 9, 10)
    with tables.load().update_schema() as update:
        update.rename_column("id", "old")
        update.rename_column("n", "id")
    found = read(tables.scan(snapshot_id=first, where="id = 9"))
    assert found.rows == [{"id": 9, "n": 2, "name": "name 9"}]


NAN = math.nan
FLOAT_ROWS = [(1, 1.0), (2, NAN), (3, 7.0), (4, None)]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("not f < 5.0", [3]),
        ("not f >= 2.0", [1]),
        ("not (f < 5.0 or f > 9.0)", [3]),
        ("f not in (1.0, 2.0)", [2, 3]),
        ("not f in (1.0, 2.0)", [2, 3]),
        ("f not in (1.0)", [2, 3]),
        ([("f", "not in", [1.0, 2.0])], [2, 3]),
        ("f != 1.0", [2, 3]),
    ],
    ids=str,
)
@pytest.mark.parametrize("rows_a_file", [1, 2, 4])
def test_a_filter_reads_the_same_rows_however_they_lie_in_files(
    tmp_path: Path,
    where: Any,  # noqa: ANN401 - a text or triples.
    expected: list[int],
    rows_a_file: int,
) -> None:
    """NaN is neither below a number nor not below it, and NULL is in no list and outside none."""
    tables = Tables(tmp_path)
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "f", DoubleType()))
    table = tables.create(schema)
    for first in range(0, len(FLOAT_ROWS), rows_a_file):
        some = FLOAT_ROWS[first : first + rows_a_file]
        values = pa.array([value for _, value in some], pa.float64())
        table.append(pa.table({"id": pa.array([i for i, _ in some], pa.int64()), "f": values}))
    assert ids(read(tables.scan(where=where))) == expected


def test_position_deletes_are_applied_on_the_worker(tables: Tables) -> None:
    """Each deleted row is accounted for like one that a filter leaves out."""
    tables.create()
    tables.append(*range(10))
    tables.append(*range(10, 20))
    table = tables.load()
    paths = sorted(str(task.file.file_path) for task in table.scan().plan_files())
    delete_positions(table, {paths[0]: [0, 1, 5], paths[1]: [9]})
    delete_positions(tables.load(), {paths[0]: [5, 7]})
    scan = tables.scan()
    pins = stored(scan.pin())
    assert [len(file.deletes) for file in pins.files] in ([2, 1], [2, 2])
    found = read(scan, pins)
    assert found.accounted == list(range(20))
    assert len(found.rows) == 15
    assert ids(found) == sorted(tables.load().scan().to_arrow()["id"].to_pylist())
    some = read(scan, pins, Ranges.of([(1, 6), (19, 20)]))
    assert some.accounted == [1, 2, 3, 4, 5, 19]
    assert len(some.rows) == 3
    kept = read(tables.scan(where="id >= 5 and id < 15"))
    expected = tables.load().scan(row_filter="id >= 5 and id < 15").to_arrow()["id"].to_pylist()
    assert ids(kept) == sorted(expected)


def test_equality_deletes_are_refused_with_advice(tables: Tables) -> None:
    """The rows that they name cannot be found from the file alone."""
    tables.create()
    tables.append(1, 2)
    add_equality_deletes(tables.load())
    with pytest.raises(UnsupportedTableError, match=r"(?s)equality.*rewrite_data_files"):
        tables.scan().pin()


def test_deletion_vectors_are_refused_with_advice(tables: Tables) -> None:
    """They are in files of another format."""
    tables.create()
    tables.append(1, 2)
    path = next(iter(tables.load().scan().plan_files())).file.file_path
    delete_positions(tables.load(), {path: [0]}, file_format=FileFormat.PUFFIN)
    with pytest.raises(UnsupportedTableError, match=r"(?s)deletion vectors.*rewrite_data_files"):
        tables.scan().pin()


# ---- A scan's `where` on columns whose values PyIceberg compares in another type
FLOATS = [0.1, 0.5, math.inf, -math.inf, -0.0, 3.4e38, None]
BY_F = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))


@pytest.fixture(params=[UNPARTITIONED_PARTITION_SPEC, BY_F], ids=["one file", "partitions"])
def floats(request: pytest.FixtureRequest, tmp_path: Path) -> Tables:
    """Return a table with a float column, in one file, or in one for each value."""
    tables = Tables(tmp_path)
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "f", FloatType()))
    table = tables.create(schema, partition_spec=request.param)
    rows = pa.table({"id": range(len(FLOATS)), "f": FLOATS}, schema=schema.as_arrow())
    table.append(rows)
    return tables


@pytest.mark.slow_unit
@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("f = 0.1", [0]),
        ("f <= 0.1", [0, 3, 4]),
        ("f in (0.1, 0.5)", [0, 1]),
        ("f != 0.1", [1, 2, 3, 4, 5]),
        ("not f = 0.1", [1, 2, 3, 4, 5]),
        ("f = 0.5 or f > 1000", [1, 2, 5]),
        ("f is null", [6]),
        ([("f", "=", math.inf)], [2]),
        ([("f", ">=", math.inf)], [2]),
        ([("f", "<=", -math.inf)], [3]),
        ([("f", "in", [math.inf, 0.1])], [0, 2]),
        ([("f", "=", 3.4e38)], [5]),
        ([("f", ">", 0)], [0, 1, 2, 5]),
        ([("f", "<", 1e300)], [0, 1, 2, 3, 4, 5]),
        ([("f", "!=", 1e300)], [0, 1, 2, 3, 4, 5]),
        ([("f", "=", 1e300)], []),
        ([("f", "in", [1e300, 0.1])], [0]),
        ([("f", "in", [1e300])], []),
    ],
    ids=str,
)
def test_a_float_column_is_compared_with_floats(
    floats: Tables,
    where: Any,  # noqa: ANN401 - any filter.
    found: list[int],
) -> None:
    """Rows may be in any files; PyIceberg alone would look for a double and find no file."""
    assert ids(read(floats.scan(where=where))) == found


def test_null_is_neither_below_nor_above_a_value_that_the_column_cannot_hold(
    tmp_path: Path,
) -> None:
    """PyIceberg treats `n < 10000000000` on an int column as "all rows"."""
    tables = Tables(tmp_path)
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "n", IntegerType()))
    tables.create(schema).append(
        pa.table({"id": [0, 1, 2], "n": [7, None, 2**31 - 1]}, schema=schema.as_arrow())
    )
    assert ids(read(tables.scan(where="n < 10000000000"))) == [0, 2]
    assert ids(read(tables.scan(where="n != 10000000000"))) == [0, 2]
    assert ids(read(tables.scan(where="n > 10000000000"))) == []
    assert ids(read(tables.scan(where="n in (10000000000, 7)"))) == [0]


def test_a_value_of_a_file_that_its_column_cannot_hold_is_an_error() -> None:
    """A file that was added by hand may have a wider type; a value that is cut off is another."""
    columns = ByFieldId.of([NestedField(1, "n", IntegerType())])
    wider = pa.schema([pa.field("n", pa.int64(), metadata={"PARQUET:field_id": "1"})])
    fits = columns.fit(pa.RecordBatch.from_pydict({"n": [7, None]}, schema=wider))
    assert fits.to_pydict() == {"n": [7, None]}
    with pytest.raises(pa.ArrowInvalid, match="not in range"):
        columns.fit(pa.RecordBatch.from_pydict({"n": [7, 2**31]}, schema=wider))


@pytest.mark.parametrize("transform", [IdentityTransform(), BucketTransform(3)], ids=str)
def test_a_filter_on_a_uuid_is_refused_at_the_start(tmp_path: Path, transform: Any) -> None:  # noqa: ANN401
    """Arrow cannot compare UUIDs, and with partitions PyIceberg finds no file at all."""
    tables = Tables(tmp_path)
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "u", UUIDType()))
    tables.create(schema, partition_spec=PartitionSpec(PartitionField(2, 1000, transform, "part")))
    value = "00000000-0000-0000-0000-000000000007"
    with pytest.raises(SettingsError, match="'u' is a UUID"):
        tables.scan(where=[("u", "=", value)]).pin()
    with pytest.raises(SettingsError, match="'u' is a UUID"):
        tables.scan(where=f"id > 3 and u in ('{value}')").pin()
    assert tables.scan(where="u is null").pin().files == ()
