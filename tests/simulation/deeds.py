"""Deeds: what others have done in a history, and whether the last start may fail because of it.

One table: a deed that is not `harmless` names the error that a user may get; one that is says why
the last start must succeed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deed:
    """Whether the last start must still succeed, and why."""

    is_harmless: bool
    reason: str
    # Whether it is harmful only where a post is in doubt.
    needs_doubt: bool = False
    # Whether it is harmful to a run that may replace only what was there when it began.
    changes_files: bool = False


def _harmless(reason: str) -> Deed:
    return Deed(is_harmless=True, reason=reason)


def _harmless_to_rows(reason: str) -> Deed:
    return Deed(is_harmless=True, reason=reason, changes_files=True)


def _harmful(reason: str) -> Deed:
    return Deed(is_harmless=False, reason=reason)


def _harmful_in_doubt(reason: str) -> Deed:
    return Deed(is_harmless=False, reason=reason, needs_doubt=True)


DEEDS: dict[str, Deed] = {
    # ---- to the run and its ledger ------------------------------------------------------------
    "abort": _harmful("the user aborted the run: RunAbortedError"),
    "sweep": _harmless("it deletes nothing before a receipt or an abort, and keeps what landed"),
    "look on": _harmless("it only reads"),
    "interrupt": _harmless("a later start resumes where the signal stopped one"),
    "damage": _harmful("a damaged object is a LedgerDamagedError"),
    "remove a ledger object": _harmless("a start that meets the gap fails; the next withdraws it"),
    "remove a staged file": _harmless("its rows are computed again"),
    "remove old orphans": _harmless("old staged files are copied before they are published"),
    "restore the ledger": _harmful("the table may name what the log lacks: CommitUnknownError"),
    "cut the ledger": _harmful("records are missing: LedgerDamagedError"),
    "copy the ledger": _harmful("two logs for one run: the loser raises"),
    "shut down": _harmless("a later start continues with what is recorded"),
    "hide the table": _harmless("it is back before the last start"),
    "store outage": _harmless("it is over before the last start"),
    "catalog outage": _harmless("it is over before the last start"),
    # ---- to a table of either format ----------------------------------------------------------
    "append": _harmless("a post that is refused is repeated"),
    "append before each post": _harmless("fewer appends than a start has attempts"),
    "drop": _harmful("there is no table: TableMissingError"),
    "make again": _harmful("it is another table: TableChangedError"),
    "replace": _harmful("what landed is gone: CommittedThenRemovedError"),
    "add a column": _harmless_to_rows("it is optional: rows without it read as NULL"),
    "drop a column": _harmful("what is staged may have values for it: TableChangedError"),
    "rename a column": _harmful("what is staged may be for its old name: TableChangedError"),
    "drop marks": _harmful_in_doubt("without its mark, a post stays in doubt: CommitUnknownError"),
    # ---- to an Iceberg table ------------------------------------------------------------------
    "roll back": _harmful("what landed is gone: CommittedThenRemovedError"),
    "rewind": _harmful("the catalog denies what the log says: TableChangedError"),
    "widen a column": _harmless("Iceberg reads old files as the wider type"),
    "hide the history": _harmless("the mark is found without it"),
    "expire": _harmless("what it removes is in no snapshot that a later look finds"),
    "rewrite manifests": _harmless("the same files are live"),
    "undo": _harmless_to_rows("what another writer did last, before the run has landed"),
    "unlink a file": _harmful("the table lists a file that is gone: StoreUnavailableError"),
    # ---- to a Lance dataset -------------------------------------------------------------------
    "restore": _harmful("what landed is gone: CommittedThenRemovedError"),
    "clean up": _harmful_in_doubt("a post may stay in doubt for ever: CommitUnknownError"),
    "cast a column": _harmful("Lance gives it another number: TableChangedError"),
    "compact": _harmless_to_rows("the mark survives it, and a post that is refused is repeated"),
    "delete": _harmless_to_rows("rows of other writers, which is a commit like any other"),
    "configure": _harmless("a setting changes no rows"),
    "index": _harmless("an index changes no rows"),
}
