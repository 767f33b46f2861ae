"""Resizing: the same rows in the same order, in batches of the size that was asked for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from holdfast.worker.batch_steps import Pace, paced, resize


def batches(*sizes: int) -> list[pa.RecordBatch]:
    """Return batches of the given sizes whose rows count up."""
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
def test_batches_have_the_size_asked_for(
    sizes: tuple[int, ...], rows: int | None, expected: list[int]
) -> None:
    """Only the last one may be smaller; empty ones are left out; None leaves them as they come."""
    out = list(resize(batches(*sizes), rows))
    assert [batch.num_rows for batch in out] == expected
    assert [value for batch in out for value in batch.column(0).to_pylist()] == list(
        range(sum(sizes))
    )


def test_batches_are_taken_as_they_are_needed() -> None:
    """The first full batch is handed on before the rest of the input is read."""
    taken = []

    def source() -> object:
        for batch in batches(2, 2, 2):
            taken.append(batch.num_rows)
            yield batch

    first = next(resize(source(), 2))  # type: ignore[arg-type]
    assert (first.num_rows, taken) == (2, [2])


def texts(*lengths: int) -> pa.RecordBatch:
    """Return one batch whose rows are texts of these lengths."""
    return pa.RecordBatch.from_pydict({"text": ["x" * length for length in lengths]})


@pytest.mark.parametrize("rows", [None, 100])
def test_a_batch_never_holds_more_bytes_than_it_may(rows: int | None) -> None:
    """Rows of very different sizes: large ones come alone, and all come in order."""
    lengths = [10, 20, 990, 5, 5000, 7, 400, 400, 400, 1]
    given = [texts(*lengths[:4]), texts(*lengths[4:])]
    out = list(resize(given, rows, 1000) if rows else paced(given, Pace(None, 1000)))
    found = [len(text) for batch in out for text in batch["text"].to_pylist()]
    assert found == lengths
    assert all(batch.nbytes <= 1000 or batch.num_rows == 1 for batch in out)
    assert len(out) < len(lengths)


def gigantic(size: int) -> pa.RecordBatch:
    """Return one row of `size` zero bytes; the system gives zero pages only when they change."""
    offsets = pa.py_buffer(np.array([0, size], dtype=np.int32))
    data = pa.py_buffer(np.zeros(size, dtype=np.uint8))
    return pa.RecordBatch.from_arrays(
        [pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])], names=["image"]
    )


@pytest.mark.slow_unit
def test_rows_that_do_not_fit_one_array_are_not_lost() -> None:
    """A column of bytes holds 2 GiB; beyond that rows come in more batches, or an error does.

    Images of 1 MB with batch_rows=4096 are enough. The test takes 2.3 GB and three seconds.
    """
    out = resize([gigantic(1_100_000_000), gigantic(1_100_000_000)], 2)
    assert sum(batch.num_rows for batch in out) == 2
