"""A filter of an overwrite: the rows for which it is TRUE, and verdicts on whole files."""

from __future__ import annotations

import math
import pickle
import struct
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
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
    UnknownTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    UUIDType,
)

from holdfast.errors import SettingsError
from holdfast.sinks.iceberg.where import Verdict, Where
from tests.fakes.iceberg_tables import entries, local_path, writer_spec

# The place of a data file's partition in its record.
PARTITION = 3

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "a", LongType()),
    NestedField(3, "f", DoubleType()),
    NestedField(4, "s", StringType()),
    NestedField(5, "at place", StructType(NestedField(6, "x", IntegerType(), required=True))),
    NestedField(7, "u", UUIDType()),
    NestedField(8, "many", ListType(9, LongType())),
    NestedField(10, "price", DecimalType(9, 2)),
    NestedField(11, "i", IntegerType()),
    NestedField(12, "day", DateType()),
)
ROWS: list[dict[str, Any]] = [
    {"id": 0, "a": 5, "f": 5.0, "s": "five", "at place": {"x": 5}, "price": Decimal("5.50")},
    {"id": 1, "a": 6, "f": math.nan, "s": "fix", "at place": None},
    {"id": 2, "a": None, "f": None, "s": None, "at place": {"x": 6}, "i": 3},
    {"id": 3, "a": -1, "f": -0.0, "s": "", "at place": {"x": -1}, "day": date(2024, 2, 29)},
]


def rows(schema: Schema = SCHEMA) -> pa.RecordBatch:
    """Return the rows under the table's names."""
    names = [field.name for field in schema.fields]
    filled = [{name: row.get(name) for name in names} for row in ROWS]
    return pa.RecordBatch.from_pylist(filled, schema=schema.as_arrow())


def where(text: str | Sequence[Any], schema: Schema = SCHEMA) -> Where:
    """Return a filter on the table."""
    return Where.of("lake.db.t", schema, text)


@pytest.mark.parametrize(
    ("text", "going"),
    [
        ("a = 5", [0]),
        ("a != 5", [1, 3]),
        ("not a = 5", [1, 3]),
        ("not (a != 5)", [0]),
        ("a not in (5, 7)", [1, 3]),
        ("not (a in (5, 7))", [1, 3]),
        ("not (a not in (5, 7))", [0]),
        ("s not like 'fi%'", [3]),
        ("not (s like 'fi%' or a = -1)", []),
        ("not (a > 5 and s = 'fix')", [0, 3]),
        ("a is null", [2]),
        ("not (a is null)", [0, 1, 3]),
        ("a != 5 or a is null", [1, 2, 3]),
        ("a = 5 or f is nan", [0, 1]),
        ("f > 1", [0]),
        ("f < 1", [3]),
        ("not (f > 1)", [3]),
        ("f != 5", [1, 3]),
        ("f is not nan", [0, 3]),
        ("f in (0.0, 9.0)", [3]),
        ("f not in (0.0, 9.0)", [0, 1]),
        ("a is not nan", [0, 1, 3]),
        ('"at place".x not in (5, 9)', [2, 3]),
        ('"at place".x is null', [1]),
        ('not ("at place".x is null)', [0, 2, 3]),
        ('"at place" is null', [1]),
        ("u is null", [0, 1, 2, 3]),
        ("many is null", [0, 1, 2, 3]),
        ("price = 5.5", [0]),
        ("price < 5.51 or day > '2024-02-28'", [0, 3]),
        ("i < 99999999999", [2]),
        ("i not in (99999999999)", [2]),
        ("not (i > 99999999999)", [2]),
        ("not (i < 99999999999) or a = 6", [1]),
        ([("a", ">=", 5), ("s", "!=", "fix")], [0]),
        ([[("a", "=", 6)], [("f", "not in", [0.0])]], [0, 1]),
        ([("day", "=", date(2024, 2, 29))], [3]),
    ],
    ids=str,
)
def test_rows_go_for_which_the_filter_is_true(text: Any, going: list[int]) -> None:  # noqa: ANN401
    """NULL is never TRUE; NaN is unequal to every number, and neither less nor greater."""
    found = where(text).matches(rows())
    assert found.null_count == 0
    assert [number for number, goes in enumerate(found.to_pylist()) if goes] == going


