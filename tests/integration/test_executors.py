"""Executors that cannot run the job: the error names them and the fix; nothing is tried twice.

Method: one session on two real executor processes (`local-cluster`), and for each case an
interpreter made for it. Spark's event log shows how many attempts each task had: Spark would
try a task that raises four times.
"""

from __future__ import annotations

import json
import socket
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast import __version__
from tests.integration.process_jobs import QUIET, run_job
from tests.integration.process_local_lake import LocalLake, ledger_kinds
from tests.integration.process_pythons import make_old_python, make_python, make_spark_home

pytestmark = pytest.mark.spark

HERE = socket.gethostname()
ROWS = 40
TASKS = 2
# One attempt for each task of the job, and of the pass over the keys before it: a task for each
# partition, and one that adds up.
ATTEMPTS = TASKS + (TASKS + 1)
# With a transform, keys are compared before it: another pass over them.
COMPARED = ATTEMPTS + (TASKS + 1)
CURE = f"install holdfast {__version__} there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What all cases left behind."""

    folder: Path
    lake: LocalLake
    # By case: the error's class and text, and how many task attempts Spark started.
    errors: dict[str, str]
    texts: dict[str, str]
    attempts: Counter[str]

    def python(self, case: str) -> str:
        """Return the interpreter of a case, as an error would name it."""
        return str(self.folder / case / "bin" / "python")

    def check_nothing_landed(self, case: str) -> None:
        """Assert that the table has no snapshot, and the case's ledger no intent."""
        assert self.lake.snapshots() == []
        assert ledger_kinds(self.lake.store, case) == ["Claim", "Plan", "Stop"]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Run all cases, each as a run of its own, in one session."""
    folder = tmp_path_factory.mktemp("executors")
    lake = LocalLake(folder=folder / "lake")
    for name in ("lake", "events", "calls"):
        (folder / name).mkdir()
    lake.create_table()
    cases: list[dict[str, Any]] = [
        {"name": "bare", "python": str(make_python(folder / "bare"))},
        {"name": "old", "python": str(make_old_python(folder / "old", "0.0.1"))},
        {
            "name": "no-pyiceberg",
            "python": str(
                make_python(folder / "no-pyiceberg", without=("pyiceberg",), editable=True)
            ),
        },
        {"name": "driver-only", "python": sys.executable, "module": "driver_only"},
        {"name": "fails", "python": sys.executable, "calls": str(folder / "calls")},
        {
            "name": "no-pyarrow",
            "python": str(make_python(folder / "no-pyarrow", without=("pyarrow",))),
        },
    ]
    spark = {
        **QUIET,
        "spark.master": "local-cluster[2,1,1024]",
        "spark.executor.memory": "1g",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.dir": f"file://{folder}/events",
    }
    job = {
        "spark": spark,
        "cases": cases,
        "rows": ROWS,
        "tasks": TASKS,
        "to": "here.rows",
        "catalog": lake.catalog,
        "store": lake.store,
    }
    environment = {"SPARK_HOME": str(make_spark_home(folder / "spark"))}
    ended = run_job(job, folder=folder, script="executor_jobs.py", environment=environment)
    assert ended.code == 0, ended.errors
    endings = [json.loads(line) for line in ended.output.splitlines()]
    return Seen(
        folder=folder,
        lake=lake,
        errors={ending["name"]: ending["error"] for ending in endings},
        texts={ending["name"]: ending["text"] for ending in endings},
        attempts=attempts_by_group(folder / "events"),
    )


def attempts_by_group(folder: Path) -> Counter[str]:
    """Return how many task attempts are in Spark's event log, by job group."""
    (log,) = folder.iterdir()
    group_of_stage: dict[int, str] = {}
    attempts: Counter[str] = Counter()
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerJobStart":
            group = event["Properties"]["spark.jobGroup.id"]
            group_of_stage |= dict.fromkeys(event["Stage IDs"], group)
        elif event["Event"] == "SparkListenerTaskStart":
            attempts[group_of_stage[event["Stage ID"]]] += 1
    return attempts


def test_an_executor_without_holdfast_is_named_with_the_cure(seen: Seen) -> None:
    """The job ends at the first attempt of each task: a retry would find the same Python."""
    assert seen.errors["bare"] == "ExecutorSetupError"
    text = seen.texts["bare"]
    assert text.startswith(
        f"executor {HERE} ({seen.python('bare')}): the driver runs holdfast {__version__},"
    )
    assert "No module named 'holdfast'" in text
    assert CURE in text
    assert seen.attempts["bare"] == ATTEMPTS
    seen.check_nothing_landed("bare")


def test_an_executor_with_another_version_is_named_with_both_versions(seen: Seen) -> None:
    """The plan is not even unpickled there: another version could misread it."""
    assert seen.errors["old"] == "ExecutorSetupError"
    text = seen.texts["old"]
    assert text.startswith(f"executor {HERE} ({seen.python('old')}): holdfast 0.0.1 is installed")
    assert f"the driver has {__version__}" in text
    assert CURE in text
    assert seen.attempts["old"] == ATTEMPTS
    seen.check_nothing_landed("old")


def test_an_executor_without_pyiceberg_is_named_with_the_package(seen: Seen) -> None:
    """Holdfast is installed, but not the package that its sink needs."""
    assert seen.errors["no-pyiceberg"] == "ExecutorSetupError"
    text = seen.texts["no-pyiceberg"]
    assert text.startswith(f"executor {HERE} ({seen.python('no-pyiceberg')})")
    assert "No module named 'pyiceberg'" in text
    assert seen.attempts["no-pyiceberg"] == ATTEMPTS
    seen.check_nothing_landed("no-pyiceberg")


def test_a_transform_from_a_module_of_the_driver_alone_is_named(seen: Seen) -> None:
    """A file beside the script does not exist on the executors."""
    assert seen.errors["driver-only"] == "ExecutorSetupError"
    text = seen.texts["driver-only"]
    assert text.startswith(f"executor {HERE} ({sys.executable})")
    assert "No module named 'driver_only'" in text
    assert seen.attempts["driver-only"] == COMPARED
    seen.check_nothing_landed("driver-only")


def test_an_executor_without_pyarrow_is_an_error_of_its_python(seen: Seen) -> None:
    """Spark itself fails there before a line of ours runs; the error still says what to set."""
    assert seen.errors["no-pyarrow"] == "ExecutorSetupError"
    text = seen.texts["no-pyarrow"]
    assert "its Python lacks pyarrow" in text
    assert "set PYSPARK_PYTHON" in text
    seen.check_nothing_landed("no-pyarrow")


def test_a_failing_transform_is_called_once_a_task_though_spark_would_retry(seen: Seen) -> None:
    """Rows that cost money are not paid for four times."""
    assert seen.errors["fails"] == "TransformError"
    text = seen.texts["fails"]
    assert text.startswith(f"the transform failed in {TASKS} of {TASKS} tasks")
    assert "ValueError: no luck with" in text
    assert len(list((seen.folder / "calls").iterdir())) == TASKS
    assert seen.attempts["fails"] == COMPARED
    seen.check_nothing_landed("fails")
