"""Abort: give a run up, for good. The record fences every driver, like a claim."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable

from holdfast.engine.prepare import Ledger
from holdfast.engine.resolve import refuse_landed
from holdfast.errors import RunAbortedError, RunCommittedError, TableMissingError
from holdfast.failpoints import failpoint
from holdfast.ledger.run_file import RunFile, read_run_file
from holdfast.model.identity import Identity
from holdfast.model.records import Abort
from holdfast.sinks.base import Sink, TableView


def abort(ledger: Ledger, open_sink: Callable[[Identity], Sink], reason: str) -> None:
    """Give the run up, and make sure that no post of it can land any more.

    Calling again is safe. Nothing is deleted here. Of a table that is gone nobody can tell whether
    the run had landed there: then there is a warning.

    Args:
        ledger: The run's ledger.
        open_sink: Opens the table that the run is said to write.
        reason: Why, for whoever reads the log.

    Raises:
        RunCommittedError: The run has landed.
        CommitUnknownError: The catalog gave no clear answer; call again.
    """
    log = ledger.log
    log.refresh()
    if log.receipt is not None:
        raise RunCommittedError(run_id=ledger.run_id, snapshot_id=log.receipt.snapshot_id)
    # First: a run that landed without living to say so is not given up, it is found.
    run_file = read_run_file(ledger.storage, ledger.layout)
    if run_file is not None:
        _refuse_known_landing(ledger, run_file, open_sink(run_file.identity))
    if not log.is_aborted:
        with contextlib.suppress(RunAbortedError):  # Somebody was faster, with the same wish.
            log.claim(Abort(reason=reason))
    refuse_landed(ledger, open_sink)
    if run_file is not None and log.intents:
        sink = open_sink(run_file.identity)
        if _table_of(run_file, sink) is None:
            warnings.warn(
                f"run {ledger.run_id} was about to publish to {sink.name}, which is gone or was "
                "made again: nobody can tell whether it had landed there. If the old table comes "
                "back, look for the rows before they are written again.",
                stacklevel=3,
            )
    failpoint("after-abort-is-resolved")


def _refuse_known_landing(ledger: Ledger, run_file: RunFile, sink: Sink) -> None:
    view = _table_of(run_file, sink) if ledger.log.intents else None
    if view is None:
        return
    found = sink.find_mark(view, ledger.run_id, run_file.nonce, ledger.log.intents)
    if found is not None:
        raise RunCommittedError(run_id=ledger.run_id, snapshot_id=found.mark.snapshot_id)


def _table_of(run_file: RunFile, sink: Sink) -> TableView | None:
    """Return the run's table, None when it is gone or another stands in its place."""
    try:
        view = sink.load()
    except TableMissingError:
        return None
    return view if view.uuid == run_file.identity.table_uuid else None
