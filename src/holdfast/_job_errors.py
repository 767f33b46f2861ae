"""Errors of the work on the executors. Users find them in `holdfast.errors`."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast._error_root import HoldfastError


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
class DuplicateKeyError(JobError):
    """Several input rows have the same key: nothing tells which of them is done."""

    happened = "{keys} keys stand in more than one input row, for example {examples}"
    retry_safe = False
    advice = "add a column that tells these rows apart to key=, or remove the doubled rows"

    keys: int
    examples: str


@dataclass(eq=False, repr=False, kw_only=True)
class InputChangedError(JobError):
    """The input gave other rows when it was read again; nothing was committed."""

    happened = "the input is not what it was: {what}"
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
    # False for a bug, a wrong type or a refused call: see `holdfast.model.lasting`.
    retry_safe: bool = True


@dataclass(eq=False, repr=False, kw_only=True)
class TooManyErrorsError(JobError):
    """More rows failed than `max_errors` allows; nothing was committed."""

    happened = "{rows} rows failed, and max_errors allows {limit}; first: {example}"
    advice = (
        "see run.quarantined(); mend the transform, or raise max_errors, then run the same script "
        "again: failed rows are tried again, finished ones are not paid for twice"
    )

    rows: int
    limit: int
    example: str
    # True where rows failed with errors that may pass: failed rows are tried again.
    retry_safe: bool = False


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
    advice = "mend what the reason names, or see the executors' logs; nothing was committed"

    reason: str
    # False for a query that Spark refuses: a path, a column, a permission.
    retry_safe: bool = True
