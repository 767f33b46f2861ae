"""Abort and sweep: end a run for good, and delete what an ended run no longer needs.

A sweep works only after a receipt or an abort, and deletes only what this run's own records list.
It keeps data files listed by the intent that landed or by one in doubt, and keeps all of them if
the table cannot be proved to be the run's, or its store refuses to delete. Whatever the log says,
a file that the table itself reaches is kept: the ledger may be a copy, restored from a backup, or
have lost its last records.
The whole log is kept: it is small, and records what happened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain

from holdfast.engine.commit import landed_intent
from holdfast.engine.options import REMOVES
from holdfast.engine.resolve import (
    Sight,
    in_one_line,
    mark_in_view,
    own_table,
    record_landing,
    refuse_landed,
    resolve,
)
from holdfast.errors import (
    CommitUnknownError,
    RunAbortedError,
    RunCommittedError,
    RunUnfinishedError,
    SettingsError,
    StoreUnavailableError,
    TableOutOfSightError,
    UnsupportedTableError,
)
from holdfast.failpoints import failpoint
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.parts import read_list, read_objects, read_work
from holdfast.ledger.run_log import RunFile
from holdfast.ledger.store import ObjectNames, answers, refuse_links, walk
from holdfast.ledger.task_log import read_groups
from holdfast.model.identity import Identity
from holdfast.model.records import Abort, PartReference
from holdfast.model.report import counted
from holdfast.model.work import Merge, Rewrite, StagedGroup, sizes_of
from holdfast.sinks.base import MarkFound, Sink, TableView
from holdfast.text import warn_caller


# ---- Abort: end a run for good. The record fences every driver, like a claim
@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    """The result of an abort."""

    # How many posts the run has made, or was about to make.
    posts: int
    # The intents that may have landed or may still land, and why that is unknown. Their files are
    # kept.
    in_doubt: Sequence[int] = ()
    reason: str = ""


def abort(
    ledger: Ledger,
    open_sink: Callable[[Identity], Sink],
    reason: str,
    *,
    table_is_gone: bool = False,
) -> Aborted:
    """Abort the run, and make posts that are under way fail, as far as the table allows.

    Calling again is safe. Nothing is deleted here. If the table is reachable, the abort always
    completes: it warns if the table's history no longer shows the outcome of a post.

    Args:
        ledger: The run's ledger.
        open_sink: Opens the table that the run writes.
        reason: The reason, recorded in the run log.
        table_is_gone: The user states that the table or branch is gone permanently.

    Raises:
        RunCommittedError: The run has landed.
        TableOutOfSightError: A post is in doubt, and the table cannot be proved to be the run's.
        CommitError: The catalog gave no clear answer; call again.
    """
    log = ledger.log
    log.refresh()
    run_file = ledger.run_file()  # Before a receipt is believed: it may be another run's.
    if log.receipt is not None:
        raise RunCommittedError(run_id=ledger.run_id, snapshot_id=log.receipt.snapshot_id)
    # Look first: a run that landed and died before its receipt must not be aborted. Nor may a run
    # whose table cannot be judged: the abort record is final.
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
        warn_caller(
            f"run {ledger.run_id!r} was aborted with {_posts(sight)} without an answer "
            f"({sight.reason}): look for its rows before you write them again under a new run id"
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


# ---- Sweep: delete what a finished or aborted run no longer needs
@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep has deleted, and what it has kept."""

    data_files: int
    ledger_objects: int
    # Staged files that may be part of a snapshot: the outcome of their post is in doubt.
    in_doubt: int = 0
    # Staged files that are kept because the table cannot be proved to be the run's, or because its
    # store refuses to delete, and why.
    out_of_reach: int = 0
    reason: str = ""
    # Files that the table reaches, though this ledger does not know that they landed.
    live: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """What a sweep will delete and keep; planning deletes nothing."""

    # The run's run.json; None if no driver has written it.
    run_file: RunFile | None
    # Staged files that did not become part of the table, with their sizes, in order.
    data_files: Mapping[str, int]
    ledger_objects: ObjectNames
    # Staged files that have landed or may have; ledger objects that are still needed.
    kept_files: AbstractSet[str]
    kept_objects: AbstractSet[str]
    # The mark that was found in the table although the run was aborted.
    landed: MarkFound | None = None
    # How many of the kept files are in doubt, and why.
    in_doubt: int = 0
    reason: str = ""
    # Parts that list staged files; so do the records in the folder of task logs.
    listings: AbstractSet[str] = frozenset()
    tasks: str = ""
    # Why the table cannot be proved to be the run's: then staged files cannot be deleted now.
    out_of_reach: str = ""
    # How many of the kept files are in the table though not by this ledger; None if the table was
    # not asked, because its catalog settings are not known.
    live: int | None = None

    def lists_files(self, uri: str) -> bool:
        """Whether an object lists staged files: then it is kept as long as the files are."""
        is_record = uri.endswith(".json") and uri.startswith(f"{self.tasks}/")
        return is_record or uri in self.listings


