"""What the engine needs from a table format.

A sink offers a look at the table, one *conditional* post and a lookup of the run's mark. The loop
around them belongs to the engine and is the same for every format. On executors a writer turns
batches into staged files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.model.coverage import Span
from holdfast.model.limits import DEFAULT_LIMITS, Limits
from holdfast.model.records import Intent
from holdfast.model.work import Merge, Rewrite, StagedGroup

# A column's name, preceded by the names of the columns above it.
ColumnPath = tuple[str, ...]
# The columns that may be missing from the output: they are filled with NULL. None means all of
# them.
MayLack = frozenset[ColumnPath] | None

# The number of an input row, beside the output of a task whose output are values for these rows.
NUMBER_COLUMN = "__holdfast_row"


class TaskWriter(Protocol):
    """Writes one task's output on an executor; holds a bounded amount of it in memory."""

    @property
    def stored_schema(self) -> pa.Schema:
        """The schema of the rows that `fit` returns."""

    @property
    def fullness(self) -> float:
        """How much of a good file size has been written since the last cut; 1.0 is all of it."""

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return output rows in their stored form.

        Raises:
            SchemaMismatchError: The rows do not fit the table's schema.
        """

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows in the form that `fit` returns."""

    def cut(self) -> list[StagedGroup]:
        """Close all files, and return what has been staged since the last cut."""

    def abandon(self) -> None:
        """Discard what is not closed."""


class WriterSpec(Protocol):
    """All that an executor needs to write. Pickled with the task, never stored."""

    @property
    def table(self) -> str:
        """The table's display name."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the output: the table's, and the one that says which rows delete."""

    @property
    def delete_column(self) -> str:
        """The column that says which rows delete; empty if there is none."""

    @property
    def may_lack(self) -> MayLack:
        """The columns that may be missing from the output."""

    def open(self, task_name: str, limits: Limits = DEFAULT_LIMITS) -> TaskWriter:
        """Start a writer whose files carry the task's name.

        Args:
            task_name: A name that no other task has.
            limits: How much the writer may hold in memory.
        """


class Rewriter(Protocol):
    """Rewrites files of a table on an executor, one after the other, or deletes rows of them."""

    def rewrite(self, item: str) -> Rewrite:
        """Write the rows of a file that stay, or deletes for the others, unless all stay or go.

        Raises:
            FileNotFoundError: The file is no longer in the table.
            UnsupportedTableError: The file cannot be read, or not be written as it was.
        """


class RewriterSpec(Protocol):
    """All that an executor needs to rewrite files. Pickled with the task, never stored."""

    def open(self, task_name: str) -> Rewriter:
        """Return a rewriter whose files carry the task's name, which no other task has."""


