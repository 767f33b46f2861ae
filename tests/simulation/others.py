"""Others: what else happens to a run, its table and its store while drivers are at work."""

from __future__ import annotations

import signal
from collections.abc import Callable

from holdfast.engine.abort import abort
from holdfast.engine.quarantined import quarantine_chunks
from holdfast.engine.status import run_folders, status
from holdfast.errors import HoldfastError, RunCommittedError
from tests.simulation.history import LAYOUT, LONG_S, STORE, History
from tests.simulation.store import SimStorage
from tests.simulation.table import SimTable

_RIVAL_POSTS = 45
# How much older than what a driver publishes a file must be to be taken for an orphan: longer than
# any post is under way. In real life it is a day.
_ORPHAN_SLACK_S = 2_000.0


def quietly(act: Callable[[History], None]) -> Callable[[History], None]:
    """Return what a user does who takes no for an answer."""

    def done(history: History) -> None:
        some_time(history)
        try:
            act(history)
        except HoldfastError as error:
            history.world.note(f"refused: {error!r}")

    return done


def some_time(history: History) -> None:
    """Let others act first: for a while, for long, or until a driver is about to publish."""
    world, chance = history.world, history.world.chance
    if chance.happens(0.2):
        world.wait_for(lambda: history.table.posts_begun > 0 or not history.has_users)
        steps = chance.of(8)
    else:
        steps = chance.of(40) * (1, 5)[chance.of(2)]
    for _ in range(1 + steps):
        world.pause("-")


def _abort(history: History) -> None:
    try:
        abort(history.ledger(), lambda _identity: history.table, "why not")
    except RunCommittedError:
        return
    history.aborted_at = history.world.steps
    history.world.note("aborted")


def _append(history: History) -> None:
    history.table.foreign_append()
    history.world.note("append")


def _append_often(history: History) -> None:
    """Be faster than a driver, more often than it tries."""
    history.is_disturbed = True
    history.table.rivals = _RIVAL_POSTS
    history.world.note("append before each post")


def _roll_back(history: History) -> None:
    table = history.table
    parent = table.snapshots[table.head].parent_id if table.head is not None else None
    if parent is not None:
        history.is_disturbed = True
        table.roll_back(parent)
        history.world.note("roll back one snapshot")


def _replace(history: History) -> None:
    history.is_disturbed = True
    history.table.replace()
    history.world.note("replace the table")


def _drop(history: History) -> None:
    history.is_disturbed = True
    history.table.is_gone = True
    history.world.note("drop the table")


def _make_again(history: History) -> None:
    history.is_disturbed = True
    history.table.make_again()
    history.world.note("drop the table and make it again")


def _add_column(history: History) -> None:
    history.is_disturbed = True
    history.table.schema = {"columns": ["id", "new"]}
    history.world.note("add a column")


def _rewind(history: History) -> None:
    """Restore the catalog from a backup."""
    table = history.table
    if table.versions:
        history.is_disturbed = history.is_rewound = True
        back = 1 + history.world.chance.of(min(3, table.versions))
        table.rewind_to(table.versions - back)
        history.world.note(f"rewind the catalog by {back} versions")


def _expire(history: History) -> None:
    history.table.history_hidden = True
    history.world.note("hide the history")


def _drop_marks(history: History) -> None:
    history.table.drop_marks()
    history.world.note("forget all marks")


def _remove_orphans(history: History) -> None:
    """Take a staged file, or what the ledger keeps beside its records.

    Not what a driver has looked for right before its post: nothing can help there.
    """
    table, objects = history.table, history.storage.objects
    # A rule of the store may take old objects of the ledger as well.
    mine = [uri for uri in objects if uri.endswith((".keys", ".chunk", ".failed"))]
    free = sorted({*table.files, *mine} - table.checked)
    if free:
        path = free[history.world.chance.of(len(free))]
        if path in objects:
            del objects[path]
        else:
            table.lost_files.append(path)
            del table.files[path]
        history.files_removed = True
        history.world.note(f"remove {path}")


def _remove_old_orphans(history: History) -> None:
    """Take what was old and nowhere referred to, long after the look at the table that said so."""
    table, world = history.table, history.world
    world.sleep(LONG_S / 2)
    before = world.clock - history.setting.old_after_s - _ORPHAN_SLACK_S
    referred = {path for one in table.ever for group in one.groups for path in group.paths}
    old = {path for path in table.files if table.files.written_at[path] < before}
    world.sleep(LONG_S)
    for path in sorted((old - referred).intersection(table.files)):
        table.lost_files.append(path)
        del table.files[path]
        history.files_removed = True
        world.counts["old orphans"] += 1
        world.note(f"remove {path}, which was old and an orphan")


def _look_on(history: History) -> None:
    ledger = history.ledger()
    str(status(ledger))
    quarantine_chunks(history.ledger())
    run_folders(ledger.storage, STORE)


def _damage(history: History) -> None:
    """Turn one bit of one object over."""
    inside = sorted(uri for uri in history.storage.objects if uri.startswith(LAYOUT.folder))
    if inside:
        uri = inside[history.world.chance.of(len(inside))]
        data = bytearray(history.storage.objects[uri])
        data[history.world.chance.of(len(data))] ^= 1
        history.storage.objects[uri] = bytes(data)
        history.is_damaged = history.is_disturbed = True
        history.world.note(f"damage {uri}")


def _interrupt(history: History) -> None:
    """Press Ctrl-C, or have a scheduler send SIGTERM; sometimes once more."""
    world = history.world
    drivers = [actor for actor in world.actors if actor.handlers and not actor.is_done]
    if drivers:
        driver = drivers[world.chance.of(len(drivers))]
        number = (signal.SIGINT, signal.SIGTERM)[world.chance.of(2)]
        for _ in range(1 + world.chance.of(2, 0.4)):
            world.note(f"{number.name} to {driver.name}")
            world.counts["signals"] += 1
            world.signal(driver, number)
            world.pause("-")


def _outage(history: History, what: SimStorage | SimTable) -> None:
    """Let nothing arrive for a while; a catalog may still answer questions."""
    history.world.note("an outage begins")
    what.is_down = True
    if isinstance(what, SimTable):
        what.can_be_read = history.world.chance.of(2) == 1
    try:
        history.world.rest()
    finally:
        what.is_down = False
        history.world.note("the outage is over")


OTHERS: dict[str, Callable[[History], None]] = {
    "abort": quietly(_abort),
    "sweeper": quietly(History.sweep),
    "writer": quietly(_append),
    "busy writer": quietly(_append_often),
    "rollback": quietly(_roll_back),
    "replace": quietly(_replace),
    "dropped": quietly(_drop),
    "made again": quietly(_make_again),
    "column": quietly(_add_column),
    "rewound": quietly(_rewind),
    "expiry": quietly(_expire),
    "marks": quietly(_drop_marks),
    "orphans": quietly(_remove_orphans),
    "old orphans": quietly(_remove_old_orphans),
    "onlooker": quietly(_look_on),
    "damage": quietly(_damage),
    "interrupt": quietly(_interrupt),
    "store outage": quietly(lambda history: _outage(history, history.storage)),
    "catalog outage": quietly(lambda history: _outage(history, history.table)),
}
