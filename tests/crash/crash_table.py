"""The table that a killed job writes, as Iceberg's own Spark reader sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from tests.stack_access import Stack

COLUMNS = "id BIGINT NOT NULL, payload STRING, y BIGINT"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashTable:
    """A table of the stack's REST catalog, and a ledger on the stack's S3."""

    stack: Stack
    lake: SparkSession
    name: str
    ledger: dict[str, Any]

    def create(self, columns: str = COLUMNS, *, options: str = "") -> None:
        """Make the table, empty."""
        self.lake.sql(f"CREATE TABLE lake.{self.name} ({columns}) USING iceberg {options}")

    def settings(self, **settings: Any) -> dict[str, Any]:  # noqa: ANN401 - the job's own.
        """Return the settings of a job that writes this table."""
        catalog = self.stack.rest_catalog_properties()
        return {"to": self.name, "catalog": catalog, **self.ledger, **settings}

    def snapshots_with_rows(self) -> int:
        """Return how many snapshots have added rows."""
        snapshots = self.lake.table(f"lake.{self.name}.snapshots")
        return snapshots.where("cast(summary['added-records'] AS BIGINT) > 0").count()

    def check_landed_once(self, rows: int) -> None:
        """Assert that ids from 0 stand there once each, with their values, in one snapshot."""
        found = self.lake.table(f"lake.{self.name}").selectExpr(
            "count(*) AS rows",
            "count(DISTINCT id) AS ids",
            "min(id) AS first",
            "max(id) AS last",
            "count_if(y = id * 2 + 1) AS right_y",
            "count_if(payload = concat('row ', id)) AS right_payload",
            "sum(y) AS sum_y",
        )
        assert found.collect()[0].asDict() == {
            "rows": rows,
            "ids": rows,
            "first": 0,
            "last": rows - 1,
            "right_y": rows,
            "right_payload": rows,
            "sum_y": rows * rows,
        }
        assert self.snapshots_with_rows() == 1
