"""Join order lines with customers in Spark, rate each line with a slow service, once each.

Start it, kill it anywhere, and start it again: lines that were rated are not rated again. The
service counts its calls, so that this is visible. README.md walks through it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.errors import DuplicateKeyError

KEY = ("order_id", "line")
TABLE = "demo.rated"
INPUT_FILES = 4
LINES_PER_ORDER = 3
CUSTOMERS = 200
COUNTRIES = ("NL", "PT", "JP", "CA", "KE")
SECONDS_PER_CALL = 0.05
OUTPUT = pa.schema(
    [
        ("order_id", pa.int64()),
        ("line", pa.int64()),
        ("customer", pa.string()),
        ("country", pa.string()),
        ("amount", pa.int64()),
        ("risk", pa.float64()),
    ]
)

Row = dict[str, Any]


class Rate:
    """In place of a slow service that is paid per call. Built once in each worker process."""

    def __init__(self, calls: Path) -> None:
        """Open a list of calls. Each process has its own, so that none waits for the others."""
        self._calls = (calls / f"{uuid.uuid4().hex}.txt").open("a", buffering=1)

    async def __call__(self, row: Row) -> Row:
        """Return the output row of one order line."""
        await asyncio.sleep(SECONDS_PER_CALL)
        self._calls.write(f"{row['order_id']} {row['line']}\n")
        risk = row["amount"] / (row["amount"] + row["credit"])
        return {name: row[name] for name in OUTPUT.names if name != "risk"} | {"risk": risk}


def make_input(folder: Path, rows: int) -> None:
    """Write order lines and customers, unless they are there."""
    if folder.exists():
        return
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    (unfinished / "lines").mkdir(parents=True, exist_ok=True)
    for part in range(INPUT_FILES):
        numbers = range(part, rows, INPUT_FILES)
        lines = {
            "order_id": [1000 + n // LINES_PER_ORDER for n in numbers],
            "line": [n % LINES_PER_ORDER + 1 for n in numbers],
            "customer_id": [n // LINES_PER_ORDER % CUSTOMERS for n in numbers],
            "amount": [n * 37 % 900 + 10 for n in numbers],
        }
        pq.write_table(pa.table(lines), unfinished / "lines" / f"{part}.parquet")
    ids = range(CUSTOMERS)
    customers = {
        "customer_id": list(ids),
        "customer": [f"Customer {n}" for n in ids],
        "country": [COUNTRIES[n % len(COUNTRIES)] for n in ids],
        "credit": [n * 13 % 50 * 100 + 100 for n in ids],
    }
    pq.write_table(pa.table(customers), unfinished / "customers.parquet")
    # In one step: a kill before it must not leave half an input.
    unfinished.rename(folder)


def joined(spark: SparkSession, folder: Path, *, doubled: bool) -> DataFrame:
    """Return order lines with their customers. Spark joins; Holdfast only needs the key."""
    lines = spark.read.parquet(f"file://{folder}/lines")
    customers = spark.read.parquet(f"file://{folder}/customers.parquet")
    if doubled:  # The usual accident: a customer appears twice in the joined table.
        customers = customers.unionAll(customers.where("customer_id = 7"))
    return lines.join(customers, "customer_id")


def calls_in(folder: Path) -> Counter[str]:
    """Return how often the service was called, for each order line."""
    return Counter(line for file in folder.glob("*.txt") for line in file.read_text().splitlines())


def print_calls(before: Counter[str], calls: Counter[str]) -> None:
    """Print how many calls were paid for, and how many lines twice."""
    twice = sum(number > 1 for number in calls.values())
    print(f"calls of earlier starts: {before.total():,}; of this one: {(calls - before).total():,}")
    print(f"{len(calls):,} order lines were rated, {twice:,} of them more than once")


def open_session() -> SparkSession:
    """Start Spark on this machine, with two workers."""
    # Otherwise Spark starts its workers with the first python3 on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("keyed-join").master("local[2]")
    # Otherwise Spark puts several small files into one task.
    builder = builder.config("spark.sql.files.minPartitionNum", INPUT_FILES)
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=3000, help="order lines")
    parser.add_argument("--doubled", action="store_true", help="a customer appears twice")
    parser.add_argument("--checkpoint-every", default="1s", help="work a kill may cost, per task")
    parser.add_argument("--run", default="join-1", help="the run's id: another input, another id")
    parser.add_argument("--lake", type=Path, default=Path("lake"), help="folder of all files")
    return parser.parse_args()


def append(given: argparse.Namespace, lake: Path, calls: Path) -> hf.Report:
    """Rate what is not rated yet, and write all of it to the table.

    Raises:
        DuplicateKeyError: Two rows of the join have the same key.
    """
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{lake}/catalog.db",
        "warehouse": f"file://{lake}/tables",
    }
    load_catalog(**catalog).create_namespace_if_not_exists("demo")
    source = lake / f"orders-{given.rows}"
    make_input(source, given.rows)
    run = hf.Run(given.run, store=f"file://{lake}/ledger")
    return run.append(
        joined(open_session(), source, doubled=given.doubled),
        to=hf.IcebergTable(TABLE, catalog=catalog),
        key=KEY,
        transform=hf.per_row(hf.per_worker(Rate, calls), concurrency=4),
        checkpoint_every=given.checkpoint_every,
        create=hf.Create(schema=OUTPUT),
    )


def main() -> None:
    """Run the job.

    Raises:
        SystemExit: The key does not identify the rows.
    """
    given = arguments()
    lake = given.lake.resolve()
    calls = lake / f"calls-{given.run}"
    calls.mkdir(parents=True, exist_ok=True)
    before = calls_in(calls)
    try:
        print(append(given, lake, calls))
    except DuplicateKeyError as error:
        sys.exit(f"DuplicateKeyError: {error}")
    finally:
        print_calls(before, calls_in(calls))


if __name__ == "__main__":
    main()
