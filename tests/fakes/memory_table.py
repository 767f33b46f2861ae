"""A table in memory behind the sink protocol, with switches for what real catalogs do wrong.

A post is a true compare-and-set on the head that its view saw, as the protocol demands; the
switches change what arrives, when it arrives, and what answer the caller gets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa

from holdfast.errors import (
    CatalogUnavailableError,
    CommitRefusedError,
    CommitUnknownError,
    LedgerDamagedError,
    RunMismatchError,
    StagedFileMissingError,
    StoreUnavailableError,
    TableChangedError,
    UnsupportedTableError,
)
from holdfast.model.records import Intent
from holdfast.model.work import Merge, StagedFile, StagedGroup
from holdfast.sinks.base import (
    Change,
    ColumnPath,
    Filter,
    Loss,
    MarkFound,
    MayLack,
    Outcome,
    RewriterSpec,
    RunMark,
    StagedReaderSpec,
    TableView,
    WriterSpec,
)
from holdfast.sinks.staged import refuse_foreign, refuse_outside
from tests.fakes.memory_storage import DriverDiedError
from tests.fakes.memory_writer import MemoryWriterSpec, TimedFiles, size_of

__all__ = ["DriverDiedError", "MemorySnapshot", "MemoryTable", "PostFault", "Removal"]


class PostFault(Enum):
    """How one post goes wrong."""

    ANSWER_LOST = "it lands, and no answer comes"
    NEVER_ARRIVES = "it does not land, and no answer comes"
    RIVAL_FIRST = "another writer was faster: refused"
    LANDS_AS_CONFLICT = "it lands, and the answer is a conflict"
    DELAYED = "no answer comes, and it arrives after the next look"
    CONFLICT_THEN_LANDS = "a copy of it is answered with a conflict; it arrives on request"
    REFUSED = "the catalog says no, for good"
    LANDS_REFUSED = "it lands, and the answer is no, for good"
    DIES_UNSENT = "the driver dies before it is sent"
    DIES_LANDED = "it lands, and the driver dies"
    DIES_DELAYED = "the driver dies, and it arrives after the next driver's look"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySnapshot:
    """One snapshot; `mark` is None for other writers' and for empty ones."""

    snapshot_id: int
    parent_id: int | None
    sequence_number: int
    mark: RunMark | None = None
    groups: tuple[StagedGroup, ...] = ()
    # The files that it removes, the rows of these that stay, and what the post has written.
    removed: frozenset[str] = frozenset()
    carried: tuple[StagedGroup, ...] = ()
    written: tuple[str, ...] = ()
    # The position deletes that it adds, by path.
    deletes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What a loss means for the next snapshot: the files that go, and new ones with their rest."""

    paths: frozenset[str] = frozenset()
    carried: tuple[StagedGroup, ...] = ()
    # Position deletes for files that stay, by path.
    deletes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What a look at the table saw: later changes do not reach it, as with loaded metadata."""

    head: int | None
    marks: Mapping[str, RunMark]
    horizon: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Post:
    head_seen: int | None
    schema_seen: Mapping[str, Any]
    run_id: str
    mark: RunMark
    groups: tuple[StagedGroup, ...]
    removal: Removal
    written: tuple[str, ...]


