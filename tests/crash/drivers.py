"""Drivers that start at once: forked from a nursery that has imported everything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import PYTHON_PATH

_SCRIPT = Path(__file__).parent / "jobs" / "nursery.py"
_END_S = 120.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Driver:
    """A driver that was started."""

    process_id: int
    end: Path

    @property
    def has_ended(self) -> bool:
        """Whether it has reported how it ended, or is gone."""
        return self.end.exists() or not Path(f"/proc/{self.process_id}").exists()

    def wait(self) -> dict[str, Any]:
        """Return how it ended; a killed driver leaves no report."""
        until(lambda: self.has_ended, f"driver {self.process_id} ends")
        if not self.end.exists():
            return {"outcome": "", "error": "killed"}
        found: dict[str, Any] = json.loads(self.end.read_text(encoding="utf-8"))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Nursery:
    """A process that forks drivers."""

    process: subprocess.Popen[str]
    folder: Path

    @classmethod
    @contextmanager
    def opened(cls, folder: Path, environment: Mapping[str, str]) -> Iterator[Nursery]:
        """Start a nursery; it and its drivers are gone when the block ends."""
        with (folder / "nursery.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, str(_SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": PYTHON_PATH, **environment},
                start_new_session=True,
            )
        try:
            yield cls(process=process, folder=folder)
        finally:
            # The group: a driver that a failed test left stopped would hold the pipe open.
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def start(self, order: Mapping[str, Any]) -> Driver:
        """Start a driver; see `nursery.act` for its orders."""
        end = self.folder / f"{uuid.uuid4().hex}.json"
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({**order, "end": str(end)}) + "\n")
        self.process.stdin.flush()
        return Driver(int(self.process.stdout.readline()), end)


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds.

    Raises:
        AssertionError: The condition does not hold in time.
    """
    end = time.monotonic() + _END_S
    while not condition():
        assert time.monotonic() < end, f"not within {_END_S:.0f} s: {what}"
        time.sleep(_POLL_S)
