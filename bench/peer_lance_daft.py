"""Daft into Lance: `read_parquet`, a batch UDF, `daft_lance.write_lance`; on its native runner.

It has no checkpointed column. daft-lance 0.6.0 takes `checkpoint=IdempotentCommit(...)`, and its
sink says through `checkpoint_file_format` that fragments are to be put into the checkpoint store.
But Daft 0.7.26, the newest release, never asks for that: the formats that it stores are Parquet,
Iceberg and Delta Lake. For an empty store, the sink raises "did not stage any Lance write_results".
This was read in `daft_lance/lance_data_sink.py` and in the names that
`daft.daft.CheckpointFileFormat` has; it was not run.

The UDF sees the vectors only, as a user of Daft would write it. That is less than our map sees.
"""

from __future__ import annotations

import importlib

from bench import peer_lance_table
from bench.peer_job import Foreign, PeerJob, serve


class _DaftOnLance:
    def __init__(self, _: PeerJob) -> None:
        # Imported by name: this project's environment, where types are checked, has neither.
        self._daft: Foreign = importlib.import_module("daft")
        self._daft_lance: Foreign = importlib.import_module("daft_lance")
        self._daft.set_runner_native(num_threads=2)

    def prepare(self, job: PeerJob) -> None:
        peer_lance_table.create(job)

    def write(self, job: PeerJob) -> None:
        rows = self._daft.read_parquet(f"{job.source}/*.parquet")
        kind = rows.schema()["vector"].dtype

        @self._daft.func.batch(return_dtype=kind)  # type: ignore[untyped-decorator]
        def same(vectors: Foreign) -> Foreign:
            job.passed(len(vectors))
            return vectors

        rows = rows.with_column("vector", same(rows["vector"]))
        self._daft_lance.write_lance(rows, peer_lance_table.uri(job), mode="append")

    def counts(self, job: PeerJob) -> tuple[int, int]:
        return peer_lance_table.counts(job)


if __name__ == "__main__":
    serve(_DaftOnLance)
