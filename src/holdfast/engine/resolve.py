"""Resolve: settle whether an intent has landed; renew staged files that have waited long.

A driver may be paused between its intent and its post. Before anything is deleted, that post
must be shown to have landed, or be made to fail: once the table's sequence number has reached
the intent's, the table refuses the post for ever. Only the run's own table can show this. A table
that is missing, has another UUID or lacks the branch proves nothing: the catalog may be wrong.

An orphan removal reads which files the table refers to and, hours later, deletes the others that
are some days old. It would delete a file published in between, and its rows with it. A fresh copy
is too young to be deleted. Where the store makes no copies, the files are published as they are,
and a warning says so: the run could never be finished otherwise.

The copies to make are listed in the log before the first is made, so a sweep finds them wherever
this stops. They count from the next seal on; until then the old names do.

Many small groups are merged into a few large ones before they are published. The ledger keeps the
small ones: an intent names the part that says which of them entered the table as part of another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
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
from holdfast.ledger.ledger import Ledger, log_step
from holdfast.ledger.parts import read_list, write_list, write_work
from holdfast.ledger.run_log import RunFile
from holdfast.model.identity import Identity
from holdfast.model.records import Intent, Merged, PartReference, Refused, Renewal
from holdfast.model.report import counted
from holdfast.model.work import Merge, StagedGroup, Work
from holdfast.sinks.base import MarkFound, Sink, TableView
from holdfast.text import warn_caller

# ---- Resolve: settle whether an intent of the run has landed, or ever can

# The branch that every table has once something was written to it.
_MAIN = "main"
# The table is reachable, but does not show what happened to a post: its history is gone, it was
# rewound, or no post to it can settle the question.
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
    """What the table shows of a run's posts; with no doubt and no mark, none landed or can."""

    landed: MarkFound | None = None
    # The intents whose outcome is unknown, and why.
    doubtful: Mapping[int, Intent]
    reason: str = ""
    # Whether the reason is that the table cannot be proved to be the run's.
    out_of_sight: bool = False


