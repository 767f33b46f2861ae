"""Halving: a batch that fails is cut in halves until the rows at fault stand alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from holdfast.model.work import Work
from holdfast.sources.base import TAG_COLUMN
from holdfast.worker.batch_steps import Pace, Step, apply_to, halving_steps
from tests.fakes.row_functions import batch, run_task
from tests.fakes.task_ledgers import ListWriterSpec, WatchedStorage, job_ledger, logged

TABLE = pa.schema([("id", pa.int64())])


class Poisoned:
    """A transform of batches that fails as a whole when one row of it is bad."""

    def __init__(self, *bad: int, good: Iterable[int] = ()) -> None:
        """Say which rows are bad; or all but the good ones."""
        self._bad, self._good = set(bad), set(good)
        self.sizes: list[int] = []

    def __call__(self, rows: pa.RecordBatch) -> Any:  # noqa: ANN401 - what transforms return.
        """Do the expensive step."""
        self.sizes.append(rows.num_rows)
        ids = set(rows["id"].to_pylist())
        if bad := sorted(ids & self._bad or (ids - self._good if self._good else ())):
            raise ValueError(f"row {bad[0]} is bad")
        return rows


def steps_of(
    transform: Callable[[pa.RecordBatch], Any],
    *batches: pa.RecordBatch,
    batch_rows: int | None = 1024,
    pace: Pace | None = None,
    same: bool = True,
) -> list[Step]:
    """Return all steps."""
    apply = partial(apply_to, transform, same=same)
    return list(halving_steps(batches, apply, batch_rows=batch_rows, pace=pace or Pace(None)))


def in_order(steps: Iterable[Step]) -> list[int]:
    """Return the input rows in the order in which they are covered, failed or not."""
    found: list[int] = []
    for step in steps:
        found += step.rows["id"].to_pylist()
        found += [one.row["id"][0].as_py() for one in step.failed]
    return found


def outputs(steps: Iterable[Step]) -> list[int]:
    """Return the output rows."""
    return [i for step in steps for one in step.outputs for i in one["id"].to_pylist()]


@pytest.mark.parametrize("bad", [0, 511, 700, 1023])
def test_one_bad_row_of_1024_costs_20_further_calls_and_no_other_row(bad: int) -> None:
    """Two for each halving, wherever the row stands; all other rows are written."""
    transform = Poisoned(bad)
    steps = steps_of(transform, batch(range(1024)))
    assert len(transform.sizes) == 1 + 2 * 10
    assert outputs(steps) == [i for i in range(1024) if i != bad]
    (failed,) = [one for step in steps for one in step.failed]
    assert (failed.row.to_pylist(), str(failed.error)) == ([{"id": bad}], f"row {bad} is bad")
    assert failed.attempts == 11


def test_rows_are_covered_in_the_inputs_order() -> None:
    """The first half comes first, at every depth."""
    steps = steps_of(Poisoned(3, 4, 700, 1022), batch(range(1024)))
    assert in_order(steps) == list(range(1024))
    assert outputs(steps) == [i for i in range(1024) if i not in {3, 4, 700, 1022}]


def test_a_batch_that_does_not_fail_is_one_step_and_one_call() -> None:
    """Setting rows aside costs nothing where none is bad."""
    transform = Poisoned(99)
    steps = steps_of(transform, batch(range(8)), batch_rows=4)
    assert (transform.sizes, [step.rows.num_rows for step in steps]) == ([4, 4], [4, 4])


def test_one_row_in_a_batch_of_its_own_is_called_once() -> None:
    """There is nothing to halve."""
    transform = Poisoned(0)
    (step,) = steps_of(transform, batch([0]))
    assert (transform.sizes, step.rows.num_rows, len(step.failed)) == ([1], 0, 1)
    assert step.rows.schema.names == ["id"]


def test_sizes_that_are_no_power_of_two_are_halved_too() -> None:
    """No row is lost between two halves."""
    steps = steps_of(Poisoned(2, 6), batch(range(7)))
    assert in_order(steps) == list(range(7))
    assert outputs(steps) == [0, 1, 3, 4, 5]


def test_output_of_a_half_that_fails_later_is_not_taken() -> None:
    """A generator has handed on some of it by then: it must not be there twice."""

    def generator(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for index in range(rows.num_rows):
            if rows["id"][index].as_py() == 5:
                raise ValueError("row 5 is bad")
            yield rows.slice(index, 1)

    steps = steps_of(generator, batch(range(8)))
    assert (in_order(steps), outputs(steps)) == (list(range(8)), [0, 1, 2, 3, 4, 6, 7])


def test_a_batch_with_too_few_rows_out_is_halved_as_one_that_raises() -> None:
    """The row that makes no output stands alone in the end."""

    def drops_five(rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.filter(pa.array([i != 5 for i in rows["id"].to_pylist()]))

    steps = steps_of(drops_five, batch(range(8)))
    assert outputs(steps) == [0, 1, 2, 3, 4, 6, 7]
    (failed,) = [one for step in steps for one in step.failed]
    assert "it returned 0 rows for a batch of 1" in str(failed.error)
    assert outputs(steps_of(drops_five, batch(range(8)), same=False)) == [0, 1, 2, 3, 4, 6, 7]


def test_sparks_own_hash_is_halved_with_its_rows() -> None:
    """The transform does not see it, and each row keeps its own."""
    hashes = pa.array([10, 20, 30, 40], pa.int64())
    rows = batch([1, 2, 3, 4], **{TAG_COLUMN: hashes})
    steps = steps_of(Poisoned(3), rows)
    whole = [step.tags.to_pylist() for step in steps if step.tags is not None]
    failed = [one.tags.to_pylist() for step in steps for one in step.failed if one.tags]
    assert (whole, failed) == ([[10, 20], [40]], [[30]])


def test_the_pace_learns_from_all_calls_of_a_batch_together() -> None:
    """Halving is slow, and the next batch must still not outlast a checkpoint."""
    took: list[float] = []

    class Watched(Pace):
        def took(self, seconds: float) -> None:
            took.append(seconds)

    def slow_to_fail(rows: pa.RecordBatch) -> pa.RecordBatch:
        if 1 in rows["id"].to_pylist():
            time.sleep(0.01)
            raise ValueError("row 1 is bad")
        return rows

    steps = halving_steps(
        [batch(range(4)), batch(range(4, 8))],
        partial(apply_to, slow_to_fail, same=True),
        batch_rows=4,
        pace=Watched(None),
    )
    for step in steps:
        step.seconds = 10.0
    assert len(took) == 2
    assert took[0] >= 30.03  # Three calls that fail, and three steps: 0, 1, and 2 and 3 together.
    assert took[1] == 10.0


def test_a_task_writes_all_rows_but_the_bad_one() -> None:
    """1,023 of 1,024 are in the table's file, and the last one is accounted for."""
    storage, spec = WatchedStorage(), ListWriterSpec(TABLE)
    report = run_task(storage, batch(range(1024)), transform=Poisoned(77), writer=spec)
    assert (report.end, report.rows_in, report.failed_rows) == ("complete", 1024, 1)
    assert "row 77 is bad" in report.failed_example
    assert "keys (id=77) to (id=77)" in report.failed_example
    assert "rows 77 to 77 of the task" in report.failed_example
    work, _ = Work().plus(logged(job_ledger(storage)))
    (rows,) = spec.files.values()
    assert [row["id"] for row in rows] == [i for i in range(1024) if i != 77]
    assert (work.sums.rows, work.quarantined_rows) == (1024, 1)


