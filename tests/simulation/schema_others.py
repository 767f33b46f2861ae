"""Others that change a table's schema: repeatedly, or while the job is down and chunks wait."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.ledger.layout import RECORD_SUFFIX
from tests.simulation.columns import KEY, Column
from tests.simulation.history import History

_CHANGES_MAX = 5
_NAMES = ("new", "other")
# The most calls between a chunk's record and the end of all that runs.
_CALLS_LEFT = 6


def _change_column(history: History) -> None:
    """Add a column, or drop, replace, rename or widen one that was added; rarely rename the key."""
    table, chance = history.table, history.world.chance
    if table.is_gone:
        return
    added = _added(history)
    if not added:
        (_add, _rename)[chance.of(2, 0.1)](history, table.columns[0].number)
        return
    column = added[chance.of(len(added))]
    # What is hardest to detect comes most often.
    acts: tuple[Callable[[History, int], None], ...]
    acts = (_replace, _replace, _replace, _drop, _widen, _rename, _add)
    acts[chance.of(len(acts))](history, column.number)


def own(history: History) -> None:
    """Change columns repeatedly: at once, after a while, or when the job is started again."""
    world, chance = history.world, history.world.chance
    for _ in range(1 + chance.of(_CHANGES_MAX)):
        starts = len(history.starts)
        if chance.of(2):
            world.wait_for(lambda: len(history.starts) > starts or not history.has_users)  # noqa: B023 - ends within the turn.
        for _ in range(chance.of(40)):
            world.pause("-")
        _change_column(history)


def maintain(history: History) -> None:
    """Change columns as `own` does; for a slow job also while it is down and its chunks wait.

    The columns are there before the job, which fills them. When a task has a chunk and no file,
    everything that runs is ended, and the next start finds other columns under the same names.
    """
    world, chance = history.world, history.world.chance
    if history.setting.is_slow and not history.table.is_gone:
        for _ in range(1 + chance.of(2)):
            _add(history)
        before = _recorded_chunks(history)
        world.wait_for(lambda: bool(_recorded_chunks(history) - before) or not history.has_users)
        for _ in range(chance.of(_CALLS_LEFT)):
            world.pause("-")
        _end_all(history)
        acts = (lambda _history: None, _add_again, _swap_names, _hand_name_on, _change_column)
        if not history.table.is_gone:
            acts[chance.of(len(acts))](history)
    own(history)


def _recorded_chunks(history: History) -> set[str]:
    """Return the chunks that a task's record lists."""
    objects = history.storage.objects
    chunks = {uri.removesuffix(".chunk") for uri in objects if uri.endswith(".chunk")}
    return {name for name in chunks if f"{name}{RECORD_SUFFIX}" in objects}


def _end_all(history: History) -> None:
    """End every driver and every task at once, as a cluster that is shut down does."""
    history.did("shut down")
    for actor in history.world.actors:
        if actor.name.startswith("driver") and not actor.is_done:
            history.world.kill(actor)


def _added(history: History) -> list[Column]:
    return [column for column in history.table.columns if column.name != KEY]


def _add_again(history: History) -> None:
    """Drop a column, and add another of the same name."""
    added = _added(history)
    if added:
        column = added[history.world.chance.of(len(added))]
        _drop(history, column.number)
        history.table.add_column(column.name)
        history.did("add a column", str(history.table.columns[-1]))


def _swap_names(history: History) -> None:
    """Swap the names of two columns."""
    added = _added(history)
    if len(added) < 2:
        _add_again(history)
        return
    first, second = added[:2]
    _rename(history, first.number)
    _rename(history, second.number, first.name)
    _rename(history, first.number, second.name)


def _hand_name_on(history: History) -> None:
    """Drop a column, and rename another to its name."""
    added = _added(history)
    if len(added) < 2:
        _add_again(history)
        return
    _drop(history, added[0].number)
    _rename(history, added[1].number, added[0].name)


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


def _rename(history: History, number: int, name: str = "") -> None:
    """Rename a column, by default to a name that no other has."""
    history.is_disturbed = True
    names = {column.name for column in history.table.columns}
    name = name or next(name for name in ("name", "number", "label") if name not in names)
    history.table.rename_column(number, name)
    history.did("rename a column", f"{number} to {name}")


def _widen(history: History, number: int) -> None:
    history.table.widen_column(number)
    history.did("cast a column" if history.setting.format == "lance" else "widen a column")
