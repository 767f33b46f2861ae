"""Start tests/crash/jobs/crash_job.py as a process of its own, kill it, and see how it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import PYTHON_PATH
from tests.crash.counted_calls import CALLS_VARIABLE, Call, read_calls
from tests.integration.process_jobs import QUIET

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "jobs" / "crash_job.py"
# A script that is started elsewhere finds neither the tests' session nor a store of its own.
_NOT_PASSED_ON = ("SPARK_HOME", "SPARK_REMOTE", "SPARK_CONF_DIR", "HOLDFAST_STORE")
_POLL_S = 0.05
_KILL_ROUNDS_MAX = 100
LOCAL = {**QUIET, "spark.master": "local[2]"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedJob:
    """One start of the job, and all processes that it has started: they share its session."""

    process: subprocess.Popen[bytes]
    # Holds its output, its errors, and the folder `calls`.
    folder: Path

    @property
    def calls(self) -> list[Call]:
        """The calls of the transform that this start has finished so far."""
        return read_calls(self.folder / "calls")

    @property
    def errors(self) -> str:
        """What it wrote to standard error."""
        return (self.folder / "errors").read_text()

    @property
    def report(self) -> dict[str, Any]:
        """The report that it printed."""
        report: dict[str, Any] = json.loads((self.folder / "output").read_text())
        return report

    def wait_until(self, what: Callable[[], bool], *, timeout_s: float = 240.0) -> None:
        """Wait for something to happen while the job runs.

        Raises:
            AssertionError: The job ended, or time ran out.
        """
        until = time.monotonic() + timeout_s
        while not what():
            assert self.process.poll() is None, f"it ended by itself:\n{self.errors}"
            assert time.monotonic() < until, f"nothing happened:\n{self.errors}"
            time.sleep(_POLL_S)

    def wait_for_first_call(self) -> None:
        """Wait until the transform has finished a batch."""
        self.wait_until(lambda: any((self.folder / "calls").iterdir()))

    def ended(self, *, timeout_s: float = 400.0) -> int:
        """Wait for the end and return the exit code."""
        return self.process.wait(timeout=timeout_s)

    def kill(self) -> dict[int, str]:
        """Kill the driver, its JVM and its workers, as the loss of their node would.

        Returns what was killed: process ids and command lines.
        """
        killed: dict[int, str] = {}
        # A process that was just forked may have been missed.
        for _ in range(_KILL_ROUNDS_MAX):
            found = processes_of_session(self.process.pid)
            if not found:
                break
            for process_id in found:
                kill_process(process_id)
            # A process that is about to end has no command line any more.
            killed = found | killed
            self.process.poll()
            time.sleep(_POLL_S)
        self.process.wait(timeout=10.0)
        return killed


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What all starts of one job share."""

    settings: Mapping[str, Any]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    starts: list[StartedJob] = field(default_factory=list)

    @contextmanager
    def start(self, **environment: str) -> Iterator[StartedJob]:
        """Start the job; nothing of it is left when the block ends."""
        folder = self.folder / f"start-{len(self.starts)}"
        (folder / "calls").mkdir(parents=True)
        inherited = {name: text for name, text in os.environ.items() if name not in _NOT_PASSED_ON}
        with (folder / "output").open("wb") as output, (folder / "errors").open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, str(SCRIPT)],
                cwd=folder,
                env={
                    **inherited,
                    "PYSPARK_PYTHON": sys.executable,
                    "PYTHONPATH": PYTHON_PATH,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    CALLS_VARIABLE: str(folder / "calls"),
                    **self.environment,
                    **environment,
                    "HOLDFAST_JOB": json.dumps(self._settings_of(folder)),
                },
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        started = StartedJob(process=process, folder=folder)
        self.starts.append(started)
        try:
            yield started
        finally:
            started.kill()

    def run_to_its_end(self, **environment: str) -> StartedJob:
        """Start the job and wait until it has ended by itself."""
        with self.start(**environment) as started:
            started.ended()
        return started

    @property
    def calls(self) -> list[Call]:
        """The calls that all starts have finished."""
        return [call for started in self.starts for call in started.calls]

    def _settings_of(self, folder: Path) -> dict[str, Any]:
        """Return settings that give executors the environment, which they do not inherit."""
        spark = {
            **self.settings["spark"],
            "spark.executorEnv.PYTHONPATH": PYTHON_PATH,
            f"spark.executorEnv.{CALLS_VARIABLE}": str(folder / "calls"),
        }
        return {**self.settings, "spark": spark}


def processes_of_session(session_id: int) -> dict[int, str]:
    """Return the living processes of a session by id, with their command lines."""
    numbers = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return {
        number: read_proc(number, "cmdline").replace("\0", " ")
        for number in numbers
        if session_of(number) == session_id
    }


def session_of(process_id: int) -> int | None:
    """Return a living process's session; None once it has ended, though its parent may wait."""
    # A command's name may hold spaces and brackets.
    facts = read_proc(process_id, "stat").rpartition(")")[2].split()
    return int(facts[3]) if facts and facts[0] != "Z" else None


def read_proc(process_id: int, name: str) -> str:
    """Return what the system says about a process; nothing once it is gone."""
    try:
        return Path(f"/proc/{process_id}/{name}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def kill_process(process_id: int) -> None:
    """Send SIGKILL to a process of this test's own; it may be gone already."""
    try:
        os.kill(process_id, signal.SIGKILL)
    except ProcessLookupError:
        return