def own_table(
    run_file: RunFile, open_sink: Callable[[Identity], Sink], *, is_gone: bool = False
) -> tuple[Sink, TableView] | str:
    """Load the run's table; if it cannot be proved to be the run's, return the reason.

    Args:
        run_file: The run's run.json.
        open_sink: Opens the table named there.
        is_gone: Whether the user says that the table is gone: then its catalog may be, too.

    Raises:
        UnsupportedTableError: The table is reachable, but cannot be used.
        SettingsError: The catalog's settings are not known.
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
            f"{sink.name} is a different table (its UUID is {view.uuid}, the run's is "
            f"{run_file.identity.table_uuid})"
        )
    return sink, view


def mark_in_view(
    ledger: Ledger, run_file: RunFile, open_sink: Callable[[Identity], Sink]
) -> MarkFound | None:
    """Return the mark of a run whose log has no post in doubt, if the table is reachable.

    A ledger that was restored or has lost its last records does not know that the run landed.
    Nothing else depends on the answer, so an unreachable table is not an error.
    """
    with contextlib.suppress(HoldfastError):
        own = own_table(run_file, open_sink)
        if not isinstance(own, str):
            sink, view = own
            return sink.find_mark(view, ledger.run_id, run_file.nonce, {})
    return None


def in_one_line(error: HoldfastError) -> str:
    """Return what happened, without the error's advice, which applies to another call."""
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
    """Find out the outcome of the run's posts, and make those still under way fail.

    Args:
        ledger: The run's ledger, freshly read.
        run_file: The run's run.json.
        open_sink: Opens the table named there.
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
                return Sight(doubtful=doubtful, reason="one of its posts may still be under way")
            failpoint("before-resolving-post")
            sink.post_empty(view)
            failpoint("after-resolving-post")
        except _SAYS_NOTHING as error:
            return Sight(doubtful=doubtful, reason=in_one_line(error))
    reason = f"the table gave no clear answer in {_ATTEMPTS_MAX} attempts"
    return Sight(doubtful=doubtful, reason=reason)


def _shown(ledger: Ledger, run_file: RunFile, sink: Sink, view: TableView) -> Sight | None:
    """Return what one view of the table shows; None if a post may still be under way."""
    doubtful, branch = ledger.log.doubtful, run_file.identity.branch
    found = sink.find_mark(view, ledger.run_id, run_file.nonce, doubtful)
    if found is not None:
        return Sight(landed=found, doubtful={})
    if view.settled_below > max(intent.sequence_number for intent in doubtful.values()):
        return Sight(doubtful={})
    if view.parent_snapshot_id is None and branch != _MAIN:
        # A post asserts the branch's head, so none can land now; but the branch can come back.
        reason = f"{sink.name} has no branch {branch!r}"
        return Sight(doubtful=doubtful, reason=reason, out_of_sight=True)
    return None


def refuse_landed(
    ledger: Ledger, open_sink: Callable[[Identity], Sink], *, is_gone: bool = False
) -> Sight:
    """Stop if an aborted run has landed all the same, and record that it has.

    Called after the abort record is written: until then a driver may still create the run and
    land it. After it none can.

    Args:
        ledger: The run's ledger.
        open_sink: Opens the table that the run writes.
        is_gone: Whether the user says that the table is gone.

    Returns:
        What the table shows otherwise; posts may still be in doubt.

    Raises:
        RunCommittedError: The run has landed.
        CommitError: The catalog does not answer.
    """
    receipt = ledger.log.receipt
    if receipt is not None:
        # The receipt came before the abort record. The table may be gone since.
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
    for number in sorted(ledger.log.doubtful.keys() - sight.doubtful.keys()):
        # Once others have cleaned versions up, a delayed post may look as if it had landed.
        ledger.log.append_after_abort(Refused(intent_number=number))
    return sight


def record_landing(ledger: Ledger, found: MarkFound) -> None:
    """Record that an aborted run has landed, if the log has the intent that was posted.

    Raises:
        StoreError: The ledger is damaged or does not answer.
    """
    intent = landed_intent(ledger.log, found.mark)
    if intent is not None:
        ledger.log.append_after_abort(receipt_of(found.mark, intent))


def refuse_doubt(ledger: Ledger, open_sink: Callable[[Identity], Sink]) -> None:
    """Keep a start of an aborted run from reporting "aborted" while a post is in doubt.

    A user who sees "aborted" starts over under another run id, so no row may be in the table.

    Raises:
        RunCommittedError: The run has landed.
        CommitUnknownError: The run may have landed, or may still land.
    """
    is_gone = ledger.log.abort is not None and ledger.log.abort.table_is_gone
    sight = refuse_landed(ledger, open_sink, is_gone=is_gone)
    if sight.doubtful and not is_gone:
        run_file = ledger.run_file()
        raise CommitUnknownError(
            table=run_file.identity.table if run_file else "",
            run_id=ledger.run_id,
            reason=f"it was aborted with a post in doubt: {sight.reason}",
        )


# ---- Renew: copy staged files that have waited long to new names, right before they are published

# Orphan removals delete nothing younger than a day, and by default nothing younger than three.
_OLD_AFTER_S = 48 * 3600.0


def renew(ledger: Ledger, commit: Commit, book: Workbook) -> None:
    """Copy the old ones among the staged files, and seal the work under the new names.

    A young run makes no request. Nothing is deleted here: an intent with the old names may be
    about to land. If the store refuses to copy, that is a warning, and the old names stay. Calling
    again is safe.

    Args:
        ledger: The run's ledger.
        commit: The run's commit step.
        book: The work to publish; it is complete.

    Raises:
        StagedFileMissingError: A staged file is gone.
        TableChangedError: The staged files no longer fit the table.
        RunFencedError: Another driver has claimed the run.
        StoreUnavailableError: The table's storage does not answer.
        StoreError: The ledger does not.
    """
    before = ledger.ports.now() - _OLD_AFTER_S
    if ledger.log.began_at >= before or not book.work.groups:
        return
    view = commit.load()
    if commit.look(view) is not None:
        return  # A post of an earlier start landed in the meantime; the commit will find it too.
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
    count = sum(len(group.files) for group in old)
    log_step(ledger.run_id, f"copies {counted(count, 'file')} that had waited long")
    try:
        copies = commit.sink.copy_groups(view, old, targets)
    except StoreUnavailableError as error:
        if error.retry_safe:
            raise
        book.tally.not_copied_files += count
        warn_caller(
            f"run {ledger.run_id!r}: {counted(count, 'staged file')} that had waited for more than "
            f"48 hours could not be copied ({error.reason}), and will be committed under the old "
            "names. A removal of orphan files that is running now may know these, and delete the "
            "files later: check that none is running"
        )
        return
    failpoint("after-copies")
    book.rename(
        book.work.with_groups({group.path: copy for group, copy in zip(old, copies, strict=True)})
    )
    book.tally.copied_files += count
    book.seal()


def _only(work: Work, new: Mapping[str, StagedGroup]) -> Work:
    """Return the records with only their new groups, which is what a sweep needs."""
    found = [
        replace(
            record, groups=tuple(new[group.path] for group in record.groups if group.path in new)
        )
        for record in work.records
    ]
    return Work(records=tuple(record for record in found if record.groups))


# ---- Merge: a few large groups enter the table in place of many small ones

# Fewer are published as they are: they cost readers little, and a small job no request.
_MERGED_FROM = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Adds:
    """The groups that enter the table, and the part that lists those that stand for others."""

    groups: Sequence[StagedGroup]
    merged: PartReference | None = None


def merge(ledger: Ledger, commit: Commit, book: Workbook) -> Adds:
    """Return what enters the table for the staged work; write merged groups if there are many.

    The work itself keeps the small groups: each belongs to a record that may be withdrawn alone.
    What an earlier start has merged is used again as far as it still stands for staged groups.
    Nothing is deleted here. Calling again is safe.

    Args:
        ledger: The run's ledger.
        commit: The run's commit step.
        book: The work to publish; it is complete.

    Raises:
        TableChangedError: Staged files no longer fit the table.
        StagedFileMissingError: A staged group is gone.
        RunFencedError: Another driver has claimed the run.
        StoreError: The ledger or the table's storage does not answer.
    """
    groups = book.work.adds
    if len(groups) < _MERGED_FROM:
        return Adds(groups=groups)
    view = commit.load()
    if commit.look(view) is not None:
        return Adds(groups=groups)  # The commit will find it too.
    commit.sink.check(view, book.schemas, groups)
    staged = {group.path: group for group in groups}
    merges, reference = _usable_merges(ledger, commit, view, staged)
    left = _left_of(groups, merges)
    tag = ledger.ports.new_nonce()
    paths = commit.sink.merge_paths(view, left, ledger.layout.file_names(tag))
    if len(left) >= _MERGED_FROM and paths:
        # Listed before they are written: a sweep must find them after a kill.
        planned = [Merge(group=_unwritten(path), sources=()) for path in paths]
        _record(ledger, f"merging-{tag}.parquet", planned, is_written=False)
        failpoint("before-merge")
        merges += commit.sink.merge(view, left, paths)
        failpoint("after-merge")
        reference = None
    if merges and reference is None:
        reference = _record(ledger, f"merged-{tag}.parquet", merges, is_written=True)
        count = sum(len(merge.sources) for merge in merges)
        log_step(ledger.run_id, f"merged {count:,} groups of files into {len(merges):,}")
    whole = [merge.whole(staged) for merge in merges]
    return Adds(groups=[*whole, *_left_of(groups, merges)], merged=reference)


def _usable_merges(
    ledger: Ledger, commit: Commit, view: TableView, staged: Mapping[str, StagedGroup]
) -> tuple[list[Merge], PartReference | None]:
    """Return what earlier starts have merged, and the part that lists just that, if one does."""
    written = [record.merges for record in ledger.log.merged if record.is_written]
    if not written:
        return [], None
    listed = read_list(ledger.storage, ledger.layout, written[-1], Merge)
    known = [merge for merge in listed if staged.keys() >= set(merge.sources)]
    gone = set(commit.sink.missing_files(view, [merge.group for merge in known]))
    there = [merge for merge in known if merge.group.path not in gone]
    before = ledger.ports.now() - _OLD_AFTER_S
    old = commit.sink.old_groups(view, [merge.group for merge in there], before)
    paths = {group.path for group in old}
    usable = [merge for merge in there if merge.group.path not in paths]
    return usable, written[-1] if len(usable) == len(listed) else None


def _left_of(groups: Sequence[StagedGroup], merges: Sequence[Merge]) -> list[StagedGroup]:
    taken = {path for merge in merges for path in merge.sources}
    return [group for group in groups if group.path not in taken]


def _unwritten(path: str) -> StagedGroup:
    return StagedGroup(path=path, size_bytes=0, files=(), detail={})


def _record(
    ledger: Ledger, name: str, merges: Sequence[Merge], *, is_written: bool
) -> PartReference:
    part = write_list(ledger.storage, ledger.layout, name, merges)
    ledger.log.append(Merged(merges=part, is_written=is_written))
    return part
