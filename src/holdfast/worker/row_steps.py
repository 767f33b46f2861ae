"""Row steps: what a row function has finished, as steps that a checkpoint can count."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from holdfast.errors import SchemaMismatchError
from holdfast.model.stored import checked_cost
from holdfast.sinks.base import WriterSpec
from holdfast.sinks.conform import MISSING
from holdfast.worker.row_outputs import as_batch, lacking, rows_of
from holdfast.worker.row_window import RowWindow, Slot
from holdfast.worker.steps import FailedRow, Step
from holdfast.worker.transforms import TransformOutputError

# So many answers without a column, and none with all of them, are not a few rows' failure.
_LACKING_ROWS_MAX = 8


class RowSteps:
    """Turns finished rows into steps."""

    def __init__(  # noqa: PLR0913 - they are the parts of one task.
        self,
        window: RowWindow,
        *,
        spec: WriterSpec,
        fit: Callable[[pa.RecordBatch], pa.RecordBatch],
        same: bool,
        is_strict: bool = True,
        judges: bool = True,
        cost_of: Callable[[Any], float] | None = None,
    ) -> None:
        """Take the parts.

        Args:
            window: The rows at work.
            spec: What the table wants.
            fit: Raises where output rows do not fit the table.
            same: Whether each row makes exactly one.
            is_strict: Whether the first failing row ends the task.
            judges: Whether answers that all lack a column are taken for the function's failure.
            cost_of: What an answer has cost.
        """
        self._window = window
        self._table, self._schema, self._may_lack = spec.table, spec.schema, spec.may_lack
        # How many answers lacked a column, as long as none had them all; and how many must.
        self._lacking: int | None = 0 if judges else None
        self._lacking_max = 1 if is_strict else _LACKING_ROWS_MAX
        window.is_eager = True
        self._fit = fit
        self._same = same
        self._cost_of = cost_of
        self._began = time.monotonic()

    def all(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Step]:
        """Yield a step for each group of finished rows.

        Raises:
            SchemaMismatchError: No row of this function can fit the table.
        """
        for slots in self._window.groups(batches):
            yield self._step(slots)

    def drained(self, grace_s: float | None) -> Step | None:
        """Make no further call, wait for those being made, and return what is finished.

        Raises:
            SchemaMismatchError: No row of this function can fit the table.
        """
        slots = self._window.drain(grace_s)
        return self._step(slots) if slots else None

    def cancel(self) -> None:
        """Give up every row that is not finished."""
        self._window.cancel()

    def _step(self, slots: Sequence[Slot]) -> Step:
        done: list[tuple[Slot, list[Any]]] = []
        failed: list[FailedRow] = []
        lackings: list[tuple[Slot, Exception]] = []
        cost = 0.0
        for slot in slots:
            answer = slot.answer
            if answer is None:
                continue
            if answer.error is not None:
                failed.append(_failed(slot, answer.error))
                continue
            try:
                rows = rows_of(answer.value, same=self._same)
                cost += 0.0 if self._cost_of is None else checked_cost(self._cost_of(answer.value))
            except Exception as error:  # noqa: BLE001 - the user's functions may raise anything.
                failed.append(_failed(slot, error))
                continue
            if (lack := self._lacking_error(rows)) is not None:
                lackings.append((slot, lack))
            else:
                done.append((slot, rows))
        self._refuse_if_none_is_whole([error for _, error in lackings], done)
        outputs, misfits = self._outputs(done)
        misfits += lackings
        failed += [_failed(slot, error) for slot, error in misfits]
        gone = {slot.position for slot, _ in misfits}
        covered = [slot for slot, _ in done if slot.position not in gone]
        began, self._began = self._began, time.monotonic()
        empty = slots[0].row.slice(0, 0)
        tags = [slot.tags for slot in covered if slot.tags is not None]
        return Step(
            rows=pa.concat_batches([slot.row for slot in covered] or [empty]),
            tags=pa.concat_arrays(tags) if tags else None,
            outputs=outputs,
            began=began,
            failed=failed,
            cost=cost,
        )

    def _lacking_error(self, rows: Sequence[Any]) -> SchemaMismatchError | None:
        """Return what is wrong with an answer that lacks a column."""
        if self._may_lack is None:
            return None
        paths = (lacking(row, self._schema, self._may_lack) for row in rows)
        path = next((path for path in paths if path is not None), None)
        if path is None:
            return None
        column, problem = ".".join(path), MISSING
        return SchemaMismatchError(table=self._table, column=column, problem=problem)

    def _refuse_if_none_is_whole(
        self, errors: Sequence[Exception], done: Sequence[tuple[Slot, list[Any]]]
    ) -> None:
        """Tell a function that never gives a column from one whose answers at times lack it.

        Raises:
            SchemaMismatchError: No answer has had all columns.
        """
        if done:
            self._window.is_eager = False
        if any(rows for _, rows in done):
            self._lacking = None
        if self._lacking is not None and errors:
            self._lacking += len(errors)
            if self._lacking >= self._lacking_max:
                raise errors[0]

    def _outputs(
        self, done: Sequence[tuple[Slot, list[Any]]]
    ) -> tuple[list[pa.RecordBatch], list[tuple[Slot, Exception]]]:
        """Return the output rows as batches, and the input rows whose values do not fit.

        Raises:
            SchemaMismatchError: There is a column that the table does not have.
        """
        rows = [row for _, some in done for row in some]
        if not rows:
            return [], []
        try:
            return [self._fitting(rows)], []
        except (TransformOutputError, SchemaMismatchError):
            pass
        outputs: list[pa.RecordBatch] = []
        misfits: list[tuple[Slot, Exception]] = []
        for slot, some in done:
            misfit = self._misfit(some)
            if misfit is not None:
                misfits.append((slot, misfit))
            elif some:
                outputs.append(as_batch(some, self._schema))
        return outputs, misfits

    def _misfit(self, rows: Sequence[Any]) -> Exception | None:
        """Return why the output of one input row does not fit.

        Raises:
            SchemaMismatchError: There is a column that the table does not have.
        """
        try:
            if rows:
                self._fitting(rows)
        except TransformOutputError as error:
            return error
        except SchemaMismatchError as error:
            # Of a nested column it is the path.
            if not any(f"{error.column}.".startswith(f"{name}.") for name in self._schema.names):
                raise
            return error
        return None

    def _fitting(self, rows: Sequence[Any]) -> pa.RecordBatch:
        batch = as_batch(rows, self._schema)
        self._fit(batch)
        return batch


def _failed(slot: Slot, error: Exception) -> FailedRow:
    attempts = slot.answer.attempts if slot.answer is not None else 0
    return FailedRow(
        row=slot.row, tags=slot.tags, error=error, attempts=attempts, position=slot.position
    )
