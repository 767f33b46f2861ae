"""One scan in a process of its own, with a warm session: for jobs that are killed or watched.

The one argument is a `ScanJob` in JSON; the last line says how it went, in JSON.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

import holdfast as hf
from bench.burn import Burn
from bench.data import COLUMNS
from bench.session import open_session, open_stack

_STORE = "s3://lake/_holdfast"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanJob:
    """What to read, how to transform it, and where to write it."""

    # The run's id, and the table's name.
    name: str
    paths: tuple[str, ...]
    # A small input for a first job, which does not count: it warms the session up.
    warm_up: tuple[str, ...]
    # Where the input is read from; by default the stack's own S3 server.
    endpoint: str = ""
    repeats: int = 0
    notes: str = ""
    checkpoint_every: str = "30s"
    # How many partitions the table gets; 0: it is not partitioned.
    partitions: int = 0
    # How many files each partition has beforehand. If it has any, partitions are replaced.
    old_files: int = 0
    # Whether to look at all rows afterwards: is each there once?
    is_looked_through: bool = True

    def arguments(self) -> dict[str, Any]:
        """Return the job as a child takes it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Spread:
    """Gives each row one of many categories; neighbours have different ones."""

    categories: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with their new category."""
        users = batch.column("user_id").to_numpy()
        spread = pa.array((users % self.categories).astype(np.int32))
        return batch.set_column(batch.schema.get_field_index("category"), "category", spread)


def main() -> None:
    """Warm the session up, do the job, check the table and drop it."""
    given = json.loads(sys.argv[1])
    job = ScanJob(**{**given, "paths": tuple(given["paths"]), "warm_up": tuple(given["warm_up"])})
    session = open_session(open_stack().spark_catalog_conf("lake"))
    session.sql("CREATE NAMESPACE IF NOT EXISTS lake.bench")
    warm = replace(
        job,
        name=f"warm_{uuid.uuid4().hex[:8]}",
        paths=job.warm_up,
        old_files=min(1, job.old_files),
        repeats=1,
        notes="",
        endpoint="",
    )
    _write(session, warm)
    session.sql(f"DROP TABLE lake.bench.{warm.name} PURGE")
    found = _write(session, job)
    if job.is_looked_through:
        found |= _looked_through(session, job.name)
    session.sql(f"DROP TABLE lake.bench.{job.name} PURGE")
    print(json.dumps(found), flush=True)


def _write(session: SparkSession, job: ScanJob) -> dict[str, Any]:
    stack = open_stack()
    options = stack.rest_catalog_properties()
    ddl = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    parted = "PARTITIONED BY (category)" if job.partitions else ""
    session.sql(f"CREATE TABLE IF NOT EXISTS lake.bench.{job.name} ({ddl}) USING iceberg {parted}")
    if job.old_files:
        _fill(session, job)
    endpoint = {"s3.endpoint": job.endpoint} if job.endpoint else {}
    run = hf.Run(f"bench-{job.name}", store=_STORE, store_options=options)
    write = run.overwrite_partitions if job.old_files else run.append
    started = time.monotonic()
    report = write(
        hf.scan_parquet(job.paths, options={**stack.s3.store_options(), **endpoint}),
        to=hf.IcebergTable(f"bench.{job.name}", catalog=options),
        transform=Spread(job.partitions) if job.partitions else Burn(job.repeats, job.notes),
        checkpoint_every=job.checkpoint_every,
    )
    return {
        "seconds": time.monotonic() - started,
        "rows": report.rows,
        "passes": report.passes,
        "tasks": report.tasks,
        "files": report.files,
        "replaced_files": report.replaced_files,
    }


def _fill(session: SparkSession, job: ScanJob) -> None:
    """Give each partition its old files, of one row each: every task writes one to each."""
    rows = session.range(0, job.old_files * job.partitions, 1, job.old_files).selectExpr(
        "id",
        "id AS user_id",
        "0D AS amount",
        f"cast(id % {job.partitions} AS int) AS category",
        "'old' AS name",
        "timestamp_micros(0) AS at",
    )
    plainly = {"distribution-mode": "none", "fanout-enabled": "true"}
    rows.writeTo(f"lake.bench.{job.name}").options(**plainly).append()


def _looked_through(session: SparkSession, name: str) -> dict[str, int]:
    """Count the rows and the ids in a table."""
    session.catalog.refreshTable(f"lake.bench.{name}")
    (found,) = session.sql(
        f"SELECT count(*) AS rows_there, count(DISTINCT id) AS ids_there FROM lake.bench.{name}"
    ).collect()
    counts: dict[str, int] = found.asDict()
    return counts


if __name__ == "__main__":
    main()
