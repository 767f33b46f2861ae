"""What engines on Spark share: a session, a map that passes rows on, and a count.

It is imported in the peers' own environments, as `bench.peer_job` is.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pyarrow as pa

from bench.peer_job import Foreign, PeerJob

_SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "4g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def open_session(settings: Mapping[str, str]) -> Foreign:
    """Return a session of the installed PySpark: a peer's is not the one types are checked with."""
    builder: Foreign = importlib.import_module("pyspark.sql").SparkSession.builder
    for name, value in {**_SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    session: Foreign = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def handing_on(job: PeerJob) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """Return what `mapInArrow` is given."""

    def same(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            job.passed(batch.num_rows)
            yield batch

    return same


def columns_of(session: Foreign, source: str) -> str:
    """Return the columns of Parquet files, as a table is made with them."""
    columns = session.read.parquet(source).schema
    return ", ".join(f"{column.name} {column.dataType.simpleString()}" for column in columns)


def catalog_of(job: PeerJob) -> str:
    """Return a name that only this folder has: a session keeps the catalogs that it has seen."""
    return Path(job.folder).name.replace("-", "_")


def counts_of(session: Foreign, table: str) -> tuple[int, int]:
    """Return how many rows and how many ids a table has."""
    query = f"SELECT count(*), count(DISTINCT id) FROM {table}"
    ((rows, ids),) = session.sql(query).collect()
    return rows, ids
