"""Jobs over work items: chunks are put into table files, and files of the table rewritten.

A replay puts the chunks of tasks that died into table files, without calling the transform.

IO threads fetch chunks and compute their digests while earlier ones are encoded.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import (
    ExecutorSetupError,
    HoldfastError,
    LedgerDamagedError,
    TableChangedError,
    UnsupportedTableError,
)
from holdfast.failpoints import failpoint
from holdfast.ledger.row_files import decode_chunk
from holdfast.ledger.store import read_whole
from holdfast.ledger.task_log import JobLedger, TaskLog
from holdfast.model.coverage import NOTHING
from holdfast.model.limits import DEFAULT_LIMITS, Limits
from holdfast.model.work import Chunk, TaskEnd, TaskRecord
from holdfast.sinks.base import RewriterSpec, TaskWriter, WriterSpec
from holdfast.sinks.conform import Conformer
from holdfast.storage.port import StorageError
from holdfast.storage.runtime import io_runtime, read_ahead
from holdfast.worker.reports import TaskProblem, TaskReport
from holdfast.worker.task import item_texts
from holdfast.worker.twins import reason_to_do_nothing

# The one column of the work items' DataFrame: a JSON list of chunks.
ITEM_COLUMN = "chunks"
# Arrow's metadata key for a column's number, set by a writer of numbered columns.
_FIELD_ID = b"PARQUET:field_id"


def work_items(records: Sequence[TaskRecord], item_bytes: int) -> list[str]:
    """Group waiting chunks into items that each make files of a good size.

    Args:
        records: The records whose chunks are waiting.
        item_bytes: How many bytes of chunks make one item.
    """
    items: list[list[list[object]]] = []
    room = 0
    for record in records:
        chunk = record.chunk
        if chunk is None:
            continue
        if not items or room < chunk.size_bytes:
            items.append([])
            room = item_bytes
        items[-1].append([record.name, chunk.rows, chunk.size_bytes, chunk.digest])
        room -= chunk.size_bytes
    return [json.dumps(item) for item in items]


@dataclass(frozen=True, kw_only=True)
class ReplayPlan:
    """The work of every task of a replay job. Pickled on the driver, never stored."""

    writer: WriterSpec
    ledger: JobLedger
    job_nonce: str
    checkpoint_every_s: float | None = None
    limits: Limits = DEFAULT_LIMITS

    def run(self, batches: Iterable[pa.RecordBatch], *, place: int, attempt: int) -> TaskReport:
        """Replay the chunks of one task's work items. Runs on an executor."""
        ledger = self.ledger
        every_s = self.checkpoint_every_s
        end = reason_to_do_nothing(ledger, place=place, attempt=attempt, every_s=every_s)
        if end is not None:
            return TaskReport(place=place, end=end)
        name = ledger.log_name(place, attempt)
        task = _ReplayTask(
            ledger,
            ledger.log(place, attempt),
            self.writer.open(f"{self.job_nonce}-{place:05d}-{attempt}", self.limits),
        )
        # A batch can hold several items, and a task several batches.
        chunks = [pair for batch in batches for pair in _chunks(batch)]
        try:
            with io_runtime().bounded(self.limits.in_flight_bytes):
                asked = read_ahead(
                    chunks, size_of=lambda pair: pair[1].size_bytes, ask=task.ask, at_least=1
                )
                for (record_name, chunk), data in asked:
                    task.replay(record_name, chunk, data)
                task.cut("complete")
        except BaseException:
            with contextlib.suppress(HoldfastError, StorageError, OSError):
                task.fail()
            raise
        return TaskReport(place=place, log=name, records=task.records, damaged=tuple(task.damaged))


