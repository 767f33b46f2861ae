"""Events: what a start of a run does, told to the user's functions while it does it.

Each is called on a thread of its own, which reads what the driver has written to its log and
looks at the ledger now and then, as a display does. A function that raises is heard of in the log,
and one that hangs is left behind: neither can harm the job, or another function.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from holdfast.engine.watch import Observation, Watcher
from holdfast.errors import HoldfastError, SettingsError
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.run_log import RunLog
from holdfast.model.history import Progress, starts_of, unix_seconds
from holdfast.model.records import Intent, Plan, Record
from holdfast.model.report import Report
from holdfast.text import iso_moment

EventKind = Literal["started", "pass", "progress", "commit", "ended"]

# How often the log in memory is looked at, and the ledger; a slow look is followed by a long pause.
_TICK_S = 0.5
PROGRESS_EVERY_S = 10.0
_PAUSE_FOR_A_LOOK = 50.0
# How long the driver waits for its last events to be heard.
_END_S = 10.0

_log = logging.getLogger("holdfast")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What a start of a run has done, or how far it is.

    `kind` is "started" (it has claimed the run), "pass" (a job over the rows that are left begins),
    "progress" (every ten seconds or less often), "commit" (the table is about to be changed; again
    after a conflict), or "ended". Each start that claims the run ends, unless its process is
    killed; one that is refused before, or finds the run in the table, only ends.
    """

    kind: EventKind
    # In Unix seconds.
    at: float
    run_id: str
    table: str
    # The URI of the table's folder.
    location: str
    # What a scan reads: URIs, or a table's name; empty for a DataFrame.
    inputs: tuple[str, ...] = ()
    # The number of this start of the run, and of its current pass; 0 before there is one.
    start: int = 0
    passes: int = 0
    # How far the run was when the ledger was last looked at: at first, what earlier starts did.
    progress: Progress | None = None
    # Of an end: what the write returns, or what it raises.
    report: Report | None = None
    error: BaseException | None = None

    def to_json(self) -> dict[str, Any]:
        """Return all that is known, as values that JSON has; an error by its name and message."""
        found: dict[str, Any] = {
            "kind": self.kind,
            "at": iso_moment(self.at),
            "run_id": self.run_id,
            "table": self.table,
            "location": self.location,
            "inputs": list(self.inputs),
            "start": self.start,
            "passes": self.passes,
        }
        if self.progress is not None:
            found["progress"] = asdict(self.progress)
        if self.report is not None:
            found["report"] = asdict(self.report)
        if self.error is not None:
            found["error"] = {"name": type(self.error).__name__, "message": summary_of(self.error)}
        return found


Listener = Callable[[Event], object]


def summary_of(error: BaseException) -> str:
    """Return what happened, in one line."""
    return error.summary if isinstance(error, HoldfastError) else repr(error)


def listeners_of(on_event: Listener | Sequence[Listener] | None) -> tuple[Listener, ...]:
    """Return the functions that the user gave.

    Raises:
        SettingsError: It is no function.
    """
    if on_event is None:
        return ()
    found: Any = on_event if isinstance(on_event, list | tuple) else [on_event]
    if not all(map(callable, found)) or any(map(inspect.iscoroutinefunction, found)):
        cure = "give a function that takes an hf.Event, or a list of such functions"
        raise SettingsError(what=f"on_event={on_event!r}", cure=cure)
    return tuple(found)


@dataclass(slots=True)
class Told:
    """What becomes of a start, for its last event."""

    report: Report | None = None


@contextmanager
def heard(listeners: Sequence[Listener], ledger: Ledger, about: Event) -> Iterator[Told]:
    """Tell listeners what a start does in the block, and how it ends.

    Args:
        listeners: The user's functions; without any this does nothing.
        ledger: The driver's ledger. Only its log in memory is read; looks have their own.
        about: What is known of all events.
    """
    told = Told()
    error: BaseException | None = None
    threads = [_Thread(_telling(listener, ledger, about)) for listener in listeners]
    for thread in threads:
        thread.start()
    try:
        yield told
    except BaseException as raised:
        error = raised
        raise
    finally:
        _end(threads, told.report, error)


@contextmanager
def refusal_heard(listeners: Sequence[Listener], run_id: str, table: object) -> Iterator[None]:
    """Tell listeners if the block raises: a start that ends before its ledger and table are open.

    Args:
        listeners: The user's functions.
        run_id: The run.
        table: The table, as the user names it.
    """
    try:
        yield
    except BaseException as error:
        name = table if isinstance(table, str) else str(getattr(table, "name", ""))
        event = Event(kind="ended", at=time.time(), run_id=run_id, table=name, location="")
        threads = [_Thread(Telling(listener=listener, about=event)) for listener in listeners]
        for thread in threads:
            thread.start()
        _end(threads, None, error)
        raise


