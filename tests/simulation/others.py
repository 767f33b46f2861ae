"""Others: what other actors do to a run, its table and its store while drivers are at work."""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Callable
from typing import cast

from holdfast.engine.cleanup import abort
from holdfast.engine.watch import quarantine_chunks, run_folders, status
from holdfast.errors import HoldfastError, RunCommittedError, TableMissingError
from holdfast.model.identity import Identity
from holdfast.model.records import open_json
from holdfast.model.stored import RecordDamagedError
from holdfast.sinks.base import Sink, TableView
from tests.simulation.filtered_others import work_beside
from tests.simulation.filtered_table import FilteredTable
from tests.simulation.history import LAYOUT, LONG_S, STORE, History
from tests.simulation.lance_table import LanceSimTable
from tests.simulation.ledger_others import copy_ledger, cut_ledger, restore_ledger
from tests.simulation.schema_others import maintain, own
from tests.simulation.store import SimStorage
from tests.simulation.table import SimTable

# Fewer than the attempts of two starts.
_RIVAL_POSTS, _RIVAL_POSTS_OF_A_REPLACE = 45, 15
# How much older than what a driver publishes a file must be to count as an orphan: longer than any
# post is under way. In practice it is a day.
_ORPHAN_SLACK_S = 2_000.0


def quietly(act: Callable[[History], None]) -> Callable[[History], None]:
    """Return what a user does who accepts an error."""

    def done(history: History) -> None:
        history.some_time()
        try:
            act(history)
        except HoldfastError as error:
            history.refusals.append(error)
            history.world.note(f"refused: {error!r}")

    return done


class _Elsewhere:
    """What an abort or a sweep that asks the wrong catalog finds."""

    name = "lake.db.t"

    def load(self) -> TableView:
        """Find no table.

        Raises:
            TableMissingError: Always.
        """
        raise TableMissingError(table=self.name, what="there is no such table")


def _sink(history: History, *, elsewhere: bool) -> Callable[[Identity], Sink]:
    found = cast("Sink", _Elsewhere()) if elsewhere else history.table
    return lambda _identity: found


def _abort(history: History, *, elsewhere: bool = False) -> None:
    history.did("abort", "elsewhere" if elsewhere else "")
    # A user declares the table gone only if it is.
    is_said = _is_table_gone(history) and history.world.chance.of(2) == 1
    try:
        given_up = abort(
            history.ledger(),
            _sink(history, elsewhere=elsewhere),
            "why not",
            table_is_gone=is_said,
        )
    except RunCommittedError:
        return
    if given_up.in_doubt:  # It may land later, and is then shown as landed.
        if elsewhere and not is_said:
            history.wrong.append("a run was aborted in doubt, with its table out of sight")
        history.world.note(f"aborted, with doubt: {given_up.reason}")
        return
    history.aborted_at = history.world.steps
    history.world.note("aborted")


def _is_table_gone(history: History) -> bool:
    """Whether the run's table was dropped, or replaced by another after the run began."""
    table, run_file = history.table, history.storage.objects.get(LAYOUT.identity)
    if table.is_gone or run_file is None:
        return table.is_gone
    with contextlib.suppress(RecordDamagedError):
        uuid: str = open_json(run_file)["identity"]["table_uuid"]
        return table.uuid != uuid
    return False


def _sweep(history: History, *, elsewhere: bool = False) -> None:
    history.did("sweep", "elsewhere" if elsewhere else "")
    history.sweep(_sink(history, elsewhere=elsewhere))


def _hide(history: History) -> None:
    """Let the catalog say for a while that there is no such table."""
    history.did("hide the table")
    history.table.is_hidden = True
    try:
        history.world.rest()
    finally:
        history.table.is_hidden = False
        history.world.note("the table is there again")


def _append(history: History) -> None:
    if history.setting.is_filtered:
        work_beside(history)
        return
    history.table.append_rows()
    history.did("append")
    if history.setting.replaces and not history.table.ever and history.world.chance.of(2, 0.4):
        history.world.pause("compact")
        history.table.compact()
        history.did("compact")


def _append_often(history: History) -> None:
    """Be faster than a driver, more often than it retries."""
    history.is_disturbed = True
    history.table.rivals = _RIVAL_POSTS_OF_A_REPLACE if history.setting.replaces else _RIVAL_POSTS
    history.did("append before each post")


def _roll_back(history: History) -> None:
    table = history.table
    parent = table.snapshots[table.head].parent_id if table.head is not None else None
    if parent is not None:
        history.is_disturbed = True
        table.roll_back(parent)
        history.did("roll back")


def _replace(history: History) -> None:
    history.is_disturbed = True
    history.table.replace()
    history.did("replace")


def _drop(history: History) -> None:
    history.is_disturbed = True
    history.table.is_gone = True
    history.did("drop")


def _make_again(history: History) -> None:
    history.is_disturbed = True
    history.table.make_again()
    history.did("make again")


def _rewind(history: History) -> None:
    """Restore the catalog from a backup."""
    table = history.table
    if table.versions:
        history.is_disturbed = history.is_rewound = True
        back = 1 + history.world.chance.of(min(3, table.versions))
        table.rewind_to(table.versions - back)
        history.did("rewind", f"by {back} versions")


