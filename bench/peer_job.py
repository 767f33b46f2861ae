"""What every peer's child shares: the job on the command line, the map, and the answer.

It is imported in the peers' own environments, so it needs only the standard library and pyarrow.
A child opens its engine, does a small job that does not count, and then the one that does. The
clock starts at the write call of a warm engine. The child's last line is one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

NAMESPACE = "bench"
TABLE = "events"
# How many rows the map sees at a time, where the engine would otherwise hand it a whole block.
BATCH_ROWS = 32 * 1024
# Objects of an engine that is not installed where types are checked.
Foreign: TypeAlias = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerJob:
    """What to read, how, and where it goes."""

    # Whether the engine's own checkpoints are on; without them the job is the plain one.
    is_checkpointed: bool
    # Folders of Parquet files: the input, and a small one for the warm-up.
    source: str
    warm_up: str
    # Where the table, the checkpoints and everything else that the engine needs are kept.
    folder: str
    # A folder where each process notes how many rows it has mapped; empty: it does not.
    notes: str = ""
    # How long the map sleeps for each row: only for small inputs that are to be killed halfway.
    sleep_s: float = 0.0
    # For an engine on the JVM.
    jars: tuple[str, ...] = ()

    def passed(self, rows: int) -> None:
        """Do the map's work besides passing rows on; runs in the engine's workers."""
        if self.sleep_s:
            time.sleep(self.sleep_s * rows)
        if self.notes:
            # Opened each time: what is written survives a kill, and processes come and go.
            with (Path(self.notes) / str(os.getpid())).open("a") as file:
                file.write(f"{rows}\n")

    def catalog(self) -> dict[str, str]:
        """Return PyIceberg's properties of a catalog in the folder; no server is needed."""
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": f"file://{self.folder}/warehouse",
        }


class Engine(Protocol):
    """One way to do the job."""

    def prepare(self, job: PeerJob) -> None:
        """Make what the job needs, if it is not there; not timed."""

    def write(self, job: PeerJob) -> None:
        """Do the job; timed."""

    def counts(self, job: PeerJob) -> tuple[int, int]:
        """Return how many rows are in the table, and how many different ids; not timed."""


def serve(open_engine: Callable[[PeerJob], Engine]) -> None:
    """Do the job of the command line and print how it went."""
    given = json.loads(sys.argv[1])
    job = PeerJob(**{**given, "jars": tuple(given["jars"])})
    engine = open_engine(job)
    warm = Path(job.folder) / f"warm-{os.getpid()}"
    warm.mkdir(parents=True)
    first = replace(job, folder=str(warm), source=job.warm_up, notes="", sleep_s=0.0)
    engine.prepare(first)
    engine.write(first)
    engine.prepare(job)
    started = time.monotonic()
    engine.write(job)
    seconds = time.monotonic() - started
    rows, ids = engine.counts(job)
    print(json.dumps({"seconds": seconds, "rows": rows, "ids": ids}), flush=True)


def create_iceberg(catalog: Foreign, schema: pa.Schema) -> None:
    """Make the Iceberg table through PyIceberg, unless it is there.

    Args:
        catalog: PyIceberg's catalog.
        schema: The table's schema.
    """
    catalog.create_namespace_if_not_exists(NAMESPACE)
    catalog.create_table_if_not_exists(f"{NAMESPACE}.{TABLE}", schema)


def count_ids(ids: pa.ChunkedArray) -> tuple[int, int]:
    """Return how many ids a column has, and how many different ones."""
    return len(ids), len(ids.unique())
