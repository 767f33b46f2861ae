"""Others at a Lance dataset: what its writers and its upkeep do while drivers are at work."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.history import History
from tests.simulation.lance_table import LanceSimTable
from tests.simulation.others import OTHERS, quietly

_UPKEEP_MAX = 6
_SETTINGS_MAX = 8


def _dataset(history: History) -> LanceSimTable:
    table = history.table
    assert isinstance(table, LanceSimTable)
    return table


def _did(history: History, deed: str) -> None:
    history.did(deed, f"version {_dataset(history).folder.newest}")


def _restore(history: History) -> None:
    """Go back to some older version that is there."""
    table = _dataset(history)
    there, newest = table.folder.there, table.folder.newest
    older = sorted(
        (number for number in there if number < newest and not there[number].is_stray), reverse=True
    )
    if older and not table.is_gone:
        history.is_disturbed = True
        version = older[history.world.chance.of(min(3, len(older)))]
        table.roll_back(version)
        history.did("restore", f"version {version} as version {table.folder.newest}")


def _overwrite(history: History) -> None:
    history.is_disturbed = True
    _dataset(history).replace()
    _did(history, "replace")


def _clean_up(history: History) -> None:
    """Remove all old versions, or all but the last few."""
    folder = _dataset(history).folder
    kept = 1 + history.world.chance.of(3, 0.5)
    folder.clean_up(folder.newest - kept + 1)
    history.versions_removed = True
    history.did("clean up", f"versions {sorted(folder.there)} are left")


def _clean_up_from_now_on(history: History) -> None:
    _dataset(history).folder.cleans_up = history.versions_removed = True
    _configure(history)
    history.did("clean up", "at each commit from now on")


def _compact(history: History) -> None:
    _dataset(history).folder.compact()
    _did(history, "compact")


def _delete(history: History) -> None:
    _dataset(history).folder.delete()
    _did(history, "delete")


def _configure(history: History) -> None:
    _dataset(history).folder.change("UpdateConfig", stops=False)
    _did(history, "configure")


def _index(history: History) -> None:
    _dataset(history).folder.change("CreateIndex", stops=False)
    _did(history, "index")


def _drop_marks(history: History) -> None:
    _dataset(history).drop_marks()
    _did(history, "drop marks")


def _configure_often(history: History) -> None:
    """Change settings again and again."""
    for _ in range(1 + history.world.chance.of(_SETTINGS_MAX)):
        history.some_time()
        (_configure, _index)[history.world.chance.of(2)](history)


_UPKEEP = (
    *(_configure, _index, _compact, _clean_up, _restore, _overwrite, _drop_marks, _delete),
    _clean_up_from_now_on,
)


def _keep_up(history: History) -> None:
    """Do one thing after the other, as a maintainer of the dataset does."""
    chance = history.world.chance
    for _ in range(1 + chance.of(_UPKEEP_MAX)):
        _UPKEEP[chance.of(len(_UPKEEP))](history)
        for _ in range(chance.of(12)):
            history.world.pause("-")


_SAME = (
    *("abort", "sweeper", "writer", "busy writer", "dropped", "made again", "orphans"),
    *("old orphans", "onlooker", "damage", "interrupt", "store outage", "catalog outage"),
    *("column", "owner", "abort elsewhere", "sweep elsewhere", "no such table"),
    *("ledger restored", "ledger cut", "ledger copied", "forgotten"),
)

LANCE_OTHERS: dict[str, Callable[[History], None]] = {
    **{name: OTHERS[name] for name in _SAME},
    "restore": quietly(_restore),
    "overwrite": quietly(_overwrite),
    "clean-up": quietly(_clean_up),
    "compaction": quietly(_compact),
    "settings": quietly(_configure_often),
    "marks": quietly(_drop_marks),
    "upkeep": quietly(_keep_up),
}
