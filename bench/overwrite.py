"""Replace the rows of 20 partitions from a scan: Holdfast over Spark's dynamic `INSERT OVERWRITE`.

All sides read the same Parquet files, in which neighbours belong to different partitions, and write
the same table layout to the same store. Before each measured round, the table is filled by Spark:
old rows in the 20 partitions, and rows in others that must stay. Spark's default for a partitioned
table distributes rows by partition first (a shuffle); a third side leaves that out by the table's
own setting. Holdfast never shuffles.

Afterwards memory: the peak of a worker and of the driver at ten times the data and ten times as
many replaced files, over those of the original size, as `memory` takes them. The original size does
not fill a worker's buffers: its files have less than one part. So three times the data is measured
as well, which does.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import SparkSession

import holdfast as hf
from bench.bare_spark import BareSpark, same_batch
from bench.data import ROWS, events, events_folder
from bench.memory import GROUP_ROWS, measure
from bench.rounds import alternate
from bench.s3_input import upload_events
from bench.session import open_session, open_stack
from tests.stack_access import Stack

_PARTITIONS = 20
# Rows in other partitions have these numbers; a number is as frequent as any other.
_OTHER_PARTITIONS = 3
_OLD_ROWS_OF_A_PARTITION = 50_000
_GOAL = 0.35
_GOAL_MEMORY = 1.10
_SIZES = (1, 3, 10)
_OLD_FILES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a table holds after its partitions were replaced. Old rows have negative ids."""

    new_rows: int
    # Each new id once: as many as there are rows, and their sum.
    sum_of_new_ids: int
    # Old rows of partitions that were to be replaced.
    old_rows: int
    # Old rows of other partitions.
    other_rows: int

    def problem(self, rows: int) -> str:
        """Return how the table differs from what it should hold; empty if it does not."""
        expected = Found(
            new_rows=rows,
            sum_of_new_ids=rows * (rows - 1) // 2,
            old_rows=0,
            other_rows=_OTHER_PARTITIONS * _OLD_ROWS_OF_A_PARTITION,
        )
        wanted = asdict(expected)
        return ", ".join(
            f"{name} is {value}, not {wanted[name]}"
            for name, value in asdict(self).items()
            if value != wanted[name]
        )


class _Tables:
    """Makes each side's tables, and checks them afterwards."""

    def __init__(self, session: SparkSession, bare: BareSpark) -> None:
        self._session = session
        self._bare = bare
        # How many files each side has written, and their mean size, in its last round.
        self.layouts: dict[str, Any] = {}

    def filled(self, name: str) -> str:
        """Make a table with old rows, one file for each partition."""
        is_shuffled = not name.startswith("no_shuffle")
        mode = "" if is_shuffled else "TBLPROPERTIES ('write.distribution-mode' = 'none')"
        table = self._bare.table(name, f"PARTITIONED BY (category) {mode}")
        partitions = _PARTITIONS + _OTHER_PARTITIONS
        rows = self._session.range(partitions * _OLD_ROWS_OF_A_PARTITION).selectExpr(
            "-1 - id AS id",
            "id AS user_id",
            "0D AS amount",
            f"cast(id % {partitions} AS int) AS category",
            "'old' AS name",
            "timestamp_micros(0) AS at",
        )
        rows.writeTo(f"lake.{table}").option("distribution-mode", "hash").append()
        return table

    def checked(self, table: str) -> None:
        """Look at a table, and drop it.

        Raises:
            SystemExit: It does not hold what it should.
        """
        self._session.catalog.refreshTable(f"lake.{table}")
        new, replaced = "id >= 0", f"category < {_PARTITIONS}"
        (row,) = self._session.sql(
            f"SELECT count_if({new}) AS new_rows, sum(if({new}, id, 0)) AS sum_of_new_ids, "
            f"count_if(NOT {new} AND {replaced}) AS old_rows, "
            f"count_if(NOT {new} AND NOT {replaced}) AS other_rows FROM lake.{table}"
        ).collect()
        if problem := Found(**row.asDict()).problem(ROWS):
            raise SystemExit(f"{table}: {problem}")
        (files,) = self._session.sql(
            "SELECT count(*) AS files, round(avg(file_size_in_bytes) / 1e6, 2) AS mean_mb "
            f"FROM lake.{table}.files WHERE partition.{replaced}"
        ).collect()
        side = table.removeprefix("bench.").rsplit("_", 2)[0]
        self.layouts[side] = {"files": files["files"], "mean_mb": float(files["mean_mb"])}
        self._bare.drop(table)


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    stack = open_stack()
    session = open_session(stack.spark_catalog_conf("lake"))
    figures = _seconds(stack, session)
    session.stop()  # Its memory is not needed any more.
    return {**figures, **_memory(stack)}


def _seconds(stack: Stack, session: SparkSession) -> dict[str, Any]:
    bare = BareSpark(session, events(session, categories=_PARTITIONS))
    tables = _Tables(session, bare)
    options = stack.rest_catalog_properties()
    folder = events_folder(categories=_PARTITIONS)
    files = sorted(str(path) for path in folder.glob("*.parquet"))

    def ours(name: str) -> None:
        run = hf.Run(f"bench-{name}", store="s3://lake/_holdfast", store_options=options)
        run.overwrite_partitions(
            hf.scan_parquet(files, options={}),
            to=hf.IcebergTable(name, catalog=options),
            transform=same_batch,
        )

    times = alternate(
        {
            "ours": ours,
            "mapped": bare.overwrite_mapped,
            "no_shuffle": bare.overwrite_mapped,
        },
        tables.filled,
        tables.checked,
    )
    return {
        "ratio": times.ratio("ours", "mapped"),
        "goal": _GOAL,
        "ratio_no_shuffle": times.ratio("ours", "no_shuffle"),
        "rows": ROWS,
        "partitions": _PARTITIONS,
        "written": tables.layouts,
        **times.figures(),
    }


def _memory(stack: Stack) -> dict[str, Any]:
    warm_up = upload_events(stack, rows=1_000, group_rows=GROUP_ROWS)
    peaks = {
        number: measure(
            f"overwrite_{number}x",
            upload_events(stack, group_rows=GROUP_ROWS, copies=number),
            warm_up,
            partitions=_PARTITIONS,
            old_files=number * _OLD_FILES,
        )
        for number in _SIZES
    }
    small, filling, large = peaks.values()
    return {
        "ratio_worker_memory": _over(large, small, "worker_mb"),
        "ratio_driver_memory": _over(large, small, "driver_mb"),
        "ratio_worker_memory_filled": _over(large, filling, "worker_mb"),
        "goal_memory": _GOAL_MEMORY,
        **{f"memory_{number}x": figures for number, figures in peaks.items()},
    }


def _over(peaks: dict[str, Any], others: dict[str, Any], name: str) -> float:
    return round(float(peaks[name]) / float(others[name]), 3)
