"""A script whose credentials are replaced while it runs. Its settings are in HOLDFAST_JOB."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import holdfast as hf

job: dict[str, Any] = json.loads(os.environ["HOLDFAST_JOB"])


def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Take ten milliseconds a row, as real work does."""
    time.sleep(0.01 * batch.num_rows)
    return batch


builder: Any = SparkSession.builder
for name, value in job["spark"].items():
    builder = builder.config(name, value)
session: SparkSession = builder.getOrCreate()
asked = {**job["s3"], "holdfast.credentials": "tests.crash.given_credentials:from_file"}
report = hf.Run("r", store="s3://lake/_holdfast", store_options=asked).append(
    hf.scan_parquet("s3://lake/in", options=asked),
    to=hf.IcebergTable(job["table"], catalog={**job["catalog"], **job["s3"]}),
    create=hf.Create(),
    transform=slow,
    checkpoint_every="1s",
)
print(json.dumps({"rows": report.rows, "passes": report.passes}))
session.stop()
