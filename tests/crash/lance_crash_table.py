"""The dataset that a killed job writes, as Lance itself reads it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import holdfast as hf
from tests.crash.crash_table import COLUMNS, RUN, CrashTable
from tests.crash.wide_rows import filler
from tests.stack_access import S3Endpoint

_TYPES = {"BIGINT": pa.int64(), "STRING": pa.string()}
RUN_NOTE = "holdfast.run"


@dataclass(frozen=True, slots=True, kw_only=True)
class LanceCrashTable:
    """A dataset on an S3 server or on local files, and a ledger beside it."""

    uri: str
    ledger: dict[str, Any]
    # None on local files.
    s3: S3Endpoint | None = None
    options: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def on(cls, server: S3Endpoint) -> LanceCrashTable:
        """Return a dataset on a server that does not exist yet."""
        folder = f"s3://{server.bucket}/lance-{uuid.uuid4().hex[:10]}"
        return cls(
            uri=f"{folder}/rows.lance",
            ledger={"store": f"{folder}/ledger", "store_options": server.store_options()},
            s3=server,
            options=server.lance_options(),
        )

    @classmethod
    def below(cls, folder: Path) -> LanceCrashTable:
        """Return a dataset on local files that does not exist yet."""
        return cls(
            uri=f"file://{folder}/rows.lance",
            ledger={"store": f"file://{folder}/ledger", "store_options": {}},
        )

    @property
    def server(self) -> S3Endpoint:
        """Where its files are."""
        assert self.s3 is not None
        return self.s3

    @property
    def target(self) -> hf.LanceTable:
        """The dataset, as a user names it."""
        return hf.LanceTable(self.uri, storage_options=self.options)

    @property
    def location(self) -> str:
        """The folder of the dataset's files."""
        return self.uri

    def create(self, columns: str = COLUMNS, *, options: str = "") -> None:  # noqa: ARG002
        """Make the dataset, empty.

        Args:
            columns: As Spark SQL writes them.
            options: For Iceberg tables only.
        """
        fields = []
        for column in columns.split(", "):
            name, kind, *rest = column.split()
            fields.append(pa.field(name, _TYPES[kind], nullable=not rest))
        rows = pa.schema(fields).empty_table()
        lance.write_dataset(rows, self.uri, mode="create", storage_options=self.options)

    def settings(self, **settings: Any) -> dict[str, Any]:  # noqa: ANN401 - the job's own.
        """Return the settings of a job that writes this dataset."""
        return {"to": self.uri, "storage_options": self.options, **self.ledger, **settings}

    def dataset(self, version: int | None = None) -> lance.LanceDataset:
        """Open the dataset as other clients do."""
        return lance.dataset(self.uri, version=version, storage_options=self.options)

    def snapshots_with_rows(self) -> int:
        """Return how many versions have added rows."""
        return len(versions_with_rows(self.dataset()))

    def rows_by_file(self) -> list[int]:
        """Return how many rows each fragment of the dataset has, the smallest first."""
        return sorted(fragment.physical_rows for fragment in self.dataset().get_fragments())

    def referred_files(self) -> set[str]:
        """Return the data files that any version of the dataset refers to."""
        newest = self.dataset()
        return {
            f"{self.uri}/data/{file.path}"
            for version in newest.versions()
            for fragment in self.dataset(version["version"]).get_fragments()
            for file in fragment.metadata.files
        }

    def count(self) -> tuple[int, int]:
        """Return how many rows there are, and how many ids they have."""
        ids = self.dataset().to_table(columns=["id"])["id"]
        return len(ids), pc.count_distinct(ids).as_py()

    def right_fillers(self) -> int:
        """Return how many rows have the filler that was made for them."""
        rows = self.dataset().to_table(columns=["id", "filler"]).to_pylist()
        return sum(row["filler"] == filler(row["id"]) for row in rows)

    def check_landed_once(self, rows: int) -> None:
        """Assert that the dataset has each id from 0 on once, with its values, in one version."""
        dataset = self.dataset()
        found = dataset.to_table(columns=["id", "payload", "y"]).sort_by("id")
        assert np.array_equal(found["id"].to_numpy(), np.arange(rows))
        assert np.array_equal(found["y"].to_numpy(), np.arange(rows) * 2 + 1)
        payloads = pc.binary_join_element_wise("row ", pc.cast(found["id"], pa.string()), "")
        assert found["payload"].equals(payloads)
        (version,) = versions_with_rows(dataset)
        assert run_of(dataset, version) == RUN


AnyCrashTable = CrashTable | LanceCrashTable


def versions_with_rows(newest: lance.LanceDataset) -> list[int]:
    """Return the versions of a dataset that have more rows than the one before."""
    found, before = [], 0
    for version in sorted(entry["version"] for entry in newest.versions()):
        rows = newest.checkout_version(version).count_rows()
        if rows > before:
            found.append(version)
        before = rows
    return found


def run_of(dataset: lance.LanceDataset, version: int) -> str | None:
    """Return the run that has made a version, as its transaction says."""
    made: Any = dataset.read_transaction(version)
    return (made.transaction_properties or {}).get(RUN_NOTE)
