"""Checkpoints: when a task's work becomes durable, and how.

Rows of a batch that is still being transformed are kept separately, because a record covers only
whole batches. Memory use is bounded. Beyond the bound it depends on the rate: rows that come slowly
are streamed into the chunk; rows that come fast are dropped from the buffer, because by the next
checkpoint they fill a table file of a good size, and a cut serves better.

A *cut* closes all table files and names them in a record, which replaces those written since the
last cut: it covers their rows, too. It happens when the files are full, and at the end of the task.
A *chunk* keeps the output since the last record in the ledger when a
checkpoint is due and the files are not full, so that a checkpoint does not produce a small file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from holdfast.failpoints import failpoint
from holdfast.ledger.row_files import ChunkFile
from holdfast.ledger.task_log import JobLedger, TaskLog
from holdfast.model.coverage import NOTHING, Span
from holdfast.model.limits import DEFAULT_LIMITS
from holdfast.model.work import Chunk, TaskEnd, TaskRecord
from holdfast.sinks.base import TaskWriter
from holdfast.storage.port import Storage
from holdfast.worker.batch_steps import Step, copied, pieces
from holdfast.worker.coverage import CoveredKeys, CoveredRanges
from holdfast.worker.quarantine import Locate, Quarantine

# ---- The chunk buffer: output rows outside closed table files, kept for the next checkpoint

_KEPT_BYTES_MAX = 64 * 1024 * 1024
# This much output in one checkpoint, before encoding, is worth a table file of its own.
_WORTH_A_CUT_BYTES = 128 * 1024 * 1024


class ChunkBuffer:
    """The output since the last record."""

    def __init__(self, storage: Storage, every_s: float | None, clock: Callable[[], float]) -> None:
        """Start empty; without checkpoints nothing is kept."""
        self._storage = storage
        self._every_s = every_s
        self._clock = clock
        self._uri = ""
        self._begun = 0.0
        self._file: ChunkFile | None = None
        self._held: list[pa.RecordBatch] = []
        self._kept: list[pa.RecordBatch] = []
        self._held_bytes = self._kept_bytes = 0
        self.let_go = every_s is None

    def begin(self, uri: str) -> None:
        """Forget everything, and start the next chunk."""
        if self._file is not None:
            self._file.abandon()
        self._file = None
        self._uri = uri
        self._begun = self._clock()
        self._held, self._kept = [], []
        self._held_bytes = self._kept_bytes = 0
        self.let_go = self._every_s is None

    def hold(self, rows: pa.RecordBatch) -> None:
        """Add output of the batch that is being transformed."""
        if self.let_go or not rows.num_rows:
            return
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes > _KEPT_BYTES_MAX:
            self._let_go()

    def keep(self) -> None:
        """The batch is done: the held rows now belong to the chunk."""
        if self.let_go:
            return
        self._kept += self._held
        self._kept_bytes += self._held_bytes
        self._held, self._held_bytes = [], 0
        if self._kept_bytes <= _KEPT_BYTES_MAX and self._file is None:
            return
        if self._file is None and self._is_fast():
            self._let_go()
        else:
            self._stream()

    def drop_held(self) -> None:
        """The batch failed: discard the held rows."""
        self._held, self._held_bytes = [], 0

    def write(self) -> Chunk | None:
        """Make the chunk durable; return None if it has no rows."""
        if self._file is None and not self._kept:
            return None
        self._stream()
        file, self._file = self._file, None
        return file.finish() if file is not None else None

    def _is_fast(self) -> bool:
        seconds = max(self._clock() - self._begun, 1e-3)
        return self._kept_bytes / seconds * (self._every_s or 0.0) >= _WORTH_A_CUT_BYTES

    def _stream(self) -> None:
        if self._file is None:
            self._file = ChunkFile(self._storage, self._uri, self._kept[0].schema)
        self._file.write(self._kept)
        self._kept, self._kept_bytes = [], 0

    def _let_go(self) -> None:
        self.begin(self._uri)
        self.let_go = True


# ---- Checkpoints: when a task's work becomes durable, and how

# How soon a task notices that its driver is stopping or that another has taken over. Costs one
# request.
_LOOK_EVERY_S = 3.0
# After so many records a cut comes even if the files are not full: what a driver has to read of a
# task that runs for hours stays bounded.
_RECENT_MAX = 128
# Sums of costs are rounded.
_ROUNDING = 1e-9


def _no_twin(_only_earlier: bool, /) -> bool:  # noqa: FBT001 - a Callable has no keywords.
    return False


class TaskFencedError(Exception):
    """The run has continued without this task, which must not pay for another row."""


class TaskInterruptedError(Exception):
    """The task's own driver is stopping: pay for no further row; finished rows count."""


class TaskYieldsError(Exception):
    """Another attempt has durable work at this place, so one of the two must stop."""


