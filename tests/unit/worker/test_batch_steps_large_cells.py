"""Large cells: output is handled in pieces, so that neither memory nor Arrow's offsets run out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import SchemaMismatchError
from holdfast.sinks.conform import Conformer, ValueMisfitError
from holdfast.worker.batch_steps import fitting_to, pieces
from holdfast.worker.checkpoints import Checkpoints
from holdfast.worker.row_steps import as_batch
from holdfast.worker.transforms import TransformOutputError
from tests.fakes.lance_rig import LanceRig
from tests.fakes.memory_writer import MemoryWriter, MemoryWriterSpec
from tests.fakes.task_ledgers import WatchedStorage, job_ledger

MB = 1_000_000
GIB = 2**30
TABLE = pa.schema([("id", pa.int64()), ("b", pa.binary())])


def cells(*sizes_mb: int) -> pa.RecordBatch:
    """Return rows with cells of zeros, which take no memory until they are copied."""
    ends = np.cumsum([0, *sizes_mb], dtype=np.int64) * MB
    zeros = pa.py_buffer(np.zeros(int(ends[-1]), np.uint8))
    buffers = [None, pa.py_buffer(ends), zeros]
    column = pa.Array.from_buffers(pa.large_binary(), len(sizes_mb), buffers)
    return pa.record_batch({"id": pa.array(range(len(sizes_mb))), "b": column})


class CountingWriter(MemoryWriter):
    """A writer that fits rows, records their size and Arrow's memory, and keeps nothing."""

    def __init__(self) -> None:
        """Start without rows."""
        super().__init__(MemoryWriterSpec(TABLE), "task")
        self.sizes: list[int] = []
        self.ids: list[int] = []
        self.allocated = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Count them."""
        self.sizes.append(rows.nbytes)
        self.ids += rows["id"].to_pylist()
        self.allocated = max(self.allocated, pa.total_allocated_bytes())


def checkpoints(writer: MemoryWriter, **options: Any) -> Checkpoints:  # noqa: ANN401
    """Return checkpoints over a writer."""
    ledger = job_ledger(WatchedStorage())
    log = ledger.log(0, 0)
    return Checkpoints(ledger=ledger, log=log, writer=writer, key=["id"], every_s=None, **options)


def test_a_batch_of_more_than_two_gib_is_written_in_pieces_of_bounded_memory() -> None:
    """One column of it has more bytes than an array of the table's type can hold."""
    output, writer = cells(*[100] * 25), CountingWriter()
    assert output.nbytes > 2 * GIB
    before = pa.total_allocated_bytes()
    checkpoints(writer).hold(output)
    assert writer.ids == list(range(25))
    assert len(writer.sizes) == 25
    assert writer.allocated - before < 300 * MB


def test_pieces_have_memory_of_their_own() -> None:
    """A transform may write its next output into the same memory."""
    memory = np.zeros(40, np.uint8)
    offsets = pa.py_buffer(np.arange(0, 41, 10, dtype=np.int32))
    column = pa.Array.from_buffers(pa.binary(), 4, [None, offsets, pa.py_buffer(memory)])
    output = pa.record_batch({"id": pa.array(range(4)), "b": column})
    for batch_bytes in (20, 1000):
        writer = MemoryWriter(MemoryWriterSpec(TABLE), "task")
        memory[:] = 0
        checkpoints(writer, batch_bytes=batch_bytes).hold(output)
        memory[:] = 1
        assert len(writer.batches) == {20: 4, 1000: 1}[batch_bytes]
        assert [row["b"] for rows in writer.batches for row in rows.to_pylist()] == [bytes(10)] * 4


def test_rows_that_may_fail_are_fitted_in_pieces_too() -> None:
    """A batch whose rows are large only together is neither halved nor called again."""
    calls: list[int] = []

    def apply(batch: pa.RecordBatch) -> Any:  # noqa: ANN401 - an iterator.
        calls.append(batch.num_rows)
        yield cells(*[100] * 25)

    def fit(rows: pa.RecordBatch) -> pa.RecordBatch:
        return Conformer("t", rows.schema, TABLE)(rows)

    (output,) = fitting_to(apply, fit, 32 * MB, cells(1))
    assert (output.num_rows, calls) == (25, [1])


@pytest.mark.parametrize(
    ("sizes_mb", "said"),
    [
        ([2200], "a value of 2,200,000,008 bytes; at most 2,147,483,647 can be written at once"),
        ([1200, 1200], "2 values of 2,400,000,016 bytes"),
    ],
)
def test_a_cell_that_no_file_can_hold_is_an_error_that_names_its_size(
    sizes_mb: list[int], said: str
) -> None:
    """Arrow says only that a cast failed. It is that row's fault, and it can be quarantined."""
    rows = cells(*sizes_mb)
    with pytest.raises(ValueMisfitError, match=said) as caught:
        Conformer("t", rows.schema, TABLE)(rows)
    assert caught.value.column == "b"


