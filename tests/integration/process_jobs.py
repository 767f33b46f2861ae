"""Start a script of tests/integration/jobs as a process of its own, and see how it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JOBS = Path(__file__).parent / "jobs"
ROWS = 40
TASKS = 8
EXPECTED = [(number, f"row {number}") for number in range(ROWS)]
COLUMNS = "id BIGINT NOT NULL, label STRING, build STRING, executor BIGINT"
# A script that is started elsewhere finds neither this checkout nor the tests' session.
_NOT_PASSED_ON = ("PYTHONPATH", "SPARK_HOME", "SPARK_REMOTE", "SPARK_CONF_DIR", "HOLDFAST_STORE")
_TIMEOUT_S = 300.0

# What every session of these tests has in common. A fast start matters more than peak speed:
# only Java's first compiler, and its small collector.
_LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUIET = {
    "spark.driver.extraJavaOptions": _LIGHT,
    "spark.executor.extraJavaOptions": _LIGHT,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a job ended: its exit code, and what it wrote."""

    code: int
    output: str
    errors: str

    @property
    def report(self) -> dict[str, str]:
        """What the job's report says, by name."""
        lines = [line.split(maxsplit=1) for line in self.output.splitlines()]
        return {line[0]: line[1] for line in lines if len(line) == 2}


def run_job(
    settings: Mapping[str, Any],
    *,
    folder: Path,
    script: str = "append_job.py",
    environment: Mapping[str, str] | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> Ended:
    """Run the job to its end; end what it leaves behind.

    Args:
        settings: What the script takes.
        folder: Where it is started: not in the checkout, which executors could import from.
        script: Which one.
        environment: Variables to add.
        timeout_s: How long it may take.
    """
    with started_job(settings, folder=folder, script=script, environment=environment) as started:
        return end_of(started, timeout_s=timeout_s)


@contextmanager
def started_job(
    settings: Mapping[str, Any],
    *,
    folder: Path,
    script: str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Start the job, with the arguments of `run_job`; nothing of it is left after the block."""
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
    defaults = {"rows": ROWS, "tasks": TASKS}
    started = subprocess.Popen(
        [sys.executable, str(JOBS / script)],
        cwd=folder,
        env={
            **inherited,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            **(environment or {}),
            "HOLDFAST_JOB": json.dumps({**defaults, **settings}),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield started
    finally:
        _end_group(started)


def end_of(started: subprocess.Popen[str], *, timeout_s: float = _TIMEOUT_S) -> Ended:
    """Wait until a job has ended, and return how."""
    output, errors = started.communicate(timeout=timeout_s)
    return Ended(code=started.returncode, output=output, errors=errors)


def _end_group(started: subprocess.Popen[str]) -> None:
    """Kill the job and its Java and Python children, which share its process group."""
    try:
        os.killpg(started.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        started.communicate()
