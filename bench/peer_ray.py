"""Ray Data: `read_parquet`, `map_batches`, `write_parquet`; run in an environment of its own.

Plain has no checkpoint config. With one, each write task puts the ids of its rows beside its data
file: first as pending, after the data file under the final name. A later start deletes the files of
pending ids, loads the ids of all others into memory, and filters the input by them. By default they
are deleted after a success, and a re-run would write all rows again, so here they are kept. This
was read in `ray/data/checkpoint` and `ray/data/_internal/planner/checkpoint`.

Its own Iceberg sink is not a file sink, so it promises only at-least-once ("may be written again on
retry"); its Parquet sink is its best, so the output is a folder of Parquet files.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pyarrow as pa
from pyarrow import dataset

from bench.peer_job import BATCH_ROWS, Foreign, PeerJob, count_ids, serve


class _RayData:
    def __init__(self, job: PeerJob) -> None:
        # Imported by name: this project's environment, where types are checked, has no Ray.
        self._ray: Foreign = importlib.import_module("ray")
        self._data: Foreign = importlib.import_module("ray.data")
        temporary = str(Path(job.folder) / "ray")
        self._ray.init(
            num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=temporary
        )
        self._data.DataContext.get_current().enable_progress_bars = False

    def prepare(self, job: PeerJob) -> None:
        Path(job.folder, "table").mkdir(exist_ok=True)
        settings = self._data.DataContext.get_current()
        settings.checkpoint_config = None
        if job.is_checkpointed:
            checkpoint = importlib.import_module("ray.data.checkpoint")
            Path(job.folder, "checkpoint").mkdir(exist_ok=True)
            settings.checkpoint_config = checkpoint.CheckpointConfig(
                id_column="id",
                checkpoint_path=f"{job.folder}/checkpoint",
                delete_checkpoint_on_success=False,
            )

    def write(self, job: PeerJob) -> None:
        def same(batch: pa.RecordBatch) -> pa.RecordBatch:
            job.passed(batch.num_rows)
            return batch

        rows = self._data.read_parquet(job.source)
        mapped = rows.map_batches(same, batch_format="pyarrow", batch_size=BATCH_ROWS)
        mapped.write_parquet(f"{job.folder}/table")

    def counts(self, job: PeerJob) -> tuple[int, int]:
        found = dataset.dataset(f"{job.folder}/table", format="parquet")
        return count_ids(found.to_table(columns=["id"]).column("id"))


if __name__ == "__main__":
    serve(_RayData)
