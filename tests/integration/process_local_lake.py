"""A lake on one machine without a server: an SQLite catalog, files and a ledger in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType

from holdfast.ledger.layout import RunLayout
from holdfast.model.records import decode_record
from holdfast.storage.objects import ObjectStorage

_SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "label", StringType()),
    NestedField(3, "build", StringType()),
    NestedField(4, "executor", LongType()),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLake:
    """Where the catalog, the files and the ledger are."""

    folder: Path

    @property
    def catalog(self) -> dict[str, str]:
        """PyIceberg's properties of the catalog."""
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": f"file://{self.folder}/warehouse",
        }

    @property
    def store(self) -> str:
        """The ledger's store."""
        return f"file://{self.folder}/ledger"

    def create_table(self) -> None:
        """Make `here.rows`, empty."""
        catalog = load_catalog("default", **self.catalog)
        catalog.create_namespace("here")
        catalog.create_table("here.rows", _SCHEMA)
        catalog.close()

    def load_table(self) -> Table:
        """Return the table as it is now, through PyIceberg alone."""
        catalog = load_catalog("default", **self.catalog)
        table = catalog.load_table("here.rows")
        catalog.close()
        return table

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows, sorted by id."""
        found: list[dict[str, Any]] = self.load_table().scan().to_arrow().to_pylist()
        return sorted(found, key=lambda row: row["id"])

    def snapshots(self) -> list[int]:
        """Return the ids of all snapshots."""
        return [snapshot.snapshot_id for snapshot in self.load_table().metadata.snapshots]


def ledger_kinds(store: str, run_id: str, options: Mapping[str, str] | None = None) -> list[str]:
    """Return the kinds of a run's records in the order of the log; empty if there are none."""
    storage = ObjectStorage(options)
    found = storage.list(RunLayout.of(store, run_id).log)
    return [type(decode_record(storage.get(uri)).body).__name__ for uri in found]
