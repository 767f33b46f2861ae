"""Scans on real Spark: workers read files from S3 themselves, and resume after a stop."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.errors import RunMismatchError, SettingsError, TransformError, UnsupportedTableError
from tests.crash.own_connect import connect_server
from tests.integration.process_jobs import run_job
from tests.integration.process_watched import Watched, WatchedTable
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

ROOT = Path(__file__).parents[2]
FILES = 4
FILE_ROWS = 5
NUMBERS = list(range(FILES * FILE_ROWS))


@pytest.fixture
def folder(watched: WatchedTable) -> str:
    """Return a folder on S3 with four Parquet files of five numbered rows each."""
    uri = f"{watched.ledger['store']}-input-{uuid.uuid4().hex[:6]}"
    for file in range(FILES):
        numbers = NUMBERS[file * FILE_ROWS : (file + 1) * FILE_ROWS]
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.table({"n": numbers}), buffer, row_group_size=2)
        watched.storage.put(f"{uri}/{file}.parquet", buffer.getvalue().to_pybytes())
    return uri


def options(watched: WatchedTable) -> dict[str, Any]:
    """Return the storage options of a scan of the stack's S3."""
    return {"options": watched.ledger["store_options"]}


def test_a_stopped_scan_goes_on_where_it_stopped(watched: WatchedTable, folder: str) -> None:
    """Each row lands once, no finished row is computed again, and a new file is refused."""
    scan = hf.scan_parquet(folder, **options(watched))
    with pytest.raises(SettingsError, match="key= cannot be used with a scan"):
        watched.append(scan, key="n")
    with pytest.raises(TransformError, match="no answer for"):
        watched.append(scan, key=None, fails_at={7, 13})
    done = watched.computed()
    assert 0 < len(done) < len(NUMBERS)
    report = watched.append(scan, key=None)
    assert watched.computed() == watched.numbers() == NUMBERS
    assert (report.kept_rows, report.rows) == (len(done), len(NUMBERS))
    assert watched.append(scan, key=None).outcome == "already_committed"
    watched.storage.put(f"{folder}/new.parquet", watched.storage.get(f"{folder}/0.parquet"))
    with pytest.raises(RunMismatchError, match=r"1 files were added .*new\.parquet"):
        watched.append(scan, key=None)
    left = hf.scan_parquet(folder, new_files="leave", **options(watched))
    assert watched.append(left, key=None).outcome == "already_committed"
    assert len(watched.snapshots()) == 1


def test_rows_that_a_filter_leaves_out_are_done_too(watched: WatchedTable, folder: str) -> None:
    """There is a stop and a second start between; another filter is another job."""
    where = [[("n", "<", 3)], [("n", ">", 11)]]
    scan = hf.scan_parquet(folder, where=where, **options(watched))
    with pytest.raises(TransformError):
        watched.append(scan, key=None, fails_at={15})
    watched.append(scan, key=None)
    wanted = [n for n in NUMBERS if n < 3 or n > 11]
    assert watched.computed() == watched.numbers() == wanted
    assert watched.append(scan, key=None).outcome == "already_committed"
    other = hf.scan_parquet(folder, where=[("n", "<", 4)], **options(watched))
    with pytest.raises(RunMismatchError):
        watched.append(other, key=None)


def test_a_failed_row_is_found_by_its_file_and_place(watched: WatchedTable, folder: str) -> None:
    """It is set aside once, and tried again without a key."""
    scan = hf.scan_parquet(folder, **options(watched))
    report = watched.append(scan, key=None, fails_at={7}, on_error="quarantine")
    assert (report.rows, report.quarantined_rows) == (len(NUMBERS) - 1, 1)
    (row,) = watched.run().quarantined().collect()
    assert row["key"].asDict() == {"file": f"{folder}/1.parquet", "row": 2}
    assert row["input"]["n"] == 7
    again = watched.run().retry_quarantined(transform=Watched(watched.notes), to=watched.name)
    assert again.rows == 1
    assert watched.numbers() == NUMBERS


