"""Key hashes of random values: what a task computes is what Spark itself computes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from holdfast.ledger.row_files import KeyFiles
from holdfast.model.coverage import InputSums
from holdfast.spark.dataframe import DataFrameSubmitter
from holdfast.storage.objects import ObjectStorage
from holdfast.worker.coverage import hash_sums, key_hashes

pytestmark = pytest.mark.spark

SEED_VARIABLE = "HOLDFAST_TEST_SEED"
SEED = int(os.environ.get(SEED_VARIABLE) or random.randrange(2**32))
ROWS = 600
EDGES = (0, 1, -1, -(2**63), 2**63 - 1)

# Each is made from 64 random bits: a shift keeps the sign and as many bits as the type holds.
COLUMNS = {
    "flag": "bits < 0",
    "i8": "cast(shiftright(bits, 56) as tinyint)",
    "i16": "cast(shiftright(bits, 48) as smallint)",
    "i32": "cast(shiftright(bits, 32) as int)",
    "i64": "bits",
    "day": "date_from_unix_date(cast(shiftright(bits, 42) as int))",
    "at": "timestamp_micros(bits)",
    "local_at": "cast(timestamp_micros(shiftright(bits, 2)) as timestamp_ntz)",
    "dec9": "cast(shiftright(bits, 34) * 0.01BD as decimal(9, 2))",
    "dec18": "cast(shiftright(bits, 4) * 0.0001BD as decimal(18, 4))",
    "text": "repeat(cast(bits as string), cast(bits & 7 as int))",
    "bytes": "cast(repeat(cast(bits as string), cast(bits & 3 as int)) as binary)",
}
KEYS = [
    *((name,) for name in COLUMNS),
    ("i64", "i32"),
    ("i32", "i64"),
    ("day", "dec18"),
    ("flag", "at"),
    ("text", "i64", "bytes"),
    ("local_at", "i8", "dec9", "i16"),
]


@pytest.fixture(scope="module")
def values(session: SparkSession) -> DataFrame:
    """Return random rows of all types, one value in eight NULL, in three partitions."""
    rng = random.Random(SEED)

    def bits() -> int | None:
        if rng.random() < 1 / 8:
            return None
        choices = (rng.choice(EDGES), rng.randrange(-1000, 1000), rng.randrange(-(2**63), 2**63))
        return rng.choice(choices)

    # Each column gets its own bits, or two columns of a key would be NULL together.
    rows = [tuple(bits() for _ in COLUMNS) for _ in range(ROWS)]
    raw = session.createDataFrame(rows, ", ".join(f"{name} bigint" for name in COLUMNS))
    made = (f"{how.replace('bits', name)} as {name}" for name, how in COLUMNS.items())
    return raw.repartition(3).selectExpr(*made).cache()


def sums_in_tasks(df: DataFrame, key: tuple[str, ...]) -> tuple[int, int, int]:
    """Return the rows and the two sums of their hashes, computed from the tasks' own batches."""

    def summed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            low, high = hash_sums(key_hashes(batch.columns))
            found = {"rows": [batch.num_rows], "low": [low], "high": [high]}
            yield pa.RecordBatch.from_pydict(found)

    parts = df.select(*key).mapInArrow(summed, "rows long, low long, high long").collect()
    rows, low, high = (sum(part[name] for part in parts) for name in ("rows", "low", "high"))
    return rows, low, high


@pytest.mark.parametrize("key", KEYS, ids="+".join)
def test_tasks_and_spark_sum_the_same_hashes(values: DataFrame, key: tuple[str, ...]) -> None:
    """For every type, and for keys of several columns with NULLs in each, both sums are equal."""
    print(f"to run again: {SEED_VARIABLE}={SEED}")
    nothing = KeyFiles(storage=ObjectStorage({}), uris={})
    measured: InputSums = DataFrameSubmitter(values, key).measure(nothing)
    assert measured.null_keys > 0  # NULLs were among them, so the test is not vacuous.
    assert measured.rows == ROWS
    assert sums_in_tasks(values, key) == (measured.rows, measured.low, measured.high)