def test_a_task_in_which_every_row_is_bad_stops_early() -> None:
    """More calls than the limit needs would be paid for nothing."""
    storage, transform = WatchedStorage(), Poisoned(*range(1024))
    report = run_task(storage, batch(range(1024)), transform=transform, errors_max=3)
    assert (report.end, report.failed_rows, report.rows_in) == ("stopped", 4, 4)
    assert len(transform.sizes) == 15  # 11 to the first row, and 4 to the next three.
    assert report.problem is not None
    assert report.problem.facts["error"] == "ValueError: row 3 is bad"
    assert "row 0 is bad" in report.failed_example
    (one,) = logged(job_ledger(storage))
    assert (one.coverage.rows, one.end, one.groups) == (4, "stopped", ())


def test_as_many_bad_rows_as_there_may_be_do_not_stop_a_task() -> None:
    """The limit itself is allowed."""
    storage, transform = WatchedStorage(), Poisoned(1, 5, 9)
    report = run_task(storage, batch(range(16)), transform=transform, errors_max=3)
    assert (report.end, report.failed_rows, report.problem) == ("complete", 3, None)


def test_without_a_limit_a_task_goes_on_whatever_fails() -> None:
    """Then only the whole tells how many are too many."""
    report = run_task(WatchedStorage(), batch(range(16)), transform=Poisoned(*range(16)))
    assert (report.end, report.failed_rows) == ("complete", 16)