class Checkpoints:
    """Takes a task's output, batch by batch, and makes it durable."""

    def __init__(  # noqa: PLR0913 - they are the parts of one task.
        self,
        *,
        ledger: JobLedger,
        log: TaskLog,
        writer: TaskWriter,
        key: Sequence[str],
        locate: Locate | None = None,
        every_s: float | None,
        copies: bool = True,
        batch_bytes: int = DEFAULT_LIMITS.batch_bytes,
        twin_is_at_work: Callable[[bool], bool] = _no_twin,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = float,
    ) -> None:
        """Start with nothing done.

        Args:
            ledger: How the run's ledger is reached.
            log: The attempt's own log.
            writer: Writes table files.
            key: The key columns of the input; none for a scan.
            locate: For a scan: the file that holds a row, and the row's number there.
            every_s: How much work may be lost, in seconds; None for cuts only.
            copies: Whether the output's memory may still be overwritten.
            batch_bytes: How large a piece of output is taken at a time.
            twin_is_at_work: Whether another attempt has durable work here; if its argument is true,
                only attempts that started earlier count.
            clock: A monotonic clock, in seconds.
            spent: Returns what the task has paid so far.
        """
        self._spent = spent
        # The cost of all steps that were counted.
        self._counted = 0.0
        self._ledger = ledger
        self._log = log
        self._writer = writer
        self._key = key
        self._every_s = every_s
        self._copies = copies
        self._batch_bytes = batch_bytes
        self._twin_is_at_work = twin_is_at_work
        self._clock = clock
        self._chunk = ChunkBuffer(ledger.storage, every_s, clock)
        self._quarantine = Quarantine(key, ledger.claim, locate)
        # Whether the table files have output of a batch that is not counted yet.
        self._has_uncounted = False
        # Rows of a scan that its reader leaves out: the next record covers them.
        self.passed_over: list[Span] = []
        self._is_scan = locate is not None
        # Records since the last cut, which the next cut replaces.
        self._recent: list[TaskRecord] = []
        self.records = 0
        self._has_covered = False
        self._looked = clock()
        self._begin()

    def _begin(self) -> None:
        """Start the next record."""
        layout, name = self._ledger.layout, self._log.next_name
        self._keys: CoveredKeys | CoveredRanges = (
            CoveredRanges(self.passed_over)
            if self._is_scan
            else CoveredKeys(self._ledger.storage, layout.keys(name), self._key)
        )
        self._chunk.begin(layout.chunk(name))
        self._seconds = self._cost = 0.0
        self._last = self._clock()

    @property
    def is_due(self) -> bool:
        """Whether a checkpoint is due."""
        return self._every_s is not None and self._clock() - self._last >= self._every_s

    @property
    def failed_rows(self) -> int:
        """How many rows have been set aside since the task began."""
        return self._quarantine.rows

    def say_begun(self) -> None:
        """Write an empty record: a task that dies without any record cannot be counted."""
        begun = TaskRecord(name=self._name, coverage=NOTHING, seconds=0.0)
        self._append(begun)
        self._recent.append(begun)

    def look(self) -> None:
        """Check whether the task may continue.

        Raises:
            TaskFencedError: The run has continued without this task.
            TaskInterruptedError: The task's own driver is stopping.
        """
        self._looked = self._clock()
        end = self._ledger.end()
        if end == "fenced":
            raise TaskFencedError
        if end:
            raise TaskInterruptedError

    def hold(self, output: pa.RecordBatch) -> None:
        """Take output rows of the batch that is being transformed.

        Raises:
            SchemaMismatchError: The rows do not fit the table.
        """
        if not output.num_rows:
            return  # It may also lack columns.
        # Piece by piece, so that there is never a second copy of the transform's whole output.
        for piece in pieces(output, self._batch_bytes):
            rows = self._writer.fit(piece)
            if self._copies and piece is output:
                # Rows wait for their row group and their chunk. Until then a transform may write
                # its next batch into the same memory, and a slice keeps alive everything it was cut
                # from.
                rows = copied(rows)
            self._has_uncounted = True
            self._writer.write(rows)
            self._chunk.hold(rows)

    def cover(self, step: Step) -> None:
        """Count the rows of a step whose output was taken, and make a checkpoint if one is due.

        Raises:
            TaskFencedError: The run has continued without this task.
            TaskInterruptedError: The task's own driver is stopping.
            TaskYieldsError: Another attempt is doing the same work.
        """
        self.count(step)
        is_full = self._writer.fullness >= 1
        is_needed = is_full or self.is_due or self._quarantine.is_full
        if is_needed or self._clock() - self._looked >= _LOOK_EVERY_S:
            self.look()
        if not is_needed:
            return
        is_first, self._has_covered = not self._has_covered, True
        if is_first and self._twin_is_at_work(False):  # noqa: FBT003 - see the argument's text.
            raise TaskYieldsError
        if is_full or self._chunk.let_go or len(self._recent) >= _RECENT_MAX:
            self._cut("")
        else:
            self._write_chunk("")
        # Both may have looked before either wrote: then the one that started later yields.
        if is_first and self._twin_is_at_work(True):  # noqa: FBT003 - see the argument's text.
            raise TaskYieldsError

    def count(self, step: Step) -> None:
        """Count the rows of a step whose output was taken, with failed rows counted separately."""
        if step.rows.num_rows:
            self._keys.add(step.rows, step.tags)
        self._quarantine.add(step.failed)
        self._seconds += step.seconds
        self._cost += step.cost
        self._counted += step.cost
        self._chunk.keep()
        self._has_uncounted = False

    def finish(self) -> None:
        """Finish the task's input. Only a task without any input leaves no record."""
        if self._keys.rows or self._quarantine or self.records:
            self._cut("complete")

    def stop(self) -> None:
        """Stop early and keep what is counted: the output of all counted rows has been taken."""
        if self._keys.rows or self._quarantine or self.records:
            self._cut("stopped")

    def stop_at_failed_batch(self) -> None:
        """Stop at a failed batch: keep the batches before it.

        If some of its output is in the table files, these are discarded, and the batches are kept
        as far as a chunk holds them. Without checkpoints, only files that were closed before count.
        """
        if self._every_s is not None and self._chunk.let_go and not self._has_uncounted:
            self._cut("stopped")
            return
        self._writer.abandon()
        self._chunk.drop_held()
        if self._chunk.let_go:
            self._keys.abandon()
            self._give_up("stopped")
        else:
            self._write_chunk("stopped")

    def fail(self) -> None:
        """Discard what is not durable, and record the failure for the next attempt."""
        self._writer.abandon()
        self._keys.abandon()
        self._chunk.begin("")
        if self.records:
            self._give_up("failed")

    def _give_up(self, end: TaskEnd) -> None:
        """End the log without what was counted since the last record."""
        lost = self._lost(self._cost)
        self._append(
            TaskRecord(name=self._name, coverage=NOTHING, seconds=0.0, lost_cost=lost, end=end)
        )

    def _lost(self, given_up: float = 0.0) -> float:
        """Return what was paid for answers that no step has, or whose step is discarded."""
        spent = self._spent()
        lost = spent - self._counted + given_up
        return lost if lost > _ROUNDING * spent else 0.0

    @property
    def _name(self) -> str:
        return self._log.next_name

    def _cut(self, end: TaskEnd) -> None:
        groups = self._writer.cut()
        replaced, self._recent = self._recent, []
        layout = self._ledger.layout
        covering = [record for record in replaced if record.coverage.rows]
        if not covering and not self._keys.rows and not groups:
            replaced = []  # A record of failed rows alone takes the cost of their answers.
        if covering:
            earlier = [(layout.keys(record.name), record.coverage) for record in covering]
            self._keys.take_over(earlier)
            failpoint("after-earlier-keys")
        self._seconds += sum(record.seconds for record in replaced)
        self._cost += sum(record.cost for record in replaced)
        numbers = tuple(record.number for record in replaced)
        self._record(end, groups=tuple(groups), replaces=numbers)

    def _write_chunk(self, end: TaskEnd) -> None:
        written = self._record(end, chunk=self._chunk.write())
        self._recent += [record for record in written if record.quarantine is None]

    def _record(
        self,
        end: TaskEnd,
        **where: Any,  # noqa: ANN401 - fields of the record.
    ) -> list[TaskRecord]:
        """Record the rows that are done, and after them those that have failed.

        A kill between the two only means that failed rows are tried again.
        """
        seconds, cost, lost = self._seconds, self._cost, self._lost() if end else 0.0
        written: list[TaskRecord] = []
        if self._keys.rows or any(where.values()) or not self._quarantine:
            written.append(
                TaskRecord(
                    name=self._name,
                    coverage=self._keys.finish(),
                    seconds=seconds,
                    cost=cost,
                    lost_cost=lost,
                    end="" if self._quarantine else end,
                    **where,
                )
            )
            self._append(written[-1])
            seconds = cost = lost = 0.0
        if self._quarantine:
            name, storage, layout = self._name, self._ledger.storage, self._ledger.layout
            rows, coverage = self._quarantine.write(storage, layout.quarantine(name), self._keys)
            written.append(
                TaskRecord(
                    name=name,
                    coverage=coverage,
                    seconds=seconds,
                    cost=cost,
                    lost_cost=lost,
                    quarantine=rows,
                    end=end,
                )
            )
            self._append(written[-1])
        return written

    def _append(self, record: TaskRecord) -> None:
        self._log.append(record)
        self.records += 1
        self._begin()
