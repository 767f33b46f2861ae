"""The probe: what a transform returns for the first rows that it is called with.

Either only its columns are of interest, or all that would become of the rows.
"""

from __future__ import annotations

import base64
import contextlib
import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa

from holdfast.ledger.layout import RunLayout, tasks_name
from holdfast.ledger.row_files import read_chunk
from holdfast.ledger.store import list_objects
from holdfast.ledger.task_log import JobLedger, read_logs
from holdfast.model.coverage import FileSlice, Span
from holdfast.model.limits import DEFAULT_LIMITS, Limits
from holdfast.model.work import StagedGroup
from holdfast.sinks.base import WriterSpec
from holdfast.sources.base import ScanReader
from holdfast.storage.objects import ObjectStorage
from holdfast.worker.batch_steps import apply_to
from holdfast.worker.calls import Calls
from holdfast.worker.coverage import split_tag
from holdfast.worker.reports import TaskReport, TransformFailedError, problem_of
from holdfast.worker.row_steps import as_batch, rows_of
from holdfast.worker.task import ScanTask, TaskPlan
from holdfast.worker.transforms import BatchFormat, PerRow, PerWorker, Transform

# The first batch that a transform gets has as many.
_ROWS = 8
_WAIT_S = 1.0


@dataclass(frozen=True, kw_only=True)
class ProbePlan:
    """Calls a transform with the first rows of a scan. Pickled on the driver, never stored."""

    transform: Transform | PerWorker | PerRow | None
    batch_format: BatchFormat
    reader: ScanReader
    slices: Sequence[FileSlice]
    # Whether rows that fail are set aside.
    sets_aside: bool = False

    def run(
        self,
        batches: Iterable[pa.RecordBatch],  # noqa: ARG002 - there is one item.
        *,
        place: int,
        attempt: int,  # noqa: ARG002
    ) -> TaskReport:
        """Report the schema of the output; nothing if there are no rows."""
        rows = next(self._rows(), None)
        if rows is None:
            return TaskReport(place=place)
        try:
            schema = self._schema_for(rows)
        except TransformFailedError as error:
            problem = problem_of(error, (), rows, 0, self.transform)
            return TaskReport(place=place, end="stopped", problem=problem)
        return TaskReport(place=place, results=(encode_schema(schema),))

    def _rows(self) -> Iterator[pa.RecordBatch]:
        passed_over: list[Any] = []
        for piece in self.slices:
            for batch in self.reader.read([piece], passed_over):
                if batch.num_rows:
                    yield split_tag(batch)[0].slice(0, _ROWS)

    def _schema_for(self, rows: pa.RecordBatch) -> pa.Schema:
        """Return the columns that the transform returns for some rows.

        Raises:
            TransformFailedError: It failed.
        """
        if isinstance(self.transform, PerRow):
            return self._row_schema(self.transform, rows)
        transform = self.transform
        try:
            return self._batch_schema(transform, rows)
        except TransformFailedError:
            for number in range(rows.num_rows if self.sets_aside else 0):
                with contextlib.suppress(TransformFailedError):
                    return self._batch_schema(transform, rows.slice(number, 1))
            raise

    def _batch_schema(
        self, transform: Transform | PerWorker | None, rows: pa.RecordBatch
    ) -> pa.Schema:
        found = apply_to(transform, rows, one_to_one=True, batch_format=self.batch_format)
        outputs = [output for output in found if output.num_rows]
        return outputs[0].schema.remove_metadata()

    def _row_schema(self, transform: PerRow, rows: pa.RecordBatch) -> pa.Schema:
        calls = Calls(transform)
        failed: Exception = ValueError("no row could be converted")
        for number in range(rows.num_rows):
            try:
                row = rows.slice(number, 1).to_pylist()[0]
            except (OverflowError, ValueError) as error:  # As in `RowWindow`.
                failed = error
                continue
            calls.start(number, row)
            while calls.in_flight:
                for answer in calls.answers(_WAIT_S):
                    if answer.error is None:
                        try:
                            found = rows_of(answer.value, one_to_one=True)
                            return as_batch(found, pa.schema([])).schema
                        except Exception as error:
                            raise TransformFailedError(error) from error
                    failed = answer.error
        raise TransformFailedError(failed) from failed


