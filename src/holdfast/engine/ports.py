"""What the engine is given from outside, so that a simulation can drive it."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from holdfast.ledger.row_files import KeyFiles
from holdfast.ledger.run_log import RunLog
from holdfast.ledger.task_log import TaskPorts
from holdfast.model.coverage import InputSums, KeyExamples
from holdfast.worker.replay import ReplayPlan
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import TaskPlan

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
        return True  # It is there, and not ours.
    return True


def _machine() -> str:
    """Name this boot of this machine and its process space; empty where the system does not tell.

    Host names do not do: containers share them, and a process id means nothing outside its own.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


class Beside(Protocol):
    """Lets something happen beside the driver while that works."""

    def __call__(
        self, name: str, after_s: float, act: Callable[[], float | None], /
    ) -> Callable[[], None]:
        """Call `act` after so many seconds, and again after as many as it returns; None ends it.

        Returns what ends it. A call that is under way is not waited for.
        """


def in_a_thread(
    name: str, after_s: float, act: Callable[[], float | None], /
) -> Callable[[], None]:
    """Call `act` beside the driver, in a thread that ends with the process."""
    is_over = threading.Event()

    def run() -> None:
        wait_s: float | None = after_s
        try:
            while wait_s is not None and not is_over.wait(wait_s):
                wait_s = act()
        except Exception:  # noqa: BLE001 - whatever it is, the job must not suffer from it.
            _log.warning("%s ended", name, exc_info=True)

    threading.Thread(target=run, name=f"holdfast-{name}", daemon=True).start()
    return is_over.set


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Time, chance, and who we are."""

    now: Callable[[], float] = field(default=time.time)
    sleep: Callable[[float], None] = field(default=time.sleep)
    new_nonce: Callable[[], str] = field(default=_new_nonce)
    # Between 0 and 1: spreads the retries of rival writers; nothing secret hangs on it.
    jitter: Callable[[], float] = field(default=random.random)  # noqa: S311
    host: str = field(default_factory=socket.gethostname)
    process_id: int = field(default_factory=os.getpid)
    machine: str = field(default_factory=_machine)
    # What the tasks of a job are given in their turn.
    tasks: TaskPorts = field(default_factory=TaskPorts)
    # Whether a process of this machine runs.
    is_running: Callable[[int], bool] = field(default=_is_running)
    beside: Beside = field(default=in_a_thread)
    # For what happens beside the driver and must not happen at the same time.
    new_lock: Callable[[], AbstractContextManager[object]] = field(default=threading.RLock)
    # The logs of the drivers that have a heartbeat in this process, each with its thread.
    drivers: list[tuple[RunLog, int]] = field(default_factory=lambda: _DRIVERS)


class Jobs(Protocol):
    """Runs plans over work items that are known by number."""

    @property
    def slots(self) -> int:
        """How many tasks run at a time."""

    def run(self, plan: TaskPlan, items: int) -> list[TaskReport]:
        """Run a plan over so many items; return one report per task.

        Raises:
            JobError: The job could not be run at all.
        """

    def replay(self, plan: ReplayPlan, items: Sequence[str]) -> list[TaskReport]:
        """Run the replay of work items; return one report per task.

        Raises:
            JobError: The job could not be run at all.
        """


class Submitter(Protocol):
    """Reads the input, and runs plans over it, one task per place."""

    @property
    def slots(self) -> int:
        """How many tasks run at a time.

        Raises:
            JobError: Nobody tells.
        """

    def measure(self, finished: KeyFiles, *, whole_rows: bool = False) -> InputSums:
        """Read the input once and return the sums of the rows that are not finished.

        Args:
            finished: The keys of rows to leave out.
            whole_rows: Sum whole rows as well; else only the key columns are read.

        Raises:
            JobError: The input could not be read.
        """

    def look(self, *, whole_rows: bool = False) -> tuple[InputSums, int]:
        """Return the sums of the whole input, and how many keys of a sample appear in two rows.

        Args:
            whole_rows: Sum whole rows as well; else only the key columns are read.

        Raises:
            JobError: The input could not be read.
        """

    def submit(self, plan: TaskPlan, finished: KeyFiles) -> list[TaskReport]:
        """Run the plan over the rows that are not finished; return one report per task.

        Raises:
            JobError: The job could not be run at all.
        """

    def replay(self, plan: ReplayPlan, items: Sequence[str]) -> list[TaskReport]:
        """Run the replay of work items; return one report per task.

        Raises:
            JobError: The job could not be run at all.
        """

    def duplicates(self, *, beside: bool = False) -> KeyExamples:
        """Return the keys that appear in more than one input row.

        Args:
            beside: Whether it is asked by another thread, while a plan runs.

        Raises:
            JobError: The input could not be read.
        """

    def cancel_beside(self) -> None:
        """End what was asked by another thread and is still running."""

    def gone(self, finished: KeyFiles) -> KeyExamples:
        """Return the finished keys that the input no longer has."""

    def overlaps(self, finished: KeyFiles) -> Mapping[tuple[str, ...], int]:
        """Return which records share keys, and how many; a single name has a key twice."""
