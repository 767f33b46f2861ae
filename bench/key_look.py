"""What looking for doubled keys before a job costs: twelve million keys, integers and texts.

The pass that sums the keys, with and without the sample, and the comparison of all keys alternate
in one session. Then: how many sets of 10, 100 and 10,000 doubled keys the sample sees, out of a
hundred sets each. That depends only on their hashes, which Spark computes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from bench.data import ROWS, cache_folder
from bench.rounds import alternate
from bench.session import open_session
from holdfast.ledger.row_files import KeyFiles
from holdfast.spark.dataframe import DataFrameSubmitter
from holdfast.spark.keys import _BUCKETS, hash_sql  # The sample is what is measured.
from holdfast.storage.objects import ObjectStorage

_KEYS = {"integer": "id", "text": "text"}
_DOUBLES = (10, 100, 10_000)
_SETS = 100


def keys(session: SparkSession) -> DataFrame:
    """Return the keys, over Parquet files; make the files if they are missing."""
    folder = cache_folder() / f"keys-{ROWS}"
    if not (folder / "_SUCCESS").exists():
        shutil.rmtree(folder, ignore_errors=True)
        text = "substring(sha2(cast(id AS string), 256), 1, 32) AS text"
        made = session.range(0, ROWS, 1, 16).selectExpr("id", text)
        made.write.option("compression", "zstd").parquet(str(folder))
    return session.read.parquet(str(folder))


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    session = open_session({})
    df, nothing = keys(session), KeyFiles(storage=ObjectStorage({}))
    found: dict[str, Any] = {"rows": ROWS}
    for kind, key in _KEYS.items():
        input_ = DataFrameSubmitter(df.select(key), (key,))

        def all_keys(_name: str, input_: DataFrameSubmitter = input_) -> None:
            if input_.duplicates().keys:
                raise SystemExit("keys are reported as doubled that are not")

        def look(_name: str, input_: DataFrameSubmitter = input_) -> None:
            if input_.look()[1]:
                raise SystemExit("the sample shows a doubled key that is not one")

        def sums(_name: str, input_: DataFrameSubmitter = input_) -> None:
            input_.measure(nothing)

        sides: dict[str, Callable[[str], None]] = {"sums": sums, "look": look, "all": all_keys}
        times = alternate(sides, lambda name: name, lambda _name: None)
        more = [
            round(look_s - other, 2)
            for look_s, other in zip(times.seconds["look"], times.seconds["sums"], strict=True)
        ]
        found[kind] = {
            "look_over_sums": times.ratio("look", "sums"),
            "all_over_sums": times.ratio("all", "sums"),
            "look_more_s": more,
            **times.figures(),
            "sets_seen_of_100": {str(size): _seen(df, key, size) for size in _DOUBLES},
        }
    return {"ratio": found["integer"]["look_over_sums"], **found}


def _seen(df: DataFrame, key: str, size: int) -> int:
    """Return how many of the sets of doubled keys have one in the sample."""
    drawn = df.select(key).sample(fraction=min(1.0, 1.2 * _SETS * size / ROWS), seed=7)
    numbered = drawn.withColumn("number", sf.monotonically_increasing_id() % _SETS)
    ranked = numbered.selectExpr(
        f"{hash_sql([key])} AS hash",
        "number",
        "row_number() OVER (PARTITION BY number ORDER BY hash(number, rand(3))) AS place",
    )
    sampled = ranked.where(f"place <= {size} AND (hash & {_BUCKETS - 1}) = 0")
    return sampled.select("number").distinct().count()
