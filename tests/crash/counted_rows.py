"""A row function whose calls are counted from outside the product, as those of `Costly` are.

Workers import this module, so it does not need pytest.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np

import holdfast as hf
from holdfast.worker.transforms import PerRow
from tests.crash.counted_calls import count_call


class Asked:
    """In place of a model behind a network: y = 2 * id + 1, after a while."""

    def __init__(self, row_s: float) -> None:
        """Take the time that an answer takes."""
        self.row_s = row_s

    async def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Wait, then count the row."""
        began = time.time()
        await asyncio.sleep(self.row_s)
        count_call(np.array([row["id"]]), began)
        return {**row, "y": 2 * row["id"] + 1}


def asked(row_s: float, concurrency: int) -> PerRow:
    """Return the transform of a job that asks for each row."""
    return hf.per_row(hf.per_worker(Asked, row_s), concurrency=concurrency)
