"""A worker's memory does not grow with the rows that pass through it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

ROWS, CONCURRENCY, MEGABYTE = 2_000, 64, 1_000_000


class Weighed:
    """Gives back a text of the same size, and notes this process's memory at each call."""

    def __init__(self, notes: Path) -> None:
        """Take the folder for the notes."""
        self._notes = notes / f"{os.getpid()}"

    async def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Wait as a call does, then answer."""
        await asyncio.sleep(0.2)
        self._weigh()
        return {"id": row["id"], "text": row["text"][::-1]}

    def _weigh(self) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        with self._notes.open("a") as notes:
            notes.write(f"{pages * os.sysconf('SC_PAGE_SIZE')}\n")


def test_memory_stays_flat_with_64_rows_of_a_megabyte_at_a_time(
    lake: SparkSession, namespace: str, ledger: dict[str, Any], tmp_path: Path
) -> None:
    """Two gigabytes pass through two workers; the second half needs no more than the first."""
    lake.sql(f"CREATE TABLE lake.{namespace}.t (id bigint, text string) USING iceberg")
    # Texts that do not compress to nothing: 32 random characters, many times.
    text = f"repeat(md5(cast(id as string)), {MEGABYTE // 32})"
    report = hf.Run("heavy", **ledger).append(
        lake.range(0, ROWS, 1, 2).selectExpr("id", f"{text} as text"),
        to=f"lake.{namespace}.t",
        key="id",
        transform=hf.per_row(hf.per_worker(Weighed, tmp_path), concurrency=CONCURRENCY),
        checkpoint_every="2s",
    )
    assert report.rows == ROWS
    for file in tmp_path.iterdir():
        weights = [int(line) / MEGABYTE for line in file.read_text().split()]
        half = len(weights) // 2
        first, second = max(weights[:half]), max(weights[half:])
        quarters = [max(weights[i : i + half // 2]) for i in range(0, len(weights), half // 2)]
        print(f"  worker {file.name}: {len(weights)} rows, MB by quarter {quarters}")
        assert second <= first * 1.25
        # 64 rows at work and as many behind them, each as text and as Arrow, a row group, a chunk.
        assert second < 1_500
