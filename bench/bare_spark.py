"""Bare Spark's side: tables of the same layout, and ways to fill them or replace their rows."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bench.data import COLUMNS


def same_batches(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Pass batches on, as `mapInArrow` wants it."""
    yield from batches


def same_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Pass a batch on, as Holdfast wants it."""
    return batch


class BareSpark:
    """Writes the events without Holdfast."""

    def __init__(self, session: SparkSession, df: DataFrame) -> None:
        """Make the namespace of all tables."""
        self._session = session
        self._df = df
        self._mark = uuid.uuid4().hex[:8]
        session.sql("CREATE NAMESPACE IF NOT EXISTS lake.bench")

    def table(self, name: str, clauses: str = "") -> str:
        """Make an empty table, and return its name within the catalog."""
        ddl = ", ".join(f"{column} {kind}" for column, kind in COLUMNS.items())
        self._session.sql(
            f"CREATE TABLE lake.bench.{name}_{self._mark} ({ddl}) USING iceberg {clauses}"
        )
        return f"bench.{name}_{self._mark}"

    def drop(self, name: str) -> None:
        """Drop a table with its files."""
        self._session.sql(f"DROP TABLE lake.{name} PURGE")

    def mapped(self, name: str) -> None:
        """Append through an identity map in Python."""
        mapped = self._df.mapInArrow(same_batches, self._df.schema)
        mapped.writeTo(f"lake.{name}").append()

    def overwrite_mapped(self, name: str) -> None:
        """Replace the partitions of the rows, through an identity map in Python."""
        self._session.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
        mapped = self._df.mapInArrow(same_batches, self._df.schema)
        mapped.createOrReplaceTempView("mapped")
        self._session.sql(f"INSERT OVERWRITE lake.{name} SELECT * FROM mapped")

    def plain(self, name: str) -> None:
        """Append without a map."""
        self._df.writeTo(f"lake.{name}").append()
