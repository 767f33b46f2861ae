"""Failpoints: named steps between two effects, where a test may end, stop or fail a process.

Off unless HOLDFAST_FAILPOINTS names a folder when the process starts. A file there, called as the
step is, arms it: the first process that comes to the step takes the file and does what it says,
`kill`, `stop` or `error`. What was taken is left as `<step>.<process id>`.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

VARIABLE = "HOLDFAST_FAILPOINTS"
_FOLDER = os.environ.get(VARIABLE, "")


class FailpointError(Exception):
    """What a step raises that was armed with `error`."""


def failpoint(step: str) -> None:
    """Come to a step; nothing happens unless a test has armed it.

    Raises:
        FailpointError: The test wants that.
    """
    if _FOLDER:
        _come_to(step, Path(_FOLDER), os.getpid())


def _come_to(step: str, folder: Path, process_id: int) -> None:
    taken = folder / f"{step}.{process_id}"
    try:
        (folder / step).rename(taken)  # Only one process can.
    except FileNotFoundError:
        return
    fault = taken.read_text(encoding="ascii")
    if fault == "error":
        raise FailpointError(step)
    # Not SIGTERM, and not `sys.exit`: nothing of the process runs after it.
    os.kill(process_id, {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[fault])
