"""A driver started beside another one of the same run: it waits, stops, or takes over at once.

Method: the first driver is a process of its own, a client of Spark Connect, whose transform
waits for a file. This process is the second driver. The clocks of both run SPEED times as fast:
of a minute's wait, twelve seconds are slept. test_waiting_start.py has the real ones.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from holdfast import run as run_module
from holdfast.errors import RunBusyError
from holdfast.ledger.ledger import Ports
from tests.integration.jobs.held_job import hurried
from tests.integration.process_jobs import end_of, started_job
from tests.integration.process_watched import ROWS, RUN, TASKS, WatchedTable
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest, pytest.mark.connect]

ALL = list(range(ROWS))
# How often a driver gives a sign of life, and how long a living one may give none.
EVERY_S = 5.0
QUIET_S = 30.0
# So that five seconds without a sign of life, on a busy machine, do not look like an end.
SPEED = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Healthy:
    """A driver at work: its process, and the folder that it watches."""

    process: subprocess.Popen[str]
    folder: Path

    def release(self) -> None:
        """Let its transform continue."""
        (self.folder / "release").touch()

    def ending(self) -> dict[str, str]:
        """Wait for its end and return how it ended."""
        ended = end_of(self.process)
        assert ended.code == 0, ended.errors
        found: dict[str, str] = json.loads(ended.output)
        return found


@pytest.fixture
def healthy(
    watched: WatchedTable, stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Healthy]:
    """Start a driver and return when its transform was called; speed up this process too."""
    monkeypatch.setattr(run_module, "Ports", partial(Ports, **hurried(SPEED)))
    folder = tmp_path / "held"
    folder.mkdir()
    settings = {
        "spark": {"spark.remote": stack.connect_remote, "spark.sql.session.timeZone": "UTC"},
        "run_id": RUN,
        **watched.ledger,
        "to": f"{watched.namespace}.rows",
        "catalog": {**stack.rest_catalog_properties(), "name": "lake"},
        "rows": ROWS,
        "tasks": TASKS,
        "folder": str(folder),
        "speed": SPEED,
        "options": {"checkpoint_every": EVERY_S},
    }
    with started_job(settings, folder=tmp_path, script="held_job.py") as process:
        wait_until(lambda: any(folder.iterdir()) or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        yield Healthy(process=process, folder=folder)
        (folder / "release").touch()  # Whatever the test did, no worker is left waiting.


def waits(said: pytest.WarningsRecorder) -> list[str]:
    """Return the warnings about a wait; another one says that the code has changed."""
    return [str(warning.message) for warning in said if "waiting" in str(warning.message)]


def wait_until(what: Callable[[], bool]) -> None:
    """Wait for something to happen."""
    until = time.monotonic() + 60.0
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_never_raises_and_leaves_the_other_alone(watched: WatchedTable, healthy: Healthy) -> None:
    """The error names the process; the other driver finishes undisturbed."""
    with pytest.raises(RunBusyError, match="seems to be running it") as caught:
        watched.append(takeover="never")
    assert caught.value.process_id == healthy.process.pid
    assert caught.value.age_s < QUIET_S
    healthy.release()
    assert healthy.ending() == {"outcome": "committed", "error": ""}
    assert watched.numbers() == ALL
    assert watched.computed() == []


def test_a_driver_that_is_stopped_is_waited_for_and_then_taken_over(
    watched: WatchedTable, healthy: Healthy
) -> None:
    """When its signs of life end it counts as dead; when it wakes up it is fenced; rows land once.

    The two drivers have different code, and a warning says so.
    """
    os.kill(healthy.process.pid, signal.SIGSTOP)
    started = time.monotonic()
    try:
        with pytest.warns(UserWarning, match="^run 'nightly'") as said:
            report = watched.append()
    finally:
        os.kill(healthy.process.pid, signal.SIGCONT)
    (wait,) = waits(said)
    assert f"process {healthy.process.pid} on" in wait
    seconds = re.search(r"for (\d+) s without a sign of life", wait)
    assert seconds is not None
    assert (time.monotonic() - started) * SPEED >= int(seconds[1]) - 1  # It did wait.
    assert report.outcome == "committed"
    healthy.release()
    assert healthy.ending() == {"outcome": "", "error": "RunFencedError"}
    assert watched.numbers() == watched.computed() == ALL
    assert watched.snapshots() == [report.snapshot_id]


def test_a_living_driver_is_never_taken_over(watched: WatchedTable, healthy: Healthy) -> None:
    """It works longer than its records count as fresh, and the second start waits all the time."""
    later = threading.Timer(2 * QUIET_S / SPEED, healthy.release)
    later.start()
    started = time.monotonic()
    with pytest.warns(UserWarning, match="^run 'nightly'") as said:
        report = watched.append()
    later.join()
    assert (time.monotonic() - started) * SPEED >= 2 * QUIET_S
    assert len(waits(said)) == 1
    assert report.outcome == "already_committed"
    assert healthy.ending() == {"outcome": "committed", "error": ""}
    assert watched.numbers() == ALL
    assert watched.computed() == []


def test_wait_ends_as_soon_as_the_other_has_landed(watched: WatchedTable, healthy: Healthy) -> None:
    """Two starts of one run overlap: the second returns the receipt of the first."""
    later = threading.Timer(EVERY_S / 2 / SPEED, healthy.release)
    later.start()
    with pytest.warns(UserWarning, match="^run 'nightly'") as said:
        report = watched.append()
    later.join()
    assert len(waits(said)) == 1
    assert report.outcome == "already_committed"
    assert healthy.ending() == {"outcome": "committed", "error": ""}
    assert watched.numbers() == ALL
    assert watched.computed() == []


def test_now_does_not_wait(watched: WatchedTable, healthy: Healthy) -> None:
    """The other driver is fenced at once, and its tasks stop at their next checkpoint."""
    with pytest.warns(UserWarning, match="^run 'nightly'") as said:
        report = watched.append(takeover="now")
    assert waits(said) == []
    assert report.outcome == "committed"
    healthy.release()
    assert healthy.ending() == {"outcome": "", "error": "RunFencedError"}
    assert watched.numbers() == watched.computed() == ALL
    assert watched.snapshots() == [report.snapshot_id]


def test_abort_stops_a_driver_at_work(watched: WatchedTable, healthy: Healthy) -> None:
    """It is fenced for good: nothing of it lands, and no start resumes it."""
    watched.run().abort(reason="wrong input")
    healthy.release()
    assert healthy.ending() == {"outcome": "", "error": "RunAbortedError"}
    assert watched.snapshots() == []
    assert watched.run().sweep().ledger_objects > 0
    assert watched.run().status().state == "aborted"


def test_a_dead_driver_of_this_machine_is_not_waited_for(
    watched: WatchedTable, healthy: Healthy
) -> None:
    """Its process is gone, which this machine sees at once, however fresh its records are."""
    os.killpg(healthy.process.pid, signal.SIGKILL)
    healthy.process.wait(timeout=10.0)
    with pytest.warns(UserWarning, match="^run 'nightly'") as said:
        report = watched.append()
    assert waits(said) == []
    assert report.outcome == "committed"
    assert watched.numbers() == watched.computed() == ALL
