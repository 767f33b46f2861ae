"""Start a session for a checkup, and ask each executor what it sees."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession as PySparkSession

from holdfast.spark.frames import SparkSession
from holdfast.spark.jobs import SparkJobs, reports_of, spark_errors
from holdfast.worker.checkup import CheckupPlan

_QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}


@contextlib.contextmanager
def session_at(url: str) -> Iterator[SparkSession]:
    """Start a session, and stop it in the end.

    Args:
        url: A master (`local[*]`, `spark://...`, `yarn`), or a Spark Connect server (`sc://...`).

    Raises:
        MissingExtraError: PySpark misses a package.
        JobFailedError: The session does not start.
    """
    builder: Any = PySparkSession.builder
    with spark_errors():
        if url.startswith("sc://"):
            session = builder.remote(url).getOrCreate()
            session.range(1).count()  # Until then nobody was asked.
        else:
            for name, value in _QUIET.items():
                builder = builder.config(name, value)
            session = builder.master(url).appName("holdfast doctor").getOrCreate()
            session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def checkups(session: SparkSession, plan: CheckupPlan) -> list[dict[str, Any]]:
    """Run one task for each slot, and return what each of them reports.

    Raises:
        ExecutorSetupError: The executors run the wrong Python.
        JobFailedError: Spark gave the job up.
    """
    slots = SparkJobs(session).slots
    reports = reports_of(session.range(0, slots, 1, slots), plan)
    return [json.loads(report) for report in reports]
