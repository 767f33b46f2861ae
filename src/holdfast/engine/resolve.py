"""Resolve: find out for good whether an intent has landed; renew files that waited long.

A driver may be paused between its intent and its post. Before anything is deleted, that post
must be shown to have landed, or be made to fail: the table's sequence number, once it has reached
the intent's, refuses it for ever. Only the run's own table can show it. One that is missing, has
another UUID or lacks the branch proves nothing: the catalog may be the wrong one.

Somebody's orphan removal reads which files the table refers to, and deletes the others hours
later, if they are some days old. A file that is published between the two would be taken, and its
rows with it. A copy is young: nobody takes it.

Which copies are to be made stands in the log before the first of them does, so a sweep finds them
wherever this ends. They count from the next seal on; until then the old names do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from holdfast.engine.commit import Commit, landed_intent, receipt_of
from holdfast.engine.workbook import Workbook
from holdfast.errors import (
    CatalogUnavailableError,
    CommitRefusedError,
    CommitUnknownError,
    HoldfastError,
    RunCommittedError,
    RunMismatchError,
    SettingsError,
    StoreUnavailableError,
    TableChangedError,
    TableMissingError,
    UnsupportedTableError,
)
from holdfast.failpoints import failpoint
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.parts import write_work
from holdfast.ledger.run_log import RunFile
from holdfast.model.records import Identity, Intent, Renewal
from holdfast.model.work import StagedGroup, Work
from holdfast.sinks.base import MarkFound, Sink, TableView

# ---- Resolve: find out for good whether an intent of the run has landed, or ever can

# The branch that a table always has, once something was written to it.
_MAIN = "main"
# The table is in view, but does not tell what became of a post: its history is gone, it was
# rewound, or nothing can be posted to it that would settle the question.
_SAYS_NOTHING = (
    CommitUnknownError,
    CommitRefusedError,
    RunMismatchError,
    TableChangedError,
    UnsupportedTableError,
)
_ATTEMPTS_MAX = 20
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What the table shows of a run's posts. Without doubt and mark: none landed, none can."""

    landed: MarkFound | None = None
    # The intents of which it cannot be told, and why.
    doubtful: Mapping[int, Intent]
    reason: str = ""
    # Whether the reason is that the table is not provably the run's.
    out_of_sight: bool = False


def own_table(
    run_file: RunFile, open_sink: Callable[[Identity], Sink], *, is_gone: bool = False
) -> tuple[Sink, TableView] | str:
    """Look at the run's table; where it is not provably the run's, say why.

    Args:
        run_file: What the run is.
        open_sink: Opens the table that it is said to write.
        is_gone: Whether the user says that the table is gone: then its catalog may be, too.

    Raises:
        UnsupportedTableError: The table is in view, but cannot be used.
        SettingsError: It is not known how the catalog is reached.
        CatalogUnavailableError: The catalog does not answer.
        StoreUnavailableError: The dataset's store does not answer.
    """
    try:
        sink = open_sink(run_file.identity)
        view = sink.load()
    except TableMissingError as error:
        return f"{error.table}: {error.what}"
    except UnsupportedTableError:
        raise
    except (SettingsError, CatalogUnavailableError, StoreUnavailableError) as error:
        if is_gone:
            return in_one_line(error)
        raise
    if view.uuid != run_file.identity.table_uuid:
        return (
            f"{sink.name} is another table (its UUID is {view.uuid}, the run's is "
            f"{run_file.identity.table_uuid})"
        )
    return sink, view


def mark_in_view(
    ledger: Ledger, run_file: RunFile, open_sink: Callable[[Identity], Sink]
) -> MarkFound | None:
    """Return what the table shows of a run whose log has no post in doubt, if it is in view.

    A ledger that was restored or has lost its end does not know that the run has landed. Nothing
    depends on the answer otherwise, so a table that cannot be reached is no error.
    """
    with contextlib.suppress(HoldfastError):
        own = own_table(run_file, open_sink)
        if not isinstance(own, str):
            sink, view = own
            return sink.find_mark(view, ledger.run_id, run_file.nonce, {})
    return None


def in_one_line(error: HoldfastError) -> str:
    """Return what happened, without the advice: that is for another call."""
    if isinstance(error, CommitUnknownError):
        return error.reason
    return str(error).partition("\n")[0]


def resolve(
    ledger: Ledger,
    run_file: RunFile,
    open_sink: Callable[[Identity], Sink],
    *,
    may_post: bool = True,
    is_gone: bool = False,
) -> Sight:
    """Find out what became of the run's posts, and make those fail that are still under way.

    Args:
        ledger: The run's ledger, freshly read.
        run_file: What the run is.
        open_sink: Opens the table that it is said to write.
        may_post: Whether empty snapshots may be posted, which make an older post fail.
        is_gone: Whether the user says that the table is gone.

    Raises:
        CatalogUnavailableError: The catalog does not answer.
    """
    doubtful = ledger.log.doubtful
    if not doubtful:
        return Sight(doubtful={})
    for attempt in range(_ATTEMPTS_MAX):
        if attempt:
            ledger.ports.sleep(_PAUSE_S)
        try:
            own = own_table(run_file, open_sink, is_gone=is_gone)
            if isinstance(own, str):
                return Sight(doubtful=doubtful, reason=own, out_of_sight=True)
            sink, view = own
            if (sight := _shown(ledger, run_file, sink, view)) is not None:
                return sight
            if not may_post:
                return Sight(doubtful=doubtful, reason="a post of it may still be under way")
            failpoint("before-resolving-post")
            sink.post_empty(view)
            failpoint("after-resolving-post")
        except _SAYS_NOTHING as error:
            return Sight(doubtful=doubtful, reason=in_one_line(error))
    reason = f"no clear answer in {_ATTEMPTS_MAX} looks at the table"
    return Sight(doubtful=doubtful, reason=reason)


