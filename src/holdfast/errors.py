"""Every error that Holdfast raises.

Each says what happened, whether running the same script again is safe, and what to do.
Spark hands an executor's error to the driver as text, so the message alone is enough.

    HoldfastError
    ├── SettingsError                 an argument or a setting is wrong
    │   ├── MissingExtraError         an optional package is not installed
    │   ├── HiddenSettingError        Spark Connect does not give out a secret
    │   └── UnsupportedTableError     a catalog or table that cannot be written safely
    ├── StoreError                    the ledger's store
    │   ├── UnsafeStoreError          it ignores create-if-absent
    │   ├── StoreUnavailableError     it did not answer
    │   └── LedgerDamagedError        a record is not what was written
    ├── RunError                      the run as such
    │   ├── RunMismatchError          the same id, but another job
    │   ├── RunFencedError            another driver has taken over
    │   └── RunAbortedError           the run was given up
    ├── JobError                      the work on the executors
    │   ├── NullKeyError              rows without a key
    │   ├── InputChangedError         the input is not what it was a moment ago
    │   ├── SchemaMismatchError       the output does not fit the table
    │   ├── TransformError            the transform failed
    │   ├── TransformTooLargeError    the transform carries too much with it
    │   ├── ExecutorSetupError        an executor cannot run this job
    │   └── JobFailedError            Spark gave the job up
    └── CommitError                   the one atomic step
        ├── CatalogUnavailableError   the catalog does not answer
        ├── TableMissingError         there is no such table
        ├── TableChangedError         the table is not the one that was staged for
        ├── StagedFileMissingError    somebody removed a staged file
        ├── CommitConflictError       other writers won every attempt
        ├── CommitRefusedError        the catalog says no, for good
        ├── CommitUnknownError        nobody can tell whether it landed
        └── CommittedThenRemovedError it landed, and was rolled back or replaced since
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast._error_root import HoldfastError

__all__ = [
    "CatalogUnavailableError",
    "CommitConflictError",
    "CommitError",
    "CommitRefusedError",
    "CommitUnknownError",
    "CommittedThenRemovedError",
    "ExecutorSetupError",
    "HiddenSettingError",
    "HoldfastError",
    "InputChangedError",
    "JobError",
    "JobFailedError",
    "LedgerDamagedError",
    "MissingExtraError",
    "NullKeyError",
    "RunAbortedError",
    "RunError",
    "RunFencedError",
    "RunMismatchError",
    "SchemaMismatchError",
    "SettingsError",
    "StagedFileMissingError",
    "StoreError",
    "StoreUnavailableError",
    "TableChangedError",
    "TableMissingError",
    "TransformError",
    "TransformTooLargeError",
    "UnsafeStoreError",
    "UnsupportedTableError",
]


@dataclass(eq=False, repr=False, kw_only=True)
class SettingsError(HoldfastError):
    """An argument or a setting cannot be used as it is."""

    happened = "{what}"
    retry_safe = False
    advice = "{cure}"

    what: str
    cure: str


@dataclass(eq=False, repr=False, kw_only=True)
class MissingExtraError(SettingsError):
    """An optional package is needed and not installed."""

    happened = "{what} needs the package {package!r}, which is not installed"
    advice = 'install it with: pip install "holdfast[{extra}]"'

    package: str
    extra: str
    cure: str = ""


@dataclass(eq=False, repr=False, kw_only=True)
class HiddenSettingError(SettingsError):
    """Spark Connect does not give out a setting whose name looks secret."""

    happened = "the session does not give out the setting {what!r} (Spark Connect hides secrets)"
    advice = (
        "pass it as an argument: hf.IcebergTable(name, catalog={{...}}) "
        "or Run(store_options={{...}})"
    )

    cure: str = ""


@dataclass(eq=False, repr=False, kw_only=True)
class UnsupportedTableError(SettingsError):
    """The catalog or the table cannot be written with the promises that Holdfast makes."""

    happened = "{table}: {what}"

    table: str


@dataclass(eq=False, repr=False, kw_only=True)
class StoreError(HoldfastError):
    """The store that holds the ledger cannot be used."""


@dataclass(eq=False, repr=False, kw_only=True)
class UnsafeStoreError(StoreError):
    """The store overwrote an object that it was asked to create only if absent."""

    happened = "{store} cannot hold a ledger: {what}"
    retry_safe = False
    advice = (
        "use a store that honours If-None-Match (Amazon S3, MinIO, a versitygw with metadata, "
        "GCS, Azure, or a local folder)"
    )

    store: str
    what: str


@dataclass(eq=False, repr=False, kw_only=True)
class StoreUnavailableError(StoreError):
    """The store gave no usable answer."""

    happened = "{uri}: the store did not answer ({reason})"
    advice = "check the address and the credentials, then run the same script again"

    uri: str
    reason: str


@dataclass(eq=False, repr=False, kw_only=True)
class LedgerDamagedError(StoreError):
    """A record of the ledger is not what Holdfast wrote."""

    happened = "{uri}: the record is damaged ({reason})"
    retry_safe = False
    advice = (
        "restore the object from a backup, or start over with a new run id; nothing was deleted"
    )

    uri: str
    reason: str


@dataclass(eq=False, repr=False, kw_only=True)
class RunError(HoldfastError):
    """The run cannot go on as it was asked to."""

    run_id: str


@dataclass(eq=False, repr=False, kw_only=True)
class RunMismatchError(RunError):
    """The run id belongs to another job."""

    happened = "run {run_id!r} was started as another job: {differences}"
    retry_safe = False
    advice = "use a new run id for the new job, or go back to what the run was started with"

    differences: str


@dataclass(eq=False, repr=False, kw_only=True)
class RunFencedError(RunError):
    """Another driver has claimed the run; this one must stop."""

    happened = "run {run_id!r}: another driver has taken over (log record {number})"
    advice = "let the other driver finish; a later start returns its receipt"

    number: int


@dataclass(eq=False, repr=False, kw_only=True)
class RunAbortedError(RunError):
    """The run was aborted, which is final."""

    happened = "run {run_id!r} was aborted (log record {number}: {reason})"
    retry_safe = False
    advice = "start over with a new run id"

    number: int
    reason: str


@dataclass(eq=False, repr=False, kw_only=True)
class JobError(HoldfastError):
    """The work on the executors did not end well; nothing was committed."""


@dataclass(eq=False, repr=False, kw_only=True)
class NullKeyError(JobError):
    """Rows have NULL in their key: nothing tells them apart."""

    happened = "{rows} input rows have NULL in a key column"
    retry_safe = False
    advice = "filter these rows out, fill the column, or choose another key"

    rows: int


@dataclass(eq=False, repr=False, kw_only=True)
class InputChangedError(JobError):
    """The input gave other rows when it was read again; nothing was committed."""

    happened = "the input had {planned} rows, and the tasks then saw {read}"
    advice = "make the input deterministic (write it to a table first), then run again"

    planned: int
    read: int


@dataclass(eq=False, repr=False, kw_only=True)
class SchemaMismatchError(JobError):
    """The output does not fit the table's schema."""

    happened = "column {column!r} does not fit {table}: {problem}"
    retry_safe = False
    advice = "change the transform's output or the table's column; nothing was committed"

    table: str
    column: str
    problem: str


