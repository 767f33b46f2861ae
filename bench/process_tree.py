"""Jobs in processes of their own: started, killed whole, and watched for their memory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_POLL_S = 0.1
_WAIT_S = 3600.0


def start(module: str, argument: Mapping[str, Any]) -> subprocess.Popen[str]:
    """Start a module of ours in a process group of its own; its output is for `answer`."""
    return subprocess.Popen(
        [sys.executable, "-m", module, json.dumps(argument)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def answer(child: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a child, and return what its last line says; no process of it is left afterwards.

    Raises:
        SystemExit: The child failed.
    """
    try:
        output, _ = child.communicate(timeout=_WAIT_S)
    except BaseException:
        kill_whole(child)
        raise
    if child.returncode != 0:
        raise SystemExit(f"a child ended with {child.returncode}")
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def descendants(process_id: int) -> list[int]:
    """Return a process's children, their children and so on, by process id."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # It has ended.
            fields = path.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found: list[int] = []
    waiting = [process_id]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def kill_whole(child: subprocess.Popen[str]) -> None:
    """Kill a child and all below it at once, as when a machine is lost.

    PySpark's daemon leaves the group of its parent, so its processes are killed one by one.
    """
    below = descendants(child.pid)
    os.killpg(child.pid, signal.SIGKILL)
    for process_id in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)
    child.communicate(timeout=_WAIT_S)


@dataclass
class Peaks:
    """The peak memory of each process of a job, in megabytes, by process id."""

    driver_mb: float = 0.0
    workers_mb: dict[int, float] = field(default_factory=dict)

    @property
    def worker_mb(self) -> float:
        """The largest of the workers."""
        return max(self.workers_mb.values(), default=0.0)


@contextlib.contextmanager
def watched(child: subprocess.Popen[str]) -> Iterator[Peaks]:
    """Watch the peak memory of a driver's Python and of its Python workers."""
    peaks, end = Peaks(), threading.Event()

    def watch() -> None:
        while not end.wait(_POLL_S):
            peaks.driver_mb = max(peaks.driver_mb, _peak_mb(child.pid))
            for process_id in _workers(child.pid):
                known = peaks.workers_mb.get(process_id, 0.0)
                peaks.workers_mb[process_id] = max(known, _peak_mb(process_id))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        end.set()
        thread.join()


def _workers(process_id: int) -> list[int]:
    """Return the processes that PySpark's daemons have forked."""
    below = descendants(process_id)
    daemons = [process for process in below if _is_daemon(process)]
    return [worker for daemon in daemons for worker in descendants(daemon)]


def _is_daemon(process_id: int) -> bool:
    """Whether a process was started as the daemon; its workers have the same command line."""
    try:
        command = Path(f"/proc/{process_id}/cmdline").read_bytes()
        parent = Path(f"/proc/{process_id}/status").read_text().partition("PPid:")[2].split()[0]
        above = Path(f"/proc/{parent}/cmdline").read_bytes()
    except OSError:  # It has ended.
        return False
    return b"pyspark.daemon" in command and b"pyspark.daemon" not in above


def _peak_mb(process_id: int) -> float:
    """Return a process's peak memory so far; 0 if it has ended."""
    try:
        status = Path(f"/proc/{process_id}/status").read_text()
    except OSError:
        return 0.0
    peak = status.partition("VmHWM:")[2].split()
    return int(peak[0]) / 1024 if peak else 0.0
