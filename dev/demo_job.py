"""The job of the demonstration: a slow, costly transform on local files."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

import holdfast as hf

ROWS = 4000
LAKE = Path("lake").resolve()
CATALOG = {
    "type": "sql",
    "uri": f"sqlite:///{LAKE}/catalog.db",
    "warehouse": f"file://{LAKE}/tables",
}


def describe(batch: pa.RecordBatch) -> pa.Table:
    """Act as a model, or as an API that costs money."""
    time.sleep(0.006 * batch.num_rows)
    text = pc.binary_join_element_wise("product", batch["id"].cast(pa.string()), " ")
    return pa.table({"id": batch["id"], "text": text})


def main() -> None:
    """Run the job, as a user's script does."""
    if not LAKE.exists():
        LAKE.mkdir()
        load_catalog(**CATALOG).create_namespace("ml")
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    run = hf.Run("describe-2026-11", store=f"file://{LAKE}/ledger")
    report = run.append(
        builder.getOrCreate().range(0, ROWS, numPartitions=2),
        to=hf.IcebergTable("ml.products", catalog=CATALOG),
        key="id",
        transform=describe,
        batch_rows=50,
        checkpoint_every="1s",
        create=hf.Create(schema=pa.schema({"id": pa.int64(), "text": pa.string()})),
        cost=0.002,
    )
    print(report)


if __name__ == "__main__":
    main()
