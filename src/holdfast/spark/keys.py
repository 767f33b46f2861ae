"""Keys of a DataFrame: their sums, which are duplicates, and which rows are left to do.

Only key columns are read and shuffled; whole rows stay in their partitions. Executors read the
finished keys from the ledger's key files in Python, so the JVM does not need access to the store.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark import StorageLevel, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as sf

from holdfast.errors import NullKeyError
from holdfast.ledger.row_files import KeyFiles, sampled_key_bytes
from holdfast.model.coverage import InputSums
from holdfast.spark import SparkDataFrame
from holdfast.spark.session import arrow_schema, broadcast_bytes
from holdfast.text import warn_caller

# ---- Questions about keys: how many there are, which are finished, which are duplicates

_EXAMPLES = 3
# Names that no input has.
_NAME, _KEY, _COUNT = "__holdfast_record", "__holdfast_key_", "__holdfast_count"
_ROW, _HASH, _NO_KEY = "__holdfast_row", "__holdfast_hash", "__holdfast_no_key"
_GROUP = "__holdfast_group"
# Before a job, the keys of one bucket out of this many are compared: a power of two. With 64 the
# pass over 12M keys took 0.36 s longer than without, with 256 0.27 s.
_BUCKETS = 256
_FILES_PER_TASK, _KEYS_PER_TASK, _TASKS_MAX = 64, 1_000_000, 200


def quoted(name: str) -> str:
    """Return a column's name quoted for SQL."""
    return "`" + name.replace("`", "``") + "`"


def hash_sql(key: Sequence[str]) -> str:
    """Return the SQL expression of a row's key hash."""
    return f"xxhash64({', '.join(map(quoted, key))})"


def sums_of(df: SparkDataFrame, key: Sequence[str], *, row: str = "") -> SparkDataFrame:
    """Return the numbers that identify the input, as one row.

    Args:
        df: The rows.
        key: The key columns.
        row: The SQL expression of a whole row's hash, to sum that too.
    """
    return _hashed(df, key, row).selectExpr(*_sums(row))


def sums_and_doubles_of(df: SparkDataFrame, key: Sequence[str], *, row: str = "") -> SparkDataFrame:
    """Return the same, and how many of the keys in one of 256 buckets appear in two rows.

    Two keys with the same hash count as one that appears twice: then all keys must be compared. One
    pass over the input does both: rows outside the bucket form one group, those in it are grouped
    by their hash.
    """
    hashed = _hashed(df, key, row)
    group = f"CASE WHEN ({quoted(_HASH)} & {_BUCKETS - 1}) = 0 THEN {quoted(_HASH)} ELSE 1 END"
    sums = [sf.expr(aggregate) for aggregate in _sums(row)]
    grouped = hashed.groupBy(sf.expr(group).alias(_GROUP)).agg(*sums)
    names = grouped.columns[1:]
    return grouped.selectExpr(
        *(f"coalesce(sum({name}), 0) AS {name}" for name in names),
        f"count(CASE WHEN rows > 1 AND {_GROUP} <> 1 THEN 1 END) AS doubled",
    )


def _hashed(df: SparkDataFrame, key: Sequence[str], row: str) -> SparkDataFrame:
    """Return each row's hashes as columns, computed once each, and whether its key is NULL."""
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


