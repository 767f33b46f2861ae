"""A commit that comes later, on real Spark, S3 and a REST catalog: what was looked at lands."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import FixedType, LongType, NestedField, TimeType, UUIDType
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.errors import RunNotReadyError
from tests.crash.own_connect import connect_server
from tests.integration.process_jobs import COLUMNS, EXPECTED, QUIET, ROWS, Ended, run_job
from tests.integration.upsert_desk import WRITES
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

ROOT = Path(__file__).parents[2]
# Each type that Spark can read from a table, and those that it reads as another.
TYPES = {
    "flag": "id % 2 = 0",
    "small": "cast(id as int)",
    "price": "cast(id as decimal(20, 3))",
    "ratio": "id / 7",
    "day": "date_add(date'2026-11-19', cast(id as int))",
    "at": "timestamp'2026-11-19 01:02:03.456789Z' + make_interval(0, 0, 0, 0, id)",
    "local": "timestamp_ntz'1969-11-19 01:02:03.456789'",
    "raw": "encode(concat('x', id), 'utf-8')",
    "tags": "array(concat('t', id), null)",
    "scores": "map('a', id, 'b', null)",
    "nested": "named_struct('x', id, 'y', array(named_struct('z', cast(id as string))))",
    "nothing": "cast(null as string)",
}


@pytest.fixture
def job(stack: Stack, namespace: str, ledger: dict[str, Any]) -> dict[str, Any]:
    """Return what the scripts of `later_job.py` take, but for the step."""
    return {
        "spark": {"spark.master": "local[2]", **QUIET},
        "run_id": "later",
        "to": f"{namespace}.rows",
        "catalog": stack.rest_catalog_properties(),
        **ledger,
    }


def do(step: str, job: Mapping[str, Any], folder: Path) -> Ended:
    """Run a script to its end, as a process of its own."""
    paths = {"PYTHONPATH": f"{ROOT}/src{os.pathsep}{ROOT}"}
    ended = run_job({**job, "step": step}, folder=folder, script="later_job.py", environment=paths)
    assert ended.code == 0, ended.errors
    return ended


def rows_of(lake: SparkSession, table: str) -> list[tuple[int, str]]:
    """Return all rows of the table, sorted."""
    return [tuple(row) for row in lake.table(table).select("id", "label").orderBy("id").collect()]


@pytest.mark.connect
@pytest.mark.parametrize("where", ["local", "connect"])
def test_a_process_without_spark_commits_what_another_has_staged_and_looked_at(
    lake: SparkSession, job: dict[str, Any], tmp_path: Path, where: str
) -> None:
    """The driver that has staged is gone; the commit knows the run, its store and the table."""
    table = f"lake.{job['to']}"
    lake.sql(f"CREATE TABLE {table} ({COLUMNS}) USING iceberg")
    if where == "connect":
        with connect_server(tmp_path / "server") as remote:
            staged = do("stage", {**job, "spark": {"spark.remote": remote}}, tmp_path)
    else:
        staged = do("stage", job, tmp_path)
    assert json.loads(staged.report["looked"]) == [ROWS, sum(range(ROWS)), 0]
    assert (staged.report["outcome"], staged.report["rows"]) == ("ready", str(ROWS))
    assert rows_of(lake, table) == []
    committed = do("commit", job, tmp_path)
    assert committed.report["outcome"] == "committed"
    assert rows_of(lake, table) == EXPECTED
    again = do("commit", job, tmp_path)
    assert (again.report["outcome"], rows_of(lake, table)) == ("already committed", EXPECTED)


def test_staged_rows_are_those_that_the_table_has_then(
    lake: SparkSession, namespace: str, ledger: dict[str, Any]
) -> None:
    """All types and a partitioned layout; the second look comes after a column was renamed."""
    table = f"lake.{namespace}.types"
    columns = [f"{text} AS {name}" for name, text in TYPES.items()]
    source = lake.range(0, 2000, 1, 4).selectExpr("id", *columns)
    lake.sql(
        f"CREATE TABLE {table} USING iceberg PARTITIONED BY (bucket(4, id), flag) "
        "AS SELECT * FROM {rows}",
        rows=source.limit(0),
    )
    run = hf.Run("types", **ledger)
    assert run.append(source, to=table, key="id", commit=False).outcome == "ready"
    staged = run.staged_rows()
    assert staged.schema.simpleString() == lake.table(table).schema.simpleString()
    assert differences(staged, source) == [0, 0]
    run.commit()
    assert differences(lake.table(table), source) == [0, 0]
    with pytest.raises(RunNotReadyError, match="it has landed"):
        run.staged_rows()


def differences(left: DataFrame, right: DataFrame) -> list[int]:
    """Return how many rows only the left has, and only the right. Maps are compared as text."""
    texts = [frame.withColumn("scores", frame["scores"].cast("string")) for frame in (left, right)]
    return [texts[0].exceptAll(texts[1]).count(), texts[1].exceptAll(texts[0]).count()]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    "rival",
    [
        "INSERT INTO {} VALUES (5, 'theirs'), (900, 'theirs')",
        "DELETE FROM {} WHERE id < 7",
        "CALL lake.system.rewrite_data_files(table => '{}', options => map('rewrite-all', 'true'))",
    ],
    ids=["appends", "deletes", "compacts"],
)
def test_an_upsert_that_is_ready_replaces_what_is_there_at_its_commit(
    lake: SparkSession, namespace: str, ledger: dict[str, Any], write: str, rival: str
) -> None:
    """As if others had written first. The report of the write says what it would replace."""
    table = f"lake.{namespace}.merged"
    version = "TBLPROPERTIES ('format-version' = '2')"
    lake.sql(f"CREATE TABLE {table} (id BIGINT, label STRING) USING iceberg {version}")
    lake.range(0, 20, 1, 2).selectExpr("id", "'old' AS label").writeTo(table).append()
    source = lake.range(0, 30, 3, 2).selectExpr("id + 2 AS id", "'new' AS label")
    run = hf.Run("merge", **ledger)
    report = run.upsert(source, to=table, on="id", commit=False, **WRITES[write])
    assert (report.outcome, report.rows, report.replaced_rows) == ("ready", 10, 6)
    assert lake.table(table).where("label = 'new'").count() == 0
    assert run.staged_rows().count() == 10
    lake.sql(rival.format(table))
    theirs = {row["id"]: row["label"] for row in lake.table(table).collect()}
    ours = {row["id"]: "new" for row in source.collect()}
    assert run.commit().outcome == "committed"
    assert dict(rows_of(lake, table)) == {**theirs, **ours}
    assert len(rows_of(lake, table)) == len({**theirs, **ours})


def test_staged_rows_have_the_nearest_type_where_spark_has_none(
    lake: SparkSession, stack: Stack, namespace: str, ledger: dict[str, Any]
) -> None:
    """UUIDs, times of day and fixed binary, as the how-to says."""
    catalog = load_catalog("lake", **stack.rest_catalog_properties())
    kinds = [LongType(), UUIDType(), TimeType(), FixedType(3)]
    names = ["id", "key", "hour", "code"]
    fields = [NestedField(n, names[n - 1], kinds[n - 1]) for n in range(1, 5)]
    catalog.create_table(f"{namespace}.odd", Schema(*fields))
    table = hf.IcebergTable(f"{namespace}.odd", catalog=stack.rest_catalog_properties())
    run = hf.Run("odd", **ledger)
    run.append(lake.range(3), to=table, key="id", transform=_odd, commit=False)
    found = [tuple(row) for row in run.staged_rows(to=table).orderBy("id").collect()]
    assert found == [
        (id_, bytearray(bytes(15) + bytes([id_])), f"0{id_}:30:00.000000", bytearray(b"abc"))
        for id_ in range(3)
    ]
    assert run.commit(to=table).rows == 3


def _odd(batch: Any) -> dict[str, Any]:  # noqa: ANN401 - an Arrow batch.
    """Return values of types that Spark lacks."""
    ids = batch["id"].to_pylist()
    return {
        "id": ids,
        "key": [bytes(15) + bytes([id_]) for id_ in ids],
        "hour": [dt.time(id_, 30) for id_ in ids],
        "code": [b"abc" for _ in ids],
    }
