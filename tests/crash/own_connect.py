"""A Spark Connect server for one test. Its jobs outlive their clients."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark

from tests.conftest import PYTHON_PATH
from tests.crash.counted_calls import CALLS_VARIABLE, Costly
from tests.crash.own_cluster import MASTER_HOST, free_port, wait_for_port
from tests.crash.started_jobs import kill_process, processes_of_session
from tests.integration.process_jobs import QUIET

_LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class CostlyOnServer(Costly):
    """Counts its calls in its client's folder: the server outlives its clients."""

    def __init__(self, row_s: float) -> None:
        """Take the time that a row costs; on the client, take the folder for the counts."""
        super().__init__(row_s)
        self.calls = os.environ[CALLS_VARIABLE]

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Work on the rows, then count them. A worker may have served another client before."""
        os.environ[CALLS_VARIABLE] = self.calls
        return super().__call__(batch)


@contextmanager
def connect_server(folder: Path, more: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start a server and return its address; nothing of it is left when the block ends.

    Args:
        folder: Where its log goes.
        more: Settings of Spark that extend or override the defaults.
    """
    folder.mkdir()
    home, port = Path(pyspark.__file__).parent, free_port(MASTER_HOST)
    settings = {
        **QUIET,
        "spark.master": "local[2]",
        "spark.connect.grpc.binding.address": MASTER_HOST,
        "spark.connect.grpc.binding.port": str(port),
        **(more or {}),
    }
    # The launcher takes a Connect server for a daemon, which has settings of its own for Java.
    del settings["spark.driver.extraJavaOptions"]
    command = [f"{home}/bin/spark-submit"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "spark-internal"],
            cwd=folder,
            env={
                **os.environ,
                "SPARK_HOME": str(home),
                "SPARK_LOCAL_IP": MASTER_HOST,
                "SPARK_DAEMON_MEMORY": "768m",
                "SPARK_DAEMON_JAVA_OPTS": _LIGHT,
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": PYTHON_PATH,
            },
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_for_port(MASTER_HOST, port)
        yield f"sc://{MASTER_HOST}:{port}"
    finally:
        for process_id in processes_of_session(process.pid):
            kill_process(process_id)
        process.wait(timeout=10.0)