def finished_frame(
    df: SparkDataFrame, key: Sequence[str], finished: KeyFiles, *, is_named: bool = False
) -> SparkDataFrame:
    """Return the finished keys as a DataFrame.

    The key columns are named by position, to avoid conflicts with names of the input.

    Args:
        df: The input.
        key: Its key columns.
        finished: The finished keys.
        is_named: Whether to add the name of the record that covers each key.
    """
    keys = _numbered_keys(df, key)
    fields = [field.jsonValue() for field in keys.schema.fields]
    schema = type(keys.schema).fromJson({"type": "struct", "fields": fields})
    for field in schema.fields:
        field.nullable = True
    arrow = arrow_schema(keys)
    if is_named:
        schema = schema.add(_NAME, "string")
    # Pickled on the driver and loaded on executors; never stored.
    payload: bytes = cloudpickle.dumps((finished.storage, arrow, is_named))  # type: ignore[no-untyped-call]
    counts = finished.counts
    rows = [(name, uri, counts.get(name)) for name, uri in finished.uris.items()]
    tasks = max(len(rows) // _FILES_PER_TASK, finished.rows // _KEYS_PER_TASK)
    parts = min(tasks + 1, len(rows), _TASKS_MAX)
    named = df.sparkSession.createDataFrame(rows, "name string, uri string, n bigint")
    files = named.repartition(parts)
    return files.mapInArrow(_key_reader(payload), schema)


def duplicates(df: SparkDataFrame, key: Sequence[str]) -> tuple[int, str]:
    """Count the keys that appear in several rows of the input, and show a few."""
    columns = [sf.col(quoted(name)) for name in key]
    counted = df.select(*columns).groupBy(*columns).agg(sf.count("*").alias(_COUNT))
    return _count_and_examples(counted.where(f"{_COUNT} > 1").drop(_COUNT), key)


def gone(df: SparkDataFrame, key: Sequence[str], finished: KeyFiles) -> tuple[int, str]:
    """Count the finished keys that are no longer in the input, and show a few."""
    done = finished_frame(df, key, finished)
    # The keys may be too many to broadcast, which Spark cannot know of every input.
    keys = df.select(*(sf.col(quoted(name)) for name in key)).hint("merge")
    return _count_and_examples(done.join(keys, _same(key), "left_anti"), key)


def overlaps(
    df: SparkDataFrame, key: Sequence[str], finished: KeyFiles
) -> dict[tuple[str, ...], int]:
    """Return which records share keys, and how many keys."""
    columns = _numbers_of(key)
    # First without names: to collect names for every key takes several times as long.
    keys = finished_frame(df, key, finished)
    if not keys.groupBy(*columns).count().where("count > 1").limit(1).collect():
        return {}
    done = finished_frame(df, key, finished, is_named=True)
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


def _key_reader(payload: bytes) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from holdfast.ledger.row_files import read_keys  # noqa: PLC0415 - on the executor.

        storage, schema, is_named = pickle.loads(payload)  # noqa: S301 - from Spark, not storage.
        for batch in batches:
            for file in batch.to_pylist():
                for keys in read_keys(storage, file["uri"], schema, file["n"]):
                    if is_named:
                        names = pa.repeat(file["name"], keys.num_rows)
                        yield keys.append_column(_NAME, names)
                    else:
                        yield keys

    return read


# ---- Rows left: the rows whose keys are not finished. Keys may be shuffled, whole rows never are

# What a broadcast key takes in a heap beside its own bytes, which are there twice: in Spark's hash
# table, at most half of which is filled, each key is also the row that is found.
_BROADCAST_KEY_BYTES = 100
# A filter's block: 8 words of 64 bits, in a hash table by the block's number. A key sets one bit of
# each word.
_WORDS, _BIT_NUMBERS = 8, 6
_BLOCK_BITS, _BLOCK_BYTES = 512, 160
# With 8 bits for each key one other key in 34 passes by mistake, with 16 one in 1,100, with 24 one
# in 11,000.
_KEY_BITS_MIN, _KEY_BITS_MAX = 8, 24
_MARK, _BLOCK = "__holdfast_mark", "__holdfast_block"
_SAMPLED_FILES = 3


class RowsLeft:
    """The rows of one input whose keys are not finished.

    The smaller side is broadcast if it fits into the heap: the finished keys, or the keys left,
    which an anti-join of the key columns alone finds. If neither fits, a Bloom filter over the
    smaller side is broadcast, and the keys of the other side that pass it by mistake: ADR 0024.
    """

    def __init__(self, df: SparkDataFrame, key: Sequence[str], finished: KeyFiles) -> None:
        """Take the parts; nothing runs yet.

        Args:
            df: The rows.
            key: The key columns.
            finished: The finished keys.
        """
        self._df = df
        self._key = key
        self._finished = finished
        self._room_bytes = self._key_bytes = 0
        if finished:
            self._room_bytes = broadcast_bytes(df.sparkSession)
            self._key_bytes = _BROADCAST_KEY_BYTES + 2 * _key_width(df, key, finished)
        self._is_small = self._fits(finished.rows)
        self._kept: list[SparkDataFrame] = []
        self._left: SparkDataFrame | None = None
        self._sums: InputSums | None = None
        self._rows: SparkDataFrame | None = None

    @property
    def keys(self) -> SparkDataFrame:
        """The keys left, in columns named by position."""
        if self._left is None:
            keys, same = self._df.select(*map(quoted, self._key)), _same(self._key)
            if not self._finished:
                self._left = _numbered_keys(keys, self._key)
            elif self._is_small:
                found = keys.join(sf.broadcast(self._done()), same, "left_anti")
                self._left = _numbered_keys(found, self._key)
            else:
                found = keys.join(self._done().hint("merge"), same, "left_anti")
                self._left = self._keep(_numbered_keys(found, self._key))
        return self._left

    def sums(self) -> InputSums:
        """Return the sums of the keys left.

        Raises:
            PySparkException: Spark could not read the input or the key files.
        """
        if self._sums is None or self._is_small:
            found = sums_of(self.keys, _numbers_of(self._key)).collect()[0]
            self._sums = InputSums(**found.asDict())
        return self._sums

    def rows(self) -> SparkDataFrame:
        """Return the whole rows, each in the partition in which the input has it.

        Raises:
            NullKeyError: Some rows have no key; only if all keys had to be looked at.
            PySparkException: Spark could not read the input or the key files.
        """
        if not self._finished:
            return self._df
        if self._is_small:
            done = sf.broadcast(self._done())
            return self._df.join(done, _same(self._key), "left_anti")
        sums = self.sums()
        if sums.null_keys:  # No join would find them.
            raise NullKeyError(rows=sums.null_keys)
        if self._fits(sums.rows):
            return self._df.join(sf.broadcast(self.keys), _same(self._key), "left_semi")
        if self._rows is None:
            self._rows = self._filtered(sums.rows)
        return self._rows

    def release(self) -> None:
        """Free what executors keep for it."""
        for frame in self._kept:
            frame.unpersist()
        self._kept.clear()
        self._left = self._rows = None

    def _filtered(self, left_rows: int) -> SparkDataFrame:
        """Return the rows by way of a filter over the smaller side.

        Whatever its false positives, the result is exact: they are looked up in `mistaken`.
        """
        over_left = left_rows <= self._finished.rows
        small, other = (self.keys, self._done()) if over_left else (self._done(), self.keys)
        rows = left_rows if over_left else self._finished.rows
        blocks_max = self._room_bytes // _BLOCK_BYTES
        blocks = min(rows * _KEY_BITS_MAX // _BLOCK_BITS, blocks_max) | 1
        if blocks * _BLOCK_BITS < rows * _KEY_BITS_MIN:
            return self._shuffled(left_rows)
        numbers = _numbers_of(self._key)
        words = self._keep(_filter_of(small, numbers, blocks))
        words.count()  # Spark waits only five minutes for a broadcast.
        passes = _passes(blocks)
        hashed = other.selectExpr("*", f"{hash_sql(numbers)} AS {_HASH}")
        passing = hashed.join(sf.broadcast(words), passes, "left_semi")
        mistaken = self._keep(passing.select(*numbers).distinct())
        if not self._fits(2 * mistaken.count()):
            return self._shuffled(left_rows)
        rest = self._df.selectExpr("*", f"{hash_sql(self._key)} AS {_HASH}")
        if over_left:
            found = rest.join(sf.broadcast(words), passes, "left_semi")
            return found.join(sf.broadcast(mistaken), _same(self._key), "left_anti").drop(_HASH)
        marked = sf.broadcast(mistaken.select(*numbers, sf.lit(1).alias(_MARK)))
        found = rest.join(marked, _same(self._key), "left_outer").drop(*numbers)
        sure = sf.col(_MARK).isNull()
        return found.join(sf.broadcast(words), passes & sure, "left_anti").drop(_HASH, _MARK)

    def _shuffled(self, left_rows: int) -> SparkDataFrame:
        """Return the rows by a join that shuffles them: both sides are too large for a filter."""
        warn_caller(shuffle_warning(left_rows, self._finished.rows))
        return self._df.join(self._done().hint("merge"), _same(self._key), "left_anti")

    def _fits(self, rows: int) -> bool:
        return rows * self._key_bytes <= self._room_bytes

    def _done(self) -> SparkDataFrame:
        return finished_frame(self._df, self._key, self._finished)

    def _keep(self, frame: SparkDataFrame) -> SparkDataFrame:
        """Have executors keep it on their disks once it is computed."""
        with contextlib.suppress(PySparkException):  # Some services have no persist.
            frame = frame.persist(StorageLevel.DISK_ONLY)
            self._kept.append(frame)
        return frame


def shuffle_warning(left_rows: int, finished_rows: int) -> str:
    """Say that whole rows are shuffled, and what helps."""
    return (
        f"the {finished_rows:,} finished keys and the {left_rows:,} keys left are both too many "
        "for a filter in the heap, so Spark shuffles whole rows to leave finished ones out; "
        "a larger spark.driver.memory and spark.executor.memory avoids that"
    )


def _numbers_of(key: Sequence[str]) -> list[str]:
    """Return the names by position of the key columns: no input has them."""
    return [f"{_KEY}{number}" for number in range(len(key))]


def _numbered_keys(df: SparkDataFrame, key: Sequence[str]) -> SparkDataFrame:
    return df.select(*(sf.col(quoted(name)).alias(f"{_KEY}{i}") for i, name in enumerate(key)))


def _same(key: Sequence[str]) -> list[Column]:
    """Return the condition that a row of the input has a key."""
    numbers = _numbers_of(key)
    return [sf.col(quoted(name)) == sf.col(n) for name, n in zip(key, numbers, strict=True)]


def _filter_of(keys: SparkDataFrame, names: Sequence[str], blocks: int) -> SparkDataFrame:
    """Return a Bloom filter over keys: a row for each block in which a key has set bits."""
    hashed = keys.selectExpr(f"{hash_sql(names)} AS {_HASH}")
    numbered = hashed.selectExpr(f"pmod({_HASH}, {blocks}L) AS {_BLOCK}", _HASH)
    bits = (f"bit_or(shiftleft(1L, {_bit(word)})) AS __holdfast_w{word}" for word in range(_WORDS))
    return numbered.groupBy(_BLOCK).agg(*(sf.expr(word) for word in bits))


def _passes(blocks: int) -> Column:
    """Return the condition that a hashed row passes a filter; `blocks` is odd.

    Then a block's number and the lower bits of the hash, which say which bits are set in it, do not
    depend on each other.
    """
    tests = (f"getbit(__holdfast_w{word}, {_bit(word)}) = 1" for word in range(_WORDS))
    return sf.expr(" AND ".join((f"pmod({_HASH}, {blocks}L) = {_BLOCK}", *tests)))


def _bit(word: int) -> str:
    return f"cast(shiftrightunsigned({_HASH}, {word * _BIT_NUMBERS}) & 63 AS int)"


def _key_width(df: SparkDataFrame, key: Sequence[str], finished: KeyFiles) -> int:
    """Return how many bytes a key has, at most for numbers and on average for texts."""
    kinds = [arrow_schema(df.select(quoted(name))).field(0).type for name in key]
    if all(_is_fixed(kind) for kind in kinds):
        return sum(kind.bit_width // 8 + 1 for kind in kinds)
    uris = list(finished.uris.values())
    sampled = uris[:: max(1, len(uris) // _SAMPLED_FILES)][:_SAMPLED_FILES]
    return max(sampled_key_bytes(finished.storage, uri) for uri in sampled)


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind))
