"""Others at the ledger: it is restored from a backup, cut, or copied and used twice.

A start after that must fail or be right: no second landing, no receipt for what has not landed.
"""

from __future__ import annotations

from tests.simulation.history import LAYOUT, LONG_S, History
from tests.simulation.store import SimStorage

# The most records of the log that are lost.
_CUT_MAX = 4


def restore_ledger(history: History) -> None:
    """Take a backup of the run's folder, and put it back later."""
    history.some_time()
    backup = _run_folder(history)
    history.some_time()
    objects = history.storage.objects
    for uri in _run_folder(history):
        del objects[uri]
    objects.update(backup)
    _moved(history, "restore the ledger", f"{len(backup)} objects")


def cut_ledger(history: History) -> None:
    """Lose the first or the last records of the log."""
    history.some_time()
    chance, objects = history.world.chance, history.storage.objects
    log = sorted(uri for uri in objects if uri.startswith(f"{LAYOUT.log}/"))
    count = min(len(log), 1 + chance.of(_CUT_MAX))
    if count:
        lost = log[:count] if chance.of(3) == 1 else log[-count:]
        for uri in lost:
            del objects[uri]
        _moved(history, "cut the ledger", f"{lost[0]} to {lost[-1]}")


def copy_ledger(history: History) -> None:
    """Copy the ledger to another store, and start the script there too."""
    history.some_time()
    copy = SimStorage(history.world)
    copy.objects = dict(history.storage.objects)
    copy.written_at = dict(history.storage.written_at)
    history.copies.append(copy)
    _moved(history, "copy the ledger", f"{len(copy.objects)} objects")
    for _ in range(1 + history.world.chance.of(2)):
        history.start_and_wait(copy)
        history.world.sleep((5.0, LONG_S)[history.world.chance.of(2)])


def _run_folder(history: History) -> dict[str, bytes]:
    objects = history.storage.objects
    return {uri: data for uri, data in objects.items() if uri.startswith(f"{LAYOUT.folder}/")}


def _moved(history: History, deed: str, what: str) -> None:
    history.is_ledger_moved = history.is_disturbed = True
    history.did(deed, what)
