"""Row functions under a test's control: what they were called with, when, and how they end."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from holdfast.worker.calls import Answer, Calls
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import TaskPlan
from holdfast.worker.transforms import Retry
from tests.fakes.task_ledgers import (
    ATTEMPT,
    PLACE,
    ListWriterSpec,
    WatchedStorage,
    job_ledger,
)

Row = dict[str, Any]

# As many retries as the default, but a thousand times as fast.
QUICK = Retry(first_wait=0.001, longest_wait=0.004, patience=5.0)
# How long a test waits for what should come at once, before it fails.
_PATIENCE_S = 5.0


class HttpError(Exception):
    """An error that carries a response, as those of httpx, requests and openai do."""

    def __init__(self, status: int, headers: Mapping[str, str] | None = None) -> None:
        """Keep the response."""
        super().__init__(f"HTTP {status}")
        self.response = SimpleNamespace(status_code=status, headers=headers or {})


def refused(after_s: float | str | None = None) -> HttpError:
    """Return a server's answer to calls that come too fast; it may name a wait."""
    return HttpError(429, {} if after_s is None else {"Retry-After": str(after_s)})


class RowFunction:
    """An async function of one row that passes it on, and remembers its calls."""

    def __init__(self) -> None:
        """Start with no call made and no fault."""
        self.ids: list[int] = []
        self.times: list[float] = []
        self.at_work = self.most_at_work = 0
        # The ids whose calls were cancelled from outside.
        self.cancelled: list[int] = []
        # What calls for an id raise: one error after the other, or always the same.
        self.errors: dict[int, deque[BaseException]] = {}
        self.fails_at: dict[int, BaseException] = {}
        # How long calls for an id take, and what they return instead of the row.
        self.seconds: dict[int, float] = {}
        self.returns: dict[int, Any] = {}

    async def __call__(self, row: Row) -> Any:  # noqa: ANN401 - whatever a test wants.
        """Do the expensive step."""
        number = row["id"]
        self.ids.append(number)
        self.times.append(time.monotonic())
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            await asyncio.sleep(self.seconds.get(number, 0.0))
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        finally:
            self.at_work -= 1
        if self.errors.get(number):
            raise self.errors[number].popleft()
        if number in self.fails_at:
            raise self.fails_at[number]
        return self.returns.get(number, row)


def take(calls: Calls, count: int) -> dict[int, Answer]:
    """Return so many answers, by the number of their row."""
    found: dict[int, Answer] = {}
    deadline = time.monotonic() + _PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        found |= {answer.number: answer for answer in calls.answers(0.05)}
    assert len(found) == count
    return found


def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that should happen at once."""
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert is_so()


def batch(ids: Iterable[int], **columns: Iterable[Any]) -> pa.RecordBatch:
    """Return input rows of these ids."""
    columns = {"id": list(ids), **{name: list(values) for name, values in columns.items()}}
    return pa.RecordBatch.from_pydict(columns)


NEVER_DUE_S, DUE_AT_ONCE_S = 1e9, 1e-9


def run_task(
    storage: WatchedStorage,
    *batches: pa.RecordBatch,
    **options: Any,  # noqa: ANN401 - any field of the plan.
) -> TaskReport:
    """Run one task that sets failing rows aside; by default no checkpoint is due on the way."""
    fields: dict[str, Any] = {"transform": None, "batch_rows": 1024, "key": ("id",)}
    fields |= {"writer": ListWriterSpec(pa.schema([("id", pa.int64())]))}
    fields |= {"ledger": job_ledger(storage), "job_nonce": "job", "on_error": "quarantine"}
    fields |= {"checkpoint_every_s": NEVER_DUE_S, **options}
    return TaskPlan(**fields).run(batches, place=PLACE, attempt=ATTEMPT)
