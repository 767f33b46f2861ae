"""A job as a user writes it: append rows to a table, once. Tests start it in many places.

Its settings are one JSON object in the environment's HOLDFAST_JOB, so that the script itself is
the same everywhere: on Spark Connect, on a cluster, and on one machine.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import holdfast as hf


class Stamp:
    """In place of a model: built once in each worker process, it marks the rows that it sees."""

    def __init__(self, pause_s: float) -> None:
        """Take the time that a batch costs; find out which executor this process works for."""
        self.pause_s = pause_s
        self.build = uuid.uuid4().hex
        # Spark's daemon forked this process, and the executor started the daemon.
        daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
        self.executor = int(daemon.rpartition(")")[2].split()[1])

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Return the rows, marked with the object and the executor that worked on them."""
        time.sleep(self.pause_s)
        return {
            "id": batch.column("id"),
            "label": batch.column("label"),
            "build": [self.build] * batch.num_rows,
            "executor": [self.executor] * batch.num_rows,
        }


def main(settings: dict[str, Any]) -> None:
    """Run the job and print its report."""
    builder: Any = SparkSession.builder
    for name, value in settings["spark"].items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    to = settings["to"]
    if settings.get("catalog"):
        to = hf.IcebergTable(to, catalog=settings["catalog"])
    try:
        rows = spark.range(0, settings["rows"], 1, settings["tasks"])
        run = hf.Run(
            settings["run_id"],
            store=settings.get("store"),
            store_options=settings.get("store_options"),
            verify_input=settings.get("verify_input", "keys"),
        )
        report = run.append(
            rows.selectExpr("id", settings.get("label", "concat('row ', id) AS label")),
            to=to,
            key="id",
            transform=hf.per_worker(Stamp, settings.get("pause_s", 0.0)),
        )
        sys.stdout.write(f"{report}\n")
    finally:
        spark.stop()


if __name__ == "__main__":
    main(json.loads(os.environ["HOLDFAST_JOB"]))
