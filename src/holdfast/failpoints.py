"""Failpoints: named steps between two effects, where a test may end, stop or fail a process.

Off unless HOLDFAST_FAILPOINTS names a folder when the process starts. A file there with the name of
a step arms that step: the first process to reach it takes the file and does what the file says,
`kill`, `stop` or `error`. The taken file is kept as `<step>.<process id>`.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

VARIABLE = "HOLDFAST_FAILPOINTS"
_FOLDER = os.environ.get(VARIABLE, "")


class FailpointError(Exception):
    """Raised by a step that was armed with `error`."""


def failpoint(step: str) -> None:
    """Mark a step; nothing happens unless a test has armed it.

    Raises:
        FailpointError: The step was armed with `error`.
    """
    if _FOLDER:
        _come_to(step, Path(_FOLDER), os.getpid())


def _come_to(step: str, folder: Path, process_id: int) -> None:
    taken = folder / f"{step}.{process_id}"
    try:
        (folder / step).rename(taken)  # Succeeds in one process only.
    except FileNotFoundError:
        return
    fault = taken.read_text(encoding="ascii")
    if fault == "error":
        raise FailpointError(step)
    # Not SIGTERM and not `sys.exit`: the process must not run any more code.
    os.kill(process_id, {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[fault])
