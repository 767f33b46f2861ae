"""Resolve: find out for good whether an intent of the run has landed, or ever can.

A driver may be paused between its intent and its post. Before anything is deleted, that post
must be shown to have landed, or be made to fail: the table's sequence number, once it has reached
the intent's, refuses it for ever.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.engine.prepare import Ledger
from holdfast.errors import CommitUnknownError, RunCommittedError, TableMissingError
from holdfast.failpoints import failpoint
from holdfast.ledger.run_file import RunFile, read_run_file
from holdfast.model.identity import Identity
from holdfast.sinks.base import MarkFound, Sink

_ATTEMPTS_MAX = 20
_PAUSE_S = 0.2


def resolve(ledger: Ledger, run_file: RunFile, sink: Sink) -> MarkFound | None:
    """Return the mark of the intent that landed, or None when none has and none can.

    Raises:
        CommitUnknownError: The catalog gave no clear answer.
    """
    intents = ledger.log.intents
    if not intents:
        return None
    highest = max(intent.sequence_number for intent in intents.values())
    for attempt in range(_ATTEMPTS_MAX):
        if attempt:
            ledger.ports.sleep(_PAUSE_S)
        try:
            view = sink.load()
        except TableMissingError:
            return None
        if view.uuid != run_file.identity.table_uuid:
            return None  # Every post asserts the table's UUID: none can land on another table.
        found = sink.find_mark(view, ledger.run_id, run_file.nonce, intents)
        if found is not None:
            return found
        if view.settled_below > highest:
            return None
        failpoint("before-resolving-post")
        sink.post_empty(view)
        failpoint("after-resolving-post")
    raise CommitUnknownError(
        table=sink.name,
        run_id=ledger.run_id,
        reason=f"no clear answer in {_ATTEMPTS_MAX} looks at the table",
    )


def refuse_landed(ledger: Ledger, open_sink: Callable[[Identity], Sink]) -> None:
    """Stop if a run that was given up has landed all the same.

    Called after the record that gives it up: before, a driver may still come, make the run and
    land. From there on none can.

    Raises:
        RunCommittedError: It has.
        CommitUnknownError: The catalog gave no clear answer.
    """
    receipt = ledger.log.receipt
    if receipt is not None:
        # It came before the record that was to give the run up. The table may be gone since.
        raise RunCommittedError(run_id=ledger.run_id, snapshot_id=receipt.snapshot_id)
    run_file = read_run_file(ledger.storage, ledger.layout)
    if run_file is None:
        return
    landed = resolve(ledger, run_file, open_sink(run_file.identity))
    if landed is not None:
        raise RunCommittedError(run_id=ledger.run_id, snapshot_id=landed.mark.snapshot_id)
