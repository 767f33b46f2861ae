"""Errors of the one atomic step. Users find them in `holdfast.errors`."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast._error_root import HoldfastError


@dataclass(eq=False, repr=False, kw_only=True)
class CommitError(HoldfastError):
    """The staged files could not be published; they are kept."""

    table: str


@dataclass(eq=False, repr=False, kw_only=True)
class CatalogUnavailableError(CommitError):
    """The catalog did not answer when the table was looked at."""

    happened = "{table}: the catalog did not answer ({reason})"
    advice = (
        "check that the catalog can be reached and lets this user in, then run the same script "
        "again"
    )

    reason: str
    # False for a refused login or a setting that cannot be right.
    retry_safe: bool = True


@dataclass(eq=False, repr=False, kw_only=True)
class TableMissingError(CommitError):
    """There is no such table, namespace or branch."""

    happened = "{table}: {what}"
    retry_safe = False
    advice = "create it first, or pass create=hf.Create(schema=...)"

    what: str


@dataclass(eq=False, repr=False, kw_only=True)
class TableChangedError(CommitError):
    """The table is not, or no longer, what the files were staged for."""

    happened = "{table} has changed since this run began: {change}"
    retry_safe = False
    advice = "undo the change and run the same script again (work is kept), or use a new run id"

    change: str


@dataclass(eq=False, repr=False, kw_only=True)
class StagedFileMissingError(CommitError):
    """A staged file is gone or has another size: somebody's clean-up took it."""

    happened = "{table}: {count} staged files are gone or changed, first {path}"
    advice = "run the same script again; keep orphan removal away from files younger than the run"

    count: int
    path: str


@dataclass(eq=False, repr=False, kw_only=True)
class CommitConflictError(CommitError):
    """Other writers won every attempt; nothing of this run landed."""

    happened = "{table}: other writers won all {attempts} attempts; nothing landed"
    advice = "run the same script again when the table is less busy"

    attempts: int


@dataclass(eq=False, repr=False, kw_only=True)
class CommitRefusedError(CommitError):
    """The catalog or the store refused the commit for a reason that a retry does not change."""

    happened = "{table}: the commit was refused: {reason}"
    advice = "mend the cause, then run the same script again; the staged files are kept"

    reason: str
    # True where the table could not be created for now.
    retry_safe: bool = False


@dataclass(eq=False, repr=False, kw_only=True)
class CommitUnknownError(CommitError):
    """It cannot be told whether the run has landed."""

    happened = "{table}: it is unknown whether run {run_id!r} has landed ({reason})"
    advice = (
        "run the same script again later: it looks first. If it stays unknown, look for its rows "
        "in the table, give the run up with run.abort() and use a new run id. Delete nothing"
    )

    run_id: str
    reason: str


@dataclass(eq=False, repr=False, kw_only=True)
class TableOutOfSightError(CommitError):
    """A post of the run got no answer, and the table that would tell cannot be seen."""

    happened = (
        "{table}: run {run_id!r} has {posts} without an answer, and its table cannot be asked "
        "({reason}); it may have landed, or may still land"
    )
    retry_safe = False
    advice = (
        "name the catalog and table that the run was started with: its UUID and its branch would "
        "prove it. If the table or the branch is gone for good, say so with table_is_gone=True "
        "(--table-is-gone)"
    )

    run_id: str
    posts: str
    reason: str


@dataclass(eq=False, repr=False, kw_only=True)
class CommittedThenRemovedError(CommitError):
    """The run had landed, and its snapshot is no longer part of the table."""

    happened = (
        "{table}: run {run_id!r} landed as snapshot {snapshot_id}, "
        "which was rolled back or replaced since"
    )
    retry_safe = False
    advice = "if the rows are wanted again, use a new run id"

    run_id: str
    snapshot_id: int
