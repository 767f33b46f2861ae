"""Daft: `read_parquet`, a batch UDF, `write_iceberg`; run in an environment of its own.

Plain runs on its native runner, which is its fastest; that runner refuses checkpoints ("not
supported on the native runner"), so checkpointed runs on its Ray runner. There the source's keys
and the data files of finished tasks are put into a checkpoint store; a later start filters the
input by all stored keys (an anti-join in actors), and commits the files of all starts in one
snapshot, tagged with a key of the user's. A re-run finds the tag and does nothing. Read in
`daft/checkpoint.py`, `daft/io/_checkpoint.py` and `DataFrame._write_iceberg_with_checkpoint`.

The UDF sees one column only, as a user of Daft would write it. That is less than our map sees.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from bench.peer_job import NAMESPACE, TABLE, Foreign, PeerJob, count_ids, create_iceberg, serve


class _Daft:
    def __init__(self, job: PeerJob) -> None:
        # Imported by name: this project's environment, where types are checked, has neither.
        self._daft: Foreign = importlib.import_module("daft")
        if job.is_checkpointed:
            ray: Foreign = importlib.import_module("ray")
            temporary = str(Path(job.folder) / "ray")
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=temporary)
            self._daft.set_runner_ray()
        else:
            self._daft.set_runner_native(num_threads=2)

    def prepare(self, job: PeerJob) -> None:
        source = next(Path(job.source).glob("*.parquet"))
        create_iceberg(self._catalog(job), pq.read_schema(source))

    def write(self, job: PeerJob) -> None:
        daft = self._daft

        @daft.func.batch(return_dtype=daft.DataType.float64())  # type: ignore[untyped-decorator]
        def same(amounts: Foreign) -> Foreign:
            job.passed(len(amounts))
            return amounts

        reading: dict[str, Any] = {}
        writing: dict[str, Any] = {}
        if job.is_checkpointed:
            store = daft.CheckpointStore(f"file://{job.folder}/checkpoint")
            reading["checkpoint"] = daft.CheckpointConfig(store, on="id")
            writing["checkpoint"] = daft.IdempotentCommit(store, idempotence_key="bench-peers")
        rows = daft.read_parquet(f"{job.source}/*.parquet", **reading)
        rows = rows.with_column("amount", same(rows["amount"]))
        rows.write_iceberg(self._table(job), mode="append", **writing)

    def counts(self, job: PeerJob) -> tuple[int, int]:
        found = self._table(job).scan(selected_fields=("id",)).to_arrow()
        return count_ids(found.column("id"))

    def _catalog(self, job: PeerJob) -> Catalog:
        return load_catalog("bench", **job.catalog())

    def _table(self, job: PeerJob) -> Table:
        return self._catalog(job).load_table(f"{NAMESPACE}.{TABLE}")


if __name__ == "__main__":
    serve(_Daft)
