"""Row steps: the rows a row function works on, their answers as batches, steps to checkpoint.

The window is always full: a slow row does not hold up others. Finished rows are passed on in input
order, unless that would delay a checkpoint or hold too much memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import SchemaMismatchError
from holdfast.model.arrow_types import is_any_list
from holdfast.model.stored import CostError, cost_of
from holdfast.sinks.base import ColumnPath, WriterSpec
from holdfast.sinks.conform import ELEMENT, KEY, MISSING, NO_FLAG, VALUE
from holdfast.worker.batch_steps import FailedRow, Step
from holdfast.worker.budget import Purse
from holdfast.worker.calls import Answer, Calls
from holdfast.worker.coverage import split_tag
from holdfast.worker.python_values import arrow_array
from holdfast.worker.transforms import TransformOutputError

# ---- Row outputs: the dicts that a row function returns, as a batch that fits the table

_PAIR = 2


def rows_of(answer: object, *, one_to_one: bool) -> list[Mapping[str, Any]]:
    """Return the output rows of one answer.

    Args:
        answer: What the function returned.
        one_to_one: Whether it must be exactly one row.

    Raises:
        TransformOutputError: The answer is not a row.
    """
    if isinstance(answer, Mapping) and answer:
        return [answer]
    if not one_to_one:
        if answer is None:
            return []
        if isinstance(answer, list | tuple) and all(isinstance(row, Mapping) for row in answer):
            return list(answer)
    kind = "an empty dict" if isinstance(answer, Mapping) else type(answer).__name__
    wanted = "a dict of columns" if one_to_one else "a dict of columns, a list of them, or None"
    raise TransformOutputError(f"it returned {kind} for a row, not {wanted}")


def lacking(
    row: Mapping[str, Any],
    fields: Iterable[pa.Field],
    may_lack: frozenset[ColumnPath],
    above: ColumnPath = (),
) -> ColumnPath | None:
    """Return the first column missing from a row, or None; a None value is not missing.

    Args:
        row: A row, or the value of a struct.
        fields: The wanted columns.
        may_lack: The columns that may be missing.
        above: The path of columns above the row.
    """
    for field in fields:
        path = (*above, field.name)
        if field.name not in row:
            if path not in may_lack:
                return path
        elif pa.types.is_nested(field.type):
            found = _lacking_below(row[field.name], field.type, may_lack, path)
            if found is not None:
                return found
    return None


def _lacking_below(
    value: object, kind: pa.DataType, may_lack: frozenset[ColumnPath], path: ColumnPath
) -> ColumnPath | None:
    if pa.types.is_struct(kind):
        return lacking(value, kind, may_lack, path) if isinstance(value, Mapping) else None
    if isinstance(value, Mapping):
        value = list(value.items())
    if not isinstance(value, list | tuple | np.ndarray):
        return None
    parts: list[tuple[str, pa.DataType, Iterable[object]]] = []
    if pa.types.is_map(kind):  # A dict, or the pairs that a row function gets.
        pairs = [pair for pair in value if isinstance(pair, list | tuple) and len(pair) == _PAIR]
        parts.append((KEY, kind.key_type, [pair[0] for pair in pairs]))
        parts.append((VALUE, kind.item_type, [pair[1] for pair in pairs]))
    elif is_any_list(kind):
        parts.append((ELEMENT, kind.value_type, value))
    for name, below, values in parts:
        if pa.types.is_nested(below):
            found = (_lacking_below(item, below, may_lack, (*path, name)) for item in values)
            if (
                lacks := next((column for column in found if column is not None), None)
            ) is not None:
                return lacks
    return None


def as_batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as one batch, with the table's types if the values have them.

    Other values keep their own type; fitting them to the table then shows what is wrong.

    Raises:
        TransformOutputError: The values of a column have no common type.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    arrays = []
    for name in names:
        values = [row.get(name) for row in rows]
        index = schema.get_field_index(name)
        try:
            arrays.append(arrow_array(values, None if index < 0 else schema.field(index).type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise TransformOutputError(f"column {name!r}: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, names=names)


# ---- The row window: the rows that a row function is working on, and those it has finished

# How many finished rows make a step if they are the oldest ones; and how much may be finished
# behind an unfinished row before it is passed on anyway.
_STEP_ROWS, _STEP_BYTES = 256, 8 << 20
_HELD_ROWS_MAX, _HELD_BYTES_MAX = 16_384, 32 << 20
# How often the window checks for a due checkpoint and for the end of the run.
_LOOK_EVERY_S = 1.0


@dataclass(slots=True)
class Slot:
    """One input row, and its result."""

    # The number of the task's rows before it.
    position: int
    row: pa.RecordBatch
    tags: pa.Array | None
    answer: Answer | None = None
    size_bytes: int = 0
    # What the answer has cost, or why that is not known.
    cost: float = 0.0
    cost_error: CostError | None = None

    def price(self, price: Callable[[Any], float] | None) -> None:
        """Find out what the answer has cost, if there is one.

        Args:
            price: Returns the cost of an answer; None if answers have none.
        """
        if price is None or self.answer is None or self.answer.error is not None:
            return
        try:
            self.cost = cost_of(price, self.answer.value)
        except CostError as error:
            self.cost_error = error


class RowWindow:
    """Keeps a task's calls in progress."""

    def __init__(  # noqa: PLR0913 - they are the parts of one task.
        self,
        calls: Calls,
        *,
        concurrency: int,
        is_due: Callable[[], bool],
        look: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        cost_of: Callable[[Any], float] | None = None,
        purse: Purse | None = None,
    ) -> None:
        """Start empty.

        Args:
            calls: Makes the calls.
            concurrency: How many rows are worked on at once.
            is_due: Whether a checkpoint is due.
            look: Checks whether the task may continue; raises if not.
            clock: A monotonic clock, in seconds.
            cost_of: Returns the cost of an answer.
            purse: Pays for the rows, as long as it can; then no further call is made.
        """
        self._calls = calls
        self._cost_of = cost_of
        self._purse = purse or Purse()
        self._concurrency = concurrency
        self._is_due = is_due
        self._look = look
        self._clock = clock
        self._slots: dict[int, Slot] = {}
        self._finished = self._finished_bytes = 0
        self._has_failed = False
        self._admitted = 0
        self._looked = clock()
        # Whether finished rows are passed on at once, as long as it is possible that none fits.
        self.is_eager = False

    def groups(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[Slot]]:
        """Work on all rows; yield finished ones, in input order within each group."""
        self._look()
        for slot in self._rows(batches):
            while self._calls.in_flight and not self._may_call():
                yield from self._wait()
            if not self._may_call():
                break
            self._slots[slot.position] = slot
            try:
                row = slot.row.to_pylist()[0]
            except (OverflowError, ValueError) as error:  # For example, a date after the year 9999.
                self._settle([Answer(number=slot.position, error=error)])
                yield from self._take(self._done())
            else:
                self._calls.start(slot.position, row)
        while self._calls.in_flight:
            yield from self._wait()
        yield from self._take(self._done())

    def drain(self, grace_s: float | None) -> list[Slot]:
        """Make no further call; wait for those in progress; return all finished rows.

        Args:
            grace_s: How long to wait; None for as long as it takes.
        """
        self._calls.stop_waiting()
        deadline = None if grace_s is None else self._clock() + grace_s
        while self._calls.in_flight and (deadline is None or self._clock() < deadline):
            left = _LOOK_EVERY_S if deadline is None else deadline - self._clock()
            self._settle(self._calls.answers(min(left, _LOOK_EVERY_S)))
        self.cancel()
        return [slot for group in self._take(self._done()) for slot in group]

    def cancel(self) -> None:
        """Drop every row that is not finished."""
        self._calls.cancel()

    def _may_call(self) -> bool:
        in_flight = self._calls.in_flight
        return in_flight < self._concurrency and self._purse.affords(1, in_flight) > 0

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Slot]:
        for batch in batches:
            rows, tags = split_tag(batch)
            for index in range(rows.num_rows):
                # A copy: a slice would keep all of Spark's batch alive as long as its slowest row.
                piece = rows.slice(index, 1)
                row = pa.concat_batches([piece, piece.slice(0, 0)])
                tag = None if tags is None else tags.take([index])
                yield Slot(self._admitted, row, tag)
                self._admitted += 1

    def _wait(self) -> Iterator[list[Slot]]:
        self._settle(self._calls.answers(_LOOK_EVERY_S))
        if self._clock() - self._looked >= _LOOK_EVERY_S:
            self._look()
            self._looked = self._clock()
        if self._finished and (
            self._finished >= _HELD_ROWS_MAX
            or self._finished_bytes >= _HELD_BYTES_MAX
            or self._has_failed
            or self.is_eager
            or self._is_due()
        ):
            yield from self._take(self._done())
        elif self._finished >= _STEP_ROWS or self._finished_bytes >= _STEP_BYTES:
            oldest = self._oldest_done()
            if len(oldest) >= _STEP_ROWS or sum(s.size_bytes for s in oldest) >= _STEP_BYTES:
                yield from self._take(oldest)

    def _settle(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            slot = self._slots[answer.number]
            if answer.is_undone:
                del self._slots[answer.number]
                continue
            slot.answer = answer
            slot.price(self._cost_of)
            if answer.error is None and slot.cost_error is None:
                self._purse.pay(slot.cost, 1)
            # Errors must be counted at once: the next call may be one too many.
            self._has_failed |= answer.error is not None
            slot.size_bytes = slot.row.nbytes + _size(answer.value)
            self._finished += 1
            self._finished_bytes += slot.size_bytes

    def _done(self) -> list[Slot]:
        return [slot for slot in self._slots.values() if slot.answer is not None]

    def _oldest_done(self) -> list[Slot]:
        """Return the finished rows before the first unfinished one."""
        found = []
        for slot in self._slots.values():
            if slot.answer is None:
                break
            found.append(slot)
        return found

    def _take(self, slots: list[Slot]) -> Iterator[list[Slot]]:
        if not slots:
            return
        for slot in slots:
            del self._slots[slot.position]
            self._finished -= 1
            self._finished_bytes -= slot.size_bytes
        self._has_failed = False
        group: list[Slot] = []
        size_bytes = 0
        for slot in slots:
            if group and size_bytes + slot.size_bytes > _HELD_BYTES_MAX:
                yield group
                group, size_bytes = [], 0
            group.append(slot)
            size_bytes += slot.size_bytes
        yield group


def _size(value: Any) -> int:  # noqa: ANN401 - whatever the function returned.
    """Return roughly how much memory an answer takes."""
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_size, value)) if len(value) < _STEP_ROWS else 8 * len(value)
    return 8