class MemoryTable:
    """One table. Without faults every post lands at once."""

    name = "lake.db.t"

    def __init__(self, *, empty: bool = False) -> None:
        """Start with one foreign snapshot, or with none."""
        self.uuid = "uuid-1"
        self.schema: dict[str, Any] = {"columns": ["id"]}
        self.snapshots: dict[int, MemorySnapshot] = {}
        self.head: int | None = None
        self.last_sequence_number = 0
        self.marks: dict[str, RunMark] = {}
        self.horizon = 0  # At or below this, a missing mark proves nothing.
        self.history_hidden = False
        # What writers have written, by path, and which of it was removed since.
        self.files = TimedFiles()
        self.lost_files: list[str] = []
        self.deleted_files: list[str] = []
        # How many rows fill a task's files; None: they are never full.
        self.file_rows: int | None = None
        self.post_faults: deque[PostFault | None] = deque()
        # Of these, a first, empty snapshot supports those that lose the answer.
        self.post_empty_faults: deque[PostFault | None] = deque()
        self.empty_posts = 0
        self.posts: list[RunMark] = []
        self.losses = 0  # How often a loss was computed.
        # Each runs once, just before or after the next post: what other writers do meanwhile.
        self.before_post: Callable[[], object] | None = None
        self.after_post: Callable[[], object] | None = None
        self.load_failures = 0  # How many of the next looks get no answer.
        self._late: list[_Post] = []
        self._held: list[_Post] = []
        self._next_id = 1000
        if not empty:
            self.foreign_append()

    @property
    def data_snapshots(self) -> list[MemorySnapshot]:
        """All snapshots that a run's post has made, in any branch of history."""
        return [snapshot for snapshot in self.snapshots.values() if snapshot.mark is not None]

    @property
    def ids(self) -> list[int]:
        """The ids of all rows that a reader of the table sees, sorted."""
        paths = [file.path for file in self._live_files(self.head)]
        return sorted(id_ for path in paths for id_ in self.files[path]["id"].to_pylist())

    def _live_files(self, head: int | None) -> list[StagedFile]:
        """Return what a snapshot and those before it have added, and none has removed."""
        found: list[StagedFile] = []
        gone: set[str] = set()
        for _ in self.snapshots:  # A broken table may be its own parent.
            if head is None:
                break
            snapshot = self.snapshots[head]
            files = [f for group in (*snapshot.groups, *snapshot.carried) for f in group.files]
            found += [file for file in files if file.path not in gone]
            gone |= snapshot.removed
            head = snapshot.parent_id
        return found

    def foreign_append(self) -> None:
        """Let another writer add a snapshot."""
        self._add(MemorySnapshot(snapshot_id=self._new_id(), **self._on_head()))

    def foreign_rewrite(self, ids: Sequence[int] = ()) -> None:
        """Let another writer put all rows into one file, with more of its own."""
        live = frozenset(file.path for file in self._live_files(self.head))
        self.foreign_rows([*self.ids, *ids], removed=live)

    def foreign_rows(self, ids: Sequence[int], removed: frozenset[str] = frozenset()) -> None:
        """Let another writer add a snapshot with rows, in place of other files."""
        path = f"mem://data/foreign-{self._new_id()}"
        self.files[path] = pa.table({"id": pa.array(ids, pa.int64())})
        file = StagedFile(path=path, size_bytes=size_of(self.files[path]), rows=len(ids))
        group = StagedGroup(path=f"{path}.manifest", size_bytes=1, files=(file,), detail={})
        self._add(
            MemorySnapshot(
                snapshot_id=self._new_id(), groups=(group,), removed=removed, **self._on_head()
            )
        )

    def roll_back(self, snapshot_id: int) -> None:
        """Make an older snapshot the head; properties stay, as in Iceberg."""
        self.head = snapshot_id

    def rewind(self) -> None:
        """Restore the catalog from a backup older than every run's snapshot."""
        first = next(snapshot for snapshot in self.snapshots.values() if snapshot.mark is None)
        self.snapshots = {first.snapshot_id: first}
        self.head, self.last_sequence_number = first.snapshot_id, first.sequence_number
        self.marks = {}

    def drop_marks(self) -> None:
        """Drop all marks and raise the horizon, as a hundred later runs would."""
        self.marks = {}
        self.horizon = self.last_sequence_number

    def load(self) -> TableView:
        """Load the table again."""
        if self.load_failures > 0:
            self.load_failures -= 1
            raise CatalogUnavailableError(table=self.name, reason="503")
        return TableView(
            uuid=self.uuid,
            schema=dict(self.schema),
            parent_snapshot_id=self.head,
            next_sequence_number=self.last_sequence_number + 1,
            settled_below=self.last_sequence_number + 1,
            handle=_Seen(head=self.head, marks=dict(self.marks), horizon=self.horizon),
        )

    def unindexed_rows(self) -> dict[str, int]:
        """Return nothing: the table has no indices."""
        return {}

    def columns_since(self, view: TableView, began: Mapping[str, Any]) -> frozenset[ColumnPath]:
        """Return the columns that were added to the table since."""
        if not isinstance(began.get("columns"), list):
            raise LedgerDamagedError(uri="log", reason="a plan holds no schema of a table")
        return frozenset(
            (column,) for column in view.schema["columns"] if column not in began["columns"]
        )

    def writer_spec(
        self,
        view: TableView,
        may_lack: MayLack = frozenset(),
        where: Filter | None = None,  # noqa: ARG002 - only real tables have filters.
        on: Sequence[str] = (),  # noqa: ARG002
        delete_column: str = "",  # noqa: ARG002
    ) -> WriterSpec:
        """Return a writer that keeps its rows in memory."""
        schema = pa.schema([(name, pa.int64()) for name in view.schema["columns"]])
        return MemoryWriterSpec(
            schema, files=self.files, file_rows=self.file_rows, may_lack=may_lack
        )

    def find_mark(
        self, view: TableView, run_id: str, run_nonce: str, intents: Mapping[int, Intent]
    ) -> MarkFound | None:
        """Look for the run's mark; a delayed post arrives right after."""
        copied = (mark for mark in view.handle.marks.values() if mark.run_nonce == run_nonce)
        mark = view.handle.marks.get(run_id) or next(copied, None)
        while self._late:
            self._arrive(self._late.pop(0))
        if mark is None:
            if any(intent.sequence_number <= view.handle.horizon for intent in intents.values()):
                raise CommitUnknownError(table=self.name, run_id=run_id, reason="horizon")
            return None
        if mark.run_nonce != run_nonce:
            raise RunMismatchError(run_id=run_id, differences="another ledger's run")
        return MarkFound(mark=mark, present=self._present(view.handle.head, mark))

    def check(
        self,
        view: TableView,
        schemas: Sequence[dict[str, Any]],
        groups: Sequence[StagedGroup],  # noqa: ARG002 - it has no partitions.
    ) -> None:
        """Raise if the schema has changed."""
        if any(view.schema != schema for schema in schemas):
            raise TableChangedError(table=self.name, change="columns")

    def missing_files(
        self,
        view: TableView,  # noqa: ARG002 - a real sink finds its storage there.
        groups: Sequence[StagedGroup],
    ) -> list[str]:
        """Return the paths of staged files and groups that were removed."""
        staged = {file.path for group in groups for file in group.files}
        staged |= {group.path for group in groups}
        resized = {
            file.path
            for group in groups
            for file in group.with_keys
            if file.path in self.files and file.size_bytes != size_of(self.files[file.path])
        }
        gone = staged.intersection(self.lost_files) | staged.intersection(self.deleted_files)
        return sorted(gone | resized)

    def old_groups(
        self, view: TableView, groups: Sequence[StagedGroup], before: float
    ) -> list[StagedGroup]:
        """Return the groups with a file that was written before a moment."""
        self._refuse_missing(view, groups)
        written_at = self.files.written_at
        return [
            group for group in groups if any(written_at[f.path] < before for f in group.with_keys)
        ]

    def copy_groups(
        self, view: TableView, groups: Sequence[StagedGroup], targets: Sequence[StagedGroup]
    ) -> list[StagedGroup]:
        """Copy groups file by file."""
        self._refuse_missing(view, groups)
        for group, target in zip(groups, targets, strict=True):
            for file, copy in zip(group.with_keys, target.with_keys, strict=True):
                self.copy_file(file.path, copy.path)
        return list(targets)

    def copy_file(self, source: str, target: str) -> None:
        """Copy one file, unless it has just been removed."""
        if source not in self.files:
            raise StagedFileMissingError(table=self.name, count=1, path=source)
        self.files[target] = self.files[source]

    def refuse_missing_files(self, view: TableView, groups: Sequence[StagedGroup]) -> None:
        """Raise if staged files are gone."""
        self._refuse_missing(view, groups)

    def _refuse_missing(self, view: TableView, groups: Sequence[StagedGroup]) -> None:
        if gone := self.missing_files(view, groups):
            raise StagedFileMissingError(table=self.name, count=len(gone), path=gone[0])

    def live_files(
        self,
        view: TableView,  # noqa: ARG002
        paths: Sequence[str],
        run_nonce: str,
    ) -> set[str]:
        """Return the files that any snapshot of the table adds."""
        self.refuse_outside(paths)
        refuse_foreign(self.name, run_nonce, paths)
        groups = [group for snapshot in self.snapshots.values() for group in snapshot.groups]
        found = {path for group in groups for path in group.paths}
        found.update(path for snapshot in self.snapshots.values() for path in snapshot.written)
        return found.intersection(paths)

    def delete_files(self, view: TableView, paths: Sequence[str]) -> None:  # noqa: ARG002
        """Delete staged files; a path outside the table is refused."""
        self.refuse_outside(paths)
        self.deleted_files += paths
        for path in paths:
            self.files.pop(path, None)

    def merge_paths(
        self,
        view: TableView,  # noqa: ARG002
        groups: Sequence[StagedGroup],
        name: str,
    ) -> list[str]:
        """Return one path for all, if there are several."""
        return [f"mem://metadata/{name}-merged-0"] if len(groups) > 1 else []

    def merge(
        self,
        view: TableView,
        groups: Sequence[StagedGroup],
        paths: Sequence[str],
    ) -> list[Merge]:
        """Write an object that stands for all groups."""
        self._refuse_missing(view, groups)
        (path,) = paths
        self.files[path] = pa.table({"id": pa.array([], pa.int64())})
        group = StagedGroup(path=path, size_bytes=10, files=(), detail={})
        return [Merge(group=group, sources=tuple(group.path for group in groups))]

    def refuse_outside(self, paths: Sequence[str]) -> None:
        """Raise, before anything is deleted, if one path is outside the table."""
        refuse_outside(self.name, ["mem://data", "mem://metadata"], paths)

    def new_snapshot_id(self, view: TableView) -> int:  # noqa: ARG002
        """Return an id that no snapshot of the table has, in any view."""
        return self._new_id()

    def post_empty(self, view: TableView) -> Outcome:
        """Give the table a first, empty snapshot, unless a fault is due."""
        self.empty_posts += 1
        fault = self.post_empty_faults.popleft() if self.post_empty_faults else None
        if fault is PostFault.NEVER_ARRIVES:
            return Outcome.UNKNOWN
        if self.head != view.handle.head:
            return Outcome.CONFLICT
        self.foreign_append()
        return Outcome.UNKNOWN if fault is PostFault.ANSWER_LOST else Outcome.LANDED

    def states(self, view: TableView, snapshot_id: int | None) -> frozenset[str]:  # noqa: ARG002
        """Return the paths of all files that are live in a snapshot."""
        if snapshot_id is not None and snapshot_id not in self.snapshots:
            raise TableChangedError(table=self.name, change=f"snapshot {snapshot_id} is gone")
        return frozenset(file.path for file in self._live_files(snapshot_id))

    def loss(self, view: TableView, change: Change, name: str) -> Loss:
        """Return what a change removes from the table; it has no partitions."""
        if change.removes == "partitions":
            raise UnsupportedTableError(table=self.name, what="it has no partitions", cure="none")
        if change.removes == "nothing":
            return Loss()
        if view.handle.head is not None and view.handle.head not in self.snapshots:
            # Its manifests went with it.
            raise StoreUnavailableError(uri="mem://metadata", reason="not found")
        files = self._live_files(view.handle.head)
        if change.base is not None:
            if gone := change.base - {file.path for file in files}:
                raise TableChangedError(table=self.name, change=f"{min(gone)} is gone")
            files = [file for file in files if file.path in change.base]
        self.losses += 1
        return Loss(
            files=len(files),
            rows=sum(file.rows for file in files),
            size_bytes=sum(file.size_bytes for file in files),
            writes={f"mem://metadata/{name}-0": 10} if files else {},
            handle=Removal(paths=frozenset(file.path for file in files)),
        )

    def key_meaning(self, view: TableView, on: Sequence[str]) -> str:  # noqa: ARG002
        """Refuse: only real tables find rows by a key."""
        raise UnsupportedTableError(table=self.name, what="it has no keys", cure="none")

    def staged_reader(self, view: TableView, on: Sequence[str] = ()) -> StagedReaderSpec:  # noqa: ARG002
        """Refuse: only real tables find rows by a key."""
        raise UnsupportedTableError(table=self.name, what="it has no keys", cure="none")

    def rewriter(self, view: TableView, change: Change) -> RewriterSpec:  # noqa: ARG002
        """Refuse: only real tables have filters."""
        raise UnsupportedTableError(table=self.name, what="it has no filters", cure="none")

    def post(self, view: TableView, run_id: str, mark: RunMark, change: Change) -> Outcome:
        """Publish the change if the head is still the view's, unless a fault is due."""
        if (meanwhile := self.before_post) is not None:
            self.before_post = None
            meanwhile()
        self.posts.append(mark)
        post = _Post(
            head_seen=view.handle.head,
            schema_seen=view.schema,
            run_id=run_id,
            mark=mark,
            groups=tuple(change.adds),
            removal=change.loss.handle or Removal(),
            written=tuple(change.loss.writes),
        )
        outcome = self._deliver(post, self.post_faults.popleft() if self.post_faults else None)
        if (meanwhile := self.after_post) is not None:
            self.after_post = None
            meanwhile()
        return outcome

    def _deliver(self, post: _Post, fault: PostFault | None) -> Outcome:
        if fault is PostFault.LANDS_REFUSED:
            self._arrive(post)
        if fault in (PostFault.REFUSED, PostFault.LANDS_REFUSED):
            raise CommitRefusedError(table=self.name, reason="no")
        if fault is PostFault.DIES_UNSENT:
            raise DriverDiedError
        if fault is PostFault.CONFLICT_THEN_LANDS:
            self._held.append(post)
            return Outcome.CONFLICT
        if fault in (PostFault.DELAYED, PostFault.DIES_DELAYED):
            self._late.append(post)
        if fault is PostFault.DIES_DELAYED:
            raise DriverDiedError
        if fault in (PostFault.DELAYED, PostFault.NEVER_ARRIVES):
            return Outcome.UNKNOWN
        if fault is PostFault.RIVAL_FIRST:
            self.foreign_append()
        landed = self._arrive(post)
        if fault is PostFault.DIES_LANDED:
            raise DriverDiedError
        answers = {
            PostFault.ANSWER_LOST: Outcome.UNKNOWN,
            PostFault.LANDS_AS_CONFLICT: Outcome.CONFLICT,
        }
        return (fault and answers.get(fault)) or (Outcome.LANDED if landed else Outcome.CONFLICT)

    def arrive_late(self) -> None:
        """Deliver the posts that were delayed."""
        while self._held:
            self._arrive(self._held.pop(0))

    def _arrive(self, post: _Post) -> bool:
        """Do what a catalog does when a post reaches it, now or late."""
        if self.head != post.head_seen or post.mark.sequence_number <= self.last_sequence_number:
            return False
        if self.schema != post.schema_seen:
            return False
        self._add(
            MemorySnapshot(
                snapshot_id=post.mark.snapshot_id,
                mark=post.mark,
                groups=post.groups,
                removed=post.removal.paths,
                carried=post.removal.carried,
                deletes=post.removal.deletes,
                written=post.written,
                **self._on_head(),
            )
        )
        self.marks[post.run_id] = post.mark
        return True

    def _on_head(self) -> dict[str, Any]:
        return {"parent_id": self.head, "sequence_number": self.last_sequence_number + 1}

    def _add(self, snapshot: MemorySnapshot) -> None:
        self.snapshots[snapshot.snapshot_id] = snapshot
        self.head = snapshot.snapshot_id
        self.last_sequence_number = snapshot.sequence_number

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _present(self, head: int | None, mark: RunMark) -> bool | None:
        if self.history_hidden:
            return None
        while head is not None:
            if head == mark.snapshot_id:
                return True
            head = self.snapshots[head].parent_id
        return False