def test_columns_are_found_by_their_ids_or_by_name(tmp_path: Path) -> None:
    """Rows on their way to a file have other names, and narrower Arrow types, than the table."""
    chosen = where("\"at place\".x = 5 and s = 'five'")
    stored = writer_spec(tmp_path, SCHEMA).open("job-0-0").fit(rows())
    assert "at place" not in stored.schema.names
    assert chosen.matches(stored).to_pylist() == [True, False, False, False]
    assert chosen.matches(rows()).to_pylist() == [True, False, False, False]
    assert chosen.matches(rows().slice(0, 0)).to_pylist() == []


def test_rows_outside_are_counted_and_shown() -> None:
    """The user sees the columns that the filter uses, of a few rows."""
    found = where("a != 5 and f < 3").outside(rows())
    assert found.rows == 3
    assert found.examples == ("a = 5, f = 5.0", "a = 6, f = nan", "a = None, f = None")
    assert where("a is null or a is not null").outside(rows()).rows == 0


def test_a_day_that_python_does_not_know_is_shown() -> None:
    """An error about rows must not become an error about dates."""
    days = pa.array([3_000_000], pa.int32()).cast(pa.date32())
    found = where("day < '2024-01-01'").outside(pa.RecordBatch.from_arrays([days], ["day"]))
    assert (found.rows, found.examples) == (1, ("day = 3000000",))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "where=''"),
        ("a >", "where="),
        (3, "where=3"),
        (b"a = 3", "where="),
        ([], "where="),
        ([("a", "~", 3)], "where="),
        ([("a", "=", None)], "None"),
        ([("f", "=", math.nan)], "NaN"),
        ("b = 3", "name b"),
        ("a = 'x'", "'x'|x into"),
        ("a = 3.5", "cannot hold 3.5"),
        ("a in (3.0, 3.5)", "cannot hold 3.5"),
        ("a = '3.7'", "cannot hold 3.7"),
        ("a = '1e2'", "not how SQL writes one"),
        ("a = '1_0'", "not how SQL writes one"),
        ("a in (3, 4) or a = '\u0967'", "not how SQL writes one"),
        ("f = '1_0'", "not how SQL writes one"),
        ("f = 'nan'", "not how SQL writes one"),
        ("day = 20000", "20000 is not how SQL writes one"),
        ("day in (20000, 20001)", "not how SQL writes one"),
        ("day = '20240229'", "not how SQL writes one"),
        ("day = '2024-W09-4'", "not how SQL writes one"),
        ("price = 3.505", "3.505"),
        ([("price", "=", 3.505)], "cannot hold 3.505"),
        ([("day", "=", datetime(2024, 2, 29, 5, tzinfo=timezone.utc))], "cannot hold"),
        ("u = 'f79c3e09-677c-4bbd-a479-3f349cb785e7'", "UUID"),
        ("many.element = 3", "many.element"),
        ('"at place" = 3', "struct"),
        ("true", "call overwrite without where"),
        ("false", "call overwrite without where"),
        ("i > 99999999999", "same answer"),
    ],
    ids=str,
)
def test_what_is_no_filter_of_the_table_is_refused(text: Any, problem: str) -> None:  # noqa: ANN401
    """PyIceberg would round 3.5 to 4, and a filter that is always true replaces all rows."""
    with pytest.raises(SettingsError, match=problem):
        where(text)


def test_a_filter_has_a_text_and_can_be_sent_to_a_worker() -> None:
    """The text is part of the run's identity."""
    texts = [where(text).text for text in ("a = 5", "a=5", [("a", "=", 5)], [("a", "in", {5, 6})])]
    assert len(set(texts)) == len(texts)
    assert where([("a", "in", {5, 6})]).text == where([("a", "in", {6, 5})]).text
    chosen = where("a = 5")
    chosen.matches(rows())
    again: Where = pickle.loads(pickle.dumps(chosen))  # noqa: S301 - our own.
    assert again == chosen
    assert again.matches(rows()).to_pylist() == [True, False, False, False]


