"""Structured Streaming with AvailableNow into an Iceberg table; in an environment of its own.

Plain is the same plan as one batch: `read`, `mapInArrow`, `writeTo(...).append()`. Checkpointed
is a stream over the files, four at a time, hence four commits of the table. A later start repeats
the batch that was under way, which Iceberg's sink recognizes by its query and epoch. Until the last
batch readers see a part of the result. A re-run lists the files and finds none new. Seen in Spark's
SPARK-36533 (AvailableNow in several batches) and in the texts of Iceberg's class
`SparkWrite$BaseStreamingWrite` ("Skipping epoch {} for query {} as it was already committed").
"""

from __future__ import annotations

from bench.peer_job import NAMESPACE, TABLE, PeerJob, serve
from bench.peer_spark import catalog_of, columns_of, counts_of, handing_on, open_session

_FILES_PER_BATCH = "4"


class _Stream:
    def __init__(self, job: PeerJob) -> None:
        self._session = open_session({"spark.jars": ",".join(job.jars)})

    def prepare(self, job: PeerJob) -> None:
        catalog = catalog_of(job)
        kind = f"spark.sql.catalog.{catalog}"
        self._session.conf.set(kind, "org.apache.iceberg.spark.SparkCatalog")
        self._session.conf.set(f"{kind}.type", "hadoop")
        self._session.conf.set(f"{kind}.warehouse", f"file://{job.folder}/warehouse")
        self._session.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.{NAMESPACE}")
        columns = columns_of(self._session, job.source)
        self._session.sql(f"CREATE TABLE IF NOT EXISTS {_table(job)} ({columns}) USING iceberg")

    def write(self, job: PeerJob) -> None:
        schema = self._session.table(_table(job)).schema
        if not job.is_checkpointed:
            rows = self._session.read.schema(schema).parquet(job.source)
            rows.mapInArrow(handing_on(job), schema).writeTo(_table(job)).append()
            return
        stream = self._session.readStream.schema(schema)
        rows = stream.option("maxFilesPerTrigger", _FILES_PER_BATCH).parquet(job.source)
        writer = rows.mapInArrow(handing_on(job), schema).writeStream.trigger(availableNow=True)
        location = f"file://{job.folder}/checkpoint"
        writer.option("checkpointLocation", location).toTable(_table(job)).awaitTermination()

    def counts(self, job: PeerJob) -> tuple[int, int]:
        self._session.catalog.refreshTable(_table(job))
        return counts_of(self._session, _table(job))


def _table(job: PeerJob) -> str:
    return f"{catalog_of(job)}.{NAMESPACE}.{TABLE}"


if __name__ == "__main__":
    serve(_Stream)
