"""Tags: what Holdfast itself must know of each input row, beside the user's columns."""

from __future__ import annotations

import pyarrow as pa

from holdfast.sources.base import TAG_COLUMN


def split_tag(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array | None]:
    """Take the tags off, if there are any: the transform must not see them."""
    index = batch.schema.get_field_index(TAG_COLUMN)
    if index < 0:
        return batch, None
    return batch.remove_column(index), batch.column(index)
