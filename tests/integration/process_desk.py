"""A table, a ledger and an input on the shared session, for tests that run in this process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from tests.integration.process_local_lake import ledger_kinds
from tests.run_options import run_wide

ROWS = 6
COUNTRIES = [(number, f"c{number}") for number in range(ROWS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """An empty table `lake.<namespace>.rows` and all that is needed to write it."""

    lake: SparkSession
    namespace: str
    ledger: dict[str, Any]
    # A folder that workers can leave files in.
    folder: Path

    @property
    def table(self) -> str:
        """The table's name in Spark."""
        return f"lake.{self.namespace}.rows"

    def create_table(self, *, properties: str = "") -> None:
        """Make the table: a required id, a required country."""
        columns = "id BIGINT NOT NULL, country STRING NOT NULL"
        options = f"TBLPROPERTIES ({properties})" if properties else ""
        self.lake.sql(f"CREATE TABLE {self.table} ({columns}) USING iceberg {options}")

    def ids(self, *, rows: int = ROWS, tasks: int = 2) -> DataFrame:
        """Return an input of ids alone."""
        return self.lake.range(0, rows, 1, tasks)

    def append(self, df: DataFrame | None = None, **options: Any) -> hf.Report:  # noqa: ANN401
        """Append to the table under one run id; options replace the defaults."""
        run = hf.Run(options.pop("run_id", "nightly"), **self.ledger, **run_wide(options))
        usual: dict[str, Any] = {"to": self.table, "key": "id"}
        return run.append(df if df is not None else self.ids(), **{**usual, **options})

    def rows(self, version: str = "main") -> list[tuple[Any, ...]]:
        """Return the ids and countries of a branch, sorted by id."""
        query = f"SELECT id, country FROM {self.table} VERSION AS OF '{version}' ORDER BY id"
        return [tuple(row) for row in self.lake.sql(query).collect()]

    def snapshots(self) -> int:
        """Return how many snapshots the table has."""
        return self.lake.table(f"{self.table}.snapshots").count()

    def intents(self, run_id: str = "nightly") -> int:
        """Return how many intents the run's ledger holds."""
        kinds = ledger_kinds(self.ledger["store"], run_id, self.ledger["store_options"])
        return kinds.count("Intent")
