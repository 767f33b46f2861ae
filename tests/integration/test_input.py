"""The input is measured before the job, and compared when a run is started again."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.errors import RunMismatchError

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

KEYS = {
    "integer": ["id"],
    "text": ["concat('k', id) as k"],
    "two columns, one oddly named": ["date_add(date'2026-01-01', 1) as `odd-name x`", "id as k"],
    "decimal": ["cast(id as decimal(30,5)) as k"],
    "time": ["timestamp_micros(id) as k"],
    "binary": ["cast(concat('k', id) as binary) as k"],
}


@pytest.fixture
def table(lake: SparkSession, namespace: str) -> str:
    """Return a table of numbers."""
    lake.sql(f"CREATE TABLE lake.{namespace}.t (n bigint) USING iceberg")
    return f"lake.{namespace}.t"


@pytest.mark.parametrize("kind", KEYS)
def test_the_same_input_gives_the_receipt_and_another_is_refused(
    lake: SparkSession, table: str, ledger: dict[str, Any], kind: str
) -> None:
    """Whatever the key's type, more rows, fewer rows and other rows are distinguished."""
    df = lake.range(0, 200, 1, 3).selectExpr(*KEYS[kind], "id as n")
    key = [name for name in df.columns if name != "n"]
    run = hf.Run(kind, **ledger)

    def only_n(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(["n"])

    def append(rows: DataFrame) -> hf.Report:
        return run.append(rows, to=table, key=key, transform=only_n)

    first = append(df)
    again = append(df.repartition(2))
    assert (again.outcome, again.snapshot_id) == ("already_committed", first.snapshot_id)
    with pytest.raises(RunMismatchError, match="had 200 rows and now has 190: 10 fewer"):
        append(df.where("n >= 10"))
    with pytest.raises(RunMismatchError, match="had 200 rows and now has 210: 10 more"):
        append(df.union(df.where("n < 10")))
    with pytest.raises(RunMismatchError, match="200 rows, but different keys"):
        append(df.where("n > 0").union(df.where("n = 1")))
    assert lake.table(table).count() == 200


def test_an_input_that_is_not_verified_is_reported(
    lake: SparkSession, table: str, ledger: dict[str, Any]
) -> None:
    """Nothing is compared, and both the report and a warning say so."""
    df = lake.range(50).selectExpr("id as n")
    run = hf.Run("unverified", **ledger, verify_input=False)
    for outcome in ("committed", "already_committed"):
        with pytest.warns(UserWarning, match="was not compared"):
            report = run.append(df, to=table, key="n")
        assert (report.outcome, report.input_compared) == (outcome, None)
    assert lake.table(table).count() == 50