# ---- Verdicts on files
FILTERS: Mapping[str, Sequence[str]] = {
    "long": [
        "{} = 5", "{} != 5", "{} < 5", "{} <= 5", "{} > 5", "{} >= 5", "{} in (4, 5)",
        "{} not in (4, 5)", "{} is null", "{} is not null", "not ({} > -7 and {} <= 12)",
    ],
    "string": [
        "{} = 'ab'", "{} != 'ab'", "{} < 'ab'", "{} >= 'ab'", "{} in ('a', 'ab')",
        "{} not in ('a', 'ab')", "{} like 'ab%'", "{} not like 'ab%'", "{} like 'abcd%'",
        "{} not like 'abcd%'", "{} is null", "{} is not null", "{} like 'abcdefghijklmnopqrs%'",
        "{} = 'abcdefghijklmnopqrstuvw'", "{} > 'abcdefghijklmnopqrsz'",
    ],
    "decimal": ["{} = 5.25", "{} != 5.25", "{} < 5.25", "{} >= 5.25", "{} in (5.25, 7.0)"],
    "date": [
        "{} = '2024-02-29'", "{} != '2024-02-29'", "{} < '2024-03-01'", "{} >= '2024-01-01'",
        "{} > '1969-12-30'", "{} <= '1969-12-31'", "{} not in ('2024-02-29', '1970-01-01')",
    ],
    "timestamp": [
        "{} = '2024-02-29T05:00:00'", "{} < '2024-02-29T00:00:00'", "{} >= '2024-03-01T00:00:00'",
        "{} > '1969-12-31T23:00:00'", "{} <= '1970-01-01T00:00:00'", "{} is null",
        "{} != '2024-02-29T05:00:00'",
    ],
    "boolean": ["{} = true", "{} != true", "not ({} = false)", "{} is null"],
}  # fmt: skip
LONG_TEXT = "abcdefghijklmnopqrstuvw"
VALUES: Mapping[str, tuple[IcebergType, Sequence[Any]]] = {
    "long": (LongType(), [None, 4, 5, 6, -8, 12, 49]),
    "string": (StringType(), [None, "", "a", "ab", "abc", "abcde", LONG_TEXT, LONG_TEXT + "x"]),
    "decimal": (
        DecimalType(9, 2),
        [None, Decimal("5.25"), Decimal("5.24"), Decimal("7.00"), Decimal("-7.01")],
    ),
    "date": (
        DateType(),
        [None, date(2024, 2, 29), date(2024, 3, 1), date(1969, 12, 31), date(1970, 1, 1)],
    ),
    "timestamp": (
        TimestampType(),
        [
            None,
            datetime(2024, 2, 29, 5),  # noqa: DTZ001 - the column has no zone.
            datetime(2024, 2, 29, 23, 59),  # noqa: DTZ001
            datetime(2024, 3, 1),  # noqa: DTZ001
            datetime(1969, 12, 31, 23, 30),  # noqa: DTZ001
            datetime(1970, 1, 1, 0, 30),  # noqa: DTZ001
        ],
    ),
    "boolean": (BooleanType(), [None, True, False]),
}
TIMES: list[Transform[Any, Any]] = [YearTransform(), MonthTransform(), DayTransform()]
TRANSFORMS: Mapping[str, Sequence[Transform[Any, Any]]] = {
    "long": [IdentityTransform(), BucketTransform(3), TruncateTransform(5), VoidTransform()],
    "string": [IdentityTransform(), BucketTransform(3), TruncateTransform(2), TruncateTransform(4)],
    "decimal": [IdentityTransform(), BucketTransform(3), TruncateTransform(50)],
    "date": [IdentityTransform(), BucketTransform(3), *TIMES],
    "timestamp": [IdentityTransform(), BucketTransform(3), HourTransform(), *TIMES],
    "boolean": [IdentityTransform()],
}


def spec_of(transform: Transform[Any, Any] | None) -> PartitionSpec:
    """Return a spec on the column."""
    if transform is None:
        return UNPARTITIONED_PARTITION_SPEC
    return PartitionSpec(PartitionField(1, 1000, transform, "part"), spec_id=1)


@pytest.mark.slow_unit
@pytest.mark.parametrize("kind", FILTERS)
def test_a_verdict_is_never_wrong_and_often_decides(tmp_path: Path, kind: str) -> None:
    """Every file of one or two values, with every transform, and every filter on it.

    Method: rows are judged one by one; the verdict must not contradict them.
    """
    column, values = VALUES[kind]
    schema = Schema(NestedField(1, "c", column))
    filters = [where(text.replace("{}", "c"), schema) for text in FILTERS[kind]]
    decided = judged = 0
    for at, transform in enumerate([None, *TRANSFORMS[kind]]):
        spec = spec_of(transform)
        writer = writer_spec(tmp_path / str(at), schema, spec=spec).open("task")
        for some in combinations([*values, None], 2):
            batch = pa.RecordBatch.from_pylist([{"c": value} for value in some], schema.as_arrow())
            writer.write(writer.fit(batch))
            for file in [entry.data_file for group in writer.cut() for entry in entries(group)]:
                found = [is_decided(chosen, file, spec) for chosen in filters]
                decided, judged = decided + sum(found), judged + len(found)
    assert decided > judged / 4  # They are not all "some".


