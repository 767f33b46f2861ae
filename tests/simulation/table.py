"""The table: Iceberg's semantics in memory, whose answers get lost or come late.

`MemoryTable` has what a post asserts, how sequence numbers grow, and what a rollback, a replace, an
expiry and a new table of the same name do; here every call is a step of the world.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from holdfast.errors import (
    CatalogUnavailableError,
    StoreUnavailableError,
    TableChangedError,
    TableMissingError,
)
from holdfast.model.work import Merge, StagedFile, StagedGroup
from holdfast.sinks.base import (
    Change,
    ColumnPath,
    Filter,
    Loss,
    MayLack,
    Outcome,
    RunMark,
    TableView,
    WriterSpec,
)
from holdfast.sinks.iceberg.schemas import added_columns
from tests.fakes.memory_table import MemorySnapshot, MemoryTable
from tests.simulation.columns import (
    Column,
    Columns,
    Misread,
    dropped,
    key_column,
    misread,
    renamed,
    widened,
)
from tests.simulation.world import World
from tests.simulation.writer import SimWriterSpec, changes_between, columns_of, schema_of

_READ_FAULTS = 0.01
_POST_FAULTS = 0.25
_STALLS = 0.12
_DELETE_FAULTS = 0.03


class _Backup(NamedTuple):
    """The catalog's view of the table at some time."""

    snapshots: dict[int, MemorySnapshot]
    marks: dict[str, RunMark]
    head: int | None
    horizon: int
    last_sequence_number: int
    columns: Columns
    last_number: int


