"""A user's script that computes columns of a dataset. Its settings are in HOLDFAST_JOB, as JSON."""

from __future__ import annotations

import json
import os
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import holdfast as hf

job: dict[str, Any] = json.loads(os.environ["HOLDFAST_JOB"])


class Doubled:
    """Doubles ids, and fails at some."""

    def __init__(self, fails_from: int) -> None:
        """Take the first id to fail at."""
        self.fails_from = fails_from

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Return a number and a text for each id.

        Raises:
            LookupError: An id is too large.
        """
        ids = batch["id"].to_pylist()
        if ids[-1] >= self.fails_from:
            raise LookupError("no answer")
        return {"double": [2 * id_ for id_ in ids], "text": [f"row {id_}" for id_ in ids]}


builder: Any = SparkSession.builder
for name, value in job["spark"].items():
    builder = builder.config(name, value)
session: SparkSession = builder.getOrCreate()
how: dict[str, Any] = {
    "to": hf.LanceTable(job["to"], storage_options=job["storage_options"]),
    "transform": Doubled(job["fails_from"]),
    "read_columns": ["id"],
    "batch_rows": 10,
    "retries": 0,
}
run = hf.Run(job["run_id"], store=job["store"], store_options=job["store_options"])
if job["verb"] == "update_columns":
    report = run.update_columns(**how, where=pc.field("text").is_null())
else:
    report = run.add_columns(**how)
print(report)
session.stop()
