"""Checkpoints: which records a task writes, and what is covered when it dies in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest

from holdfast.errors import LedgerDamagedError, StoreUnavailableError
from holdfast.ledger.row_files import read_chunk, read_keys
from holdfast.ledger.task_log import JobLedger
from holdfast.model.history import steps_of
from holdfast.model.work import TaskRecord, Work
from holdfast.storage.port import StorageError
from holdfast.worker import checkpoints
from holdfast.worker.checkpoints import Checkpoints, TaskFencedError, TaskYieldsError
from holdfast.worker.coverage import hash_sums, key_hashes
from tests.fakes.memory_storage import CreateFault, DriverDiedError
from tests.fakes.task_ledgers import (
    ListWriter,
    ListWriterSpec,
    ManualClock,
    WatchedStorage,
    done_step,
    job_ledger,
    logged,
    task_log,
)

EVERY_S = 30.0
TABLE = pa.schema([("id", pa.int64()), ("copy", pa.int64())])


@dataclass
class Task:
    """One task attempt whose input is numbers; each may give several output rows."""

    every_s: float | None = EVERY_S
    full_rows: int = 1_000_000
    storage: WatchedStorage = field(default_factory=WatchedStorage)
    clock: ManualClock = field(default_factory=ManualClock)
    twin: Callable[[bool], bool] = lambda _: False
    # What was paid so far, for batches or not.
    spent: float = 0.0

    def __post_init__(self) -> None:
        """Start the attempt."""
        self.spec = ListWriterSpec(TABLE, full_rows=self.full_rows)
        self.ledger: JobLedger = job_ledger(self.storage)
        self.writer: ListWriter = self.spec.open("task")
        self.checkpoints = Checkpoints(
            ledger=self.ledger,
            log=task_log(self.ledger),
            writer=self.writer,
            key=("id",),
            every_s=self.every_s,
            twin_is_at_work=self.twin,
            clock=self.clock,
            spent=lambda: self.spent,
        )

    def hold(self, ids: Iterable[int], *, copies: int = 1) -> None:
        """Take the output of a batch that is not finished."""
        for copy in range(copies):
            rows = [{"id": i, "copy": copy} for i in ids]
            self.checkpoints.hold(pa.RecordBatch.from_pylist(rows, schema=TABLE))

    def do(
        self, ids: Iterable[int], *, seconds: float = 1.0, copies: int = 1, cost: float = 0.0
    ) -> None:
        """Transform one batch, which takes this long and costs this much."""
        numbers = list(ids)
        self.hold(numbers, copies=copies)
        self.clock.now_s += seconds
        self.spent += cost
        step = done_step(pa.RecordBatch.from_pydict({"id": numbers}), seconds)
        self.checkpoints.cover(replace(step, cost=cost))

    @property
    def records(self) -> list[TaskRecord]:
        """The records in the log."""
        return logged(self.ledger)

    def covered(self, record: TaskRecord) -> list[int]:
        """Return the input rows whose keys a record has written down."""
        if not record.coverage.rows:
            return []
        schema, uri = pa.schema([("id", pa.int64())]), self.ledger.layout.keys(record.name)
        return [i for keys in read_keys(self.storage, uri, schema) for i in keys["id"].to_pylist()]

    def in_chunk(self, record: TaskRecord) -> list[int]:
        """Return the output rows in a record's chunk."""
        assert record.chunk is not None
        batches = read_chunk(self.storage, self.ledger.layout.chunk(record.name), record.chunk)
        return [i for batch in batches for i in batch["id"].to_pylist()]

    def in_files(self, record: TaskRecord) -> list[int]:
        """Return the output rows in a record's table files."""
        return [row["id"] for row in self.spec.rows_in(record)]

    def check_each_row_once(self) -> list[int]:
        """Compare what is covered with what is in files and waiting chunks; return it."""
        work, refused = Work().plus(self.records)
        covered = [i for record in work.records for i in self.covered(record)]
        stored = [i for record in work.records for i in self.in_files(record)]
        stored += [i for record in work.waiting for i in self.in_chunk(record)]
        assert refused == ()
        assert sorted(stored) == sorted(covered)
        assert len(covered) == work.sums.rows == len(set(covered))
        return sorted(covered)


