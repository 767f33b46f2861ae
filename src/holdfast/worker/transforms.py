"""Transforms: the user's expensive step, by batch or by row, and which errors are retried.

Holdfast passes one batch at a time, which is how it knows which rows are done. A transform may be a
plain function or an object that is built once in each worker process.
"""

from __future__ import annotations

import random
import sys
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import Any, Literal, cast

import pyarrow as pa

from holdfast.errors import SettingsError
from holdfast.model.lasting import PASSING, RATE_LIMITED, names, status_of
from holdfast.text import seconds_of
from holdfast.worker.python_values import drops_nanoseconds, with_nanoseconds

# ---- Transforms: the user's expensive step, one batch at a time

# Called with a batch in the format that the user chose.
Transform = Callable[[Any], Any]
BatchFormat = Literal["arrow", "pandas", "polars"]

# Objects built in this worker process, most recently used last. PySpark reuses its worker processes
# across tasks, and each task unpickles its own copy.
_BUILT: OrderedDict[str, Transform] = OrderedDict()
_BUILT_MAX = 4


class TransformOutputError(TypeError):
    """The transform returned something that is not rows."""


@dataclass(frozen=True)
class PerWorker:
    """A transform that is built once in each worker process. Made by `per_worker`."""

    factory: Callable[..., Transform]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    # Every unpickled copy carries the token, so all tasks of a process find the same object.
    token: str

    def build(self) -> Transform:
        """Return this process's object; build it on the first call.

        Runs on an executor.
        """
        if self.token not in _BUILT:
            _BUILT[self.token] = self.factory(*self.args, **self.kwargs)
            while len(_BUILT) > _BUILT_MAX:
                _BUILT.popitem(last=False)
        _BUILT.move_to_end(self.token)
        return _BUILT[self.token]


# The arguments belong to the factory.
def per_worker(factory: Callable[..., Transform], *args: Any, **kwargs: Any) -> PerWorker:  # noqa: ANN401
    """Build a transform once in each worker process, not once per task or batch.

    Runs on the driver; only the factory and its arguments are sent to the executors. Use it for
    models, clients and anything else that is large or slow to build.

    Args:
        factory: A class or function; what it returns is called with each batch.
        *args: Positional arguments of the factory.
        **kwargs: Keyword arguments of the factory.
    """
    return PerWorker(factory=factory, args=args, kwargs=kwargs, token=uuid.uuid4().hex)


def ready(transform: Transform | PerWorker | None) -> Transform:
    """Return the function to call with each batch. Runs on an executor."""
    if transform is None:
        return lambda batch: batch
    return transform.build() if isinstance(transform, PerWorker) else transform


def converted(batch: pa.RecordBatch, batch_format: BatchFormat) -> Any:  # noqa: ANN401 - by format.
    """Return a batch in the format that the transform wants. Runs on an executor.

    A pandas frame gets Arrow types: NumPy has no NULL for integers, and would make large ones
    inexact.
    """
    if batch_format == "pandas":
        import pandas as pd  # noqa: PLC0415 - only for those who use it.

        return batch.to_pandas(types_mapper=pd.ArrowDtype)
    if batch_format == "polars":
        import polars as pl  # noqa: PLC0415 - only for those who use it.

        return pl.from_arrow(batch)
    return batch


def _is_frame(output: object, library: str) -> bool:
    """Whether it is a library's DataFrame; the library is not imported for this check."""
    module = sys.modules.get(library)
    return module is not None and isinstance(output, module.DataFrame)


def _is_rows(output: object) -> bool:
    plain = isinstance(output, pa.RecordBatch | pa.Table | Mapping)
    return plain or _is_frame(output, "pandas") or _is_frame(output, "polars")


