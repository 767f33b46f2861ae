"""Merge 20 million rows with 36-character keys into 40 million: what memory does it take?

Each number of keys is a job in a process of its own, on a branch of one table, and the peaks of its
workers and of its driver's Python are the kernel's own (VmHWM). The case of 500,000 keys, which a
worker holds in memory, is what the others are compared with. There a task has too few rows to fill
a row group, or what may be in flight; so 20 million keys are also compared with 5 million, and done
once more with less in flight. Half of the keys are in the table.
`HOLDFAST_BENCH_SCALE=0.1` makes all sizes a tenth.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import holdfast as hf
from bench.data import cache_folder
from bench.process_tree import answer, start, watched
from bench.session import open_session, open_stack

_SCALE = float(os.environ.get("HOLDFAST_BENCH_SCALE", "1"))
_ROWS = int(40_000_000 * _SCALE)
_KEYS = (int(500_000 * _SCALE), int(5_000_000 * _SCALE), int(20_000_000 * _SCALE))
_LESS_IN_FLIGHT = 16 * 1024 * 1024
_FILES = 24
# A text like a UUID: spread over all of its values, and the same for the same number.
_TEXT = (
    "concat_ws('-', substr(h, 1, 8), substr(h, 9, 4), substr(h, 13, 4), substr(h, 17, 4), "
    "substr(h, 21, 12))"
)


def _source(session: SparkSession, keys: int) -> list[str]:
    """Return Parquet files with the rows to be merged; make them if they are missing."""
    folder = cache_folder() / f"upsert-index-{keys}-of-{_ROWS}"
    if not (folder / "_SUCCESS").exists():
        step = _ROWS // (keys // 2)
        numbers = f"if(id % 2 = 0, {step} * (id div 2), {_ROWS} + id)"
        rows = session.range(0, keys, 1, 8).selectExpr(f"md5(cast({numbers} as string)) AS h", "id")
        rows.selectExpr(f"{_TEXT} AS id", "-id - 1 AS v").write.mode("overwrite").parquet(
            str(folder)
        )
    return sorted(str(path) for path in folder.glob("*.parquet"))


def _table(session: SparkSession, name: str) -> None:
    """Make the table."""
    session.sql("CREATE NAMESPACE IF NOT EXISTS lake.bench")
    session.sql(f"CREATE TABLE lake.{name} (id string, v bigint) USING iceberg")
    rows = session.range(0, _ROWS, 1, _FILES).selectExpr("md5(cast(id as string)) AS h", "id")
    made = rows.selectExpr(f"{_TEXT} AS id", "id AS v")
    made.writeTo(f"lake.{name}").option("distribution-mode", "none").append()


def _merge(name: str, branch: str, keys: int, limits: hf.Limits) -> dict[str, Any]:
    """Merge rows into a branch, in this process, and check what it holds.

    Raises:
        SystemExit: It does not hold what it should.
    """
    stack = open_stack()
    session = open_session(stack.spark_catalog_conf("lake"))
    options = stack.rest_catalog_properties()
    files = _source(session, keys)
    run = hf.Run(
        f"bench-{name}-{branch}",
        store="s3://lake/_holdfast",
        store_options=options,
        limits=limits,
    )
    target = hf.IcebergTable(name, catalog=options, branch=branch)
    report = run.upsert(hf.scan_parquet(files, options={}), to=target, on="id")
    (found,) = session.sql(
        f"SELECT count(*) AS rows, count_if(v < 0) AS merged FROM lake.{name} "
        f"VERSION AS OF '{branch}'"
    ).collect()
    session.stop()
    counts, matched = report.upserts, keys // 2
    is_right = (found["rows"], found["merged"]) == (_ROWS + keys - matched, keys)
    if counts is None or counts.matched != matched or not is_right:
        raise SystemExit(f"{branch}: {found}, {counts}")
    return {
        "seconds": round(report.seconds, 1),
        "matched": counts.matched,
        "searched_files": counts.searched_files,
    }


def main() -> None:
    """Do one part, in a process of its own."""
    given = json.loads(sys.argv[1])
    if "keys" in given:
        limits = hf.Limits(in_flight_bytes=given["in_flight_bytes"])
        found = _merge(given["name"], given["branch"], given["keys"], limits)
    else:
        session = open_session(open_stack().spark_catalog_conf("lake"))
        if given["is_made"]:
            session.sql(f"DROP TABLE lake.{given['name']} PURGE")
        else:
            _table(session, given["name"])
            for keys in _KEYS:
                _source(session, keys)
                session.sql(f"ALTER TABLE lake.{given['name']} CREATE BRANCH of_{keys}")
            session.sql(f"ALTER TABLE lake.{given['name']} CREATE BRANCH less_in_flight")
        session.stop()
        found = {}
    print(json.dumps(found))


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    name = f"bench.upsert_index_{uuid.uuid4().hex[:8]}"
    module = f"bench.{Path(__file__).stem}"
    figures: dict[str, Any] = {"rows": _ROWS}
    answer(start(module, {"name": name, "is_made": False}))
    usual = hf.Limits().in_flight_bytes
    jobs = [(f"of_{keys}", keys, usual) for keys in _KEYS]
    jobs.append(("less_in_flight", _KEYS[-1], _LESS_IN_FLIGHT))
    try:
        for branch, keys, in_flight_bytes in jobs:
            given = {"name": name, "branch": branch, "keys": keys}
            child = start(module, {**given, "in_flight_bytes": in_flight_bytes})
            with watched(child) as peaks:
                found = answer(child)
            found |= {"worker_mb": round(peaks.worker_mb), "driver_mb": round(peaks.driver_mb)}
            figures[branch.replace("of_", "keys_")] = found
            print(f"  {branch:>14}  {keys:>11,} keys  {found}", flush=True)
    finally:
        answer(start(module, {"name": name, "is_made": True}))
    few, more, many = (figures[f"keys_{keys}"]["worker_mb"] for keys in _KEYS)
    return {
        "ratio": round(many / few, 3),
        "goal": 1.15,
        "ratio_over_5m": round(many / more, 3),
        "ratio_less_in_flight": round(figures["less_in_flight"]["worker_mb"] / few, 3),
        "driver_mb": figures[f"keys_{_KEYS[-1]}"]["driver_mb"],
        **figures,
    }


if __name__ == "__main__":
    main()
