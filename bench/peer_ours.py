"""Ours: a Parquet scan appended to an Iceberg table; run in this project's own environment.

Plain is `checkpoint_every=None`: the run's log and the one commit stay, only the records within a
task are left out. Checkpointed is a record at least every two seconds.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog

import holdfast as hf
from bench.peer_job import NAMESPACE, TABLE, PeerJob, count_ids, create_iceberg, serve
from bench.session import open_session

CHECKPOINT_EVERY = "2s"


class Pass:
    """Passes rows on."""

    def __init__(self, job: PeerJob) -> None:
        """Keep what the map should cost."""
        self._job = job

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as they are."""
        self._job.passed(batch.num_rows)
        return batch


class _Ours:
    def __init__(self, _: PeerJob) -> None:
        open_session({})

    def prepare(self, job: PeerJob) -> None:
        source = next(Path(job.source).glob("*.parquet"))
        create_iceberg(load_catalog("default", **job.catalog()), pq.read_schema(source))

    def write(self, job: PeerJob) -> None:
        hf.Run("bench-peers", store=f"file://{job.folder}/ledger").append(
            hf.scan_parquet(sorted(map(str, Path(job.source).glob("*.parquet"))), options={}),
            to=hf.IcebergTable(f"{NAMESPACE}.{TABLE}", catalog=job.catalog()),
            transform=Pass(job),
            checkpoint_every=CHECKPOINT_EVERY if job.is_checkpointed else None,
        )

    def counts(self, job: PeerJob) -> tuple[int, int]:
        table = load_catalog("default", **job.catalog()).load_table(f"{NAMESPACE}.{TABLE}")
        return count_ids(table.scan(selected_fields=("id",)).to_arrow().column("id"))


if __name__ == "__main__":
    serve(_Ours)
