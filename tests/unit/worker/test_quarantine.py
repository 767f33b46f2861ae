"""Quarantine records: failed rows are recorded separately, and after a kill are only retried."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from holdfast import per_row
from holdfast.engine.watch import quarantine_chunks
from holdfast.errors import HoldfastError, SchemaMismatchError, TransformError
from holdfast.ledger.row_files import read_chunk, read_keys
from holdfast.ledger.task_log import read_task_records
from holdfast.model.work import TaskRecord, Work
from holdfast.sources.base import TAG_COLUMN
from holdfast.worker import quarantine as quarantine_module
from holdfast.worker.batch_steps import FailedRow, Step
from holdfast.worker.checkpoints import Checkpoints, TaskFencedError
from holdfast.worker.coverage import hash_sums, key_hashes
from tests.fakes.broken_texts import texts
from tests.fakes.iceberg_tables import Lake, new_table
from tests.fakes.memory_storage import DriverDiedError
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.rig import LAYOUT, STORE, Rig
from tests.fakes.row_functions import DUE_AT_ONCE_S, QUICK, RowFunction, batch, run_task
from tests.fakes.task_ledgers import (
    CLAIM,
    ListWriterSpec,
    ManualClock,
    WatchedStorage,
    job_ledger,
    logged,
    task_log,
)

EVERY_S = 30.0
TABLE = pa.schema([("id", pa.int64())])
LEDGERS = Path(__file__).parents[2] / "ledgers" / "0.1"


@dataclass
class Task:
    """One task attempt whose input is numbers, some of which fail."""

    storage: WatchedStorage = field(default_factory=WatchedStorage)
    clock: ManualClock = field(default_factory=ManualClock)
    full_rows: int = 1_000_000

    def __post_init__(self) -> None:
        """Start the attempt."""
        self.ledger = job_ledger(self.storage)
        self.spec = ListWriterSpec(TABLE, full_rows=self.full_rows)
        self.checkpoints = Checkpoints(
            ledger=self.ledger,
            log=task_log(self.ledger),
            writer=self.spec.open("task"),
            key=("id",),
            every_s=EVERY_S,
            clock=self.clock,
        )

    def do(
        self,
        done: Sequence[int],
        failed: Iterable[int] = (),
        *,
        seconds: float = 1.0,
        cost: float = 0.0,
    ) -> None:
        """Take one step, which takes this long."""
        if done:
            self.checkpoints.hold(batch(done))
        self.clock.now_s += seconds
        step = Step(rows=batch(done), tags=None, outputs=(), began=0.0, seconds=seconds)
        step.rows = step.rows.cast(TABLE)
        step.failed, step.cost = [failure(number) for number in failed], cost
        self.checkpoints.cover(step)

    @property
    def records(self) -> list[TaskRecord]:
        """The records in the log."""
        return logged(self.ledger)

    def covered(self, record: TaskRecord) -> list[int]:
        """Return the input rows whose keys a record has written down."""
        if not record.coverage.rows:
            return []
        uri = self.ledger.layout.keys(record.name)
        return [i for keys in read_keys(self.storage, uri, TABLE) for i in keys["id"].to_pylist()]

    def set_aside(self, record: TaskRecord) -> list[dict[str, Any]]:
        """Return the rows of a record's quarantine."""
        return quarantined(self.storage, record)

    def shape(self) -> list[tuple[list[int], list[int], str]]:
        """Return for each record which rows are done, which have failed, and its end."""
        return [
            ([], self.covered(record), record.end)
            if record.quarantine
            else (self.covered(record), [], record.end)
            for record in self.records
        ]


def failure(number: int, error: Exception | None = None) -> FailedRow:
    """Return a row that failed at its third call."""
    found = error or ValueError(f"row {number} is bad")
    return FailedRow(row=batch([number]), tags=None, error=found, attempts=3)


