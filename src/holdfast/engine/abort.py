"""Abort: give a run up, for good. The record fences every driver, like a claim."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.engine.prepare import Ledger
from holdfast.engine.resolve import Sight, mark_in_view, record_landing, refuse_landed, resolve
from holdfast.errors import RunAbortedError, RunCommittedError, TableOutOfSightError
from holdfast.failpoints import failpoint
from holdfast.model.identity import Identity
from holdfast.model.records import Abort
from holdfast.model.report import counted
from holdfast.sinks.base import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    """A run was given up."""

    # How many posts the run has made, or was about to make.
    posts: int
    # The intents of which it cannot be told whether they have landed or still can, and why.
    # Their files are kept.
    in_doubt: Sequence[int] = ()
    reason: str = ""


def abort(
    ledger: Ledger,
    open_sink: Callable[[Identity], Sink],
    reason: str,
    *,
    table_is_gone: bool = False,
) -> Aborted:
    """Give the run up, and make posts that are under way fail, as far as the table lets us.

    Calling again is safe. Nothing is deleted here. With the table in view it always ends: where
    the table's history no longer tells what became of a post, it says so, with a warning.

    Args:
        ledger: The run's ledger.
        open_sink: Opens the table that the run is said to write.
        reason: Why, for whoever reads the log.
        table_is_gone: The user's own word that table or branch are gone for good.

    Raises:
        RunCommittedError: The run has landed.
        TableOutOfSightError: A post is in doubt, and the table is not provably the run's.
        CommitError: The catalog gave no clear answer; call again.
    """
    log = ledger.log
    log.refresh()
    run_file = ledger.run_file()  # Before a receipt is believed: it may be another run's.
    if log.receipt is not None:
        raise RunCommittedError(run_id=ledger.run_id, snapshot_id=log.receipt.snapshot_id)
    # First: a run that landed without living to say so is not given up, it is found. And what
    # cannot be judged is not given up either: the record is final.
    if run_file is not None and log.doubtful:
        sight = resolve(ledger, run_file, open_sink, may_post=False, is_gone=table_is_gone)
        if sight.landed is not None:
            if log.is_aborted:
                record_landing(ledger, sight.landed)
            raise RunCommittedError(run_id=ledger.run_id, snapshot_id=sight.landed.mark.snapshot_id)
        _refuse_out_of_sight(ledger, sight, table_is_gone=table_is_gone)
    elif run_file is not None and (found := mark_in_view(ledger, run_file, open_sink)) is not None:
        raise RunCommittedError(run_id=ledger.run_id, snapshot_id=found.mark.snapshot_id)
    if not log.is_aborted:
        with contextlib.suppress(RunAbortedError):  # Another abort was faster.
            log.claim(Abort(reason=reason, table_is_gone=table_is_gone))
    sight = refuse_landed(ledger, open_sink, is_gone=table_is_gone)
    # A driver may have posted since the first look.
    _refuse_out_of_sight(ledger, sight, table_is_gone=table_is_gone)
    if sight.doubtful:
        warnings.warn(
            f"run {ledger.run_id!r} was given up with {_posts(sight)} without an answer "
            f"({sight.reason}): look for its rows before they are written again under a new run id",
            stacklevel=3,
        )
    failpoint("after-abort-is-resolved")
    return Aborted(posts=len(log.intents), in_doubt=tuple(sight.doubtful), reason=sight.reason)


def _refuse_out_of_sight(ledger: Ledger, sight: Sight, *, table_is_gone: bool) -> None:
    if sight.out_of_sight and not table_is_gone:
        run_file = ledger.run_file()
        raise TableOutOfSightError(
            table=run_file.identity.table if run_file else "",
            run_id=ledger.run_id,
            posts=_posts(sight),
            reason=sight.reason,
        )


def _posts(sight: Sight) -> str:
    return counted(len(sight.doubtful), "post")
