"""A Spark Connect job with a UDF in its DataFrame, in the steps of a bad day.

Its settings are one JSON object in the environment's HOLDFAST_JOB. It prints one line of JSON
for each step.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

import holdfast as hf
from holdfast.spark import keys


def twice(notes: str, fails_at: int) -> Column:
    """Return a column that notes each number, and fails at one of them."""

    def double(number: int) -> int:
        if number == fails_at:
            raise LookupError(f"no answer for {number}")
        (Path(notes) / f"{uuid.uuid4().hex}.json").write_text(json.dumps([number]))
        return 2 * number

    return sf.udf(double, "bigint", useArrow=False)("n").alias("twice")


def tell(step: str, **facts: object) -> None:
    """Print the result of a step."""
    sys.stdout.write(json.dumps({"step": step, **facts}) + "\n")


def main(settings: dict[str, Any]) -> None:
    """Run all steps."""
    builder: Any = SparkSession.builder
    for name, value in settings["spark"].items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    if room := settings["broadcast_bytes"]:
        mock.patch.object(keys, "broadcast_bytes", return_value=room).start()
    rows = spark.range(0, settings["rows"], 1, settings["tasks"]).withColumnRenamed("id", "n")

    def new_run() -> tuple[hf.Run, DataFrame]:
        run = hf.Run(
            settings["run_id"], store=settings["store"], store_options=settings["store_options"]
        )
        return run, run.remaining(rows, key="n")

    def append(run: hf.Run, left: DataFrame, fails_at: int = -1) -> hf.Report:
        return run.append(
            left.select("n", twice(settings["notes"], fails_at)),
            to=hf.IcebergTable(settings["to"], catalog=settings["catalog"]),
            key="n",
            create=hf.Create(),
        )

    try:
        append(*new_run(), fails_at=settings["rows"] - 1)
    except hf.HoldfastError as error:
        tell("fails", error=type(error).__name__)
    tell("left", rows=new_run()[1].count())
    run, left = new_run()
    try:
        append(run, left.where(f"n != {settings['rows'] - 1}"))
    except hf.HoldfastError as error:
        tell("filtered", error=type(error).__name__)
    tell("lands", outcome=append(*new_run()).outcome)
    run, left = new_run()
    count = left.count()
    tell("again", outcome=append(run, left).outcome, left=count)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(os.environ["HOLDFAST_JOB"]))
