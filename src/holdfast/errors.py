"""Every error that Holdfast raises.

Each says what happened, whether a retry may succeed (`retry_safe`), and what to do. Running the
same script again never does harm, whatever `retry_safe` is: the flag is for schedulers, which
decide whether to retry. Spark passes an executor's error to the driver as text, so the message
alone is enough.

    HoldfastError
    ├── SettingsError                 an argument or a setting is wrong
    │   ├── MissingExtraError         an optional package is not installed
    │   ├── HiddenSettingError        Spark Connect does not reveal a secret
    │   └── UnsupportedTableError     a catalog or table that cannot be written safely
    ├── StoreError                    the ledger's store
    │   ├── UnsafeStoreError          it ignores create-if-absent
    │   ├── StoreUnavailableError     it did not answer
    │   └── LedgerDamagedError        a record is not what was written
    │       └── LedgerNewerError      a newer version of Holdfast has written it
    ├── RunError                      the run itself
    │   ├── RunMismatchError          the same id, but another job
    │   ├── RunFencedError            another driver has taken over
    │   ├── RunBusyError              another driver seems to be running
    │   ├── RunAbortedError           the run was aborted
    │   ├── RunCommittedError         it has landed, and cannot be aborted
    │   ├── BudgetReachedError        its budget does not pay for another row
    │   ├── RunNotReadyError          it is not staged as a whole, and cannot be committed
    │   └── RunUnfinishedError        it is unfinished, and must not be swept
    ├── JobError                      the work on the executors
    │   ├── NullKeyError              rows without a key
    │   ├── DuplicateKeyError         a key that several rows share
    │   ├── DuplicateOutputError      a key that several output rows share
    │   ├── InputChangedError         the input has changed since it was read
    │   ├── SchemaMismatchError       the output does not fit the table
    │   ├── EmptyOutputError          no rows would replace all
    │   ├── TransformError            the transform failed
    │   ├── TooManyErrorsError        more rows failed than max_errors allows
    │   ├── TransformTooLargeError    the transform carries too much with it
    │   ├── ExecutorSetupError        an executor cannot run this job
    │   └── JobFailedError            Spark gave up on the job
    └── CommitError                   the one atomic step
        ├── CatalogUnavailableError   the catalog does not answer
        ├── TableMissingError         there is no such table
        ├── TableChangedError         not the table that files were staged for
        ├── StagedFileMissingError    a staged file was removed
        ├── CommitConflictError       other writers won every attempt
        ├── CommitRefusedError        the catalog refuses the commit permanently
        ├── CommitUnknownError        it is unknown whether it landed
        ├── TableOutOfSightError      an abort cannot see whether a post landed
        └── CommittedThenRemovedError it landed, but was rolled back or replaced
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar

from holdfast.text import shown

# ---- The root of all errors: how an error is put into words, and how it survives pickle

_SUMMARY_LENGTH_MAX = 500


@dataclass(eq=False, repr=False, kw_only=True)
class HoldfastError(Exception):
    """The base class of all errors that Holdfast raises.

    Subclasses are keyword-only dataclasses: their attributes hold what is known about the failure,
    and `happened` and `advice` are templates over them.
    """

    happened: ClassVar[str] = "something went wrong"
    # Whether the same script, unchanged, may succeed if it is run again later. Some subclasses
    # have it as a field, because it depends on what happened.
    retry_safe = True
    advice: ClassVar[str] = "run the same script again"

    @property
    def summary(self) -> str:
        """What happened, on one line that is not too long: for records and lists."""
        line = " ".join(shown(self.happened.format(**self._facts())).split())
        cut = len(line) > _SUMMARY_LENGTH_MAX
        return f"{line[: _SUMMARY_LENGTH_MAX - 1]}…" if cut else line

    def __str__(self) -> str:
        """Return what happened, whether a retry may succeed, and what to do."""
        facts = self._facts()
        retry = "yes" if self.retry_safe else "no: a retry would fail the same way"
        return (
            f"{shown(self.happened.format(**facts))}\n"
            f"  Worth a retry: {retry}.\n"
            f"  What to do: {shown(self.advice.format(**facts))}."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickle, which rebuilds exceptions from positional arguments by default."""
        return partial(type(self), **self._facts()), ()

    def _facts(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


# ---- Settings, the ledger's store, and the run itself
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
    advice = 'install Holdfast with its extra {extra}; in a checkout: pip install ".[{extra}]"'

    package: str
    extra: str
    cure: str = ""


@dataclass(eq=False, repr=False, kw_only=True)
class HiddenSettingError(SettingsError):
    """Spark Connect does not reveal a setting whose name looks secret."""

    happened = "the session does not reveal the setting {what!r} (Spark Connect hides secrets)"
    advice = "pass it: hf.IcebergTable(name, catalog={{...}}) or Run(store_options={{...}})"

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

    happened = "{uri}: the request to the store failed ({reason})"
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
        "run id, check whether a snapshot of the table names this run (holdfast.run): if one does, "
        "its rows would be added again"
    )

    uri: str
    reason: str


