"""Whole tasks with a row function: what is reported when some or all rows fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from holdfast import per_row, per_worker
from holdfast.errors import SchemaMismatchError, TransformError
from holdfast.model.work import Work
from holdfast.worker import row_steps, transforms
from holdfast.worker.transforms import PerRow
from tests.fakes.rig import Rig, two_partitions
from tests.fakes.row_functions import (
    DUE_AT_ONCE_S,
    NEVER_DUE_S,
    QUICK,
    Row,
    RowFunction,
    batch,
    run_task,
    until,
)
from tests.fakes.task_ledgers import ListWriterSpec, WatchedStorage, job_ledger, logged

TABLE = pa.schema([("id", pa.int64())])


@pytest.fixture
def storage() -> Iterator[WatchedStorage]:
    """Return an empty store; forget what was built for the test."""
    yield WatchedStorage()
    transforms._BUILT.clear()  # noqa: SLF001 - a test must not find clients of another.


def rows_with(function: Callable[[Row], Any], **options: Any) -> PerRow:  # noqa: ANN401
    """Return a transform of quick calls."""
    return per_row(function, **{"retry": QUICK, "concurrency": 3, **options})


def test_rows_go_through_the_function_into_the_table(storage: WatchedStorage) -> None:
    """All rows are written, in order, under one record."""
    spec, function = ListWriterSpec(TABLE), RowFunction()
    function.returns = {2: {"id": 200}}
    report = run_task(
        storage,
        batch(range(3)),
        batch([3]),
        transform=rows_with(function),
        writer=spec,
        batch_rows=None,
    )
    (record,) = logged(job_ledger(storage))
    assert [row["id"] for row in spec.rows_in(record)] == [0, 1, 200, 3]
    assert (record.end, record.coverage.rows, report.rows_in) == ("complete", 4, 4)


def test_without_one_to_one_a_row_may_become_none_or_many(storage: WatchedStorage) -> None:
    """Its input row is covered."""
    spec, function = ListWriterSpec(TABLE), RowFunction()
    function.returns = {0: None, 1: [{"id": 10}, {"id": 11}], 2: []}
    options = {"writer": spec, "batch_rows": None, "one_to_one": False}
    run_task(storage, batch(range(4)), transform=rows_with(function), **options)
    (record,) = logged(job_ledger(storage))
    assert [row["id"] for row in spec.rows_in(record)] == [10, 11, 3]
    assert record.coverage.rows == 4


@pytest.mark.parametrize("every_s", [NEVER_DUE_S, DUE_AT_ONCE_S])
def test_a_failing_row_that_is_raised_keeps_those_that_are_done(
    storage: WatchedStorage, every_s: float
) -> None:
    """It stays in the input, uncovered; calls under way are finished."""
    function = RowFunction()
    function.fails_at[1] = ValueError("row 1 is bad")
    function.seconds = {5: 0.05}
    transform = rows_with(function, concurrency=6)
    options = {"batch_rows": None, "on_error": "raise", "checkpoint_every_s": every_s}
    report = run_task(storage, batch(range(6)), transform=transform, **options)
    assert (report.end, report.failed_rows, report.rows_in) == ("stopped", 0, 6)
    assert report.problem is not None
    assert report.problem.facts["error"] == "ValueError: row 1 is bad"
    assert "keys (id=1) to (id=1)" in report.failed_example
    work, _ = Work().plus(logged(job_ledger(storage)))
    assert (work.sums.rows, work.quarantined_rows, work.records[-1].end) == (5, 0, "stopped")


def test_a_fenced_task_cancels_its_calls_and_keeps_none_of_their_results(
    storage: WatchedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has moved on: no call may go on in a worker that Spark uses again."""
    monkeypatch.setattr(row_steps, "_LOOK_EVERY_S", 0.01)
    function = RowFunction()
    function.seconds = {0: 60.0, 1: 60.0}

    async def fences(row: Row) -> Any:  # noqa: ANN401 - the row.
        if row["id"] == 3:
            storage.fence()
        return await function(row)

    report = run_task(storage, batch(range(50)), transform=rows_with(fences), batch_rows=None)
    assert (report.end, logged(job_ledger(storage))) == ("fenced", [])
    until(lambda: sorted(function.cancelled)[:2] == [0, 1])


def test_a_task_without_rows_builds_nothing(storage: WatchedStorage) -> None:
    """No client is built for an empty partition."""

    def never() -> Callable[[Row], Row]:
        raise AssertionError("built")

    report = run_task(storage, batch([]), transform=per_row(per_worker(never)), batch_rows=None)
    assert (report.end, report.rows_in, storage.objects) == ("complete", 0, {})


def test_the_example_says_where_in_the_task_the_row_was(storage: WatchedStorage) -> None:
    """Users count rows from there."""
    function = RowFunction()
    function.fails_at[1] = ValueError("row 1 is bad")
    report = run_task(storage, batch(range(6)), transform=rows_with(function), batch_rows=None)
    assert "rows 1 to 1 of the task" in report.failed_example


def test_a_column_that_the_table_does_not_have_is_reported_and_not_paid_for_again() -> None:
    """A retry would not help."""
    rig, function = Rig(), RowFunction()
    function.returns = {number: {"id": number, "stranger": 1} for number in range(20)}
    with pytest.raises(SchemaMismatchError, match="stranger"):
        rig.start(two_partitions(), transform=rows_with(function))
    assert len(function.ids) < 10  # The rows at work in one task; none of the other.


def test_a_client_that_cannot_be_built_is_reported_as_the_transforms_failure() -> None:
    """The same factory fails with TransformError in a transform of batches too."""

    class NoKeyError(Exception):
        """The client has no credentials."""

    def fails() -> Callable[[Row], Row]:
        raise NoKeyError("no API key")

    with pytest.raises(TransformError, match="no API key"):
        Rig().start(two_partitions(), transform=per_worker(fails), retries=0)
    with pytest.raises(TransformError, match="no API key"):
        Rig().start(two_partitions(), transform=per_row(per_worker(fails)), retries=0)


def test_a_row_that_python_cannot_hold_fails_alone(storage: WatchedStorage) -> None:
    """Spark has dates after the year 9999: such a row is not called, and all others are."""
    days = pa.array([0, 2_932_897, 1], pa.int32()).view(pa.date32())
    rows = pa.RecordBatch.from_arrays([pa.array([0, 1, 2]), days], names=["id", "day"])
    spec, seen = ListWriterSpec(TABLE), list[int]()

    async def note(row: Row) -> Row:
        seen.append(row["id"])
        return {"id": row["id"]}

    report = run_task(storage, rows, transform=rows_with(note), writer=spec, batch_rows=None)
    assert (report.end, report.rows_in, report.failed_rows) == ("complete", 3, 1)
    assert "OverflowError" in report.failed_example
    assert "keys (id=1) to (id=1)" in report.failed_example
    assert sorted(seen) == [0, 2]
