"""Start a job, and kill it with all that it has started once half of its rows are done.

    python examples/kill_half_way.py RUN_ID STORE COMMAND...

It asks the run's ledger, not the job, so it works for any job of yours on this machine.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import holdfast as hf

POLL_S = 0.1


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", help="the run's id")
    parser.add_argument("store", help="the store of its ledger: a folder, or a URI")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="how the job is started")
    given = parser.parse_args()
    if not given.command:
        parser.error("say how the job is started")
    return given


def wait_until_half_is_done(run: hf.Run, job: subprocess.Popen[bytes]) -> hf.RunStatus:
    """Return where the run stands once half of its rows are in checkpoints.

    Raises:
        SystemExit: The job has ended before.
    """
    while True:
        status = run.status()
        # None until the first driver has counted the input.
        if status.input_rows is not None and status.done_rows >= status.input_rows / 2:
            return status
        if job.poll() is not None:
            sys.exit("it ended before half of its rows were in checkpoints")
        time.sleep(POLL_S)


def kill(job: subprocess.Popen[bytes]) -> None:
    """Kill the driver and its JVM, by their group. Workers end when their JVM is gone."""
    if job.poll() is None:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def main() -> None:
    """Start, look, kill.

    Raises:
        SystemExit: There was nothing to kill.
    """
    given = arguments()
    store = given.store if "://" in given.store else f"file://{Path(given.store).resolve()}"
    run = hf.Run(given.run, store=store)
    if run.status().state == "committed":
        sys.exit(f"run {given.run} has landed, and nothing is left to kill")
    # In a process group of its own, which Spark's JVM joins.
    job = subprocess.Popen(given.command, start_new_session=True)  # noqa: S603 - the user's own.
    try:
        status = wait_until_half_is_done(run, job)
        if job.poll() is not None:
            sys.exit("it ended before it could be killed")
    finally:
        kill(job)
    print(f"killed: {status.done_rows:,} of {status.input_rows:,} rows were in checkpoints")


if __name__ == "__main__":
    main()