# ---- Row steps: the finished rows of a row function, as steps that a checkpoint can count

# If this many answers lack a column and none has all of them, the function is at fault, not the
# rows.
_LACKING_ROWS_MAX = 8


class RowSteps:
    """Turns finished rows into steps."""

    def __init__(  # noqa: PLR0913 - they are the parts of one task.
        self,
        window: RowWindow,
        *,
        spec: WriterSpec,
        fit: Callable[[pa.RecordBatch], pa.RecordBatch],
        one_to_one: bool,
        is_strict: bool = True,
        judges: bool = True,
    ) -> None:
        """Keep the parts.

        Args:
            window: The rows in progress.
            spec: What the table requires.
            fit: Raises if output rows do not fit the table.
            one_to_one: Whether each row makes exactly one.
            is_strict: Whether the first failing row ends the task.
            judges: Whether the function counts as failed if all answers lack a column.
        """
        self._window = window
        self._table, self._schema, self._may_lack = spec.table, spec.schema, spec.may_lack
        # Whatever else may be missing: an answer must say whether its row deletes.
        self._delete_column = spec.delete_column
        # How many answers lacked a column, while none had them all; and the limit of that.
        self._lacking: int | None = 0 if judges else None
        self._lacking_max = 1 if is_strict else _LACKING_ROWS_MAX
        window.is_eager = True
        self._fit = fit
        self._one_to_one = one_to_one
        self._began = time.monotonic()

    def all(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Step]:
        """Yield a step for each group of finished rows.

        Raises:
            SchemaMismatchError: No row of this function can fit the table.
        """
        for slots in self._window.groups(batches):
            yield self._step(slots)

    def drained(self, grace_s: float | None) -> Step | None:
        """Make no further call, wait for those in progress, and return what is finished.

        Raises:
            SchemaMismatchError: No row of this function can fit the table.
        """
        slots = self._window.drain(grace_s)
        return self._step(slots) if slots else None

    def cancel(self) -> None:
        """Drop every row that is not finished."""
        self._window.cancel()

    def _step(self, slots: Sequence[Slot]) -> Step:
        done: list[tuple[Slot, list[Any]]] = []
        failed: list[FailedRow] = []
        lackings: list[tuple[Slot, Exception]] = []
        for slot in slots:
            answer = slot.answer
            if answer is None:
                continue
            if answer.error is not None:
                failed.append(_failed(slot, answer.error))
                continue
            try:
                rows = rows_of(answer.value, one_to_one=self._one_to_one)
            except Exception as error:  # noqa: BLE001 - an answer may be anything.
                failed.append(_failed(slot, error))
                continue
            if slot.cost_error is not None:
                failed.append(_failed(slot, slot.cost_error))
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
            cost=sum(slot.cost for slot in slots),
        )

    def _lacking_error(self, rows: Sequence[Any]) -> SchemaMismatchError | None:
        """Return the error for an answer that lacks a column."""
        deletes = self._delete_column
        if deletes and any(deletes not in row for row in rows):
            return SchemaMismatchError(table=self._table, column=deletes, problem=NO_FLAG)
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
        """Distinguish a function that never returns a column from one that sometimes omits it.

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
            SchemaMismatchError: A column is not in the table.
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
            SchemaMismatchError: A column is not in the table.
        """
        try:
            if rows:
                self._fitting(rows)
        except TransformOutputError as error:
            return error
        except SchemaMismatchError as error:
            # For a nested column this is the path.
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
