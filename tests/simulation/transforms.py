"""The job's code, before and after it was fixed."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

# A key that no filter of a history is true for.
OUTSIDE = -9_000


class Transform:
    """Hands each batch to the history, which decides what happens to it.

    A class of its own in a module of its own: Holdfast looks at a transform's code, and should see
    this, not the simulation.
    """

    def __init__(self, called: Callable[[pa.RecordBatch, bool], dict[str, pa.Array]]) -> None:
        """Take the function to call: it returns the values of added columns."""
        self._called = called

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Work on a batch."""
        return fitted(batch, self._called(batch, False))  # noqa: FBT003 - not mended.


class Mended(Transform):
    """The same, without the mistake."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Work on a batch."""
        return fitted(batch, self._called(batch, True))  # noqa: FBT003 - mended.


class Misfit(Transform):
    """Returns a column that the table lacks."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Work on a batch."""
        self._called(batch, False)  # noqa: FBT003 - not mended.
        return batch.rename_columns(["unknown"])


class Outsider(Transform):
    """Puts one row outside of the filter by which a run replaces rows."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Work on a batch."""
        rows = super().__call__(batch)
        ids = [OUTSIDE if id_ == 0 else id_ for id_ in rows["id"].to_pylist()]
        return rows.set_column(0, "id", pa.array(ids, pa.int64()))


def fitted(batch: pa.RecordBatch, more: dict[str, pa.Array]) -> pa.RecordBatch:
    """Return rows as the table has them: keys are numbers there."""
    return pa.RecordBatch.from_pydict({"id": batch["id"].cast(pa.int64()), **more})
