"""Rows that are tried with real Spark: those of a DataFrame and of a scan. Nothing is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

JOB = """
import json, sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import HoldfastError

lake = Path(sys.argv[1])
lake.mkdir()
catalog = {
    "type": "sql",
    "uri": f"sqlite:///{lake}/catalog.db",
    "warehouse": f"file://{lake}/tables",
}
opened = load_catalog(**catalog)
opened.create_namespace("db")
fields = [NestedField(1, "id", LongType()), NestedField(2, "y", LongType())]
opened.create_table("db.t", Schema(*fields))
table = hf.IcebergTable("db.t", catalog=catalog)
pq.write_table(pa.table({"id": range(500)}), lake / "rows.parquet")
before = sorted(map(str, lake.rglob("*")))
session = SparkSession.builder.master("local[2]").getOrCreate()


async def ask(row):
    if row["id"] == 3:
        raise ValueError("row 3 is bad")
    return {"id": row["id"], "y": 2 * row["id"]}


run = hf.Run("tried", store=f"file://{lake}/ledger")
said = []
for source, key in (
    (session.range(1000), "id"),
    (hf.scan_parquet(f"file://{lake}/rows.parquet"), None),
):
    trial = run.try_rows(
        source, to=table, key=key, transform=hf.per_row(ask), rows=8, cost=lambda row: 0.25
    )
    print(trial, file=sys.stderr)
    said.append([
        trial.tried_rows, trial.input_rows, trial.output_rows, trial.rows.to_pylist(),
        trial.failed["error"].to_pylist(), trial.cost, round(trial.cost_of_all, 3),
    ])
for more in ({}, {"y": 1, "z": 2}):
    def transform(batch, more=more):
        return {"id": batch["id"], **{name: batch["id"] for name in more}}

    try:
        run.try_rows(session.range(9), to=table, key="id", transform=transform)
    except HoldfastError as error:
        said.append([type(error).__name__, error.summary])
after = sorted(map(str, lake.rglob("*")))
said.append([path for path in after if path not in before])
print(json.dumps(said))
"""


@pytest.mark.spark
def test_rows_are_tried_on_an_executor_and_nothing_is_left(tmp_path: Path) -> None:
    """Rows, failures and costs are shown; a column that does not fit is an error."""
    script = tmp_path / "job.py"
    script.write_text(JOB)
    done = subprocess.run(
        [sys.executable, script, tmp_path / "lake"],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    *trials, lacks, unknown, written = json.loads(done.stdout.splitlines()[-1])
    for (tried, rows, output, values, errors, cost, whole), total in zip(
        trials, (1000, 500), strict=True
    ):
        assert (tried, rows, output) == (8, total, 7)
        assert values == [{"id": id_, "y": 2 * id_} for id_ in range(8) if id_ != 3]
        assert errors == ["ValueError: row 3 is bad"]
        assert (cost, whole) == (1.75, round(1.75 / 8 * total, 3))
    assert lacks[0] == unknown[0] == "SchemaMismatchError"
    assert ("'y'" in lacks[1], "'z'" in unknown[1]) == (True, True)
    assert written == []
    assert "8 of 1,000 rows" in done.stderr
