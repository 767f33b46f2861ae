"""Describe products on a cluster: S3 holds the rows and the ledger, a REST catalog the table.

Start it, kill its driver or an executor anywhere, and start it again. All names come from the
environment, so the same script runs on `make stack` and on your own cluster; see README.md.
"""

from __future__ import annotations

import os
import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import holdfast as hf

ROWS = int(os.environ.get("EXAMPLE_ROWS", "4000"))
SECONDS_PER_ROW = 0.02


class Describe:
    """In place of a model: built once in each worker process, and slow."""

    def __init__(self, greeting: str) -> None:
        """Load what the model needs."""
        self._greeting = greeting

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Return a text for each product."""
        time.sleep(SECONDS_PER_ROW * batch.num_rows)
        names = pc.binary_join_element_wise(self._greeting, batch["name"], " ")
        return {"id": batch["id"], "text": names}


def main() -> None:
    """Run the job."""
    s3 = {
        "s3.endpoint": os.environ["EXAMPLE_S3_ENDPOINT"],
        "s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "s3.region": os.environ.get("AWS_REGION", "us-east-1"),
        "s3.path-style-access": "true",
    }
    catalog = {"type": "rest", "uri": os.environ["EXAMPLE_CATALOG"], **s3}
    spark = SparkSession.builder.appName("kill-and-resume").getOrCreate()
    products = spark.range(0, ROWS, 1, 4).selectExpr("id", "concat('product ', id) AS name")
    run = hf.Run(
        os.environ.get("EXAMPLE_RUN", "describe-1"),
        store=os.environ["EXAMPLE_STORE"],
        store_options=s3,
    )
    report = run.append(
        products,
        to=hf.IcebergTable(os.environ["EXAMPLE_TABLE"], catalog=catalog),
        key="id",
        transform=hf.per_worker(Describe, "about"),
        checkpoint_every="2s",
        create=hf.Create(schema=pa.schema([("id", pa.int64()), ("text", pa.string())])),
    )
    print(report)
    print(run.status())


if __name__ == "__main__":
    main()
