"""The job's code, before and after somebody has mended it."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa


class Transform:
    """Hands each batch to the history, which decides what becomes of it.

    A class of its own in a module of its own: Holdfast looks at a transform's code, and should see
    this, not the simulation.
    """

    def __init__(self, called: Callable[[pa.RecordBatch, bool], None]) -> None:
        """Take what is to be called."""
        self._called = called

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Work on a batch."""
        self._called(batch, False)  # noqa: FBT003 - not mended.
        return fitted(batch)


class Mended(Transform):
    """The same, without the mistake."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Work on a batch."""
        self._called(batch, True)  # noqa: FBT003 - mended.
        return fitted(batch)


class Misfit(Transform):
    """Gives something that the table has no column for."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Work on a batch."""
        self._called(batch, False)  # noqa: FBT003 - not mended.
        return batch.rename_columns(["unknown"])


def fitted(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows as the table has them: keys are numbers there."""
    return pa.RecordBatch.from_arrays([batch["id"].cast(pa.int64())], names=["id"])
