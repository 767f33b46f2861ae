"""What the engine needs of a table format.

A sink offers a look at the table, one *conditional* post and a look-up of the run's mark; the
loop around them is the engine's and the same for every format. On executors a writer turns
batches into staged files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Protocol

import pyarrow as pa

from holdfast.model.limits import DEFAULT_LIMITS, Limits
from holdfast.model.records import Intent
from holdfast.model.work import StagedGroup

# A column's name, after those that it is below.
ColumnPath = tuple[str, ...]
# The columns that output need not have: they are filled with NULL. None: all of them.
MayLack = frozenset[ColumnPath] | None


class TaskWriter(Protocol):
    """Writes one task's output on an executor; holds a bounded amount of it in memory."""

    @property
    def stored_schema(self) -> pa.Schema:
        """The schema of rows as `fit` returns them."""

    @property
    def fullness(self) -> float:
        """How much of what makes good files was written since the last cut; 1.0 is all."""

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return output rows in the form in which they are stored.

        Raises:
            SchemaMismatchError: They do not fit the table's schema.
        """

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows in the form that `fit` returns."""

    def cut(self) -> list[StagedGroup]:
        """Close all files, and return what is staged since the last cut."""

    def abandon(self) -> None:
        """Give up what is not closed."""


class WriterSpec(Protocol):
    """All that an executor needs to write: pickled with the task, never stored."""

    @property
    def table(self) -> str:
        """The table's name for people."""

    @property
    def schema(self) -> pa.Schema:
        """The table's schema in Arrow's terms."""

    @property
    def may_lack(self) -> MayLack:
        """Which columns the output need not have."""

    def open(self, task_name: str, limits: Limits = DEFAULT_LIMITS) -> TaskWriter:
        """Start a writer whose files carry the task's name.

        Args:
            task_name: No other task has it.
            limits: How much the writer may hold.
        """


class Outcome(Enum):
    """How a post ended, as far as its answer tells."""

    LANDED = "landed"
    # It was not sent: nothing can land of it. Needs no look at the table.
    UNSENT = "unsent"
    # The answer says that the table had changed. A later look must show that it has: a request that
    # something on the way has sent twice can be refused and land all the same.
    CONFLICT = "conflict"
    UNKNOWN = "unknown"


# What readers of a table's history are told that a commit did.
Operation = Literal["append"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one post does to a table: every mode of writing comes down to one of these."""

    operation: Operation = "append"
    # What becomes part of the table.
    adds: Sequence[StagedGroup] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """One fresh look at a table. `handle` is the sink's own."""

    uuid: str
    schema: dict[str, Any]
    # The snapshot that a post builds on; None while the branch has no snapshot at all.
    parent_snapshot_id: int | None
    # What the next post gets, and below which no post can land any more. They differ where some
    # commits, of settings or indices, use a number up but let an older post pass.
    next_sequence_number: int
    settled_below: int
    handle: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMark:
    """The run's name inside the table: whose it is, and which intent landed."""

    run_nonce: str
    intent_number: int
    snapshot_id: int
    sequence_number: int
    # Copies of a ledger give their intents the same numbers. Empty in marks of format 1.
    intent_nonce: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkFound:
    """The run has landed. `present` is None where the table's history no longer tells."""

    mark: RunMark
    present: bool | None


class Sink(Protocol):
    """One table, as the driver sees it."""

    @property
    def name(self) -> str:
        """The table's name for people."""

    def load(self) -> TableView:
        """Look at the table afresh.

        Raises:
            TableMissingError: There is no such table.
            UnsupportedTableError: It cannot be written safely.
        """

    def columns_since(self, view: TableView, began: Mapping[str, Any]) -> frozenset[ColumnPath]:
        """Return the columns that the table has got since its schema was another.

        Args:
            view: A fresh look at the table.
            began: The table's schema at an earlier look, as `view.schema` gave it then.

        Raises:
            LedgerDamagedError: That is no schema: it comes from a ledger.
        """

    def writer_spec(self, view: TableView, may_lack: MayLack = frozenset()) -> WriterSpec:
        """Return what executors need to write for this table.

        Args:
            view: A fresh look at the table.
            may_lack: Which columns the output need not have.
        """

    def find_mark(
        self, view: TableView, run_id: str, run_nonce: str, intents: Mapping[int, Intent]
    ) -> MarkFound | None:
        """Look for the run's mark.

        Raises:
            RunMismatchError: Another run of the same id has landed there.
            CommitUnknownError: A missing mark proves nothing.
            TableChangedError: The catalog was rewound.
        """

    def missing_files(self, view: TableView, groups: Sequence[StagedGroup]) -> list[str]:
        """Return the paths of staged files and groups that are gone or of another size."""

    def delete_files(self, view: TableView, paths: Sequence[str]) -> None:
        """Delete staged files that no snapshot refers to; a path outside the table is refused.

        Raises:
            LedgerDamagedError: A path is outside the table; nothing was deleted.
            UnsupportedTableError: A path is in a folder that is not the table's alone; nothing
                was deleted.
        """

    def live_files(self, view: TableView, paths: Sequence[str], run_nonce: str) -> set[str]:
        """Return those of a run's staged files that a snapshot which the table keeps reaches.

        Args:
            view: A fresh look at the table.
            paths: What the run's records name.
            run_nonce: What the names of the run's files begin with, where the format lets us
                choose them; empty for a ledger of format 1, whose names do not tell.

        Raises:
            LedgerDamagedError: A path is outside the table, or its name is not one of the run's.
            StoreUnavailableError: The table's storage does not answer.
        """

    def check(
        self, view: TableView, schemas: Sequence[dict[str, Any]], groups: Sequence[StagedGroup]
    ) -> None:
        """Stop if staged files are gone or no longer fit the table.

        Args:
            view: A fresh look at the table.
            schemas: Every schema of the table that staged rows were written for, as `view.schema`
                gave it then. Each must fit: starts of one run may have written for several.
            groups: What is staged.

        Raises:
            TableChangedError: The schema or the layout has changed.
            StagedFileMissingError: A staged file is gone.
        """

    def old_groups(
        self, view: TableView, groups: Sequence[StagedGroup], before: float
    ) -> list[StagedGroup]:
        """Return the groups of which an object was last written before a moment (Unix seconds).

        Raises:
            StagedFileMissingError: A staged file is gone.
        """

    def copy_groups(
        self, view: TableView, groups: Sequence[StagedGroup], targets: Sequence[StagedGroup]
    ) -> list[StagedGroup]:
        """Copy groups with all their files, and return the copies as they are now staged.

        Args:
            view: A fresh look at the table.
            groups: What to copy; it stays as it is.
            targets: Each group under its new names, from `StagedGroup.renamed`.

        Raises:
            StagedFileMissingError: A staged file is gone.
        """

    def new_snapshot_id(self, view: TableView) -> int:
        """Return an id that no snapshot of the table has."""

    def post_empty(self, view: TableView) -> Outcome:
        """Give the branch a first, empty snapshot, once."""

    def post(self, view: TableView, run_id: str, mark: RunMark, change: Change) -> Outcome:
        """Publish the change in one snapshot, once, if the table still is as in the view.

        Raises:
            CommitRefusedError: The catalog refused for good.
        """

    def unindexed_rows(self) -> Mapping[str, int]:
        """Return how many rows each index of the table does not know yet, for the report."""
