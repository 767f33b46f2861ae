"""A job that tests kill: append costly rows to a table, once. The script is the same each time.

Its settings are one JSON object in the environment's HOLDFAST_JOB; it prints its report as JSON.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession

import holdfast as hf


def named(name: str) -> Any:  # noqa: ANN401 - any object.
    """Return the object named by `module:name`."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def target(settings: dict[str, Any]) -> hf.IcebergTable | hf.LanceTable:
    """Return the table to write: a dataset if there are storage options for one."""
    if "storage_options" in settings:
        return hf.LanceTable(settings["to"], storage_options=settings["storage_options"])
    return hf.IcebergTable(settings["to"], catalog=settings["catalog"])


def main(settings: dict[str, Any]) -> None:
    """Run the job."""
    builder: Any = SparkSession.builder
    for name, value in settings["spark"].items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    if "spark.remote" not in settings["spark"]:  # A client of Spark Connect has no JVM.
        spark.sparkContext.setLogLevel("WARN")
    rows = spark.range(0, settings["rows"], 1, settings["tasks"])
    df = rows.selectExpr("id", "concat('row ', id) AS payload")
    if "upstream" in settings:
        df = named(settings["upstream"])(df, settings["tasks"])
    transform, arguments = settings["transform"]
    options = settings["options"]
    run = hf.Run(
        "nightly",
        store=settings["store"],
        store_options=settings["store_options"],
        takeover=options.pop("takeover", "wait"),
        budget=options.pop("budget", None),
    )
    if "cost" in settings:
        options["cost"] = named(settings["cost"])
    report = run.append(
        df,
        to=target(settings),
        key="id",
        transform=named(transform)(**arguments),
        **options,
    )
    sys.stdout.write(json.dumps(dataclasses.asdict(report)) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(json.loads(os.environ["HOLDFAST_JOB"]))
