"""Ours: a Parquet scan appended to a Lance dataset; run in this project's own environment.

Plain and checkpointed are what they are for Iceberg: `checkpoint_every=None`, which keeps the
run's log and the one commit, and a record at least every two seconds.
"""

from __future__ import annotations

from pathlib import Path

import holdfast as hf
from bench import peer_lance_table
from bench.peer_job import PeerJob, serve
from bench.peer_ours import CHECKPOINT_EVERY, Pass
from bench.session import open_session


class _OursOnLance:
    def __init__(self, _: PeerJob) -> None:
        open_session({})

    def prepare(self, job: PeerJob) -> None:
        peer_lance_table.create(job)

    def write(self, job: PeerJob) -> None:
        hf.Run("bench-lance-peers", store=f"file://{job.folder}/ledger").append(
            hf.scan_parquet(sorted(map(str, Path(job.source).glob("*.parquet"))), options={}),
            to=hf.LanceTable(peer_lance_table.uri(job)),
            transform=Pass(job),
            checkpoint_every=CHECKPOINT_EVERY if job.is_checkpointed else None,
        )

    def counts(self, job: PeerJob) -> tuple[int, int]:
        return peer_lance_table.counts(job)


if __name__ == "__main__":
    serve(_OursOnLance)
