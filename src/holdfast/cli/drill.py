"""`holdfast drill RUN -- COMMAND`: start a job, and kill it once part of its rows are done.

It reads the run's ledger and knows nothing about the job, so it works for any job on this machine.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import time

from holdfast.cli import plain
from holdfast.cli.arguments import open_ledger
from holdfast.engine.watch import Watcher
from holdfast.errors import SettingsError
from holdfast.ledger.ledger import Ledger
from holdfast.model.history import Progress

_HALF = 0.5
_POLL_S = 0.1
# Looks at a slow store take at most a sixth of the time.
_PAUSE_FOR_A_LOOK = 5.0
_ENDED_FIRST = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments, apart from the store."""
    parser.add_argument("run", metavar="RUN", help="the run's id, the same as in the job")
    parser.add_argument(
        "--at",
        type=float,
        default=_HALF,
        metavar="SHARE",
        help="kill the job when this share of its rows is in checkpoints (default 0.5)",
    )
    parser.add_argument(
        "command_line",
        nargs="+",
        metavar="COMMAND",
        help="the command that starts the job, as in: holdfast drill RUN -- python job.py",
    )


def run(given: argparse.Namespace) -> int:
    """Start the job and kill it; return 0, or 1 if it ended before.

    Raises:
        SettingsError: The run is committed, the share is invalid, or the job cannot be started.
        StoreError: The ledger is damaged or does not answer; the job is killed.
    """
    if not 0 <= given.at < 1:
        raise SettingsError(
            what=f"--at {given.at:g} is not a share of the rows", cure="give 0 to less than 1"
        )
    ledger = open_ledger(given)
    state = Watcher(ledger=ledger).look().progress.state
    if state in {"committed", "aborted"}:
        raise SettingsError(
            what=f"run {ledger.run_id!r} is {state}: there is nothing left to kill",
            cure="use a new run id",
        )
    try:
        # In its own process group, which Spark's JVM joins. Workers end with their JVM.
        job = subprocess.Popen(given.command_line, start_new_session=True)  # noqa: S603 - the user's.
    except OSError as error:
        raise SettingsError(
            what=f"the job cannot be started: {error}", cure="check the command after --"
        ) from error
    try:
        seen = _wait(ledger, job, given.at)
        is_killed = job.poll() is None
    finally:
        _kill(job)
    if seen is None or not is_killed:
        plain.print_line(f"the job ended with exit code {job.returncode} before it was killed")
        return _ENDED_FIRST
    done = f"{seen.done_rows:,} of {seen.input_rows:,}"
    plain.print_line(f"killed: {done} rows were in checkpoints. Start the job again to resume.")
    return 0


def _wait(ledger: Ledger, job: subprocess.Popen[bytes], share: float) -> Progress | None:
    """Return the progress once enough rows are done; None if the job has ended before."""
    watcher = Watcher(ledger=Ledger.open(ledger.run_id, ledger.store, ledger.storage, ledger.ports))
    while job.poll() is None:
        began = time.monotonic()
        seen = watcher.look().progress
        # None until the first driver has counted the input.
        rows = seen.input_rows
        if rows is not None and seen.passes and seen.done_rows >= share * rows:
            return seen
        time.sleep(max(_POLL_S, _PAUSE_FOR_A_LOOK * (time.monotonic() - began)))
    return None


def _kill(job: subprocess.Popen[bytes]) -> None:
    if job.poll() is None:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
