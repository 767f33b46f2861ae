"""Structured Streaming with AvailableNow into an Iceberg table; in an environment of its own.

Plain is the same plan as one batch: `read`, `mapInArrow`, `writeTo(...).append()`. Checkpointed
is a stream over the files, four at a time, hence four commits of the table. A later life repeats
the batch that was under way, which Iceberg's sink recognizes by its query and epoch. Until
the last batch readers see a part of the result. A re-run lists the files and finds none new.
Seen in Spark's SPARK-36533 (AvailableNow in several batches) and in the texts of Iceberg's class
`SparkWrite$BaseStreamingWrite` ("Skipping epoch {} for query {} as it was already committed").
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from bench.peer_job import NAMESPACE, TABLE, Foreign, PeerJob, serve

_FILES_PER_BATCH = "4"


class _Stream:
    def __init__(self, job: PeerJob) -> None:
        # By name: it is the peer's own PySpark, not the one that types are checked with.
        builder: Foreign = importlib.import_module("pyspark.sql").SparkSession.builder
        settings = {
            "spark.master": "local[2]",
            "spark.driver.memory": "4g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.jars": ",".join(job.jars),
        }
        for name, value in settings.items():
            builder = builder.config(name, value)
        self._session: Foreign = builder.getOrCreate()
        self._session.sparkContext.setLogLevel("ERROR")

    def prepare(self, job: PeerJob) -> None:
        columns = self._session.read.parquet(job.source).schema
        ddl = ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in columns)
        catalog = _catalog(job)
        kind = f"spark.sql.catalog.{catalog}"
        self._session.conf.set(kind, "org.apache.iceberg.spark.SparkCatalog")
        self._session.conf.set(f"{kind}.type", "hadoop")
        self._session.conf.set(f"{kind}.warehouse", f"file://{job.folder}/warehouse")
        self._session.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.{NAMESPACE}")
        self._session.sql(f"CREATE TABLE IF NOT EXISTS {_table(job)} ({ddl}) USING iceberg")

    def write(self, job: PeerJob) -> None:
        def same(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
            for batch in batches:
                job.passed(batch.num_rows)
                yield batch

        schema = self._session.table(_table(job)).schema
        if not job.is_checkpointed:
            rows = self._session.read.schema(schema).parquet(job.source)
            rows.mapInArrow(same, schema).writeTo(_table(job)).append()
            return
        stream = self._session.readStream.schema(schema)
        rows = stream.option("maxFilesPerTrigger", _FILES_PER_BATCH).parquet(job.source)
        writer = rows.mapInArrow(same, schema).writeStream.trigger(availableNow=True)
        location = f"file://{job.folder}/checkpoint"
        writer.option("checkpointLocation", location).toTable(_table(job)).awaitTermination()

    def counts(self, job: PeerJob) -> tuple[int, int]:
        self._session.catalog.refreshTable(_table(job))
        query = f"SELECT count(*), count(DISTINCT id) FROM {_table(job)}"
        ((rows, ids),) = self._session.sql(query).collect()
        return rows, ids


def _catalog(job: PeerJob) -> str:
    """Return a name of the folder's own: a session keeps the catalogs that it has seen."""
    return Path(job.folder).name.replace("-", "_")


def _table(job: PeerJob) -> str:
    return f"{_catalog(job)}.{NAMESPACE}.{TABLE}"


if __name__ == "__main__":
    serve(_Stream)