def test_a_scan_is_worked_on_row_by_row(watched: WatchedTable, folder: str) -> None:
    """There are calls for single rows, many at once, with a stop between them."""

    def call(row: dict[str, Any], *, fails: bool) -> dict[str, Any]:
        if fails and row["n"] in {4, 17}:
            raise LookupError("no answer")
        return {"n": row["n"]}

    scan = hf.scan_parquet(folder, **options(watched))
    broken = hf.per_row(lambda row: call(row, fails=True), concurrency=4)
    mended = hf.per_row(lambda row: call(row, fails=False), concurrency=4)
    with pytest.raises(TransformError):
        watched.append(scan, key=None, transform=broken, batch_rows=None)
    with pytest.warns(UserWarning, match="code has changed"):
        report = watched.append(scan, key=None, transform=mended, batch_rows=None)
    assert report.kept_rows > 0
    assert watched.numbers() == NUMBERS


def test_files_of_any_kind_are_rows(watched: WatchedTable, folder: str) -> None:
    """The table gets what the transform makes of their bytes."""

    def measured(batch: pa.RecordBatch) -> dict[str, Any]:
        assert batch.column("size").to_pylist() == [
            len(content) for content in batch["bytes"].to_pylist()
        ]
        return {"n": [int(path.as_py().rsplit("/", 1)[-1][0]) for path in batch.column("path")]}

    create = hf.Create(schema=pa.schema([("n", pa.int64())]))
    scan = hf.scan_files(f"{folder}/*.parquet", **options(watched))
    watched.append(scan, key=None, transform=measured, create=create)
    assert watched.numbers() == list(range(FILES))


def test_a_snapshot_of_a_table_is_read_without_its_deleted_rows(
    lake: SparkSession, watched: WatchedTable
) -> None:
    """Position deletes that Spark wrote are applied; deletion vectors are refused with advice."""
    source = f"lake.{watched.namespace}.source"
    properties = "'write.delete.mode'='merge-on-read', 'write.delete.granularity'='partition'"
    lake.sql(
        f"CREATE TABLE {source} (old bigint, name string) USING iceberg "
        f"TBLPROPERTIES ('format-version'='2', {properties})"
    )
    rows = lake.range(0, 20, 1, 2).selectExpr("id as old", "concat('name ', id) as name")
    rows.writeTo(source).append()
    lake.sql(f"DELETE FROM {source} WHERE old IN (3, 4, 11)")
    deletes = lake.table(f"{source}.delete_files").count()
    assert deletes > 0  # They were not rewritten, so the test is not vacuous.
    lake.sql(f"ALTER TABLE {source} RENAME COLUMN old TO n")
    scan = hf.scan_iceberg(source, columns=["n"], where="n < 18")
    with pytest.raises(TransformError):
        watched.append(scan, key=None, fails_at={9})
    lake.sql(f"INSERT INTO {source} VALUES (100, 'late')")
    with pytest.raises(RunMismatchError, match=r"has moved .* pass snapshot_id=(\d+)") as moved:
        watched.append(scan, key=None)
    pinned = int(str(moved.value).partition("pass snapshot_id=")[2].partition(" ")[0])
    named = hf.scan_iceberg(source, columns=["n"], where="n < 18", snapshot_id=pinned)
    watched.append(named, key=None)
    wanted = [n for n in range(18) if n not in {3, 4, 11}]
    assert watched.computed() == watched.numbers() == wanted
    lake.sql(
        f"CREATE TABLE {source}3 TBLPROPERTIES ('format-version'='3', {properties}) "
        f"AS SELECT * FROM {source}"
    )
    lake.sql(f"DELETE FROM {source}3 WHERE n = 5")
    with pytest.raises(UnsupportedTableError, match="rewrite_data_files"):
        watched.append(hf.scan_iceberg(f"{source}3"), key=None, run_id="vectors")


