"""Merge 500,000 rows into 12 million: Holdfast over Spark's `MERGE INTO` in the same mode.

Half of the rows replace old ones, half are new. Their keys are spread over all files, or lie in a
sixth of them (`local`). Both sides read the same Parquet files, without a transform, and write to a
branch of one table, made before each round from the same snapshot. Both take the mode from the
table: copy-on-write first, then merge-on-read. Each branch is checked
afterwards: every key is there once, and every row says which side wrote it.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import holdfast as hf
from bench.bare_spark import BareSpark
from bench.data import COLUMNS, ROWS, cache_folder, events
from bench.rounds import alternate
from bench.session import open_session, open_stack
from tests.stack_access import Stack

_MERGED = 500_000
_FILES = 24
_GOAL, _GOAL_MERGE_ON_READ = 0.38, 0.33
# The modes, with the names of their sides.
_MODES = {
    "copy-on-write": ("copy_on_write", "ours", "merge"),
    "merge-on-read": ("merge_on_read", "ours_by_position", "merge_by_position"),
}
# What share of the table the keys lie in.
_SPREADS = {"": 1, "_local": 6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a branch holds after the merge."""

    rows: int
    keys: int
    merged: int

    def problem(self) -> str:
        """Return how the branch differs from what it should hold; empty if it does not."""
        rows = ROWS + _MERGED // 2
        wanted = asdict(Found(rows=rows, keys=rows, merged=_MERGED))
        return ", ".join(
            f"{name} is {value}, not {wanted[name]}"
            for name, value in asdict(self).items()
            if value != wanted[name]
        )


class _Branches:
    """Makes a branch for each side and round, and checks it afterwards."""

    def __init__(self, session: SparkSession, table: str) -> None:
        self._session = session
        self.table = table

    def made(self, name: str) -> str:
        """Make a branch of the table."""
        self._session.sql(f"ALTER TABLE lake.{self.table} CREATE BRANCH {name}")
        return name

    def checked(self, name: str) -> None:
        """Look at a branch, and drop it.

        Raises:
            SystemExit: It does not hold what it should.
        """
        self._session.catalog.refreshTable(f"lake.{self.table}")
        (row,) = self._session.sql(
            "SELECT count(*) AS rows, count(DISTINCT id) AS keys, "
            "count_if(name = 'merged') AS merged "
            f"FROM lake.{self.table} VERSION AS OF '{name}'"
        ).collect()
        if problem := Found(**row.asDict()).problem():
            raise SystemExit(f"{name}: {problem}")
        self._session.sql(f"ALTER TABLE lake.{self.table} DROP BRANCH {name}")


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    stack = open_stack()
    session = open_session(stack.spark_catalog_conf("lake"))
    bare = BareSpark(session, events(session))
    table = bare.table("upsert", "TBLPROPERTIES ('format-version' = '2')")
    # Old rows have even keys, so that new ones lie between them.
    old = events(session).selectExpr("2 * id AS id", *(name for name in COLUMNS if name != "id"))
    ordered = old.repartitionByRange(_FILES, "id").sortWithinPartitions("id")
    ordered.writeTo(f"lake.{table}").option("distribution-mode", "none").append()
    branches = _Branches(session, table)
    figures: dict[str, Any] = {}
    try:
        for mode in _MODES:
            session.sql(
                f"ALTER TABLE lake.{table} SET TBLPROPERTIES ('write.merge.mode' = '{mode}')"
            )
            for kind, share in _SPREADS.items():
                figures |= _seconds(stack, session, branches, mode, (kind, share))
    finally:
        bare.drop(table)
    goals = {"goal": _GOAL, "goal_merge_on_read": _GOAL_MERGE_ON_READ}
    return {"ratio": figures["ratio_copy_on_write"], **goals, **figures}


def _source(session: SparkSession, kind: str, share: int) -> Path:
    """Write the rows to be merged."""
    folder = cache_folder() / f"upsert{kind}"
    shutil.rmtree(folder, ignore_errors=True)
    step = ROWS // share // (_MERGED // 2)
    # Each pair is one old key, and a new one right after it.
    key = f"2 * {step} * (id div 2) + id % 2"
    session.range(_MERGED).selectExpr(
        f"{key} AS id",
        "id AS user_id",
        "0.5D AS amount",
        "cast(id % 7 AS int) AS category",
        "'merged' AS name",
        "timestamp_micros(id) AS at",
    ).repartition(4).write.parquet(str(folder))
    return folder


def _seconds(
    stack: Stack, session: SparkSession, branches: _Branches, mode: str, spread: tuple[str, int]
) -> dict[str, Any]:
    kind, share = spread
    name, ours_name, merge_name = (f"{text}{kind}" for text in _MODES[mode])
    folder, options = _source(session, kind, share), stack.rest_catalog_properties()
    files = sorted(str(path) for path in folder.glob("*.parquet"))
    reports: list[hf.Report] = []

    def ours(branch: str) -> None:
        run = hf.Run(
            f"bench-{branches.table}-{branch}", store="s3://lake/_holdfast", store_options=options
        )
        target = hf.IcebergTable(branches.table, catalog=options, branch=branch)
        reports.append(run.upsert(hf.scan_parquet(files, options={}), to=target, on="id"))

    def theirs(branch: str) -> None:
        session.read.parquet(str(folder)).createOrReplaceTempView("source")
        session.sql(
            f"MERGE INTO lake.{branches.table}.branch_{branch} t USING source s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    times = alternate({ours_name: ours, merge_name: theirs}, branches.made, branches.checked)
    last, found = reports[-1], {f"ratio_{name}": times.ratio(ours_name, merge_name)}
    if mode == "merge-on-read":
        return {**found, f"delete_files{kind}": last.delete_files, **times.figures()}
    return {
        **found,
        f"rewritten_files{kind}": last.replaced_files,
        f"searched_files{kind}": last.searched_files,
        **times.figures(),
    }
