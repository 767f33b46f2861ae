"""What checkpoints cost: `checkpoint_every="30s"` over checkpointing off, on the same job.

The transform computes for over a minute per task and returns embeddings, so that with
checkpoints each task writes chunks on the way. It burns CPU instead of sleeping: a checkpoint's
own work cannot hide behind it. Both sides alternate in one warm session.
"""

from __future__ import annotations

import os
import statistics
import time
import uuid
from typing import Any

import numpy as np
import pyarrow as pa

import holdfast as hf
from bench.session import open_session, open_stack

_ROWS = 60_000
_WIDTH = 384
_ROUNDS = 3
_SECONDS_PER_TASK = 75.0
_TASKS = 2
_SIDES = {"off": None, "30s": "30s"}


class Embed:
    """Multiplies each row's vector by a matrix repeatedly: work that never sleeps."""

    def __init__(self, repeats: int) -> None:
        """Make the matrix.

        Args:
            repeats: How often, which is what the work costs.
        """
        self._repeats = repeats
        self._matrix = np.random.default_rng(0).random((_WIDTH, _WIDTH), dtype=np.float32)

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Return the ids with a vector each."""
        ids = batch.column("id")
        vectors = np.repeat(ids.to_numpy().astype(np.float32)[:, None], _WIDTH, axis=1)
        for _ in range(self._repeats):
            vectors = vectors @ self._matrix
            vectors /= np.abs(vectors).max() + 1
        flat = pa.array(vectors.ravel())
        return {"id": ids, "vector": pa.FixedSizeListArray.from_arrays(flat, _WIDTH)}


def _repeats() -> int:
    """Return how often a row must be multiplied, so that a task takes as long as wanted."""
    rows, times = 512, 200
    batch = pa.record_batch({"id": pa.array(np.arange(rows))})
    tries = []
    for _ in range(3):
        started = time.process_time()  # Of this process only: others may be at work.
        Embed(times)(batch)
        tries.append(time.process_time() - started)
    seconds_per_row = min(tries) / rows / times
    return max(1, round(_SECONDS_PER_TASK * _TASKS / _ROWS / seconds_per_row))


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    # One thread for each worker, as in a cluster whose cores are all given to tasks.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    stack = open_stack()
    session = open_session(stack.spark_catalog_conf("lake"))
    session.sql("CREATE NAMESPACE IF NOT EXISTS lake.bench")
    options, mark, repeats = stack.rest_catalog_properties(), uuid.uuid4().hex[:8], _repeats()
    times: dict[str, list[float]] = {side: [] for side in _SIDES}

    def once(name: str, every: str | None, df: Any) -> float:  # noqa: ANN401 - pyspark's own.
        session.sql(f"CREATE TABLE lake.bench.{name} (id bigint, vector array<float>)")
        started = time.monotonic()
        report = hf.Run(f"bench-{name}", store="s3://lake/_holdfast", store_options=options).append(
            df,
            to=hf.IcebergTable(f"bench.{name}", catalog=options),
            key="id",
            transform=hf.per_worker(Embed, repeats),
            checkpoint_every=every,
        )
        seconds = time.monotonic() - started
        if report.rows != df.count():
            raise SystemExit(f"{report.rows} rows arrived")
        session.sql(f"DROP TABLE lake.bench.{name} PURGE")
        return seconds

    once(f"warm_{mark}", "30s", session.range(0, 1_000, 1, _TASKS))
    df = session.range(0, _ROWS, 1, _TASKS)
    for number in range(_ROUNDS):
        # Each side goes first as often as the other: a machine that slows down favours neither.
        order = list(_SIDES.items())[:: 1 if number % 2 else -1]
        for side, every in order:
            seconds = once(f"{'on' if every else 'off'}_{mark}_{number}", every, df)
            print(f"  round {number} {side:<4} {seconds:6.2f} s", flush=True)
            times[side].append(seconds)
    ratios = [on / off for on, off in zip(times["30s"], times["off"], strict=True)]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "rows": _ROWS,
        "checkpoints_30s_s": [round(seconds, 2) for seconds in times["30s"]],
        "checkpoints_off_s": [round(seconds, 2) for seconds in times["off"]],
    }
