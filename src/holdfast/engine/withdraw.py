"""Withdraw: leave out inherited work whose objects are gone.

Somebody's orphan removal may take files that no snapshot refers to yet. Their rows are computed
again, which costs but ends well; committing the rest would lose rows.
"""

from __future__ import annotations

from holdfast.ledger.answers import answers
from holdfast.ledger.layout import RunLayout
from holdfast.model.work import TaskRecord, Work
from holdfast.sinks.base import Sink, TableView
from holdfast.storage.port import Storage


def without_lost(
    work: Work, *, sink: Sink, view: TableView, storage: Storage, layout: RunLayout
) -> Work:
    """Return the work without the records that have lost a file, or an object of the ledger.

    Chunks that a lost file had replaced stand again, as long as they are there themselves.

    Raises:
        StoreUnavailableError: The store did not answer.
    """
    while True:
        lost_files = set(sink.missing_files(view, work.groups))
        lost = {
            record.name
            for record in work.records
            if any(lost_files.intersection(group.paths) for group in record.groups)
        }
        lost |= _without_objects(work, storage, layout)
        if not lost:
            return work
        work = work.without(lost)


def without_lost_objects(work: Work, storage: Storage, layout: RunLayout) -> Work:
    """Return the work without the records that have lost an object of the ledger.

    For a start that does not know the table yet.

    Raises:
        StoreUnavailableError: The store did not answer.
    """
    while lost := _without_objects(work, storage, layout):
        work = work.without(lost)
    return work


def _without_objects(work: Work, storage: Storage, layout: RunLayout) -> set[str]:
    """Return the records whose keys, waiting chunk or failed rows are not there in full.

    Raises:
        StoreUnavailableError: The store did not answer.
    """
    expected: list[tuple[TaskRecord, str, int]] = [
        (record, layout.keys(record.name), record.coverage.keys_bytes)
        for record in work.with_keys
        if record.coverage.ranges is None
    ]
    expected += [
        (record, layout.chunk(record.name), record.chunk.size_bytes)
        for record in work.waiting
        if record.chunk is not None
    ]
    expected += [
        (record, layout.quarantine(record.name), record.quarantine.size_bytes)
        for record in work.quarantined
        if record.quarantine is not None
    ]
    with answers(layout.tasks):
        sizes = storage.sizes([uri for _, uri, _ in expected])
    return {
        record.name
        for (record, _, size), found in zip(expected, sizes, strict=True)
        if found != size
    }