def is_decided(chosen: Where, file: DataFile, spec: PartitionSpec) -> bool:
    """Return whether metadata decides about a file; it must be right if so."""
    verdict = chosen.verdict(file, spec)
    if verdict == "some":
        return False
    with pq.ParquetFile(local_path(file.file_path)) as parquet:
        (batch,) = parquet.iter_batches()
    going = chosen.matches(batch).to_pylist()
    assert set(going) == {verdict == "all"}, (chosen.text, batch, verdict)
    return True


def data_file(**facts: Any) -> DataFile:  # noqa: ANN401 - fields of a data file.
    """Return a file of ten rows; counts and bounds are of column 1 unless there are none."""
    given: dict[str, Any] = {"value_counts": 10, "null_value_counts": 0}
    given = {name: {1: value} for name, value in (given | facts).items() if value is not None}
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path="x",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=10,
        file_size_in_bytes=1,
        **given,
    )
    file.spec_id = 0
    return file


def number(value: int) -> bytes:
    """Return a bound of a long column."""
    return struct.pack("<q", value)


def verdict(text: str, kind: IcebergType, **facts: Any) -> Verdict:  # noqa: ANN401
    """Return the verdict on a file of ten values of a type."""
    schema = Schema(NestedField(1, "c", kind))
    return where(text, schema).verdict(data_file(**facts), UNPARTITIONED_PARTITION_SPEC)


BOUNDS = {"lower_bounds": number(6), "upper_bounds": number(9)}


@pytest.mark.parametrize("text", ["c != 5", "c not in (4, 5)", "c > 5", "not (c = 5)", "c < 10"])
def test_a_file_goes_as_a_whole_only_if_it_is_known_to_have_no_null(text: str) -> None:
    """PyIceberg's strict metrics remove it with its NULLs, and also if nothing was counted."""
    assert verdict(text, LongType(), **BOUNDS) == "all"
    assert verdict(text, LongType(), **BOUNDS, null_value_counts=3) == "some"
    assert verdict(text, LongType(), **BOUNDS, null_value_counts=None) == "some"
    assert verdict(text, LongType(), **BOUNDS, value_counts=None) == "some"
    assert verdict(text, LongType(), null_value_counts=10) == "none"
    assert verdict(text, LongType(), value_counts=None, null_value_counts=10) == "some"


def test_a_file_stays_as_a_whole_whatever_it_has_of_null() -> None:
    """NULL does not match, so bounds are enough."""
    assert verdict("c = 5", LongType(), **BOUNDS, null_value_counts=None) == "none"
    assert verdict("c is null", LongType(), null_value_counts=None) == "some"
    assert verdict("c is null", LongType(), null_value_counts=0) == "none"
    assert verdict("c is null", LongType(), null_value_counts=10) == "all"
    assert verdict("c is not null", LongType(), null_value_counts=0) == "all"


@pytest.mark.parametrize("kind", [FloatType(), DoubleType()], ids=str)
@pytest.mark.parametrize(
    "text", ["c > 5", "c < 5", "c = 7", "c != 5", "c in (1.0, 2.0)", "not (c < 5)", "c is nan"]
)
def test_values_of_floats_are_not_decided_by_metadata(kind: IcebergType, text: str) -> None:
    """Writers disagree about NaN in bounds, and a file may have it without saying so."""
    one = struct.pack("<f" if isinstance(kind, FloatType) else "<d", 7.0)
    facts = {"lower_bounds": one, "upper_bounds": one, "nan_value_counts": 0}
    assert verdict(text, kind, **facts) == "some"
    spec = spec_of(IdentityTransform())
    file = data_file(**facts)
    file[PARTITION] = Record(7.0)
    schema = Schema(NestedField(1, "c", kind))
    assert where(text, schema).verdict(file, spec) == "some"
    assert where("c is null", schema).verdict(file, spec) == "none"
    file[PARTITION] = Record(None)
    assert where(text, schema).verdict(file, spec) == "none"


