"""Ports of a driver and a task: time, randomness, process identity and resource usage.

They are passed in so that a simulation can drive the whole protocol.
"""

from __future__ import annotations

import logging
import os
import random
import resource
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from holdfast.ledger.run_log import RunLog
from holdfast.model.usage import Usage
from holdfast.storage.runtime import io_runtime

_log = logging.getLogger("holdfast")
# The logs of all drivers that have a heartbeat in this process, each with its thread.
_DRIVERS: list[tuple[RunLog, int]] = []


def _new_nonce() -> str:
    return uuid.uuid4().hex


def _is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # It exists, and belongs to another user.
    return True


def _machine() -> str:
    """Return an id for this boot and PID namespace; empty if the system does not provide one.

    Host names do not suffice: containers share them, and a process id is valid only in its own.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


class Beside(Protocol):
    """Runs a function concurrently with the driver."""

    def __call__(
        self, name: str, after_s: float, act: Callable[[], float | None], /
    ) -> Callable[[], None]:
        """Call `act` after `after_s` seconds, then after as many as it returns, until None.

        Returns a function that ends this, without waiting for a call that is under way.
        """


def in_a_thread(
    name: str, after_s: float, act: Callable[[], float | None], /
) -> Callable[[], None]:
    """Call `act` in a daemon thread, which ends with the process."""
    is_over = threading.Event()

    def run() -> None:
        wait_s: float | None = after_s
        try:
            while wait_s is not None and not is_over.wait(wait_s):
                wait_s = act()
        except Exception:  # noqa: BLE001 - whatever it is, the job must not suffer from it.
            _log.warning("%s ended with an error", name, exc_info=True)

    threading.Thread(target=run, name=f"holdfast-{name}", daemon=True).start()
    return is_over.set


# Linux counts in kilobytes, macOS in bytes.
_MEMORY_UNIT = 1 if sys.platform == "darwin" else 1024


def _usage() -> Usage:
    """Return what this process has used since it started."""
    counters = io_runtime().counters
    return Usage(
        at=time.time(),
        host=socket.gethostname(),
        waited_s=counters.waited_s,
        bytes_read=counters.bytes_read,
        bytes_written=counters.bytes_written,
        memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MEMORY_UNIT,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPorts:
    """Time, randomness and usage as a task sees them. Pickled with the task, never stored."""

    # Unix seconds; monotonic seconds.
    now: Callable[[], float] = field(default=time.time)
    monotonic: Callable[[], float] = field(default=time.monotonic)
    sleep: Callable[[float], None] = field(default=time.sleep)
    new_nonce: Callable[[], str] = field(default=_new_nonce)
    usage: Callable[[], Usage] = field(default=_usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Time, randomness and process identity as a driver sees them."""

    now: Callable[[], float] = field(default=time.time)
    sleep: Callable[[float], None] = field(default=time.sleep)
    new_nonce: Callable[[], str] = field(default=_new_nonce)
    # Between 0 and 1: spreads the retries of rival writers; not used for secrets.
    jitter: Callable[[], float] = field(default=random.random)  # noqa: S311
    host: str = field(default_factory=socket.gethostname)
    process_id: int = field(default_factory=os.getpid)
    machine: str = field(default_factory=_machine)
    # The ports of the job's tasks.
    tasks: TaskPorts = field(default_factory=TaskPorts)
    # Whether a process of this machine is running.
    is_running: Callable[[int], bool] = field(default=_is_running)
    beside: Beside = field(default=in_a_thread)
    # Guards what concurrent threads of the driver must not do at the same time.
    new_lock: Callable[[], AbstractContextManager[object]] = field(default=threading.RLock)
    # The logs of the drivers that have a heartbeat in this process, each with its thread.
    drivers: list[tuple[RunLog, int]] = field(default_factory=lambda: _DRIVERS)
