"""Data files: every value arrives, and no statistic is wrong."""

from __future__ import annotations

import re
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import LessThan
from pyiceberg.expressions.visitors import _StrictMetricsEvaluator
from pyiceberg.manifest import DATA_FILE_TYPE, DEFAULT_READ_VERSION, DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    UUIDType,
)

from holdfast.errors import UnsupportedTableError
from holdfast.sinks.iceberg.data_file import (
    WriteOptions,
    dictionary_columns,
    drop_unsound_bounds,
)
from holdfast.sinks.iceberg.manifests import NewManifest
from tests.fakes.iceberg_tables import local_path, parquet_metadata, rows_of, write, writer_spec

# The Parquet writer omits a row group's statistics when a value is longer than this.
LONG = "x" * 5_000


def column(name: str, kind: IcebergType) -> Schema:
    """Return a schema of one optional column."""
    return Schema(NestedField(1, name, kind))


def struct(name: str, kind: IcebergType, *, required: bool = False) -> StructType:
    """Return a struct of one field."""
    return StructType(NestedField(9, name, kind, required=required))


LONG_STRUCT = pa.struct([("a", pa.int64())])
NESTED: list[tuple[IcebergType, pa.DataType, list[Any]]] = [
    (struct("a", LongType()), LONG_STRUCT, [{"a": 1}, None, {"a": None}]),
    (struct("a", LongType(), required=True), LONG_STRUCT, [{"a": 1}, None]),
    (ListType(2, LongType(), element_required=True), pa.list_(pa.int64()), [[1, 2], None, []]),
    (
        ListType(2, struct("a", LongType(), required=True), element_required=False),
        pa.list_(LONG_STRUCT),
        [[{"a": 1}, None], None, []],
    ),
    (
        MapType(2, StringType(), 3, LongType(), value_required=True),
        pa.map_(pa.string(), pa.int64()),
        [[("k", 1)], None, []],
    ),
    (
        MapType(2, StringType(), 3, struct("a", LongType(), required=True), value_required=False),
        pa.map_(pa.string(), LONG_STRUCT),
        [[("k", {"a": 1}), ("l", None)], None],
    ),
    (
        struct("l", ListType(2, StringType(), element_required=False)),
        pa.struct([("l", pa.list_(pa.string()))]),
        [{"l": ["x", None]}, {"l": None}, None],
    ),
]


@pytest.mark.parametrize(("kind", "arrow", "values"), NESTED, ids=str)
def test_nested_values_arrive(
    tmp_path: Path, kind: IcebergType, arrow: pa.DataType, values: list[Any]
) -> None:
    """NULL parents may have required children, in every kind of nesting."""
    batch = pa.RecordBatch.from_arrays([pa.array(values, arrow)], names=["c"])
    (file,) = write(writer_spec(tmp_path, column("c", kind)), batch)
    assert [row["c"] for row in rows_of(file)] == values


def test_a_column_that_the_output_lacks_is_null_whatever_its_children(
    tmp_path: Path,
) -> None:
    """A missing optional struct with a required field is NULL, not an error."""
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "s", struct("a", LongType(), required=True)),
    )
    (file,) = write(writer_spec(tmp_path, schema), pa.RecordBatch.from_pydict({"id": [1]}))
    assert rows_of(file) == [{"id": 1, "s": None}]


@pytest.mark.parametrize("name", ["a-b", "1x", "a b", "a.b", "größe", "a/b", "_x", "x2D", "a\nb"])
@pytest.mark.parametrize("depth", ["column", "struct", "list", "map"])
def test_values_under_any_name_arrive(tmp_path: Path, name: str, depth: str) -> None:
    """Avro's names are narrower than a table's; at no depth does a renamed field lose its value."""
    inner, arrow = struct(name, LongType()), pa.struct([(name, pa.int64())])
    kinds: dict[str, tuple[IcebergType, pa.DataType, Any]] = {
        "column": (LongType(), pa.int64(), 5),
        "struct": (inner, arrow, {name: 5}),
        "list": (ListType(2, inner), pa.list_(arrow), [{name: 5}]),
        "map": (
            MapType(2, StringType(), 3, inner),
            pa.map_(pa.string(), arrow),
            [("k", {name: 5})],
        ),
    }
    kind, source, value = kinds[depth]
    top = name if depth == "column" else "c"
    batch = pa.RecordBatch.from_arrays([pa.array([value], source)], names=[top])
    (file,) = write(writer_spec(tmp_path, column(top, kind)), batch)
    footer = parquet_metadata(file)
    statistics = footer.row_group(0).column(footer.num_columns - 1).statistics
    assert (statistics.min, statistics.max, statistics.null_count) == (5, 5, 0)


