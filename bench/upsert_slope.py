"""Merge the same rows into ever larger tables: what grows with rows that cannot be meant?

The table begins with rows under even keys, in files that are sorted by key. Copies of them with
other ranges of keys are added, and tags name the snapshots at each size, so that the table is made
once for each stack. Half of the merged rows replace old ones, spread over all files of the first
size; half are new, beside these. Every size has the same hits in the same files.

Each size is a job in a process of its own. Its first upsert warms it up; the peak of each Python
worker and of the driver's Python is the kernel's own (VmHWM). Bytes are those of answers to GET for
the table's files, counted by a proxy. Takes the sizes (1,4,16), the rows of the first size, the
merged rows, and how rows are replaced (`merge-on-read`).
"""

from __future__ import annotations

import shutil
import statistics
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from bench.counting_proxy import count_requests
from bench.data import COLUMNS, ROWS, cache_folder, events
from bench.process_tree import answer, start, watched
from bench.session import open_session, open_stack
from bench.upsert_child import MergeJob
from tests.stack_access import Stack

_SIZES = "1,4,16"
_MERGED = 500_000
_FILES = 24
_GOAL_MEMORY = 1.15
# So that each old file becomes one new file: a split has one file, however small.
_ONE_FILE_BYTES = 1 << 30


def _table(session: SparkSession, stack: Stack, rows: int, sizes: list[int]) -> str:
    """Return the table with a tag for each size; what is there already is not made again."""
    name = f"bench.slope_{rows}"
    session.sql("CREATE NAMESPACE IF NOT EXISTS lake.bench")
    ddl = ", ".join(f"{column} {kind}" for column, kind in COLUMNS.items())
    session.sql(f"CREATE TABLE IF NOT EXISTS lake.{name} ({ddl}) USING iceberg")
    loaded = load_catalog("lake", **stack.rest_catalog_properties()).load_table(name)
    tagged = {int(tag.removeprefix("x")) for tag in loaded.refs() if tag.startswith("x")}
    others = [f"{column}" for column in COLUMNS if column != "id"]
    for size in range(max(tagged, default=0) + 1, max(sizes) + 1):
        if size == 1:
            old = events(session, rows).selectExpr("2 * id AS id", *others)
            made = old.repartitionByRange(_FILES, "id").sortWithinPartitions("id")
        else:
            first = session.read.option("file-open-cost", _ONE_FILE_BYTES)
            whole = first.option("split-size", _ONE_FILE_BYTES).option("versionAsOf", "x1")
            shifted = f"id + {2 * rows * (size - 1)}L AS id"
            made = whole.table(f"lake.{name}").selectExpr(shifted, *others)
        made.writeTo(f"lake.{name}").option("distribution-mode", "none").append()
        session.sql(f"ALTER TABLE lake.{name} CREATE TAG x{size}")
        print(f"  {name} has {size} times {rows:,} rows", flush=True)
    return name


def _source(session: SparkSession, rows: int, merged: int) -> tuple[str, ...]:
    """Write the rows to be merged: pairs of an old key and a new one right after it."""
    folder = cache_folder() / "upsert-slope"
    shutil.rmtree(folder, ignore_errors=True)
    step = rows // (merged // 2)
    session.range(merged).selectExpr(
        f"2 * {step} * (id div 2) + id % 2 AS id",
        "id AS user_id",
        "0.5D AS amount",
        "cast(id % 7 AS int) AS category",
        "'merged' AS name",
        "timestamp_micros(id) AS at",
    ).repartition(4).write.parquet(str(folder))
    return tuple(sorted(str(path) for path in Path(folder).glob("*.parquet")))


def _measured(stack: Stack, job: MergeJob, location: str) -> dict[str, Any]:
    """Run a job, and return what it took and read."""
    with count_requests(stack.rest_catalog_properties()["s3.endpoint"]) as proxy:
        child = start("bench.upsert_child", {**job.arguments(), "endpoint": proxy.url})
        with watched(child) as peaks:
            found = answer(child)
        path = urlsplit(location)
        read = proxy.answer_bytes("GET", f"/{path.netloc}{path.path}")
    counted = found["seconds"][1:]
    figures = {
        "seconds": [round(seconds, 2) for seconds in counted],
        "median_s": round(statistics.median(counted), 2),
        "read_mb": round(read / len(found["seconds"]) / 1e6, 1),
        "worker_mb": round(peaks.worker_mb, 1),
        "driver_mb": round(peaks.driver_mb, 1),
        "searched_files": found["searched_files"],
        "replaced_files": found["replaced_files"],
    }
    print(f"  {job.tag:<4} {figures}", flush=True)
    return figures


def ratios(found: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of the largest size over those of the smallest."""
    small, large = found[min(found)], found[max(found)]
    names = {
        "seconds": "median_s",
        "bytes_read": "read_mb",
        "worker_memory": "worker_mb",
        "driver_memory": "driver_mb",
    }
    return {
        f"ratio_{kind}": round(large[name] / max(small[name], 0.001), 3)
        for kind, name in names.items()
    }


def run(
    sizes: str = _SIZES,
    rows: str = str(ROWS),
    merged: str = str(_MERGED),
    write_mode: str = "merge-on-read",
) -> dict[str, Any]:
    """Measure and return the figures."""
    stack, numbers = open_stack(), sorted(int(size) for size in sizes.split(","))
    session = open_session(stack.spark_catalog_conf("lake"))
    table = _table(session, stack, int(rows), numbers)
    files = _source(session, int(rows), int(merged))
    session.stop()  # Its memory is for the jobs.
    loaded = load_catalog("lake", **stack.rest_catalog_properties()).load_table(table)
    found = {}
    for size in numbers:
        job = MergeJob(
            name=f"slope_{size}_{uuid.uuid4().hex[:8]}",
            table=table,
            tag=f"x{size}",
            paths=files,
            merged=int(merged),
            first_rows=int(rows),
            rows=int(rows) * size,
            write_mode=write_mode,
        )
        found[size] = _measured(stack, job, loaded.location())
    return {
        **ratios(found),
        "goal_worker_memory": _GOAL_MEMORY,
        "rows": int(rows),
        "merged": int(merged),
        "write_mode": write_mode,
        **{f"{size}x": figures for size, figures in found.items()},
    }