def quarantined(storage: WatchedStorage, record: TaskRecord) -> list[dict[str, Any]]:
    """Return the rows of a record's quarantine, as the driver reads them."""
    assert record.quarantine is not None
    uri = job_ledger(storage).layout.quarantine(record.name)
    rows = [
        row for failed in read_chunk(storage, uri, record.quarantine) for row in failed.to_pylist()
    ]
    assert len(rows) == record.coverage.rows == record.quarantine.rows
    return rows


def test_failed_rows_have_a_record_of_their_own_after_that_of_the_rest() -> None:
    """That record has its own keys and sums; only the last of the two ends the log."""
    task = Task()
    task.do([1, 3], [2, 5])
    task.do([4])
    assert task.records == []
    task.checkpoints.finish()
    done, failed = task.records
    assert task.shape() == [([1, 3, 4], [], ""), ([], [2, 5], "complete")]
    assert (done.quarantine, failed.groups, failed.chunk) == (None, (), None)
    low, high = hash_sums(key_hashes([pa.array([2, 5])]))
    assert (failed.coverage.low, failed.coverage.high) == (low, high)
    assert (failed.seconds, done.seconds) == (0.0, 2.0)


def test_files_are_named_even_if_only_failed_rows_came_after_their_chunk() -> None:
    """Otherwise nothing would name the files, and a replay would write the chunk into others."""
    task = Task()
    task.do([1], seconds=EVERY_S)
    task.do([], [2])
    task.checkpoints.finish()
    cut, failed = task.records
    assert (cut.replaces, len(cut.groups)) == ((0,), 1)
    assert (failed.quarantine is not None, failed.end) == (True, "complete")


def test_files_are_named_even_if_no_row_is_done() -> None:
    """Whatever a task has put into files is in a record, or a sweep would not find them."""
    task = Task()
    task.checkpoints.hold(batch([1]))
    task.do([], [2])
    task.checkpoints.finish()
    cut, failed = task.records
    assert (len(cut.groups), cut.coverage.rows) == (1, 0)
    assert (failed.quarantine is not None, failed.end) == (True, "complete")


def test_rows_without_output_are_covered_alongside_failed_ones() -> None:
    """They are in no file and no quarantine: only their keys show that they are done."""
    task = Task()
    step = Step(rows=batch([1]), tags=None, outputs=(), began=0.0, seconds=1.0)
    step.failed = [failure(2)]
    task.checkpoints.cover(step)
    task.checkpoints.finish()
    assert task.shape() == [([1], [], ""), ([], [2], "complete")]


def test_a_failed_row_is_kept_with_all_facts_about_it() -> None:
    """This is its key, itself, its error, the number of attempts, and the claim."""
    task = Task()
    task.do([1], [2])
    task.checkpoints.finish()
    assert task.set_aside(task.records[-1]) == [
        {
            "key": {"id": 2},
            "input": {"id": 2},
            "error": "ValueError: row 2 is bad",
            "attempts": 3,
            "epoch": CLAIM,
        }
    ]


def test_all_rows_together_are_the_input() -> None:
    """Failed rows are covered too: nothing is missing, and nothing is duplicated."""
    task = Task()
    task.do([1, 3], [2], seconds=EVERY_S)
    task.do([5], [4])
    task.checkpoints.finish()
    work, refused = Work().plus(task.records)
    low, high = hash_sums(key_hashes([pa.array([1, 2, 3, 4, 5])]))
    assert (work.sums.rows, work.sums.low, work.sums.high, refused) == (5, low, high, ())
    assert work.quarantined_rows == 2


def test_at_a_checkpoint_both_become_durable() -> None:
    """Finished rows become a chunk, then the failed ones follow; a cut replaces only the first."""
    task = Task()
    task.do([1], [2], seconds=EVERY_S)
    task.do([3], [4], seconds=EVERY_S)
    task.checkpoints.finish()
    assert task.shape() == [([], [2], ""), ([], [4], ""), ([1, 3], [], "complete")]
    last = task.records[-1]
    assert (last.replaces, last.beside) == ((0, 2), (1, 3))
    work, _ = Work().plus(task.records)
    assert (work.waiting, work.quarantined_rows) == ((), 2)