def _expire(history: History) -> None:
    history.table.history_hidden = True
    history.did("hide the history")


def _forget(history: History) -> None:
    """Let the table forget the run as soon as it has landed; then abort it, in doubt or not."""
    world, table = history.world, history.table
    world.wait_for(lambda: bool(table.ever) or not history.has_users)
    for _ in range(world.chance.of(3)):
        world.pause("-")
    _drop_marks(history)
    if isinstance(table, LanceSimTable):
        table.folder.clean_up(table.folder.newest)
        history.versions_removed = True
        history.did("clean up")
    history.some_time()
    _abort(history)


def _drop_marks(history: History) -> None:
    history.table.drop_marks()
    history.did("drop marks")


def _remove_orphans(history: History) -> None:
    """Remove a staged file, or what the ledger keeps beside its records.

    Not files that a driver has checked right before its post: nothing can help there.
    """
    table, objects = history.table, history.storage.objects
    # A rule of the store may remove old objects of the ledger too.
    mine = [uri for uri in objects if uri.endswith((".keys", ".chunk", ".failed"))]
    listed = table.reached if isinstance(table, FilteredTable) else set()
    free = sorted({*table.files, *mine} - table.checked - listed)
    if free:
        path = free[history.world.chance.of(len(free))]
        history.files_removed = True
        if path in objects:
            del objects[path]
            history.did("remove a ledger object", path)
            return
        table.lost_files.append(path)
        del table.files[path]
        history.did("remove a staged file", path)


def _remove_old_orphans(history: History) -> None:
    """Remove files that were old and unreferenced at an earlier look at the table."""
    table, world = history.table, history.world
    world.sleep(LONG_S / 2)
    before = world.clock - history.setting.old_after_s - _ORPHAN_SLACK_S
    referred = {
        path
        for snapshot in table.ever
        for group in (*snapshot.groups, *snapshot.carried)
        for path in group.paths
    }
    referred |= {path for snapshot in table.ever for path in snapshot.deletes}
    referred |= table.reached if isinstance(table, FilteredTable) else set()
    old = {path for path in table.files if table.files.written_at[path] < before}
    world.sleep(LONG_S)
    for path in sorted((old - referred).intersection(table.files)):
        table.lost_files.append(path)
        del table.files[path]
        history.files_removed = True
        world.counts["old orphans"] += 1
        history.did("remove old orphans", path)


def _look_on(history: History) -> None:
    history.did("look on")
    ledger = history.ledger()
    str(status(ledger))
    quarantine_chunks(history.ledger())
    run_folders(ledger.storage, STORE)


def _damage(history: History) -> None:
    """Flip one bit of one object."""
    inside = sorted(uri for uri in history.storage.objects if uri.startswith(LAYOUT.folder))
    if inside:
        uri = inside[history.world.chance.of(len(inside))]
        data = bytearray(history.storage.objects[uri])
        data[history.world.chance.of(len(data))] ^= 1
        history.storage.objects[uri] = bytes(data)
        history.is_damaged = history.is_disturbed = True
        history.did("damage", uri)


def _interrupt(history: History) -> None:
    """Press Ctrl-C, or have a scheduler send SIGTERM; sometimes once more."""
    world = history.world
    drivers = [actor for actor in world.actors if actor.handlers and not actor.is_done]
    if drivers:
        driver = drivers[world.chance.of(len(drivers))]
        number = (signal.SIGINT, signal.SIGTERM)[world.chance.of(2)]
        for _ in range(1 + world.chance.of(2, 0.4)):
            history.did("interrupt", f"{number.name} to {driver.name}")
            world.counts["signals"] += 1
            world.signal(driver, number)
            world.pause("-")


def _outage(history: History, what: SimStorage | SimTable) -> None:
    """Let nothing arrive for a while; a catalog may still answer reads."""
    history.did("store outage" if isinstance(what, SimStorage) else "catalog outage")
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
    "sweeper": quietly(_sweep),
    "abort elsewhere": quietly(functools.partial(_abort, elsewhere=True)),
    "sweep elsewhere": quietly(functools.partial(_sweep, elsewhere=True)),
    "no such table": quietly(_hide),
    "ledger restored": restore_ledger,
    "ledger cut": cut_ledger,
    "ledger copied": copy_ledger,
    "writer": quietly(_append),
    "busy writer": quietly(_append_often),
    "rollback": quietly(_roll_back),
    "replace": quietly(_replace),
    "dropped": quietly(_drop),
    "made again": quietly(_make_again),
    "column": own,
    "owner": maintain,
    "rewound": quietly(_rewind),
    "expiry": quietly(_expire),
    "forgotten": quietly(_forget),
    "marks": quietly(_drop_marks),
    "orphans": quietly(_remove_orphans),
    "old orphans": quietly(_remove_old_orphans),
    "onlooker": quietly(_look_on),
    "damage": quietly(_damage),
    "interrupt": quietly(_interrupt),
    "store outage": quietly(lambda history: _outage(history, history.storage)),
    "catalog outage": quietly(lambda history: _outage(history, history.table)),
}
