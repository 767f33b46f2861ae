"""A script whose transform fails: what the user sees names the line, and so does the ledger."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.example_scripts import run_script

JOB = """
from pyspark.sql import SparkSession

import holdfast as hf
import pyarrow as pa


def parsed(value):
    return {"three": 3}[value]  # The user's own line.


def label(batch):
    for id_ in batch["id"].to_pylist():
        parsed(id_)


spark = SparkSession.builder.master("local[2]").getOrCreate()
hf.Run("nightly", store="STORE").append(
    spark.range(4), to="TABLE", key="id", transform=label, create=hf.Create(), retries=0
)
"""
OWN_LINE = """job.py:9 in parsed, `return {"three": 3}[value]  # The user's own line.`"""


@pytest.mark.spark
def test_an_uncaught_error_shows_the_workers_traceback_and_the_users_line(tmp_path: Path) -> None:
    """The worker's traceback is above the driver's; status says the same the next day."""
    script, store = tmp_path / "job.py", f"file://{tmp_path}/ledger"
    text = JOB.replace("STORE", store).replace("TABLE", f"{tmp_path}/t.lance")
    script.write_text(text, encoding="utf-8")
    done = run_script(script, folder=tmp_path)
    assert done.returncode == 1
    said = done.stderr
    worker = said.index("holdfast.worker.reports.WorkerTraceback:")
    assert worker < said.index("The above exception was the direct cause of the following")
    assert worker < said.index(f'File "{script}", line 14, in label')
    assert worker < said.index(f'File "{script}", line 9, in parsed')
    assert "\nholdfast.errors.TransformError: the transform failed in " in said
    assert "KeyError: " in said
    assert OWN_LINE in said
    assert "Worth a retry: no: a retry would fail the same way." in said

    command = [sys.executable, "-c", "from holdfast.cli.main import main; main()", "status"]
    status = subprocess.run(
        [*command, "nightly", "--store", store], capture_output=True, text=True, check=False
    )
    printed = " ".join(status.stdout.split())
    assert "stopped by TransformError: the transform failed in" in printed
    assert "KeyError" in printed