def test_bounds_of_a_column_that_was_widened_are_read() -> None:
    """A file from before the change has them in four bytes; what cannot be read tells nothing."""
    narrow = {"lower_bounds": struct.pack("<i", 6), "upper_bounds": struct.pack("<i", 9)}
    assert verdict("c > 5", LongType(), **narrow) == "all"
    broken = {"lower_bounds": b"abc", "upper_bounds": b"abc"}
    assert verdict("c > 5", LongType(), **broken) == "some"
    assert verdict("c > 'a'", StringType(), lower_bounds=b"\xff", upper_bounds=b"\xff") == "some"


def test_a_bound_that_was_cut_is_not_taken_for_a_value() -> None:
    """Texts are cut after 16 characters, at the lower end down and at the upper end up."""
    cut = {"lower_bounds": b"abcdefghijklmnop", "upper_bounds": b"abcdefghijklmnoq"}
    for text in ("c = 'abcdefghijklmnop'", "c = 'abcdefghijklmnoq'", "c > 'abcdefghijklmnop'"):
        assert verdict(text, StringType(), **cut) == "some"
    assert verdict("c like 'abcdefghijklmno%'", StringType(), **cut) == "all"
    assert verdict("c like 'abcdefghijklmnop%'", StringType(), **cut) == "some"
    assert verdict("c > 'abcdefghijklmnor'", StringType(), **cut) == "none"


def test_a_field_of_a_struct_is_decided_by_its_own_counts() -> None:
    """It may be NULL although it is required: its struct may be NULL."""
    place = StructType(NestedField(1, "x", LongType(), required=True))
    schema = Schema(NestedField(2, "place", place))
    for text, nulls, expected in (
        ("place.x > 5", 0, "all"),
        ("place.x > 5", 3, "some"),
        ("place.x not in (1, 2)", 3, "some"),
        ("place.x is null", 3, "some"),
    ):
        file = data_file(**BOUNDS, null_value_counts=nulls)
        assert where(text, schema).verdict(file, UNPARTITIONED_PARTITION_SPEC) == expected


@pytest.mark.parametrize(
    ("transform", "kind", "value", "text"),
    [
        # Java's truncate of the smallest int overflows to one of the largest.
        (TruncateTransform(50), IntegerType(), 2147483646, "c > 0"),
        (TruncateTransform(50), IntegerType(), 2147483646, "c < 0"),
        # Early writers rounded times before 1970 up.
        (DayTransform(), TimestampType(), 0, "c >= '1970-01-01T00:00:00'"),
        (DayTransform(), TimestampType(), -1, "c < '1969-12-31T00:00:00'"),
        (UnknownTransform("zorder"), LongType(), None, "c is null"),
        (VoidTransform(), LongType(), None, "c is null"),
        # A year that Python does not know.
        (YearTransform(), TimestampType(), 8029, "c <= '9999-12-31T23:59:59.999999'"),
    ],
    ids=str,
)
def test_partition_values_that_cannot_be_trusted_decide_nothing(
    transform: Transform[Any, Any],
    kind: IcebergType,
    value: int | None,
    text: str,
) -> None:
    """Nor does a partition that says nothing about the column."""
    file = data_file(value_counts=None, null_value_counts=None)
    file[PARTITION] = Record(value)
    schema = Schema(NestedField(1, "c", kind))
    assert where(text, schema).verdict(file, spec_of(transform)) == "some"


def test_a_partition_says_which_rows_have_null() -> None:
    """Also in files without any counts, as of a migrated table."""
    schema = Schema(NestedField(1, "c", LongType()))
    file = data_file(value_counts=None, null_value_counts=None)
    for value, text, expected in (
        (None, "c != 5", "none"),
        (None, "c not in (4, 5)", "none"),
        (None, "c is null", "all"),
        (6, "c != 5", "all"),
        (6, "c is null", "none"),
        (5, "c != 5", "none"),
    ):
        file[PARTITION] = Record(value)
        assert where(text, schema).verdict(file, spec_of(IdentityTransform())) == expected


def test_verdicts_are_joined_over_columns() -> None:
    """AND stays if one side stays; OR goes if one side goes."""
    schema = Schema(NestedField(1, "c", LongType()), NestedField(2, "d", LongType()))
    for text, expected in (
        ("c > 5 and d > 5", "some"),
        ("c > 5 or d > 5", "all"),
        ("c < 5 and d > 5", "none"),
        ("c < 5 or d > 5", "some"),
        ("c > 5 and c < 10", "all"),
        ("c < 5 or c > 10", "none"),
        ("not (c < 5 or d is null)", "some"),
    ):
        file = data_file(**BOUNDS)
        assert where(text, schema).verdict(file, UNPARTITIONED_PARTITION_SPEC) == expected
