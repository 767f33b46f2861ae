"""Rows that fail are set aside once, and retried where that makes sense, on real Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession

import holdfast as hf
from holdfast.errors import RunUnfinishedError, SettingsError, TooManyErrorsError, TransformError

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

Transform = Callable[[pa.RecordBatch], dict[str, Any]]
ROWS = 1_024
POISON = 700


@pytest.fixture
def table(lake: SparkSession, namespace: str) -> str:
    """Return a table of numbers and their doubles."""
    lake.sql(f"CREATE TABLE lake.{namespace}.t (id bigint, y bigint) USING iceberg")
    return f"lake.{namespace}.t"


def doubling(calls: Path, *, poison: frozenset[int]) -> Transform:
    """Return a batch transform that fails for some ids, and notes the size of each batch."""

    def double(batch: pa.RecordBatch) -> dict[str, Any]:
        ids = batch.column("id").to_pylist()
        with calls.open("a") as notes:
            notes.write(f"{len(ids)}\n")
        if found := poison.intersection(ids):
            raise ValueError(f"poison {min(found)}")
        return {"id": ids, "y": [2 * id_ for id_ in ids]}

    return double


def sizes(calls: Path) -> list[int]:
    """Return the sizes of all batches that the transform was called with."""
    return [int(line) for line in calls.read_text().split()] if calls.exists() else []


def test_one_poison_row_in_a_batch_of_1024_costs_twenty_calls(
    lake: SparkSession, table: str, ledger: dict[str, Any], tmp_path: Path
) -> None:
    """The other 1,023 rows are written; bisection finds the poison row."""
    run, calls = hf.Run("halve", **ledger), tmp_path / "calls"
    report = run.append(
        lake.range(0, ROWS, 1, 1),
        to=table,
        key="id",
        transform=doubling(calls, poison=frozenset({POISON})),
        batch_rows=ROWS,
        on_error="quarantine",
    )
    assert (report.rows, report.quarantined_rows) == (ROWS - 1, 1)
    assert lake.table(table).where("y = 2 * id").count() == ROWS - 1
    assert len(sizes(calls)) == 1 + 2 * 10
    (row,) = run.quarantined().collect()
    assert (row["key"]["id"], row["input"]["id"]) == (POISON, POISON)
    assert row["error"] == f"ValueError: poison {POISON}"


def test_too_many_errors_end_the_job_and_mended_code_goes_on(
    lake: SparkSession, table: str, ledger: dict[str, Any], tmp_path: Path
) -> None:
    """Finished rows are not computed again, failed ones are, and the report names both codes."""
    run, calls = hf.Run("mend", **ledger), tmp_path / "calls"
    df = lake.range(0, ROWS, 1, 2)
    poison = frozenset(range(100, 120))
    options: dict[str, Any] = {"to": table, "key": "id", "on_error": "quarantine"}
    with pytest.raises(TooManyErrorsError, match="max_errors allows 5") as stopped:
        run.append(df, transform=doubling(calls, poison=poison), max_errors=5, **options)
    assert "poison 1" in str(stopped.value)
    assert run.quarantined().count() >= 6
    assert lake.table(table).count() == 0
    paid = run.status().done_rows - run.quarantined().count()
    assert paid > 0

    calls.unlink()
    with pytest.warns(UserWarning, match="code has changed"):
        report = run.append(
            df, transform=doubling(calls, poison=frozenset()), max_errors=5, **options
        )
    assert report.rows == ROWS
    assert report.kept_rows == paid == ROWS - sum(sizes(calls))
    assert sorted(report.rows_by_code.values()) == sorted([paid, ROWS - paid])
    assert lake.table(table).where("y = 2 * id").count() == ROWS


def test_failed_rows_stay_failed_for_the_same_code_and_are_tried_by_a_run_of_their_own(
    lake: SparkSession, table: str, ledger: dict[str, Any], tmp_path: Path
) -> None:
    """`retry_quarantined` appends them once; calling it again changes nothing."""
    run, calls = hf.Run("retry", **ledger), tmp_path / "calls"
    df = lake.range(0, ROWS, 1, 2)
    mended = doubling(calls, poison=frozenset())
    with pytest.raises(SettingsError, match="there is no run 'retry'"):
        run.retry_quarantined(transform=mended)
    poisoned = doubling(calls, poison=frozenset({3, POISON}))
    with pytest.raises(TransformError):
        run.append(df, to=table, key="id", transform=poisoned)
    with pytest.raises(RunUnfinishedError):
        run.retry_quarantined(transform=mended)
    run.append(df, to=table, key="id", transform=poisoned, on_error="quarantine")
    again = run.append(df, to=table, key="id", transform=poisoned, on_error="quarantine")
    assert (again.outcome, again.quarantined_rows) == ("already_committed", 2)
    run.sweep()  # It keeps the failed rows.

    with pytest.raises(TransformError):
        run.retry_quarantined(transform=poisoned, to=table)
    calls.unlink()
    with pytest.warns(UserWarning, match="code has changed"):
        first = run.retry_quarantined(transform=mended, to=table)
    assert (first.run_id, first.rows, sum(sizes(calls))) == ("retry+retry", 2, 2)
    second = run.retry_quarantined(transform=mended, to=table)
    assert (second.outcome, second.snapshot_id) == ("already_committed", first.snapshot_id)
    ids = [row["id"] for row in lake.table(table).collect()]
    assert sorted(ids) == list(range(ROWS))


def test_failed_rows_come_back_as_they_came(
    lake: SparkSession, table: str, ledger: dict[str, Any]
) -> None:
    """Values of every kind survive the quarantine, with a key that Spark itself has to hash."""
    df = lake.range(3).selectExpr(
        "id",
        "cast(id as decimal(20, 4)) as k",
        "timestamp_micros(id * 1000001) as at",
        "date_add(date'2026-01-01', cast(id as int)) as day",
        "array(id, null) as some",
        "named_struct('a', id, 'b', map('x', id)) as deep",
        "cast('b' as binary) as raw",
        "if(id = 1, null, 'text') as text",
    )

    async def refuse(row: dict[str, Any]) -> dict[str, Any]:
        raise ValueError(f"no {row['id']}")

    run = hf.Run("types", **ledger)
    report = run.append(
        df,
        to=table,
        key="k",
        transform=hf.per_row(refuse, concurrency=2),
        on_error="quarantine",
        max_errors=3,
    )
    assert (report.rows, report.quarantined_rows) == (0, 3)
    found = run.quarantined()
    expected: list[Row] = df.orderBy("id").collect()
    assert found.select("input.*").orderBy("id").collect() == expected
    assert {row["attempts"] for row in found.collect()} == {1}