def sweep(ledger: Ledger, open_sink: Callable[[Identity], Sink]) -> Swept:
    """Delete the run's chunks, keys, task logs, its own copy of the input, and files not landed.

    Calling again is safe.

    Args:
        ledger: The run's ledger.
        open_sink: Opens the table that the run writes; called only if it is needed.

    Raises:
        RunUnfinishedError: The run has not ended.
        CatalogUnavailableError: The catalog does not answer; call again.
        StoreUnavailableError: The store did not answer.
        StoreError: The ledger is damaged.
    """
    return carry_out(ledger, open_sink, plan_sweep(ledger, open_sink))


def plan_sweep(ledger: Ledger, open_sink: Callable[[Identity], Sink]) -> SweepPlan:
    """Find out what a sweep would delete; for an aborted run, look at the table.

    Args:
        ledger: The run's ledger.
        open_sink: Opens the table that the run writes; called only if it is needed.

    Raises:
        RunUnfinishedError: The run has not ended.
        CatalogUnavailableError: The catalog does not answer; call again.
        CommitUnknownError: The intent that landed is not in the log.
        StoreUnavailableError: The store did not answer.
        StoreError: The ledger is damaged.
    """
    log, storage = ledger.log, ledger.storage
    log.refresh()
    if log.receipt is None and not log.is_aborted:
        raise RunUnfinishedError(run_id=ledger.run_id)
    # Only now: before the run has ended, a driver may still write run.json.
    run_file, layout = ledger.run_file(), ledger.layout
    sight = _sight(ledger, run_file, open_sink)
    references = _to_keep(ledger, sight, run_file.identity.table if run_file else "")
    folders = layout.parts, layout.tasks, layout.inputs, layout.beats, layout.accounts
    names = ObjectNames(chain.from_iterable(walk(storage, folder) for folder in folders))
    refuse_links(layout.folder, names.folders)
    landed: set[str] = set()
    # Rows that failed permanently stay readable: this may be the only copy left.
    kept: set[str] = set()
    for reference in references:
        work = read_work(storage, layout, reference)
        if not _lists_all(ledger, run_file, sight):
            landed.update(sizes_of(work.adds))  # No snapshot refers to keys of rows to delete.
        kept |= {layout.quarantine(record.name) for record in work.quarantined}
        del work  # It is large, and so is what comes next.
    written = _written(ledger, names)
    kept_posts = _kept_posts(ledger, sight)
    landed = _with_merges(ledger, kept_posts, names, landed)
    for number in kept_posts & written.keys():
        landed.update(written[number])
    sizes = {
        path: size
        for group in _staged(ledger, names)
        for path, size in sizes_of([group]).items()
        if path not in landed
    }
    for objects in written.values():
        sizes.update((path, size) for path, size in objects.items() if path not in landed)
    live, out_of_reach = _live(ledger, run_file, open_sink, list(sizes))
    sizes = {path: size for path, size in sizes.items() if path not in (live or ())}
    kept = {uri for uri in kept | _kept_parts(ledger, references, kept_posts) if uri in names}
    names.discard(kept)
    merged = [record.merges for record in log.merged]
    renewed = {layout.part(part.name) for part in (*log.renewals, *log.rewritten, *merged)}
    return SweepPlan(
        run_file=run_file,
        data_files=dict(sorted(sizes.items())),
        ledger_objects=names,
        kept_files=landed.union(live or ()),
        kept_objects=kept,
        landed=sight.landed,
        in_doubt=len(landed) if sight.doubtful else 0,
        reason=sight.reason,
        listings=renewed.union(_lists(ledger).values()),
        tasks=layout.tasks,
        out_of_reach=out_of_reach,
        live=None if live is None else len(live),
    )


