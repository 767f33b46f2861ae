"""Append a scan with an identity transform: Holdfast over bare Spark, with and without a map.

All sides read the same Parquet files and write the same Iceberg table layout to the same store.
Holdfast checkpoints as it does by default; bare Spark does not at all. The distance to what the
machine can do is told by two processes of pyarrow alone, without Spark, catalog or commit.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

import holdfast as hf
from bench.data import COLUMNS, ROWS, events, events_folder
from bench.rounds import alternate
from bench.session import open_session, open_stack


def _identity(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    yield from batches


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    stack = open_stack()
    session = open_session(stack.spark_catalog_conf("lake"))
    df = events(session)
    ddl = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    session.sql("CREATE NAMESPACE IF NOT EXISTS lake.bench")
    mark = uuid.uuid4().hex[:8]
    options = stack.rest_catalog_properties()
    files = sorted(str(path) for path in events_folder(ROWS).glob("*.parquet"))

    def table(name: str) -> str:
        session.sql(f"CREATE TABLE lake.bench.{name}_{mark} ({ddl}) USING iceberg")
        return f"bench.{name}_{mark}"

    def mapped(name: str) -> None:
        df.mapInArrow(_identity, df.schema).writeTo(f"lake.{name}").append()

    def plain(name: str) -> None:
        df.writeTo(f"lake.{name}").append()

    def ours(name: str) -> None:
        run = hf.Run(f"bench-{name}", store="s3://lake/_holdfast", store_options=options)
        report = run.append(
            hf.scan_parquet(files, options={}),
            to=hf.IcebergTable(name, catalog=options),
            transform=_same,
        )
        if report.rows != ROWS:
            raise SystemExit(f"{report.rows} rows arrived of {ROWS}")

    def pyarrow_alone(name: str) -> None:
        command = [sys.executable, "-m", "bench.pyarrow_alone", f"s3://lake/alone/{name}"]
        halves = [files[::2], files[1::2]]
        both = [subprocess.Popen([*command, *half]) for half in halves]
        codes = [one.wait(600) for one in both]  # Of both, also if the first has failed.
        if any(codes):
            raise SystemExit("pyarrow alone failed")

    times = alternate(
        {"ours": ours, "mapped": mapped, "plain": plain, "pyarrow_alone": pyarrow_alone},
        table,
        lambda name: session.sql(f"DROP TABLE lake.{name} PURGE"),
    )
    return {
        "ratio": times.ratio("ours", "mapped"),
        "ratio_no_map": times.ratio("ours", "plain"),
        "ratio_pyarrow_alone": times.ratio("ours", "pyarrow_alone"),
        "rows": ROWS,
        **times.figures(),
    }
