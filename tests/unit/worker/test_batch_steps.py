"""Batches: resized, paced, and halved until the failing rows are isolated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.model.work import Work
from holdfast.sources.base import TAG_COLUMN
from holdfast.worker.batch_steps import Pace, Step, apply_to, halving_steps, paced, resize
from tests.fakes.row_functions import batch, run_task
from tests.fakes.task_ledgers import ListWriterSpec, WatchedStorage, job_ledger, logged


# ---- Resizing: the same rows in the same order, in batches of the requested size
def batches(*sizes: int) -> list[pa.RecordBatch]:
    """Return batches of the given sizes with consecutive row numbers."""
    rows, out = 0, []
    for size in sizes:
        out.append(
            pa.RecordBatch.from_pydict({"id": pa.array(range(rows, rows + size), pa.int64())})
        )
        rows += size
    return out


@pytest.mark.parametrize(
    ("sizes", "rows", "expected"),
    [
        ((3, 3, 3), 4, [4, 4, 1]),
        ((10,), 3, [3, 3, 3, 1]),
        ((1, 1, 1), 3, [3]),
        ((0, 2, 0, 2, 0), 2, [2, 2]),
        ((2, 3), 100, [5]),
        ((5,), 1, [1, 1, 1, 1, 1]),
        ((0,), 3, []),
        ((), 3, []),
        ((3, 0, 4), None, [3, 4]),
    ],
)
def test_batches_have_the_requested_size(
    sizes: tuple[int, ...], rows: int | None, expected: list[int]
) -> None:
    """Only the last one may be smaller; empty ones are left out; None leaves them unchanged."""
    out = list(resize(batches(*sizes), rows))
    assert [piece.num_rows for piece in out] == expected
    assert [value for piece in out for value in piece.column(0).to_pylist()] == list(
        range(sum(sizes))
    )


def test_batches_are_taken_as_they_are_needed() -> None:
    """The first full batch is handed on before the rest of the input is read."""
    taken = []

    def source() -> object:
        for piece in batches(2, 2, 2):
            taken.append(piece.num_rows)
            yield piece

    first = next(resize(source(), 2))  # type: ignore[arg-type]
    assert (first.num_rows, taken) == (2, [2])


def texts(*lengths: int) -> pa.RecordBatch:
    """Return one batch whose rows are texts of these lengths."""
    return pa.RecordBatch.from_pydict({"text": ["x" * length for length in lengths]})


@pytest.mark.parametrize("rows", [None, 100])
def test_a_batch_never_exceeds_its_bytes(rows: int | None) -> None:
    """Row sizes differ widely: large rows come alone, and all come in order."""
    lengths = [10, 20, 990, 5, 5000, 7, 400, 400, 400, 1]
    given = [texts(*lengths[:4]), texts(*lengths[4:])]
    out = list(resize(given, rows, 1000) if rows else paced(given, Pace(None, 1000)))
    found = [len(text) for piece in out for text in piece["text"].to_pylist()]
    assert found == lengths
    assert all(piece.nbytes <= 1000 or piece.num_rows == 1 for piece in out)
    assert len(out) < len(lengths)


def gigantic(size: int) -> pa.RecordBatch:
    """Return one row of `size` zero bytes; zero pages take memory only once they change."""
    offsets = pa.py_buffer(np.array([0, size], dtype=np.int32))
    data = pa.py_buffer(np.zeros(size, dtype=np.uint8))
    return pa.RecordBatch.from_arrays(
        [pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])], names=["image"]
    )


@pytest.mark.slow_unit
def test_rows_that_do_not_fit_one_array_are_not_lost() -> None:
    """A column of bytes holds 2 GiB; beyond that there are more batches, or an error.

    Images of 1 MB with batch_rows=4096 are enough. The test takes 2.3 GB and three seconds.
    """
    out = resize([gigantic(1_100_000_000), gigantic(1_100_000_000)], 2)
    assert sum(piece.num_rows for piece in out) == 2


# ---- Pace: batches grow while they are quick and shrink while they are slow
EVERY_S = 32.0
SLOW_S, JUST_NOT_SLOW_S = 8.1, 8.0
QUICK_S, JUST_NOT_QUICK_S = 1.9, 2.0


def numbers(count: int) -> pa.RecordBatch:
    """Return a batch of this many numbers, from 0."""
    return pa.RecordBatch.from_pydict({"id": list(range(count))})


def test_the_first_batch_is_small() -> None:
    """Its cost is unknown: at a second per row it must end well before a checkpoint is due."""
    assert Pace(EVERY_S).rows == 8


def test_quick_batches_double_up_to_a_bound() -> None:
    """After about twenty quick batches the transform gets all that Spark hands over at once."""
    pace = Pace(EVERY_S)
    sizes = []
    for _ in range(30):
        sizes.append(pace.rows)
        pace.took(QUICK_S)
    assert sizes[:4] == [8, 16, 32, 64]
    assert sizes[-1] == sizes[-2] == 1 << 20


def test_slow_batches_halve_down_to_one_row() -> None:
    """However slow the rows are, a batch has at least one."""
    pace = Pace(EVERY_S)
    sizes = []
    for _ in range(5):
        pace.took(SLOW_S)
        sizes.append(pace.rows)
    assert sizes == [4, 2, 1, 1, 1]


@pytest.mark.parametrize("seconds", [JUST_NOT_SLOW_S, JUST_NOT_QUICK_S])
def test_a_batch_of_medium_speed_keeps_the_size(seconds: float) -> None:
    """Between a sixteenth and a quarter of a checkpoint a batch has the right size."""
    pace = Pace(EVERY_S)
    pace.took(seconds)
    assert pace.rows == 8


def test_a_doubled_batch_is_not_slow_at_once() -> None:
    """At a steady cost per row the size settles and does not oscillate."""
    pace, sizes = Pace(EVERY_S), []
    for _ in range(20):
        pace.took(pace.rows * 0.1)
        sizes.append(pace.rows)
    assert set(sizes[5:]) == {32}


def test_without_checkpoints_batches_are_left_unchanged() -> None:
    """No checkpoint is due, so a batch may take any time."""
    pace = Pace(None)
    before = pace.rows
    pace.took(1e9)
    assert pace.rows == before
    assert [piece.num_rows for piece in paced([numbers(20_000)], pace)] == [20_000]


def test_each_piece_has_the_size_of_the_pace_at_that_moment() -> None:
    """The time of one piece sets the size of the next, within the same Spark batch."""
    pace, seen = Pace(EVERY_S), []
    for piece in paced([numbers(30), numbers(0), numbers(5)], pace):
        seen.append(piece.column("id").to_pylist())
        pace.took(SLOW_S if len(seen) < 3 else JUST_NOT_SLOW_S)
    assert [len(piece) for piece in seen[:5]] == [8, 4, 2, 2, 2]
    assert [i for ids in seen for i in ids] == [*range(30), *range(5)]


def test_a_piece_costs_no_copy() -> None:
    """Pieces share the memory of the batch that they are cut from."""
    batch = numbers(1000)
    pieces = list(paced([batch], Pace(EVERY_S)))
    assert len(pieces) == 125
    assert {address(piece) for piece in pieces} == {address(batch)}


def address(batch: pa.RecordBatch) -> int:
    """Return the memory address of a batch's values."""
    return int(batch.column("id").buffers()[1].address)


