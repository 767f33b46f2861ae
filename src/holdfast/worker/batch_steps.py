"""Batch steps: input cut to size, a transform of batches called on it, output cut to fit memory.

A step is the unit that a checkpoint counts. For a batch transform it is one batch; if failing rows
are to be set aside, a failing batch is halved until each bad row is alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from holdfast.model.arrow_types import is_any_binary, is_any_string
from holdfast.model.limits import DEFAULT_LIMITS
from holdfast.sinks.base import NUMBER_COLUMN
from holdfast.sinks.conform import ValueMisfitError
from holdfast.worker.coverage import numbers_of, split_tag
from holdfast.worker.reports import TransformFailedError
from holdfast.worker.transforms import (
    BatchFormat,
    PerWorker,
    Transform,
    TransformOutputError,
    converted,
    output_batches,
    ready,
)

# ---- Cut batches: input to the size the transform should get, output to what fits in memory

Sizes = npt.NDArray[np.int64]

# A view is a length, and three words that hold the value or its location.
_VIEW_WORDS = 4


def within_bytes(batch: pa.RecordBatch, bytes_max: int) -> pa.RecordBatch:
    """Return the batch, or as many of its first rows as fit within the limit."""
    while batch.num_rows > 1 and batch.nbytes > bytes_max:
        batch = batch.slice(0, batch.num_rows // 2)
    return batch


def pieces(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Yield the batch, or copies of as many rows at a time as fit within the limit.

    Copies, because a slice keeps alive everything it was cut from, and its offsets may need more
    than 32 bits.

    Args:
        batch: Output of a transform, which may be of any size.
        bytes_max: The most bytes in a copy, once its values are written out; a single row may
            exceed it.
    """
    is_small = batch.get_total_buffer_size() <= bytes_max or _nbytes(batch) <= bytes_max
    if batch.num_rows < 2 or (is_small and not any(map(_is_encoded, batch.schema.types))):  # noqa: PLR2004
        yield batch
        return
    ends = np.cumsum(sum(_row_bytes(column) for column in batch.columns))
    if is_small and ends[-1] <= bytes_max:
        yield batch
        return
    start = done = 0
    while start < batch.num_rows:
        stop = max(start + 1, int(np.searchsorted(ends, done + bytes_max, side="right")))
        yield copied(batch.slice(start, stop - start))
        start, done = stop, int(ends[stop - 1])


