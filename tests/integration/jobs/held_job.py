"""A job whose transform waits for a file: the driver stays at work as long as a test wants.

Its settings are one JSON object in the environment's HOLDFAST_JOB. It prints one line of JSON:
how it ended.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast import run as run_module
from holdfast.engine import input_check
from holdfast.ledger.ledger import Ports, in_a_thread


def hurried(speed: float) -> dict[str, Any]:
    """Return ports on which waits, and the time between two beats, pass `speed` times as fast.

    Both drivers must have them: what one waits for is what the other does in that time.
    """
    return {
        "sleep": lambda seconds: time.sleep(seconds / speed),
        "beside": lambda name, after_s, act: in_a_thread(
            name, after_s / speed, lambda: None if (next_s := act()) is None else next_s / speed
        ),
    }


class Held:
    """Leaves a file for each call, and returns `call_s` after it is released."""

    def __init__(self, folder: str, call_s: float) -> None:
        """Take the folder of the files, and how long a call takes."""
        self.folder = folder
        self.call_s = call_s

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as they are."""
        (Path(self.folder) / f"called-{uuid.uuid4().hex}").touch()
        until = time.monotonic() + 180.0
        while not (Path(self.folder) / "release").exists() and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(self.call_s)
        return batch


def main(settings: dict[str, Any]) -> None:
    """Run the job; optionally under another machine name, or with faster clocks."""
    ports = {"machine": settings["machine"]} if "machine" in settings else {}
    ports |= hurried(settings["speed"]) if "speed" in settings else {}
    run_module.Ports = partial(Ports, **ports)  # type: ignore[assignment, attr-defined]
    builder: Any = SparkSession.builder
    for name, value in settings["spark"].items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    run = hf.Run(
        settings["run_id"], store=settings["store"], store_options=settings["store_options"]
    )
    rows = spark.range(0, settings["rows"], 1, settings["tasks"]).withColumnRenamed("id", "n")
    if "key" in settings:  # As if the input were large, and the job long.
        rows = rows.selectExpr(f"{settings['key']} AS n")
        vars(input_check).update(_COMPARED_ROWS_MAX=0, _COMPARED_AFTER_S=6.0)
    ended = {"outcome": "", "error": ""}
    try:
        report = run.append(
            rows,
            to=hf.IcebergTable(settings["to"], catalog=settings["catalog"]),
            key="n",
            transform=Held(settings["folder"], settings.get("call_s", 0.0)),
            create=hf.Create(),
            **settings["options"],
        )
        ended["outcome"] = report.outcome
    except hf.HoldfastError as error:
        ended["error"] = type(error).__name__
    sys.stdout.write(json.dumps(ended) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(json.loads(os.environ["HOLDFAST_JOB"]))
