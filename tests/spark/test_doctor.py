"""`holdfast doctor --spark`: a real session, and a task in each of its slots."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
DOCTOR = "import sys; from holdfast.cli.main import main; sys.exit(main(sys.argv[1:]))"


def doctor(store: str, **environment: str) -> dict[str, Mapping[str, str]]:
    """Run the doctor in a process of its own, with a session on two slots."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", DOCTOR, "doctor", "--store", store, "--spark", "local[2]", "--json"],
        env={**os.environ, "PYTHONPATH": paths, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
        check=False,
        capture_output=True,
        text=True,
    )
    checks = json.loads(done.stdout)["checks"]
    assert done.returncode == int(any(check["level"] == "failed" for check in checks))
    return {check["check"]: check for check in checks}


def test_executors_say_what_they_are_and_reach_the_store(tmp_path: Path) -> None:
    """Two tasks import Holdfast, list the store and report the time."""
    found = doctor(f"file://{tmp_path}/store", PYSPARK_PYTHON=sys.executable)
    assert found["spark session"]["seen"].endswith("at local[2]")
    assert "2 tasks on" in found["executor python"]["seen"]
    for check in ("executor python", "executors reach the store", "executor clocks"):
        assert found[check]["level"] == "ok"


def test_executors_of_the_wrong_python_are_found(tmp_path: Path) -> None:
    """The Python that Spark starts its workers with has none of our packages."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # Without site-packages.
    python.chmod(0o755)
    found = doctor(f"file://{tmp_path}/store", PYSPARK_PYTHON=str(python))
    assert found["spark job"]["level"] == "failed"
    assert "PYSPARK_PYTHON" in found["spark job"]["fix"]