@dataclass(eq=False, repr=False, kw_only=True)
class LedgerNewerError(LedgerDamagedError):
    """A newer version of Holdfast has written a record; most likely it is not damaged."""

    happened = "{uri}: {reason}"
    advice = "upgrade Holdfast here, and run the same script again; restore and delete nothing"


@dataclass(eq=False, repr=False, kw_only=True)
class RunError(HoldfastError):
    """The run cannot continue as requested."""

    run_id: str


@dataclass(eq=False, repr=False, kw_only=True)
class RunMismatchError(RunError):
    """The run id belongs to another job."""

    happened = "run {run_id!r} was started as a different job: {differences}"
    retry_safe = False
    advice = "use a new run id for the new job, or restore what the run was started with"

    differences: str


@dataclass(eq=False, repr=False, kw_only=True)
class RunFencedError(RunError):
    """Another driver has claimed the run; this one must stop."""

    happened = "run {run_id!r}: another driver has taken over (log record {number})"
    advice = "let the other driver finish; a later start returns its receipt"

    number: int


@dataclass(eq=False, repr=False, kw_only=True)
class RunBusyError(RunError):
    """Another driver seems to be running, and this one may not take over."""

    happened = (
        "run {run_id!r}: process {process_id} on {host} seems to be running it "
        "(it last wrote {age_s:.0f} s ago)"
    )
    advice = 'let it finish, or start with takeover="wait" or "now" if it is dead'

    host: str
    process_id: int
    age_s: float


@dataclass(eq=False, repr=False, kw_only=True)
class RunAbortedError(RunError):
    """The run was aborted, which is final."""

    happened = "run {run_id!r} was aborted (log record {number}; reason: {reason})"
    retry_safe = False
    advice = "start over with a new run id"

    number: int
    reason: str


@dataclass(eq=False, repr=False, kw_only=True)
class RunCommittedError(RunError):
    """The run has landed, so it cannot be aborted."""

    happened = "run {run_id!r} has landed as snapshot {snapshot_id}"
    retry_safe = False
    advice = "roll the table back if the rows are not wanted; run.sweep() removes leftover files"

    snapshot_id: int


@dataclass(eq=False, repr=False, kw_only=True)
class BudgetReachedError(RunError):
    """What is left of the run's budget does not pay for another row; finished work is kept."""

    happened = (
        "run {run_id!r} has reached its budget: {spent:,.8g} of {budget:,.8g} are spent, "
        "{held:,.8g} more are held by killed tasks, and {rows_left} rows are left"
    )
    retry_safe = False
    advice = (
        "start the same run again with a higher budget=; finished rows are kept, and not paid for "
        "twice. Nothing was committed"
    )

    budget: float
    spent: float
    held: float
    # "unknown" if the input is not measured.
    rows_left: int | str


@dataclass(eq=False, repr=False, kw_only=True)
class RunUnfinishedError(RunError):
    """The run has neither landed nor been aborted: its files hold finished work."""

    happened = "run {run_id!r} has neither landed nor been aborted"
    retry_safe = False
    advice = "run its script again, or run.commit() if it is ready; or abort it with run.abort()"


