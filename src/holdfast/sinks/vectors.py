"""Vectors: lists of one length, as embeddings are. Spark hands out lists of any length."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def refuse_other_lengths(lists: pa.Array, size: int) -> None:
    """Stop at a list that is no vector of the wanted length.

    Raises:
        ValueError: There is one.
    """
    lengths = pc.list_value_length(lists)
    other = pc.fill_null(pc.not_equal(lengths, size), fill_value=False)
    if pc.any(other).as_py():
        row = pc.index(other, value=True).as_py()
        raise ValueError(f"{lengths[row]} elements instead of {size} in row {row} of a batch")


def vectors(lists: pa.Array, values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return vectors with the values of lists.

    Args:
        lists: Of the right lengths, or NULL.
        values: The elements of those that are not NULL, one after the other.
        kind: The type of the vectors.
    """
    found = pa.FixedSizeListArray.from_arrays(values, type=kind)
    if not lists.null_count:
        return found
    valid = lists.is_valid()
    number = pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1)
    return found.take(pc.if_else(valid, number, None))
