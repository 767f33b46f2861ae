"""Keys of every kind: a run that failed half way resumes where it stopped, with an exact result."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import TransformError
from holdfast.spark import keys
from tests.integration.process_watched import ROWS, TASKS, WatchedTable
from tests.integration.wide_rows import differences

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

ALL = list(range(ROWS))
# Name of each key column, and how it is made from the row's number.
KEYS: dict[str, dict[str, str]] = {
    "two columns": {"a": "n % 4", "b": "cast(n div 4 AS int)"},
    "string": {"k": "concat('käse ', n, if(n % 2 = 0, ' ', ''))"},
    "binary": {"k": "unhex(concat('00FF', lpad(hex(n), 4, '0')))"},
    "decimal(38,0)": {"k": "cast(n AS decimal(38,0)) * 1000000000000000000000000000000BD - 7"},
    "decimal(9,2)": {"k": "cast(n / 4 AS decimal(9,2))"},
    "date": {"k": "date_add(date'1969-12-25', cast(n AS int))"},
    "timestamp": {"k": "timestamp_micros(n * 1800000001 - 90061000001)"},
    "timestamp_ntz": {"k": "timestamp_ntz'1969-12-31 12:00:00.000001' + n * interval 2 hours"},
    "boolean and int": {"even": "n % 2 = 0", "half": "cast(n div 2 AS int)"},
    "tinyint and smallint": {"a": "cast(n AS tinyint)", "b": "cast(-n AS smallint)"},
    "int": {"k": "cast(n - 10 AS int)"},
    "string and binary": {"a": "concat('a', n div 5)", "b": "cast(concat('b', n % 5) AS binary)"},
}
# The last two are names that Holdfast uses for columns of its own.
NAMES = [
    "with space",
    "Ümläut-ß",
    "with`tick",
    "k0",
    "count",
]


def half_then_whole(watched: WatchedTable, df: DataFrame, key: list[str]) -> None:
    """Append, fail half way, append again; check that each row was computed and landed once."""
    with pytest.raises(TransformError):
        watched.append(df, key=key, fails_at=[ROWS - 4])
    done = watched.computed()
    assert 0 < len(done) < ROWS  # It did fail half way, so the test is not vacuous.
    assert watched.snapshots() == []
    report = watched.append(df, key=key)
    assert (report.outcome, report.rows, report.kept_rows) == ("committed", ROWS, len(done))
    assert watched.computed() == ALL
    assert watched.numbers() == ALL
    assert watched.append(df, key=key).outcome == "already_committed"


@pytest.mark.parametrize("kind", KEYS)
def test_a_run_with_any_key_goes_on_where_it_stopped(watched: WatchedTable, kind: str) -> None:
    """No row is computed twice, and the table holds exactly the input."""
    columns = KEYS[kind]
    df = watched.input(*(f"{how} AS {name}" for name, how in columns.items()))
    assert df.select(*columns).distinct().count() == ROWS
    half_then_whole(watched, df, list(columns))
    assert differences(watched.lake.table(watched.name), df) == 0


@pytest.mark.parametrize("kind", ["string", "int", "two columns"])
def test_a_run_with_too_many_finished_keys_goes_on_as_well(
    watched: WatchedTable, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the finished keys nor those left fit into the heap, so a filter is broadcast."""
    monkeypatch.setattr(keys, "broadcast_bytes", lambda _session: 200)
    columns = KEYS[kind]
    df = watched.input(*(f"{how} AS {name}" for name, how in columns.items()))
    half_then_whole(watched, df, list(columns))
    assert differences(watched.lake.table(watched.name), df) == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_key_column_may_have_any_name(watched: WatchedTable, name: str) -> None:
    """Quoting is not the user's concern, nor are the names that Holdfast uses itself."""
    quoted = f"`{name.replace('`', '``')}`"
    half_then_whole(watched, watched.input(f"concat('x', n) AS {quoted}"), [name])


def test_a_key_column_may_have_a_dot_in_its_name(watched: WatchedTable) -> None:
    """A dot is not a path into a struct here, even where a struct with that path exists too."""
    watched.lake.sql(f"CREATE TABLE {watched.name} (`a.b` string, n bigint) USING iceberg")
    half_then_whole(watched, watched.input("concat('x', n) AS `a.b`"), ["a.b"])
    found = watched.lake.table(watched.name).select("`a.b`").collect()
    assert sorted(row[0] for row in found) == sorted(f"x{number}" for number in ALL)


def test_a_timestamp_key_survives_the_hour_that_a_zone_repeats(
    watched: WatchedTable, lake: SparkSession
) -> None:
    """Keys that look the same on the wall clock of the session's zone are different instants."""
    previous = lake.conf.get("spark.sql.session.timeZone")
    lake.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        # 2026-10-25, from 00:30 UTC in steps of six minutes: 02:30 to 03:00 comes twice.
        df = watched.input("timestamp_seconds(1792888200 + n * 360) AS k")
        walls = df.selectExpr("date_format(k, 'HH:mm') AS wall").distinct().count()
        assert walls < ROWS
        half_then_whole(watched, df, ["k"])
        assert differences(lake.table(watched.name), df) == 0
    finally:
        lake.conf.set("spark.sql.session.timeZone", str(previous))


def test_rows_in_another_order_and_other_partitions_are_the_same_rows(
    watched: WatchedTable,
) -> None:
    """Keys, not positions, show what is done: the second start may partition its rows anew."""
    with pytest.raises(TransformError):
        watched.append(fails_at=[ROWS - 4])
    done = len(watched.computed())
    shuffled = watched.input().repartition(TASKS + 3).sortWithinPartitions("n", ascending=False)
    report: Any = watched.append(shuffled)
    assert report.kept_rows == done
    assert watched.numbers() == watched.computed() == ALL
