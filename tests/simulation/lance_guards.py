"""Guards that Lance needs, each of which can be removed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from holdfast.sinks.base import Change, Outcome, RunMark, TableView
from holdfast.sinks.lance import marks
from holdfast.sinks.lance import post as lance_post
from holdfast.sinks.lance.history import GoneError, History, Step
from holdfast.sinks.lance.post import Post, schema_changes
from tests.simulation import lance_table
from tests.simulation.lance_table import LanceSimTable

# ruff: noqa: PT008 - the product is taken apart on purpose.


def _settled_below_the_next(history: History) -> int:
    """Act as a look-up that takes every assigned number for used up."""
    return history.dataset.version + 1


_send = LanceSimTable.send


def _sends_to_any(
    table: LanceSimTable,
    view: TableView,
    run_id: str,
    mark: RunMark,
    change: Change,
) -> Outcome:
    """Act as a post that does not check which dataset is there."""
    with mock.patch.object(lance_post, "read_identity", lambda _place: view.uuid):
        return _send(table, view, run_id, mark, change)


_landing = History.landing


def _takes_gone_for_never(
    history: History, base: int, is_ours: Callable[[Step], bool]
) -> int | None:
    """Act as a look-up that takes a version that was cleaned up for another writer's."""
    try:
        return _landing(history, base, is_ours)
    except GoneError:
        return None


def _passes_what_is_gone(_post: Post, _base: int) -> bool:
    """Act as a post that relies on Lance to see what has come since."""
    return True


def _is_always_followed(*_arguments: object) -> bool:
    """Act as a look-up that takes a version for landed because it exists."""
    return True


def _looks_at_the_newest(_history: History, schemas: Any, now: Any) -> list[str]:  # noqa: ANN401
    """Act as a check that identifies a column by number, name and type."""
    return [change for schema in schemas for change in schema_changes(schema, now)]


LANCE_GUARDS: dict[str, Callable[[], list[Any]]] = {
    "lance settled": lambda: [mock.patch.object(History, "settled_below", _settled_below_the_next)],
    "lance identity": lambda: [mock.patch.object(LanceSimTable, "send", _sends_to_any)],
    "lance history": lambda: [mock.patch.object(marks, "_unmarked", lambda *_all, **_named: None)],
    "lance cleaned": lambda: [mock.patch.object(History, "landing", _takes_gone_for_never)],
    "lance since": lambda: [mock.patch.object(Post, "_lets_pass", _passes_what_is_gone)],
    "lance stray": lambda: [mock.patch.object(History, "is_followed", _is_always_followed)],
    "lance columns": lambda: [
        mock.patch.object(lance_table, "changes_since", _looks_at_the_newest)
    ],
    "lance merge": lambda: [
        mock.patch.object(LanceSimTable, "refuses", lambda *_arguments: False),
        mock.patch.object(Post, "_lets_pass", _passes_what_is_gone),
    ],
}
