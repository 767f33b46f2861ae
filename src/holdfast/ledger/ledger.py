"""One run's ledger: its log, its run.json, the store that holds them, and the driver's ports.

Steps are logged to the logger `holdfast` as ids, names and numbers, and nothing else. Holdfast
adds no handler to it: to read the steps, set its level to INFO. What a user must know is a warning
or an error instead.

Ports are what a driver and a task take from their machine: time, randomness, process identity and
resource usage. They are passed in so that a simulation can drive the whole protocol.
"""

from __future__ import annotations

import contextlib
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

from holdfast.errors import HoldfastError, LedgerDamagedError
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.run_log import RunFile, RunLog, read_run_file
from holdfast.ledger.store import probe_store
from holdfast.model.records import Stop
from holdfast.model.usage import Usage
from holdfast.storage.port import Storage
from holdfast.storage.runtime import io_runtime
from holdfast.text import printable, without_passwords

# ---- Ports
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


# ---- One run's ledger


def log_step(run_id: str, text: str) -> None:
    """Log one step.

    Args:
        run_id: The run's id; also set, unescaped, as the record's field `holdfast_run`.
        text: What was done. It must not hold the value of a setting, which could be a secret.
    """
    # One step is one line: an id with a line break must not start a second one.
    line = printable(without_passwords(text))
    extra = {"holdfast_run": run_id}
    _log.info("run %s: %s", printable(run_id), line, extra=extra, stacklevel=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """One run's ledger, and the ports that this driver uses on it."""

    run_id: str
    store: str
    storage: Storage
    ports: Ports
    log: RunLog

    @classmethod
    def open(cls, run_id: str, store: str, storage: Storage, ports: Ports) -> Ledger:
        """Return the ledger of a run; nothing is read yet."""
        log = RunLog(
            run_id=run_id,
            layout=RunLayout.of(store, run_id),
            storage=storage,
            new_nonce=ports.new_nonce,
            now=ports.now,
            sleep=ports.sleep,
        )
        return cls(run_id=run_id, store=store, storage=storage, ports=ports, log=log)

    @property
    def layout(self) -> RunLayout:
        """Where the run's objects are."""
        return self.log.layout

    def run_file(self) -> RunFile | None:
        """Read run.json, if a driver has written it; from then on records must name the run.

        Raises:
            LedgerDamagedError: run.json is damaged or lost, or a record is another run's.
            StoreUnavailableError: The store did not answer.
        """
        found = read_run_file(self.storage, self.layout)
        if found is not None:
            self.log.belongs_to(found)
        elif self.log.follows_run_file:  # Only run.json says which run that is.
            raise LedgerDamagedError(
                uri=self.layout.identity, reason="missing, though records were written after it"
            )
        return found

    def probe(self) -> None:
        """Refuse a store that cannot hold a ledger.

        Raises:
            StoreError: The store is unsafe or unavailable.
        """
        probe_store(self.storage, self.store, self.ports.new_nonce(), sleep=self.ports.sleep)

    def stop(self, error: HoldfastError) -> None:
        """Record that this driver stops, if the store allows it, so that no start waits for it."""
        stop = Stop(reason=type(error).__name__, message=error.summary)
        log_step(self.run_id, f"stopped: {stop.reason}")  # The message may hold values of a row.
        if not self.log.own_claim:
            return  # This driver has no claim that another start would wait for.
        with contextlib.suppress(HoldfastError):
            self.log.append(stop)