def test_a_checkpoint_with_failed_rows_only_is_one_record() -> None:
    """There is nothing else to record."""
    task = Task()
    task.do([], [1, 2], seconds=EVERY_S)
    task.do([], [3])
    task.checkpoints.finish()
    assert task.shape() == [([], [1, 2], ""), ([], [3], "complete")]


def test_a_task_that_stops_keeps_both() -> None:
    """The last record says that there is nothing to wait for."""
    task = Task()
    task.do([1], [2])
    task.checkpoints.stop()
    assert task.shape() == [([1], [], ""), ([], [2], "stopped")]


def test_a_task_without_any_row_leaves_no_record_when_it_stops() -> None:
    """This is the same as for a task without input."""
    task = Task()
    task.checkpoints.stop()
    assert task.storage.objects == {}


def test_a_task_that_fails_leaves_its_failed_rows_to_the_next_attempt() -> None:
    """All that is not durable is done again, including the failing rows."""
    task = Task()
    task.do([1], [2], seconds=EVERY_S)
    task.do([3], [4])
    task.checkpoints.fail()
    assert task.shape() == [([1], [], ""), ([], [2], ""), ([], [], "failed")]


def test_a_fenced_task_writes_no_failed_rows() -> None:
    """The run has moved on without it."""
    task = Task()
    task.storage.fence()
    with pytest.raises(TaskFencedError):
        task.do([1], [2], seconds=EVERY_S)
    assert task.records == []


def test_many_failed_rows_are_written_before_a_checkpoint_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Failed rows wait in memory, and a thousand documents may be large."""
    monkeypatch.setattr(quarantine_module, "_HELD_BYTES_MAX", 3 * 8)
    task = Task()
    task.do([1], [2, 3])
    assert task.records == []
    task.do([], [4])
    task.do([], [5])
    assert task.shape() == [([1], [], ""), ([], [2, 3, 4], "")]
    assert task.checkpoints.failed_rows == 4


def test_a_kill_between_the_two_records_only_tries_failed_rows_again() -> None:
    """Whichever write is last, finished rows stay done, and no row is covered twice."""
    dry = Task()
    dry.do([1, 3], [2], seconds=EVERY_S)
    written = dry.storage.written
    last = next(n for n, uri in enumerate(written) if uri.endswith("/0000.json")) + 1
    assert [uri.rsplit(".", 1)[1] for uri in written[last:]] == ["failed", "keys", "json"]
    for writes in range(last, len(written)):
        task = Task()
        task.storage.writes_left = writes
        with pytest.raises(DriverDiedError):
            task.do([1, 3], [2], seconds=EVERY_S)
        task.storage.revive()
        assert task.shape() == [([1, 3], [], "")]


def test_keys_that_spark_hashes_are_covered_by_its_hash() -> None:
    """This holds for failed rows too, and the quarantine file does not hold the hash."""
    storage = WatchedStorage()
    hashes = pa.array([-1, (5 << 32) + 7, 9], pa.int64())
    rows = pa.RecordBatch.from_pydict({"name": ["a", "b", "c"], TAG_COLUMN: hashes})

    def fails_at_b(one: pa.RecordBatch) -> dict[str, pa.Array]:
        if "b" in one["name"].to_pylist():
            raise ValueError("b is bad")
        return {"id": pa.array([1] * one.num_rows)}

    run_task(storage, rows, transform=fails_at_b, key=("name",))
    done, failed = logged(job_ledger(storage))
    assert (done.coverage.low, done.coverage.high) == (0xFFFFFFFF + 9, 0xFFFFFFFF)
    assert (failed.coverage.low, failed.coverage.high) == (7, 5)
    assert quarantined(storage, failed)[0]["input"] == {"name": "b"}


@pytest.mark.parametrize("every_s", [None, DUE_AT_ONCE_S])
def test_a_task_with_a_row_function_quarantines_its_failed_rows(every_s: float | None) -> None:
    """Their records include the number of calls."""
    storage, function = WatchedStorage(), RowFunction()
    function.fails_at = {2: ConnectionResetError("gone"), 4: ValueError("bad")}
    transform = per_row(function, concurrency=2, retry=QUICK)
    report = run_task(
        storage, batch(range(6)), transform=transform, batch_rows=None, checkpoint_every_s=every_s
    )
    records = logged(job_ledger(storage))
    found = [row for record in records if record.quarantine for row in quarantined(storage, record)]
    assert sorted((row["key"]["id"], row["attempts"]) for row in found) == [(2, 5), (4, 1)]
    assert (report.end, report.failed_rows, report.rows_in) == ("complete", 2, 6)
    assert records[-1].end == "complete"
    assert Work().plus(records)[0].sums.rows == 6


def test_an_error_of_any_length_is_bounded() -> None:
    """A model's error may contain a whole document."""
    task = Task()
    task.checkpoints.count(
        Step(
            rows=batch([]).cast(TABLE),
            tags=None,
            outputs=(),
            began=0.0,
            failed=[failure(1, ValueError("x" * 1_000_000))],
        )
    )
    task.checkpoints.finish()
    assert len(task.set_aside(task.records[0])[0]["error"]) == 2000