# ---- Halving: a batch that fails is halved until the failing rows are isolated
TABLE = pa.schema([("id", pa.int64())])


class Poisoned:
    """A transform that fails for a whole batch when one of its rows is bad."""

    def __init__(self, *bad: int, good: Iterable[int] = ()) -> None:
        """Set which rows are bad, or that all but the good ones are."""
        self._bad, self._good = set(bad), set(good)
        self.sizes: list[int] = []

    def __call__(self, rows: pa.RecordBatch) -> Any:  # noqa: ANN401 - what transforms return.
        """Return the rows, or fail."""
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
    one_to_one: bool = True,
) -> list[Step]:
    """Return all steps."""
    apply = partial(apply_to, transform, one_to_one=one_to_one)
    return list(halving_steps(batches, apply, batch_rows=batch_rows, pace=pace or Pace(None)))


def in_order(steps: Iterable[Step]) -> list[int]:
    """Return the input rows in the order in which they are covered, failed or not."""
    found: list[int] = []
    for step in steps:
        found += step.rows["id"].to_pylist()
        found += [failed.row["id"][0].as_py() for failed in step.failed]
    return found


def outputs(steps: Iterable[Step]) -> list[int]:
    """Return the output rows."""
    return [i for step in steps for output in step.outputs for i in output["id"].to_pylist()]


