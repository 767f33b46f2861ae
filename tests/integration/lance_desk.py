"""A Lance dataset, a ledger and an input on the shared session; rows are read with Lance itself.

Workers import this module, so it does not need pytest.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.storage.objects import ObjectStorage
from tests.integration.process_local_lake import ledger_kinds
from tests.run_options import run_wide
from tests.stack_access import S3Endpoint

ROWS, TASKS = 20, 2
RUN = "nightly"
_HELD_MAX_S = 60.0


class Labelled:
    """Adds a label to each id, and fails at some ids."""

    def __init__(self, fails_at: Collection[int] = ()) -> None:
        """Take the ids to fail at."""
        self.fails_at = fails_at

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Return the rows with their labels."""
        ids = batch["id"].to_pylist()
        if bad := set(self.fails_at).intersection(ids):
            raise LookupError(f"no answer for {sorted(bad)}")
        return {"id": ids, "label": [f"row {id_}" for id_ in ids]}


class HeldLabelled(Labelled):
    """Leaves a file when it is called, and continues when it is released."""

    def __init__(self, folder: Path) -> None:
        """Take the folder of the files."""
        super().__init__()
        self.folder = folder

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Return the rows with their labels, once it is released."""
        (self.folder / "called").touch()
        until = time.monotonic() + _HELD_MAX_S
        while not (self.folder / "release").exists() and time.monotonic() < until:
            time.sleep(0.05)
        return super().__call__(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanceDesk:
    """A dataset that the first append creates, and all that is needed to write it."""

    session: SparkSession
    folder: str
    # In Lance's names; the ledger's are in Iceberg's.
    options: dict[str, str] = field(repr=False)
    store_options: dict[str, str] = field(repr=False)

    @classmethod
    def on(cls, session: SparkSession, server: S3Endpoint) -> LanceDesk:
        """Return a desk on an S3 server."""
        folder = f"s3://{server.bucket}/lance-{uuid.uuid4().hex[:10]}"
        options, store_options = server.lance_options(), server.store_options()
        return cls(session=session, folder=folder, options=options, store_options=store_options)

    @classmethod
    def below(cls, session: SparkSession, folder: Path) -> LanceDesk:
        """Return a desk on local files."""
        return cls(session=session, folder=f"file://{folder}", options={}, store_options={})

    @property
    def uri(self) -> str:
        """Where the dataset is."""
        return f"{self.folder}/rows.lance"

    @property
    def to(self) -> hf.LanceTable:
        """The dataset, as a user names it."""
        return hf.LanceTable(self.uri, storage_options=self.options)

    @property
    def store(self) -> str:
        """The ledger's store."""
        return f"{self.folder}/ledger"

    @property
    def storage(self) -> ObjectStorage:
        """Storage that reaches the files without Lance."""
        return ObjectStorage(self.store_options)

    def ids(self, *, rows: int = ROWS, tasks: int = TASKS) -> DataFrame:
        """Return an input of ids alone."""
        return self.session.range(0, rows, 1, tasks)

    def make(self, rows: pa.Table, **options: Any) -> None:  # noqa: ANN401 - those of Lance.
        """Write rows with Lance, as another writer does."""
        lance.write_dataset(rows, self.uri, storage_options=self.options, **options)

    def run(self, run_id: str = RUN, **options: Any) -> hf.Run:  # noqa: ANN401 - those of `Run`.
        """Return the run."""
        return hf.Run(run_id, store=self.store, store_options=self.store_options, **options)

    def append(
        self,
        df: DataFrame | None = None,
        *,
        run_id: str = RUN,
        **options: Any,  # noqa: ANN401 - those of `Run` and `append`.
    ) -> hf.Report:
        """Append, two rows a batch and without retries; options replace the defaults."""
        return self.write("append", df, run_id=run_id, **options)

    def write(
        self,
        verb: str,
        df: DataFrame | None = None,
        *,
        run_id: str = RUN,
        **options: Any,  # noqa: ANN401 - those of `Run` and the verb.
    ) -> hf.Report:
        """Call a verb with the same defaults."""
        usual: dict[str, Any] = {
            "to": self.to,
            "key": "id",
            "transform": Labelled(),
            "create": hf.Create(
                schema=pa.schema(
                    [pa.field("id", pa.int64(), nullable=False), ("label", pa.string())]
                )
            ),
            "batch_rows": 2,
            "retries": 0,
        }
        rows = self.ids() if df is None else df
        run = self.run(run_id, **run_wide(options))
        report: hf.Report = getattr(run, verb)(rows, **{**usual, **options})
        return report

    def dataset(self, version: int | None = None) -> Any:  # noqa: ANN401 - half of it is untyped.
        """Open the dataset as another client does."""
        return lance.dataset(self.uri, version=version, storage_options=self.options)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return all rows, sorted by id."""
        return sorted(tuple(row.values()) for row in self.dataset().to_table().to_pylist())

    def versions(self, run_id: str = RUN) -> list[int]:
        """Return the versions that a run has made."""
        dataset = self.dataset()
        numbers = [version["version"] for version in dataset.versions()]
        made = {
            number: dataset.read_transaction(number).transaction_properties or {}
            for number in numbers
        }
        return [number for number in numbers if made[number].get("holdfast.run") == run_id]

    def kinds(self, run_id: str = RUN) -> list[str]:
        """Return the kinds of the records in the run's log."""
        return ledger_kinds(self.store, run_id, self.store_options)

    def files(self) -> set[str]:
        """Return all data files, of any writer."""
        return set(self.storage.list(f"{self.uri}/data"))

    def live_files(self) -> set[str]:
        """Return the data files that the newest version refers to."""
        fragments = self.dataset().get_fragments()
        paths = [file.path for fragment in fragments for file in fragment.metadata.files]
        return {f"{self.uri}/data/{path}" for path in paths}


LABELLED = [(number, f"row {number}") for number in range(ROWS)]
