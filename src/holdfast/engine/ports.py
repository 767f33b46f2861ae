"""What the engine needs from Spark, as protocols; and what a signal does to a job.

The first signal asks the tasks, through the run log, to end in good order, and waits for them, so
that calls in flight complete and paid work is kept. A second signal, or too long a wait, is
handled as if Holdfast were not there.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Protocol

from holdfast.errors import HoldfastError
from holdfast.ledger.row_files import KeyFiles
from holdfast.model.coverage import InputSums, KeyExamples
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import ItemPlan, TaskPlan


class Jobs(Protocol):
    """Runs plans over numbered work items."""

    @property
    def slots(self) -> int:
        """How many tasks run at a time."""

    def run(self, plan: TaskPlan, items: int) -> list[TaskReport]:
        """Run a plan over `items` items; return one report per task.

        Raises:
            JobError: The job could not be run at all.
        """

    def items(self, plan: ItemPlan, items: Sequence[str]) -> list[TaskReport]:
        """Run a plan over work items that are texts; return one report per task.

        Raises:
            JobError: The job could not be run at all.
        """


class Submitter(Protocol):
    """Reads the input, and runs plans over it, one task per place."""

    @property
    def slots(self) -> int:
        """How many tasks run at a time.

        Raises:
            JobError: Spark does not report its parallelism.
        """

    def measure(self, finished: KeyFiles, *, whole_rows: bool = False) -> InputSums:
        """Read the input once and return the sums of the unfinished rows.

        Args:
            finished: The keys of rows to leave out.
            whole_rows: Also sum whole rows; otherwise only the key columns are read.

        Raises:
            JobError: The input could not be read.
        """

    def look(self, *, whole_rows: bool = False) -> tuple[InputSums, int]:
        """Return the sums of the whole input, and how many keys of a sample appear in two rows.

        Args:
            whole_rows: Also sum whole rows; otherwise only the key columns are read.

        Raises:
            JobError: The input could not be read.
        """

    def submit(self, plan: TaskPlan, finished: KeyFiles) -> list[TaskReport]:
        """Run the plan over the unfinished rows; return one report per task.

        Raises:
            JobError: The job could not be run at all.
        """

    def items(self, plan: ItemPlan, items: Sequence[str]) -> list[TaskReport]:
        """Run a plan over work items that are texts; return one report per task.

        Raises:
            JobError: The job could not be run at all.
        """

    def duplicates(self, *, beside: bool = False) -> KeyExamples:
        """Return the keys that appear in more than one input row.

        Args:
            beside: Whether another thread calls this while a plan runs.

        Raises:
            JobError: The input could not be read.
        """

    def cancel_beside(self) -> None:
        """Cancel what another thread has asked for and is still running."""

    def gone(self, finished: KeyFiles) -> KeyExamples:
        """Return the finished keys that the input no longer has."""

    def overlaps(self, finished: KeyFiles) -> Mapping[tuple[str, ...], int]:
        """Return which records share keys, and how many; a single name means a key twice in it."""


# ---- Interrupts: Ctrl-C and SIGTERM while a job runs
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Tasks that make calls check every second, allow calls five more, and then write their records.
# Others check every three seconds, between two batches: the output of a longer batch is lost.
_WAIT_S = 8.5

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def interruptible(ask_to_stop: Callable[[str], object]) -> Iterator[None]:
    """Run a job so that a signal lets its tasks end in good order first.

    Afterwards the signal goes to the handler that was installed before. Signals reach the main
    thread only: in any other thread nothing is changed.

    Args:
        ask_to_stop: Asks the tasks to stop; takes the signal's name.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    job = _Interruptible(ask_to_stop)
    before = {number: signal.signal(number, job.handle) for number in _SIGNALS}
    job.handle_as_before = lambda: _restore(before)
    try:
        yield
    finally:
        _restore(before)
        job.end()


class _Interruptible:
    def __init__(self, ask_to_stop: Callable[[str], object]) -> None:
        self._ask_to_stop = ask_to_stop
        self._received: signal.Signals | None = None
        self._timer: threading.Timer | None = None
        self.handle_as_before: Callable[[], None] = lambda: None

    def handle(self, number: int, _frame: FrameType | None) -> None:
        is_second, self._received = self._received is not None, signal.Signals(number)
        name = self._received.name
        if not is_second:
            with contextlib.suppress(HoldfastError):
                self._ask_to_stop(name)
                _log.warning("%s: waiting for tasks to end; send it again to stop at once", name)
                main = threading.main_thread().ident or 0
                self._timer = threading.Timer(_WAIT_S, signal.pthread_kill, (main, number))
                self._timer.daemon = True
                self._timer.start()
                return
        self.handle_as_before()
        self.end()

    def end(self) -> None:
        """Pass the signal on, if there was one."""
        if self._timer is not None:
            self._timer.cancel()
        received, self._received = self._received, None
        if received is not None:
            signal.raise_signal(received)


def _restore(before: dict[signal.Signals, Any]) -> None:
    for number, handler in before.items():
        # None: the handler was not set from Python, and cannot be restored from here.
        signal.signal(number, handler if handler is not None else signal.SIG_DFL)
