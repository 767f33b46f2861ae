"""Several jobs in one session, each with an interpreter of its own on the executors.

Settings are one JSON object in the environment's HOLDFAST_JOB. For each case one line of JSON
says how it ended.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import holdfast as hf


class Fails:
    """Leaves a file for each call, then fails."""

    def __init__(self, calls: str) -> None:
        """Take the folder for the files."""
        self.calls = calls

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Fail."""
        (Path(self.calls) / uuid.uuid4().hex).touch()
        raise ValueError(f"no luck with {batch.num_rows} rows")


def chosen_transform(case: dict[str, Any]) -> Any:  # noqa: ANN401 - whatever the case names.
    """Return the case's transform."""
    if "calls" in case:
        return Fails(case["calls"])
    if "module" in case:
        # It is beside this script, where executors do not look.
        return importlib.import_module(case["module"]).unchanged
    return None


def main(settings: dict[str, Any]) -> None:
    """Run all cases."""
    builder: Any = SparkSession.builder
    for name, value in settings["spark"].items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    try:
        for case in settings["cases"]:
            # What PYSPARK_PYTHON sets for a whole session.
            spark.sparkContext.pythonExec = case["python"]
            spark.sparkContext.setJobGroup(case["name"], "")
            rows = spark.range(0, settings["rows"], 1, settings["tasks"])
            run = hf.Run(case["name"], store=settings["store"])
            target = hf.IcebergTable(settings["to"], catalog=settings["catalog"])
            ended = {"name": case["name"], "error": "", "text": ""}
            try:
                transform = chosen_transform(case)
                run.append(rows, to=target, key="id", transform=transform, missing_columns="null")
            except hf.HoldfastError as error:
                ended |= {"error": type(error).__name__, "text": str(error)}
            sys.stdout.write(json.dumps(ended) + "\n")
    finally:
        spark.stop()


if __name__ == "__main__":
    main(json.loads(os.environ["HOLDFAST_JOB"]))
