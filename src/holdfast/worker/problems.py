"""Problems: what went wrong in a task, in words that reach the user."""

from __future__ import annotations

import linecache
import os
import socket
import sysconfig
import traceback
from pathlib import Path
from types import FrameType

import pyarrow as pa

from holdfast.errors import InputChangedError, SchemaMismatchError
from holdfast.model.lasting import code_lasts
from holdfast.plain_text import code_without_secrets, error_chain, printable
from holdfast.sinks.conform import ValueMisfitError
from holdfast.worker.covered_keys import NullKeysError
from holdfast.worker.reports import TaskProblem

# A model's error may carry a whole document; Spark collects one from every task.
_ERROR_LENGTH_MAX = 2000
_SOURCE_LENGTH_MAX = 200
_TRACEBACK_LENGTH_MAX = 20_000
_KEY_LENGTH_MAX = 200
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
# The standard library's folders, and those of installed packages.
_LIBRARIES = tuple(
    f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_INSTALLED = ("/site-packages/", "/dist-packages/", "/pyspark/", "/pyspark.zip/")


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
        return TaskProblem(kind="schema", host=host, facts=facts, of_the_job=True)
    cause = error.error
    facts = {
        "rows": rows,
        "keys": _key_range(key, batch),
        "error": error_text(cause),
        "where": _where(cause),
        "lasts": "yes" if code_lasts(cause) else "",
        "traceback": _traceback_text(cause),
    }
    return TaskProblem(kind="transform", host=host, facts=facts)


def error_text(error: BaseException) -> str:
    """Return an error as one text of bounded length."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - it is the user's own code.
        said = "(it cannot be shown as text)"
    return _storable(f"{type(error).__name__}: {said}"[:_ERROR_LENGTH_MAX])


def _storable(text: str) -> str:
    # A text cut in the middle of a sign cannot be stored.
    return text.encode(errors="backslashreplace").decode()


def _where(error: BaseException) -> str:
    """Return the innermost line of the user's own code, as far as it can be told from others'."""
    stacks = [list(traceback.walk_tb(one.__traceback__)) for one in error_chain(error)]
    # A job that is itself an installed package stands among the libraries.
    for is_chosen in (_is_users, _is_not_ours, bool):
        for stack in stacks:
            for frame, line in reversed(stack):
                if is_chosen(frame.f_code.co_filename):
                    return _frame_text(frame, line)
    return "unknown"


def _frame_text(frame: FrameType, line: int) -> str:
    code = frame.f_code
    source = linecache.getline(code.co_filename, line, frame.f_globals).strip()
    text = f"{code.co_filename}:{line} in {code.co_name}"
    if source:  # A worker may lack the driver's files.
        text += f", `{code_without_secrets(source)[:_SOURCE_LENGTH_MAX]}`"
    return _storable(text)


def _is_users(file: str) -> bool:
    if file.startswith(("<frozen ", *_LIBRARIES)) or not _is_not_ours(file):
        return False
    return not any(part in file for part in _INSTALLED)


def _is_not_ours(file: str) -> bool:
    return not file.startswith(_OURS)


def _traceback_text(error: BaseException) -> str:
    """Return the whole traceback, with all errors behind it; a long one is cut in its middle."""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - the errors are the user's own; their text may fail.
        text = error_text(error)
    text = "\n".join(map(printable, code_without_secrets(text).splitlines()))
    left_out = len(text) - _TRACEBACK_LENGTH_MAX
    if left_out > 0:
        half = _TRACEBACK_LENGTH_MAX // 2
        text = f"{text[:half]}\n... {left_out:,} characters left out ...\n{text[-half:]}"
    return _storable(text)


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
