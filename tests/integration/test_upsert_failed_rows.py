"""Rows that an upsert cannot write: set aside, retried, without a key, or with another's."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.errors import DuplicateOutputError, HoldfastError
from tests.integration.upsert_desk import WRITES

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

each_write = pytest.mark.parametrize("write", WRITES)


@pytest.fixture
def table(lake: SparkSession, namespace: str) -> str:
    """Return a table with the keys 0 to 9."""
    name = f"lake.{namespace}.t"
    lake.sql(f"CREATE TABLE {name} (id BIGINT, note STRING) USING iceberg")
    lake.sql(f"INSERT INTO {name} SELECT id, 'old' FROM range(0, 10)")
    return name


def new_rows(lake: SparkSession, **notes: str) -> DataFrame:
    """Return rows by their keys, which are written as `k1`."""
    rows = [(int(key[1:]), note) for key, note in notes.items()]
    return lake.createDataFrame(rows, "id BIGINT, note STRING").coalesce(1)


def found(lake: SparkSession, table: str) -> dict[int, str]:
    """Return the notes that are not old, by key; no key is there twice."""
    rows = lake.table(table).collect()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["note"] for row in rows if row["note"] != "old"}


def strict(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Fail for bad rows."""
    if "bad" in batch.column("note").to_pylist():
        raise ValueError("a bad row")
    return batch


@each_write
def test_failed_rows_are_merged_when_they_are_retried(
    lake: SparkSession, table: str, ledger: dict[str, Any], write: str
) -> None:
    """Appended, the retried row would be beside the old one of its key."""
    run = hf.Run("merge", **ledger)
    rows = new_rows(lake, k1="new", k2="bad", k20="bad")
    options: dict[str, Any] = {"on_error": "quarantine", "max_errors": 0.9, **WRITES[write]}
    report = run.upsert(rows, to=table, on="id", transform=strict, **options)
    assert (report.rows, report.quarantined_rows, report.replaced_rows) == (1, 2, 1)
    assert found(lake, table) == {1: "new"}
    again = run.retry_quarantined(to=table, **WRITES[write])
    assert (again.run_id, again.rows, again.replaced_rows) == ("merge+retry", 2, 1)
    assert found(lake, table) == {1: "new", 2: "bad", 20: "bad"}
    assert run.retry_quarantined(to=table, **WRITES[write]).outcome == "already_committed"


@each_write
def test_a_failed_row_that_a_later_start_computes_is_in_its_index(
    lake: SparkSession,
    table: str,
    ledger: dict[str, Any],
    write: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first start dies after the index; the second has other code, and one row more."""
    rows = new_rows(lake, k1="new", k2="bad", k20="new")
    options: dict[str, Any] = {
        "on_error": "quarantine",
        "max_errors": 0.9,
        "retries": 0,
        **WRITES[write],
    }

    def stop(*_arguments: object) -> None:
        raise RuntimeError("stopped before the post")

    with monkeypatch.context() as patched:
        patched.setattr("holdfast.sinks.iceberg.sink.IcebergSink.post", stop)
        with pytest.raises(RuntimeError, match="stopped"):
            hf.Run("r", **ledger).upsert(rows, to=table, on="id", transform=strict, **options)
    assert found(lake, table) == {}

    def lenient(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    with pytest.warns(UserWarning, match="code has changed"):
        report = hf.Run("r", **ledger).upsert(rows, to=table, on="id", transform=lenient, **options)
    expected = {1: "new", 20: "new"}
    expected |= {} if report.quarantined_rows else {2: "bad"}
    assert found(lake, table) == expected
    assert report.replaced_rows == len(expected) - 1


@each_write
def test_doubled_keys_are_refused_with_examples(
    lake: SparkSession, table: str, ledger: dict[str, Any], write: str
) -> None:
    """Which of them would count is chance; the table is as it was."""
    rows = new_rows(lake, k1="new", k2="new", k3="new")

    def half(batch: pa.RecordBatch) -> dict[str, Any]:
        return {"id": [id_ // 2 for id_ in batch["id"].to_pylist()], "note": batch["note"]}

    with pytest.raises(DuplicateOutputError, match=r"1 .*id"):
        hf.Run("r", **ledger).upsert(rows, to=table, on="id", transform=half, **WRITES[write])
    assert found(lake, table) == {}


@each_write
def test_a_row_without_a_key_is_refused(
    lake: SparkSession, table: str, ledger: dict[str, Any], write: str
) -> None:
    """NULL equals nothing: each run would add the row once more."""
    rows = new_rows(lake, k1="new", k2="new")

    def empty(batch: pa.RecordBatch) -> dict[str, Any]:
        return {"id": pa.nulls(batch.num_rows, pa.int64()), "note": batch["note"]}

    with pytest.raises(HoldfastError, match="NULL"):
        hf.Run("r", **ledger).upsert(rows, to=table, on="id", transform=empty, **WRITES[write])
    assert found(lake, table) == {}
