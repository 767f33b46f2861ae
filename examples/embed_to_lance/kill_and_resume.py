"""Start embed.py, kill it half way with all its processes, and start it again.

Takes the arguments of embed.py and passes them on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from embed import arguments

import holdfast as hf

COMMAND = [sys.executable, str(Path(__file__).resolve().parent / "embed.py"), *sys.argv[1:]]
POLL_S = 0.2


def kill(job: subprocess.Popen[bytes]) -> None:
    """Kill the driver and its JVM, by their group. Workers end when their JVM is gone."""
    if job.poll() is None:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def main() -> None:
    """Kill and resume.

    Raises:
        SystemExit: There was nothing to kill, or the second start failed.
    """
    given = arguments()
    run = hf.Run(given.run, store=f"file://{given.lake.resolve()}/ledger")
    if run.status().state == "committed":
        sys.exit(f"run {given.run} has landed, and nothing is left to kill: use another --lake")
    # In its own process group, which Spark's JVM joins.
    job = subprocess.Popen(COMMAND, start_new_session=True)  # noqa: S603 - our own script.
    try:
        while (done := run.status().done_rows) < given.rows / 2:
            if job.poll() is not None:
                sys.exit("it ended before half of its rows were in checkpoints")
            time.sleep(POLL_S)
    finally:
        kill(job)
    print(f"killed: {done:,} of {given.rows:,} rows were in checkpoints", flush=True)
    sys.exit(subprocess.run(COMMAND, check=False).returncode)  # noqa: S603


if __name__ == "__main__":
    main()
