"""A user's script that reads Parquet files by a scan. Its settings are in HOLDFAST_JOB, as JSON."""

from __future__ import annotations

import json
import os
from typing import Any

from pyspark.sql import SparkSession

import holdfast as hf

job: dict[str, Any] = json.loads(os.environ["HOLDFAST_JOB"])
builder: Any = SparkSession.builder
for name, value in job["spark"].items():
    builder = builder.config(name, value)
session: SparkSession = builder.getOrCreate()
run = hf.Run(job["run_id"], store=job["store"], store_options=job["store_options"])
report = run.append(
    hf.scan_parquet(job["paths"], options=job["store_options"]),
    to=hf.IcebergTable(job["to"], catalog=job["catalog"]),
    create=hf.Create(),
)
print(report)
session.stop()
