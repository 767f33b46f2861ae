"""Every error that Holdfast raises.

Each says what happened, whether a retry may succeed (`retry_safe`), and what to do. Another run
of the same script never does harm, whatever `retry_safe` says: it tells a scheduler whether to
retry. Spark hands an executor's error to the driver as text, so the message alone is enough.

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
    │   ├── RunBusyError              another driver seems to be at work
    │   ├── RunAbortedError           the run was given up
    │   ├── RunCommittedError         it has landed, and cannot be given up
    │   └── RunUnfinishedError        it may go on, and must not be swept
    ├── JobError                      the work on the executors
    │   ├── NullKeyError              rows without a key
    │   ├── DuplicateKeyError         a key that does not tell rows apart
    │   ├── InputChangedError         the input is not what it was a moment ago
    │   ├── SchemaMismatchError       the output does not fit the table
    │   ├── TransformError            the transform failed
    │   ├── TooManyErrorsError        more rows failed than max_errors allows
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
        ├── TableOutOfSightError      an abort cannot ask the table what became of a post
        └── CommittedThenRemovedError it landed, and was rolled back or replaced since
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast._commit_errors import (
    CatalogUnavailableError,
    CommitConflictError,
    CommitError,
    CommitRefusedError,
    CommittedThenRemovedError,
    CommitUnknownError,
    StagedFileMissingError,
    TableChangedError,
    TableMissingError,
    TableOutOfSightError,
)
from holdfast._error_root import HoldfastError
from holdfast._job_errors import (
    DuplicateKeyError,
    ExecutorSetupError,
    InputChangedError,
    JobError,
    JobFailedError,
    NullKeyError,
    SchemaMismatchError,
    TooManyErrorsError,
    TransformError,
    TransformTooLargeError,
)

__all__ = [
    "CatalogUnavailableError",
    "CommitConflictError",
    "CommitError",
    "CommitRefusedError",
    "CommitUnknownError",
    "CommittedThenRemovedError",
    "DuplicateKeyError",
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
    "RunBusyError",
    "RunCommittedError",
    "RunError",
    "RunFencedError",
    "RunMismatchError",
    "RunUnfinishedError",
    "SchemaMismatchError",
    "SettingsError",
    "StagedFileMissingError",
    "StoreError",
    "StoreUnavailableError",
    "TableChangedError",
    "TableMissingError",
    "TableOutOfSightError",
    "TooManyErrorsError",
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
    # False for refused credentials, a missing permission or bucket, a path that cannot be.
    retry_safe: bool = True


@dataclass(eq=False, repr=False, kw_only=True)
class LedgerDamagedError(StoreError):
    """A record of the ledger is not what Holdfast wrote."""

    happened = "{uri}: the record is damaged ({reason})"
    retry_safe = False
    advice = (
        "restore the object from a backup; nothing was deleted. Before you start over with a new "
        "run id, look whether a snapshot of the table names this run (holdfast.run): its rows "
        "would be added again"
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
class RunBusyError(RunError):
    """Another driver seems to be at work, and this one was told not to take over."""

    happened = (
        "run {run_id!r}: process {process_id} on {host} seems to be at work "
        "(it wrote {age_s:.0f} s ago)"
    )
    advice = 'let it finish, or start with takeover="wait" or "now" if it is dead'

    host: str
    process_id: int
    age_s: float


@dataclass(eq=False, repr=False, kw_only=True)
class RunAbortedError(RunError):
    """The run was aborted, which is final."""

    happened = "run {run_id!r} was aborted (log record {number}: {reason})"
    retry_safe = False
    advice = "start over with a new run id"

    number: int
    reason: str


@dataclass(eq=False, repr=False, kw_only=True)
class RunCommittedError(RunError):
    """The run has landed, so it cannot be given up."""

    happened = "run {run_id!r} has landed as snapshot {snapshot_id}"
    retry_safe = False
    advice = "roll the table back if the rows are not wanted; run.sweep() removes left-overs"

    snapshot_id: int


@dataclass(eq=False, repr=False, kw_only=True)
class RunUnfinishedError(RunError):
    """The run has neither landed nor was given up: its files are paid work."""

    happened = "run {run_id!r} has neither landed nor was it aborted"
    retry_safe = False
    advice = "finish it by running its script again, or give it up with run.abort()"


# Where users import them from, and what a traceback shows.
for _name in __all__:
    globals()[_name].__module__ = __name__