def output_batches(output: object) -> Iterator[pa.RecordBatch]:
    """Yield what a transform returned as record batches.

    Args:
        output: A RecordBatch, a Table, a pandas or polars DataFrame, a dict of columns, or an
            iterable of these.

    Raises:
        TransformOutputError: The output is none of these.
    """
    if isinstance(output, pa.RecordBatch):
        yield output
    elif isinstance(output, pa.Table):
        yield from output.to_batches()
    elif _is_frame(output, "pandas"):
        table = pa.Table.from_pandas(output, preserve_index=False)
        _refuse_nanoseconds(table.schema, cast("Any", output).to_dict("series"))
        yield from table.replace_schema_metadata(None).to_batches()
    elif _is_frame(output, "polars"):
        yield from cast("Any", output).to_arrow().to_batches()
    elif isinstance(output, Mapping):
        if not output:
            raise TransformOutputError("it returned a dict without columns")
        table = pa.table(dict(output))
        _refuse_nanoseconds(table.schema, output)
        yield from table.to_batches()
    elif isinstance(output, Iterable) and not isinstance(output, str | bytes):
        for part in output:
            if not _is_rows(part):
                # A Series or an array is iterable, but not by rows: name the whole object.
                container = isinstance(output, list | tuple | Iterator)
                raise TransformOutputError(_complaint(part if container else output))
            yield from output_batches(part)
    else:
        raise TransformOutputError(_complaint(output))


def _refuse_nanoseconds(schema: pa.Schema, columns: Mapping[Any, Any]) -> None:
    """Refuse columns of Python objects whose nanoseconds pyarrow has dropped.

    Raises:
        TransformOutputError: There is such a column.
    """
    for name, column in columns.items():
        index = schema.get_field_index(str(name))
        if index < 0 or not drops_nanoseconds(schema.field(index).type):
            continue
        if (lost := with_nanoseconds(column)) is not None:
            raise TransformOutputError(
                f"column {name!r}: {lost} has nanoseconds, which pyarrow drops from objects; "
                "return them as an array of type timestamp[ns]"
            )


def _complaint(output: object) -> str:
    return (
        f"it returned {type(output).__name__}, not a pyarrow RecordBatch or Table, a "
        "pandas or polars DataFrame, a dict of columns, or an iterable of these"
    )


# ---- Retry: which failed calls are retried, and how long to wait before the next call
@dataclass(frozen=True, kw_only=True)
class Retry:
    """When and how a failed call for one row is retried.

    A rate-limited call is not the row's fault: it does not count as an attempt, and all calls of
    the task wait as long as the server asks. It is retried until `patience` has passed since the
    row's first call.

    Args:
        on: Which errors to retry: error classes, HTTP status codes, or dotted names of error
            classes. By default timeouts, lost connections, 408, 429 and transient 5xx.
        attempts: How many calls a row gets in total.
        first_wait: The wait before the second call; it doubles with each call.
        longest_wait: The upper limit of that wait. A longer `Retry-After` is still honoured.
        patience: How long rate limits may hold up a row before it counts as failed.

    Raises:
        SettingsError: An argument cannot be used.
    """

    on: tuple[type[BaseException] | int | str, ...] = PASSING
    attempts: int = 5
    first_wait: str | float | timedelta = "1s"
    longest_wait: str | float | timedelta = "60s"
    patience: str | float | timedelta = "15min"

    def __post_init__(self) -> None:
        """Reject invalid values.

        Raises:
            SettingsError: An argument cannot be used.
        """
        if type(self.attempts) is not int or self.attempts < 1:
            raise SettingsError(
                what=f"Retry(attempts={self.attempts!r})", cure="give a whole number of at least 1"
            )
        for name in ("first_wait", "longest_wait", "patience"):
            duration(f"Retry({name}=…)", getattr(self, name))
        if not isinstance(self.on, tuple | list):
            raise SettingsError(what=f"Retry(on={self.on!r})", cure="give a tuple: on=(429, 503)")
        for entry in self.on:
            is_error = isinstance(entry, type) and issubclass(entry, BaseException)
            if not is_error and not isinstance(entry, int | str):
                raise SettingsError(
                    what=f"Retry(on=…): {entry!r}",
                    cure="give error classes, HTTP status codes, or dotted names of classes",
                )

    def wait_s(
        self, error: BaseException, attempts: int, since_s: float, refusals: int = 0
    ) -> float | None:
        """Return how long to wait before the next call; None if there is no next call.

        Args:
            error: What the last call raised.
            attempts: How many calls have counted so far, including this one if it counts.
            since_s: How long ago the row's first call was.
            refusals: How many calls were rate-limited.
        """
        asked = retry_after_s(error) or 0.0
        if not names(self.on, error):
            return None
        if is_rate_limit(error):
            if since_s + asked > seconds_of(self.patience):
                return None
        elif attempts >= self.attempts:
            return None
        if asked:
            # Never earlier than asked, and with jitter so that the calls do not all come back at
            # once.
            return asked * random.uniform(1.0, 1.1)  # noqa: S311 - nothing secret hangs on it.
        calls = max(attempts + refusals, 1)
        doubled = seconds_of(self.first_wait) * 2.0 ** min(calls - 1, 30)
        wait = min(doubled, seconds_of(self.longest_wait))
        # Jitter, so that calls that failed together do not come back together.
        return wait * random.uniform(0.5, 1.0)  # noqa: S311 - nothing secret hangs on it.


