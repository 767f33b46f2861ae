"""Row steps: what a row function has finished, as steps that a checkpoint can count."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from holdfast.errors import SchemaMismatchError
from holdfast.model.stored import checked_cost
from holdfast.worker.row_outputs import as_batch, rows_of
from holdfast.worker.row_window import RowWindow, Slot
from holdfast.worker.steps import FailedRow, Step
from holdfast.worker.transforms import TransformOutputError


class RowSteps:
    """Turns finished rows into steps."""

    def __init__(
        self,
        window: RowWindow,
        *,
        schema: pa.Schema,
        fit: Callable[[pa.RecordBatch], pa.RecordBatch],
        same: bool,
        cost_of: Callable[[Any], float] | None = None,
    ) -> None:
        """Take the parts.

        Args:
            window: The rows at work.
            schema: The table's schema.
            fit: Raises where output rows do not fit the table.
            same: Whether each row makes exactly one.
            cost_of: What an answer has cost.
        """
        self._window = window
        self._schema = schema
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
            else:
                done.append((slot, rows))
        outputs, misfits = self._outputs(done)
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