@dataclass(eq=False, repr=False, kw_only=True)
class RunNotReadyError(RunError):
    """The run is not staged as a whole, as a write with `commit=False` leaves it."""

    happened = "run {run_id!r} is not ready to be committed: {reason}"
    retry_safe = False
    advice = "unless it has landed, run its script: with commit=False to stage, without to commit"

    reason: str


# ---- The work on the executors
@dataclass(eq=False, repr=False, kw_only=True)
class JobError(HoldfastError):
    """The work on the executors failed; nothing was committed."""


@dataclass(eq=False, repr=False, kw_only=True)
class NullKeyError(JobError):
    """Rows have NULL in their key, so they cannot be distinguished."""

    happened = "{rows} input rows have NULL in a key column"
    retry_safe = False
    advice = "filter these rows out, fill the column, or choose another key"

    rows: int


@dataclass(eq=False, repr=False, kw_only=True)
class DuplicateKeyError(JobError):
    """Several input rows have the same key: it is unclear which of them is done."""

    happened = "{keys} keys appear in more than one input row, for example {examples}"
    retry_safe = False
    advice = "add a column to key= that distinguishes these rows, or remove the duplicates"

    keys: int
    examples: str


@dataclass(eq=False, repr=False, kw_only=True)
class DuplicateOutputError(JobError):
    """Several output rows of an upsert have the same key: it is unclear which of them stays."""

    happened = (
        "{keys} keys ({columns}) appear in more than one row to be merged into {table}, for "
        "example {examples}"
    )
    retry_safe = False
    advice = (
        "make the output unique in the columns of on=, or add a column to on= that distinguishes "
        "these rows, under another run id"
    )

    table: str
    keys: int
    columns: str
    examples: str


@dataclass(eq=False, repr=False, kw_only=True)
class InputChangedError(JobError):
    """The input returned different rows when it was read again; nothing was committed."""

    happened = "the input has changed: {what}"
    retry_safe = False
    advice = (
        "restore it, or make it deterministic (write it to a table first), then run again; if it "
        "cannot be restored, use a new run id"
    )

    what: str


@dataclass(eq=False, repr=False, kw_only=True)
class SchemaMismatchError(JobError):
    """The output does not fit the table's schema."""

    happened = "column {column!r} does not fit {table}: {problem}"
    retry_safe = False
    advice = "{cure}; nothing was committed"

    table: str
    column: str
    problem: str
    cure: str = "change the transform's output or the table's column"


@dataclass(eq=False, repr=False, kw_only=True)
class EmptyOutputError(JobError):
    """A run that replaces all rows of a table has none to write."""

    happened = "the run has no rows to write, and would remove all rows of {table}"
    retry_safe = False
    advice = "look at the input and the transform; allow_empty=True empties the table"

    table: str


@dataclass(eq=False, repr=False, kw_only=True)
class TransformError(JobError):
    """The transform raised, or returned something that is not a table."""

    happened = "the transform failed in {failed_tasks} of {tasks} tasks; first: {example}"
    advice = "fix the transform (or the row), then run the same script again; nothing was committed"

    failed_tasks: int
    tasks: int
    example: str
    # False for a bug, a wrong type or a refused call: see `holdfast.model.lasting`.
    retry_safe: bool = True


@dataclass(eq=False, repr=False, kw_only=True)
class TooManyErrorsError(JobError):
    """More rows failed than `max_errors` allows; nothing was committed."""

    happened = "{rows} rows failed, and max_errors allows {limit}; first: {example}"
    advice = (
        "see run.quarantined(); fix the transform, or raise max_errors, then run the same script "
        "again: failed rows are retried, and finished rows are not paid for twice"
    )

    rows: int
    limit: int
    example: str
    # True where rows failed with errors that may pass: failed rows are retried.
    retry_safe: bool = False


