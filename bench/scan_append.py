"""Append a scan with an identity transform: Holdfast over bare Spark, with and without a map.

All sides read the same Parquet files and write the same Iceberg table layout to the same store.
Holdfast checkpoints as it does by default; bare Spark does not at all. Two processes of pyarrow
alone, without Spark, catalog or commit, show what the machine can do.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import holdfast as hf
from bench.bare_spark import BareSpark, same_batch
from bench.data import ROWS, events, events_folder
from bench.rounds import alternate
from bench.session import open_session, open_stack


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    stack = open_stack()
    session = open_session(stack.spark_catalog_conf("lake"))
    df = events(session)
    bare = BareSpark(session, df)
    options = stack.rest_catalog_properties()
    files = sorted(str(path) for path in events_folder(ROWS).glob("*.parquet"))

    def ours(name: str) -> None:
        run = hf.Run(f"bench-{name}", store="s3://lake/_holdfast", store_options=options)
        report = run.append(
            hf.scan_parquet(files, options={}),
            to=hf.IcebergTable(name, catalog=options),
            transform=same_batch,
        )
        if report.rows != ROWS:
            raise SystemExit(f"{report.rows} rows arrived of {ROWS}")

    def pyarrow_alone(name: str) -> None:
        command = [sys.executable, "-m", "bench.pyarrow_alone", f"s3://lake/alone/{name}"]
        halves = [files[::2], files[1::2]]
        both = [subprocess.Popen([*command, *half]) for half in halves]
        codes = [process.wait(600) for process in both]  # Both, even if the first has failed.
        if any(codes):
            raise SystemExit("pyarrow alone failed")

    times = alternate(
        {"ours": ours, "mapped": bare.mapped, "plain": bare.plain, "pyarrow_alone": pyarrow_alone},
        bare.table,
        bare.drop,
    )
    return {
        "ratio": times.ratio("ours", "mapped"),
        "ratio_no_map": times.ratio("ours", "plain"),
        "ratio_pyarrow_alone": times.ratio("ours", "pyarrow_alone"),
        "rows": ROWS,
        **times.figures(),
    }
