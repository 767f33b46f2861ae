"""A transform that remembers the rows that it computed, and fails on request."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa


class WatchedTransform:
    """Passes rows on, and remembers their ids in the order in which they came."""

    def __init__(self) -> None:
        """Start with no row seen and no fault."""
        self.ids: list[int] = []
        self.fails_at: set[int] = set()
        # Each runs once, when the row of that id comes.
        self.at: dict[int, Callable[[], object]] = {}

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Do the expensive step."""
        ids = batch["id"].to_pylist()
        for id_ in ids:
            if id_ in self.at:
                self.at.pop(id_)()
            if id_ in self.fails_at:
                raise ValueError(f"row {id_} is bad")
        self.ids += ids
        return batch
