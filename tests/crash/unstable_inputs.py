"""An input whose rows are in other partitions each time they are read. Workers import this."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame


def random_places(df: DataFrame, places: int) -> DataFrame:
    """Return the same rows, assigned to partitions at random, without Spark's knowledge."""
    dealt = df.mapInArrow(_deal, "id BIGINT, payload STRING, place INT")
    return dealt.repartition(places, "place").drop("place")


def _deal(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    chance = np.random.default_rng()
    for batch in batches:
        shuffled = batch.take(pa.array(chance.permutation(batch.num_rows)))
        places = pa.array(chance.integers(0, 1_000_000, batch.num_rows), pa.int32())
        yield pa.RecordBatch.from_arrays(
            [shuffled.column("id"), shuffled.column("payload"), places],
            names=["id", "payload", "place"],
        )