def test_full_files_are_cut() -> None:
    """The record names the closed files and covers all input since the last record."""
    task = Task(full_rows=4)
    task.do([1, 2])
    assert task.records == []
    task.do([3, 4, 5])
    (cut,) = task.records
    assert (task.in_files(cut), task.covered(cut)) == ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    assert (cut.chunk, cut.supersedes, cut.end) == (None, (), "")
    assert cut.seconds == 2.0


def test_a_checkpoint_due_before_files_are_full_is_a_chunk() -> None:
    """A checkpoint must not mean a small table file."""
    task = Task()
    task.do([1, 2], seconds=EVERY_S - 0.1)
    assert task.records == []
    task.do([3], seconds=0.1)
    (record,) = task.records
    assert (task.in_chunk(record), task.covered(record)) == ([1, 2, 3], [1, 2, 3])
    assert (record.groups, record.supersedes, record.end) == ((), (), "")
    assert task.spec.files == {}


def test_each_chunk_holds_the_output_since_the_last_record() -> None:
    """Time starts again with each record."""
    task = Task()
    task.do([1], seconds=EVERY_S)
    task.do([2], seconds=EVERY_S - 1)
    task.do([3], seconds=1)
    assert [task.in_chunk(record) for record in task.records] == [[1], [2, 3]]
    assert task.check_each_row_once() == [1, 2, 3]


def test_a_cut_replaces_all_records_since_the_last_cut() -> None:
    """Their rows are in its files, and their keys in its keys; those of earlier cuts are not."""
    task = Task(full_rows=3)
    task.do([1], seconds=EVERY_S)
    task.do([2], seconds=EVERY_S)
    task.do([3], seconds=1)
    task.do([4], seconds=EVERY_S)
    task.checkpoints.finish()
    cut, last = task.records
    assert (cut.number, cut.replaces, cut.beside) == (2, (0, 1), ())
    assert (task.in_files(cut), sorted(task.covered(cut))) == ([1, 2, 3], [1, 2, 3])
    assert (last.number, last.replaces, last.beside) == (4, (3,), (2,))
    assert (task.in_files(last), task.covered(last), last.end) == ([4], [4], "complete")
    assert task.check_each_row_once() == [1, 2, 3, 4]


def test_a_replaced_record_is_not_read() -> None:
    """However long a task has worked, a driver reads its cuts and what came after the last one."""
    task = Task(full_rows=100)
    for number in range(50):
        task.do([number], seconds=EVERY_S)
    task.checkpoints.finish()
    task.storage.calls.clear()
    (cut,) = task.records
    assert [kind for kind, _ in task.storage.calls] == ["list", "get"]
    assert (cut.number, cut.coverage.rows, cut.coverage.span) == (50, 50, (0, 49))
    assert task.check_each_row_once() == list(range(50))