def _lists_all(ledger: Ledger, run_file: RunFile | None, sight: Sight) -> bool:
    """Whether a post has landed that lists all files that it added to the table.

    Values that were computed for rows that are there are in the files that tasks have staged, or in
    others that were put together from these.
    """
    if run_file is None or REMOVES.get(run_file.identity.mode) != "columns":
        return False
    return ledger.log.receipt is not None or sight.landed is not None


def _lists(ledger: Ledger) -> dict[int, str]:
    """Return the lists of what posts have written, by the numbers of their intents."""
    return {
        number: ledger.layout.part(intent.written.name)
        for number, intent in ledger.log.intents.items()
        if intent.written is not None
    }


def _kept_parts(
    ledger: Ledger, references: Iterable[PartReference], posts: AbstractSet[int]
) -> set[str]:
    """Return the parts that are still needed: those of posts that have landed or may have."""
    log, layout = ledger.log, ledger.layout
    kept = {layout.part(reference.name) for reference in references}
    kept |= {uri for number, uri in _lists(ledger).items() if number in posts}
    kept |= {
        layout.part(intent.merged.name)
        for number, intent in log.intents.items()
        if number in posts and intent.merged is not None
    }
    if log.pinned is not None:  # A later start compares its input with the pins.
        kept.add(layout.part(log.pinned.pins.name))
    return kept


def _staged(ledger: Ledger, names: Collection[str]) -> Iterator[StagedGroup]:
    """Yield all groups that the run's records list, among those that are there."""
    log, storage, layout = ledger.log, ledger.storage, ledger.layout
    # Planned copies. If their list is gone, an earlier sweep deleted them first.
    references = list(log.renewals)
    if log.receipt is None:
        # Files that an earlier sweep kept as in doubt: no task record lists them any more.
        doubted = {intent.staged.name: intent.staged for intent in log.intents.values()}
        references += doubted.values()
    yield from read_groups(storage, layout, names)
    for reference in references:
        if layout.part(reference.name) in names:
            yield from read_work(storage, layout, reference).groups
    for reference in log.rewritten:
        if layout.part(reference.name) in names:
            found = read_list(storage, layout, reference, Rewrite)
            yield from (rewrite.group for rewrite in found if rewrite.group is not None)
    for record in log.merged:
        if layout.part(record.merges.name) in names:
            yield from (merge.group for merge in read_list(storage, layout, record.merges, Merge))


def _with_merges(
    ledger: Ledger, posts: AbstractSet[int], parts: Collection[str], landed: set[str]
) -> set[str]:
    """Return the files that posts need: merged groups, and no group that each has merged."""
    layout, found, unneeded = ledger.layout, set(landed), set(landed)
    for number in posts:
        part = intent.merged if (intent := ledger.log.intents.get(number)) is not None else None
        merges: list[Merge] = []
        if part is not None and layout.part(part.name) in parts:
            merges = read_list(ledger.storage, layout, part, Merge)
        found.update(merge.group.path for merge in merges)
        unneeded &= {path for merge in merges for path in merge.sources}
    return found - unneeded if posts else found


def _written(ledger: Ledger, parts: Collection[str]) -> dict[int, dict[str, int]]:
    """Return what posts have written, with sizes, by the numbers of their intents.

    That of a post that has landed lists files of other writers, too.
    """
    layout = ledger.layout
    return {
        number: read_objects(ledger.storage, layout, intent.written)
        for number, intent in ledger.log.intents.items()
        if intent.written is not None and layout.part(intent.written.name) in parts
    }


def carry_out(ledger: Ledger, open_sink: Callable[[Identity], Sink], plan: SweepPlan) -> Swept:
    """Delete what was planned.

    Args:
        ledger: The run's ledger.
        open_sink: Opens the table that the run writes; called only if it is needed.
        plan: The result of `plan_sweep`.

    Raises:
        StoreUnavailableError: The store did not answer; call again.
        LedgerDamagedError: A file is outside the table; nothing was deleted.
    """
    layout, storage = ledger.layout, ledger.storage
    if plan.landed is not None:
        record_landing(ledger, plan.landed)
    failpoint("before-files-are-swept")
    out_of_reach = _delete_files(ledger, plan, open_sink)
    objects = plan.ledger_objects
    if out_of_reach:
        objects = ObjectNames(uri for uri in objects if not plan.lists_files(uri))
    # Only now: as long as the task logs exist, an interrupted sweep can be repeated.
    failpoint("after-files-are-swept")
    refuse_links(layout.folder, objects.folders)
    with answers(layout.folder):
        storage.delete(objects)
    failpoint("after-ledger-is-swept")
    return Swept(
        data_files=0 if out_of_reach else len(plan.data_files),
        ledger_objects=len(objects),
        in_doubt=plan.in_doubt,
        out_of_reach=len(plan.data_files) if out_of_reach else 0,
        reason=out_of_reach or plan.reason,
        live=plan.live or 0,
    )