def test_a_file_carries_the_tables_field_ids(tmp_path: Path) -> None:
    """Readers find columns by id, including nested ones."""
    schema = Schema(
        NestedField(7, "id", LongType()),
        NestedField(8, "s", StructType(NestedField(12, "l", ListType(15, StringType())))),
    )
    batch = pa.RecordBatch.from_pydict({"id": [1], "s": [{"l": ["x"]}]})
    (file,) = write(writer_spec(tmp_path, schema), batch)
    with pq.ParquetFile(local_path(file.file_path)) as parquet:
        found = str(parquet.schema)
    for part in ("field_id=7 id", "field_id=8 s", "field_id=12 l", "field_id=15 element"):
        assert part in found


def bounds(file: DataFile, field_id: int, kind: PrimitiveType) -> tuple[Any, Any]:
    """Return a column's bounds in a manifest entry; None where it has none."""
    lower, upper = (file.lower_bounds or {}).get(field_id), (file.upper_bounds or {}).get(field_id)
    return (
        None if lower is None else from_bytes(kind, lower),
        None if upper is None else from_bytes(kind, upper),
    )


def row_groups(
    tmp_path: Path, kind: IcebergType, *groups: list[Any], **properties: str
) -> DataFile:
    """Write one file of one column with the given row groups; return its manifest entry."""
    size = len(groups[0])
    made = writer_spec(
        tmp_path,
        column("c", kind),
        properties={"write.parquet.row-group-limit": str(size), **properties},
    )
    (file,) = write(made, *(pa.RecordBatch.from_pydict({"c": group}) for group in groups))
    assert parquet_metadata(file).num_row_groups == len(groups)
    return file


def test_bounds_span_all_row_groups(tmp_path: Path) -> None:
    """They are the lowest and highest value of the whole file; the counts are there too."""
    file = row_groups(tmp_path, LongType(), [5, None], [-3, 9])
    assert bounds(file, 1, LongType()) == (-3, 9)
    assert (file.value_counts[1], file.null_value_counts[1], file.record_count) == (4, 1, 4)


@pytest.mark.parametrize("order", [1, -1])
def test_bounds_are_left_out_when_one_row_group_has_none(tmp_path: Path, order: int) -> None:
    """Bounds of the other row groups would hide this one's rows from a reader that prunes."""
    file = row_groups(tmp_path, StringType(), *[["b", "c"], ["a", LONG]][::order])
    assert bounds(file, 1, StringType()) == (None, None)
    assert (file.value_counts[1], file.null_value_counts[1]) == (4, 0)


def test_a_row_group_of_only_nulls_does_not_lose_the_bounds(tmp_path: Path) -> None:
    """It has no lowest value, and no row that a reader could miss."""
    file = row_groups(tmp_path, LongType(), [None, None], [1, 2])
    assert bounds(file, 1, LongType()) == (1, 2)


def test_a_row_group_of_only_nans_loses_the_bounds(tmp_path: Path) -> None:
    """NaN cannot be in bounds, but a reader must still find these rows."""
    file = row_groups(tmp_path, DoubleType(), [float("nan")] * 2, [1.0, 2.0])
    assert bounds(file, 1, DoubleType()) == (None, None)


NAN = float("nan")
FLOATS = Schema(
    NestedField(1, "f", FloatType()),
    NestedField(2, "d", DoubleType()),
    NestedField(
        3, "s", StructType(NestedField(4, "d", DoubleType()), NestedField(5, "i", LongType()))
    ),
    NestedField(6, "l", ListType(7, DoubleType(), element_required=False)),
)


def float_rows(*values: float | None) -> pa.RecordBatch:
    """Return rows that have each value in a float, in a double, in a struct and in a list."""
    doubles = pa.array(values, pa.float64())
    inner = pa.StructArray.from_arrays([doubles, pa.nulls(len(values), pa.int64())], ["d", "i"])
    lists = pa.array([[value] for value in values], pa.list_(pa.float64()))
    return pa.RecordBatch.from_arrays(
        [doubles.cast(pa.float32()), doubles, inner, lists], names=["f", "d", "s", "l"]
    )


