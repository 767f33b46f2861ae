"""Scans of an Iceberg table without Spark: a SQLite catalog, and pins as the ledger keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from holdfast.ledger.layout import RunLayout
from holdfast.ledger.parts import read_pins, write_pins
from holdfast.model.coverage import Pins
from holdfast.sinks.iceberg.open import table_loader
from holdfast.sinks.targets import IcebergTable
from holdfast.sources.iceberg import PinnedIcebergScan
from holdfast.sources.scans import scan_iceberg
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.parquet_scans import Read

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "n", IntegerType()),
    NestedField(3, "name", StringType()),
)
ARROW = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("n", pa.int32()), ("name", pa.string())]
)


class Tables:
    """A catalog with one table, and scans of it."""

    def __init__(self, folder: Path) -> None:
        """Make an empty catalog."""
        self.target = IcebergTable(
            "db.t",
            catalog={
                "type": "sql",
                "uri": f"sqlite:///{folder}/catalog.db",
                "warehouse": f"file://{folder}/warehouse",
            },
        )
        self.name, self.load = table_loader(self.target, lambda _: {})
        self.catalog = self.load.args[0]  # type: ignore[attr-defined]
        self.catalog.create_namespace("db")

    def create(self, schema: Schema = SCHEMA, **options: Any) -> Table:  # noqa: ANN401 - PyIceberg's.
        """Make the table."""
        table: Table = self.catalog.create_table("db.t", schema=schema, **options)
        return table

    def append(self, *ids: int) -> int:
        """Add a file of rows, and return the snapshot."""
        rows = [{"id": i, "n": i % 7, "name": f"name {i}"} for i in ids]
        table = self.load()
        schema = table.schema().as_arrow()
        names = schema.names
        table.append(pa.Table.from_pylist([{k: r.get(k) for k in names} for r in rows], schema))
        return self.snapshot()

    def snapshot(self) -> int:
        """Return the newest snapshot's id."""
        found = self.load().current_snapshot()
        assert found is not None
        return found.snapshot_id

    def scan(self, **options: Any) -> PinnedIcebergScan:  # noqa: ANN401 - those of `scan_iceberg`.
        """Return a scan of the table."""
        scan = scan_iceberg(self.target, **options)
        return PinnedIcebergScan(scan, self.name, "main", self.load)


def stored(pins: Pins) -> Pins:
    """Return pins as the ledger gives them back."""
    storage, layout = MemoryStorage(), RunLayout.of("s3://b", "r")
    return read_pins(storage, layout, write_pins(storage, layout, "p", pins))


def ids(found: Read) -> list[int]:
    """Return the ids of rows, sorted."""
    return sorted(row["id"] for row in found.rows)
