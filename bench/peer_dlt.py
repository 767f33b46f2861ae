"""dlt: files, a transformer over Arrow batches, an Iceberg table; run in its own environment.

`pipeline.run` extracts into a local load package, normalizes it, and loads it; state is committed
with the load. Plain reads all files. Checkpointed keeps dlt's own cursor over the files' times,
so that a re-run finds no new file. If a start ends while it extracts, it leaves no package that
counts, and the next one extracts from the beginning; if it ends later, the next one loads the
pending package. The second half is from the code of `Pipeline.run`; the first is what a killed
try-out showed: a second start that took as long as a whole one, and each row once.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from bench.peer_job import BATCH_ROWS, NAMESPACE, TABLE, Foreign, PeerJob, count_ids, serve


class _Dlt:
    def __init__(self, _: PeerJob) -> None:
        # Imported by name: this project's environment, where types are checked, has no dlt.
        self._dlt: Foreign = importlib.import_module("dlt")
        self._files: Foreign = importlib.import_module("dlt.sources.filesystem").filesystem

    def prepare(self, job: PeerJob) -> None:
        """Nothing: the pipeline makes its folders and its table itself."""

    def write(self, job: PeerJob) -> None:
        def mapped(items: list[dict[str, str]]) -> Iterator[pa.RecordBatch]:
            for item in items:
                path = item["file_url"].removeprefix("file://")
                for batch in pq.ParquetFile(path).iter_batches(batch_size=BATCH_ROWS):
                    job.passed(batch.num_rows)
                    yield batch

        files = self._files(bucket_url=f"file://{job.source}", file_glob="*.parquet")
        if job.is_checkpointed:
            files.apply_hints(incremental=self._dlt.sources.incremental("modification_date"))
        read = self._dlt.transformer(
            mapped, name=TABLE, write_disposition="append", table_format="iceberg"
        )
        self._pipeline(job).run(files | read)

    def counts(self, job: PeerJob) -> tuple[int, int]:
        tables = importlib.import_module("dlt.common.libs.pyiceberg").get_iceberg_tables(
            self._pipeline(job), TABLE
        )
        return count_ids(tables[TABLE].scan(selected_fields=("id",)).to_arrow().column("id"))

    def _pipeline(self, job: PeerJob) -> Foreign:
        return self._dlt.pipeline(
            pipeline_name="peers",
            pipelines_dir=f"{job.folder}/pipelines",
            destination=self._dlt.destinations.filesystem(bucket_url=f"file://{job.folder}/lake"),
            dataset_name=NAMESPACE,
        )


if __name__ == "__main__":
    serve(_Dlt)