class _ReplayTask:
    def __init__(self, ledger: JobLedger, log: TaskLog, writer: TaskWriter) -> None:
        self._ledger = ledger
        self._log = log
        self._writer = writer
        self._done: list[str] = []
        self.damaged: list[str] = []
        self.records = 0

    def ask(self, one: tuple[str, Chunk]) -> Future[bytes]:
        name, chunk = one
        storage, uri = self._ledger.storage, self._ledger.layout.chunk(name)
        return io_runtime().read(lambda: read_whole(storage, uri, chunk.digest), chunk.size_bytes)

    def replay(self, name: str, chunk: Chunk, data: Future[bytes]) -> None:
        stored, uri = self._writer.stored_schema, self._ledger.layout.chunk(name)
        try:
            batches = decode_chunk(uri, chunk, data.result())
        except LedgerDamagedError:
            # The other chunks are intact; the rows of this one are computed again.
            self.damaged.append(name)
            return
        failpoint("after-chunk-is-read")
        for batch in batches:
            self._writer.write(_for_the_table(uri, batch, stored))
        self._done.append(name)
        if self._writer.fullness >= 1:
            self.cut("")

    def cut(self, end: TaskEnd) -> None:
        groups = self._writer.cut()
        if not self._done and not (end and self.records):
            return
        done, self._done = tuple(self._done), []
        self._append(groups=tuple(groups), supersedes=done, end=end)

    def fail(self) -> None:
        self._writer.abandon()
        if self.records:
            self._append(end="failed")

    def _append(self, **facts: object) -> None:
        self._log.append(
            TaskRecord(name=self._log.next_name, coverage=NOTHING, seconds=0.0, **facts)  # type: ignore[arg-type]
        )
        self.records += 1


def _for_the_table(uri: str, batch: pa.RecordBatch, stored: pa.Schema) -> pa.RecordBatch:
    """Return the rows of a chunk in the table's current form.

    The table may have gained columns or wider types since. Columns are matched by name; if the
    format numbers them, a name with a different number is a different column.

    Raises:
        TableChangedError: A column of the chunk is no longer in the table.
    """
    if batch.schema.equals(stored, check_metadata=True):
        return batch
    numbers = dict(_numbers(stored))
    for path, number in _numbers(batch.schema):
        if numbers.get(path) != number:
            raise TableChangedError(
                table=uri, change=f"column {path!r} was dropped, or another column now has its name"
            )
    if batch.schema.equals(stored):
        return batch
    return Conformer("a chunk", batch.schema, stored, may_lack=None)(batch)


def _numbers(fields: Iterable[pa.Field], above: str = "") -> Iterator[tuple[str, bytes]]:
    """Yield the number of each column that has one, by its path."""
    for field in fields:
        path = above + field.name
        if number := (field.metadata or {}).get(_FIELD_ID):
            yield path, number
        kind = field.type
        if pa.types.is_map(kind):
            yield from _numbers((kind.key_field, kind.item_field), f"{path}.")
        elif pa.types.is_nested(kind):
            below = (kind.field(position) for position in range(kind.num_fields))
            yield from _numbers(below, f"{path}.")


def _chunks(batch: pa.RecordBatch) -> Iterator[tuple[str, Chunk]]:
    for text in batch.column(ITEM_COLUMN).to_pylist():
        for name, rows, size_bytes, digest in json.loads(text):
            yield name, Chunk(rows=rows, size_bytes=size_bytes, digest=digest)


# ---- Rewrite: files of the table without the rows that a filter removes


@dataclass(frozen=True, kw_only=True)
class RewritePlan:
    """The work of every task of a job that rewrites files. Pickled on the driver, never stored."""

    rewriter: RewriterSpec
    job_nonce: str
    limits: Limits = DEFAULT_LIMITS

    def run(self, batches: Iterable[pa.RecordBatch], *, place: int, attempt: int) -> TaskReport:
        """Rewrite the files of one task's work items. Runs on an executor."""
        rewriter = self.rewriter.open(f"{self.job_nonce}-{place:05d}-{attempt}")
        done: list[str] = []
        try:
            with io_runtime().bounded(self.limits.in_flight_bytes):
                for item in item_texts(batches):
                    failpoint("before-rewrite")
                    # A file that is gone is no longer in the table: the next look shows it.
                    with contextlib.suppress(FileNotFoundError):
                        done.append(rewriter.rewrite(item).to_json())
                    failpoint("after-rewrite")
        except UnsupportedTableError as error:
            facts = {"table": error.table, "what": error.what, "cure": error.cure}
            problem = TaskProblem(kind="table", host=socket.gethostname(), facts=facts)
            return TaskReport(place=place, end="stopped", problem=problem, results=tuple(done))
        except ExecutorSetupError as error:
            facts = {"what": error.what, "cure": error.cure}
            problem = TaskProblem(kind="setup", host=error.host, facts=facts)
            return TaskReport(place=place, end="stopped", problem=problem, results=tuple(done))
        return TaskReport(place=place, results=tuple(done))
