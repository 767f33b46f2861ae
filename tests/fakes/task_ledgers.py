"""What a task works with, in memory: a ledger, a writer that keeps rows, a manual clock."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from holdfast.ledger.layout import RunLayout, tasks_name
from holdfast.ledger.ledger import TaskPorts
from holdfast.ledger.task_log import JobLedger, TaskLog, read_logs
from holdfast.model.coverage import Coverage
from holdfast.model.limits import DEFAULT_LIMITS, Limits
from holdfast.model.work import Chunk, StagedFile, StagedGroup, TaskRecord
from holdfast.sinks.base import MayLack
from holdfast.sinks.conform import Conformer
from holdfast.storage.port import ObjectSink, Storage
from holdfast.worker.batch_steps import Step
from tests.fakes.memory_storage import MemoryStorage

CLAIM, JOB, PLACE, ATTEMPT = 3, "rows", 7, 21
NEXT_NUMBER = 5

Row = dict[str, Any]


def done_step(rows: pa.RecordBatch, seconds: float) -> Step:
    """Return a step whose output is taken already."""
    return Step(rows=rows, tags=None, outputs=(), began=0.0, seconds=seconds)


class ManualClock:
    """A clock that moves only when a test moves it, or when a caller sleeps."""

    def __init__(self) -> None:
        """Start at a value other than zero, which could hide a wrong default."""
        self.now_s = 1000.0
        self.sleeps: list[float] = []
        # Each runs once, at the end of one sleep: what happened meanwhile.
        self.meanwhile: list[Callable[[], object]] = []

    def __call__(self) -> float:
        """Return the moment."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Advance the clock at once."""
        self.sleeps.append(seconds)
        self.now_s += seconds
        if self.meanwhile:
            self.meanwhile.pop(0)()


@dataclass
class WatchedSink:
    """An upload that shows what it was given, and how it ended."""

    storage: MemoryStorage
    uri: str
    data: bytearray = field(default_factory=bytearray)
    writes: int = 0
    end: Literal["open", "closed", "abandoned"] = "open"

    def write(self, data: bytes | memoryview, /) -> int:
        """Take the bytes."""
        assert self.end == "open"
        self.data += data
        self.writes += 1
        return len(data)

    def tell(self) -> int:
        """Return how many bytes were taken, also after the end."""
        return len(self.data)

    def close(self) -> None:
        """Make the object visible."""
        assert self.end == "open"
        self.storage.put(self.uri, bytes(self.data))
        self.end = "closed"

    def abandon(self) -> None:
        """Give the object up."""
        self.end = "abandoned"


class WatchedStorage(MemoryStorage):
    """Storage in memory that remembers every object that was written in pieces."""

    def __init__(self) -> None:
        """Start empty."""
        super().__init__()
        self.sinks: list[WatchedSink] = []

    def open_sink(self, uri: str) -> ObjectSink:
        """Start an object and remember it."""
        sink = WatchedSink(self, uri)
        self.sinks.append(sink)
        return sink

    def fence(self) -> None:
        """Let the run continue without the job of `job_ledger`."""
        self.objects[job_ledger(self).layout.record(NEXT_NUMBER)] = b"another driver's claim"


def job_ledger(
    storage: Storage, *, store: str = "mem://store", job: str = JOB, planned_at: float | None = None
) -> JobLedger:
    """Return the ledger of one job of one claim, which was planned just now."""
    layout = RunLayout.of(store, "scheduled__2026-11-14T00:00:00+00:00")
    return JobLedger(
        storage=storage,
        layout=layout,
        claim=CLAIM,
        tasks=tasks_name(CLAIM),
        job=job,
        next_number=NEXT_NUMBER,
        planned_at=time.time() if planned_at is None else planned_at,
    )


def task_log(ledger: JobLedger, *, attempt: int = ATTEMPT) -> TaskLog:
    """Return an empty log that does not wait between its tries."""
    name = ledger.log_name(PLACE, attempt)
    return TaskLog(ledger.storage, ledger.layout, name, ports=TaskPorts(sleep=ManualClock().sleep))


