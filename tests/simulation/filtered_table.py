"""The table of runs that replace rows by a filter: deletes, bounds, expiry, rewritten files.

As in Iceberg, metadata decides about whole files by their bounds, which some files lack. Of a file
that may hold both, a task reads the rows and writes those that stay into a new one. A position
delete hides rows of a file without changing it: the file's state is its path and those deletes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from holdfast.errors import SettingsError, StoreUnavailableError, TableChangedError
from holdfast.model.work import Rewrite, StagedFile, StagedGroup
from holdfast.sinks.base import (
    Change,
    Filter,
    Loss,
    MayLack,
    Removes,
    RewriterSpec,
    TableView,
    WriterSpec,
)
from holdfast.sinks.conform import ValueMisfitError
from holdfast.storage.port import StorageError
from tests.fakes.memory_table import MemorySnapshot, Removal
from tests.fakes.memory_writer import staged_group
from tests.simulation.columns import KEY
from tests.simulation.table import SimTable
from tests.simulation.world import World
from tests.simulation.writer import SimWriterSpec, columns_of

# Rows of runs have keys from 0 on; those of others are below, and may be inside the filter or not.
_EDGE = -1_000
WHERE = f"{KEY} > {_EDGE}"
_READ_FAULTS = 0.004

# What a group of position deletes says about itself.
OF_DELETES = {"deletes": True}

# What a foreign file holds: rows for which the filter is true, is not, or both.
FileRows = Literal["mixed", "inside", "outside"]
FILE_ROWS: tuple[FileRows, ...] = ("mixed", "inside", "outside")
# What the filter says about all rows of a file, as far as bounds tell.
Verdict = Literal["all", "none", "some"]


def goes(id_: int) -> bool:
    """Whether the filter is true for a row."""
    return id_ > _EDGE


def state_of(path: str, deletes: Iterable[str]) -> str:
    """Return all that decides which rows a file adds to the table."""
    return " ".join(sorted([path, *deletes]))


@dataclass(slots=True)
class _Chosen:
    """The files that go, those to rewrite before that is known, and the rest of files that go."""

    paths: set[str] = field(default_factory=set)
    targets: dict[str, str] = field(default_factory=dict)
    carried: list[StagedGroup] = field(default_factory=list)
    # Position deletes for files that stay.
    deletes: list[StagedGroup] = field(default_factory=list)
    rows: int = 0


class FilteredTable(SimTable):
    """An Iceberg table whose rows can be replaced by a filter."""

    removes: Removes = "where"

    def __init__(self, world: World, *, empty: bool, file_rows: int | None) -> None:
        """Start with files of other writers, or with none."""
        # The keys in each file that was ever in the table, which is all that metadata knows; files
        # without bounds; and for each position delete the keys that it hides, by file.
        self._listed: dict[str, list[int]] = {}
        self.boundless: set[str] = set()
        self.position_deletes: dict[str, dict[str, frozenset[int]]] = {}
        # Snapshots whose metadata is gone.
        self.expired: set[int] = set()
        # How often drivers and tasks were at a step of a replacement, for those who wait for it.
        self.moments = 0
        # What tasks have written of files of which only some rows go.
        self.rewritten: set[str] = set()
        self._others_ids = {"inside": 0, "outside": _EDGE}
        super().__init__(world, empty=empty, file_rows=file_rows)
        if not empty:
            for kind in FILE_ROWS:
                self.append_file(kind)

    # ---- what the engine asks for ------------------------------------------------------------
    def writer_spec(
        self,
        view: TableView,
        may_lack: MayLack = frozenset(),
        where: Filter | None = None,
        on: Sequence[str] = (),  # noqa: ARG002
        delete_column: str = "",  # noqa: ARG002
    ) -> WriterSpec:
        """Return a writer that refuses rows outside of the filter."""
        self._refuse_misfit(view)
        assert where == WHERE
        columns = columns_of(view.schema)
        spec = SimWriterSpec(columns, self._world, self, may_lack, is_numbered=True)
        spec.refuse_outside = self._refuse_rows_outside
        return spec

    def missing_files(self, view: TableView, groups: Sequence[StagedGroup]) -> list[str]:
        """Return the paths of files that were removed; rewritten ones are looked at last here."""
        gone = super().missing_files(view, groups)
        paths = {path for group in groups for path in group.paths}
        self.checked |= paths.intersection(self.rewritten) - set(gone)
        return gone

    def states(self, view: TableView, snapshot_id: int | None) -> frozenset[str]:  # noqa: ARG002
        """Return which files and deletes are live in a snapshot."""
        self._read_metadata("read the states", snapshot_id)
        files = {file.path for file in self._live_files(snapshot_id)}
        return frozenset({*files, *self._deletes_at(snapshot_id)})

    def loss(self, view: TableView, change: Change, name: str) -> Loss:
        """Return what the filter removes, or which files must be rewritten before that."""
        assert change.removes == self.removes
        head = view.handle.head
        self._read_metadata("compute the loss", head)
        self._refuse_misfit(view)
        if change.base is not None:
            self._refuse_changed(head, change.base)
        found = self._chosen(head, change)
        if found.targets:
            return Loss(targets=found.targets)
        # A delete goes with the one file that it names.
        lone = {
            path
            for path in self._deletes_at(head)
            if len(files := self.position_deletes[path]) == 1 and found.paths.issuperset(files)
        }
        writes = {f"mem://metadata/{name}-0": 10} if found.paths or found.deletes else {}
        for group in (*found.carried, *found.deletes):
            writes |= {group.path: group.size_bytes}
            writes |= {file.path: file.size_bytes for file in group.files}
        return Loss(
            files=len(found.paths) + len(found.deletes),
            rows=found.rows,
            delete_files=len(found.deletes),
            size_bytes=100 * sum(len(self._listed[path]) for path in found.paths),
            writes=writes,
            handle=Removal(
                paths=frozenset(found.paths | lone),
                carried=tuple(found.carried),
                deletes=tuple(group.path for group in found.deletes),
            ),
        )

    def rewriter(self, view: TableView, change: Change) -> RewriterSpec:
        """Return what tasks need to rewrite files."""
        assert change.removes == self.removes
        self._refuse_misfit(view)
        self.moments += 1
        return _RewriterSpec(self, change)

    def going(self, ids: Sequence[int], change: Change) -> set[int]:  # noqa: ARG002
        """Return which of some rows a change removes."""
        return set(filter(goes, ids))

    # ---- what tasks do -----------------------------------------------------------------------
    def rewrite(self, item: str, name: str, change: Change) -> Rewrite:
        """Write the rows of a file that stay, or deletes of the others, unless all stay or go.

        Raises:
            FileNotFoundError: The file or one of its deletes is gone.
            StorageError: There is no answer.
        """
        world = self._world
        state, path, deletes = json.loads(item)
        world.pause(f"read {path}")
        self.moments += 1
        if world.faults.calls and world.chance.happens(_READ_FAULTS):
            self._fault("no answer")
            raise StorageError(f"{path}: no answer")
        if path not in self.files or any(d not in self.position_deletes for d in deletes):
            raise FileNotFoundError(path)
        hidden = {id_ for delete in deletes for id_ in self.position_deletes[delete][path]}
        live = [id_ for id_ in self.files[path]["id"].to_pylist() if id_ not in hidden]
        going = self.going(live, change)
        kept = [id_ for id_ in live if id_ not in going]
        removed, group = len(live) - len(kept), None
        if kept and removed and change.write_mode == "merge-on-read":
            group = self._delete_of_ours(path, going.intersection(live), name)
        elif kept and removed:
            group = staged_group(name, rows=len(kept))
            world.pause(f"write {group.files[0].path}")
            self.files[group.files[0].path] = pa.table({KEY: pa.array(kept, pa.int64())})
            self.rewritten.update(group.paths)
            world.counts["rewritten files"] += 1
            world.pause(f"write {group.path}")
        self.moments += 1
        return Rewrite(state=state, removed_rows=removed, kept_rows=len(kept), group=group)

    def _delete_of_ours(self, path: str, ids: set[int], name: str) -> StagedGroup:
        """Write a file of deletes; no manifest lists it yet."""
        staged = staged_group(f"{name}-deletes", rows=len(ids)).files[0]
        self._world.pause(f"write {staged.path}")
        self.files[staged.path] = pa.table({KEY: pa.array(sorted(ids), pa.int64())})
        self.position_deletes[staged.path] = {path: frozenset(ids)}
        self.rewritten.add(staged.path)
        self._world.counts["files of deletes"] += 1
        return StagedGroup(
            path=staged.path, size_bytes=staged.size_bytes, files=(staged,), detail=OF_DELETES
        )

    # ---- what others do ----------------------------------------------------------------------
    def append_rows(self) -> None:
        """Let another writer add a file with rows of both kinds."""
        self.append_file("mixed")

    def append_file(self, kind: FileRows, *, has_bounds: bool = True) -> None:
        """Let another writer add a file."""
        sides = ("inside", "outside", "outside") if kind == "mixed" else (kind,)
        ids = []
        for side in sides:
            self._others_ids[side] -= 1
            ids.append(self._others_ids[side])
        self.foreign_rows(ids)
        if not has_bounds:
            self.boundless.update(self.newest_files())

    def delete_rows(self, hidden: Mapping[str, Iterable[int]]) -> None:
        """Let another writer delete rows of files by position."""
        number = self._new_id()
        path = f"mem://data/foreign-{number}-deletes"
        self.position_deletes[path] = {file: frozenset(ids) for file, ids in hidden.items()}
        self._add(MemorySnapshot(snapshot_id=number, deletes=(path,), **self._on_head()))

    def rewrite_rows(self, paths: Iterable[str], *, without: Iterable[int] = ()) -> None:
        """Let another writer put the rows of files that are there into a new one, without some."""
        old, gone = self.files.keys() & set(paths), set(without)
        left = [id_ for path, id_ in self.rows_at(self.head) if path in old and id_ not in gone]
        deletes = {
            path for path in self._deletes_at(self.head) if old.issuperset(self._named_by(path))
        }
        self.foreign_rows(left, removed=frozenset(old | deletes))

    def compact(self) -> None:
        """Let another writer put all rows into one file."""
        self.rewrite_rows([file.path for file in self._live_files(self.head)])

    def expire(self) -> None:
        """Expire all snapshots but the newest, with the files that only they list."""
        old = set(self.snapshots) - {self.head} - self.expired
        live = {*self.live_at(self.head), *self._deletes_at(self.head)}
        for snapshot_id in old:
            for path in {*self.live_at(snapshot_id), *self._deletes_at(snapshot_id)} - live:
                self.files.pop(path, None)
                self.position_deletes.pop(path, None)
        self.expired |= old

    def roll_back(self, snapshot_id: int) -> None:
        """Make an older snapshot the head, if it is not expired."""
        if snapshot_id not in self.expired:
            super().roll_back(snapshot_id)

    # ---- what readers see --------------------------------------------------------------------
    def rows_at(self, head: int | None) -> Iterator[tuple[str, int]]:
        """Yield the rows of a snapshot, each with its file, even if that is gone since."""
        deletes = self._deletes_at(head)
        for path in self.live_at(head):
            hidden = {id_ for delete in deletes for id_ in self._hidden_by(delete, path)}
            for id_ in self._listed[path]:
                if id_ not in hidden:
                    yield path, id_

    def live_at(self, head: int | None) -> list[str]:
        """Return the data files of a snapshot."""
        return [file.path for file in self._live_files(head)]

    def newest_files(self) -> list[str]:
        """Return the files that the newest snapshot has added."""
        assert self.head is not None
        return [file.path for group in self.snapshots[self.head].groups for file in group.files]

    @property
    def reached(self) -> set[str]:
        """All files that a snapshot of the table refers to."""
        found = {path for snapshot in self.snapshots.values() for path in snapshot.written}
        for snapshot in self.snapshots.values():
            found.update(path for group in snapshot.groups for path in group.paths)
        return found

    def _deletes_at(self, head: int | None) -> list[str]:
        """Return the position deletes of a snapshot, oldest last."""
        found: list[str] = []
        gone: set[str] = set()
        for _ in self.snapshots:  # A broken table may be its own parent.
            if head is None:
                break
            snapshot = self.snapshots[head]
            found += [path for path in snapshot.deletes if path not in gone]
            gone |= snapshot.removed
            head = snapshot.parent_id
        return found

    def _named_by(self, delete: str) -> Iterable[str]:
        return self.position_deletes.get(delete, {})

    def _hidden_by(self, delete: str, path: str) -> frozenset[int]:
        return self.position_deletes.get(delete, {}).get(path, frozenset())

    # ---- how a loss is computed --------------------------------------------------------------
    def _chosen(self, head: int | None, change: Change) -> _Chosen:
        found, deletes = _Chosen(), self._deletes_at(head)
        for file in self._live_files(head):
            path = file.path
            verdict = self._verdict(path, change)
            if verdict == "none" or (change.base is not None and path not in change.base):
                continue
            if verdict == "some":
                applied = [delete for delete in deletes if path in self._named_by(delete)]
                more = [change.keys.name, change.write_mode or ""] if change.keys else []
                state = state_of(path, [*applied, *more])
                known = change.rewritten.get(state)
                if known is None:
                    found.targets[state] = json.dumps([state, path, applied])
                    continue
                if not known.removed_rows:
                    continue
                found.rows += known.removed_rows
                if known.group and known.group.detail == OF_DELETES:
                    found.deletes.append(known.group)
                    continue
                found.carried += [known.group] if known.group else []
            else:
                found.rows += file.rows
            found.paths.add(path)
        return found

    def _verdict(self, path: str, change: Change) -> Verdict:  # noqa: ARG002
        ids = self._listed[path]
        if ids and path in self.boundless:
            return "some"
        if not any(map(goes, ids)):
            return "none"
        return "all" if all(map(goes, ids)) else "some"

    def _should_go(self, id_: int, ours: Sequence[int]) -> bool:  # noqa: ARG002
        """Whether a row of the parent should be gone after a landing of other rows."""
        return goes(id_)

    def _refuse_changed(self, head: int | None, base: frozenset[str]) -> None:
        """Refuse if others have done more than add rows."""
        deletes = self._deletes_at(head)
        if gone := base - {*self.live_at(head), *deletes}:
            raise TableChangedError(table=self.name, change=f"{min(gone)} is gone")
        if new := set(deletes) - base:
            raise TableChangedError(table=self.name, change=f"rows were deleted by {min(new)}")

    def _read_metadata(self, label: str, snapshot_id: int | None) -> None:
        """Read the manifests of a snapshot, unless they went with it."""
        world = self._world
        world.pause(label)
        self.moments += 1
        if world.faults.calls and world.chance.happens(_READ_FAULTS):
            self._fault("no answer")
            raise StoreUnavailableError(uri="mem://metadata", reason="no answer")
        if snapshot_id is None:
            return
        if snapshot_id not in self.snapshots or snapshot_id in self.expired:
            raise StoreUnavailableError(uri="mem://metadata", reason="not found")

    def _refuse_misfit(self, view: TableView) -> None:
        if all(column.name != KEY for column in columns_of(view.schema)):
            raise SettingsError(what=f"where={WHERE}", cure="there is no such column")

    def _refuse_rows_outside(self, rows: pa.RecordBatch) -> None:
        if outside := [id_ for id_ in rows[KEY].to_pylist() if id_ is not None and not goes(id_)]:
            problem = f"{len(outside)} rows are outside where={WHERE}"
            raise ValueMisfitError(table=self.name, column=KEY, problem=problem)

    def _add(self, snapshot: MemorySnapshot) -> None:
        for group in (*snapshot.groups, *snapshot.carried):
            for file in group.files:
                ids = self.files[file.path]["id"].to_pylist() if file.path in self.files else []
                self._listed[file.path] = ids
        super()._add(snapshot)

    def _before_post(self, label: str) -> None:
        self.moments += 1
        super()._before_post(label)

    def _check_landing(
        self,
        snapshot_id: int,
        before: Sequence[StagedFile],  # noqa: ARG002 - without what deletes hide.
        change: Change,
    ) -> None:
        """Compare the rows with those of the parent that stay, and the new ones.

        Files that are gone are judged after the history, with what may excuse it.
        """
        landed = self.snapshots[snapshot_id]
        rest = [file.path for group in landed.carried for file in group.files]
        self._world.counts["landed with deletes"] += bool(landed.deletes)
        rest += landed.deletes
        if any(path not in self.files for path in rest):
            return
        base, ours = change.base, self._ids_of([f for group in change.adds for f in group.files])
        stays = [
            id_
            for path, id_ in self.rows_at(landed.parent_id)
            if not self._should_go(id_, ours) or (base is not None and path not in base)
        ]
        wanted, found = sorted([*stays, *ours]), sorted(id_ for _, id_ in self.rows_at(snapshot_id))
        self._world.counts["landed with a rest"] += bool(rest)
        if found != wanted:
            self.mislanded.append(f"snapshot {snapshot_id} has the rows {found}, not {wanted}")


@dataclass(frozen=True, slots=True)
class _RewriterSpec:
    table: FilteredTable
    change: Change

    def open(self, task_name: str) -> _Rewriter:
        return _Rewriter(self.table, self.change, task_name)


@dataclass(slots=True)
class _Rewriter:
    table: FilteredTable
    change: Change
    task_name: str
    files: int = 0

    def rewrite(self, item: str) -> Rewrite:
        self.files += 1
        return self.table.rewrite(item, f"{self.task_name}-{self.files - 1}", self.change)
