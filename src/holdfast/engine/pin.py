"""Pin: settle which files a scan reads, once for the whole run."""

from __future__ import annotations

from holdfast.engine.prepare import Ledger
from holdfast.errors import RunMismatchError
from holdfast.failpoints import failpoint
from holdfast.ledger.pin_parts import read_pins, write_pins
from holdfast.model.pins import Pins
from holdfast.model.records import Pinned
from holdfast.sources.base import PinnedScan


def pin(ledger: Ledger, scan: PinnedScan, *, compare: bool, found: Pins | None = None) -> Pins:
    """Return the files that the run reads: those of its first start, whatever came since.

    Args:
        ledger: The run's ledger; claimed, if nothing is pinned yet.
        scan: What this start names.
        compare: Whether it must name the same files.
        found: What the scan has found already; None to look now.

    Raises:
        RunMismatchError: It names other files: their rows would be left out without a word.
        InputChangedError: A pinned file was changed or deleted.
        SettingsError: There are no files, or they do not fit together.
        StoreError: The ledger is damaged or does not answer.
    """
    known = ledger.log.pinned
    if known is not None:
        pins = read_pins(ledger.storage, ledger.layout, known.pins)
        if compare and (difference := scan.compare(pins)):
            raise RunMismatchError(run_id=ledger.run_id, differences=difference)
        return pins
    pins = scan.pin() if found is None else found
    name = f"pins-{ledger.ports.new_nonce()}.parquet"
    failpoint("before-pins")
    reference = write_pins(ledger.storage, ledger.layout, name, pins)
    failpoint("after-pins")
    ledger.log.append(Pinned(pins=reference, rows=pins.whole.rows))
    return pins
