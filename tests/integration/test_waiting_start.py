"""A start that waits for another driver, which is alive, was killed, is stopped, or has finished.

Method: both drivers are processes of their own, with sessions of their own; the second believes
that it is on another machine, so that it knows the first only by its signs of life.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.integration.process_jobs import QUIET, Ended, end_of, started_job
from tests.integration.process_watched import ROWS, RUN, TASKS, WatchedTable
from tests.integration.test_take_over import wait_until
from tests.stack_access import Stack

pytestmark = [
    pytest.mark.spark,
    pytest.mark.stack,
    pytest.mark.rest,
    pytest.mark.connect,
    pytest.mark.slow,
]

Spark = Literal["classic", "connect"]
EVERY_S, QUIET_S = 5.0, 30.0


@dataclass(kw_only=True)
class Starts:
    """Starts the run as often as a test wants, each in a process and a folder of its own."""

    watched: WatchedTable
    stack: Stack
    spark: Spark
    folder: Path
    folders: list[Path] = field(default_factory=list)

    @contextmanager
    def start(self, *, released: bool, machine: str) -> Iterator[subprocess.Popen[str]]:
        """Start the script; its transform waits unless it is released."""
        folder = self.folder / machine
        held = folder / "held"
        held.mkdir(parents=True)
        self.folders.append(held)
        if released:
            (held / "release").touch()
        session = (
            {"spark.remote": self.stack.connect_remote, "spark.sql.session.timeZone": "UTC"}
            if self.spark == "connect"
            else {"spark.master": "local[2]", **QUIET}
        )
        settings: dict[str, Any] = {
            "spark": session,
            "run_id": RUN,
            **self.watched.ledger,
            "to": f"{self.watched.namespace}.rows",
            "catalog": {**self.stack.rest_catalog_properties(), "name": "lake"},
            "rows": ROWS,
            "tasks": TASKS,
            "folder": str(held),
            "machine": machine,
            "options": {"checkpoint_every": EVERY_S},
        }
        with started_job(settings, folder=folder, script="held_job.py") as process:
            try:
                yield process
            finally:
                (held / "release").touch()

    def release(self) -> None:
        """Let all transforms continue."""
        for held in self.folders:
            (held / "release").touch()

    def has_beaten(self) -> bool:
        """Whether the first driver has given a sign of life beside its records."""
        storage = self.watched.storage
        return storage.last_written([self.watched.layout().beat(1)])[0] is not None

    def is_taken_over(self) -> bool:
        """Whether the second driver has claimed the run."""
        return self.watched.kinds().count("Claim") > 1


@pytest.fixture(params=["classic", "connect"])
def starts(
    request: pytest.FixtureRequest, watched: WatchedTable, stack: Stack, tmp_path: Path
) -> Starts:
    """Return what starts the run, under classic Spark and under Spark Connect."""
    return Starts(watched=watched, stack=stack, spark=request.param, folder=tmp_path)


def ending(ended: Ended) -> dict[str, str]:
    """Return how a start has ended."""
    assert ended.code == 0, ended.errors
    found: dict[str, str] = json.loads(ended.output)
    return found


def assert_waited(ended: Ended, process: subprocess.Popen[str]) -> None:
    """Check that it said which driver it waits for, and how to stop waiting."""
    assert re.search(rf"process {process.pid} on .* waiting for it to end", ended.errors)
    assert 'takeover="now" does not wait' in ended.errors


@pytest.mark.parametrize("fate", ["lives", "killed", "stopped", "finished"])
def test_the_second_start_waits_while_the_first_is_alive(starts: Starts, fate: str) -> None:
    """Then it returns its receipt, or resumes where it stopped; the rows land once in any case."""
    with starts.start(released=fate == "finished", machine="one") as first:
        if fate == "finished":
            assert ending(end_of(first)) == {"outcome": "committed", "error": ""}
        else:
            wait_until(lambda: starts.has_beaten() or first.poll() is not None)
        began = time.monotonic()
        with starts.start(released=True, machine="two") as second:
            if fate == "killed":
                os.killpg(first.pid, signal.SIGKILL)
            elif fate == "stopped":
                os.killpg(first.pid, signal.SIGSTOP)
            elif fate == "lives":
                time.sleep(QUIET_S + 3 * EVERY_S)
                assert second.poll() is None  # It is still waiting.
                starts.release()
            if fate in {"killed", "stopped"}:
                # The first driver's tasks occupy the server's slots until they see that it is
                # fenced.
                wait_until(starts.is_taken_over)
                starts.release()
            ended = end_of(second)
        waited_s = time.monotonic() - began
        if fate == "stopped":
            os.killpg(first.pid, signal.SIGCONT)
            assert ending(end_of(first)) == {"outcome": "", "error": "RunFencedError"}
        if fate == "lives":
            assert ending(end_of(first)) == {"outcome": "committed", "error": ""}
    found = {"lives": "already_committed", "finished": "already_committed"}
    assert ending(ended) == {"outcome": found.get(fate, "committed"), "error": ""}
    if fate == "finished":
        assert "waiting" not in ended.errors
    else:
        assert_waited(ended, first)
        assert waited_s > QUIET_S - 2 * EVERY_S
    assert starts.watched.numbers() == list(range(ROWS))
    assert len(starts.watched.snapshots()) == 1
