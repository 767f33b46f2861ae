"""A stand-in for Spark: runs plans over rows in memory, one task after another, in this process."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import JobFailedError
from holdfast.ledger.row_files import KeyFiles, read_keys
from holdfast.model.coverage import InputSums, KeyExamples
from holdfast.sources.base import ROW_HASH, TAG_COLUMN
from holdfast.storage.port import StorageError
from holdfast.worker.coverage import hash_sums, key_hashes
from holdfast.worker.replay import ITEM_COLUMN, ReplayPlan
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import ItemPlan, TaskPlan
from tests.fakes.memory_storage import MemoryStorage

_ATTEMPTS_MAX = 4  # As many as Spark makes by default.
_EXAMPLES = 3

Hook = Callable[[], object]


def partition(ids: Iterable[int | None], kind: pa.DataType | None = None) -> pa.RecordBatch:
    """Return rows of these ids, which are their keys."""
    return pa.RecordBatch.from_arrays([pa.array(ids, kind or pa.int64())], names=["id"])


def row_hashes(rows: pa.RecordBatch) -> pa.Array:
    """Return a hash of each whole row, whatever the order of its columns."""
    texts = [repr(sorted(row.items())) for row in rows.to_pylist()]
    digests = [hashlib.sha256(text.encode()).digest()[:8] for text in texts]
    return pa.array([int.from_bytes(digest, "big", signed=True) for digest in digests], pa.int64())


def tagged(rows: pa.RecordBatch, plan: TaskPlan) -> pa.RecordBatch:
    """Return rows as Spark hands them to a task: with their hashes, if the plan wants these."""
    if not plan.whole_rows:
        return rows
    tags = pa.StructArray.from_arrays([row_hashes(rows)], names=[ROW_HASH])
    return rows.append_column(TAG_COLUMN, tags)


class MemorySubmitter:
    """An input of one key column, `id`, in partitions; without faults every task ends well."""

    def __init__(self, *partitions: pa.RecordBatch | Iterable[int | None]) -> None:
        """Take the input's partitions: batches, or just their ids."""
        self.partitions = [
            given if isinstance(given, pa.RecordBatch) else partition(given) for given in partitions
        ]
        self.plans: list[TaskPlan] = []
        self.replays: list[ReplayPlan] = []
        # How often the keys of the input were read, for any purpose.
        self.key_reads = 0
        # How often all its columns were read, to sum whole rows.
        self.row_reads = 0
        # How many of these ran beside a job; and the ids that a sample of keys holds.
        self.reads_beside = 0
        self.sampled: Collection[int] = ()
        # How often the finished keys were joined with each other.
        self.joins = 0
        # What the next jobs read instead of the input, which then gives other rows each time.
        self.next_reads: deque[list[pa.RecordBatch]] = deque()
        # Answers to the next jobs, which then are not run.
        self.answers: deque[list[TaskReport] | Exception] = deque()
        # Each runs once: before the next look at the keys, and before or after a place's task.
        self.before_measure: Hook | None = None
        self.before_task: dict[int, Hook] = {}
        self.after_task: dict[int, Hook] = {}
        # Runs once, when all tasks of a job have ended.
        self.after_job: Hook | None = None
        self._attempts = itertools.count()

    def measure(self, finished: KeyFiles, *, whole_rows: bool = False) -> InputSums:
        """Return the sums of the rows that are not finished."""
        self.key_reads += 1
        hook, self.before_measure = self.before_measure, None
        (hook or _nothing)()
        batches = self._left(self.partitions, finished)
        left = pa.concat_arrays([batch["id"] for batch in batches])
        low, high = hash_sums(key_hashes([left]))
        sums = InputSums(rows=len(left), null_keys=left.null_count, low=low, high=high)
        if not whole_rows:
            return sums
        self.row_reads += 1
        found = [hash_sums(row_hashes(batch).to_numpy().view("uint64")) for batch in batches]
        return replace(
            sums,
            row_low=sum(pair[0] for pair in found),
            row_high=sum(pair[1] for pair in found),
            columns=[f"{field.name} {field.type}" for field in self.partitions[0].schema],
        )

    def look(self, *, whole_rows: bool = False) -> tuple[InputSums, int]:
        """Return the sums of all rows, and how many ids of the sample appear in two."""
        sums = self.measure(KeyFiles(storage=MemoryStorage()), whole_rows=whole_rows)
        counts = Counter(self._ids())
        return sums, sum(1 for id_ in self.sampled if counts[id_] > 1)

    def submit(self, plan: TaskPlan, finished: KeyFiles) -> list[TaskReport]:
        """Run the plan over what each partition has left, as one task each."""
        self.plans.append(plan)
        read = self.next_reads.popleft() if self.next_reads else self.partitions
        return self._job(plan, [tagged(batch, plan) for batch in self._left(read, finished)])

    def items(self, plan: ItemPlan, items: Sequence[str]) -> list[TaskReport]:
        """Run the replay of each item as one task."""
        if isinstance(plan, ReplayPlan):
            self.replays.append(plan)
        return self._job(plan, [pa.RecordBatch.from_pydict({ITEM_COLUMN: [i]}) for i in items])

    @property
    def slots(self) -> int:
        """How many tasks run at a time, for a scan."""
        return 2

    def run(self, plan: TaskPlan, items: int) -> list[TaskReport]:
        """Run the plan over the work items of a scan, as one task each."""
        self.plans.append(plan)
        return self._job(plan, [partition([number]) for number in range(items)] or [partition([])])

    def duplicates(self, *, beside: bool = False) -> KeyExamples:
        """Return the ids that appear in more than one row."""
        self.key_reads += 1
        self.reads_beside += beside
        return _examples(id_ for id_, count in Counter(self._ids()).items() if count > 1)

    def cancel_beside(self) -> None:
        """Nothing runs at the same time."""

    def gone(self, finished: KeyFiles) -> KeyExamples:
        """Return the finished ids that the input no longer has."""
        self.key_reads += 1
        return _examples(self._finished(finished).keys() - set(self._ids()))

    def overlaps(self, finished: KeyFiles) -> dict[tuple[str, ...], int]:
        """Return which records share ids, and how many ids."""
        self.joins += 1
        shared = (names for names in self._finished(finished).values() if len(names) > 1)
        return dict(Counter(tuple(sorted(set(names))) for names in shared))

    def _ids(self) -> list[int | None]:
        return [id_ for batch in self.partitions for id_ in batch["id"].to_pylist()]

    def _finished(self, finished: KeyFiles) -> dict[int | None, list[str]]:
        """Return each finished id with the records that cover it, with repetitions."""
        if not finished:
            return {}
        schema = self.partitions[0].select(["id"]).schema
        found: dict[int | None, list[str]] = {}
        try:
            for name, uri in finished.uris.items():
                counted = finished.counts.get(name)
                for keys in read_keys(finished.storage, uri, schema, counted):
                    for id_ in keys["id"].to_pylist():
                        found.setdefault(id_, []).append(name)
        except (StorageError, OSError, pa.ArrowException) as error:
            raise JobFailedError(reason=str(error)) from error
        return found

    def _left(self, read: Sequence[pa.RecordBatch], finished: KeyFiles) -> list[pa.RecordBatch]:
        # As in SQL, NULL equals nothing: a row without a key is never finished.
        done = [id_ for id_ in self._finished(finished) if id_ is not None]
        known = pa.array(done, read[0]["id"].type) if read else None
        return [batch.filter(pc.invert(pc.is_in(batch["id"], known))) for batch in read]

    def _job(self, plan: TaskPlan | ItemPlan, inputs: Sequence[pa.RecordBatch]) -> list[TaskReport]:
        if self.answers:
            answer = self.answers.popleft()
            if isinstance(answer, Exception):
                raise answer
            return answer
        reports = []
        for place, rows in enumerate(inputs):
            self.before_task.pop(place, _nothing)()
            reports.append(self._task(plan, rows, place))
            self.after_task.pop(place, _nothing)()
        hook, self.after_job = self.after_job, None
        (hook or _nothing)()
        # They travel as text, as through Spark.
        return [TaskReport.from_json(report.to_json()) for report in reports]

    def _task(
        self,
        plan: TaskPlan | ItemPlan,
        rows: pa.RecordBatch,
        place: int,
        left: int = _ATTEMPTS_MAX,
    ) -> TaskReport:
        """Retry what fails temporarily, as Spark does."""
        try:
            return plan.run([rows], place=place, attempt=next(self._attempts))
        except Exception as error:
            if left == 1:
                raise JobFailedError(reason=str(error)) from error
        return self._task(plan, rows, place, left - 1)


def _nothing() -> None:
    """Do nothing: the hook is not set."""


def _examples(ids: Iterable[int | None]) -> KeyExamples:
    found = sorted(ids, key=str)
    return KeyExamples(
        keys=len(found), examples=", ".join(f"(id={i!r})" for i in found[:_EXAMPLES])
    )
