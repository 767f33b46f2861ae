"""Progress of a real job: on stderr, never on stdout, and no thread outlives it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

JOB = """
import sys, threading, time
from pathlib import Path

from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.progress import display, watching

display._PRINT_EVERY_S = 1.0  # The job is short,
watching._END_S = 60.0  # and the machine may be slow.
lake = Path(sys.argv[1])
lake.mkdir()
catalog = {
    "type": "sql",
    "uri": f"sqlite:///{lake}/catalog.db",
    "warehouse": f"file://{lake}/tables",
}
load_catalog(**catalog).create_namespace("db")


def slow(batch):
    time.sleep(0.01 * batch.num_rows)
    return batch


session = SparkSession.builder.master("local[2]").getOrCreate()
report = hf.Run("shown", store=f"file://{lake}/ledger", progress=True).append(
    session.range(0, 1000, numPartitions=2),
    to=hf.IcebergTable("db.t", catalog=catalog),
    key="id",
    transform=slow,
    batch_rows=25,
    checkpoint_every="500ms",
    create=hf.Create(),
)
assert report.rows == 1000
names = [thread.name for thread in threading.enumerate()]
left = [name for name in names if name.startswith("holdfast-progress")]
assert left == [], left
"""


@pytest.mark.spark
def test_progress_of_a_real_job_leaves_stdout_alone(tmp_path: Path) -> None:
    """Without a terminal there are plain lines on stderr; the last one says that it has landed."""
    script = tmp_path / "job.py"
    script.write_text(JOB)
    done = subprocess.run(
        [sys.executable, script, tmp_path / "lake"],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("holdfast: run shown: ")]
    assert len(lines) >= 2  # It was seen at work, before its end.
    assert any("; start 1, pass 1: computes all rows; " in line for line in lines[:-1])
    assert "100%; rows 1,000 of 1,000" in lines[-1]
    assert "start 1: committed" in lines[-1]
    assert "\x1b" not in done.stderr
