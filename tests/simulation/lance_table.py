"""The table with Lance's semantics: the real sink on a dataset in memory.

The sink itself looks, posts and looks up; only what is below it is simulated. A merge lands unless
something other than a setting or an index has come since the version that it was built on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast
from unittest import mock

from lance import Transaction
from lance.commit import CommitConflictError

from holdfast.errors import StoreUnavailableError, TableChangedError, TableMissingError
from holdfast.model.records import Intent
from holdfast.model.work import StagedGroup
from holdfast.sinks.base import (
    Change,
    ColumnPath,
    Filter,
    Loss,
    MarkFound,
    MayLack,
    Outcome,
    RunMark,
    TableView,
    WriterSpec,
)
from holdfast.sinks.lance import post as lance_post
from holdfast.sinks.lance.post import changes_since
from holdfast.sinks.lance.sink import LanceSink
from tests.fakes.memory_table import MemorySnapshot
from tests.simulation.columns import Columns
from tests.simulation.lance_dataset import SimDataset, SimFile, SimFolder, SimVersion
from tests.simulation.lance_place import SimPlace
from tests.simulation.table import SimTable
from tests.simulation.world import World
from tests.simulation.writer import SimWriterSpec

_READ_FAULTS = 0.004

_Posting = tuple[RunMark, Change]


class LanceSimTable(SimTable):
    """One dataset for all drivers and other writers."""

    # A version that is sent again conflicts with the first only if that one is there.
    locks = False

    def __init__(self, world: World, *, empty: bool, file_rows: int | None) -> None:
        """Start with a version of another writer's rows, or with one without rows."""
        self._began_empty = empty
        self.folder = SimFolder(self.name)
        self.folder.create()
        # What is about to be committed: Lance itself knows only fragments.
        self._posting: _Posting | None = None
        self._is_sending = False
        self._commits = 0
        super().__init__(world, empty=empty, file_rows=file_rows)
        place = SimPlace(uri=self.name, options={}, table=self)
        self._sink = LanceSink(place, rows_per_file=1, bytes_per_file=1)

    # ---- what the engine asks for ------------------------------------------------------------
    def load(self) -> TableView:
        """Load the dataset again."""
        return self._sink.load()

    def columns_since(self, view: TableView, began: Mapping[str, Any]) -> frozenset[ColumnPath]:
        """Return the columns that were added to the dataset since."""
        return self._sink.columns_since(view, began)

    def writer_spec(
        self,
        view: TableView,
        may_lack: MayLack = frozenset(),
        where: Filter | None = None,  # noqa: ARG002 - only real tables have filters.
        on: Sequence[str] = (),  # noqa: ARG002
        delete_column: str = "",  # noqa: ARG002
    ) -> WriterSpec:
        """Return a writer whose files are closed one by one."""
        columns = self.columns_seen(view)
        return SimWriterSpec(columns, self._world, self, may_lack, is_numbered=False)

    def columns_seen(self, view: TableView) -> Columns:
        """Return the columns that a look has seen, for a job that fills them."""
        columns: Columns = view.handle.dataset.lance_schema.columns
        return columns

    def find_mark(
        self, view: TableView, run_id: str, run_nonce: str, intents: Mapping[int, Intent]
    ) -> MarkFound | None:
        """Look for the run's mark, and into the history where it is gone."""
        return self._sink.find_mark(view, run_id, run_nonce, intents)

    def live_files(
        self,
        view: TableView,  # noqa: ARG002 - it is one version, but all versions count.
        paths: Sequence[str],
        run_nonce: str,  # noqa: ARG002 - Lance names its files.
    ) -> set[str]:
        """Return the files that an existing version reaches."""
        self.refuse_outside(paths)
        live: set[str] = set()
        for version in self.folder.there.values():
            files = {file.path for file in version.fragments.values()}
            groups = [group for group in version.groups if files.intersection(group.paths)]
            live.update(path for group in groups for path in group.paths)
        return live.intersection(paths)

    def states(self, view: TableView, snapshot_id: int | None) -> frozenset[str]:
        """Return which fragments are in a version."""
        self._world.pause("read the states")
        return self._sink.states(view, snapshot_id)

    def loss(self, view: TableView, change: Change, name: str) -> Loss:
        """Return which fragments a change removes."""
        self._world.pause("compute the loss")
        return self._sink.loss(view, change, name)

    def check(
        self,
        view: TableView,
        schemas: Sequence[dict[str, Any]],
        groups: Sequence[StagedGroup],  # noqa: ARG002 - only real fragments have details.
    ) -> None:
        """Raise if the schema has changed."""
        if changes := changes_since(view.handle, schemas, view.schema):
            raise TableChangedError(table=self.name, change="; ".join(changes))

    def merge_paths(self, view: TableView, groups: Sequence[StagedGroup], name: str) -> list[str]:
        """Return nothing: a version lists its fragments one by one."""
        return self._sink.merge_paths(view, groups, name)

    def new_snapshot_id(self, view: TableView) -> int:
        """Return the version that a post makes, if nothing comes in between."""
        return self._sink.new_snapshot_id(view)

    def post_empty(self, view: TableView) -> Outcome:
        """Make a version that adds nothing."""
        self._before_post("post an empty version")
        with self._sent(None):
            outcome = self._sink.post_empty(view)
        return self._answered(outcome)

    def post(self, view: TableView, run_id: str, mark: RunMark, change: Change) -> Outcome:
        """Publish the change."""
        self._before_post(f"post intent {mark.intent_number}")
        sent = self._commits
        outcome = self.send(view, run_id, mark, change)
        if self._commits == sent:
            self.unsent.add(mark.intent_number)
        return self._answered(outcome)

    def send(self, view: TableView, run_id: str, mark: RunMark, change: Change) -> Outcome:
        """Check what has come since and commit."""
        with self._sent((mark, change)):
            return self._sink.post(view, run_id, mark, replace(change, adds=()))

    @contextmanager
    def _sent(self, posting: _Posting | None) -> Iterator[None]:
        """Let the sink post; no actor comes between its checks and Lance's: that gap is open."""
        self._posting, self._is_sending = posting, True
        try:
            with mock.patch.object(lance_post, "LanceDataset", self):
                yield
        finally:
            self._is_sending = False

    # ---- what the sink asks of Lance ---------------------------------------------------------
    def commit(
        self, dataset: SimDataset, transaction: Transaction, **_options: object
    ) -> SimDataset:
        """Do what Lance's own commit does.

        Raises:
            CommitConflictError: It is refused, or reported to be.
            OSError: There is no answer.
        """
        self._commits += 1
        posting, uuid, folder = self._posting, self.uuid, self.folder
        made: list[SimDataset] = []
        # As Lance does it: see what has come since, then put the next version if there is none.
        number = None if self.refuses(transaction) else folder.newest + 1

        def is_put() -> bool:
            # Not simulated: a dataset that was created again while a request is on its way.
            if self.is_gone or self.uuid != uuid or number is None or number in folder.there:
                return False
            self._put(number, transaction, posting)
            made.append(self._look())
            return True

        what = "an empty version" if posting is None else f"intent {posting[0].intent_number}"
        outcome = self._delivered(f"post {what}", is_put)
        if outcome is Outcome.UNKNOWN:
            raise OSError("connection reset by peer")
        if outcome is Outcome.CONFLICT:
            raise CommitConflictError(f"version {dataset.version} is not the newest")
        return made[0]

    def refuses(self, transaction: Transaction) -> bool:
        """Whether Lance refuses a merge."""
        fragments = transaction.operation.fragments  # type: ignore[attr-defined]
        return self.folder.refuses(transaction.read_version) or self.folder.lacks(
            fragment.id for fragment in fragments
        )

    def opened(self) -> SimDataset:
        """Open the newest version.

        Raises:
            StoreUnavailableError: There is no answer.
            TableMissingError: There is no such dataset.
        """
        try:
            self._read("load the table")
        except OSError as error:
            raise StoreUnavailableError(uri=self.name, reason=str(error)) from error
        if self.is_gone or self.is_hidden:
            raise TableMissingError(table=self.name, what="there is no such dataset")
        return self._look()

    # ---- what others do ----------------------------------------------------------------------
    @property
    def ids(self) -> list[int]:
        """The ids of all rows that a reader of the table sees, sorted."""
        groups = self.folder.head.groups
        paths = [file.path for group in groups for file in group.files]
        return sorted(id_ for path in paths for id_ in self.files[path]["id"].to_pylist())

    def append_rows(self) -> None:
        """Let another writer add a version; its rows are not kept here."""
        self.foreign_append()

    def foreign_append(self) -> None:
        """Let another writer add rows."""
        self.folder.append()

    def replace(self) -> None:
        """Overwrite the dataset: its marks go with its rows."""
        self.folder.overwrite()

    def roll_back(self, snapshot_id: int) -> None:
        """Restore an older version, which makes a new one."""
        self.folder.restore(snapshot_id)

    def drop_marks(self) -> None:
        """Remove the schema's metadata."""
        schema = replace(self.folder.head.schema, metadata={})
        self.folder.change("UpdateConfig", schema=schema)

    @property
    def columns(self) -> Columns:
        """The dataset's columns now."""
        return self.folder.head.schema.columns

    def change_columns(self, columns: Columns) -> None:
        """Rename or drop columns."""
        self.folder.change_columns("Project", columns)

    def add_column(self, name: str) -> None:
        """Let others add a column; Lance may give it the number of one that was dropped."""
        self.folder.add_column(self._new_column(self.folder.new_number(), name))

    def widen_column(self, number: int) -> None:
        """Let others widen a column, which gives it another number too."""
        self.folder.cast_column(number)

    def make_again(self) -> None:
        """Drop the dataset, and create one of the same name."""
        self.uuid, self.is_gone = f"{self.uuid}+", False
        self.folder.create()
        if not self._began_empty:
            self.foreign_append()

    def _look(self) -> SimDataset:
        return SimDataset(self.folder, self.folder.newest, self._read)

    def _read(self, label: str) -> None:
        world = self._world
        if self._is_sending:
            return
        world.pause(label)
        if self.is_down and not self.can_be_read:
            raise OSError("it is down")
        if world.faults.calls and world.chance.happens(_READ_FAULTS):
            self._fault("no answer")
            raise OSError("503")

    def _put(self, number: int, transaction: Transaction, posting: _Posting | None) -> None:
        """Put a version of ours, on top or at a number that was cleaned up."""
        folder, merge = self.folder, cast("Any", transaction.operation)
        mark, change = posting or (None, Change())
        groups = tuple(change.adds)
        there = {
            fragment.id: SimFile(
                fragment.files[0].path,
                tuple(fragment.files[0].fields),
                tuple(file.fields[0] for file in fragment.files[1:]),
            )
            for fragment in merge.fragments
        }
        whole = {part.id for part in merge.fragments if part.deletion_file is not None}
        below = {number: file for number, file in there.items() if number not in whole}
        paths = [file.path for group in groups for file in group.files]
        numbers = [tuple(column.number for column in self.written_for[path]) for path in paths]
        files = [SimFile(*pair) for pair in zip(paths, numbers, strict=True)]
        version = SimVersion(
            operation=merge,
            properties=transaction.transaction_properties or {},
            schema=merge.schema,
            fragments={**below, **folder.new_fragments(files)},
            groups=(*self._left(below), *groups),
            is_stray=number <= folder.newest,
        )
        head = folder.head
        folder.put(number, version)
        self._world.note(f"  version {number} of {folder.newest}")
        if version.is_stray:
            return  # No later version was built on it: nothing has landed.
        if (there, merge.schema.columns) != (head.fragments, head.schema.columns):
            self.undone.append(number)
        if mark is None:
            return
        self._check_removed(number, below, change)
        self._read_landing(groups)
        self.ids_ever.add(number)
        self.landed_in.append(self.uuid)
        self.ever.append(
            MemorySnapshot(
                snapshot_id=number,
                parent_id=transaction.read_version,
                sequence_number=number,
                mark=mark,
                groups=groups,
            )
        )

    def _left(self, fragments: Mapping[int, SimFile]) -> list[StagedGroup]:
        """Return which of our groups are in fragments; a rewritten file may hold any of them."""
        files = {file.path for file in fragments.values()}
        if "" in files:
            return list(self.folder.head.groups)
        return [group for group in self.folder.head.groups if files.intersection(group.paths)]

    def _check_removed(self, number: int, below: Mapping[int, SimFile], change: Change) -> None:
        """Compare the old fragments that are left with those that the mode leaves."""
        if change.removes != "all":
            return
        base = None if change.base is None else {int(state.split()[0]) for state in change.base}
        wrong = [part for part in below if base is None or part in base]
        if wrong:
            self.mislanded.append(f"version {number} still has the fragments {wrong}")
