"""Burn: a transform that uses CPU and never sleeps, and can count the rows that it has done."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

_SAMPLE_ROWS = 16_384
_SAMPLE_REPEATS = 200


class Burn:
    """Passes rows on after computing with their ids, again and again."""

    def __init__(self, repeats: int, notes: str = "") -> None:
        """Keep how much to compute.

        Args:
            repeats: How often, which is what a row costs; nothing with 0.
            notes: A local folder, where each process notes how many rows it has done.
        """
        self._repeats = repeats
        self._notes = notes

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as they are."""
        numbers = batch.column("id").to_numpy().astype(np.float64)
        for _ in range(self._repeats):
            np.multiply(numbers, numbers, out=numbers)
            np.add(numbers, 1.0, out=numbers)
            np.sqrt(numbers, out=numbers)
        if self._notes:
            # Opened each time: what is written survives a kill, and processes come and go.
            with (Path(self._notes) / str(os.getpid())).open("a") as file:
                file.write(f"{batch.num_rows}\n")
        return batch


def noted_rows(notes: Path) -> int:
    """Return how many rows were computed, by all processes that left a note."""
    texts = [path.read_text() for path in notes.iterdir()]
    return sum(int(line) for text in texts for line in text.split("\n")[:-1])


def repeats_for(seconds_per_row: float) -> int:
    """Return how often to compute with a row, so that it costs as much as wanted."""
    batch = pa.record_batch({"id": pa.array(np.arange(_SAMPLE_ROWS))})
    tries = []
    for _ in range(3):
        started = time.process_time()  # Of this process only: others may be at work.
        Burn(_SAMPLE_REPEATS)(batch)
        tries.append(time.process_time() - started)
    return max(1, round(seconds_per_row / (min(tries) / _SAMPLE_ROWS / _SAMPLE_REPEATS)))
