"""lance-spark: `read`, `mapInArrow`, `writeTo(...).append()`; in an environment of its own.

It has no checkpointed column: lance-spark 0.4.0 has a batch write and no streaming one, so Spark's
own checkpoints do not reach it. It runs on Spark 3.5, which is older than the Spark of ours.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.peer_job import TABLE, Foreign, PeerJob, serve


class _SparkOnLance:
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
            # In front of Spark's own jars: it brings an Arrow that is too old for Lance.
            "spark.driver.extraClassPath": os.pathsep.join(job.jars),
        }
        for name, value in settings.items():
            builder = builder.config(name, value)
        self._session: Foreign = builder.getOrCreate()
        self._session.sparkContext.setLogLevel("ERROR")

    def prepare(self, job: PeerJob) -> None:
        kind = f"spark.sql.catalog.{_catalog(job)}"
        self._session.conf.set(kind, "org.lance.spark.LanceNamespaceSparkCatalog")
        self._session.conf.set(f"{kind}.impl", "dir")
        self._session.conf.set(f"{kind}.root", f"{job.folder}/warehouse")
        self._session.conf.set(f"{kind}.single_level_ns", "true")
        columns = self._session.read.parquet(job.source).schema
        ddl = ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in columns)
        # Spark has no type for lists of one length: the table's properties say it.
        source = next(Path(job.source).glob("*.parquet"))
        length = pq.read_schema(source).field("vector").type.list_size
        self._session.sql(
            f"CREATE TABLE IF NOT EXISTS {_table(job)} ({ddl}) USING lance "
            f"TBLPROPERTIES ('vector.arrow.fixed-size-list.size' = '{length}')"
        )

    def write(self, job: PeerJob) -> None:
        def same(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
            for batch in batches:
                job.passed(batch.num_rows)
                yield batch

        rows = self._session.read.parquet(job.source)
        rows.mapInArrow(same, rows.schema).writeTo(_table(job)).append()

    def counts(self, job: PeerJob) -> tuple[int, int]:
        query = f"SELECT count(*), count(DISTINCT id) FROM {_table(job)}"
        ((rows, ids),) = self._session.sql(query).collect()
        return rows, ids


def _catalog(job: PeerJob) -> str:
    """Return a name of the folder's own: a session keeps the catalogs that it has seen."""
    return Path(job.folder).name.replace("-", "_")


def _table(job: PeerJob) -> str:
    return f"{_catalog(job)}.default.{TABLE}"


if __name__ == "__main__":
    serve(_SparkOnLance)
