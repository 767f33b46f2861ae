"""Count a transform's calls from outside the product: what was computed, where, and when.

Workers import this module, so it does not need pytest. Each worker process appends to a file of its
own, one write for each batch, at the end of the batch's work: what is not written was not finished.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

# Names the folder for the files. It is in the environment, so that the transform itself is the same
# in every start.
CALLS_VARIABLE = "HOLDFAST_CRASH_CALLS"
_WAIT_S = 0.1
_WAITS_MAX = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One finished call of the transform."""

    place: int
    attempt: int
    # The process that runs Spark's tasks, and the one that runs their Python.
    executor: int
    worker: int
    began: float
    ended: float
    # The keys, as ranges from a first key to an end that is excluded.
    runs: tuple[tuple[int, int], ...]

    @property
    def rows(self) -> int:
        """How many rows the batch had."""
        return sum(end - start for start, end in self.runs)


class Costly:
    """In place of a model: y = 2 * id + 1, and each row costs time."""

    def __init__(self, row_s: float) -> None:
        """Take the time that a row costs."""
        self.row_s = row_s

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Work on the rows, then count them."""
        began = time.time()
        ids = batch.column("id").to_numpy()
        self.work(ids)
        y = pc.add(pc.multiply(batch.column("id"), 2), 1)
        count_call(ids, began)
        return {"id": batch.column("id"), "payload": batch.column("payload"), "y": y}

    def work(self, ids: npt.NDArray[np.int64]) -> None:
        """Take as long as the rows cost."""
        time.sleep(self.row_s * len(ids))


class SlowHead(Costly):
    """The first ids are slow. The others cost nothing, but wait until some slow ones are done."""

    def __init__(self, row_s: float, *, slow_to: int, others_after: int) -> None:
        """Take what a slow row costs, which rows are slow, and how many of them come first."""
        super().__init__(row_s)
        self.slow_to = slow_to
        self.others_after = others_after

    def work(self, ids: npt.NDArray[np.int64]) -> None:
        """Take as long as slow rows cost, or wait for them."""
        if ids[0] < self.slow_to:
            super().work(ids)
            return
        for _ in range(_WAITS_MAX):
            calls = read_calls(Path(os.environ[CALLS_VARIABLE]))
            if np.sum(times_computed(calls, self.slow_to) > 0) >= self.others_after:
                return
            time.sleep(_WAIT_S)
        raise TimeoutError("the slow rows make no progress")


def count_call(ids: npt.NDArray[np.int64], began: float) -> None:
    """Append one call to this process's file, with a single write."""
    ends = np.flatnonzero(np.diff(ids) != 1)
    starts = np.concatenate([ids[:1], ids[ends + 1]])
    stops = np.concatenate([ids[ends], ids[-1:]]) + 1
    context = TaskContext.get()
    facts = {
        "place": context.partitionId() if context else -1,
        "attempt": context.taskAttemptId() if context else -1,
        "executor": executor_id(),
        "worker": os.getpid(),
        "began": began,
        "ended": time.time(),
        "runs": list(zip(starts.tolist(), stops.tolist(), strict=True)),
    }
    path = Path(os.environ[CALLS_VARIABLE]) / f"{os.getpid()}.jsonl"
    file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.write(file, (json.dumps(facts) + "\n").encode())
    finally:
        os.close(file)


@functools.cache
def executor_id() -> int:
    """Return the process that this worker works for, as it was at the first call.

    Spark's daemon forked this process, and the executor started the daemon.
    """
    daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(daemon.rpartition(")")[2].split()[1])


def read_calls(folder: Path) -> list[Call]:
    """Return all calls that were counted in a folder, in the order in which they ended."""
    lines = [line for file in folder.iterdir() for line in file.read_text().splitlines()]
    calls = [
        Call(**{**facts, "runs": tuple(map(tuple, facts["runs"]))})
        for facts in map(json.loads, lines)
    ]
    return sorted(calls, key=lambda call: call.ended)


def times_computed(calls: Iterable[Call], rows: int) -> npt.NDArray[np.int64]:
    """Return how often each id from 0 on was computed."""
    counts = np.zeros(rows, dtype=np.int64)
    for call in calls:
        for start, end in call.runs:
            counts[start:end] += 1  # Ids beyond the array are left out.
    return counts


def seconds_per_row(calls: Sequence[Call]) -> float:
    """Return what a row costs, as measured."""
    seconds = sum(call.ended - call.began for call in calls)
    return seconds / sum(call.rows for call in calls)
