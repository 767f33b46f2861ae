"""Timestamps at any depth, on each PySpark: what the table holds is the input's moments."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.spark.timestamp_rows import SOURCES, as_text, written

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 240.0
# What the rows of `frame` are: midnight in the session's zone, New York, is five o'clock in UTC.
MOMENT = dt.datetime(2026, 1, 1, 5, tzinfo=dt.timezone.utc)
LOCAL = MOMENT.replace(hour=0, tzinfo=None)
EXPECTED = [
    {
        "id": number,
        "at": MOMENT + dt.timedelta(seconds=number),
        "listed": [MOMENT, None],
        "mapped": [("a", MOMENT)],
        "inside": {"at": MOMENT, "local": LOCAL, "deeper": [{"at": MOMENT}]},
        "local": LOCAL,
    }
    for number in range(6)
]


@pytest.mark.spark
@pytest.mark.parametrize("source", SOURCES)
def test_timestamps_of_a_classic_session_land_as_they_are(
    session: SparkSession, tmp_path: Path, source: str
) -> None:
    """A session in another zone than UTC: columns, lists, maps, structs, a key, staged rows."""
    assert written(session.newSession(), tmp_path, source) == EXPECTED


@pytest.mark.connect
def test_timestamps_of_a_connect_session_land_as_they_are(tmp_path: Path) -> None:
    """The same from a client without a JVM, to a server that PySpark starts."""
    if not list(Path(pyspark.__file__).parent.glob("jars/spark-connect_*.jar")):
        pytest.skip(f"PySpark {pyspark.__version__} comes without a Connect server")
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.timestamp_rows", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((tmp_path / "rows.json").read_text())
    assert found == dict.fromkeys(SOURCES, as_text(EXPECTED))