def test_after_many_records_a_cut_comes_though_the_files_are_not_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a driver would have to read every checkpoint of a task that dies after hours."""
    monkeypatch.setattr(checkpoints, "_RECENT_MAX", 3)
    task = Task(full_rows=100)
    for number in range(9):
        task.do([number], seconds=EVERY_S)
    assert [record.number for record in task.records] == [3, 7, 8]
    assert [len(record.groups) for record in task.records] == [1, 1, 0]
    assert task.check_each_row_once() == list(range(9))


@pytest.mark.parametrize("is_there", [True, False])
def test_keys_that_cannot_be_read_back_are_not_replaced(*, is_there: bool) -> None:
    """A record must never cover a row whose key is not in its file."""
    task = Task()
    task.do([1, 2], seconds=EVERY_S)
    task.do([3], seconds=EVERY_S)
    first, second = (task.ledger.layout.keys(record.name) for record in task.records)
    if is_there:
        task.storage.objects[first] = task.storage.objects[second]
    else:
        del task.storage.objects[first]
    with pytest.raises(LedgerDamagedError, match=r"missing|2 were written"):
        task.checkpoints.finish()
    assert [record.number for record in task.records] == [0, 1]


@pytest.mark.parametrize("ids", [[[5], [3], [1]], [[1], [1], [2]], [[2, 1], [3]]])
def test_keys_that_do_not_grow_have_no_span(ids: list[list[int]]) -> None:
    """From one replaced record to the next, as within each."""
    task = Task()
    for some in ids:
        task.do(some, seconds=EVERY_S)
    task.checkpoints.finish()
    (cut,) = task.records
    assert (cut.coverage.span, cut.coverage.rows) == (None, sum(map(len, ids)))


def test_a_cut_has_used_what_its_replaced_records_had() -> None:
    """Usage and time are only recorded once; pages and the pace spread the rows over the time."""
    task = Task()
    task.do([1], seconds=EVERY_S)
    task.do([2, 3], seconds=EVERY_S)
    used = [record.usage for record in task.records]
    task.checkpoints.finish()
    (cut,) = task.records
    assert cut.usage.over_s >= sum(usage.over_s for usage in used)
    assert cut.usage.bytes_written >= sum(usage.bytes_written for usage in used)
    steps = steps_of(cut)
    assert (sum(rows for _, rows in steps), steps[-1][0]) == (3, cut.usage.at)
    assert [at for at, _ in steps] == sorted(at for at, _ in steps)
    assert len(steps) == 3


def test_files_that_are_full_when_a_checkpoint_is_due_are_cut() -> None:
    """A cut is better than a chunk."""
    task = Task(full_rows=1)
    task.do([1], seconds=2 * EVERY_S)
    (record,) = task.records
    assert (task.in_files(record), record.chunk) == ([1], None)


def test_the_final_cut_is_complete() -> None:
    """The log then shows that all input of the task is covered."""
    task = Task()
    task.do([1, 2])
    task.checkpoints.finish()
    (record,) = task.records
    assert (record.end, task.in_files(record), record.coverage.rows) == ("complete", [1, 2], 2)


def test_a_task_whose_last_batch_filled_its_files_is_complete_too() -> None:
    """Otherwise a twin would wait for a log that never grows again."""
    task = Task(full_rows=2)
    task.do([1, 2])
    task.checkpoints.finish()
    assert [record.end for record in task.records][-1] == "complete"


def test_an_empty_task_writes_nothing() -> None:
    """Spark makes many partitions without rows."""
    task = Task()
    task.checkpoints.finish()
    assert (task.storage.objects, task.storage.sinks) == ({}, [])
    assert task.storage.calls == []


def test_rows_that_yield_nothing_are_covered() -> None:
    """Otherwise every pass would compute them again, and the run would never end."""
    task = Task()
    task.do([1, 2], copies=0, seconds=EVERY_S)
    task.do([3], copies=0)
    task.checkpoints.finish()
    (last,) = task.records
    assert (last.chunk, sorted(task.covered(last)), last.replaces) == (None, [1, 2, 3], (0,))
    assert (last.groups, last.supersedes, last.end) == ((), (), "complete")
    assert Work().plus([last])[0].waiting == ()


def test_rows_that_yield_several_are_covered_once() -> None:
    """The chunk holds more rows than the record covers."""
    task = Task()
    task.do([1, 2], copies=3, seconds=EVERY_S)
    (record,) = task.records
    assert sorted(task.in_chunk(record)) == [1, 1, 1, 2, 2, 2]
    assert task.covered(record) == [1, 2]


def test_a_record_adds_up_what_it_covers() -> None:
    """The driver later compares rows, hash sums, span, size of the keys and cost."""
    task = Task()
    task.do([1, 2], seconds=2.5)
    task.do([5], seconds=EVERY_S)
    (record,) = task.records
    task.do([6], seconds=0.5)
    task.checkpoints.finish()
    (last,) = task.records
    low, high = hash_sums(key_hashes([pa.array([1, 2, 5])]))
    assert (record.coverage.rows, record.coverage.low, record.coverage.high) == (3, low, high)
    assert record.coverage.keys_bytes == task.storage.size(task.ledger.layout.keys(record.name))
    assert (record.coverage.span, last.coverage.span) == ((1, 5), (1, 6))
    assert (record.seconds, last.seconds) == (EVERY_S + 2.5, EVERY_S + 3)
    low, high = hash_sums(key_hashes([pa.array([1, 2, 5, 6])]))
    assert (last.coverage.rows, last.coverage.low, last.coverage.high) == (4, low, high)
    assert last.coverage.keys_bytes == task.storage.size(task.ledger.layout.keys(last.name))


def test_without_checkpoints_only_cuts_are_written() -> None:
    """However long a task takes, nothing is kept twice."""
    task = Task(every_s=None, full_rows=2)
    for number in range(5):
        task.do([number], seconds=1e6)
    task.checkpoints.finish()
    assert [len(record.groups) for record in task.records] == [1, 1, 1]
    assert [record for record in task.records if record.chunk] == []
    assert task.check_each_row_once() == [0, 1, 2, 3, 4]


def test_fast_rows_are_cut_when_a_checkpoint_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that the buffer let go are only in the table files, which also hold earlier chunks."""
    task = Task()
    task.do([1], seconds=EVERY_S)
    monkeypatch.setattr(checkpoints, "_KEPT_BYTES_MAX", 1)
    monkeypatch.setattr(checkpoints, "_WORTH_A_CUT_BYTES", 1)
    task.do([2], seconds=1)
    task.do([3], seconds=EVERY_S)
    (cut,) = task.records
    assert (cut.chunk, cut.replaces, cut.end) == (None, (0,), "")
    assert (task.in_files(cut), sorted(task.covered(cut))) == ([1, 2, 3], [1, 2, 3])


