"""Resizing random streams: the same rows, at the sizes that were asked for."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from holdfast.worker.batch_steps import resize

_row = st.fixed_dictionaries(
    {
        "text": st.none() | st.text(max_size=3),
        "list": st.none() | st.lists(st.none() | st.integers(-9, 9), max_size=3),
    }
)
_SCHEMA = pa.schema([("text", pa.string()), ("list", pa.list_(pa.int64()))])


@given(
    stream=st.lists(st.lists(_row, max_size=7), max_size=6),
    rows=st.none() | st.integers(1, 9),
    cut=st.integers(0, 2),
)
def test_the_same_rows_come_out(
    stream: list[list[dict[str, Any]]], rows: int | None, cut: int
) -> None:
    """Rows, order and NULLs are kept, also for sliced batches; only the last batch is short."""
    batches = [pa.RecordBatch.from_pylist(part, schema=_SCHEMA).slice(cut) for part in stream]
    out = list(resize(batches, rows))
    assert [row for batch in out for row in batch.to_pylist()] == [
        row for part in stream for row in part[cut:]
    ]
    if rows is not None:
        assert all(batch.num_rows == rows for batch in out[:-1])
        assert all(0 < batch.num_rows <= rows for batch in out)