def test_nans_are_counted_in_every_column_that_has_bounds(tmp_path: Path) -> None:
    """Other engines take a file with bounds and without such a count for one without NaN.

    Then `DELETE ... WHERE d < 5` drops the whole file by its metadata alone.
    """
    batches = [float_rows(1.0, None), float_rows(NAN, 2.0, NAN)]
    small = {"write.parquet.row-group-limit": "1"}
    (file,) = write(writer_spec(tmp_path, FLOATS, properties=small), *batches)
    assert file.nan_value_counts == {1: 2, 2: 2, 4: 2}


def test_bounds_are_kept_beside_nans(tmp_path: Path) -> None:
    """Bounds are those of the numbers; a file without NaN says so."""
    (some,) = write(writer_spec(tmp_path, FLOATS), float_rows(1.0, NAN, None, 2.0))
    assert some.nan_value_counts == {1: 1, 2: 1, 4: 1}
    assert bounds(some, 4, DoubleType()) == (1.0, 2.0)
    (none,) = write(writer_spec(tmp_path, FLOATS), float_rows(1.0, None), task="job-0-1")
    assert none.nan_value_counts == {1: 0, 2: 0, 4: 0}
    assert bounds(none, 1, FloatType()) == (1.0, 1.0)


def test_a_nan_inside_a_struct_that_is_null_is_not_counted(tmp_path: Path) -> None:
    """Such a value is not stored, so it is not in the file."""
    schema = Schema(NestedField(1, "s", StructType(NestedField(2, "d", DoubleType()))))
    hidden = pa.StructArray.from_arrays(
        [pa.array([NAN, NAN, 1.0])], ["d"], mask=pa.array([True, False, False])
    )
    (file,) = write(writer_spec(tmp_path, schema), pa.RecordBatch.from_arrays([hidden], ["s"]))
    assert file.nan_value_counts == {2: 1}


def test_columns_without_statistics_are_not_searched_for_nan(tmp_path: Path) -> None:
    """With mode "none" a column has neither bounds nor counts; with "counts" it has counts."""
    of_column = "write.metadata.metrics.column"
    modes = {f"{of_column}.f": "none", f"{of_column}.d": "counts"}
    spec = writer_spec(tmp_path, FLOATS, properties=modes)
    (file,) = write(spec, float_rows(1.0, NAN))
    assert file.nan_value_counts == {2: 1, 4: 1}
    assert set(file.lower_bounds or {}) == {4}


def test_no_strict_reader_takes_a_file_with_nan_for_one_without(tmp_path: Path) -> None:
    """PyIceberg decides by metadata alone whether a delete drops a whole file, as Java does."""
    (file,) = write(writer_spec(tmp_path, FLOATS), float_rows(1.0, NAN))
    for column in ("f", "d", "s.d"):
        assert not _StrictMetricsEvaluator(FLOATS, LessThan(term=column, value=5.0)).eval(file)
    (plain,) = write(writer_spec(tmp_path, FLOATS), float_rows(1.0), task="job-0-1")
    assert _StrictMetricsEvaluator(FLOATS, LessThan(term="d", value=5.0)).eval(plain)


def test_bounds_without_a_count_of_nan_are_not_listed(tmp_path: Path) -> None:
    """A manifest drops bounds that others would misread, wherever its entries come from."""
    (file,) = write(writer_spec(tmp_path, FLOATS), float_rows(1.0, 2.0))
    before = dict(file.lower_bounds or {})
    drop_unsound_bounds(file, FLOATS)
    assert file.lower_bounds == before
    assert set(before) == {1, 2, 4}
    file[file_field("nan_value_counts")] = {4: 0}
    made = NewManifest.of(FLOATS, UNPARTITIONED_PARTITION_SPEC, {}, [file])
    assert set(file.lower_bounds or {}) == set(file.upper_bounds or {}) == {4}
    assert made.detail["has_sound_bounds"] is True
    file[file_field("lower_bounds")] = {5: b"", 99: b""}
    drop_unsound_bounds(file, FLOATS)
    assert file.lower_bounds == {5: b""}, "a column that the schema lacks may be of any type"


def file_field(name: str) -> int:
    """Return where PyIceberg's record of a data file has a field."""
    return [field.name for field in DATA_FILE_TYPE[DEFAULT_READ_VERSION].fields].index(name)


@pytest.mark.parametrize(
    ("mode", "expected", "counted"),
    [
        ("none", (None, None), False),
        ("counts", (None, None), True),
        ("truncate(3)", ("abc", "xyz"), True),
        ("truncate(2)", ("ab", "xz"), True),
        ("full", ("abc", "xyz"), True),
    ],
)
def test_metrics_modes_are_followed(
    tmp_path: Path, mode: str, expected: tuple[Any, Any], *, counted: bool
) -> None:
    """The table says which statistics may leave the data files."""
    mode_of = {"write.metadata.metrics.default": mode}
    file = row_groups(tmp_path, StringType(), ["abc", "xyz"], **mode_of)
    assert bounds(file, 1, StringType()) == expected
    assert (1 in (file.value_counts or {})) == counted


