"""Start detached processes, recognize them later, and end them with all their children.

A process is identified by its id and its start time, so that a recycled id is never signalled.
Linux only (/proc and pidfd).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# Every server, and by inheritance every child, carries the stack's mark in this variable.
MARK_VARIABLE = "HOLDFAST_STACK_MARK"


@dataclass(frozen=True, slots=True)
class Identity:
    """A unique process: the kernel may reuse the id, but not with this start time."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class _Row:
    """What /proc says about one process."""

    identity: Identity
    parent: int
    state: str


def _read_row(pid: int) -> _Row | None:
    """Return the process with this id; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the program's name in brackets and may hold blanks and brackets.
    fields = text.rpartition(")")[2].split()
    return _Row(Identity(pid, int(fields[19])), parent=int(fields[1]), state=fields[0])


def identify(pid: int) -> Identity | None:
    """Return the identity of a process that runs now; None if it has ended."""
    row = _read_row(pid)
    return row.identity if row and row.state not in "ZX" else None


def alive(identity: Identity) -> bool:
    """Return whether this very process still runs; a zombie counts as ended."""
    return identify(identity.pid) == identity


def spawn(
    command: list[str], *, env: dict[str, str], mark: str, folder: Path, log: Path
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, with its output in a log file."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env={**env, MARK_VARIABLE: mark},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def family(known: Iterable[Identity], mark: str) -> set[Identity]:
    """Return the known processes that still run, all that carry the mark, and their children.

    Both ways are needed: an executor whose parent died has no known parent left, and a
    PostgreSQL backend overwrites the environment that held the mark.
    """
    listed = [
        _read_row(int(folder.name)) for folder in Path("/proc").iterdir() if folder.name.isdigit()
    ]
    rows = [row for row in listed if row and row.state not in "ZX"]
    running = {row.identity for row in rows}
    found = {identity for identity in known if identity in running}
    found |= {row.identity for row in rows if _carries(row.identity.pid, mark)}
    while True:
        parents = {identity.pid for identity in found}
        grown = found | {row.identity for row in rows if row.parent in parents}
        if grown == found:
            # Never this process: a test may start the stack's command line from inside.
            return {identity for identity in found if identity.pid != os.getpid()}
        found = grown


def _carries(pid: int, mark: str) -> bool:
    """Return whether a process was started with the stack's mark in its environment."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{MARK_VARIABLE}={mark}".encode() in environment.split(b"\0")


def send(identity: Identity, number: signal.Signals) -> None:
    """Signal this very process; do nothing if it has ended."""
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return
    try:
        # The handle is bound to the process that had the id when it was opened, so a check after
        # that is safe against a recycled id.
        if alive(identity):
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def end(
    leaders: dict[Identity, signal.Signals], mark: str, *, patience_s: float
) -> tuple[int, int]:
    """End the leaders and all that belongs to them; return how many ended, how many by force.

    Raises:
        RuntimeError: Some processes survived SIGKILL for several seconds.
    """
    members = family(leaders, mark)
    for identity in members & leaders.keys():
        send(identity, leaders[identity])
    _wait(members, patience_s)
    forced: set[Identity] = set()
    deadline = time.monotonic() + 10.0
    while left := family(members, mark):
        if time.monotonic() > deadline:
            message = f"processes do not end: {sorted(identity.pid for identity in left)}"
            raise RuntimeError(message)
        forced |= left
        for identity in left:
            send(identity, signal.SIGKILL)
        _wait(left, 1.0)
    return len(members | forced), len(forced)


def wait_until_gone(members: Iterable[Identity], timeout_s: float) -> None:
    """Wait until not even a dead process has one of these ids, or the time is over."""
    deadline = time.monotonic() + timeout_s
    folders = [Path(f"/proc/{member.pid}") for member in members]
    while time.monotonic() < deadline and any(folder.exists() for folder in folders):
        time.sleep(0.05)


def _wait(members: set[Identity], timeout_s: float) -> None:
    """Wait until none of these processes runs, or the time is over."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and any(alive(member) for member in members):
        time.sleep(0.05)
