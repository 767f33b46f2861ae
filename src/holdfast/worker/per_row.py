"""Per row: a function of one row, called for many rows at once. Made for calls to a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from holdfast.errors import SettingsError
from holdfast.worker.retry import Retry, duration
from holdfast.worker.transforms import PerWorker

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
    """Make a transform of a function that takes one row, and call it for many rows at once.

    Runs on the driver; the calls run on the executors. Rows that are finished count at a
    checkpoint, whatever other rows are still waiting for. Rows keep their order, except that a
    finished row does not wait for a slower one when a checkpoint is due.

    Args:
        function: Takes a row as a dict; returns the output row as a dict, or, with
            `rows="any"`, a list of them or None. An `async def` is best; a plain function gets
            threads. `hf.per_worker(Class, ...)` builds a client once in each worker process.
        concurrency: How many rows each task works on at a time.
        retry: Which errors are worth another call; `hf.Retry()` by default.
        timeout: How long one call may take. It then counts as an error.

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