@pytest.mark.parametrize("name", ["email", "e-mail"])
def test_a_columns_own_metrics_mode_is_followed_under_any_name(tmp_path: Path, name: str) -> None:
    """A manifest holds no values of a column that must have no bounds."""
    made = writer_spec(
        tmp_path,
        column(name, StringType()),
        properties={f"write.metadata.metrics.column.{name}": "none"},
    )
    (file,) = write(made, pa.RecordBatch.from_pydict({name: ["secret"]}))
    assert bounds(file, 1, StringType()) == (None, None)


def test_uuids_are_written_as_uuids(tmp_path: Path) -> None:
    """Text from Spark becomes the sixteen bytes that Iceberg requires, with its logical type."""
    value = uuid.UUID(int=1)
    batch = pa.RecordBatch.from_pydict({"c": [str(value), None]})
    (file,) = write(writer_spec(tmp_path, column("c", UUIDType())), batch)
    leaf = parquet_metadata(file).schema.column(0)
    assert (leaf.physical_type, leaf.length) == ("FIXED_LEN_BYTE_ARRAY", 16)
    assert [row["c"] for row in rows_of(file)] in ([value, None], [value.bytes, None])


# ---- Dictionaries: which columns of a file get one, judged by some of its first rows
PATHS = {"few": 1, "all": 2, "late": 3, "nested.one": 4}


def repeating_rows(rows: int, told_rows: int) -> pa.Table:
    """Return a column of few values, one of distinct values, and one distinct up to a row."""
    return pa.table(
        {
            "few": [number % 10 for number in range(rows)],
            "all": [f"text {number}" for number in range(rows)],
            "late": [min(number, told_rows) for number in range(rows)],
            "nested": [{"one": number} for number in range(rows)],
        }
    )


@pytest.mark.parametrize(
    ("rows", "told_rows"),
    [(1_000, 1_000), (3_000, 1_000), (16_000, 2_000), (300_000, 32_768)],
    ids=["all of few rows", "a thousand", "an eighth", "no more than enough"],
)
def test_a_column_is_judged_by_its_first_rows(rows: int, told_rows: int) -> None:
    """A nearly distinct column gets no dictionary, whatever follows. A nested one always does."""
    assert dictionary_columns(repeating_rows(rows, told_rows), PATHS) == ["few", "nested.one"]
    seen_repeating = repeating_rows(rows, told_rows * 8 // 10)
    assert dictionary_columns(seen_repeating, PATHS) == ["few", "late", "nested.one"]


def test_very_few_rows_are_not_judged() -> None:
    """Judging them would take longer than writing the dictionaries."""
    assert dictionary_columns(repeating_rows(999, 999), PATHS) == list(PATHS)


def test_an_unknown_compression_is_refused_before_a_row_is_written(tmp_path: Path) -> None:
    """Else each start would pay for rows that it cannot write."""
    with pytest.raises(UnsupportedTableError, match=r"(?s)compressed with lzo.*to zstd"):
        WriteOptions.of("t", {"write.parquet.compression-codec": "LZO"})
    spec = writer_spec(tmp_path, column("v", LongType()))
    spec = replace(spec, properties={"write.parquet.compression-codec": "lz4"})
    (file,) = write(spec, pa.RecordBatch.from_pydict({"v": [1]}))
    assert rows_of(file) == [{"v": 1}]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("default", "truncate(0)"),
        ("default", "fulll"),
        ("column.v", ""),
        ("max-inferred-column-defaults", "many"),
    ],
)
def test_unknown_statistics_are_refused_before_a_row_is_written(name: str, text: str) -> None:
    """Java ignores them with a warning; a mode that is not applied would go unnoticed."""
    name = f"write.metadata.metrics.{name}"
    with pytest.raises(UnsupportedTableError, match=rf"(?s){re.escape(name)} is not a.*set "):
        WriteOptions.of("t", {name: text})


@pytest.mark.parametrize("text", ["none", "Counts", " truncate(1)", "full"])
def test_each_mode_of_statistics_is_known(text: str) -> None:
    """As PyIceberg reads them when files are written."""
    WriteOptions.of("t", {"write.metadata.metrics.column.v": text})