def _live(
    ledger: Ledger,
    run_file: RunFile | None,
    open_sink: Callable[[Identity], Sink],
    paths: Sequence[str],
) -> tuple[AbstractSet[str] | None, str]:
    """Return the files that the table reaches; if it may not be the run's, return the reason.

    The files are None if the table's catalog settings are not known: a plan is shown anyway.

    Raises:
        LedgerDamagedError: A path is outside the table, or not one of the run's.
        CatalogUnavailableError: The catalog does not answer.
        StoreUnavailableError: The table's storage does not answer.
    """
    if run_file is None or not paths:
        return frozenset(), ""
    try:
        own = own_table(run_file, open_sink, is_gone=_is_gone(ledger))
    except UnsupportedTableError as error:  # Upgraded since, for example.
        return frozenset(), in_one_line(error)
    except SettingsError:
        return None, ""
    if isinstance(own, str):
        return frozenset(), own
    sink, view = own
    return sink.live_files(view, paths, ledger.layout.files_nonce), ""


def _delete_files(ledger: Ledger, plan: SweepPlan, open_sink: Callable[[Identity], Sink]) -> str:
    """Delete staged files; if that cannot be done, keep them and return the reason."""
    if plan.run_file is None or not plan.data_files or plan.out_of_reach:
        return plan.out_of_reach
    try:
        own = own_table(plan.run_file, open_sink, is_gone=_is_gone(ledger))
        if isinstance(own, str):
            return own
        sink, view = own
        paths = list(plan.data_files)
        if plan.live is None:
            live = sink.live_files(view, paths, ledger.layout.files_nonce)
            paths = [path for path in paths if path not in live]
        return _refusal(sink, view, paths)
    except UnsupportedTableError as error:  # Upgraded since, or files in a folder of others.
        return in_one_line(error)


def _refusal(sink: Sink, view: TableView, paths: Sequence[str]) -> str:
    """Delete staged files; if the store refuses that permanently, return the reason.

    Then it may clean up by itself, as S3 Tables does, and the rest of the sweep need not fail.

    Raises:
        StoreUnavailableError: The store did not answer; call again.
    """
    try:
        sink.delete_files(view, paths)
    except StoreUnavailableError as error:
        if error.retry_safe:
            raise
        return f"the table's store refuses to delete ({error.reason})"
    return ""


def _is_gone(ledger: Ledger) -> bool:
    """Whether the user has said that the table is gone."""
    return ledger.log.abort is not None and ledger.log.abort.table_is_gone


def _sight(
    ledger: Ledger, run_file: RunFile | None, open_sink: Callable[[Identity], Sink]
) -> Sight:
    """Look up the outcome of an aborted run's posts in the table."""
    if ledger.log.receipt is not None or run_file is None or not ledger.log.doubtful:
        return Sight(doubtful={})
    return resolve(ledger, run_file, open_sink, is_gone=_is_gone(ledger))


def _kept_posts(ledger: Ledger, sight: Sight) -> AbstractSet[int]:
    """Return the numbers of the intents that have landed, or may have."""
    if ledger.log.receipt is not None:
        return {ledger.log.receipt.intent_number}
    return {sight.landed.mark.intent_number} if sight.landed else set(sight.doubtful)


def _to_keep(ledger: Ledger, sight: Sight, table: str) -> Sequence[PartReference]:
    """Return the parts that list the files that have landed, or may have.

    Raises:
        CommitUnknownError: The intent that landed is not in the log.
    """
    log = ledger.log
    if log.receipt is not None:
        return [log.receipt.staged]
    if sight.landed is not None:
        landed = landed_intent(log, sight.landed.mark)
        if landed is None:  # Another copy of this ledger landed: its files are not known here.
            raise CommitUnknownError(
                table=table,
                run_id=ledger.run_id,
                reason=f"the table names intent {sight.landed.mark.intent_number}, which the "
                "ledger lacks",
            )
        return [landed.staged]
    # A table that is unreachable now can come back, with the post in it.
    doubtful = sight.doubtful.values()
    return list({intent.staged.name: intent.staged for intent in doubtful}.values())
