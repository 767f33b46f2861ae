"""lance-spark: `read`, `mapInArrow`, `writeTo(...).append()`; in an environment of its own.

It has no checkpointed column: lance-spark 0.4.0 has a batch write and no streaming one, so Spark's
own checkpoints do not apply. It runs on Spark 3.5, which is older than the Spark of ours.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet as pq

from bench.peer_job import TABLE, PeerJob, serve
from bench.peer_spark import catalog_of, columns_of, counts_of, handing_on, open_session


class _SparkOnLance:
    def __init__(self, job: PeerJob) -> None:
        # In front of Spark's own jars: it brings an Arrow that is too old for Lance.
        self._session = open_session({"spark.driver.extraClassPath": os.pathsep.join(job.jars)})

    def prepare(self, job: PeerJob) -> None:
        kind = f"spark.sql.catalog.{catalog_of(job)}"
        self._session.conf.set(kind, "org.lance.spark.LanceNamespaceSparkCatalog")
        self._session.conf.set(f"{kind}.impl", "dir")
        self._session.conf.set(f"{kind}.root", f"{job.folder}/warehouse")
        self._session.conf.set(f"{kind}.single_level_ns", "true")
        columns = columns_of(self._session, job.source)
        # Spark has no type for lists of one length: the table's properties say it.
        source = next(Path(job.source).glob("*.parquet"))
        length = pq.read_schema(source).field("vector").type.list_size
        self._session.sql(
            f"CREATE TABLE IF NOT EXISTS {_table(job)} ({columns}) USING lance "
            f"TBLPROPERTIES ('vector.arrow.fixed-size-list.size' = '{length}')"
        )

    def write(self, job: PeerJob) -> None:
        rows = self._session.read.parquet(job.source)
        rows.mapInArrow(handing_on(job), rows.schema).writeTo(_table(job)).append()

    def counts(self, job: PeerJob) -> tuple[int, int]:
        return counts_of(self._session, _table(job))


def _table(job: PeerJob) -> str:
    return f"{catalog_of(job)}.default.{TABLE}"


if __name__ == "__main__":
    serve(_SparkOnLance)
