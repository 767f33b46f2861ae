"""Benchmark data: made once, kept in a cache outside the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bench.session import open_session

ROWS = 12_000_000
CATEGORIES = 23
COLUMNS = {
    "id": "bigint",
    "user_id": "bigint",
    "amount": "double",
    "category": "int",
    "name": "string",
    "at": "timestamp",
}


def cache_folder() -> Path:
    """Return the folder that outlives a run."""
    cache = os.environ.get("HOLDFAST_CACHE") or str(Path.home() / ".cache" / "holdfast")
    folder = Path(cache) / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def events_folder(rows: int = ROWS, categories: int = CATEGORIES) -> Path:
    """Return the folder with the files of `events`."""
    kind = "" if categories == CATEGORIES else f"-in-{categories}"
    return cache_folder() / f"events-{rows}{kind}"


def events(session: SparkSession, rows: int = ROWS, categories: int = CATEGORIES) -> DataFrame:
    """Return the rows as a DataFrame over zstd Parquet files; make the files if they are missing.

    Six columns, about 25 bytes a row when compressed: numbers, a short text and a time. Neighbours
    have different categories.
    """
    folder = events_folder(rows, categories)
    if not _is_whole(folder):
        shutil.rmtree(folder, ignore_errors=True)
        made = session.range(rows).selectExpr(
            "id",
            "abs(xxhash64(id)) % 4000000 as user_id",
            "round(rand(7) * 1000, 4) as amount",
            f"cast(id % {categories} as int) as category",
            "concat('item-', cast(abs(xxhash64(id, 1)) % 900000 as string)) as name",
            "timestamp_micros(1760000000000000 + id * 1000003) as at",
        )
        made.repartition(4).sortWithinPartitions("id").write.option("compression", "zstd").parquet(
            str(folder)
        )
    return session.read.parquet(str(folder))


def local_events(rows: int = ROWS) -> list[Path]:
    """Return the files of `events`; a process of its own makes them, so that no JVM stays here."""
    folder = events_folder(rows)
    if not _is_whole(folder):
        subprocess.run([sys.executable, "-m", "bench.data", str(rows)], check=True)
    return sorted(folder.glob("*.parquet"))


def _is_whole(folder: Path) -> bool:
    return (folder / "_SUCCESS").exists()


if __name__ == "__main__":
    events(open_session({}), int(sys.argv[1]))