def test_a_batch_that_fails_before_it_has_output_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The table files hold only rows of the batches before it, however many: they are named."""
    task = Task()
    monkeypatch.setattr(checkpoints, "_KEPT_BYTES_MAX", 1)
    monkeypatch.setattr(checkpoints, "_WORTH_A_CUT_BYTES", 1)
    task.do([1])
    task.do([2])
    task.checkpoints.stop_at_failed_batch()
    (record,) = task.records
    assert (task.in_files(record), sorted(task.covered(record))) == ([1, 2], [1, 2])
    assert (record.chunk, record.end, task.writer.abandons) == (None, "stopped", 0)


def test_a_failing_batch_keeps_the_batches_before_it_in_a_chunk() -> None:
    """Table files also hold rows of the failed batch, so they are abandoned."""
    task = Task()
    task.do([1])
    task.do([2])
    task.hold([3])
    task.checkpoints.stop_at_failed_batch()
    (record,) = task.records
    assert (task.in_chunk(record), task.covered(record), record.end) == ([1, 2], [1, 2], "stopped")
    assert (record.groups, task.spec.files, task.writer.abandons) == ((), {}, 1)


def test_a_failing_batch_leaves_earlier_chunks_waiting() -> None:
    """The files that would have superseded them are gone; they are replayed later."""
    task = Task()
    task.do([1], seconds=EVERY_S)
    task.do([2])
    task.hold([3])
    task.checkpoints.stop_at_failed_batch()
    assert [record.supersedes for record in task.records] == [(), ()]
    assert task.check_each_row_once() == [1, 2]


def test_a_failing_batch_after_rows_that_were_let_go_covers_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those rows are only in the abandoned files: they must be computed again."""
    task = Task()
    monkeypatch.setattr(checkpoints, "_KEPT_BYTES_MAX", 1)
    monkeypatch.setattr(checkpoints, "_WORTH_A_CUT_BYTES", 1)
    task.do([1])
    task.hold([2])
    task.checkpoints.stop_at_failed_batch()
    (record,) = task.records
    assert (record.coverage.rows, record.chunk, record.groups, record.end) == (
        0,
        None,
        (),
        "stopped",
    )
    assert [sink.end for sink in task.storage.sinks if sink.uri.endswith(".keys")] == []


@pytest.mark.parametrize(("full_rows", "seconds"), [(1, 1.0), (100, EVERY_S)])
def test_a_fenced_task_stops_at_its_next_checkpoint(full_rows: int, seconds: float) -> None:
    """What it writes no longer counts, so it writes nothing and pays no more."""
    task = Task(full_rows=full_rows)
    task.storage.fence()
    before = dict(task.storage.objects)
    with pytest.raises(TaskFencedError):
        task.do([1], seconds=seconds)
    task.checkpoints.fail()
    assert task.storage.objects == before
    assert (task.spec.files, task.writer.abandons) == ({}, 1)


