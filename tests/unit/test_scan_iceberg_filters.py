"""A scan's `where` on columns whose values PyIceberg compares in another type."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import FloatType, IntegerType, LongType, NestedField, UUIDType

from holdfast.errors import SettingsError
from tests.fakes.iceberg_scans import Tables, ids
from tests.fakes.parquet_scans import read

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
    """Whichever files the rows are in: PyIceberg looks for files with a double, and finds none."""
    assert ids(read(floats.scan(where=where))) == found


def test_null_is_on_no_side_of_a_value_that_the_column_cannot_hold(tmp_path: Path) -> None:
    """PyIceberg takes `n < 10000000000` of an int for "all rows"."""
    tables = Tables(tmp_path)
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "n", IntegerType()))
    tables.create(schema).append(
        pa.table({"id": [0, 1, 2], "n": [7, None, 2**31 - 1]}, schema=schema.as_arrow())
    )
    assert ids(read(tables.scan(where="n < 10000000000"))) == [0, 2]
    assert ids(read(tables.scan(where="n != 10000000000"))) == [0, 2]
    assert ids(read(tables.scan(where="n > 10000000000"))) == []
    assert ids(read(tables.scan(where="n in (10000000000, 7)"))) == [0]


@pytest.mark.parametrize("transform", [IdentityTransform(), BucketTransform(3)], ids=str)
def test_a_filter_on_a_uuid_is_refused_at_the_start(tmp_path: Path, transform: Any) -> None:  # noqa: ANN401
    """Arrow cannot compare them, and by partitions PyIceberg found no file at all."""
    tables = Tables(tmp_path)
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "u", UUIDType()))
    tables.create(schema, partition_spec=PartitionSpec(PartitionField(2, 1000, transform, "part")))
    value = "00000000-0000-0000-0000-000000000007"
    with pytest.raises(SettingsError, match="'u' is a uuid"):
        tables.scan(where=[("u", "=", value)]).pin()
    with pytest.raises(SettingsError, match="'u' is a uuid"):
        tables.scan(where=f"id > 3 and u in ('{value}')").pin()
    assert tables.scan(where="u is null").pin().files == ()
