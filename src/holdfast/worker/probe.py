"""The probe: which columns a transform returns, seen from the first rows that it is called with."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.model.coverage import FileSlice
from holdfast.sources.base import ScanReader
from holdfast.worker.batch_steps import apply_to
from holdfast.worker.calls import Calls
from holdfast.worker.coverage import split_tag
from holdfast.worker.reports import TaskReport, TransformFailedError, problem_of
from holdfast.worker.row_steps import as_batch, rows_of
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
        found = apply_to(transform, rows, one_to_one=True, batch_format=self.batch_format)
        outputs = [output for output in found if output.num_rows]
        return outputs[0].schema.remove_metadata()

    def _row_schema(self, transform: PerRow, rows: pa.RecordBatch) -> pa.Schema:
        calls = Calls(transform)
        for number, row in enumerate(rows.to_pylist()):
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
