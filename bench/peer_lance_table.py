"""The Lance dataset of a job, for the engines whose environments have pylance."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow.parquet as pq

from bench.peer_job import TABLE, PeerJob, count_ids


def uri(job: PeerJob) -> str:
    """Return where the job's dataset is."""
    return f"{job.folder}/{TABLE}.lance"


def create(job: PeerJob) -> None:
    """Make the dataset without rows, with the input's columns, unless it is there."""
    if not Path(uri(job)).exists():
        source = next(Path(job.source).glob("*.parquet"))
        lance.write_dataset(pq.read_schema(source).empty_table(), uri(job))


def counts(job: PeerJob) -> tuple[int, int]:
    """Return how many rows are in the dataset, and how many different ids."""
    return count_ids(lance.dataset(uri(job)).to_table(columns=["id"]).column("id"))
