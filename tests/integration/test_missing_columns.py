"""Output that lacks a column of the table, on real Spark: no column is set to NULL silently."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import SchemaMismatchError, SettingsError
from tests.crash.own_connect import connect_server
from tests.integration.process_desk import COUNTRIES, ROWS, Desk
from tests.integration.process_jobs import COLUMNS, run_job
from tests.integration.process_local_lake import ledger_kinds
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

ROOT = Path(__file__).parents[2]
TASKS = 12


class Countries:
    """Leaves a file for each call, with its number of rows; returns too few columns."""

    def __init__(self, calls: Path) -> None:
        """Take the folder for the files."""
        self.calls = calls

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Return the countries, slowly: only the first tasks start with the job."""
        time.sleep(2.5)
        (self.calls / f"{uuid.uuid4().hex} {batch.num_rows}").touch()
        ids = batch.column("id")
        return {"id": ids, "country": [f"c{number}" for number in ids.to_pylist()]}


@pytest.fixture
def desk(lake: SparkSession, namespace: str, ledger: dict[str, Any], tmp_path: Path) -> Desk:
    """Return an empty table with one column more than the countries have."""
    desk = Desk(lake=lake, namespace=namespace, ledger=ledger, folder=tmp_path)
    desk.create_table()
    lake.sql(f"ALTER TABLE {desk.table} ADD COLUMN price DOUBLE")
    return desk


def kinds(desk: Desk) -> list[str]:
    """Return the kinds of all records of the run."""
    return ledger_kinds(desk.ledger["store"], "nightly", desk.ledger["store_options"])


def prices(desk: Desk) -> list[Any]:
    """Return all prices in the table."""
    return [row["price"] for row in desk.lake.table(desk.table).collect()]


def test_a_transform_that_lacks_a_column_ends_after_one_small_batch(desk: Desk) -> None:
    """Each running task computes one batch, later tasks none; then NULL is asked for."""
    transform = Countries(desk.folder)
    with pytest.raises(SchemaMismatchError, match='missing_columns="null"') as caught:
        desk.append(desk.ids(rows=1200, tasks=TASKS), transform=transform, run_id="large")
    assert (caught.value.table, caught.value.column) == (desk.table, "price")
    paid = [int(file.name.split()[1]) for file in desk.folder.iterdir()]
    assert 0 < len(paid) <= desk.lake.sparkContext.defaultParallelism < TASKS
    assert max(paid) <= 8
    assert desk.snapshots() == 0
    assert desk.intents("large") == 0
    report = desk.append(desk.ids(), transform=transform, missing_columns="null", batch_rows=10)
    assert (report.outcome, report.rows) == ("committed", ROWS)
    assert set(prices(desk)) == {None}


def test_a_table_that_create_made_of_the_input_is_named_as_the_reason(desk: Desk) -> None:
    """The error names a way out, and that way works: the same script then lands."""
    to, options = f"{desk.table}_new", {"run_id": "create", "create": hf.Create()}
    with pytest.raises(SchemaMismatchError, match=r"hf\.Create\(\) without a schema .* ALTER"):
        desk.append(desk.ids(), transform=Countries(desk.folder), to=to, **options)
    desk.lake.sql(f"ALTER TABLE {to} ADD COLUMN country STRING")
    report = desk.append(desk.ids(), transform=Countries(desk.folder), to=to, **options)
    assert (report.outcome, report.rows) == ("committed", ROWS)
    assert desk.lake.table(to).where("country IS NULL").count() == 0


def test_a_transform_that_uses_spark_is_refused_before_a_task(desk: Desk) -> None:
    """Spark's own error names neither the transform nor a way out; the run has a stop."""
    lake = desk.lake
    with pytest.raises(SettingsError, match="the Spark session or a DataFrame"):
        desk.append(desk.ids(), transform=lambda batch: (lake.range(1), batch)[1])
    assert kinds(desk)[-1] == "Stop"


def test_a_dataframe_that_lacks_a_column_starts_no_task(desk: Desk) -> None:
    """Without a transform this is known beforehand: not even the keys are read."""
    context = desk.lake.sparkContext
    few = desk.ids().selectExpr("id", "concat('c', id) AS country")
    context.setJobGroup("lacking", "")
    try:
        with pytest.raises(SchemaMismatchError, match="'price'"):
            desk.append(few)
        assert context.statusTracker().getJobIdsForGroup("lacking") == []
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert "Plan" not in kinds(desk)
    assert desk.append(few.selectExpr("*", "id * 1.5D AS price")).outcome == "committed"
    assert desk.rows() == COUNTRIES
    assert sorted(prices(desk)) == [1.5 * number for number in range(ROWS)]


@pytest.mark.parametrize("computed", [False, True], ids=["as it is", "with a transform"])
def test_a_scan_that_lacks_a_column_names_it(desk: Desk, *, computed: bool) -> None:
    """Its files have the schema: without a transform no task is started."""
    folder = desk.folder / "input"
    folder.mkdir()
    rows = pa.table({"id": range(ROWS), "country": [name for _, name in COUNTRIES]})
    pq.write_table(rows, folder / "one.parquet")
    scan = hf.scan_parquet(f"file://{folder}")
    options: dict[str, Any] = {"key": None}
    if computed:
        options["transform"] = lambda batch: batch
    with pytest.raises(SchemaMismatchError, match="'price'"):
        desk.append(scan, **options)  # type: ignore[arg-type]
    assert ("Plan" in kinds(desk)) == computed
    assert desk.append(scan, **options, missing_columns="null").rows == ROWS  # type: ignore[arg-type]
    assert (desk.rows(), prices(desk)) == (COUNTRIES, [None] * ROWS)


@pytest.mark.connect
def test_under_connect_the_column_is_named_too(
    stack: Stack, lake: SparkSession, namespace: str, ledger: dict[str, Any], tmp_path: Path
) -> None:
    """The workers' error arrives the same way."""
    lake.sql(f"CREATE TABLE lake.{namespace}.rows ({COLUMNS}, price DOUBLE) USING iceberg")
    with connect_server(tmp_path / "server") as remote:
        job = {
            "spark": {"spark.remote": remote},
            "run_id": "nightly",
            "to": f"{namespace}.rows",
            "catalog": stack.rest_catalog_properties(),
            **ledger,
        }
        paths = {"PYTHONPATH": f"{ROOT}/src{os.pathsep}{ROOT}"}
        ended = run_job(job, folder=tmp_path, environment=paths)
    assert ended.code != 0
    assert "SchemaMismatchError: column 'price' does not fit" in ended.errors
    assert lake.table(f"lake.{namespace}.rows.snapshots").count() == 0
