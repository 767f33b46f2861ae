"""Run one engine's columns: each start is a child process in the engine's own environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.burn import noted_rows
from bench.peer_environments import PEERS, PeerError, interpreter, jars
from bench.peer_job import PeerJob
from bench.process_tree import kill_whole

COLUMNS = ("plain", "checkpointed", "rerun", "resumed")
_POLL_S = 0.02
_WAIT_S = 900.0
_HALF = 0.5
_ROOT = Path(__file__).parent.parent
# No engine contacts its vendor's servers while it is measured.
_QUIET = {
    "DAFT_ANALYTICS_ENABLED": "0",
    "DO_NOT_TRACK": "true",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RUNTIME__DLTHUB_TELEMETRY": "false",
    "SPARK_LOCAL_IP": "127.0.0.1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How long a column took, and what was wrong with the table afterwards."""

    seconds: float
    # Empty if each row is there once.
    wrong: str = ""
    # The part of the rows that the first start had mapped when it was killed.
    killed_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """What all runs have in common."""

    rows: int
    source: Path
    warm_up: Path
    # For a small input: how long the first start sleeps for each row, so that it can be killed.
    sleep_s: float = 0.0

    def plain(self, name: str) -> list[Outcome]:
        """Do the job once, without checkpoints."""
        with self._folder(name, is_checkpointed=False) as job:
            return [self._outcome(_life(name, job))]

    def checkpointed(self, name: str) -> list[Outcome]:
        """Do the job once with checkpoints."""
        with self._folder(name, is_checkpointed=True) as job:
            return [self._outcome(_life(name, job))]

    def checkpointed_and_rerun(self, name: str) -> list[Outcome]:
        """Do the job once with checkpoints, and once more when all is done."""
        with self._folder(name, is_checkpointed=True) as job:
            first = self._outcome(_life(name, job))
            return [first, self._outcome(_life(name, job))]

    def resumed(self, name: str) -> list[Outcome]:
        """Kill the job's whole process tree when half of the rows are mapped; do it again.

        Raises:
            PeerError: The first start ended before it could be killed.
        """
        with self._folder(name, is_checkpointed=True) as job:
            notes = Path(job.folder) / "notes"
            notes.mkdir()
            child = _start(name, replace(job, notes=str(notes), sleep_s=self.sleep_s))
            try:
                while noted_rows(notes) < _HALF * self.rows:
                    if child.poll() is not None:
                        raise PeerError(f"the first start ended early: {_last_words(job)}")
                    time.sleep(_POLL_S)
            finally:
                if child.poll() is None:
                    kill_whole(child)
            killed_at = round(noted_rows(notes) / self.rows, 3)
            return [replace(self._outcome(_life(name, job)), killed_at=killed_at)]

    def _outcome(self, found: dict[str, Any]) -> Outcome:
        rows, ids = found["rows"], found["ids"]
        faults = []
        if ids < self.rows:
            faults.append(f"{self.rows - ids} rows lost")
        if rows > ids:
            faults.append(f"{rows - ids} rows doubled")
        return Outcome(seconds=found["seconds"], wrong=", ".join(faults))

    @contextmanager
    def _folder(self, name: str, *, is_checkpointed: bool) -> Iterator[PeerJob]:
        # A short path: Ray puts sockets below it, whose names may have 107 bytes.
        folder = tempfile.mkdtemp(prefix="peer_")
        try:
            yield PeerJob(
                is_checkpointed=is_checkpointed,
                source=str(self.source),
                warm_up=str(self.warm_up),
                folder=folder,
                jars=jars(name),
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _life(name: str, job: PeerJob) -> dict[str, Any]:
    """Run a child to its end, and return its answer.

    Raises:
        PeerError: The child failed.
    """
    child = _start(name, job)
    try:
        output, _ = child.communicate(timeout=_WAIT_S)
    except subprocess.TimeoutExpired:
        kill_whole(child)
        raise PeerError(f"no end after {_WAIT_S:.0f} s") from None
    except BaseException:
        kill_whole(child)
        raise
    if child.returncode:
        raise PeerError(f"ended with {child.returncode}: {_last_words(job)}")
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def _start(name: str, job: PeerJob) -> subprocess.Popen[str]:
    python = interpreter(name)
    environment = {**os.environ, **_QUIET, "PYTHONPATH": str(_ROOT)}
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environment[variable] = python
    with _errors(job).open("w") as errors:
        return subprocess.Popen(
            [python, "-m", PEERS[name].module, json.dumps(asdict(job))],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            start_new_session=True,
        )


def _errors(job: PeerJob) -> Path:
    return Path(job.folder) / "stderr"


def _last_words(job: PeerJob) -> str:
    """Return the last line of a child's errors."""
    lines = [line for line in _errors(job).read_text().splitlines() if line.strip()]
    return lines[-1][:500] if lines else "it said nothing"
