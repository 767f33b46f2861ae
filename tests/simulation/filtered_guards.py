"""Guards that a replacement by a filter needs, each of which can be removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

from holdfast.engine import cleanup
from holdfast.engine.base import Indexes, Rewrites
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.parts import read_list
from holdfast.model.records import PartReference
from holdfast.model.work import Rewrite, StagedGroup
from holdfast.sinks.base import Change, Loss, TableView
from holdfast.worker.key_index import KeyIndex
from tests.simulation import filtered_table
from tests.simulation.filtered_table import FilteredTable

# ruff: noqa: SLF001, PT008 - the product is taken apart on purpose.

_loss = FilteredTable.loss
_index = Indexes.of
_state_of = filtered_table.state_of
_written = cleanup._written


def _loss_without_the_rest(
    table: FilteredTable, view: TableView, change: Change, name: str
) -> Loss:
    """Act as a sink that removes a file of which only some rows go."""
    found = _loss(table, view, change, name)
    return found if found.targets else replace(found, handle=replace(found.handle, carried=()))


def _loss_without_deletes(table: FilteredTable, view: TableView, change: Change, name: str) -> Loss:
    """Act as a sink that lists no deletes for the files that stay."""
    found = _loss(table, view, change, name)
    return found if found.targets else replace(found, handle=replace(found.handle, deletes=()))


def _loss_of_added_rows(table: FilteredTable, view: TableView, change: Change, name: str) -> Loss:
    """Act as a sink that looks into files that others have added, too."""
    return _loss(table, view, replace(change, base=None), name)


def _all_known(rewrites: Rewrites, _view: TableView) -> dict[str, Rewrite]:
    """Act as a commit that does not look whether rewritten files are there."""
    if rewrites._known is None:
        log, storage, layout = rewrites.ledger.log, rewrites.ledger.storage, rewrites.ledger.layout
        parts = [read_list(storage, layout, part, Rewrite) for part in log.rewritten]
        rewrites._known = {rewrite.state: rewrite for part in parts for rewrite in part}
    return rewrites._known


def _written_without_the_rest(ledger: Ledger, parts: Sequence[str]) -> dict[int, dict[str, int]]:
    """Act as an intent that lists manifests only."""
    found = _written(ledger, parts)
    return {
        number: {path: size for path, size in objects.items() if "/data/" not in path}
        for number, objects in found.items()
    }


def _last_index(
    indexes: Indexes, view: TableView, groups: Sequence[StagedGroup], work: PartReference
) -> KeyIndex:
    """Act as a commit that takes the last index, whatever rows it is of."""
    known = indexes.ledger.log.indexed
    return _index(indexes, view, groups, replace(work, name=known[-1].work) if known else work)


def _index_of_rows(
    indexes: Indexes, view: TableView, groups: Sequence[StagedGroup], work: PartReference
) -> KeyIndex:
    """Act as an index that holds only the keys of rows that are written."""
    return _index(indexes, view, [group for group in groups if not group.deleted_keys], work)


def _state_without_keys(path: str, others: Iterable[str]) -> str:
    """Act as a table for which a file that was searched stays searched, whatever the keys."""
    return _state_of(path, [other for other in others if not other.startswith("index-")])


FILTERED_GUARDS: dict[str, Callable[[], list[Any]]] = {
    "deletes in the state": lambda: [
        mock.patch.object(filtered_table, "state_of", lambda path, _deletes: path)
    ],
    "rest of a file": lambda: [mock.patch.object(FilteredTable, "loss", _loss_without_the_rest)],
    "deletes of rows": lambda: [mock.patch.object(FilteredTable, "loss", _loss_without_deletes)],
    "spared matches": lambda: [mock.patch.object(FilteredTable, "loss", _loss_of_added_rows)],
    "rewritten files there": lambda: [mock.patch.object(Rewrites, "known", _all_known)],
    "index of the work": lambda: [mock.patch.object(Indexes, "of", _last_index)],
    "keys to delete": lambda: [mock.patch.object(Indexes, "of", _index_of_rows)],
    "keys in the state": lambda: [
        mock.patch.object(filtered_table, "state_of", _state_without_keys)
    ],
    "rest in use": lambda: [
        mock.patch.object(cleanup, "_written", _written_without_the_rest),
        mock.patch.object(FilteredTable, "live_files", lambda *_arguments: set()),
    ],
}
