"""Problems: what went wrong in a task, in words that reach the user."""

from __future__ import annotations

import socket
import traceback

import pyarrow as pa

from holdfast.errors import InputChangedError, SchemaMismatchError
from holdfast.model.lasting import code_lasts
from holdfast.sinks.conform import ValueMisfitError
from holdfast.worker.covered_keys import NullKeysError
from holdfast.worker.reports import TaskProblem

# A model's error may carry a whole document; Spark collects one from every task.
_ERROR_LENGTH_MAX = 2000
_KEY_LENGTH_MAX = 200


class TransformFailedError(Exception):
    """Tells the transform's own error from the writer's."""

    def __init__(self, error: Exception) -> None:
        """Keep the transform's error."""
        super().__init__(error)
        self.error = error


def problem_of(
    error: TransformFailedError | SchemaMismatchError | NullKeysError | InputChangedError,
    key: tuple[str, ...],
    batch: pa.RecordBatch,
    rows_before: int,
) -> TaskProblem:
    """Say what is wrong with a batch, in plain values.

    Args:
        error: What was raised.
        key: The key columns.
        batch: The input batch.
        rows_before: How many rows the task had done before it.
    """
    host = socket.gethostname()
    rows = (
        f"rows {rows_before} to {rows_before + batch.num_rows - 1} of the task"
        if batch.num_rows
        else f"after {rows_before} rows of the task"
    )
    if isinstance(error, NullKeysError):
        return TaskProblem(kind="null key", host=host, facts={"rows": str(error.rows)})
    if isinstance(error, InputChangedError):
        return TaskProblem(kind="input", host=host, facts={"what": error.what})
    if isinstance(error, SchemaMismatchError):
        facts = {"table": error.table, "column": error.column, "problem": error.problem}
        if isinstance(error, ValueMisfitError):  # A person looks for the row.
            found = "; ".join(one for one in (rows, _key_range(key, batch)) if one)
            facts["problem"] += f" ({found})"
        return TaskProblem(kind="schema", host=host, facts=facts)
    cause = error.error
    frames = traceback.extract_tb(cause.__traceback__)
    facts = {
        "rows": rows,
        "keys": _key_range(key, batch),
        "error": error_text(cause),
        "where": f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown",
        "lasts": "yes" if code_lasts(cause) else "",
    }
    return TaskProblem(kind="transform", host=host, facts=facts)


def error_text(error: BaseException) -> str:
    """Return an error as one text of bounded length."""
    text = f"{type(error).__name__}: {error}"[:_ERROR_LENGTH_MAX]
    # A text cut in the middle of a sign cannot be stored.
    return text.encode(errors="backslashreplace").decode()


def _key_range(key: tuple[str, ...], batch: pa.RecordBatch) -> str:
    """Return the batch's first and last key, which is what a person can look up."""

    def at(row: int) -> str:
        values = [f"{name}={_shown(batch.column(name)[row])}" for name in key]
        return f"({', '.join(values)[:_KEY_LENGTH_MAX]})"

    if not key or any(batch.schema.names.count(name) != 1 for name in key):
        return ""
    return f"keys {at(0)} to {at(batch.num_rows - 1)}"


def _shown(value: pa.Scalar) -> str:
    try:
        return repr(value.as_py())
    except (OverflowError, ValueError):  # Python has no dates outside the years 1 to 9999.
        return str(value.value)
