"""A job with planted credentials, in its own process so that all its output is caught.

Takes one JSON object on standard input: what to do, and all credentials as arguments.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import holdfast as hf


def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Raise, as a user's transform may."""
    raise ValueError(f"no such model for {batch.num_rows} rows")


def main() -> None:
    """Run the append that standard input describes; print its report or its error."""
    logging.basicConfig(level=logging.DEBUG)  # All log output of every library.
    warnings.simplefilter("default")
    order: dict[str, Any] = json.load(sys.stdin)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder
    settings = {
        "spark.master": "local[2]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": order["event_log"],
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("INFO")
    for case in order["cases"]:
        table = hf.IcebergTable(order["table"], catalog=case["catalog"])
        run = hf.Run(case["run_id"], store=order["store"], store_options=case["store_options"])
        print("case", case["run_id"], run, table)
        try:
            report = run.append(
                session.range(100),
                to=table,
                key="id",
                transform=fail if case.get("fail") else None,
                create=hf.Create() if case.get("create") else None,
            )
            print("ended well", report, repr(report))
        except hf.HoldfastError as error:
            logging.getLogger("job").exception("append failed")
            print("ended in", type(error).__name__, error, repr(error))
    session.stop()


if __name__ == "__main__":
    main()
