"""A table of numbered rows, and a transform that notes which of them it has done.

Workers import this module, so it does not need pytest.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.ledger.layout import RunLayout
from holdfast.sources.scans import Scan
from holdfast.storage.objects import ObjectStorage
from tests.integration.process_local_lake import ledger_kinds
from tests.run_options import run_wide

ROWS = 20
TASKS = 2
RUN = "nightly"


class Watched:
    """Notes the numbers of all rows that it has done, and fails at some."""

    def __init__(self, notes: Path, *, fails_at: Collection[int] = ()) -> None:
        """Take the folder for the notes, and the numbers to fail at."""
        self.notes = notes
        self.fails_at = fails_at

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as they are."""
        numbers = batch.column("n").to_pylist()
        if bad := set(self.fails_at).intersection(numbers):
            raise LookupError(f"no answer for {sorted(bad)}")
        (self.notes / f"{uuid.uuid4().hex}.json").write_text(json.dumps(numbers))
        return batch


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedTable:
    """`lake.<namespace>.rows`, created by the first append, and all that is needed to write it."""

    lake: SparkSession
    namespace: str
    ledger: dict[str, Any]
    notes: Path

    @property
    def name(self) -> str:
        """The table's name in Spark."""
        return f"lake.{self.namespace}.rows"

    def input(self, *columns: str, rows: int = ROWS, tasks: int = TASKS) -> DataFrame:
        """Return rows numbered by `n`, with more columns made of it, if given."""
        numbers = self.lake.range(0, rows, 1, tasks).withColumnRenamed("id", "n")
        return numbers.selectExpr(*columns, "n")

    def run(self, run_id: str = RUN, **options: Any) -> hf.Run:  # noqa: ANN401 - those of `Run`.
        """Return the run."""
        return hf.Run(run_id, **self.ledger, **options)

    def append(
        self,
        df: DataFrame | Scan | hf.Materialized | None = None,
        *,
        run_id: str = RUN,
        fails_at: Collection[int] = (),
        **options: Any,  # noqa: ANN401 - those of `Run` and `append`.
    ) -> hf.Report:
        """Append, two rows a batch and without retries; options replace the defaults."""
        usual: dict[str, Any] = {
            "to": self.name,
            "key": "n",
            "transform": Watched(self.notes, fails_at=fails_at),
            "create": hf.Create(),
            "batch_rows": 2,
            "retries": 0,
        }
        rows = self.input() if df is None else df
        return self.run(run_id, **run_wide(options)).append(rows, **{**usual, **options})

    def computed(self) -> list[int]:
        """Return the numbers of all rows that the transform has done, with repetitions."""
        found = [json.loads(note.read_text()) for note in self.notes.glob("*.json")]
        return sorted(number for numbers in found for number in numbers)

    def numbers(self) -> list[int]:
        """Return the numbers of all rows in the table, as Spark reads it."""
        return sorted(row["n"] for row in self.lake.table(self.name).select("n").collect())

    def tables(self) -> list[str]:
        """Return the names of all tables in the namespace."""
        found = self.lake.sql(f"SHOW TABLES IN lake.{self.namespace}").collect()
        return sorted(row["tableName"] for row in found)

    def snapshots(self, run_id: str = RUN) -> list[int]:
        """Return the snapshots that the run has made."""
        found = self.lake.table(f"{self.name}.snapshots").collect()
        return [row["snapshot_id"] for row in found if row["summary"].get("holdfast.run") == run_id]

    def kinds(self, run_id: str = RUN) -> list[str]:
        """Return the kinds of the records in the run's log."""
        return ledger_kinds(self.ledger["store"], run_id, self.ledger["store_options"])

    @property
    def storage(self) -> ObjectStorage:
        """How the ledger, and the table's files, are reached."""
        return ObjectStorage(self.ledger["store_options"])

    def layout(self, run_id: str = RUN) -> RunLayout:
        """Return where the run's ledger is."""
        return RunLayout.of(self.ledger["store"], run_id)

    def location(self) -> str:
        """Return the folder of the table's files."""
        found = self.lake.sql(f"DESCRIBE TABLE EXTENDED {self.name}").collect()
        return str(next(row["data_type"] for row in found if row["col_name"] == "Location"))
