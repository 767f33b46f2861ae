"""Questions about keys that Spark answers: how many, which are finished, which are there twice.

Only key columns are read. The finished keys come from the ledger through executors that read the
key files in Python: the JVM need not reach the store.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import functions as sf

from holdfast.ledger.key_files import KeyFiles
from holdfast.spark.frames import SparkDataFrame
from holdfast.spark.session import arrow_schema

_EXAMPLES = 3
# Names that no input has.
_NAME, _KEY, _COUNT = "__holdfast_record", "__holdfast_key_", "__holdfast_count"
_ROW, _HASH, _NO_KEY = "__holdfast_row", "__holdfast_hash", "__holdfast_no_key"
_GROUP = "__holdfast_group"
# One of so many buckets of keys is compared before a job: a power of two. With 64 the pass over 12M
# keys took 0.36 s more than without, with 256 0.27 s.
_BUCKETS = 256
_FILES_PER_TASK = 64
# All of them stand in the memory of the driver and of each executor.
_BROADCAST_ROWS_MAX = 10_000_000


def quoted(name: str) -> str:
    """Return a column's name as SQL wants it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def hash_sql(key: Sequence[str]) -> str:
    """Return the SQL expression of a row's key hash."""
    return f"xxhash64({', '.join(map(quoted, key))})"


def sums_of(df: SparkDataFrame, key: Sequence[str], *, row: str = "") -> SparkDataFrame:
    """Return the numbers that say what the input is, as one row.

    Args:
        df: The rows.
        key: The key columns.
        row: The SQL expression of a whole row's hash, to sum that as well.
    """
    return _hashed(df, key, row).selectExpr(*_sums(row))


def sums_and_doubles_of(df: SparkDataFrame, key: Sequence[str], *, row: str = "") -> SparkDataFrame:
    """Return the same, and how many of the keys in one of 256 buckets appear in two rows.

    Two keys with one hash count as one that appears twice: all keys are to be compared then. One
    pass over the input does both: rows outside the bucket are one group, those in it are grouped
    by their hash.
    """
    hashed = _hashed(df, key, row)
    group = f"CASE WHEN ({quoted(_HASH)} & {_BUCKETS - 1}) = 0 THEN {quoted(_HASH)} ELSE 1 END"
    sums = [sf.expr(one) for one in _sums(row)]
    grouped = hashed.groupBy(sf.expr(group).alias(_GROUP)).agg(*sums)
    names = grouped.columns[1:]
    return grouped.selectExpr(
        *(f"coalesce(sum({name}), 0) AS {name}" for name in names),
        f"count(CASE WHEN rows > 1 AND {_GROUP} <> 1 THEN 1 END) AS doubled",
    )


def _hashed(df: SparkDataFrame, key: Sequence[str], row: str) -> SparkDataFrame:
    """Return each row's hashes as columns, so that each is computed once, and if it has no key."""
    nulls = " OR ".join(f"{quoted(name)} IS NULL" for name in key)
    columns = [f"{hash_sql(key)} AS {quoted(_HASH)}", f"({nulls}) AS {quoted(_NO_KEY)}"]
    if row:
        columns.append(f"{row} AS {quoted(_ROW)}")
    return df.selectExpr(*columns)


def _sums(row: str) -> list[str]:
    """Return the aggregates over hashed rows."""
    no_key = f"count(CASE WHEN {quoted(_NO_KEY)} THEN 1 END) AS null_keys"
    sums = ["count(*) AS rows", no_key, *_halves(quoted(_HASH), "")]
    return sums + (_halves(quoted(_ROW), "row_") if row else [])


def _halves(digest: str, prefix: str) -> list[str]:
    """Return the sums of a hash's low and high 32 bits."""
    return [
        f"coalesce(sum({digest} & 4294967295), 0) AS {prefix}low",
        f"coalesce(sum(shiftrightunsigned({digest}, 32)), 0) AS {prefix}high",
    ]