class StagedReader(Protocol):
    """Reads columns of staged files on an executor."""

    @property
    def schema(self) -> pa.Schema:
        """The columns, as the table has them."""

    def rows(self, item: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a work item: paths and sizes of staged files, as JSON.

        Raises:
            FileNotFoundError: A file is gone.
        """


class StagedReaderSpec(Protocol):
    """All that an executor needs to read staged files. Pickled with the task, never stored."""

    def open(self) -> StagedReader:
        """Return a reader."""


class Keys(Protocol):
    """The keys of the rows that an upsert writes. Pickled with a task."""

    @property
    def name(self) -> str:
        """A name that no other keys of the run have."""

    @property
    def stretches(self) -> Sequence[tuple[pa.Scalar, pa.Scalar]]:
        """Between which values of the first column there are keys: disjoint, in order."""

    @property
    def rows(self) -> int:
        """How many keys there are."""

    def found(self, keys: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
        """Return for each row whether its key is among these; a key with NULL never is."""

    def search(self, batches: Iterable[Sequence[pa.Array]]) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the number of each row's key, -1 if it is not among these.

        Args:
            batches: The key columns of rows; more of them may be asked for at a time.
        """

    @property
    def deleting(self) -> Sequence[str]:
        """Which of the keys are those of rows to delete, as `written_hits` returns them."""

    def written_hits(self, numbers: npt.NDArray[np.int64]) -> str:
        """Keep the numbers of keys that were found in a file, and return them as text."""


class RowsMovedError(Exception):
    """Rows of the table have no value yet, because others have changed the table."""

    def __init__(self, version: int, rows: Mapping[int, Sequence[Span]]) -> None:
        """Say which rows are left to do.

        Args:
            version: The version of the table that they are in.
            rows: Positions, by the number of a fragment.
        """
        super().__init__(version, rows)
        self.version = version
        self.rows = rows


class Outcome(Enum):
    """How a post ended, as far as its answer shows."""

    LANDED = "landed"
    # It was not sent, so it cannot land. Needs no look at the table.
    UNSENT = "unsent"
    # The answer says that the table had changed. A later look must confirm it: if something on the
    # way sent the request twice, it can be refused and still land.
    CONFLICT = "conflict"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What a change removes from a table as one look shows it. `handle` is private to the sink."""

    # Data files that lose rows, and these; of a file that goes whole, those that deletes hide, too.
    files: int = 0
    rows: int = 0
    size_bytes: int = 0
    # How many partitions these files are in; 0 if there are none.
    partitions: int = 0
    # Files of deletes, for files that stay; and rows that an upsert writes anew because others go.
    delete_files: int = 0
    carried_rows: int = 0
    # The objects of ours that the new snapshot reaches besides its own metadata and what is staged,
    # with their sizes: the post writes them, or the rewriting of files has.
    writes: Mapping[str, int] = field(default_factory=dict)
    # Files of which only some rows may go: each as a work item for a rewriter, by its state. The
    # change cannot be posted before these are in `Change.rewritten`.
    targets: Mapping[str, str] = field(default_factory=dict)
    # Of `Change.rewritten`, what became of the files that lose rows.
    used: Sequence[Rewrite] = ()
    handle: Any = None


# Which of a table's rows go: none, all, those of the partitions that the added rows are in, those
# for which a filter is true, or those with the key of an added row. "columns": no row goes, and the
# added rows are values for rows that are there.
Removes = Literal["nothing", "all", "partitions", "where", "keys", "columns"]
# How some rows of a file are removed: the file is written anew, or deletes are put beside it.
WriteMode = Literal["copy-on-write", "merge-on-read"]
# A filter as the user gave it: a string, or triples.
Filter = str | Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one post does to a table; every write mode is expressed as one of these."""

    # What is added to the table.
    adds: Sequence[StagedGroup] = ()
    removes: Removes = "nothing"
    # The states of the files that were there when the run began (see `Sink.states`), if only their
    # rows may go. None: what others have added since goes, too.
    base: frozenset[str] | None = None
    # The filter of an overwrite, if it has one.
    where: Filter | None = None
    # The key columns, if rows go by their keys; and the keys, once all of them are known.
    on: tuple[str, ...] = ()
    keys: Keys | None = None
    # Of these, how many are of rows that are only to be deleted.
    deleted_keys: int = 0
    # How rows are removed from files that keep some; None: as the table says.
    write_mode: WriteMode | None = None
    # The numbers of input rows that failed, if the added rows are values for rows that are there.
    failed: Sequence[Span] = ()
    # What became of files whose rows were looked at, by state.
    rewritten: Mapping[str, Rewrite] = field(default_factory=dict)
    # What that is in the table that the post builds on: see `Sink.loss`.
    loss: Loss = Loss()

    @property
    def takes_rows(self) -> bool:
        """Whether rows of the table go."""
        return self.removes not in {"nothing", "columns"}

    @property
    def is_by_row(self) -> bool:
        """Whether rows go one by one, so that files have to be searched for them."""
        return self.removes in {"where", "keys"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """One fresh look at a table. `handle` is private to the sink."""

    uuid: str
    schema: dict[str, Any]
    # The snapshot that a post builds on; None while the branch has no snapshot.
    parent_snapshot_id: int | None
    # The number that the next post gets, and the number below which no post can land any more. They
    # differ if commits of settings or indices use up a number but let an older post through.
    next_sequence_number: int
    settled_below: int
    handle: Any
    # The URI of the table's folder.
    location: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMark:
    """The run's mark inside the table: which run it was, and which intent landed."""

    run_nonce: str
    intent_number: int
    snapshot_id: int
    sequence_number: int
    # Needed because copies of a ledger number their intents alike. Empty in marks of format 1.
    intent_nonce: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkFound:
    """The run has landed. `present` is None if the table's history no longer shows it."""

    mark: RunMark
    present: bool | None


class Sink(Protocol):
    """One table, as the driver sees it."""

    @property
    def name(self) -> str:
        """The table's display name."""

    def load(self) -> TableView:
        """Read the table's current state.

        Raises:
            TableMissingError: There is no such table.
            UnsupportedTableError: The table cannot be written safely.
        """

    def columns_since(self, view: TableView, began: Mapping[str, Any]) -> frozenset[ColumnPath]:
        """Return the columns that the table has gained since an earlier schema.

        Args:
            view: A fresh look at the table.
            began: The table's schema at an earlier look, as `view.schema` gave it then.

        Raises:
            LedgerDamagedError: `began`, which comes from a ledger, is not a schema.
        """

    def writer_spec(
        self,
        view: TableView,
        may_lack: MayLack = frozenset(),
        where: Filter | None = None,
        on: Sequence[str] = (),
        delete_column: str = "",
    ) -> WriterSpec:
        """Return what executors need to write to this table.

        Args:
            view: A fresh look at the table.
            may_lack: The columns that may be missing from the output.
            where: A filter that is true for all rows of the output.
            on: Columns that have a value in all rows of the output.
            delete_column: The column of the output, and not of the table, that says which rows are
                not written: the row with their key is deleted. Empty if all rows are written.

        Raises:
            SettingsError: The filter or the columns do not fit the table.
        """

    def staged_reader(self, view: TableView, on: Sequence[str] = ()) -> StagedReaderSpec:
        """Return what executors need to read staged files.

        Args:
            view: A fresh look at the table.
            on: The key columns, if only those are read; else all columns are.

        Raises:
            SettingsError: The columns do not fit the table.
            UnsupportedTableError: Staged files of this table cannot be read before they are in it.
        """

    def key_meaning(self, view: TableView, on: Sequence[str]) -> str:
        """Return which columns key columns are, and of which types; the same text means the same.

        Raises:
            SettingsError: The columns do not fit the table, or cannot be a key.
            UnsupportedTableError: Rows cannot be found by a key in this table.
        """

    def find_mark(
        self, view: TableView, run_id: str, run_nonce: str, intents: Mapping[int, Intent]
    ) -> MarkFound | None:
        """Look for the run's mark.

        Raises:
            RunMismatchError: Another run of the same id has landed there.
            CommitUnknownError: The mark is missing, but that proves nothing.
            TableChangedError: The catalog was rolled back.
        """

    def missing_files(self, view: TableView, groups: Sequence[StagedGroup]) -> list[str]:
        """Return the paths of staged files and groups that are gone or have another size."""

    def refuse_missing_files(self, view: TableView, groups: Sequence[StagedGroup]) -> None:
        """Stop if staged files or groups are gone, before they are published.

        Raises:
            StagedFileMissingError: A staged file is gone.
            StoreUnavailableError: The table's storage does not answer.
        """

    def delete_files(self, view: TableView, paths: Sequence[str]) -> None:
        """Delete staged files that no snapshot refers to; refuse a path outside the table.

        Raises:
            LedgerDamagedError: A path is outside the table; nothing was deleted.
            UnsupportedTableError: A path is in a folder that the table may share; nothing was
                deleted.
        """

    def live_files(self, view: TableView, paths: Sequence[str], run_nonce: str) -> set[str]:
        """Return those of a run's staged files that are reachable from a retained snapshot.

        Args:
            view: A fresh look at the table.
            paths: The paths in the run's records.
            run_nonce: The prefix of the run's file names, if the format lets us choose them; empty
                for a ledger of format 1, whose names have no nonce.

        Raises:
            LedgerDamagedError: A path is outside the table, or its name is not one of the run's.
            StoreUnavailableError: The table's storage does not answer.
        """

    def check(
        self, view: TableView, schemas: Sequence[dict[str, Any]], groups: Sequence[StagedGroup]
    ) -> None:
        """Stop if staged files no longer fit the table.

        Called between a look and a post, so it makes no request: see `refuse_missing_files`.

        Args:
            view: A fresh look at the table.
            schemas: Every schema of the table that staged rows were written for, as `view.schema`
                gave it then. Each must fit: starts of one run may have written for several.
            groups: The staged groups.

        Raises:
            TableChangedError: The schema or the layout has changed.
        """

    def old_groups(
        self, view: TableView, groups: Sequence[StagedGroup], before: float
    ) -> list[StagedGroup]:
        """Return the groups with an object that was last written before a time (Unix seconds).

        Raises:
            StagedFileMissingError: A staged file is gone.
        """

    def copy_groups(
        self, view: TableView, groups: Sequence[StagedGroup], targets: Sequence[StagedGroup]
    ) -> list[StagedGroup]:
        """Copy groups with all their files, and return the copies as staged.

        Args:
            view: A fresh look at the table.
            groups: The groups to copy; they are left unchanged.
            targets: Each group under its new names, from `StagedGroup.renamed`.

        Raises:
            StagedFileMissingError: A staged file is gone.
        """

    def merge_paths(self, view: TableView, groups: Sequence[StagedGroup], name: str) -> list[str]:
        """Return where groups would be written that stand for many small ones.

        Args:
            view: A fresh look at the table.
            groups: The small groups.
            name: The beginning of the names; no other merge uses it.

        Returns:
            As many paths as there can be groups; none if the table gains nothing by it.
        """

    def merge(
        self, view: TableView, groups: Sequence[StagedGroup], paths: Sequence[str]
    ) -> list[Merge]:
        """Write groups that stand for small ones; those that it leaves out enter as they are.

        Args:
            view: A fresh look at the table.
            groups: The small groups; they are left unchanged.
            paths: What `merge_paths` returned.

        Raises:
            StagedFileMissingError: A staged group is gone.
            LedgerDamagedError: A group is not what the ledger says.
        """

    def new_snapshot_id(self, view: TableView) -> int:
        """Return an id that no snapshot of the table has."""

    def post_empty(self, view: TableView) -> Outcome:
        """Give the branch a first, empty snapshot, once."""

    def states(self, view: TableView, snapshot_id: int | None) -> frozenset[str]:
        """Return a text for each live file of a snapshot; the same texts mean the same rows.

        Args:
            view: A fresh look at the table.
            snapshot_id: The snapshot; None for a table without rows.

        Raises:
            TableChangedError: The table no longer has the snapshot.
            UnsupportedTableError: The rows of this table cannot be replaced.
        """

    def loss(self, view: TableView, change: Change, name: str) -> Loss:
        """Return what a change removes from the table; nothing is written yet.

        Args:
            view: A fresh look at the table.
            change: The change.
            name: The beginning of the names of what the post writes; no other post uses it.

        Raises:
            UnsupportedTableError: The rows cannot be removed from this table.
            TableChangedError: Others have changed rows of `change.base`.
        """

    def rewriter(self, view: TableView, change: Change) -> RewriterSpec:
        """Return what executors need to rewrite the targets of a loss.

        Args:
            view: The look that the loss was computed for.
            change: The change; it removes rows by a filter or by their keys.
        """

    def post(self, view: TableView, run_id: str, mark: RunMark, change: Change) -> Outcome:
        """Publish the change in one snapshot, once, if the table is still as in the view.

        Raises:
            CommitRefusedError: The catalog refused permanently.
        """

    def unindexed_rows(self) -> Mapping[str, int]:
        """Return how many rows each index of the table does not cover yet, for the report."""