def _shown(ledger: Ledger, run_file: RunFile, sink: Sink, view: TableView) -> Sight | None:
    """Return what one look at the table shows; None if a post may still be under way."""
    doubtful, branch = ledger.log.doubtful, run_file.identity.branch
    found = sink.find_mark(view, ledger.run_id, run_file.nonce, doubtful)
    if found is not None:
        return Sight(landed=found, doubtful={})
    if view.settled_below > max(intent.sequence_number for intent in doubtful.values()):
        return Sight(doubtful={})
    if view.parent_snapshot_id is None and branch != _MAIN:
        # A post asserts the branch's head, so none lands now; but a branch can come back.
        reason = f"{sink.name} has no branch {branch!r}"
        return Sight(doubtful=doubtful, reason=reason, out_of_sight=True)
    return None


def refuse_landed(
    ledger: Ledger, open_sink: Callable[[Identity], Sink], *, is_gone: bool = False
) -> Sight:
    """Stop if a run that was given up has landed all the same, and record that it has.

    Called after the record that gives it up: before, a driver may still come, make the run and
    land. From there on none can.

    Args:
        ledger: The run's ledger.
        open_sink: Opens the table that the run is said to write.
        is_gone: Whether the user says that the table is gone.

    Returns:
        What the table shows otherwise: there may be doubt.

    Raises:
        RunCommittedError: It has.
        CommitError: The catalog does not answer.
    """
    receipt = ledger.log.receipt
    if receipt is not None:
        # It came before the record that was to give the run up. The table may be gone since.
        raise RunCommittedError(run_id=ledger.run_id, snapshot_id=receipt.snapshot_id)
    run_file = ledger.run_file()
    if run_file is None:
        return Sight(doubtful={})
    if not ledger.log.doubtful:
        if (found := mark_in_view(ledger, run_file, open_sink)) is not None:
            raise RunCommittedError(run_id=ledger.run_id, snapshot_id=found.mark.snapshot_id)
        return Sight(doubtful={})
    sight = resolve(ledger, run_file, open_sink, is_gone=is_gone)
    if sight.landed is not None:
        record_landing(ledger, sight.landed)
        raise RunCommittedError(run_id=ledger.run_id, snapshot_id=sight.landed.mark.snapshot_id)
    return sight


def record_landing(ledger: Ledger, found: MarkFound) -> None:
    """Record that a run has landed though it was given up, if the log lists what was posted.

    Raises:
        StoreError: The ledger is damaged or does not answer.
    """
    intent = landed_intent(ledger.log, found.mark)
    if intent is not None:
        ledger.log.append_late_receipt(receipt_of(found.mark, intent))


def refuse_doubt(ledger: Ledger, open_sink: Callable[[Identity], Sink]) -> None:
    """Stop a start of a run that was given up from saying "aborted" while a post is in doubt.

    A user who reads "aborted" starts over under another id: then no row may be in the table.

    Raises:
        RunCommittedError: It has landed.
        CommitUnknownError: It may have landed, or may still land.
    """
    is_gone = ledger.log.abort is not None and ledger.log.abort.table_is_gone
    sight = refuse_landed(ledger, open_sink, is_gone=is_gone)
    if sight.doubtful and not is_gone:
        run_file = ledger.run_file()
        raise CommitUnknownError(
            table=run_file.identity.table if run_file else "",
            run_id=ledger.run_id,
            reason=f"it was given up with a post in doubt: {sight.reason}",
        )


# ---- Renew: copy staged files that have waited for long to new names, right before they are
# published

# Orphan removals take nothing younger than a day, and by default nothing younger than three.
_OLD_AFTER_S = 48 * 3600.0


def renew(ledger: Ledger, commit: Commit, book: Workbook) -> None:
    """Copy what is old among the staged files, and seal the work under its new names.

    A young run makes no request. Nothing is deleted here: an intent with the old names may be
    about to land. Calling again is safe.

    Args:
        ledger: The run's ledger.
        commit: The run's commit step.
        book: What is to be published; it is complete.

    Raises:
        StagedFileMissingError: A staged file is gone.
        TableChangedError: The table no longer fits what is staged.
        RunFencedError: Another driver has claimed the run.
        StoreError: The ledger or the table's storage does not answer.
    """
    before = ledger.ports.now() - _OLD_AFTER_S
    if ledger.log.began_at >= before or not book.work.groups:
        return
    view = commit.load()
    if commit.look(view) is not None:
        return  # A post of an earlier start has arrived meanwhile; who publishes finds it too.
    commit.sink.check(view, book.schemas, [])
    old = commit.sink.old_groups(view, book.work.groups, before)
    if not old:
        return
    tag = ledger.ports.new_nonce()
    targets = [group.renamed(tag) for group in old]
    new = {group.path: target for group, target in zip(old, targets, strict=True)}
    part = write_work(
        ledger.storage, ledger.layout, f"renewal-{tag}.parquet", _only(book.work, new)
    )
    ledger.log.append(Renewal(work=part))
    failpoint("before-copies")
    copies = commit.sink.copy_groups(view, old, targets)
    failpoint("after-copies")
    book.rename(
        book.work.with_groups({group.path: copy for group, copy in zip(old, copies, strict=True)})
    )
    book.tally.copied_files += sum(len(group.files) for group in copies)
    book.seal()


def _only(work: Work, new: Mapping[str, StagedGroup]) -> Work:
    """Return the records with nothing but their new groups: what a sweep has to know."""
    found = [
        replace(one, groups=tuple(new[group.path] for group in one.groups if group.path in new))
        for one in work.records
    ]
    return Work(records=tuple(one for one in found if one.groups))