def test_an_error_that_is_not_valid_text_is_still_kept() -> None:
    """Errors contain what they were given, such as half a character of a model's answer."""
    storage = WatchedStorage()

    def fails(_rows: pa.RecordBatch) -> None:
        raise ValueError("cannot parse '\ud83d'")

    run_task(storage, batch([1]), transform=fails)
    assert "cannot parse" in quarantined(storage, logged(job_ledger(storage))[0])[0]["error"]


def test_the_cost_of_failed_rows_is_kept_even_if_no_row_is_done() -> None:
    """Answers that do not fit the table were paid for, even if no row is done."""
    task = Task()
    task.do([], [1, 2], cost=3.0)
    task.checkpoints.finish()
    assert sum(record.cost for record in task.records) == 3.0


def test_a_failed_row_without_a_key_is_refused_like_any_other() -> None:
    """Without an input check the task is the first to see it."""
    rows = pa.RecordBatch.from_pydict({"id": pa.array([1, None, 3], pa.int64())})

    def fails(one: pa.RecordBatch) -> pa.RecordBatch:
        if one["id"].null_count:
            raise ValueError("no id")
        return one

    report = run_task(WatchedStorage(), rows, transform=fails)
    assert report.problem is not None
    assert report.problem.kind == "null key"


def test_a_record_is_read_back_with_its_quarantine_and_its_cost() -> None:
    """This holds for seals and for task logs."""
    task = Task()
    task.do([1], [2], cost=0.1)
    task.checkpoints.finish()
    done, failed = task.records
    assert (done.cost, failed.cost, failed.quarantine is not None) == (0.1, 0.0, True)
    assert [TaskRecord.from_json(record.to_json()) for record in (done, failed)] == [done, failed]


@pytest.mark.parametrize("name", ["killed", "sealed", "committed"])
def test_records_of_0_1_have_neither_quarantine_nor_cost(name: str) -> None:
    """They are read as if nothing had failed or cost anything."""
    rig, folder = Rig(), LEDGERS / name
    for file in folder.rglob("*.json"):
        uri = f"{STORE}/{file.relative_to(folder).as_posix()}"
        rig.storage.objects[uri] = file.read_bytes()
    uris = [uri for uri in rig.storage.list(LAYOUT.tasks) if uri.endswith(".json")]
    assert all(b'"cost"' not in rig.storage.objects[uri] for uri in uris)
    records = read_task_records(rig.storage, LAYOUT, uris)
    assert records
    assert {(record.quarantine, record.cost) for record in records} == {(None, 0.0)}
    for seal in rig.log().seals.values():
        assert (seal.quarantined_rows, seal.dropped_cost, seal.killed_seconds) == (0, 0.0, 0.0)