def copied(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows in newly allocated memory."""
    return pa.concat_batches([rows, rows.slice(0, 0)])


def _is_encoded(kind: pa.DataType) -> bool:
    """Whether values take more space once written out than they seem to."""
    below = (kind.field(i).type for i in range(kind.num_fields))
    return bool(pt.is_dictionary(kind)) or any(map(_is_encoded, below))


def _nbytes(batch: pa.RecordBatch) -> int:
    """Return the size of a batch; if PyArrow cannot size its views, that of its buffers."""
    try:
        return int(batch.nbytes)
    except pa.ArrowTypeError:
        return int(batch.get_total_buffer_size())


def _row_bytes(array: pa.Array) -> Sizes:
    """Return the size in bytes of each row's value.

    `nbytes` of a slice counts everything that views refer to, and a whole dictionary, but each of
    its values only once.
    """
    kind, rows = array.type, len(array)
    sizes: Sizes
    if isinstance(array, pa.ExtensionArray):
        return _row_bytes(array.storage)
    if pt.is_struct(kind):
        return sum(map(_row_bytes, array.flatten()), np.zeros(rows, np.int64))
    if pt.is_map(kind) or pt.is_list(kind) or pt.is_large_list(kind):
        offsets = array.offsets.to_numpy()
        first, values = (
            offsets[0],
            (array.keys, array.items) if pt.is_map(kind) else (array.values,),
        )
        below = sum(_row_bytes(child.slice(first, offsets[-1] - first)) for child in values)
        sizes = np.diff(np.concatenate([[0], np.cumsum(below)])[offsets - first])
    elif pt.is_fixed_size_list(kind) and rows and kind.list_size:
        width = kind.list_size
        values = array.values.slice(array.offset * width, rows * width)
        sizes = _row_bytes(values).reshape(rows, width).sum(axis=1)
    elif pt.is_dictionary(kind):
        entries = np.concatenate([_row_bytes(array.dictionary), [0]])  # The last entry is NULL's.
        sizes = entries[array.indices.cast(pa.int64()).fill_null(len(entries) - 1).to_numpy()]
    elif pt.is_binary_view(kind) or pt.is_string_view(kind):
        views = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, _VIEW_WORDS)
        lengths = views[array.offset : array.offset + rows, 0]
        sizes = np.where(array.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    elif is_any_string(kind) or is_any_binary(kind):
        sizes = pc.binary_length(array).fill_null(0).to_numpy()
    else:
        sizes = np.full(rows, array.nbytes // max(rows, 1))
    return sizes.astype(np.int64)


def resize(
    batches: Iterable[pa.RecordBatch],
    rows: int | None,
    bytes_max: int = DEFAULT_LIMITS.batch_bytes,
) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of at most `rows`.

    Only the last batch is smaller, and batches whose rows are so large that fewer of them reach
    `bytes_max`.

    Args:
        batches: The batches from Spark.
        rows: The wanted size; None leaves batches as they are.
        bytes_max: The most bytes in a batch, unless a single row is larger.
    """
    if rows is None:
        yield from (batch for batch in batches if batch.num_rows)
        return
    waiting: list[pa.RecordBatch] = []
    waiting_rows = waiting_bytes = 0
    for batch in batches:
        start = 0
        while batch.num_rows - start > 0:
            wanted = batch.slice(start, min(rows - waiting_rows, batch.num_rows - start))
            piece = within_bytes(wanted, bytes_max)
            if waiting and waiting_bytes + piece.nbytes > bytes_max:
                yield from _joined(waiting)
                waiting, waiting_rows, waiting_bytes = [], 0, 0
                continue
            start += piece.num_rows
            waiting.append(piece)
            waiting_rows += piece.num_rows
            waiting_bytes += piece.nbytes
            if waiting_rows == rows:
                yield from _joined(waiting)
                waiting, waiting_rows, waiting_bytes = [], 0, 0
    if waiting:
        yield from _joined(waiting)


def _joined(pieces: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the rows as one batch, or as several if one array cannot hold them."""
    if len(pieces) == 1:
        return pieces
    batches: list[pa.RecordBatch] = pa.Table.from_batches(pieces).combine_chunks().to_batches()
    return batches


# ---- Pace: how many rows the transform gets at once: no batch outlasts a checkpoint or memory

# Small, because the first batch's cost is unknown: at one second per row it must end soon. After
# ten quick batches the transform gets all that Spark passes at once.
_FIRST_ROWS = 8
_ROWS_MAX = 1 << 20
# A batch that takes longer than this fraction of `checkpoint_every` makes the next one half as
# large.
_SLOW_SHARE = 1 / 4
_QUICK_SHARE = 1 / 16


class Pace:
    """Doubles while batches are quick, halves while they are slow."""

    def __init__(
        self, checkpoint_every_s: float | None, batch_bytes: int = DEFAULT_LIMITS.batch_bytes
    ) -> None:
        """Start small; without checkpoints, batches are left as they are.

        Args:
            checkpoint_every_s: How much work may be lost.
            batch_bytes: The most bytes in a batch, however quick it is.
        """
        self._every_s = checkpoint_every_s
        self.batch_bytes = batch_bytes
        self.rows = _ROWS_MAX if checkpoint_every_s is None else _FIRST_ROWS

    def took(self, seconds: float) -> None:
        """Adjust to how long one batch took."""
        if self._every_s is None:
            return
        if seconds > self._every_s * _SLOW_SHARE:
            self.rows = max(1, self.rows // 2)
        elif seconds < self._every_s * _QUICK_SHARE:
            self.rows = min(_ROWS_MAX, self.rows * 2)


def paced(batches: Iterable[pa.RecordBatch], pace: Pace) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in pieces of the current pace, as far as memory allows."""
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            wanted = batch.slice(start, min(pace.rows, batch.num_rows - start))
            piece = within_bytes(wanted, pace.batch_bytes)
            start += piece.num_rows
            yield piece


# ---- Steps: consecutive input rows together with their output, for a transform of batches
@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRow:
    """An input row for which the transform returned no output."""

    # The single row, and Spark's hash of its key if the row came with one.
    row: pa.RecordBatch
    tags: pa.Array | None
    error: Exception
    # How many calls were made with it.
    attempts: int
    # The number of the task's rows before it, if known.
    position: int | None = None


@dataclass(slots=True, kw_only=True)
class Step:
    """Some input rows, and the transform's output for them."""

    rows: pa.RecordBatch
    tags: pa.Array | None
    # May compute while it is being read, and raise `TransformFailedError`.
    outputs: Iterable[pa.RecordBatch]
    # When work on it began, on the monotonic clock.
    began: float
    failed: Sequence[FailedRow] = field(default=())
    cost: float = 0.0
    # How long it took; set once it is done.
    seconds: float = 0.0


Apply = Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]


def apply_to(
    transform: Transform | PerWorker | None,
    batch: pa.RecordBatch,
    *,
    one_to_one: bool,
    batch_format: BatchFormat = "arrow",
) -> Iterator[pa.RecordBatch]:
    """Call the transform and pass its output on piece by piece, so it is never held as a whole.

    Args:
        transform: The user's function; a `PerWorker` is built here, at its first batch.
        batch: Its input.
        one_to_one: Whether output and input must have equally many rows.
        batch_format: The format that the transform gets.

    Raises:
        TransformFailedError: It raised, or returned something other than rows, or too many or too
            few.
    """
    rows_out = 0
    try:
        for output in output_batches(ready(transform)(converted(batch, batch_format))):
            rows_out += output.num_rows
            yield output
    except Exception as error:  # A transform may raise anything.
        raise TransformFailedError(error) from error
    if one_to_one and batch.num_rows != rows_out:
        complaint = (
            f"it returned {rows_out} rows for a batch of {batch.num_rows}; "
            "if it is meant to drop or multiply rows, pass one_to_one=False"
        )
        raise TransformFailedError(TransformOutputError(complaint))


def numbered(outputs: Iterable[pa.RecordBatch], tags: pa.Array | None) -> Iterator[pa.RecordBatch]:
    """Yield the output of a step with the number of each row's input row beside it.

    Args:
        outputs: The output; as many rows as the step has, in the same order.
        tags: The tags of the step's rows.

    Raises:
        TransformFailedError: There are more or fewer rows.
    """
    numbers = numbers_of(tags)
    at = 0
    for output in outputs:
        mine = numbers[at : at + output.num_rows]
        at += output.num_rows
        if at > len(numbers):
            break
        yield output.append_column(NUMBER_COLUMN, mine)
    if at != len(numbers):
        complaint = f"it returned {at} rows for a batch of {len(numbers)}"
        raise TransformFailedError(TransformOutputError(complaint))


def fitting_to(
    apply: Apply,
    fit: Callable[[pa.RecordBatch], pa.RecordBatch],
    batch_bytes: int,
    batch: pa.RecordBatch,
) -> Iterator[pa.RecordBatch]:
    """Pass on output that the table can take; a row that does not fit counts as failed.

    Args:
        apply: Calls the transform.
        fit: Raises if output rows do not fit the table.
        batch_bytes: How large a piece of output is fitted at a time.
        batch: The transform's input.

    Raises:
        TransformFailedError: Some of these rows have failed.
        SchemaMismatchError: No row of this transform can fit the table.
    """
    for output in apply(batch):
        try:
            if output.num_rows:  # Output without rows may also lack columns.
                for piece in pieces(output, batch_bytes):
                    fit(piece)
        except ValueMisfitError as error:
            raise TransformFailedError(error) from error
        yield output


def batch_steps(
    batches: Iterable[pa.RecordBatch],
    apply: Apply,
    *,
    batch_rows: int | None,
    pace: Pace,
    affords: Callable[[int], int] = int,
) -> Iterator[Step]:
    """Yield one step for each batch; a failing batch raises while its output is read.

    Args:
        batches: The input.
        apply: Calls the transform.
        batch_rows: How many rows it gets at once; None to keep to the pace.
        pace: How many rows it gets at once.
        affords: Returns for how many of some rows the task can pay; at 0 it ends early.
    """
    for piece, piece_tags in _pieces(batches, batch_rows, pace):
        waiting = [(piece, piece_tags, 0)]
        while waiting:
            if (found := _affordable(waiting, affords)) is None:
                return
            rows, tags, _ = found
            step = Step(rows=rows, tags=tags, outputs=apply(rows), began=time.monotonic())
            yield step
            pace.took(step.seconds)


def halving_steps(
    batches: Iterable[pa.RecordBatch],
    apply: Apply,
    *,
    batch_rows: int | None,
    pace: Pace,
    affords: Callable[[int], int] = int,
) -> Iterator[Step]:
    """Yield steps with complete output; rows that fail on their own are in a step's `failed`.

    One failing row in a batch of n costs about 2 x log2(n) further calls. Arguments as for
    `batch_steps`.
    """
    for batch, batch_tags in _pieces(batches, batch_rows, pace):
        waiting = [(batch, batch_tags, 1)]
        seconds = 0.0
        while waiting:
            if (found := _affordable(waiting, affords)) is None:
                return
            rows, tags, depth = found
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


_Waiting = tuple[pa.RecordBatch, pa.Array | None, int]


def _affordable(waiting: list[_Waiting], affords: Callable[[int], int]) -> _Waiting | None:
    """Take the last rows that wait, or as many of them as can be paid for; None for no row."""
    rows, tags, depth = waiting.pop()
    count = affords(rows.num_rows) if rows.num_rows else 0
    if not count and rows.num_rows:
        return None
    if count < rows.num_rows:
        waiting.append((rows.slice(count), None if tags is None else tags.slice(count), depth))
        rows, tags = rows.slice(0, count), None if tags is None else tags.slice(0, count)
    return rows, tags, depth


def _halves(
    rows: pa.RecordBatch, tags: pa.Array | None, depth: int
) -> list[tuple[pa.RecordBatch, pa.Array | None, int]]:
    """Return the two halves in reverse order, because the last one is taken first."""
    middle = rows.num_rows // 2
    return [
        (rows.slice(start, length), None if tags is None else tags.slice(start, length), depth)
        for start, length in ((middle, rows.num_rows - middle), (0, middle))
    ]
