"""Tags: what Holdfast itself must know of each input row, beside the user's columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.sources.base import KEY_HASH, TAG_COLUMN


def split_tag(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array | None]:
    """Take the tags off, if there are any: the transform must not see them."""
    index = batch.schema.get_field_index(TAG_COLUMN)
    if index < 0:
        return batch, None
    return batch.remove_column(index), batch.column(index)


def hashes_of(tags: pa.Array | None) -> dict[str, npt.NDArray[np.uint64]]:
    """Return what Spark has hashed of each row of a DataFrame, by its name in the tags."""
    if tags is None:
        return {}
    if not pa.types.is_struct(tags.type):
        return {KEY_HASH: _words(tags)}
    names = [tags.type.field(index).name for index in range(tags.type.num_fields)]
    return {name: _words(tags.field(name)) for name in names}


def _words(hashes: pa.Array) -> npt.NDArray[np.uint64]:
    words: npt.NDArray[np.uint64] = hashes.to_numpy(zero_copy_only=False).view("uint64")
    return words
