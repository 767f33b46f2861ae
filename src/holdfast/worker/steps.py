"""Steps: input rows whose output is there, one after the other, for a transform of batches.

A step is what a checkpoint can count. For a batch transform it is one batch; where failing rows
are to be set aside, a batch that fails is halved until the rows at fault stand alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.sinks.conform import ValueMisfitError
from holdfast.worker.batches import pieces, resize
from holdfast.worker.pace import Pace, paced
from holdfast.worker.problems import TransformFailedError
from holdfast.worker.tags import split_tag
from holdfast.worker.transforms import (
    PerWorker,
    Transform,
    TransformOutputError,
    output_batches,
    ready,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRow:
    """An input row for which the transform gave no output."""

    # The one row, and Spark's hash of its key, if it came with the row.
    row: pa.RecordBatch
    tags: pa.Array | None
    error: Exception
    # How many calls were made with it.
    attempts: int
    # The task's rows before it, where that is known.
    position: int | None = None


@dataclass(slots=True, kw_only=True)
class Step:
    """Some input rows, and what the transform made of them."""

    rows: pa.RecordBatch
    tags: pa.Array | None
    # May compute while it is read, and raise `TransformFailedError`.
    outputs: Iterable[pa.RecordBatch]
    # When the work on it began, on the monotonic clock.
    began: float
    failed: Sequence[FailedRow] = field(default=())
    cost: float = 0.0
    # How long it took, once it is done.
    seconds: float = 0.0


Apply = Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]


def apply_to(
    transform: Transform | PerWorker | None, batch: pa.RecordBatch, *, same: bool
) -> Iterator[pa.RecordBatch]:
    """Call the transform, and hand its output on piece by piece: it is never held as a whole.

    Args:
        transform: The user's function; built here, at its first batch, if it is to be built.
        batch: Its input.
        same: Whether there must be as many rows out as in.

    Raises:
        TransformFailedError: It raised, or returned what is no rows, or too many or too few.
    """
    rows_out = 0
    try:
        for output in output_batches(ready(transform)(batch)):
            rows_out += output.num_rows
            yield output
    except Exception as error:  # A transform may raise anything.
        raise TransformFailedError(error) from error
    if same and batch.num_rows != rows_out:
        complaint = (
            f"it returned {rows_out} rows for a batch of {batch.num_rows}; "
            'if it is meant to drop or multiply rows, pass rows="any"'
        )
        raise TransformFailedError(TransformOutputError(complaint))


def fitting_to(
    apply: Apply,
    fit: Callable[[pa.RecordBatch], pa.RecordBatch],
    batch_bytes: int,
    batch: pa.RecordBatch,
) -> Iterator[pa.RecordBatch]:
    """Hand output on that the table can take: a row that it cannot is that row's failure.

    Args:
        apply: Calls the transform.
        fit: Raises where output rows do not fit the table.
        batch_bytes: How large a piece of output is fitted at a time.
        batch: The transform's input.

    Raises:
        TransformFailedError: Some of these rows have failed.
        SchemaMismatchError: No row of this transform can fit the table.
    """
    for output in apply(batch):
        try:
            if output.num_rows:  # Output without rows need not have columns either.
                for piece in pieces(output, batch_bytes):
                    fit(piece)
        except ValueMisfitError as error:
            raise TransformFailedError(error) from error
        yield output


def batch_steps(
    batches: Iterable[pa.RecordBatch], apply: Apply, *, batch_rows: int | None, pace: Pace
) -> Iterator[Step]:
    """Yield one step for each batch; a failing one raises while its output is read."""
    for rows, tags in _pieces(batches, batch_rows, pace):
        step = Step(rows=rows, tags=tags, outputs=apply(rows), began=time.monotonic())
        yield step
        pace.took(step.seconds)


def halving_steps(
    batches: Iterable[pa.RecordBatch], apply: Apply, *, batch_rows: int | None, pace: Pace
) -> Iterator[Step]:
    """Yield steps whose output is whole; rows that fail by themselves are in a step's `failed`.

    One row that fails in a batch of n costs about 2 x log2(n) further calls.
    """
    for batch, batch_tags in _pieces(batches, batch_rows, pace):
        waiting = [(batch, batch_tags, 1)]
        seconds = 0.0
        while waiting:
            rows, tags, depth = waiting.pop()
            step = Step(rows=rows, tags=tags, outputs=(), began=time.monotonic())
            try:
                step.outputs = list(apply(rows))
            except TransformFailedError as error:
                seconds += time.monotonic() - step.began
                if rows.num_rows > 1:
                    waiting += _halves(rows, tags, depth + 1)
                    continue
                failure = FailedRow(row=rows, tags=tags, error=error.error, attempts=depth)
                step.rows, step.tags, step.failed = rows.slice(0, 0), None, [failure]
            yield step
            seconds += step.seconds
        pace.took(seconds)


def _pieces(
    batches: Iterable[pa.RecordBatch], batch_rows: int | None, pace: Pace
) -> Iterator[tuple[pa.RecordBatch, pa.Array | None]]:
    sized = resize(batches, batch_rows, pace.batch_bytes) if batch_rows else paced(batches, pace)
    for piece in sized:
        yield split_tag(piece)


def _halves(
    rows: pa.RecordBatch, tags: pa.Array | None, depth: int
) -> list[tuple[pa.RecordBatch, pa.Array | None, int]]:
    """Return the two halves, the first of them last: it is taken first."""
    middle = rows.num_rows // 2
    return [
        (rows.slice(start, length), None if tags is None else tags.slice(start, length), depth)
        for start, length in ((middle, rows.num_rows - middle), (0, middle))
    ]
