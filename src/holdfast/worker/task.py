"""One task: take batches, transform them, write the output, make it durable, report.

Transform and writer share one process: two consecutive steps of Spark would run in two, and
every row would cross between them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.failpoints import failpoint
from holdfast.ledger.task_log import JobLedger
from holdfast.model.limits import DEFAULT_LIMITS, Limits
from holdfast.sinks.base import WriterSpec
from holdfast.storage.port import StorageError
from holdfast.storage.runtime import io_runtime
from holdfast.worker.attempt import Attempt
from holdfast.worker.checkpoints import Checkpoints, TaskYieldsError
from holdfast.worker.per_row import PerRow
from holdfast.worker.reports import TaskReport
from holdfast.worker.scan_task import ScanTask
from holdfast.worker.transforms import PerWorker, Transform
from holdfast.worker.twins import reason_to_do_nothing, twin_is_at_work, wait_for_twin

RowCount = Literal["same", "any"]
# "raise": a failing row ends its task. "quarantine": it is set aside.
OnError = Literal["raise", "quarantine"]


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """What every task of a job does. Pickled on the driver, never stored."""

    transform: Transform | PerWorker | PerRow | None
    batch_rows: int | None
    key: tuple[str, ...]
    writer: WriterSpec
    ledger: JobLedger
    # Names the files of this job; no other job uses it.
    job_nonce: str
    # How much work may be lost, in seconds; None: only what is in closed table files is kept.
    checkpoint_every_s: float | None = None
    # "same": as many rows out as in, for every batch; anything else is the transform's error.
    rows: RowCount = "same"
    on_error: OnError = "raise"
    # How many rows of one task may be set aside; None: any number.
    errors_max: int | None = None
    # For a scan: the task reads its rows itself, and Spark only says which.
    scan: ScanTask | None = None
    # What a row's answer costs: a number, or a function of the answer or the output batch.
    cost: float | Callable[[Any], float] = 0.0
    limits: Limits = DEFAULT_LIMITS
    # Whether Spark adds the hash of each whole row, for the records to sum.
    whole_rows: bool = False
    # Whether answers that all lack a column end the job, though failing rows are set aside.
    judges_answers: bool = True

    def run(self, batches: Iterable[pa.RecordBatch], *, place: int, attempt: int) -> TaskReport:
        """Do one task's work. Runs on an executor.

        Args:
            batches: The task's input.
            place: Spark's partition id: where in the job this task stands.
            attempt: Spark's task attempt id: the only number that no other attempt has.
        """
        ledger, every_s = self.ledger, self.checkpoint_every_s
        end = reason_to_do_nothing(ledger, place=place, attempt=attempt, every_s=every_s)
        if end is not None:
            return TaskReport(place=place, end=end)
        if self.transform is not None and ledger.is_hopeless():
            return TaskReport(place=place, end="left")
        failpoint("before-task")
        before = io_runtime().counters
        name = ledger.log_name(place, attempt)
        writer = self.writer.open(f"{self.job_nonce}-{place:05d}-{attempt}", self.limits)
        checkpoints = Checkpoints(
            ledger=ledger,
            log=ledger.log(place, attempt),
            writer=writer,
            key=self.key,
            locate=self.scan.locate if self.scan is not None else None,
            every_s=every_s,
            copies=self.transform is not None,
            batch_bytes=self.limits.batch_bytes,
            clock=ledger.ports.monotonic,
            twin_is_at_work=lambda earlier: twin_is_at_work(
                ledger, place=place, attempt=attempt, only_earlier=earlier
            ),
        )
        report = TaskReport(place=place, log=name)
        rows = batches if self.scan is None else self.scan.rows(batches, checkpoints.passed_over)
        try:
            with io_runtime().bounded(self.limits.in_flight_bytes):
                report = Attempt(self, checkpoints, writer).run(rows, report)
        except TaskYieldsError:
            checkpoints.fail()
            # Ending before the other would make Spark kill it.
            wait_for_twin(ledger, place=place, attempt=attempt, every_s=every_s)
            report = replace(report, end="left")
        except BaseException:
            with contextlib.suppress(HoldfastError, StorageError, OSError):
                checkpoints.fail()
            raise
        if report.problem is not None and report.problem.of_the_job:
            with contextlib.suppress(HoldfastError):  # Advice: the report says it to the driver.
                ledger.say_hopeless()
        failpoint("before-report")
        io = asdict(io_runtime().counters.since(before))
        return replace(report, records=checkpoints.records, io=io)
