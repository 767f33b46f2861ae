"""A real terminal while the picture is drawn: what Ctrl-C leaves, and a terminal that hangs."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from dataclasses import replace

import pytest
from rich.console import Console

from holdfast.palette import MEANINGS
from holdfast.progress.rich_display import FramePicture
from tests.fakes.progress_display import frame_of_a_resume

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


def bar_of(kept: int, failed: int) -> list[tuple[str, int]]:
    """Return the parts of the bar of a run with 50 of 100 rows done: colour and length."""
    progress = frame_of_a_resume().progress
    assert progress is not None
    changed = replace(
        progress, input_rows=100, done_rows=50, kept_rows=kept, quarantined_rows=failed
    )
    console = Console(file=io.StringIO(), width=101, force_terminal=True, color_system="standard")
    picture = FramePicture(replace(frame_of_a_resume(), progress=changed))
    lines = console.render_lines(picture, console.options)
    return [(str(part.style), len(part.text)) for part in lines[1] if part.text.strip("━─") == ""]


def test_the_bar_shows_what_was_kept_what_is_new_what_failed_and_what_waits() -> None:
    """In the colours of the palette, and in this order; 94 columns are 100 rows."""
    kept, new, failed, waiting = (ink.terminal for ink in MEANINGS)
    rest = (f"dim {waiting}", 47)
    assert bar_of(0, 0) == [(new, 47), rest]
    assert bar_of(50, 0) == [(kept, 47), rest]
    assert bar_of(20, 10) == [(kept, 18), (new, 20), (failed, 9), rest]


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
    last = plain.rindex("stopped (SIGINT)")
    assert plain.index("SIGINT: waiting for tasks to end") < last
    assert last < plain.index("Traceback")  # Python's own, below the picture.


@pytest.mark.slow_unit
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
