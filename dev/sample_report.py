"""Make a real run that was killed twice, and the page about it.

    python dev/sample_report.py --lake /tmp/sample --out report.html

A slow row function on local Spark; each of the first two starts is killed with all its processes,
and the third one ends. A few rows fail and are set aside.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

import holdfast as hf
from holdfast.cli.main import main as command_line

RUN_ID = "describe-products-2026-11-15"
TABLE = "shop.descriptions"
# Rows of each partition: some have more than others, as in real jobs.
PARTITIONS = (2_400, 1_500, 900, 600, 400, 200)
ROWS = sum(PARTITIONS)
CONCURRENCY = 16
SECONDS_PER_ROW = 0.16
COST_PER_ROW = 0.0004
KILL_AT = (0.3, 0.7)
POLL_S = 0.2


async def describe(row: dict[str, Any]) -> dict[str, Any]:
    """Act as a call of a model: slow, and sometimes it fails.

    Raises:
        ValueError: There was no answer.
        KeyError: The answer lacks a field.
    """
    await asyncio.sleep(SECONDS_PER_ROW)
    number = row["id"]
    if number % 997 == 0:
        raise ValueError(f"product {number}: the answer is not JSON")
    if number % 1_999 == 1:
        raise KeyError("category")
    return {"id": number, "text": f"Product {number} is one of {number % 7 + 2} that we like."}


def job(lake: Path) -> None:
    """Start the job, as a user's script does."""
    # Imported here: the process that kills needs neither.
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    # Otherwise Spark starts its workers with the first python3 on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("sample-report").master("local[2]")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    catalog = {
        "name": "sample",
        "type": "sql",
        "uri": f"sqlite:///{lake}/catalog.db",
        "warehouse": f"file://{lake}/tables",
    }
    load_catalog(**catalog).create_namespace_if_not_exists(TABLE.rpartition(".")[0])
    first, products = 0, spark.range(0, 0, 1, 1)
    for rows in PARTITIONS:
        products = products.union(spark.range(first, first + rows, 1, 1))
        first += rows
    report = hf.Run(RUN_ID, store=f"file://{lake}/ledger").append(
        products,
        to=hf.IcebergTable(TABLE, catalog=catalog),
        key="id",
        transform=hf.per_row(describe, concurrency=CONCURRENCY),
        checkpoint_every="2s",
        on_error="quarantine",
        cost=COST_PER_ROW,
        create=hf.Create(schema=pa.schema([("id", pa.int64()), ("text", pa.string())])),
    )
    print(report)


def kill(started: subprocess.Popen[bytes]) -> None:
    """Kill the driver and its JVM, by their group. Workers end when their JVM is gone."""
    if started.poll() is None:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def start_and_kill(lake: Path, share: float) -> None:
    """Start the job, and kill it once this part of the rows is durable.

    Raises:
        SystemExit: The job ended before it could be killed.
    """
    run = hf.Run(RUN_ID, store=f"file://{lake}/ledger")
    # In a process group of its own, which Spark's JVM joins.
    started = subprocess.Popen(job_command(lake), start_new_session=True)
    try:
        while (done := run.status().done_rows) < share * ROWS:
            if started.poll() is not None:
                sys.exit("it ended before there was enough to kill")
            time.sleep(POLL_S)
    finally:
        kill(started)
    print(f"killed: {done:,} of {ROWS:,} rows were durable", flush=True)


def job_command(lake: Path) -> list[str]:
    """Return the command that starts the job in its own process."""
    return [sys.executable, str(Path(__file__).resolve()), "--lake", str(lake), "--job"]


def main() -> int:
    """Make the run and its page; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lake", type=Path, required=True, help="folder of store and table")
    parser.add_argument("--out", type=Path, default=Path("report.html"), help="the page")
    parser.add_argument("--job", action="store_true", help="only the job itself, to its end")
    given = parser.parse_args()
    lake = given.lake.resolve()
    lake.mkdir(parents=True, exist_ok=True)
    if given.job:
        job(lake)
        return 0
    for share in KILL_AT:
        start_and_kill(lake, share)
    subprocess.run(job_command(lake), check=True)
    store = f"file://{lake}/ledger"
    return command_line(["report", RUN_ID, "--store", store, "--out", str(given.out)])


if __name__ == "__main__":
    sys.exit(main())
