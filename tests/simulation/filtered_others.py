"""Others at a table whose rows are replaced by a filter: they write, delete, compact and expire.

What they do is aimed at the steps of the replacement: between the look that a loss is computed for
and the post, files are rewritten, and each of them may change, go or come meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.filtered_table import FILE_ROWS, FilteredTable
from tests.simulation.history import History

_ACTS_MAX = 4
_MOMENTS_MAX = 8
_CALLS_MAX = 6


def work_beside(history: History) -> None:
    """Act repeatedly: at once, after a while, or at a step of the replacement."""
    table, world, chance = history.table, history.world, history.world.chance
    assert isinstance(table, FilteredTable)
    for turn in range(1 + chance.of(_ACTS_MAX)):
        if turn or chance.of(2):
            moment = table.moments + chance.of(_MOMENTS_MAX)
            world.wait_for(lambda: table.moments > moment or not history.has_users)  # noqa: B023
            for _ in range(chance.of(_CALLS_MAX)):
                world.pause("-")
        if table.is_gone:
            return
        acts = _ACTS[:1] if table.ever else _ACTS
        acts[chance.of(len(acts))](history, table)


def _append(history: History, table: FilteredTable) -> None:
    chance = history.world.chance
    kind = FILE_ROWS[chance.of(len(FILE_ROWS))]
    table.append_file(kind, has_bounds=chance.of(2, 0.4) == 0)
    history.did("append", kind)


def _delete(history: History, table: FilteredTable) -> None:
    """Delete one row, or the first rows of two files."""
    rows = list(table.rows_at(table.head))
    if not rows:
        return
    path, id_ = rows[history.world.chance.of(len(rows))]
    hidden = {path: {id_}}
    if history.world.chance.of(2, 0.4):
        other, other_id = rows[0]
        hidden.setdefault(other, set()).add(other_id)
    table.delete_rows(hidden)
    history.did("delete", str(hidden))


def _write_without(history: History, table: FilteredTable) -> None:
    """Delete one row by writing its file again."""
    rows = list(table.rows_at(table.head))
    if rows:
        path, id_ = rows[history.world.chance.of(len(rows))]
        table.rewrite_rows([path], without=[id_])
        history.did("delete", f"{id_}, {path} is written again")


def _compact(history: History, table: FilteredTable) -> None:
    """Put files together; sometimes the old ones are expired at once."""
    table.compact()
    history.did("compact")
    if history.world.chance.of(2):
        _expire(history, table)


def _expire(history: History, table: FilteredTable) -> None:
    table.expire()
    history.did("expire")


def _rewrite_manifests(history: History, table: FilteredTable) -> None:
    """Add a snapshot that changes no row."""
    table.foreign_append()
    history.did("rewrite manifests")


def _undo(history: History, table: FilteredTable) -> None:
    """Roll back what another writer has done last."""
    parent = table.snapshots[table.head].parent_id if table.head is not None else None
    if parent is not None:
        table.roll_back(parent)
        history.did("undo")


def _unlink(history: History, table: FilteredTable) -> None:
    """Delete a file that the table lists."""
    live = [path for path in table.live_at(table.head) if path in table.files]
    if live and history.world.chance.of(4) == 1:
        path = live[history.world.chance.of(len(live))]
        del table.files[path]
        history.did("unlink a file", path)


def _remove_rewritten(history: History, table: FilteredTable) -> None:
    """Take a file that a task has just rewritten for an orphan."""
    files = table.rewritten.intersection(table.files) - table.checked - table.reached
    if files:
        path = sorted(files)[history.world.chance.of(len(files))]
        del table.files[path]
        table.lost_files.append(path)
        history.files_removed = True
        history.did("remove a staged file", path)


_ACTS: tuple[Callable[[History, FilteredTable], None], ...] = (
    *(_append, _delete, _compact, _delete, _write_without, _rewrite_manifests, _undo, _expire),
    *(_remove_rewritten, _remove_rewritten, _unlink),
)
