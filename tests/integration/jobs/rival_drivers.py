"""Drivers of the same runs, at the same time: threads with a Connect session each, or one process.

Settings are one JSON object in the environment's HOLDFAST_JOB. For each round and driver one line
of JSON says how it ended.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import holdfast as hf

_MEET_S = 120.0


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows as they are, after a while."""
    time.sleep(0.05)
    return batch


def new_session(settings: dict[str, Any]) -> SparkSession:
    """Return a session that no other driver uses."""
    builder: Any = SparkSession.builder
    for name, value in settings["spark"].items():
        builder = builder.config(name, value)
    # A process has one classic session, but as many of Connect as it likes.
    remote = "spark.remote" in settings["spark"]
    session: SparkSession = builder.create() if remote else builder.getOrCreate()
    return session


def meet(settings: dict[str, Any], number: int, driver: str) -> None:
    """Wait until all drivers, in any process, are at the same round."""
    folder = Path(settings["meeting"])
    (folder / f"{number}-{driver}").touch()
    until = time.monotonic() + _MEET_S
    while len(list(folder.glob(f"{number}-*"))) < settings["rivals"]:
        if time.monotonic() > until:
            raise TimeoutError(f"driver {driver} is alone in round {number}")
        time.sleep(0.01)


def drive(settings: dict[str, Any], driver: str) -> None:
    """Take part in all rounds."""
    session = new_session(settings)
    rows = session.range(0, settings["rows"], 1, settings["tasks"]).withColumnRenamed("id", "n")
    for number, round_ in enumerate(settings["rounds"]):
        ended: dict[str, Any] = {"round": number, "driver": driver, "outcome": "", "error": ""}
        run = hf.Run(
            round_["run_id"],
            store=settings["store"],
            store_options=settings["store_options"],
            takeover="now",
        )
        meet(settings, number, driver)
        time.sleep(round_["delays"][driver])
        try:
            report = run.append(
                rows,
                to=hf.IcebergTable(round_["to"], catalog=settings["catalog"]),
                key="n",
                transform=slowly,
                batch_rows=2,
                checkpoint_every=round_["checkpoint_every"],
                create=hf.Create(),
            )
            ended |= {"outcome": report.outcome, "snapshot_id": report.snapshot_id}
        except Exception as error:  # noqa: BLE001 - whatever it is, the test is to see it.
            ended |= {"error": type(error).__name__, "text": str(error)}
        sys.stdout.write(json.dumps(ended) + "\n")
    session.stop()


def main(settings: dict[str, Any]) -> None:
    """Let this process's drivers run, each in a thread."""
    drivers = settings["drivers"]
    with ThreadPoolExecutor(max_workers=len(drivers)) as pool:
        list(pool.map(lambda driver: drive(settings, driver), drivers))


if __name__ == "__main__":
    main(json.loads(os.environ["HOLDFAST_JOB"]))