def test_where_failing_rows_are_raised_nothing_is_halved() -> None:
    """One call, and the batch is named."""
    storage, transform = WatchedStorage(), Poisoned(5)
    report = run_task(storage, batch(range(8)), transform=transform, on_error="raise")
    assert (report.end, transform.sizes, report.failed_rows) == ("stopped", [8], 0)


REQUIRED = pa.schema([pa.field("id", pa.int64(), nullable=False)])


def without_id(bad: int, rows: pa.RecordBatch) -> dict[str, list[int | None]]:
    """Return rows of which one lacks what the table requires."""
    return {"id": [None if one == bad else one for one in rows["id"].to_pylist()]}


def test_a_row_that_does_not_fit_the_table_is_that_rows_failure() -> None:
    """Its neighbours are written: the writer's refusal is found before they share a file."""
    storage, spec = WatchedStorage(), ListWriterSpec(REQUIRED)
    transform = partial(without_id, 77)
    report = run_task(storage, batch(range(1024)), transform=transform, writer=spec)
    assert (report.end, report.rows_in, report.failed_rows) == ("complete", 1024, 1)
    assert "ValueMisfitError: column 'id' does not fit t: required, but" in report.failed_example
    assert "keys (id=77) to (id=77)" in report.failed_example
    (rows,) = spec.files.values()
    assert [row["id"] for row in rows] == [i for i in range(1024) if i != 77]


def test_output_that_can_never_fit_is_not_halved() -> None:
    """A column that the table does not have is no row's fault: one call tells."""
    storage, calls = WatchedStorage(), list[int]()

    def stranger(rows: pa.RecordBatch) -> dict[str, Any]:
        calls.append(rows.num_rows)
        return {"id": rows["id"], "stranger": rows["id"]}

    report = run_task(storage, batch(range(64)), transform=stranger, writer=ListWriterSpec(TABLE))
    assert (report.end, report.failed_rows, calls) == ("stopped", 0, [64])
    assert report.problem is not None
    assert (report.problem.kind, report.problem.facts["column"]) == ("schema", "stranger")


def test_a_row_that_does_not_fit_is_named_where_it_ends_the_task() -> None:
    """The error says where to look: the batch's rows and keys."""
    storage, spec = WatchedStorage(), ListWriterSpec(REQUIRED)
    options = {"transform": partial(without_id, 7), "writer": spec, "on_error": "raise"}
    report = run_task(storage, batch(range(8)), **options)
    assert report.problem is not None
    assert report.problem.kind == "schema"
    assert report.problem.facts["problem"] == (
        "required, but NULL in row 7 of a batch (rows 0 to 7 of the task; keys (id=0) to (id=7))"
    )