@dataclass(eq=False, repr=False, kw_only=True)
class TransformTooLargeError(JobError):
    """The transform pickles to more bytes than should be sent with every task."""

    happened = "the transform pickles to {size_mb} MB (at most {limit_mb} MB)"
    retry_safe = False
    advice = (
        "build large objects on the worker: transform=hf.per_worker(YourClass, ...) "
        "builds them once in each worker process"
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
    """Spark gave up on the job."""

    happened = "Spark could not finish the job: {reason}"
    advice = "fix the cause named above, or see the executors' logs; nothing was committed"

    reason: str
    # False for a query that Spark refuses: a path, a column, a permission.
    retry_safe: bool = True


# ---- The one atomic step
@dataclass(eq=False, repr=False, kw_only=True)
class CommitError(HoldfastError):
    """The staged files could not be published; they are kept."""

    table: str


@dataclass(eq=False, repr=False, kw_only=True)
class CatalogUnavailableError(CommitError):
    """The catalog did not answer when the table was read."""

    happened = "{table}: the request to the catalog failed ({reason})"
    advice = (
        "check that the catalog can be reached and grants this user access, then run the same "
        "script again"
    )

    reason: str
    # False for a refused login or a setting that cannot be right.
    retry_safe: bool = True


@dataclass(eq=False, repr=False, kw_only=True)
class TableMissingError(CommitError):
    """There is no such table, namespace or branch."""

    happened = "{table}: {what}"
    retry_safe = False
    advice = "{cure}"

    what: str
    cure: str = "create it first; append and overwrite do, with create=hf.Create(schema=...)"


@dataclass(eq=False, repr=False, kw_only=True)
class TableChangedError(CommitError):
    """The table is not, or is no longer, the one that the files were staged for."""

    happened = "{table} has changed since this run began: {change}"
    retry_safe = False
    advice = (
        "undo the change and run the same script again (finished work is kept), or use a new run id"
    )

    change: str


@dataclass(eq=False, repr=False, kw_only=True)
class StagedFileMissingError(CommitError):
    """A staged file is gone or its size has changed: another clean-up job removed it."""

    happened = "{table}: {count} staged files are gone or changed; first: {path}"
    advice = (
        "run the same script again; keep orphan-file removal away from files younger than the run"
    )

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
    """The catalog or the store refused the commit for a reason that a retry will not change."""

    happened = "{table}: the commit was refused: {reason}"
    advice = "fix the cause, then run the same script again; the staged files are kept"

    reason: str
    # True where the table could not be created for now.
    retry_safe: bool = False


@dataclass(eq=False, repr=False, kw_only=True)
class CommitUnknownError(CommitError):
    """It is unknown whether the run has landed."""

    happened = "{table}: it is unknown whether run {run_id!r} has landed ({reason})"
    advice = (
        "run the same script again later: it checks the table first. If the outcome stays unknown, "
        "look for the run's rows in the table, abort the run with run.abort() and use a new run "
        "id. Delete nothing"
    )

    run_id: str
    reason: str


@dataclass(eq=False, repr=False, kw_only=True)
class TableOutOfSightError(CommitError):
    """A post of the run got no answer, and the table that would show its outcome cannot be read."""

    happened = (
        "{table}: run {run_id!r} has {posts} without an answer, and its table cannot be checked "
        "({reason}); the run may have landed, or may still land"
    )
    retry_safe = False
    advice = (
        "name the catalog and table that the run was started with: the table's UUID and branch "
        "must match. If the table or the branch is gone for good, pass table_is_gone=True "
        "(--table-is-gone)"
    )

    run_id: str
    posts: str
    reason: str


@dataclass(eq=False, repr=False, kw_only=True)
class CommittedThenRemovedError(CommitError):
    """The run landed, but its snapshot is no longer part of the table."""

    happened = (
        "{table}: run {run_id!r} landed as snapshot {snapshot_id}, "
        "which has since been rolled back or replaced"
    )
    retry_safe = False
    advice = "if the rows are wanted again, use a new run id"

    run_id: str
    snapshot_id: int