@pytest.mark.lance
def test_a_version_of_a_lance_dataset_is_read_whatever_comes_later(watched: WatchedTable) -> None:
    """Deleted rows are left out, despite a stop inside a fragment and a dataset that moves on."""
    # Lance warns when a process that has loaded it is forked, as Spark's start does.
    import lance  # noqa: PLC0415

    from holdfast.sinks.lance.dataset import DatasetPlace  # noqa: PLC0415

    uri = f"{watched.ledger['store']}-input-{uuid.uuid4().hex[:6]}.lance"
    given = watched.ledger["store_options"]
    for_lance = DatasetPlace(uri=uri, options=given).lance_options
    vectors = pa.array([[0.5, n] for n in NUMBERS], pa.list_(pa.float32(), 2))
    rows = pa.table({"n": NUMBERS, "v": vectors})
    written = lance.write_dataset(rows, uri, storage_options=for_lance, max_rows_per_file=12)
    written.delete("n in (0, 4, 13)")

    def scan(version: int | None = None) -> hf.LanceScan:
        few = [("n", "<", 18)]
        return hf.scan_lance(uri, columns=["n"], where=few, options=given, version=version)

    with pytest.raises(TransformError):
        watched.append(scan(), key=None, fails_at={7, 15})
    done = watched.computed()
    assert done
    lance.write_dataset(rows, uri, storage_options=for_lance, mode="append")
    with pytest.raises(RunMismatchError, match="has moved from version 2 to 3"):
        watched.append(scan(), key=None)
    report = watched.append(scan(version=2), key=None)
    assert watched.computed() == watched.numbers() == [n for n in range(18) if n not in {0, 4, 13}]
    assert report.kept_rows > 0


def test_a_materialized_input_is_read_once(lake: SparkSession, watched: WatchedTable) -> None:
    """Rows without a key that change at each read: a second start has those of the first."""

    def unstable() -> DataFrame:
        return lake.range(0, 20, 1, 3).selectExpr("abs(hash(uuid())) as n", "id")

    # They differ each time, so the test is not vacuous.
    assert {row["n"] for row in unstable().collect()} != {row["n"] for row in unstable().collect()}

    def some(batch: pa.RecordBatch) -> pa.RecordBatch:
        if 7 in batch.column("id").to_pylist():
            raise LookupError("no answer")
        return batch

    with pytest.raises(TransformError):
        watched.append(hf.materialize(unstable()), key=None, transform=some)
    folder = f"{watched.layout().folder}/input"
    files = watched.storage.list(folder)
    assert files
    rows = [
        n
        for file in files
        for n in pq.read_table(pa.BufferReader(watched.storage.get(file)))["n"].to_pylist()
    ]
    with pytest.warns(UserWarning, match="code has changed"):
        report = watched.append(hf.materialize(unstable()), key=None)
    assert watched.numbers() == sorted(rows)
    assert watched.storage.list(folder) == files
    assert report.kept_rows > 0
    assert not report.input_compared
    watched.run().sweep(to=watched.name)
    assert watched.storage.list(folder) == []
    again = watched.append(hf.materialize(unstable()), key=None)
    assert (again.outcome, again.input_compared) == ("already_committed", None)


@pytest.mark.connect
def test_a_scan_under_connect_lands_once(
    stack: Stack, watched: WatchedTable, folder: str, tmp_path: Path
) -> None:
    """No JVM is reachable; all settings are arguments."""
    with connect_server(tmp_path / "server") as remote:
        job = {
            "spark": {"spark.remote": remote},
            "run_id": "nightly",
            "paths": f"{folder}/*.parquet",
            "to": f"{watched.namespace}.rows",
            "catalog": stack.rest_catalog_properties(),
            **watched.ledger,
        }
        paths = {"PYTHONPATH": f"{ROOT}/src{os.pathsep}{ROOT}"}
        for outcome in ("committed", "already committed"):
            ended = run_job(job, folder=tmp_path, script="scan_job.py", environment=paths)
            assert (ended.code, ended.report.get("outcome")) == (0, outcome), ended.errors
    assert watched.numbers() == NUMBERS
