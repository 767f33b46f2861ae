"""A scan's `where`: which rows it keeps, which row groups it skips, and that no row is lost."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import SettingsError
from holdfast.model.coverage import Ranges
from holdfast.sources.parquet import scan_parquet
from tests.fakes.parquet_scans import STORAGE, on_disk, read, write_parquet

NUMBERS = list(range(100))
X = pc.field("x")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a file of the numbers to 99, ten to a row group."""
    write_parquet(tmp_path / "a.parquet", {"x": NUMBERS, "y": NUMBERS}, row_group_size=10)
    return tmp_path


@pytest.mark.parametrize(
    "where",
    [
        X > 42,
        [("x", ">", 42)],
        [[("x", ">", 42), ("x", "<", 1000)], [("x", ">", 1000)]],
        (X > 42) & (pc.field("y") > 0),
    ],
    ids=str,
)
def test_row_groups_that_cannot_match_are_left_out(folder: Path, where: Any) -> None:  # noqa: ANN401
    """They keep their numbers, but are neither read nor counted; the rest is accounted for."""
    scan = on_disk(folder, where=where)
    pins = scan.pin()
    assert pins.files[0].left_out == (0, 1, 2, 3)
    assert pins.whole == Ranges(((40, 100),))
    found = read(scan, pins)
    assert [row["x"] for row in found.rows] == NUMBERS[43:]
    assert found.accounted == NUMBERS[40:]
    assert found.passed_over == [(40, 43)]


def test_columns_of_the_filter_alone_are_not_handed_on(folder: Path) -> None:
    """They are read because the filter needs them."""
    found = read(on_disk(folder, columns=["y"], where=X >= 98))
    assert found.rows == [{"y": 98}, {"y": 99}]


def test_a_filter_that_nothing_passes_leaves_nothing_to_do(folder: Path) -> None:
    """No row group is left, so no task is started for it."""
    assert on_disk(folder, where=X > 1000).pin().whole == Ranges()


def test_columns_of_the_path_leave_whole_files_out(tmp_path: Path) -> None:
    """This includes NULL values."""
    for day in ("1", "2", "__HIVE_DEFAULT_PARTITION__"):
        write_parquet(tmp_path / f"day={day}" / "a.parquet", {"x": [1, 2]})
    day = pc.field("day")
    assert on_disk(tmp_path, where=day == 2).pin().whole == Ranges(((2, 4),))
    assert on_disk(tmp_path, where=day.is_null()).pin().whole == Ranges(((4, 6),))
    assert on_disk(tmp_path, where=(day == 1) | day.is_null()).pin().whole.rows == 4
    assert read(on_disk(tmp_path, columns=["x"], where=day == 2)).rows == [{"x": 1}, {"x": 2}]


@pytest.mark.parametrize("where", [~(pc.field("f") <= 5), pc.field("f") != 5.0], ids=str)
def test_a_nan_is_not_lost_by_bounds_that_omit_it(tmp_path: Path, where: pc.Expression) -> None:
    """Statistics have no NaN: pruning by them would lose a row that passes the filter."""
    write_parquet(tmp_path / "a.parquet", {"f": [5.0, math.nan, 5.0, 5.0]}, row_group_size=2)
    rows = read(on_disk(tmp_path, where=where)).rows
    assert [math.isnan(row["f"]) for row in rows] == [True]
    assert on_disk(tmp_path, where=pc.field("f") > 5).pin().whole == Ranges()


def test_filters_see_the_common_type_of_drifted_files(tmp_path: Path) -> None:
    """They see NULL where a file lacks the column."""
    write_parquet(tmp_path / "a.parquet", {"x": pa.array([1, 2], pa.int32())})
    write_parquet(tmp_path / "b.parquet", {"x": pa.array([2**40, 3], pa.int64())})
    write_parquet(tmp_path / "c.parquet", {"z": [1]})
    found = read(on_disk(tmp_path, where=X > 2**33))
    assert [row["x"] for row in found.rows] == [2**40]
    found = read(on_disk(tmp_path, where=X.is_null()))
    assert found.accounted == [4]
    assert found.rows == [{"x": None, "z": 1}]


@pytest.mark.parametrize(
    "where", [pc.field("nope") > 1, X + 1, X == "text", [("nope", "=", 1)]], ids=str
)
def test_a_filter_that_does_not_fit_is_refused_on_the_driver(folder: Path, where: Any) -> None:  # noqa: ANN401
    """It is refused before any task starts."""
    with pytest.raises(SettingsError, match="where="):
        on_disk(folder, where=where).pin()


@pytest.mark.parametrize("where", ["x > 1", [("x", "~", 1)], pc.field(0) > 1], ids=str)
def test_a_value_that_is_not_a_filter_is_refused_at_once(where: Any) -> None:  # noqa: ANN401
    """A column given by position could be another one on the worker."""
    with pytest.raises(SettingsError, match="where="):
        scan_parquet("/in", where=where)


def test_another_filter_is_another_input() -> None:
    """This holds even if they differ only in values that a long list does not show."""

    def identity(**options: Any) -> str:  # noqa: ANN401 - those of `scan_parquet`.
        return scan_parquet("/in", **options).on(STORAGE).identity

    long = [*range(50)]
    other = [*range(20), 1000, *range(21, 50)]
    assert str(X.isin(long)) == str(X.isin(other))  # It is not shown: the test is not vacuous.
    texts = [
        identity(),
        identity(where=X > 1),
        identity(where=X > 2),
        identity(where=X.isin(long)),
        identity(where=X.isin(other)),
        identity(columns=["x"]),
        identity(columns=["x", "y"]),
    ]
    assert len(set(texts)) == len(texts)
    assert identity(where=X.isin(long)) == identity(where=pc.field("x").isin([*range(50)]))
    assert identity(where=[("x", ">", 1)]) == identity(where=X > 1)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=3),
    group=st.integers(1, 15),
    low=st.integers(-5, 120),
    modulus=st.integers(1, 5),
    spans=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 120)), max_size=3),
)
def test_each_row_of_a_slice_is_accounted_for_once(  # noqa: PLR0913, PLR0917 - Hypothesis's.
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    group: int,
    low: int,
    modulus: int,
    spans: list[tuple[int, int]],
) -> None:
    """Tags and passed-over rows together are exactly the slice's numbers, each once."""
    folder = tmp_path_factory.mktemp("scan")
    values: list[int] = []
    for number, size in enumerate(sizes):
        mine = [(len(values) + row) % 97 for row in range(size)]
        write_parquet(
            folder / f"{number}.parquet",
            {"x": pa.array(mine, pa.int64()), "even": pa.array([v % modulus for v in mine])},
            row_group_size=group,
        )
        values += mine
    scan = on_disk(folder, where=(low <= X) & (pc.field("even") == 0), columns=["x"])
    pins = scan.pin()
    asked = Ranges.of(spans).overlap(pins.whole) if spans else pins.whole
    found = read(scan, pins, asked)
    numbers = [number for start, stop in asked for number in range(start, stop)]
    assert found.accounted == numbers
    kept = [n for n in numbers if values[n] >= low and values[n] % modulus == 0]
    assert [start for start, _ in found.tags] == kept
    assert [row["x"] for row in found.rows] == [values[n] for n in kept]
    everywhere = [n for n, x in enumerate(values) if x >= low and x % modulus == 0]
    assert Ranges.of((n, n + 1) for n in everywhere).minus(pins.whole) == Ranges()