@pytest.mark.parametrize("bad", [0, 511, 700, 1023])
def test_one_bad_row_of_1024_costs_20_further_calls_and_no_other_row(bad: int) -> None:
    """There are two calls per halving, wherever the row is; all other rows are written."""
    transform = Poisoned(bad)
    steps = steps_of(transform, batch(range(1024)))
    assert len(transform.sizes) == 1 + 2 * 10
    assert outputs(steps) == [i for i in range(1024) if i != bad]
    (failed,) = [row for step in steps for row in step.failed]
    assert (failed.row.to_pylist(), str(failed.error)) == ([{"id": bad}], f"row {bad} is bad")
    assert failed.attempts == 11


def test_rows_are_covered_in_the_inputs_order() -> None:
    """At every depth the first half comes first."""
    steps = steps_of(Poisoned(3, 4, 700, 1022), batch(range(1024)))
    assert in_order(steps) == list(range(1024))
    assert outputs(steps) == [i for i in range(1024) if i not in {3, 4, 700, 1022}]


def test_a_batch_that_does_not_fail_is_one_step_and_one_call() -> None:
    """Quarantine costs nothing where no row is bad."""
    transform = Poisoned(99)
    steps = steps_of(transform, batch(range(8)), batch_rows=4)
    assert (transform.sizes, [step.rows.num_rows for step in steps]) == ([4, 4], [4, 4])


def test_a_batch_of_one_row_is_called_once() -> None:
    """There is nothing to halve."""
    transform = Poisoned(0)
    (step,) = steps_of(transform, batch([0]))
    assert (transform.sizes, step.rows.num_rows, len(step.failed)) == ([1], 0, 1)
    assert step.rows.schema.names == ["id"]


def test_sizes_that_are_not_a_power_of_two_are_halved_too() -> None:
    """No row is lost between two halves."""
    steps = steps_of(Poisoned(2, 6), batch(range(7)))
    assert in_order(steps) == list(range(7))
    assert outputs(steps) == [0, 1, 3, 4, 5]


