"""The row window: the rows that a row function is working on, and those it has finished.

It is always full: a slow row holds up no other. What is finished is handed on in the input's
order, as long as that keeps neither a checkpoint nor memory waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.worker.calls import Answer, Calls
from holdfast.worker.tags import split_tag

# Finished rows that make a step, if they are the oldest ones; and how much may be finished behind
# a row that is not before it is handed on all the same.
_STEP_ROWS, _STEP_BYTES = 256, 8 << 20
_HELD_ROWS_MAX, _HELD_BYTES_MAX = 16_384, 32 << 20
# How often the window looks up from its calls: for a due checkpoint, and the end of the run.
_LOOK_EVERY_S = 1.0


@dataclass(slots=True)
class Slot:
    """One input row, and how it ended."""

    # The task's rows before it.
    position: int
    row: pa.RecordBatch
    tags: pa.Array | None
    answer: Answer | None = None
    size_bytes: int = 0


class RowWindow:
    """Keeps a task's calls going."""

    def __init__(
        self,
        calls: Calls,
        *,
        concurrency: int,
        is_due: Callable[[], bool],
        look: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start empty.

        Args:
            calls: Makes the calls.
            concurrency: How many rows are worked on at a time.
            is_due: Whether a checkpoint is due.
            look: Looks whether the task may go on; raises if not.
            clock: Seconds that only grow.
        """
        self._calls = calls
        self._concurrency = concurrency
        self._is_due = is_due
        self._look = look
        self._clock = clock
        self._slots: dict[int, Slot] = {}
        self._finished = self._finished_bytes = 0
        self._has_failed = False
        self._admitted = 0
        self._looked = clock()
        # Whether finished rows are handed on at once: as long as it may be that none fits.
        self.is_eager = False

    def groups(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[Slot]]:
        """Work on all rows; yield finished ones, in the input's order within each group."""
        self._look()
        for slot in self._rows(batches):
            while self._calls.in_flight >= self._concurrency:
                yield from self._wait()
            self._slots[slot.position] = slot
            try:
                row = slot.row.to_pylist()[0]
            except (OverflowError, ValueError) as error:  # As of a date after the year 9999.
                self._settle([Answer(number=slot.position, error=error)])
                yield from self._take(self._done())
            else:
                self._calls.start(slot.position, row)
        while self._calls.in_flight:
            yield from self._wait()
        yield from self._take(self._done())

    def drain(self, grace_s: float | None) -> list[Slot]:
        """Make no further call; wait for those being made; return all rows that are finished.

        Args:
            grace_s: How long to wait; None as long as it takes.
        """
        self._calls.stop_waiting()
        deadline = None if grace_s is None else self._clock() + grace_s
        while self._calls.in_flight and (deadline is None or self._clock() < deadline):
            left = _LOOK_EVERY_S if deadline is None else deadline - self._clock()
            self._settle(self._calls.answers(min(left, _LOOK_EVERY_S)))
        self.cancel()
        return [slot for group in self._take(self._done()) for slot in group]

    def cancel(self) -> None:
        """Give up every row that is not finished."""
        self._calls.cancel()

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Slot]:
        for batch in batches:
            rows, tags = split_tag(batch)
            for index in range(rows.num_rows):
                # A copy: a slice would hold all of Spark's batch as long as its slowest row.
                one = rows.slice(index, 1)
                row = pa.concat_batches([one, one.slice(0, 0)])
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
            # Whoever counts errors must hear of each at once: the next call may be one too many.
            self._has_failed |= answer.error is not None
            slot.size_bytes = slot.row.nbytes + _size(answer.value)
            self._finished += 1
            self._finished_bytes += slot.size_bytes

    def _done(self) -> list[Slot]:
        return [slot for slot in self._slots.values() if slot.answer is not None]

    def _oldest_done(self) -> list[Slot]:
        """Return the finished rows before the first one that is not."""
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
    """Return about how much memory an answer takes."""
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_size, value)) if len(value) < _STEP_ROWS else 8 * len(value)
    return 8
