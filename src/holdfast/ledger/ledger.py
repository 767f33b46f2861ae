"""One run's ledger: its log, its run.json, the store that holds them, and the driver's ports.

Steps are logged to the logger `holdfast` as ids, names and numbers, and nothing else. Holdfast
adds no handler to it: to read the steps, set its level to INFO. What a user must know is a warning
or an error instead.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass

from holdfast.errors import HoldfastError, LedgerDamagedError
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.ports import Ports
from holdfast.ledger.run_log import RunFile, RunLog, read_run_file
from holdfast.ledger.store import probe_store
from holdfast.model.records import Stop
from holdfast.storage.port import Storage
from holdfast.text import printable, without_passwords

_log = logging.getLogger("holdfast")


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
