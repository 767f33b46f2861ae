"""The failed rows of a run as a DataFrame, read from the ledger by executors."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.pandas.types import from_arrow_schema

from holdfast.ledger.chunks import read_chunk
from holdfast.model.work import Chunk
from holdfast.spark.frames import SparkDataFrame, SparkSession
from holdfast.storage.port import Storage

# Few, so that trying rows again makes no crowd of small files; a task makes many calls at once.
_ROWS_PER_TASK, _TASKS_MAX = 1_000, 200
_NO_ROWS = "key struct<>, input struct<>, error string, attempts int, epoch bigint"


def quarantine_frame(
    session: SparkSession, storage: Storage, chunks: Mapping[str, Chunk]
) -> SparkDataFrame:
    """Return failed rows: `key`, `input`, `error`, `attempts`, `epoch`.

    Args:
        session: Where to read them.
        storage: How the store is reached.
        chunks: The objects that hold them.

    Raises:
        LedgerDamagedError: An object is gone, or not as it was written.
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
    return uris.repartition(parts).mapInArrow(_reader(payload), schema)


def _reader(payload: bytes) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage, chunks, schema = pickle.loads(payload)  # noqa: S301 - from Spark, not storage.
        for batch in batches:
            for uri in batch.column("uri").to_pylist():
                rows = pa.Table.from_batches(read_chunk(storage, uri, chunks[uri]))
                # The input may have changed its columns between two starts of the run.
                yield from rows.cast(schema).to_batches()

    return read