def test_a_task_that_cannot_go_on_abandons_what_is_not_durable() -> None:
    """Its log says that there is nothing more to wait for."""
    task = Task()
    task.do([1], seconds=EVERY_S)
    task.do([2])
    task.checkpoints.fail()
    first, last = task.records
    assert task.in_chunk(first) == [1]
    assert (last.coverage.rows, last.chunk, last.groups, last.end) == (0, None, (), "failed")
    assert task.writer.abandons == 1
    assert task.check_each_row_once() == [1]


def test_what_a_failed_task_has_paid_since_its_last_record_is_lost() -> None:
    """Those batches are paid for again: the bill of the run names what they cost the first time."""
    task = Task()
    task.do([1], seconds=EVERY_S, cost=2.0)
    task.do([2], cost=3.0)
    task.spent += 0.5  # For an answer that no batch got.
    task.checkpoints.fail()
    first, last = task.records
    assert (first.cost, first.lost_cost) == (2.0, 0.0)
    assert (last.cost, last.lost_cost) == (0.0, 3.5)


def test_a_task_that_fails_without_durable_work_leaves_no_log() -> None:
    """The next attempt must do the work, not wait for it."""
    task = Task()
    task.do([1])
    task.checkpoints.fail()
    assert task.storage.objects == {}


@pytest.mark.parametrize(
    ("writes", "durable"), list(enumerate([0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 4]))
)
def test_after_a_kill_at_any_write_the_log_covers_what_is_stored(writes: int, durable: int) -> None:
    """Between chunk, keys and record, or files, keys and record, only the record decides."""
    task = Task(full_rows=3)
    task.storage.writes_left = writes

    def work() -> None:
        for number, seconds in enumerate([EVERY_S, EVERY_S, 1.0, EVERY_S]):
            task.do([number], seconds=seconds)
        task.checkpoints.finish()

    with pytest.raises(DriverDiedError):
        work()
    task.storage.revive()
    assert task.check_each_row_once() == list(range(durable))


@pytest.mark.parametrize("fault", [CreateFault.LANDS_AND_FAILS, CreateFault.LANDS_AND_IS_THERE])
def test_a_record_that_landed_without_an_answer_counts(fault: CreateFault) -> None:
    """The task goes on with the next number."""
    task = Task()
    task.storage.create_faults.append(fault)
    task.do([1], seconds=EVERY_S)
    task.do([2])
    task.checkpoints.finish()
    assert [(record.number, record.end) for record in task.records] == [(1, "complete")]
    assert task.check_each_row_once() == [1, 2]


@pytest.mark.parametrize(
    ("failing", "error"), [("put", StorageError), ("size", StoreUnavailableError)]
)
def test_a_transient_store_failure_loses_no_durable_row(
    failing: str, error: type[Exception]
) -> None:
    """The attempt fails, and its log says so; earlier records stay."""
    task = Task()
    task.do([1], seconds=EVERY_S)
    task.storage.failures[failing] = 1
    with pytest.raises(error):
        task.do([2], seconds=EVERY_S)
    task.checkpoints.fail()
    assert [record.end for record in task.records] == ["", "failed"]
    assert task.check_each_row_once() == [1]


@pytest.mark.parametrize("only_earlier", [False, True])
def test_a_task_yields_to_a_twin_that_it_sees_at_its_first_checkpoint(
    *, only_earlier: bool
) -> None:
    """Both started before either had a record: only one goes on and pays."""
    asked: list[bool] = []

    def twin(earlier: bool, /) -> bool:  # noqa: FBT001 - a Callable has no keywords.
        asked.append(earlier)
        return earlier is only_earlier

    task = Task(twin=twin)
    with pytest.raises(TaskYieldsError):
        task.do([1, 2], seconds=EVERY_S)
    assert asked == [False, True][: 1 + only_earlier]
    assert len(task.records) == only_earlier


def test_a_task_that_has_a_record_looks_for_no_twin() -> None:
    """There are two listings per task, not per checkpoint."""
    asked: list[bool] = []

    def twin(earlier: bool, /) -> bool:  # noqa: FBT001 - a Callable has no keywords.
        asked.append(earlier)
        return False

    task = Task(twin=twin)
    for _ in range(3):
        task.do([1], seconds=EVERY_S)
    assert asked == [False, True]
