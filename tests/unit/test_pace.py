"""Pace: batches grow while they are quick and shrink while they are slow."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.worker.batch_steps import Pace, paced

EVERY_S = 32.0
SLOW_S, JUST_NOT_SLOW_S = 8.1, 8.0
QUICK_S, JUST_NOT_QUICK_S = 1.9, 2.0


def numbers(count: int) -> pa.RecordBatch:
    """Return a batch of the first so many numbers."""
    return pa.RecordBatch.from_pydict({"id": list(range(count))})


def test_the_first_batch_is_small() -> None:
    """Its cost is unknown: at a second a row it must end well before a checkpoint is due."""
    assert Pace(EVERY_S).rows == 8


def test_quick_batches_double_up_to_a_bound() -> None:
    """After some twenty quick batches the transform gets all that Spark hands over at once."""
    pace = Pace(EVERY_S)
    sizes = []
    for _ in range(30):
        sizes.append(pace.rows)
        pace.took(QUICK_S)
    assert sizes[:4] == [8, 16, 32, 64]
    assert sizes[-1] == sizes[-2] == 1 << 20


def test_slow_batches_halve_down_to_one_row() -> None:
    """However slow a row is, a batch has at least one."""
    pace = Pace(EVERY_S)
    sizes = []
    for _ in range(5):
        pace.took(SLOW_S)
        sizes.append(pace.rows)
    assert sizes == [4, 2, 1, 1, 1]


@pytest.mark.parametrize("seconds", [JUST_NOT_SLOW_S, JUST_NOT_QUICK_S])
def test_in_between_the_size_stays(seconds: float) -> None:
    """Between a sixteenth and a quarter of a checkpoint a batch has the right size."""
    pace = Pace(EVERY_S)
    pace.took(seconds)
    assert pace.rows == 8


def test_a_doubled_batch_is_not_slow_at_once() -> None:
    """At a steady cost per row the size settles instead of jumping up and down."""
    pace, sizes = Pace(EVERY_S), []
    for _ in range(20):
        pace.took(pace.rows * 0.1)
        sizes.append(pace.rows)
    assert set(sizes[5:]) == {32}


def test_without_checkpoints_batches_are_left_as_they_come() -> None:
    """Nothing is due, so nothing has to end soon, whatever a batch takes."""
    pace = Pace(None)
    before = pace.rows
    pace.took(1e9)
    assert pace.rows == before
    assert [one.num_rows for one in paced([numbers(20_000)], pace)] == [20_000]


def test_the_size_of_each_piece_is_the_pace_at_that_moment() -> None:
    """What was learned from one piece counts for the next, within the same batch of Spark's."""
    pace, seen = Pace(EVERY_S), []
    for piece in paced([numbers(30), numbers(0), numbers(5)], pace):
        seen.append(piece.column("id").to_pylist())
        pace.took(SLOW_S if len(seen) < 3 else JUST_NOT_SLOW_S)
    assert [len(one) for one in seen[:5]] == [8, 4, 2, 2, 2]
    assert [i for one in seen for i in one] == [*range(30), *range(5)]


def test_a_piece_costs_no_copy() -> None:
    """Pieces share the memory of the batch that they are cut from."""
    batch = numbers(1000)
    pieces = list(paced([batch], Pace(EVERY_S)))
    assert len(pieces) == 125
    assert {address(piece) for piece in pieces} == {address(batch)}


def address(batch: pa.RecordBatch) -> int:
    """Return where the values of a batch's column begin in memory."""
    return int(batch.column("id").buffers()[1].address)
