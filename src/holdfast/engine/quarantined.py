"""Quarantined: where the failed rows of a run stand."""

from __future__ import annotations

from holdfast.engine.prepare import Ledger
from holdfast.engine.status import accepted_work
from holdfast.model.work import Chunk


def quarantine_chunks(ledger: Ledger) -> dict[str, Chunk]:
    """Return the objects with the failed rows that count now, by URI.

    Raises:
        StoreError: The ledger is damaged or does not answer.
    """
    ledger.log.refresh()
    ledger.run_file()  # Whose records these are.
    return {
        ledger.layout.quarantine(record.name): record.quarantine
        for record in accepted_work(ledger).quarantined
        if record.quarantine is not None
    }
