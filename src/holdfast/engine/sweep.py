"""Sweep: delete what a finished or aborted run no longer needs.

Works only after a receipt or an abort, and deletes only what this run's own records list. Data
files stay if the intent that landed lists them, and the whole log stays: it is small, and says
what happened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from holdfast.engine.prepare import Ledger
from holdfast.engine.resolve import resolve
from holdfast.errors import RunUnfinishedError
from holdfast.failpoints import failpoint
from holdfast.ledger.answers import answers
from holdfast.ledger.parts import read_work
from holdfast.ledger.run_file import RunFile, read_run_file
from holdfast.ledger.task_log import read_task_records
from holdfast.model.identity import Identity
from holdfast.model.records import PartReference
from holdfast.model.staged import sizes_of
from holdfast.sinks.base import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep has deleted."""

    data_files: int
    ledger_objects: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """What a sweep deletes, and what it leaves. Nothing is deleted by planning."""

    # What the run is; None if no driver got as far as to say so.
    identity: Identity | None
    # Staged files that did not become part of the table, with their sizes, in order.
    data_files: Mapping[str, int]
    ledger_objects: Sequence[str]
    # Staged files that have landed, or of which nobody can tell; objects that are still of use.
    kept_files: AbstractSet[str]
    kept_objects: AbstractSet[str]


def sweep(ledger: Ledger, open_sink: Callable[[Identity], Sink]) -> Swept:
    """Delete the run's chunks, keys, task logs, its own copy of the input, and files not landed.

    Calling again is safe.

    Args:
        ledger: The run's ledger.
        open_sink: Opens the table that the run is said to write; called only if it is needed.

    Raises:
        RunUnfinishedError: The run may still go on.
        CommitUnknownError: The catalog gave no clear answer; call again.
        StoreUnavailableError: The store did not answer.
        StoreError: The ledger is damaged.
    """
    return carry_out(ledger, open_sink, plan_sweep(ledger, open_sink))


def plan_sweep(ledger: Ledger, open_sink: Callable[[Identity], Sink]) -> SweepPlan:
    """Find out what a sweep is to delete. Of a run that was given up, it looks at the table.

    Args:
        ledger: The run's ledger.
        open_sink: Opens the table that the run is said to write; called only if it is needed.

    Raises:
        RunUnfinishedError: The run may still go on.
        CommitUnknownError: The catalog gave no clear answer; call again.
        StoreUnavailableError: The store did not answer.
        StoreError: The ledger is damaged.
    """
    log, layout, storage = ledger.log, ledger.layout, ledger.storage
    log.refresh()
    if log.receipt is None and not log.is_aborted:
        raise RunUnfinishedError(run_id=ledger.run_id)
    # Only now: before the run has ended, a driver may still come and say what it is.
    run_file = read_run_file(storage, layout)
    references = _to_keep(ledger, run_file, open_sink)
    with answers(layout.folder):
        tasks, parts = storage.list(layout.tasks), storage.list(layout.parts)
        inputs = storage.list(layout.inputs)
    staged = [
        group for record in read_task_records(storage, layout, tasks) for group in record.groups
    ]
    # Copies that were planned. Where their list is gone, a sweep has deleted them before it.
    staged += [
        group
        for reference in log.renewals
        if layout.part(reference.name) in parts
        for group in read_work(storage, layout, reference).groups
    ]
    works = [read_work(storage, layout, reference) for reference in references]
    landed = {path for work in works for path in sizes_of(work.groups)}
    sizes = {path: size for path, size in sizes_of(staged).items() if path not in landed}
    # What has failed for good stays readable: it may be all that is left of a row.
    kept = {layout.quarantine(record.name) for work in works for record in work.quarantined}
    kept |= {layout.part(reference.name) for reference in references}
    if log.pinned is not None:  # A later start is compared with it.
        kept.add(layout.part(log.pinned.pins.name))
    return SweepPlan(
        identity=run_file.identity if run_file else None,
        data_files=dict(sorted(sizes.items())),
        ledger_objects=[uri for uri in (*parts, *tasks, *inputs) if uri not in kept],
        kept_files=landed,
        kept_objects=kept.intersection((*parts, *tasks)),
    )


def carry_out(ledger: Ledger, open_sink: Callable[[Identity], Sink], plan: SweepPlan) -> Swept:
    """Delete what was planned.

    Args:
        ledger: The run's ledger.
        open_sink: Opens the table that the run is said to write; called only if it is needed.
        plan: What `plan_sweep` has found.

    Raises:
        StoreUnavailableError: The store did not answer; call again.
        LedgerDamagedError: A file is outside the table; nothing was deleted.
    """
    layout, storage = ledger.layout, ledger.storage
    failpoint("before-files-are-swept")
    if plan.identity is not None and plan.data_files:
        sink = open_sink(plan.identity)
        sink.delete_files(sink.load(), list(plan.data_files))
    # Only now: as long as the task logs stand, a sweep that was cut short can be repeated.
    failpoint("after-files-are-swept")
    with answers(layout.folder):
        storage.delete(plan.ledger_objects)
    failpoint("after-ledger-is-swept")
    return Swept(data_files=len(plan.data_files), ledger_objects=len(plan.ledger_objects))


def _to_keep(
    ledger: Ledger, run_file: RunFile | None, open_sink: Callable[[Identity], Sink]
) -> Sequence[PartReference]:
    """Return the lists of the files that have landed, or of which nobody can tell."""
    log = ledger.log
    if log.receipt is not None:
        return [log.receipt.staged]
    if run_file is None or not log.intents:
        return []
    sink = open_sink(run_file.identity)
    found = resolve(ledger, run_file, sink)
    if found is not None:
        return [log.intents[found.mark.intent_number].staged]
    if sink.load().uuid != run_file.identity.table_uuid:
        # The run's table was dropped, and another made under its name. What landed there may come
        # back with it: a dropped table can be registered again.
        return list({intent.staged.name: intent.staged for intent in log.intents.values()}.values())
    return []
