"""Others who change a table's schema: once, or again and again between the starts of a job."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.columns import KEY
from tests.simulation.history import History

_CHANGES_MAX = 5
_NAMES = ("new", "other")


def _change_column(history: History) -> None:
    """Add a column, or drop, replace, rename or widen one that was added; rarely rename the key."""
    table, chance = history.table, history.world.chance
    if table.is_gone:
        return
    added = [column for column in table.columns if column.name != KEY]
    if not added:
        (_add, _rename)[chance.of(2, 0.1)](history, table.columns[0].number)
        return
    column = added[chance.of(len(added))]
    # What is hardest to see comes most often.
    acts: tuple[Callable[[History, int], None], ...]
    acts = (_replace, _replace, _replace, _drop, _widen, _rename, _add)
    acts[chance.of(len(acts))](history, column.number)


def own(history: History) -> None:
    """Change columns again and again: at once, after a while, or when the job is started again."""
    world, chance = history.world, history.world.chance
    for _ in range(1 + chance.of(_CHANGES_MAX)):
        starts = len(history.starts)
        if chance.of(2):
            world.wait_for(lambda: len(history.starts) > starts or not history.has_users)  # noqa: B023 - ends within the turn.
        for _ in range(chance.of(40)):
            world.pause("-")
        _change_column(history)


def _add(history: History, _number: int = 0) -> None:
    taken = {column.name for column in history.table.columns}
    free = [name for name in _NAMES if name not in taken]
    if free:
        name = free[history.world.chance.of(len(free))]
        history.table.add_column(name)
        history.did("add a column", str(history.table.columns[-1]))


def _drop(history: History, number: int) -> None:
    history.is_disturbed = True
    history.table.drop_column(number)
    history.did("drop a column", str(number))


def _replace(history: History, number: int) -> None:
    """Drop a column, and add one of the same or of another name."""
    _drop(history, number)
    _add(history)


def _rename(history: History, number: int) -> None:
    history.is_disturbed = True
    names = {column.name for column in history.table.columns}
    name = next(name for name in ("name", "number", "label") if name not in names)
    history.table.rename_column(number, name)
    history.did("rename a column", f"{number} to {name}")


def _widen(history: History, number: int) -> None:
    history.table.widen_column(number)
    history.did("cast a column" if history.setting.format == "lance" else "widen a column")