# ---- Texts that are not UTF-8
IN_TEXTS = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))


def in_texts(name: pa.Array) -> MemorySubmitter:
    """Return an input of three rows whose middle name is not UTF-8."""
    return MemorySubmitter(pa.RecordBatch.from_arrays([pa.array([1, 2, 3]), name], ["id", "name"]))


@pytest.mark.parametrize("transform", [None, lambda batch: batch, per_row(lambda row: row)])
def test_a_row_with_a_text_that_is_not_utf_8_is_quarantined(
    tmp_path: Path,
    transform: Any,  # noqa: ANN401 - any transform.
) -> None:
    """The others land, and what is stored of it can be read back."""
    sink, _ = new_table(tmp_path, IN_TEXTS)
    lake, name = Lake(sink), texts(b"a", b"\xc3\x28", b"c")
    report = lake.start(in_texts(name), transform=transform, on_error="quarantine")
    assert (report.quarantined_rows, lake.ids()) == (1, [1, 3])
    ((uri, chunk),) = quarantine_chunks(lake.ledger()).items()
    (found,) = read_chunk(lake.storage, uri, chunk)
    (row,) = found.to_pylist()
    assert (row["key"], row["input"]) == ({"id": 2}, {"id": 2, "name": "\ufffd("})
    assert "UTF-8" in row["error"] or "utf-8" in row["error"]


def test_a_broken_text_changes_no_other_failed_row() -> None:
    """A retry reads the rows as they are stored: a good value must not become NULL."""
    broken, good = texts(b"\xc3\x28"), texts(b"good")
    plain = pa.concat_arrays([good, broken, good])
    lists = pa.ListArray.from_arrays([0, 1, 2, 3], plain)
    inner = pa.StructArray.from_arrays([plain], ["a"])
    rows = pa.RecordBatch.from_arrays([plain, lists, inner], ["plain", "tags", "st"])
    kept = quarantine_module._readable(rows)  # noqa: SLF001 - what a record stores.
    kept.validate(full=True)
    first, second, third = kept.to_pylist()
    assert first == third == {"plain": "good", "tags": ["good"], "st": {"a": "good"}}
    assert second["plain"] == "\ufffd("


@pytest.mark.parametrize(
    ("transform", "expected"),
    [(None, SchemaMismatchError), (per_row(lambda row: row), TransformError)],
)
def test_by_default_a_text_that_is_not_utf_8_ends_the_job(
    tmp_path: Path,
    transform: Any,  # noqa: ANN401 - any transform.
    expected: type[HoldfastError],
) -> None:
    """The error names the keys of the batch, or the row's own, and recommends no retry."""
    sink, _ = new_table(tmp_path, IN_TEXTS)
    with pytest.raises(expected, match=r"(?i)utf-8.*(?:id=1\) to \(id=3|id=2)") as caught:
        Lake(sink).start(in_texts(texts(b"a", b"\xc3\x28", b"c")), transform=transform)
    assert not caught.value.retry_safe


@pytest.mark.parametrize("on_error", ["raise", "quarantine"])
def test_a_key_that_is_not_utf_8_is_refused_by_name(tmp_path: Path, on_error: str) -> None:
    """It could not be read back: without this its own record would be called damaged."""
    schema = Schema(NestedField(1, "id", StringType()), NestedField(2, "n", LongType()))
    keys, numbers = texts(b"a", b"\xc3\x28", b"c"), pa.array([1, 2, 3])
    rows = pa.RecordBatch.from_arrays([keys, numbers], ["id", "n"])
    sink, _ = new_table(tmp_path, schema)
    for _ in range(2):
        with pytest.raises(SchemaMismatchError, match=r"'id' does not fit .* not UTF-8"):
            Lake(sink).start(MemorySubmitter(rows), on_error=on_error)
