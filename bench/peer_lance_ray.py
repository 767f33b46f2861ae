"""Ray Data into Lance: `read_parquet`, `map_batches`, `lance_ray.write_lance`.

It has no checkpointed column: nothing in lance-ray 0.5.0 mentions checkpoints. Its tasks write
fragments, and the driver commits them at the end, from memory. With `stream=True` it commits batch
after batch instead, and its user passes a later start how many rows to skip; that is not measured
here.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pyarrow as pa

from bench import peer_lance_table
from bench.peer_job import BATCH_ROWS, Foreign, PeerJob, serve


class _RayOnLance:
    def __init__(self, job: PeerJob) -> None:
        # Imported by name: this project's environment, where types are checked, has no Ray.
        ray: Foreign = importlib.import_module("ray")
        self._data: Foreign = importlib.import_module("ray.data")
        self._lance_ray: Foreign = importlib.import_module("lance_ray")
        temporary = str(Path(job.folder) / "ray")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=temporary)
        self._data.DataContext.get_current().enable_progress_bars = False

    def prepare(self, job: PeerJob) -> None:
        peer_lance_table.create(job)

    def write(self, job: PeerJob) -> None:
        def same(batch: pa.RecordBatch) -> pa.RecordBatch:
            job.passed(batch.num_rows)
            return batch

        rows = self._data.read_parquet(job.source)
        mapped = rows.map_batches(same, batch_format="pyarrow", batch_size=BATCH_ROWS)
        self._lance_ray.write_lance(mapped, peer_lance_table.uri(job), mode="append")

    def counts(self, job: PeerJob) -> tuple[int, int]:
        return peer_lance_table.counts(job)


if __name__ == "__main__":
    serve(_RayOnLance)
