"""Watching: a thread that looks at the run while its driver works.

It must never harm the job. It reads the ledger through its own log, writes nothing, holds no lock
that the driver waits for, and swallows every error; and a slow look is followed by a long pause.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from holdfast.engine.watch import Observation, Watcher
from holdfast.ledger.ledger import Ledger
from holdfast.progress.display import Display, display_for
from holdfast.progress.frame import Frame, frame_of

# Looks take at most one fiftieth of the time.
_PAUSE_FOR_A_LOOK = 50.0
# How long the driver waits for the last frame.
_END_S = 1.0

_log = logging.getLogger("holdfast")


@dataclass(kw_only=True)
class Watching:
    """Looks at the run and shows what it has seen. Only one thread calls these methods.

    Args:
        run_id: The run's id.
        table: Its table's name.
        look: Reads new records of the ledger.
        display: The display that shows frames.
        is_claimed: Whether the driver has claimed the run; before that there is nothing to see.
        tasks: Returns how many of Spark's current tasks have ended, and how many there are.
        clock: This process's clock, in seconds.
        now: Unix seconds.
    """

    run_id: str
    table: str
    look: Callable[[], Observation]
    display: Display
    is_claimed: Callable[[], bool]
    tasks: Callable[[], tuple[int, int] | None] = lambda: None
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    _frame: Frame | None = field(default=None, init=False)
    _has_failed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Record the start time."""
        self._began = self.clock()
        self._next_look = self._began + self.display.first_s

    def tick(self) -> float:
        """Look if it is time to, show what is known, and return how long to wait."""
        with self._harmless():
            if self.is_claimed() and self.clock() >= self._next_look:
                self._look()
            self.display.show(self._shown())
        until_look = self._next_look - self.clock()
        return min(self.display.tick_s, until_look) if until_look > 0 else self.display.tick_s

    def end(self) -> None:
        """Look once more, if there was a look before, and show how it ended."""
        with self._harmless():
            if self._frame is not None:
                self._look()
        with self._harmless():
            self.display.end(self._shown() if self._frame is not None else None)

    def _look(self) -> None:
        began = self.clock()
        try:
            self._frame = frame_of(self.look(), self.now(), self.table)
        finally:
            ended = self.clock()
            pause = max(self.display.every_s, _PAUSE_FOR_A_LOOK * (ended - began))
            self._next_look = ended + pause

    def _shown(self) -> Frame:
        """Return the last frame, updated with the time that has passed since."""
        frame = self._frame or Frame(run_id=self.run_id, table=self.table)
        tasks = None
        if frame.is_counting:
            with contextlib.suppress(Exception):  # The rest is shown without it.
                tasks = self.tasks()
        return replace(frame, elapsed_s=self.clock() - self._began, tasks=tasks)

    @contextlib.contextmanager
    def _harmless(self) -> Iterator[None]:
        try:
            yield
        except Exception:  # noqa: BLE001 - whatever it is, the job must not suffer from it.
            if not self._has_failed:
                _log.debug("run %r: its progress is not shown", self.run_id, exc_info=True)
            self._has_failed = True


@contextlib.contextmanager
def shown(
    ledger: Ledger,
    table: str,
    *,
    wanted: bool | None,
    tasks: Callable[[], tuple[int, int] | None] = lambda: None,
) -> Iterator[None]:
    """Show the run's progress while the driver works.

    Args:
        ledger: The driver's ledger. Only its last claim is read; looks have their own log.
        table: The table's name.
        wanted: The `progress` setting of the run.
        tasks: As for `Watching`.
    """
    thread = _begin(ledger, table, wanted=wanted, tasks=tasks)
    try:
        yield
    finally:
        if thread is not None:
            thread.end()


def _begin(
    ledger: Ledger,
    table: str,
    *,
    wanted: bool | None,
    tasks: Callable[[], tuple[int, int] | None],
) -> _Thread | None:
    try:
        display = display_for(ledger.run_id, wanted=wanted)
        if display is None:
            return None
        watcher = Watcher(
            ledger=Ledger.open(ledger.run_id, ledger.store, ledger.storage, ledger.ports)
        )
        watching = Watching(
            run_id=ledger.run_id,
            table=table,
            look=watcher.look,
            display=display,
            is_claimed=lambda: ledger.log.own_claim > 0,
            tasks=tasks,
        )
        thread = _Thread(watching)
        thread.start()
    except Exception:  # noqa: BLE001 - a job continues without its display.
        _log.debug("run %r: its progress is not shown", ledger.run_id, exc_info=True)
        return None
    return thread


class _Thread(threading.Thread):
    def __init__(self, watching: Watching) -> None:
        super().__init__(name="holdfast-progress", daemon=True)
        self._watching = watching
        self._is_over = threading.Event()

    def run(self) -> None:
        with contextlib.suppress(BaseException):  # Otherwise it would be printed.
            pause = self._watching.display.tick_s
            while not self._is_over.wait(pause):
                pause = self._watching.tick()
            self._watching.end()

    def end(self) -> None:
        """Let the thread show the last frame, but continue without it if that takes long."""
        self._is_over.set()
        try:
            self.join(_END_S)
        finally:
            with contextlib.suppress(Exception):
                self._watching.display.let_go()