def logged(ledger: JobLedger, *, attempt: int = ATTEMPT) -> list[TaskRecord]:
    """Return the records in an attempt's log, as the driver will read them."""
    uris = ledger.storage.list(ledger.layout.tasks)
    logs = read_logs(ledger.storage, ledger.layout, uris)
    return logs.get(ledger.log_name(PLACE, attempt), [])


def record(  # noqa: PLR0913 - any fact that a test may want to set.
    name: str,
    rows: int = 0,
    *,
    chunk: int = 0,
    groups: Sequence[StagedGroup] = (),
    supersedes: Sequence[str] = (),
    span: tuple[int, int] | None = None,
    seconds: float = 0.0,
    **facts: Any,  # noqa: ANN401 - whatever else a record has.
) -> TaskRecord:
    """Return a record that covers some rows; `chunk` is the number of rows in its chunk."""
    return TaskRecord(
        name=name,
        coverage=Coverage(rows=rows, low=10 * rows, high=100 * rows, keys_bytes=rows, span=span),
        seconds=seconds,
        groups=tuple(groups),
        chunk=Chunk(rows=chunk, size_bytes=8 * chunk, digest=f"digest of {name}")
        if chunk
        else None,
        supersedes=tuple(supersedes),
        **facts,
    )


def group_of(name: str, rows: int) -> StagedGroup:
    """Return a group of one file, both named after `name`."""
    file = StagedFile(path=f"mem://data/{name}", size_bytes=10 * rows, rows=rows)
    return StagedGroup(path=f"mem://meta/{name}", size_bytes=5, files=(file,), detail={"spec": 0})


class ListWriter:
    """A task writer that keeps its rows in lists; a cut closes one file."""

    def __init__(self, spec: ListWriterSpec, task_name: str, limits: Limits) -> None:
        """Start empty."""
        self._spec = spec
        self._task_name = task_name
        self.limits = limits
        self._cuts = itertools.count()
        self._open: list[Row] = []
        self.abandons = 0

    @property
    def stored_schema(self) -> pa.Schema:
        """The schema of rows as `fit` returns them."""
        return self._spec.schema

    @property
    def fullness(self) -> float:
        """How many of the rows that make a full file are there."""
        return len(self._open) / self._spec.full_rows

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows in the table's schema."""
        spec = self._spec
        return Conformer(spec.table, batch.schema, spec.schema, may_lack=spec.may_lack)(batch)

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows that are fitted already."""
        assert rows.schema.equals(self._spec.schema)
        self._open += rows.to_pylist()

    def cut(self) -> list[StagedGroup]:
        """Close the file, if there are rows for one."""
        rows, self._open = self._open, []
        if not rows:
            return []
        group = group_of(f"{self._task_name}-{next(self._cuts)}", len(rows))
        self._spec.files[group.files[0].path] = rows
        return [group]

    def abandon(self) -> None:
        """Give up what is not closed."""
        self._open = []
        self.abandons += 1


@dataclass
class ListWriterSpec:
    """Opens writers over one schema, and keeps what they have closed."""

    schema: pa.Schema
    # How many rows make files of a good size.
    full_rows: int = 1_000_000
    files: dict[str, list[Row]] = field(default_factory=dict)
    opened: list[ListWriter] = field(default_factory=list)
    may_lack: MayLack = frozenset()
    delete_column: str = ""
    table: str = "t"

    def open(self, task_name: str, limits: Limits = DEFAULT_LIMITS) -> ListWriter:
        """Start a writer."""
        self.opened.append(ListWriter(self, task_name, limits))
        return self.opened[-1]

    def rows_in(self, record: TaskRecord) -> list[Row]:
        """Return the rows of all files that a record names."""
        return [
            row for group in record.groups for file in group.files for row in self.files[file.path]
        ]