def finished_frame(df: SparkDataFrame, key: Sequence[str], finished: KeyFiles) -> SparkDataFrame:
    """Return the finished keys as a DataFrame, beside the record that covers each.

    The key columns are named by position, so that no name of the input is in the way.
    """
    keys = df.select(*(sf.col(quoted(name)).alias(f"{_KEY}{i}") for i, name in enumerate(key)))
    fields = [field.jsonValue() for field in keys.schema.fields]
    schema = type(keys.schema).fromJson({"type": "struct", "fields": fields})
    for field in schema.fields:
        field.nullable = True
    arrow = arrow_schema(keys)
    schema = schema.add(_NAME, "string")
    # Pickled on the driver and loaded on executors; never stored.
    payload: bytes = cloudpickle.dumps((finished.storage, arrow))  # type: ignore[no-untyped-call]
    rows = list(finished.uris.items())
    parts = max(1, min(len(rows) // _FILES_PER_TASK + 1, 200))
    files = df.sparkSession.createDataFrame(rows, "name string, uri string").repartition(parts)
    return files.mapInArrow(_reader(payload), schema)


def without_finished(df: SparkDataFrame, key: Sequence[str], finished: KeyFiles) -> SparkDataFrame:
    """Return the rows whose keys are not finished.

    As long as the finished keys can be broadcast, rows stay in their partitions: nothing is
    shuffled. Beyond that Spark chooses the join.
    """
    if not finished:
        return df
    done = finished_frame(df, key, finished).drop(_NAME)
    if finished.rows <= _BROADCAST_ROWS_MAX:
        done = sf.broadcast(done)
    same = [sf.col(quoted(name)) == done[f"{_KEY}{i}"] for i, name in enumerate(key)]
    return df.join(done, same, "left_anti")


def duplicates(df: SparkDataFrame, key: Sequence[str]) -> tuple[int, str]:
    """Count the keys that stand in several rows of the input, and show a few."""
    columns = [sf.col(quoted(name)) for name in key]
    counted = df.select(*columns).groupBy(*columns).agg(sf.count("*").alias(_COUNT))
    return _count_and_examples(counted.where(f"{_COUNT} > 1").drop(_COUNT), key)


def gone(df: SparkDataFrame, key: Sequence[str], finished: KeyFiles) -> tuple[int, str]:
    """Count the finished keys that are not in the input any more, and show a few."""
    done = finished_frame(df, key, finished).drop(_NAME)
    keys = df.select(*(sf.col(quoted(name)) for name in key))
    same = [done[f"{_KEY}{i}"] == sf.col(quoted(name)) for i, name in enumerate(key)]
    return _count_and_examples(done.join(keys, same, "left_anti"), key)


def overlaps(
    df: SparkDataFrame, key: Sequence[str], finished: KeyFiles
) -> dict[tuple[str, ...], int]:
    """Return which records share keys, and how many keys."""
    done = finished_frame(df, key, finished)
    columns = [f"{_KEY}{i}" for i in range(len(key))]
    twice = (
        done.groupBy(*columns)
        .agg(sf.count("*").alias("n"), sf.sort_array(sf.collect_set(_NAME)).alias("records"))
        .where("n > 1")
    )
    rows = twice.groupBy("records").count().collect()
    return {tuple(row["records"]): row["count"] for row in rows}


def _count_and_examples(df: SparkDataFrame, key: Sequence[str]) -> tuple[int, str]:
    rows = df.limit(_EXAMPLES).collect()
    if not rows:
        return 0, ""
    shown = [
        "(" + ", ".join(f"{name}={value!r}" for name, value in zip(key, row, strict=True)) + ")"
        for row in rows
    ]
    return df.count(), ", ".join(shown)


def _reader(payload: bytes) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from holdfast.ledger.key_files import read_keys  # noqa: PLC0415 - on the executor.

        storage, schema = pickle.loads(payload)  # noqa: S301 - from Spark, not from storage.
        for batch in batches:
            for file in batch.to_pylist():
                for keys in read_keys(storage, file["uri"], schema):
                    names = pa.repeat(file["name"], keys.num_rows)
                    yield pa.RecordBatch.from_arrays(
                        [*keys.columns, names], names=[*schema.names, _NAME]
                    )

    return read
