"""What a task reports to the driver: its counts, and what went wrong in the user's terms.

Errors that a retry cannot fix are reported, not raised: Spark would run the task four times and pay
for the same rows again. Transient errors (a lost connection) are raised, so that Spark does retry.
"""

from __future__ import annotations

import json
import linecache
import os
import socket
import sys
import sysconfig
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal

import pyarrow as pa

from holdfast._version import __version__
from holdfast.errors import InputChangedError, SchemaMismatchError
from holdfast.model.lasting import code_lasts
from holdfast.sinks.conform import ValueMisfitError
from holdfast.storage.port import Storage, StorageError
from holdfast.text import code_without_secrets, error_chain, printable
from holdfast.worker.coverage import NullKeysError
from holdfast.worker.transforms import PerRow, PerWorker, TransformOutputError

# ---- A task's report to the driver: one JSON text per task, in Spark's own result

ProblemKind = Literal["setup", "transform", "schema", "null key", "input", "table"]
# "complete": all of its input is durable. "spent": the budget did not pay for the rest. "left":
# another attempt has durable work there; the next pass does the rest. "fenced": the run has
# continued without this job. "interrupted": the driver is stopping. "stopped": see the problem.
ReportEnd = Literal["complete", "spent", "left", "fenced", "interrupted", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProblem:
    """Why a task could not do its work."""

    kind: ProblemKind
    host: str
    # For "setup": what and cure. For "transform": where, error, traceback, and `lasts` unless it is
    # transient. For "schema": its facts. For "null key": rows.
    # For "table": table, what and cure.
    facts: dict[str, str]
    # Whether the job cannot succeed, whatever its other tasks do.
    of_the_job: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """How one task ended."""

    place: int
    end: ReportEnd = "complete"
    rows_in: int = 0
    # The attempt's own log, and how many records it has: the driver must find as many.
    log: str = ""
    records: int = 0
    problem: TaskProblem | None = None
    # Records whose chunk did not read back as it was written.
    damaged: tuple[str, ...] = ()
    # Rows that were set aside, and the first one's error as text.
    failed_rows: int = 0
    failed_example: str = ""
    # Its traceback.
    failed_traceback: str = ""
    # Whether one of them failed with a transient error.
    failed_may_pass: bool = False
    # What became of each work item, as JSON.
    results: tuple[str, ...] = ()
    # The task's storage requests: see `IoCounters`.
    io: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the report as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TaskReport:
        """Read back the output of `to_json` or of the bootstrap on an executor."""
        value: dict[str, Any] = json.loads(text)
        problem = value.pop("problem", None)
        value["damaged"] = tuple(value.get("damaged", ()))
        value["results"] = tuple(value.get("results", ()))
        if problem is not None:
            value = {"end": "stopped", **value, "problem": TaskProblem(**problem)}
        return cls(**value)


class WorkerTraceback(Exception):  # noqa: N818 - not an error, but where one was raised.
    """A worker's traceback as text, because frames cannot be passed between processes."""

    def __str__(self) -> str:
        """Return it in the form that Python prints above the driver's own traceback."""
        return f'\n"""\n{self.args[0]}\n"""'

    @classmethod
    def of(cls, text: str) -> WorkerTraceback | None:
        """Return the cause to raise an error from; None if there is no traceback."""
        return cls(text) if text else None


def transform_example(problem: TaskProblem) -> str:
    """Return a transform's failure as text."""
    facts = problem.facts
    example = f"{facts['error']} (at {facts['where']}; {facts['rows']}"
    return example + (f"; {facts['keys']})" if facts["keys"] else ")")


# ---- Problems: what went wrong in a task, worded for the user

# A model's error may carry a whole document, and Spark collects one from every task.
_ERROR_LENGTH_MAX = 2000
_SOURCE_LENGTH_MAX = 200
_TRACEBACK_LENGTH_MAX = 20_000
_KEY_LENGTH_MAX = 200
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
# The folders of the standard library and of installed packages.
_LIBRARIES = tuple(
    f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_INSTALLED = ("/site-packages/", "/dist-packages/", "/pyspark/", "/pyspark.zip/")


class TransformFailedError(Exception):
    """Marks an error as the transform's own, not the writer's."""

    def __init__(self, error: Exception) -> None:
        """Keep the transform's error."""
        super().__init__(error)
        self.error = error


def problem_of(
    error: TransformFailedError | SchemaMismatchError | NullKeysError | InputChangedError,
    key: tuple[str, ...],
    batch: pa.RecordBatch,
    rows_before: int,
    transform: object = None,
) -> TaskProblem:
    """Describe what is wrong with a batch, in plain values.

    Args:
        error: The exception.
        key: The key columns.
        batch: The input batch.
        rows_before: How many rows the task had done before this batch.
        transform: The user's transform; its output may be wrong although none of its lines failed.
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
        if isinstance(error, ValueMisfitError):  # A person will look for the row.
            found = "; ".join(part for part in (rows, _key_range(key, batch)) if part)
            facts["problem"] += f" ({found})"
            return TaskProblem(kind="schema", host=host, facts=facts)
        return TaskProblem(kind="schema", host=host, facts=facts, of_the_job=True)
    cause = error.error
    facts = {
        "rows": rows,
        "keys": _key_range(key, batch),
        "error": error_text(cause),
        "where": _where(cause, transform),
        "lasts": "yes" if code_lasts(cause) else "",
        "traceback": _traceback_text(cause),
    }
    return TaskProblem(kind="transform", host=host, facts=facts)


def error_text(error: BaseException) -> str:
    """Return an error as text of bounded length."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - it is the user's own code.
        said = "(it cannot be shown as text)"
    return _storable(f"{type(error).__name__}: {said}"[:_ERROR_LENGTH_MAX])


def _storable(text: str) -> str:
    # A text that is cut in the middle of a character cannot be stored.
    return text.encode(errors="backslashreplace").decode()


def _where(error: BaseException, transform: object) -> str:
    """Return the innermost line of the user's own code, as far as it can be recognised."""
    stacks = [list(traceback.walk_tb(raised.__traceback__)) for raised in error_chain(error)]
    code = _code_of(transform) if isinstance(error, TransformOutputError) else None
    # A job that is itself an installed package counts as a library.
    for is_chosen in (_is_users, _is_not_ours, bool):
        if is_chosen is not _is_users and code is not None:  # It has returned: no line is left.
            return _line_text(code, code.co_firstlineno, {})
        for stack in stacks:
            for frame, line in reversed(stack):
                if is_chosen(frame.f_code.co_filename):
                    return _frame_text(frame, line)
    return "unknown"


def _code_of(transform: object) -> CodeType | None:
    """Return the code of the user's function, or of the object's method that is called."""
    while isinstance(transform, PerRow | PerWorker | partial):
        if isinstance(transform, PerWorker):
            transform = transform.factory
        else:
            transform = transform.function if isinstance(transform, PerRow) else transform.func
    if not hasattr(transform, "__code__"):
        transform = getattr(transform, "__call__", None)  # noqa: B004 - an object or a class.
    code = getattr(transform, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _frame_text(frame: FrameType, line: int) -> str:
    return _line_text(frame.f_code, line, frame.f_globals)


def _line_text(code: CodeType, line: int, names: dict[str, Any]) -> str:
    source = linecache.getline(code.co_filename, line, names).strip()
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
    """Return the whole traceback with all causes; a long one is cut in the middle."""
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
    """Return the batch's first and last key, for a person to look up."""

    def at(row: int) -> str:
        values = [f"{name}={_shown(batch.column(name)[row])}" for name in key]
        return f"({', '.join(values)[:_KEY_LENGTH_MAX]})"

    if not key or any(batch.schema.names.count(name) != 1 for name in key):
        return ""
    return f"keys {at(0)} to {at(batch.num_rows - 1)}"


def _shown(value: pa.Scalar) -> str:
    try:
        return repr(value.as_py())
    except UnicodeDecodeError:  # Spark's texts need not be UTF-8.
        return repr(value.as_buffer().to_pybytes())
    except (OverflowError, ValueError):  # Python has no dates outside the years 1 to 9999.
        return str(value.value)


# ---- A checkup: what one executor reports about itself; it changes nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """What one task found."""

    host: str
    python: str
    holdfast: str
    pyarrow: str
    # Unix seconds, by the executor's clock.
    at: float
    # Why the store cannot be reached from there; empty if it can, or if it was not checked.
    store_error: str = ""

    def to_json(self) -> str:
        """Return the checkup as JSON for the driver."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckupPlan:
    """What each task checks. Sent to executors, never stored."""

    # None if no store is named.
    store: str | None
    storage: Storage | None

    def run(self, batches: Iterator[Any], *, place: int, attempt: int) -> Checkup:  # noqa: ARG002
        """Run the checks on an executor."""
        for _ in batches:  # So that Spark sees its rows read.
            pass
        return Checkup(
            host=socket.gethostname(),
            python=f"{'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})",
            holdfast=__version__,
            pyarrow=pa.__version__,
            at=time.time(),
            store_error=self._store_error(),
        )

    def _store_error(self) -> str:
        if self.store is None or self.storage is None:
            return ""
        try:
            self.storage.folders(self.store)
        except StorageError as error:
            return str(error)
        return ""
