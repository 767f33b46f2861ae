"""A real terminal while the picture is drawn: what Ctrl-C leaves, and a terminal that hangs."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time

import pytest

JOB = """
import sys, time
from holdfast.engine.options import WriteOptions
from holdfast.engine.drive import Driver
from holdfast.progress.rich_display import TerminalDisplay
from holdfast.progress.watching import shown
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.rig import Rig
from tests.fakes.unpinned import Unpinned

TerminalDisplay.first_s = TerminalDisplay.every_s = TerminalDisplay.tick_s = 0.01
rig = Rig()
rows = Unpinned(MemorySubmitter(range(int(sys.argv[1]))))
driver = Driver(ledger=rig.ledger(), sink=rig.table, input=rows)
options = WriteOptions(transform=lambda batch: time.sleep(0.05) or batch, batch_rows=1)
with shown(driver.ledger, rig.table.name, wanted=None):
    driver.write(rig.table.load(), rig.identity(), options)
"""
CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def read(terminal: int, until: str, timeout_s: float = 60.0) -> str:
    """Read until a text has appeared, or until all writers are gone."""
    found, end = "", time.monotonic() + timeout_s
    with contextlib.suppress(OSError):  # How Linux reports that all writers are gone.
        while not (until and until in found):
            assert time.monotonic() < end, found
            data = os.read(terminal, 65536)
            if not data:
                break
            found += data.decode(errors="replace")
    return found


def start(terminal: int, rows: int) -> subprocess.Popen[bytes]:
    """Start a job with this many slow rows, with its stderr on a terminal."""
    return subprocess.Popen(
        [sys.executable, "-c", JOB, str(rows)],
        stdout=subprocess.DEVNULL,
        stderr=terminal,
        env={
            **os.environ,
            "TERM": "xterm-256color",
            "COLUMNS": "80",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )


@pytest.mark.slow_unit  # A task checks for a stop only every few seconds.
def test_ctrl_c_leaves_the_last_picture_and_a_clean_terminal() -> None:
    """The picture says how it ended; no setting of the terminal has changed."""
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(ours)
    job = start(theirs, 2000)
    os.close(theirs)
    drawn = read(ours, "pass 1: computes all rows")
    job.send_signal(signal.SIGINT)
    drawn += read(ours, "")  # Read to the end: a terminal that is not read would stop the job.
    assert job.wait(timeout=60.0) == -signal.SIGINT
    assert termios.tcgetattr(ours) == before
    os.close(ours)
    assert "\x1b[?" not in drawn  # Neither the cursor nor the screen was ever changed.
    plain = CONTROL.sub("", drawn)
    last = plain.rindex("stopped (SIGINT); run it again to go on")
    assert plain.index("SIGINT: waiting for tasks to end") < last
    assert last < plain.index("Traceback")  # Python's own, below the picture.


def test_a_terminal_that_is_not_read_does_not_stop_the_job() -> None:
    """After Ctrl-S, or on a connection that hangs, the thread blocks and the job goes on."""
    ours, theirs = pty.openpty()
    os.set_blocking(theirs, False)
    with contextlib.suppress(BlockingIOError):  # Full before the job draws, however slow it is.
        while True:
            os.write(theirs, b".")
    os.set_blocking(theirs, True)
    job = start(theirs, 20)
    os.close(theirs)
    assert job.wait(timeout=60.0) == 0
    drawn = read(ours, "")
    os.close(ours)
    assert "committed" not in drawn  # The thread did block: the test is not vacuous.