class SimTable(MemoryTable):
    """One table for all drivers and other writers."""

    # Whether a client that sends a post again may get a conflict with its own first attempt.
    locks = True

    def __init__(self, world: World, *, empty: bool, file_rows: int | None) -> None:
        """Start with a snapshot of another writer's, or with none."""
        self._backups: list[_Backup] = []
        # The columns of an Iceberg table, the highest column number so far, and each column that
        # ever existed, by origin.
        self._columns = key_column(1)
        self._last_number = 1
        self.known_columns: dict[int, Column] = {}
        # The columns that each file was written for, and what readers of a landing do not find.
        self.written_for: dict[str, Columns] = {}
        self.misread: list[Misread] = []
        super().__init__(empty=empty)
        self.schema = schema_of(self._columns)
        self._world = world
        self.files.now = world.now
        self.file_rows = file_rows
        # All data snapshots that ever existed, including those of a table that was dropped since.
        self.ever: list[MemorySnapshot] = []
        self.landed_in: list[str] = []
        # Ids of all that ever landed, including what a rewound catalog has forgotten.
        self.ids_ever: set[int] = set()
        # Files that a driver has checked before its post: after that, nothing protects them.
        self.checked: set[str] = set()
        self.is_down = self.can_be_read = self.is_gone = False
        # Whether the catalog says for a while that there is no such table.
        self.is_hidden = False
        # Versions of ours that undid what others had done meanwhile.
        self.undone: list[int] = []
        # Intents whose post a sink did not send, and said so.
        self.unsent: set[int] = set()
        # The snapshots that were answered with a conflict.
        self.conflicts: set[int] = set()
        # How many posts drivers were about to make.
        self.posts_begun = 0
        # How many of the next posts find that another writer was faster.
        self.rivals = 0
        # Landings after which the table has other rows than it should.
        self.mislanded: list[str] = []
        self._foreign_ids = 0

    def load(self) -> TableView:
        """Load the table again."""
        world = self._world
        world.pause("load the table")
        if self.is_down and not self.can_be_read:
            raise CatalogUnavailableError(table=self.name, reason="it is down")
        if world.faults.calls and world.chance.happens(_READ_FAULTS):
            self._fault("no answer")
            raise CatalogUnavailableError(table=self.name, reason="503")
        if self.is_gone or self.is_hidden:
            raise TableMissingError(table=self.name, what="there is no such table")
        return super().load()

    def columns_since(self, view: TableView, began: Mapping[str, Any]) -> frozenset[ColumnPath]:
        """Return the columns that were added to the table since."""
        return added_columns(began, view.schema)

    def writer_spec(
        self,
        view: TableView,
        may_lack: MayLack = frozenset(),
        where: Filter | None = None,  # noqa: ARG002 - only real tables have filters.
        on: Sequence[str] = (),  # noqa: ARG002
        delete_column: str = "",  # noqa: ARG002
    ) -> WriterSpec:
        """Return a writer whose files are closed one by one."""
        columns = columns_of(view.schema)
        return SimWriterSpec(columns, self._world, self, may_lack, is_numbered=True)

    def columns_seen(self, view: TableView) -> Columns:
        """Return the columns that a look has seen, for a job that fills them."""
        return columns_of(view.schema)

    @property
    def columns(self) -> Columns:
        """The table's columns now."""
        return self._columns

    def change_columns(self, columns: Columns) -> None:
        """Let others give the table other columns."""
        self._columns, self.schema = columns, schema_of(columns)

    def add_column(self, name: str) -> None:
        """Let others add an optional column; Iceberg gives it a number that none has had."""
        self._last_number += 1
        self.change_columns((*self.columns, self._new_column(self._last_number, name)))

    def drop_column(self, number: int) -> None:
        """Let others drop a column."""
        self.change_columns(dropped(self.columns, number))

    def rename_column(self, number: int, name: str) -> None:
        """Let others rename a column."""
        self.change_columns(renamed(self.columns, number, name))

    def widen_column(self, number: int) -> None:
        """Let others widen a column; files of the old type still fit."""
        self.change_columns(widened(self.columns, number, number))

    def _new_column(self, number: int, name: str) -> Column:
        column = Column(number=number, name=name, origin=len(self.known_columns) + 1)
        self.known_columns[column.origin] = column
        return column

    def missing_files(self, view: TableView, groups: Sequence[StagedGroup]) -> list[str]:
        """Return the paths of files that were removed."""
        self._world.pause("look for missing files")
        return super().missing_files(view, groups)

    def old_groups(
        self, view: TableView, groups: Sequence[StagedGroup], before: float
    ) -> list[StagedGroup]:
        """Return the groups with a file that was written before a moment."""
        self._world.pause("look for old files")
        return super().old_groups(view, groups, before)

    def copy_file(self, source: str, target: str) -> None:
        """Copy one file, unless the process dies."""
        self._world.pause(f"copy {source} to {target}")
        super().copy_file(source, target)
        self.written_for[target] = self.written_for[source]
        self._world.counts["copies"] += 1

    def merge(
        self, view: TableView, groups: Sequence[StagedGroup], paths: Sequence[str]
    ) -> list[Merge]:
        """Write groups that stand for small ones, unless the process dies."""
        self._world.pause(f"write {paths[0]}")
        self._world.counts["merges"] += 1
        return super().merge(view, groups, paths)

    def check(
        self,
        view: TableView,
        schemas: Sequence[dict[str, Any]],
        groups: Sequence[StagedGroup],  # noqa: ARG002 - it has no partitions.
    ) -> None:
        """Raise if the schema has changed."""
        for schema in schemas:
            if changes := changes_between(json.dumps(schema), json.dumps(view.schema)):
                raise TableChangedError(table=self.name, change=changes)

    def refuse_missing_files(self, view: TableView, groups: Sequence[StagedGroup]) -> None:
        """Raise if staged files are gone; for a while others leave those alone that are there."""
        super().refuse_missing_files(view, groups)
        self.checked |= {path for group in groups for path in group.paths}

    def delete_files(self, view: TableView, paths: Sequence[str]) -> None:
        """Delete files one by one, until the process dies."""
        self.refuse_outside(paths)
        for path in paths:
            self._world.pause(f"delete {path}")
            self._deleted(view, path)

    def post_empty(self, view: TableView) -> Outcome:
        """Give the table a first, empty snapshot."""
        return self._posted("post an empty snapshot", lambda: self._arrives_empty(view))

    def post(self, view: TableView, run_id: str, mark: RunMark, change: Change) -> Outcome:
        """Publish the change."""

        def arrives() -> bool:
            if view.uuid != self.uuid or self.is_gone:
                return False
            before = self._live_files(self.head)
            if super(SimTable, self).post(view, run_id, mark, change) is not Outcome.LANDED:
                return False
            self._check_landing(mark.snapshot_id, before, change)
            self._read_landing(change.adds)
            self.ever.append(self.snapshots[mark.snapshot_id])
            self.ids_ever.add(mark.snapshot_id)
            self.landed_in.append(self.uuid)
            return True

        outcome = self._posted(f"post intent {mark.intent_number}", arrives)
        if outcome is Outcome.CONFLICT:
            self.conflicts.add(mark.snapshot_id)
        return outcome

    def states(self, view: TableView, snapshot_id: int | None) -> frozenset[str]:
        """Return which files are live in a snapshot."""
        self._world.pause("read the states")
        return super().states(view, snapshot_id)

    def loss(self, view: TableView, change: Change, name: str) -> Loss:
        """Return what a change removes from the table."""
        self._world.pause("compute the loss")
        return super().loss(view, change, name)

    def append_rows(self) -> None:
        """Let another writer add a snapshot with a row of its own."""
        self._foreign_ids += 1
        self.foreign_rows([-self._foreign_ids])

    def compact(self) -> None:
        """Let another writer put all rows into one file."""
        live = self._live_files(self.head)
        self.foreign_rows(self._ids_of(live), frozenset(file.path for file in live))

    def replace(self) -> None:
        """Replace the table's content, as CREATE OR REPLACE does: a new history starts."""
        self.head = None
        self.foreign_append()

    def make_again(self) -> None:
        """Drop the table, and create one of the same name."""
        self.uuid, self.is_gone = f"{self.uuid}+", False
        self._backups = []
        self.snapshots, self.marks, self.head = {}, {}, None
        self.last_sequence_number = self.horizon = 0
        self._last_number = 1
        self.change_columns(key_column(1))
        self.foreign_append()

    def rewind_to(self, version: int) -> None:
        """Restore the catalog from a backup: what came after it is lost."""
        backup = self._backups[version]
        self._backups = self._backups[: version + 1]
        self.snapshots, self.marks = dict(backup.snapshots), dict(backup.marks)
        self.head, self.horizon = backup.head, backup.horizon
        self.last_sequence_number = backup.last_sequence_number
        self._last_number = backup.last_number
        self.change_columns(backup.columns)
        self.ever = [snapshot for snapshot in self.ever if snapshot.snapshot_id in self.snapshots]
        self.landed_in = self.landed_in[: len(self.ever)]

    @property
    def versions(self) -> int:
        """How many versions the table has had."""
        return len(self._backups)

    def _add(self, snapshot: MemorySnapshot) -> None:
        self._backups.append(
            _Backup(
                dict(self.snapshots),
                dict(self.marks),
                self.head,
                self.horizon,
                self.last_sequence_number,
                self._columns,
                self._last_number,
            )
        )
        super()._add(snapshot)

    def _read_landing(self, groups: Sequence[StagedGroup]) -> None:
        """Read what has just landed, as any reader does: by the numbers of the columns."""
        for group in groups:
            for path in (file.path for file in group.files):
                if path in self.files:
                    written = self.written_for[path]
                    self.misread += misread(
                        path, self.files[path], written, self.columns, self.known_columns
                    )

    def _check_landing(
        self, snapshot_id: int, before: Sequence[StagedFile], change: Change
    ) -> None:
        """Compare the table's rows with what the mode makes of those before it and the new ones."""
        ours = self._ids_of([file for group in change.adds for file in group.files])
        if change.removes == "all":
            before = [f for f in before if change.base is not None and f.path not in change.base]
        wanted = sorted([*self._ids_of(before), *ours])
        found = self._ids_of(self._live_files(self.head))
        if found != wanted:
            self.mislanded.append(f"snapshot {snapshot_id} has the rows {found}, not {wanted}")

    def _ids_of(self, files: Sequence[StagedFile]) -> list[int]:
        """Return the ids in files, as far as they are there."""
        paths = [file.path for file in files if file.path in self.files]
        return sorted(int(id_) for path in paths for id_ in self.files[path]["id"].to_pylist())

    def _arrives_empty(self, view: TableView) -> bool:
        if view.uuid != self.uuid or self.is_gone or self.head != view.handle.head:
            return False
        self.foreign_append()
        return True

    def _posted(self, label: str, arrives: Callable[[], bool]) -> Outcome:
        self._before_post(label)
        return self._answered(self._delivered(label, arrives))

    def _answered(self, outcome: Outcome) -> Outcome:
        """Return the answer that a driver gets; a missing answer takes some time."""
        if outcome is Outcome.UNKNOWN:
            self._world.rest()
        return outcome

    def _before_post(self, label: str) -> None:
        """Let others act before a post, for long if the driver's machine stalls."""
        self.posts_begun += 1
        self._world.pause(label)
        if self._world.faults.calls and self._world.chance.happens(_STALLS):
            self._fault("the driver stalls before it posts")
            self._world.sleep((20.0, 300.0)[self._world.chance.of(2)])

    def _delivered(self, label: str, arrives: Callable[[], bool]) -> Outcome:
        """Let a post arrive, or inject a fault."""
        world = self._world
        world.counts["posts"] += 1
        if self.is_down or self.is_hidden:
            return Outcome.UNKNOWN if self.is_down else Outcome.CONFLICT
        if self.rivals:
            self.rivals -= 1
            self.append_rows()
        fault = world.chance.of(6, _POST_FAULTS) if world.faults.calls else 0
        if what := self._UNSEEN.get(fault):
            return self._unseen(label, arrives, fault, what)
        landed = arrives()
        world.note(f"  {'landed' if landed else 'refused'}")
        if fault == 3:
            self._fault("the answer is lost")
            return Outcome.UNKNOWN
        if fault == 4:
            self._fault("the answer is a conflict, whatever happened")
            return Outcome.CONFLICT
        return Outcome.LANDED if landed else Outcome.CONFLICT

    _UNSEEN = MappingProxyType(
        {
            1: "it does not arrive",
            2: "it arrives late",
            5: "the answer is a conflict, with its own first try that is under way",
        }
    )

    def _unseen(self, label: str, arrives: Callable[[], bool], fault: int, what: str) -> Outcome:
        """Return the answer to a post that does not arrive, or not yet."""
        self._fault(what)
        if fault != 1:
            self._world.spawn(f"late: {label}", lambda: self._late_post(label, arrives))
        return Outcome.CONFLICT if fault == 5 and self.locks else Outcome.UNKNOWN

    def _deleted(self, view: TableView, path: str) -> None:
        """Delete one file, unless the call fails."""
        world = self._world
        fault = world.chance.of(4, _DELETE_FAULTS) if world.faults.calls else 0
        if fault == 1:
            self._fault("it does not arrive")
            raise StoreUnavailableError(uri=path, reason="no answer")
        if fault == 2:
            self._fault("it arrives late")
            world.spawn(f"late: delete {path}", lambda: self._late_delete(view, path))
            raise StoreUnavailableError(uri=path, reason="no answer yet")
        super().delete_files(view, [path])
        if fault == 3:
            self._fault("the answer is lost")
            raise StoreUnavailableError(uri=path, reason="the answer is lost")

    def _late_delete(self, view: TableView, path: str) -> None:
        self._world.rest()
        self._world.pause(f"delete {path}")
        super().delete_files(view, [path])

    def _late_post(self, label: str, arrives: Callable[[], bool]) -> None:
        self._world.rest()
        self._world.pause(label)
        self._world.note(f"  {'landed' if arrives() else 'refused'}")

    def _fault(self, what: str) -> None:
        self._world.faults.calls -= 1
        self._world.counts["lost answers"] += 1
        self._world.note(f"  fault: {what}")
