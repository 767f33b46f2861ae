"""Sweep: delete what a finished or aborted run no longer needs.

Works only after a receipt or an abort, and deletes only what this run's own records list. Data
files stay if the intent that landed lists them, and the whole log stays: it is small, and says
what happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
from holdfast.model.staged import StagedGroup
from holdfast.sinks.base import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep has deleted."""

    data_files: int
    ledger_objects: int


def sweep(ledger: Ledger, open_sink: Callable[[Identity], Sink]) -> Swept:
    """Delete the run's chunks, keys, task logs, its own copy of the input, and files not landed.

    Calling again is safe.

    Args:
        ledger: The run's ledger.
        open_sink: Opens the table that the run is said to write.

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
    sink = None if run_file is None else open_sink(run_file.identity)
    references = _to_keep(ledger, run_file, sink)
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
    doomed = sorted(_paths(staged) - {path for work in works for path in _paths(work.groups)})
    failpoint("before-files-are-swept")
    if sink is not None and doomed:
        sink.delete_files(sink.load(), doomed)
    # Only now: as long as the task logs stand, a sweep that was cut short can be repeated.
    # What has failed for good stays readable: it may be all that is left of a row.
    kept = {layout.quarantine(record.name) for work in works for record in work.quarantined}
    kept |= {layout.part(reference.name) for reference in references}
    if log.pinned is not None:  # A later start is compared with it.
        kept.add(layout.part(log.pinned.pins.name))
    objects = [uri for uri in (*parts, *tasks, *inputs) if uri not in kept]
    failpoint("after-files-are-swept")
    with answers(layout.folder):
        storage.delete(objects)
    failpoint("after-ledger-is-swept")
    return Swept(data_files=len(doomed), ledger_objects=len(objects))


def _to_keep(
    ledger: Ledger, run_file: RunFile | None, sink: Sink | None
) -> Sequence[PartReference]:
    """Return the lists of the files that have landed, or of which nobody can tell."""
    log = ledger.log
    if log.receipt is not None:
        return [log.receipt.staged]
    if run_file is None or sink is None or not log.intents:
        return []
    found = resolve(ledger, run_file, sink)
    if found is not None:
        return [log.intents[found.mark.intent_number].staged]
    if sink.load().uuid != run_file.identity.table_uuid:
        # The run's table was dropped, and another made under its name. What landed there may come
        # back with it: a dropped table can be registered again.
        return list({intent.staged.name: intent.staged for intent in log.intents.values()}.values())
    return []


def _paths(groups: Iterable[StagedGroup]) -> set[str]:
    return {path for group in groups for path in group.paths}
