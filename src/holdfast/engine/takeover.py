"""Heartbeats and takeover: wait for a live driver, take over from a dead one.

While a driver holds a run, one of its threads rewrites a small heartbeat object. Another start of
the same run looks for signs of life before it claims: the driver's records and its heartbeat. It
waits as long as they keep coming, and resumes the work when they end.

Correctness does not depend on any of this: the last claim owns the run. The wait keeps an
accidental start, or a scheduler's retry, from fencing a healthy driver and redoing its work.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timezone

from holdfast.engine.options import Takeover
from holdfast.errors import RunBusyError
from holdfast.ledger.ledger import Ledger, Ports
from holdfast.ledger.run_log import RunLog
from holdfast.ledger.store import answers
from holdfast.model.records import Abort, Claim, Ready, Receipt, Stop
from holdfast.text import printable, warn_caller, without_passwords

# The heartbeat interval of a driver without checkpoints.
_EVERY_S = 30.0
# With shorter limits one slow request would look like a dead driver; with longer ones a start
# would wait all day for a dead one.
_BEAT_S_MIN, _BEAT_S_MAX = 5.0, 300.0
_QUIET_S_MIN = 30.0
_SILENT_S_MIN = 60.0
# A waiting start polls often at first: most waits are short.
_POLL_S = 1.0
_LATER_POLL_S = 5.0
_LATER_AFTER = 120
_LINE_EVERY_S = 60.0
# Half a year.
_POLLS_MAX = 3_000_000

_log = logging.getLogger("holdfast")


class Heartbeat:
    """One driver's heartbeat, from its claim to its end, or until this object is dropped."""

    def __init__(
        self,
        ledger: Ledger,
        checkpoint_every_s: float | None,
        for_s: float = float("inf"),
    ) -> None:
        """Start beating if the driver has claimed the run; the first beat is one interval away.

        Args:
            ledger: The driver's ledger.
            checkpoint_every_s: The checkpoint interval, which sets the heartbeat's.
            for_s: How long to beat at most.
        """
        log, ports = ledger.log, ledger.ports
        self._driver = log, threading.get_ident()
        self._drivers = ports.drivers
        self._end: Callable[[], None] | None = None
        if log.own_claim and log.receipt is None:
            every_s = beat_every_s(checkpoint_every_s)
            self._drivers.append(self._driver)
            until = ports.now() + for_s
            self._end = ports.beside("heartbeat", every_s, _beat(ledger, every_s, until))

    def stop(self) -> None:
        """Stop the heartbeat."""
        end, self._end = self._end, None
        if end is not None:
            end()
            self._drivers.remove(self._driver)

    def __del__(self) -> None:
        """Stop: a run that was prepared and then dropped no longer has a driver."""
        with contextlib.suppress(Exception):
            self.stop()


@contextlib.contextmanager
def at_work(ledger: Ledger) -> Iterator[None]:
    """Show other threads of this process that a claim is being made here."""
    driver, drivers = (ledger.log, threading.get_ident()), ledger.ports.drivers
    drivers.append(driver)
    try:
        yield
    finally:
        drivers.remove(driver)


def _beat(ledger: Ledger, every_s: float, until: float) -> Callable[[], float | None]:
    """Return a function that writes one beat and returns the seconds until the next one."""
    log, storage, ports = ledger.log, ledger.storage, ledger.ports
    is_said = False

    def beat() -> float | None:
        nonlocal is_said
        if ports.now() >= until:
            return None
        claim = log.own_claim
        at = datetime.fromtimestamp(ports.now(), tz=timezone.utc).isoformat()
        # Only the object's write time counts; the content is for people.
        facts = {"host": ports.host, "process_id": ports.process_id, "claim": claim, "at": at}
        try:
            storage.put(log.layout.beat(claim), json.dumps(facts).encode())
        except Exception as error:  # noqa: BLE001 - a user's credentials may raise anything.
            if not is_said:
                is_said = True
                _log.warning(
                    "run %s: the heartbeat could not be written, so another start may take this "
                    "driver for dead (%s)",
                    printable(log.run_id),
                    printable(without_passwords(str(error))),
                    extra={"holdfast_run": log.run_id},
                )
            return _BEAT_S_MIN  # Soon again: a single lost beat must not look like an end.
        return every_s

    return beat


def wait_for_other_driver(ledger: Ledger, takeover: Takeover) -> None:
    """Wait while the run's last driver gives signs of life, unless `takeover` says otherwise.

    Raises:
        RunBusyError: The driver seems alive, and `takeover` is "never".
        StoreUnavailableError: The store did not answer.
    """
    log, ports = ledger.log, ledger.ports
    if takeover == "now" or _has_ended(log, ports):
        return
    other = _OtherDriver(ledger)
    next_line_s = waited_s = 0.0
    for poll in range(_POLLS_MAX):
        left_s = other.is_dead_in_s()
        if left_s <= 0:
            return
        if takeover == "never":
            raise other.busy()
        if waited_s >= next_line_s:
            next_line_s += _LINE_EVERY_S
            line = other.line(left_s)
            if not poll:
                warn_caller(line)
            else:
                _log.warning("%s", line, extra={"holdfast_run": log.run_id})
        pause_s = min(_POLL_S if poll < _LATER_AFTER else _LATER_POLL_S, left_s)
        ports.sleep(pause_s)
        waited_s += pause_s
        log.refresh()
        if _has_ended(log, ports):
            return
        other.look(pause_s)
    raise other.busy()