def is_rate_limit(error: BaseException) -> bool:
    """Whether the server reports a rate limit or says when to come back."""
    return status_of(error) == RATE_LIMITED or retry_after_s(error) is not None


def retry_after_s(error: BaseException) -> float | None:
    """Return the wait that the server asks for, in seconds; None if it does not ask.

    Read from the error's own `retry_after`, or from the `Retry-After` header of its response, which
    may be a number of seconds or a date.
    """
    asked: Any = getattr(error, "retry_after", None)
    for holder in (getattr(error, "response", None), error):
        headers = getattr(holder, "headers", None)
        if asked is None and isinstance(headers, Mapping):
            asked = headers.get("retry-after") or headers.get("Retry-After")
    if asked is None:
        return None
    try:
        return max(float(asked), 0.0)
    except (TypeError, ValueError):
        pass
    try:
        moment = parsedate_to_datetime(str(asked))
    except (TypeError, ValueError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return max((moment - datetime.fromtimestamp(time.time(), timezone.utc)).total_seconds(), 0.0)


def duration(what: str, value: str | float | timedelta) -> float:
    """Return a duration in seconds.

    Raises:
        SettingsError: The value is not a duration.
    """
    try:
        return seconds_of(value)
    except (TypeError, ValueError) as error:
        raise SettingsError(what=f"{what}: {error}", cure='give a duration ("30s")') from error


# ---- Per row: a function of one row, called for many rows concurrently. Meant for calls to a model

RowFunction = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class PerRow:
    """A transform that works row by row. Made by `per_row`."""

    function: RowFunction | PerWorker
    concurrency: int
    retry: Retry
    timeout_s: float | None

    def build(self) -> RowFunction:
        """Return the function to call. Runs on an executor."""
        if isinstance(self.function, PerWorker):
            return cast("RowFunction", self.function.build())
        return self.function


def per_row(
    function: RowFunction | PerWorker,
    *,
    concurrency: int = 64,
    retry: Retry | None = None,
    timeout: str | float | timedelta | None = None,
) -> PerRow:
    """Make a transform from a function of one row, which is called for many rows concurrently.

    Runs on the driver; the calls run on the executors. A checkpoint records every finished row,
    even while other rows are still waiting. Rows keep their order, except that a finished row does
    not wait for a slower one when a checkpoint is due.

    Args:
        function: Takes a row as a dict; returns the output row as a dict, or, with
            `one_to_one=False`, a list of dicts or None. An `async def` is best; a plain function
            runs in threads. `hf.per_worker(Class, ...)` builds a client once per worker process.
        concurrency: How many rows each task works on at once.
        retry: Which errors to retry, and when; `hf.Retry()` by default.
        timeout: How long one call may take. A call that takes longer counts as an error.

    Raises:
        SettingsError: An argument cannot be used.
    """
    if not isinstance(function, PerWorker) and not callable(function):
        raise SettingsError(what=f"per_row({function!r})", cure="give a function of one row")
    if type(concurrency) is not int or concurrency < 1:
        raise SettingsError(
            what=f"concurrency={concurrency!r}", cure="give a whole number of at least 1"
        )
    timeout_s = None if timeout is None else duration(f"timeout={timeout!r}", timeout)
    return PerRow(function, concurrency, retry or Retry(), timeout_s)
