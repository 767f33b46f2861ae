"""The table that a killed job writes, as Iceberg's own Spark reader sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

import holdfast as hf
from tests.crash.wide_rows import FILLER_IS_RIGHT
from tests.stack_access import S3Endpoint, Stack

# The one run that crash jobs have.
RUN = "nightly"
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

    @property
    def server(self) -> S3Endpoint:
        """Where its files are."""
        return self.stack.s3

    @property
    def target(self) -> hf.IcebergTable:
        """The table, as a user names it."""
        return hf.IcebergTable(self.name, catalog=self.stack.rest_catalog_properties())

    @property
    def location(self) -> str:
        """The folder of the table's files."""
        found = self.lake.sql(f"DESCRIBE TABLE EXTENDED lake.{self.name}").collect()
        location: str = next(row["data_type"] for row in found if row["col_name"] == "Location")
        return location

    def settings(self, **settings: Any) -> dict[str, Any]:  # noqa: ANN401 - the job's own.
        """Return the settings of a job that writes this table."""
        catalog = self.stack.rest_catalog_properties()
        return {"to": self.name, "catalog": catalog, **self.ledger, **settings}

    def snapshots_with_rows(self) -> int:
        """Return how many snapshots have added rows."""
        snapshots = self.lake.table(f"lake.{self.name}.snapshots")
        return snapshots.where("cast(summary['added-records'] AS BIGINT) > 0").count()

    def rows_by_file(self) -> list[int]:
        """Return how many rows each file of the table has, the smallest first."""
        files = self.lake.table(f"lake.{self.name}.files").collect()
        return sorted(file["record_count"] for file in files)

    def referred_files(self) -> set[str]:
        """Return the data files and manifests that any snapshot of the table refers to."""
        read = self.lake.table
        files = read(f"lake.{self.name}.all_data_files").select("file_path").collect()
        manifests = read(f"lake.{self.name}.all_manifests").select("path").collect()
        return {row[0] for row in [*files, *manifests]}

    def count(self) -> tuple[int, int]:
        """Return how many rows there are, and how many ids they have."""
        found = self.lake.table(f"lake.{self.name}").selectExpr("count(*)", "count(DISTINCT id)")
        rows, ids = found.collect()[0]
        return rows, ids

    def right_fillers(self) -> int:
        """Return how many rows have the filler that was made for them."""
        return self.lake.table(f"lake.{self.name}").where(FILLER_IS_RIGHT).count()

    def check_landed_once(self, rows: int) -> None:
        """Assert that the table has each id from 0 on once, with its values, in one snapshot."""
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