def encode_schema(schema: pa.Schema) -> str:
    """Return a schema as text."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def decode_schema(text: str) -> pa.Schema:
    """Read back what `encode_schema` gave; anything else is a ValueError."""
    return pa.ipc.read_schema(pa.BufferReader(base64.b64decode(text, validate=True)))


# ---- A trial: the first rows go the way of all rows, but nothing is left of them

# What a task hands back of its output, before it is encoded; the rest is left out.
_SHOWN_BYTES_MAX = 16 << 20
_TRIAL = "trial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What became of a few rows."""

    # Output rows as the table would get them, and rows that failed, as in a quarantine.
    output: pa.Table
    failed: pa.Table | None
    input_rows: int
    output_rows: int
    cost: float
    seconds: float

    def to_json(self) -> str:
        """Return it as JSON text."""
        tables = {"output": _encoded(self.output), "failed": self.failed and _encoded(self.failed)}
        plain = {name: getattr(self, name) for name in _PLAIN}
        return json.dumps(tables | plain)

    @classmethod
    def from_json(cls, text: str) -> Tried:
        """Read back what `to_json` gave: it comes from a task, never from a ledger."""
        found = json.loads(text)
        failed = found["failed"] and _decoded(found["failed"])
        plain = {name: found[name] for name in _PLAIN}
        return cls(output=_decoded(found["output"]), failed=failed, **plain)


_PLAIN = ("input_rows", "output_rows", "cost", "seconds")


@dataclass(frozen=True, kw_only=True)
class TrialPlan(TaskPlan):
    """Does with the first rows what a task does; its ledger is in a folder that goes with it.

    Pickled on the driver, never stored.
    """

    rows_max: int = 20

    def run(self, batches: Iterable[pa.RecordBatch], *, place: int, attempt: int) -> TaskReport:
        """Try the rows, and report what became of them. Runs on an executor."""
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
            storage = ObjectStorage({})
            ledger = JobLedger(
                storage=storage,
                layout=RunLayout.of(f"file://{folder}", _TRIAL),
                claim=1,
                tasks=tasks_name(1),
                job=_TRIAL,
                next_number=1,
                planned_at=time.time(),
            )
            writer = _TrialWriter(self.writer)
            scan = self.scan and _FirstRows(
                reader=self.scan.reader, items=self.scan.items, rows_max=self.rows_max
            )
            named = {field.name: getattr(self, field.name) for field in fields(TaskPlan)}
            plan = TaskPlan(**{**named, "ledger": ledger, "writer": writer, "scan": scan})
            some = batches if scan else _first(batches, self.rows_max)
            report = plan.run(some, place=place, attempt=attempt)
            logs = read_logs(storage, ledger.layout, list_objects(storage, ledger.layout.tasks))
            records = [record for log in logs.values() for record in log]
            failed = [
                batch
                for record in records
                if record.quarantine is not None
                for batch in read_chunk(
                    storage, ledger.layout.quarantine(record.name), record.quarantine
                )
            ]
            tried = Tried(
                output=pa.Table.from_batches(writer.shown, writer.stored_schema),
                failed=pa.Table.from_batches(failed) if failed else None,
                input_rows=report.rows_in,
                output_rows=writer.rows,
                cost=sum(record.paid for record in records),
                seconds=time.monotonic() - began,
            )
        return TaskReport(
            place=place, end=report.end, problem=report.problem, results=(tried.to_json(),)
        )


def _first(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if rows > 0:
            yield batch.slice(0, rows)
        rows -= batch.num_rows


@dataclass(frozen=True, kw_only=True)
class _FirstRows(ScanTask):
    """The first rows of a scan."""

    rows_max: int

    def rows(
        self, batches: Iterable[pa.RecordBatch], passed_over: list[Span]
    ) -> Iterator[pa.RecordBatch]:
        """Yield them."""
        left = self.rows_max
        for batch in super().rows(batches, passed_over):
            yield batch.slice(0, left)
            left -= batch.num_rows
            if left <= 0:
                return


class _TrialWriter:
    """Fits rows to the table as its own writer does, and keeps the first of them."""

    def __init__(self, spec: WriterSpec) -> None:
        self._spec = spec
        self._writer = spec.open(_TRIAL)
        self.table, self.schema = spec.table, spec.schema
        self.delete_column, self.may_lack = spec.delete_column, spec.may_lack
        self.stored_schema = self._writer.stored_schema
        self.fullness = 0.0
        self.shown: list[pa.RecordBatch] = []
        self.rows = self._bytes = 0

    def open(self, _task_name: str, _limits: Limits = DEFAULT_LIMITS) -> _TrialWriter:
        return self

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self._writer.fit(batch)

    def write(self, rows: pa.RecordBatch) -> None:
        self.rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._bytes <= _SHOWN_BYTES_MAX:
            self.shown.append(rows)

    def cut(self) -> list[StagedGroup]:
        return []

    def abandon(self) -> None:
        self._writer.abandon()


def _encoded(table: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return base64.b64encode(sink.getvalue().to_pybytes()).decode()


def _decoded(text: str) -> pa.Table:
    return pa.ipc.open_stream(pa.BufferReader(base64.b64decode(text, validate=True))).read_all()