@dataclass(eq=False, repr=False, kw_only=True)
class TransformError(JobError):
    """The transform raised, or returned something that is no table."""

    happened = "the transform failed in {failed_tasks} of {tasks} tasks; first: {example}"
    advice = (
        "mend the transform (or the row), then run the same script again; nothing was committed"
    )

    failed_tasks: int
    tasks: int
    example: str


@dataclass(eq=False, repr=False, kw_only=True)
class TransformTooLargeError(JobError):
    """The transform pickles to more than can sensibly be sent with every task."""

    happened = "the transform pickles to {size_mb} MB (at most {limit_mb} MB)"
    retry_safe = False
    advice = (
        "build what is large on the worker: transform=hf.per_worker(YourClass, ...) "
        "makes it once in each worker process"
    )

    size_mb: int
    limit_mb: int


@dataclass(eq=False, repr=False, kw_only=True)
class ExecutorSetupError(JobError):
    """An executor cannot run this job."""

    happened = "executor {host}: {what}"
    retry_safe = False
    advice = "{cure}"

    host: str
    what: str
    cure: str


@dataclass(eq=False, repr=False, kw_only=True)
class JobFailedError(JobError):
    """Spark gave the job up."""

    happened = "Spark could not finish the job: {reason}"
    advice = "see the executors' logs; nothing was committed"

    reason: str


@dataclass(eq=False, repr=False, kw_only=True)
class CommitError(HoldfastError):
    """The staged files could not be published; they are kept."""

    table: str


@dataclass(eq=False, repr=False, kw_only=True)
class CatalogUnavailableError(CommitError):
    """The catalog did not answer when the table was looked at."""

    happened = "{table}: the catalog did not answer ({reason})"
    advice = "check that the catalog can be reached, then run the same script again"

    reason: str


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
    """The catalog refused the commit for a reason that a retry does not change."""

    happened = "{table}: the catalog refused the commit: {reason}"
    advice = "mend the cause, then run the same script again; the staged files are kept"

    reason: str


@dataclass(eq=False, repr=False, kw_only=True)
class CommitUnknownError(CommitError):
    """It cannot be told whether the run has landed."""

    happened = "{table}: it is unknown whether run {run_id!r} has landed ({reason})"
    advice = "run the same script again later; it looks first. Delete nothing"

    run_id: str
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
