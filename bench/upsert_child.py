"""Upserts in a process of their own, with a warm session: for jobs whose memory is watched.

The one argument is a `MergeJob` in JSON; the last line says how it went, in JSON.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import SparkSession

import holdfast as hf
from bench.session import open_session, open_stack

_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeJob:
    """What to merge into what."""

    # The runs' ids and the branches begin with it.
    name: str
    table: str
    # The snapshot to merge into.
    tag: str
    paths: tuple[str, ...]
    merged: int
    # Rows in the range of the merged keys, and all rows.
    first_rows: int
    rows: int
    write_mode: str = "copy-on-write"
    # Where the table's files are read from and written to; by default the stack's own S3 server.
    endpoint: str = ""

    def arguments(self) -> dict[str, Any]:
        """Return the job as a child takes it."""
        return asdict(self)


def main() -> None:
    """Merge once to warm the session up, then some times more; check each branch, and drop it."""
    given = json.loads(sys.argv[1])
    job = MergeJob(**{**given, "paths": tuple(given["paths"])})
    session = open_session(open_stack().spark_catalog_conf("lake"))
    seconds: list[float] = []
    searched: dict[str, int] = {}
    for number in range(_ROUNDS + 1):
        branch = f"{job.name}_{number}"
        ddl = f"ALTER TABLE lake.{job.table}"
        session.sql(f"{ddl} CREATE BRANCH {branch} AS OF VERSION {_snapshot(session, job)}")
        started = time.monotonic()
        report = _merge(job, branch)
        seconds.append(time.monotonic() - started)
        names = ("searched_files", "replaced_files")
        searched = {name: getattr(report, name) for name in names}
        _check(session, job, branch)
        session.sql(f"{ddl} DROP BRANCH {branch}")
    print(json.dumps({"seconds": seconds, **searched}), flush=True)


def _snapshot(session: SparkSession, job: MergeJob) -> int:
    (row,) = session.sql(
        f"SELECT snapshot_id FROM lake.{job.table}.refs WHERE name = '{job.tag}'"
    ).collect()
    return int(row[0])


def _merge(job: MergeJob, branch: str) -> hf.Report:
    stack = open_stack()
    endpoint = {"s3.endpoint": job.endpoint} if job.endpoint else {}
    run = hf.Run(
        f"bench-{branch}", store="s3://lake/_holdfast", store_options=stack.s3.store_options()
    )
    catalog = {**stack.rest_catalog_properties(), **endpoint}
    # The default needs no argument.
    how: dict[str, Any] = {}
    if job.write_mode != "copy-on-write":
        how["write_mode"] = job.write_mode
    target = hf.IcebergTable(job.table, catalog=catalog, branch=branch)
    return run.upsert(hf.scan_parquet(job.paths, options={}), to=target, on="id", **how)


def _check(session: SparkSession, job: MergeJob, branch: str) -> None:
    """Stop if a branch does not hold what it should; only the first files are read for keys.

    Raises:
        SystemExit: It does not.
    """
    session.catalog.refreshTable(f"lake.{job.table}")
    of_branch = f"FROM lake.{job.table} VERSION AS OF '{branch}'"
    (rows,) = session.sql(f"SELECT count(*) {of_branch}").collect()
    (found,) = session.sql(
        f"SELECT count(*), count(DISTINCT id), count_if(name = 'merged') {of_branch} "
        f"WHERE id < {2 * job.first_rows}"
    ).collect()
    new = job.merged // 2
    wanted = (job.rows + new, job.first_rows + new, job.first_rows + new, job.merged)
    if (rows[0], *found) != wanted:
        raise SystemExit(
            f"{branch}: rows, keys and merged rows are {rows[0], *found}: not {wanted}"
        )


if __name__ == "__main__":
    main()