def test_output_of_a_half_that_fails_later_is_discarded() -> None:
    """A generator may already have yielded some of it, which must not be written twice."""

    def generator(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for index in range(rows.num_rows):
            if rows["id"][index].as_py() == 5:
                raise ValueError("row 5 is bad")
            yield rows.slice(index, 1)

    steps = steps_of(generator, batch(range(8)))
    assert (in_order(steps), outputs(steps)) == (list(range(8)), [0, 1, 2, 3, 4, 6, 7])


def test_a_batch_with_too_few_output_rows_is_halved_like_one_that_raises() -> None:
    """The row without output is isolated in the end."""

    def drops_five(rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.filter(pa.array([i != 5 for i in rows["id"].to_pylist()]))

    steps = steps_of(drops_five, batch(range(8)))
    assert outputs(steps) == [0, 1, 2, 3, 4, 6, 7]
    (failed,) = [row for step in steps for row in step.failed]
    assert "it returned 0 rows for a batch of 1" in str(failed.error)
    assert outputs(steps_of(drops_five, batch(range(8)), one_to_one=False)) == [0, 1, 2, 3, 4, 6, 7]


def test_sparks_own_hash_is_halved_with_its_rows() -> None:
    """The transform does not see the hash, and each row keeps its own."""
    hashes = pa.array([10, 20, 30, 40], pa.int64())
    rows = batch([1, 2, 3, 4], **{TAG_COLUMN: hashes})
    steps = steps_of(Poisoned(3), rows)
    whole = [step.tags.to_pylist() for step in steps if step.tags is not None]
    failed = [row.tags.to_pylist() for step in steps for row in step.failed if row.tags]
    assert (whole, failed) == ([[10, 20], [40]], [[30]])


def test_the_pace_learns_from_all_calls_of_a_batch_together() -> None:
    """Halving is slow, but the next batch must still not outlast a checkpoint."""
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
        partial(apply_to, slow_to_fail, one_to_one=True),
        batch_rows=4,
        pace=Watched(None),
    )
    for step in steps:
        step.seconds = 10.0
    assert len(took) == 2
    assert took[0] >= 30.03  # Three failing calls, and three steps: 0, 1, and 2 with 3.
    assert took[1] == 10.0


def test_a_task_writes_all_rows_but_the_bad_one() -> None:
    """1,023 of 1,024 rows are in the table's file, and the other one is accounted for."""
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
    """Calls beyond the limit would be wasted money."""
    storage, transform = WatchedStorage(), Poisoned(*range(1024))
    report = run_task(storage, batch(range(1024)), transform=transform, errors_max=3)
    assert (report.end, report.failed_rows, report.rows_in) == ("stopped", 4, 4)
    assert len(transform.sizes) == 15  # 11 calls to the first row, and 4 to the next three.
    assert report.problem is not None
    assert report.problem.facts["error"] == "ValueError: row 3 is bad"
    assert "row 0 is bad" in report.failed_example
    (record,) = logged(job_ledger(storage))
    assert (record.coverage.rows, record.end, record.groups) == (4, "stopped", ())


def test_as_many_bad_rows_as_allowed_do_not_stop_a_task() -> None:
    """The limit itself is allowed."""
    storage, transform = WatchedStorage(), Poisoned(1, 5, 9)
    report = run_task(storage, batch(range(16)), transform=transform, errors_max=3)
    assert (report.end, report.failed_rows, report.problem) == ("complete", 3, None)


def test_without_a_limit_a_task_goes_on_however_many_rows_fail() -> None:
    """Only the driver then knows whether there are too many."""
    report = run_task(WatchedStorage(), batch(range(16)), transform=Poisoned(*range(16)))
    assert (report.end, report.failed_rows) == ("complete", 16)


def test_with_on_error_raise_nothing_is_halved() -> None:
    """There is one call, and the error names the batch."""
    storage, transform = WatchedStorage(), Poisoned(5)
    report = run_task(storage, batch(range(8)), transform=transform, on_error="raise")
    assert (report.end, transform.sizes, report.failed_rows) == ("stopped", [8], 0)


REQUIRED = pa.schema([pa.field("id", pa.int64(), nullable=False)])


def without_id(bad: int, rows: pa.RecordBatch) -> dict[str, list[int | None]]:
    """Return rows, one of which lacks a required value."""
    return {"id": [None if number == bad else number for number in rows["id"].to_pylist()]}


def test_a_row_that_does_not_fit_the_table_fails_alone() -> None:
    """Other rows are written: the misfit is found before they share a file."""
    storage, spec = WatchedStorage(), ListWriterSpec(REQUIRED)
    transform = partial(without_id, 77)
    report = run_task(storage, batch(range(1024)), transform=transform, writer=spec)
    assert (report.end, report.rows_in, report.failed_rows) == ("complete", 1024, 1)
    assert "ValueMisfitError: column 'id' does not fit t: required, but" in report.failed_example
    assert "keys (id=77) to (id=77)" in report.failed_example
    (rows,) = spec.files.values()
    assert [row["id"] for row in rows] == [i for i in range(1024) if i != 77]


def test_output_that_can_never_fit_is_not_halved() -> None:
    """A column that the table does not have is not a row's fault: one call is enough."""
    storage, calls = WatchedStorage(), list[int]()

    def stranger(rows: pa.RecordBatch) -> dict[str, Any]:
        calls.append(rows.num_rows)
        return {"id": rows["id"], "stranger": rows["id"]}

    report = run_task(storage, batch(range(64)), transform=stranger, writer=ListWriterSpec(TABLE))
    assert (report.end, report.failed_rows, calls) == ("stopped", 0, [64])
    assert report.problem is not None
    assert (report.problem.kind, report.problem.facts["column"]) == ("schema", "stranger")


def test_a_row_that_does_not_fit_is_named_where_it_ends_the_task() -> None:
    """The error names the batch's rows and keys."""
    storage, spec = WatchedStorage(), ListWriterSpec(REQUIRED)
    options = {"transform": partial(without_id, 7), "writer": spec, "on_error": "raise"}
    report = run_task(storage, batch(range(8)), **options)
    assert report.problem is not None
    assert report.problem.kind == "schema"
    assert report.problem.facts["problem"] == (
        "required, but NULL in row 7 of a batch (rows 0 to 7 of the task; keys (id=0) to (id=7))"
    )
