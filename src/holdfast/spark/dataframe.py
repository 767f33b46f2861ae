"""The rows of a DataFrame, as the engine needs them: its keys, its jobs, its failed rows.

Only Spark computes the row hash: once when the input is measured, and once next to the rows that go
to the tasks. So both sides agree without a second implementation. `xxhash64` alone would not do: it
skips NULLs anywhere, and refuses maps. Here each value is preceded by a flag that says whether it
is NULL, each array by its length, and a map is hashed as its sorted entries.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.types as pt
from pyspark import cloudpickle
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StringType, StructType

from holdfast.errors import HoldfastError
from holdfast.ledger.row_files import KeyFiles, read_chunk
from holdfast.model.arrow_types import is_any_list
from holdfast.model.coverage import InputSums, KeyExamples
from holdfast.model.work import Chunk, StagedFile
from holdfast.sinks.base import StagedReaderSpec
from holdfast.sources.base import KEY_HASH, ROW_HASH, TAG_COLUMN
from holdfast.spark import SparkDataFrame, SparkSession
from holdfast.spark.jobs import JobsBeside, SparkJobs, run_plan, spark_errors
from holdfast.spark.keys import (
    RowsLeft,
    duplicates,
    gone,
    hash_sql,
    overlaps,
    quoted,
    sums_and_doubles_of,
    sums_of,
)
from holdfast.spark.session import arrow_schema
from holdfast.storage.port import Storage
from holdfast.worker.coverage import needs_hash_column
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import ItemPlan, TaskPlan

# ---- A hash of the whole row, as a SQL expression that Spark evaluates

# 63 bits: a literal without a sign.
_SALT_BYTES, _SALT_SHIFT = 8, 1


def column_types(schema: StructType) -> tuple[str, ...]:
    """Return the name and type of each column, sorted: the order of columns does not matter."""
    return tuple(sorted(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields))


def row_hash_sql(schema: StructType, names: Sequence[str]) -> str:
    """Return the SQL expression of a row's hash.

    Columns are taken in order of name. Adding, dropping or renaming a column, or changing its type,
    changes the hash of every row. 0.0 and -0.0 have the same hash, because Spark treats them as
    equal; so do all NaNs.

    Args:
        schema: The columns under the user's names.
        names: The columns' names in the expression, in the same order.
    """
    salt = hashlib.sha256("\n".join(column_types(schema)).encode()).digest()[:_SALT_BYTES]
    parts = [f"{int.from_bytes(salt, 'big') >> _SALT_SHIFT}L"]
    found = zip(schema.fields, names, strict=True)
    for field, name in sorted(found, key=lambda pair: pair[0].name):
        parts += _parts(name, field.dataType, 0)
    return f"xxhash64({', '.join(parts)})"


def _parts(value: str, kind: DataType, depth: int) -> list[str]:
    """Return what is hashed of one value: enough to distinguish it from any other of its type."""
    if isinstance(kind, ArrayType):
        return [_size(value), *_elements(value, kind.elementType, depth)]
    if isinstance(kind, MapType):
        return [_size(value), _entries(value, kind, depth)]
    return [f"{value} IS NULL", *_inner(value, kind, depth)]


def _inner(value: str, kind: DataType, depth: int) -> list[str]:
    """Return what is hashed of a value, apart from whether it is NULL."""
    if isinstance(kind, NullType):
        return []
    if isinstance(kind, StructType):
        fields = [(f"{value}.{quoted(field.name)}", field.dataType) for field in kind.fields]
        return [part for name, inner in fields for part in _parts(name, inner, depth)]
    if isinstance(kind, StringType) and kind.simpleString() != "string":
        return [f"CAST({value} AS BINARY)"]  # Different texts may have one hash under a collation.
    if kind.typeName() == "variant":  # Neither its text nor its type is enough.
        return [f"to_json({value})", f"schema_of_variant({value})"]
    return [value]


def _entries(value: str, kind: MapType, depth: int) -> str:
    entry = f"e{depth}"
    parts = [
        *_parts(f"{entry}.key", kind.keyType, depth + 1),
        *_parts(f"{entry}.value", kind.valueType, depth + 1),
    ]
    return f"sort_array(transform(map_entries({value}), {entry} -> xxhash64({', '.join(parts)})))"


def _elements(array: str, kind: DataType, depth: int) -> list[str]:
    """Return what is hashed of an array, apart from its length."""
    element = f"e{depth}"
    parts = _parts(element, kind, depth + 1)
    if parts != [f"{element} IS NULL", element]:
        return [f"transform({array}, {element} -> xxhash64({', '.join(parts)}))"]
    # Faster for plain values, as in a vector: only the positions of NULLs must be known.
    is_null = f"{element} -> {element} IS NULL"
    where = f"xxhash64(transform({array}, {is_null}))"
    return [f"if(exists({array}, {is_null}), {where}, 0L)", array]


def _size(value: str) -> str:
    # The size of NULL is -1 or NULL, depending on a session setting.
    return f"coalesce(size({value}), -1)"


# ---- The rows of a DataFrame, as the engine needs them
class DataFrameSubmitter:
    """Runs task plans over one DataFrame."""

    def __init__(self, df: SparkDataFrame, key: tuple[str, ...]) -> None:
        """Keep the DataFrame and its key; nothing runs yet."""
        self._df = df
        self._key = key
        self._jobs_beside: JobsBeside | None = None
        self._left: tuple[frozenset[str], RowsLeft] | None = None

    @property
    def slots(self) -> int:
        """How many tasks run at once.

        Raises:
            JobFailedError: Spark does not report its parallelism.
        """
        return SparkJobs(self._df.sparkSession).slots

    def measure(self, finished: KeyFiles, *, whole_rows: bool = False) -> InputSums:
        """Read the input once and return the sums of the rows that are not finished.

        Args:
            finished: The keys of rows to leave out.
            whole_rows: Sum whole rows too; otherwise only the key columns are read.

        Raises:
            JobFailedError: Spark could not read the input, or cannot hash its rows.
        """
        with spark_errors():
            left = self._rows_left(finished)
            if not whole_rows:
                return left.sums()
            rows, key, row = self._numbered(left.rows())
            sums = sums_of(rows, key, row=row).collect()[0].asDict()
        return InputSums(**sums, columns=column_types(self._df.schema))

    def look(self, *, whole_rows: bool = False) -> tuple[InputSums, int]:
        """Return the sums of the whole input, and how many keys of a sample appear in two rows.

        Args:
            whole_rows: Sum whole rows too; otherwise only the key columns are read.

        Raises:
            JobFailedError: Spark could not read the input, or cannot hash its rows.
        """
        with spark_errors():
            if whole_rows:
                rows, key, row = self._numbered(self._df)
                found = sums_and_doubles_of(rows, key, row=row)
            else:
                keys_only = self._df.select(*(quoted(name) for name in self._key))
                found = sums_and_doubles_of(keys_only, self._key)
            sums = found.collect()[0].asDict()
        doubled = sums.pop("doubled")
        columns = column_types(self._df.schema) if whole_rows else ()
        return InputSums(**sums, columns=columns), doubled

    def submit(self, plan: TaskPlan, finished: KeyFiles) -> list[TaskReport]:
        """Run the plan over the partitions of unfinished rows, and wait for all of them.

        Raises:
            SettingsError: The transform cannot be pickled.
            TransformTooLargeError: The pickled transform is too large.
            MissingExtraError: PySpark lacks a package on the driver.
            ExecutorSetupError: The executors run the wrong Python.
            NullKeyError: Some rows have no key.
            JobFailedError: Spark gave up on the job.
        """
        with spark_errors():
            left = self._rows_left(finished).rows()
        types = [arrow_schema(self._df).field(name).type for name in self._key]
        needs_hash = needs_hash_column(types)
        if plan.whole_rows:
            with spark_errors():
                rows, key, row = self._numbered(left)
                hashes = f"'{ROW_HASH}', {row}"
                if needs_hash:
                    hashes += f", '{KEY_HASH}', {hash_sql(key)}"
                tagged = rows.selectExpr("*", f"named_struct({hashes})")
                left = tagged.toDF(*self._df.columns, TAG_COLUMN)
        elif needs_hash:
            left = left.selectExpr("*", f"{hash_sql(self._key)} AS {quoted(TAG_COLUMN)}")
        try:
            return run_plan(left, plan)
        finally:
            self._release()

    def _rows_left(self, finished: KeyFiles) -> RowsLeft:
        """Return what is left for these finished keys; what was found for others is freed."""
        names = frozenset(finished.uris)
        if self._left is None or self._left[0] != names:
            self._release()
            self._left = names, RowsLeft(self._df, self._key, finished)
        return self._left[1]

    def _release(self) -> None:
        if self._left is not None:
            with contextlib.suppress(HoldfastError), spark_errors():  # The session may have died.
                self._left[1].release()
        self._left = None

    def _numbered(self, df: SparkDataFrame) -> tuple[SparkDataFrame, list[str], str]:
        """Return the rows with columns named by position, the key, and the hash of a whole row.

        Names may differ only in case, or be equal: then Spark cannot distinguish them.
        """
        names = [f"_{index}" for index in range(len(self._df.columns))]
        key = [names[self._df.columns.index(name)] for name in self._key]
        return df.toDF(*names), key, row_hash_sql(self._df.schema, names)

    def items(self, plan: ItemPlan, items: Sequence[str]) -> list[TaskReport]:
        """Run a plan over string work items, each in its own task.

        Raises:
            JobFailedError: Spark gave up on the job.
        """
        return SparkJobs(self._df.sparkSession).items(plan, items)

    def duplicates(self, *, beside: bool = False) -> KeyExamples:
        """Return the keys that appear in more than one input row.

        Args:
            beside: Whether another thread calls this while a plan runs.

        Raises:
            JobFailedError: Spark could not read the input.
        """
        with spark_errors():
            if beside:
                self._jobs_beside = JobsBeside(self._df.sparkSession)
                self._jobs_beside.begin()
            found, examples = duplicates(self._df, self._key)
        return KeyExamples(keys=found, examples=examples)

    def cancel_beside(self) -> None:
        """Cancel jobs of the other thread that are still running."""
        if self._jobs_beside is not None:
            self._jobs_beside.cancel()

    def gone(self, finished: KeyFiles) -> KeyExamples:
        """Return the finished keys that the input no longer has.

        Raises:
            JobFailedError: Spark could not read the input or the key files.
        """
        with spark_errors():
            found, examples = gone(self._df, self._key, finished)
        return KeyExamples(keys=found, examples=examples)

    def overlaps(self, finished: KeyFiles) -> dict[tuple[str, ...], int]:
        """Return which records share keys, and how many.

        Raises:
            JobFailedError: Spark could not read the key files.
        """
        with spark_errors():
            return overlaps(self._df, self._key, finished)


# ---- A run's failed or staged rows as a DataFrame, read by executors

# Few tasks, so that a retry does not make many small files; a task makes many calls at once.
_ROWS_PER_TASK, _TASKS_MAX = 1_000, 200
_NO_ROWS = "key struct<>, input struct<>, error string, attempts int, epoch bigint"


def quarantine_frame(
    session: SparkSession, storage: Storage, chunks: Mapping[str, Chunk]
) -> SparkDataFrame:
    """Return failed rows: `key`, `input`, `error`, `attempts`, `epoch`.

    Args:
        session: The session to read them in.
        storage: How the store is reached.
        chunks: The objects that hold them.

    Raises:
        LedgerDamagedError: An object is gone, or is not as it was written.
        StoreUnavailableError: The store did not answer.
    """
    if not chunks:
        return session.createDataFrame([], _NO_ROWS)
    first = next(iter(chunks))
    arrow = read_chunk(storage, first, chunks[first])[0].schema
    # Pickled on the driver and loaded on executors; never stored.
    payload: bytes = cloudpickle.dumps((storage, dict(chunks), arrow))  # type: ignore[no-untyped-call]
    uris = session.createDataFrame([(uri,) for uri in chunks], "uri string")
    schema = from_arrow_schema(arrow, prefer_timestamp_ntz=True)
    rows = sum(chunk.rows for chunk in chunks.values())
    parts = min(rows // _ROWS_PER_TASK + 1, len(chunks), _TASKS_MAX)
    return uris.repartition(parts).mapInArrow(_quarantine_reader(payload), schema)


def _quarantine_reader(
    payload: bytes,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage, chunks, schema = pickle.loads(payload)  # noqa: S301 - from Spark, not storage.
        for batch in batches:
            for uri in batch.column("uri").to_pylist():
                rows = pa.Table.from_batches(read_chunk(storage, uri, chunks[uri]))
                # The input's columns may have changed between two starts of the run.
                yield from rows.cast(schema).to_batches()

    return read


# So that a task reads some files, and a small run has few tasks.
_STAGED_ROWS_PER_TASK = 100_000


def staged_frame(
    session: SparkSession, reader: StagedReaderSpec, files: Sequence[StagedFile]
) -> SparkDataFrame:
    """Return the rows of staged files. Spark lacks some types: such columns get the nearest one.

    Args:
        session: The session to read them in.
        reader: Reads them on executors.
        files: The files.
    """
    arrow = readable_schema(reader.open().schema)
    schema = from_arrow_schema(arrow, prefer_timestamp_ntz=True)
    if not files:
        return session.createDataFrame([], schema)
    # Pickled on the driver and loaded on executors; never stored.
    payload: bytes = cloudpickle.dumps((reader, arrow))  # type: ignore[no-untyped-call]
    items = [(json.dumps([[file.path, file.size_bytes]]),) for file in files]
    named = session.createDataFrame(items, "item string")
    rows = sum(file.rows for file in files)
    parts = min(rows // _STAGED_ROWS_PER_TASK + 1, len(files))
    return named.repartition(parts).mapInArrow(_staged_reader(payload), schema)


def _staged_reader(
    payload: bytes,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spec, schema = pickle.loads(payload)  # noqa: S301 - from Spark, not storage.
        reader = spec.open()
        for batch in batches:
            for item in batch.column("item").to_pylist():
                for rows in reader.rows(item):
                    table = pa.Table.from_batches([rows.replace_schema_metadata(None)])
                    yield from table.cast(schema, safe=False).to_batches()

    return read


def readable_schema(schema: pa.Schema) -> pa.Schema:
    """Return columns with the types that Spark has for theirs."""
    fields = [pa.field(field.name, _readable(field.type), field.nullable) for field in schema]
    return pa.schema(fields)


def _readable(kind: pa.DataType) -> pa.DataType:
    if pt.is_struct(kind):
        return pa.struct(
            [(f.name, _readable(f.type)) for f in map(kind.field, range(kind.num_fields))]
        )
    if pt.is_map(kind):
        return pa.map_(_readable(kind.key_type), _readable(kind.item_type))
    if is_any_list(kind):
        return pa.list_(_readable(kind.value_type))
    if pt.is_dictionary(kind):
        return _readable(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _readable(kind.storage_type)
    return next((found for is_kind, found in _NEAREST if is_kind(kind)), kind)


_NEAREST: Sequence[tuple[Callable[[pa.DataType], bool], pa.DataType]] = (
    (pt.is_fixed_size_binary, pa.binary()),
    (pt.is_large_binary, pa.binary()),
    (pt.is_large_string, pa.string()),
    (pt.is_time, pa.string()),
    (pt.is_uint8, pa.int16()),
    (pt.is_uint16, pa.int32()),
    (pt.is_uint32, pa.int64()),
    (pt.is_uint64, pa.decimal128(20, 0)),
    (pt.is_float16, pa.float32()),
    (pt.is_date64, pa.date32()),
    # Spark counts microseconds.
    (lambda kind: pt.is_timestamp(kind) and kind.tz is None, pa.timestamp("us")),
    (pt.is_timestamp, pa.timestamp("us", "UTC")),
    (pt.is_duration, pa.duration("us")),
)