class _OtherDriver:
    """The driver of the last claim, as far as the store shows it.

    Clocks are not compared with each other: the store's own clock gives the age of the last sign
    when the wait begins, and from then on a sign is an object that changed between two looks.
    """

    def __init__(self, ledger: Ledger) -> None:
        log, ports = ledger.log, ledger.ports
        self._log = log
        self._storage = ledger.storage
        self._ports = ports
        self._records = len(log.records)
        # First the time, then the signs: this process may be suspended in between.
        now = self._store_now()
        self._beat = self._written(log.layout.beat(self._number))
        self._tasks = self._newest_of_tasks()
        recorded = self._newest(log.layout.log)
        # Seconds since work was last recorded, and since the last sign of life.
        self._progress_s = _age(now, recorded, self._tasks)
        self._quiet_s = _age(now, recorded, self._beat or self._tasks)
        written = datetime.fromisoformat(log.records[-1].written_at).timestamp()
        self._quiet_s = max(0.0, min(self._quiet_s, ports.now() - written))

    @property
    def _number(self) -> int:
        return max(self._log.claims)

    @property
    def _claim(self) -> Claim:
        return self._log.claims[self._number]

    def look(self, passed_s: float) -> None:
        """Look for a new sign of life, `passed_s` seconds after the last look.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        records, beat = len(self._log.records), self._written(self._log.layout.beat(self._number))
        has_recorded, has_beaten = records != self._records, beat not in (None, self._beat)
        self._records, self._beat = records, beat
        self._quiet_s = 0.0 if has_recorded or has_beaten else self._quiet_s + passed_s
        self._progress_s = 0.0 if has_recorded else self._progress_s + passed_s

    def is_dead_in_s(self) -> float:
        """Return after how many seconds without a sign it counts as dead; 0 if it does now.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        left_s = quiet_after_s(self._claim.checkpoint_every_s) - self._quiet_s
        if left_s <= 0 and self._beat is None and self._look_at_tasks():
            # A driver of an earlier version has no heartbeat, and while its job runs only its
            # tasks write.
            self._quiet_s = 0.0
            return quiet_after_s(self._claim.checkpoint_every_s)
        return max(0.0, left_s)

    def busy(self) -> RunBusyError:
        """Return the error that names this driver."""
        claim = self._claim
        return RunBusyError(
            run_id=self._log.run_id,
            host=claim.host,
            process_id=claim.process_id,
            age_s=self._quiet_s,
        )

    def line(self, left_s: float) -> str:
        """Return a message that says which driver the start waits for, and until when.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        claim = self._claim
        self._look_at_tasks()
        who = f"process {claim.process_id} on {printable(claim.host)}"
        state = f"gave a sign of life {self._quiet_s:.0f} s ago"
        if self._beat and self._progress_s >= silent_after_s(claim.checkpoint_every_s):
            state += (
                f", but has recorded no progress for {self._progress_s:.0f} s and may be hanging"
            )
        return (
            f"run {self._log.run_id!r}: {who} {state}; waiting for it to end, or for "
            f'{left_s:.0f} s without a sign of life (takeover="now" does not wait)'
        )

    def _look_at_tasks(self) -> bool:
        """Whether its tasks have written since the last look; costly, as it lists many objects."""
        before, self._tasks = self._tasks, self._newest_of_tasks()
        if self._tasks in (None, before):
            return False
        self._progress_s = 0.0
        return True

    def _newest_of_tasks(self) -> float | None:
        tasks = self._log.task_folders.get(self._number)
        return None if tasks is None else self._newest(self._log.layout.job_tasks(tasks))

    def _newest(self, folder: str) -> float | None:
        with answers(folder):
            return self._storage.newest(folder)

    def _written(self, uri: str) -> float | None:
        with answers(uri):
            return self._storage.last_written([uri])[0]

    def _store_now(self) -> float | None:
        """Return the time by the store's clock, taken from an object written just now."""
        uri = f"{self._log.layout.beats}/now-{self._ports.new_nonce()}"
        with answers(uri):
            self._storage.put(uri, b"")
            now = self._written(uri)
            self._storage.delete([uri])
        return now


def beat_every_s(checkpoint_every_s: float | None) -> float:
    """Return a driver's heartbeat interval."""
    return min(_BEAT_S_MAX, max(_BEAT_S_MIN, checkpoint_every_s or _EVERY_S))


def quiet_after_s(checkpoint_every_s: float | None) -> float:
    """Return how long a live driver may go without a sign of life."""
    return max(_QUIET_S_MIN, 2 * beat_every_s(checkpoint_every_s))


def silent_after_s(checkpoint_every_s: float | None) -> float:
    """Return after how long without progress the user is warned; a minute is common."""
    return max(_SILENT_S_MIN, quiet_after_s(checkpoint_every_s))


def _age(now: float | None, *written: float | None) -> float:
    """Return the age of the newest write; infinity if there was none."""
    moments = [moment for moment in written if moment is not None]
    return max(0.0, now - max(moments)) if moments and now is not None else float("inf")


def _has_ended(log: RunLog, ports: Ports) -> bool:
    """Whether the driver of the last claim is known to have ended, or there is none."""
    if not log.claims:
        return True
    number = max(log.claims)
    claim = log.claims[number]
    if any(isinstance(record.body, Receipt | Abort) for record in log.records):
        return True
    if any(isinstance(record.body, Stop | Ready) for record in log.records[number:]):
        return True
    if not claim.machine or claim.machine != ports.machine:
        return False
    if claim.process_id != ports.process_id:
        return not ports.is_running(claim.process_id)
    # The claim is this process's: another thread may be at work. This thread is not: a notebook
    # has started the run again.
    here, folder = threading.get_ident(), log.layout.folder
    return not any(
        driver.layout.folder == folder and thread != here for driver, thread in tuple(ports.drivers)
    )
