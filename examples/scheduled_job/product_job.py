"""Describe products, once each, in an Iceberg table: the job that the schedulers here start.

It does not depend on a scheduler. It takes a run id, which must be the same whenever it is started
again, and a folder for all its files.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

import holdfast as hf

ROWS = int(os.environ.get("EXAMPLE_ROWS", "20000"))
SECONDS_PER_ROW = 0.006
NAMESPACE, TABLE = "demo", "demo.products"
OUTPUT = pa.schema([("id", pa.int64()), ("text", pa.string())])


def describe(batch: pa.RecordBatch) -> dict[str, Any]:
    """Act as a model, or as an API that costs money: return a text for each product."""
    time.sleep(SECONDS_PER_ROW * batch.num_rows)
    return {"id": batch["id"], "text": pc.utf8_upper(batch["name"])}


def catalog_of(lake: Path) -> dict[str, str]:
    """Return the settings of a catalog in one file; a real one would be a server."""
    return {
        "type": "sql",
        "uri": f"sqlite:///{lake}/catalog.db",
        "warehouse": f"file://{lake}/tables",
    }


def run_of(run_id: str, lake: Path) -> hf.Run:
    """Return the run, whose ledger is in the folder too."""
    return hf.Run(run_id, store=f"file://{lake}/ledger")


def open_session() -> SparkSession:
    """Start Spark with two workers, reachable only from this machine."""
    # Otherwise Spark starts its workers with the first python3 on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Workers import this module. On a cluster: spark-submit --py-files product_job.py.
    paths = [str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    builder = SparkSession.builder.appName("products").master("local[2]")
    builder = builder.config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.ui.enabled", "false")
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def describe_products(run_id: str, lake: Path) -> hf.Report:
    """Run the job, or resume it.

    Raises:
        HoldfastError: It did not land; `retry_safe` says whether to start it again.
    """
    lake = lake.resolve()
    lake.mkdir(parents=True, exist_ok=True)
    catalog = catalog_of(lake)
    load_catalog(**catalog).create_namespace_if_not_exists(NAMESPACE)
    products = open_session().range(0, ROWS, 1, 2).selectExpr("id", "concat('product ', id) name")
    return run_of(run_id, lake).append(
        products,
        to=hf.IcebergTable(TABLE, catalog=catalog),
        key="id",
        transform=describe,
        checkpoint_every="2s",
        create=hf.Create(schema=OUTPUT),
    )


def main() -> None:
    """Run the job from the command line; the exit code says whether to start it again.

    Raises:
        SystemExit: With 75 if another start may succeed, with 70 if it would fail the same way.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, help="the same id when it is started again")
    parser.add_argument("--lake", type=Path, default=Path("lake"), help="folder of all files")
    given = parser.parse_args()
    status = run_of(given.run, given.lake.resolve()).status()
    if status.state == "committed":  # Read from the ledger alone: Spark need not even start.
        print(f"run {given.run} has landed: nothing to do")
        return
    try:
        print(describe_products(given.run, given.lake))
    except hf.HoldfastError as error:
        print(error, file=sys.stderr)
        sys.exit(os.EX_TEMPFAIL if error.retry_safe else os.EX_SOFTWARE)


if __name__ == "__main__":
    main()