@pytest.mark.slow_unit
def test_a_cell_that_is_too_large_stops_only_its_batch() -> None:
    """The rows before it are written, and the error names the column."""
    writer = CountingWriter()
    with pytest.raises(SchemaMismatchError, match="a value of 2,200,000,008 bytes"):
        checkpoints(writer).hold(cells(1, 2200, 1))
    assert writer.ids == [0]


X = b"x" * 1000
WORDS = pa.array([X] * 100)
KINDS: dict[str, pa.Array] = {
    "binary": WORDS,
    "large_binary": WORDS.cast(pa.large_binary()),
    "binary_view": WORDS.cast(pa.binary_view()),
    "string_view with NULL": pa.array(["x" * 1000, None] * 50, pa.string_view()),
    "short views": pa.array(["x"] * 99 + ["y" * 5000], pa.string_view()),
    "fixed_size_binary": WORDS.cast(pa.binary(1000)),
    "dictionary": WORDS.dictionary_encode(),
    "dictionary with NULL": pa.array([X, None] * 50).dictionary_encode(),
    "list": pa.array([[X[:500]] * 2] * 100),
    "large_list": pa.array([[X[:500]] * 2] * 100, pa.large_list(pa.binary())),
    "list of views": pa.array([[X], None, []] * 33 + [[X]], pa.list_(pa.binary_view())),
    "vectors": pa.array([[0.5] * 125] * 100, pa.list_(pa.float64(), 125)),
    "struct": pa.array([{"a": X, "n": 1}, None] * 50),
    "struct of dictionary": pa.StructArray.from_arrays([WORDS.dictionary_encode()], ["d"]),
    "map": pa.array([[("k", X)], None] * 50, pa.map_(pa.string(), pa.binary())),
    "numbers": pa.array(range(100)),
    "bool and null": pa.array([True, None] * 50),
    "uuid": pa.array([bytes(16)] * 100, pa.uuid()),
    "json": pa.array([json.dumps("x" * 1000)] * 100, pa.json_()),
    "nothing": pa.nulls(100),
}


@pytest.mark.parametrize("start", [0, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_pieces_are_the_same_rows_and_not_too_large(kind: str, start: int) -> None:
    """This holds for every type, by the size of its written values: views and dictionaries too."""
    column = KINDS[kind].slice(start)
    batch = pa.record_batch({"c": column})
    found = list(pieces(batch, 5000))
    assert [row for piece in found for row in piece.to_pylist()] == batch.to_pylist()
    written = [_written(piece.column(0)) for piece in found]
    assert all(
        size <= 5000 or piece.num_rows == 1 for size, piece in zip(written, found, strict=True)
    )
    if sum(written) > 5000:
        assert len(found) <= 1.5 * sum(written) / 5000 + 3  # Nor much smaller than allowed.
    else:
        assert found == [batch]


def _written(column: pa.Array) -> int:
    """Return the size in bytes of a column's values, without offsets."""
    if "dictionary" in str(column.type) and not pa.types.is_dictionary(column.type):
        return sum(len(row["d"]) for row in column.to_pylist())
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    values = column.to_pylist()
    return sum(map(_size, values))


def _size(value: Any) -> int:  # noqa: ANN401 - any value.
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    return 0 if value is None else int(isinstance(value, float)) * 8


def test_a_small_batch_is_handed_on_unchanged() -> None:
    """It is not even sliced; nor are a few rows of a large one that share its buffers."""
    batch = pa.record_batch({"c": WORDS})
    few = batch.slice(3, 2)
    assert next(pieces(batch, 10**6)) is batch
    assert next(pieces(few, 5000)) is few
    words = pa.record_batch({"c": WORDS.dictionary_encode()})
    assert next(pieces(words, 10**6)) is words
    assert next(pieces(cells(100), MB)).num_rows == 1


def test_values_of_a_dictionary_count_as_often_as_they_occur() -> None:
    """A hundred rows of one large value are large, whatever `nbytes` says."""
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int8()), pa.array([X]))
    batch = pa.record_batch({"c": column})
    assert batch.nbytes < 5000
    assert [piece.num_rows for piece in pieces(batch, 5000)] == [5] * 20


def test_lance_takes_output_larger_than_an_array_in_pieces(tmp_path: Path) -> None:
    """Its writer is used in the same way."""
    rig = LanceRig(str(tmp_path / "t.lance"))
    writer = rig.sink().writer_spec(rig.sink().load()).open("task")
    labels = pa.array(["x" * 100] * 50, pa.large_string())
    output = pa.record_batch({"id": pa.array(range(50)), "label": labels})
    checkpoints(writer, batch_bytes=1000).hold(output)  # type: ignore[arg-type]
    assert sum(file.rows for group in writer.cut() for file in group.files) == 50


def test_answers_that_are_too_large_together_are_not_a_batch() -> None:
    """Arrow makes several arrays of them; each answer alone makes one."""
    made = pa.array
    several = mock.patch.object(pa, "array", lambda *a, **k: pa.chunked_array([made(*a, **k)]))
    with several, pytest.raises(TransformOutputError, match="too many for one array"):
        as_batch([{"id": 1}, {"id": 2}], TABLE)