def _telling(listener: Listener, ledger: Ledger, about: Event) -> Telling:
    own = Ledger.open(ledger.run_id, ledger.store, ledger.storage, ledger.ports)
    look = Watcher(ledger=own).look
    return Telling(listener=listener, about=about, log=ledger.log, look=look)


def _end(threads: Sequence[_Thread], report: Report | None, error: BaseException | None) -> None:
    """Let the last events be heard, but go on without if that takes long."""
    until = time.monotonic() + _END_S
    for thread in threads:
        thread.end(report, error)
    for thread in threads:
        thread.leave(until - time.monotonic())


@dataclass(kw_only=True)
class Telling:
    """Makes events of what has happened, for one listener. Only one thread calls its methods.

    Args:
        listener: The user's function.
        about: What is known of all events.
        log: The driver's log, which grows while this reads it; None if there is none yet.
        look: Reads new records of the ledger.
        clock: This process's clock, in seconds.
        now: Unix seconds.
    """

    listener: Listener
    about: Event
    log: RunLog | None = None
    look: Callable[[], Observation] | None = None
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    _seen: int = field(default=0, init=False)
    _has_failed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Count from now."""
        self._next_look = self.clock() + PROGRESS_EVERY_S

    def begin(self) -> None:
        """Read what earlier starts have done, while the driver is about to claim the run."""
        self._look()

    def tick(self) -> None:
        """Tell what the driver has done since, and, if it is time, how far it is."""
        self._tell_records()
        if self.about.start and self.clock() >= self._next_look:
            began = self.clock()
            if self._look():
                self._tell(replace(self.about, kind="progress", at=self.now()))
            pause = _PAUSE_FOR_A_LOOK * (self.clock() - began)
            self._next_look = self.clock() + max(PROGRESS_EVERY_S, pause)

    def end(self, report: Report | None, error: BaseException | None) -> None:
        """Tell what is left, and how the start has ended."""
        self._tell_records()
        if self.about.start:
            self._look()
        self._tell(replace(self.about, kind="ended", at=self.now(), report=report, error=error))

    def _tell_records(self) -> None:
        if self.log is None or not self.log.own_claim:
            return
        records = self.log.records
        if not self.about.start:
            starts = starts_of(records)
            self.about = replace(self.about, start=len(starts))
            self._seen = starts[-1].first_claim
            first = records[self._seen - 1]
            self._tell(replace(self.about, kind="started", at=unix_seconds(first.written_at)))
        for record in records[self._seen :]:
            self._tell_record(record)
        self._seen = len(records)

    def _tell_record(self, record: Record) -> None:
        at = unix_seconds(record.written_at)
        if isinstance(record.body, Plan):
            self.about = replace(self.about, passes=self.about.passes + 1)
            self._tell(replace(self.about, kind="pass", at=at))
        elif isinstance(record.body, Intent):
            self._tell(replace(self.about, kind="commit", at=at))

    def _look(self) -> bool:
        """Read how far the run is; return whether the ledger said it."""
        if self.look is not None:
            with suppress(Exception):
                self.about = replace(self.about, progress=self.look().progress)
                return True
        return False

    def _tell(self, event: Event) -> None:
        try:
            self.listener(event)
        except BaseException:  # noqa: BLE001 - whatever it is, the job must not suffer.
            level = logging.DEBUG if self._has_failed else logging.WARNING
            text = "run %r: a function of on_event= has failed at %r"
            _log.log(level, text, event.run_id, event.kind, exc_info=True)
            self._has_failed = True


class _Thread(threading.Thread):
    def __init__(self, telling: Telling) -> None:
        super().__init__(name="holdfast-events", daemon=True)
        self._telling = telling
        self._is_over = threading.Event()
        self._end: tuple[Report | None, BaseException | None] = (None, None)

    def run(self) -> None:
        self._telling.begin()
        while not self._is_over.wait(_TICK_S):
            self._telling.tick()
        self._telling.end(*self._end)

    def end(self, report: Report | None, error: BaseException | None) -> None:
        self._end = (report, error)
        self._is_over.set()

    def leave(self, wait_s: float) -> None:
        self.join(max(0.0, wait_s))
        if self.is_alive():
            _log.warning(
                "run %r: a function of on_event= has not returned; the run goes on without it",
                self._telling.about.run_id,
            )
