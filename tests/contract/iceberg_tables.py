"""Iceberg tables for the sink contract; other writers use PyIceberg or Spark."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import AssertTableUUID, RemoveSnapshotRefUpdate
from pyiceberg.types import LongType, NestedField
from pyspark.sql import SparkSession

from holdfast.sinks.iceberg.catalog import open_catalog
from holdfast.sinks.iceberg.marks import HORIZON
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.sinks.staged import MARK_PREFIX
from tests.contract.table_under_test import TableUnderTest
from tests.fault_proxy import Fault, FaultProxy

_SCHEMA = Schema(NestedField(1, "id", LongType()))


class IcebergTable(TableUnderTest):
    """A table in a namespace of its own. Other writers use their own catalog object."""

    def __init__(self, catalog_name: str, properties: Mapping[str, str], *, empty: bool) -> None:
        """Create the table.

        Args:
            catalog_name: The catalog's name.
            properties: PyIceberg's properties for it.
            empty: Without any snapshot; otherwise with one row of another writer's.
        """
        self.catalog_name, self.properties = catalog_name, dict(properties)
        self.name = f"c{uuid.uuid4().hex[:10]}.t"
        self.others = open_catalog(catalog_name, self.properties)
        self.opened = [self.others]
        self.others.create_namespace(self.name.partition(".")[0])
        self._create()
        if not empty:
            self.foreign_append()

    @abstractmethod
    def open_catalog(self) -> Catalog:
        """Open the catalog as a driver does, in a way that lets a test lose answers."""

    def sink(self) -> IcebergSink:
        """Return a sink with a connection of its own."""
        catalog = self.open_catalog()
        self.opened.append(catalog)
        return IcebergSink(catalog, self.name, "main")

    def close(self) -> None:
        """Close every catalog that was opened."""
        for catalog in self.opened:
            catalog.close()

    def rows(self) -> list[int]:
        """Read with PyIceberg; the column may have been renamed."""
        found: list[int] = self._load().scan().to_arrow().column(0).to_pylist()
        return found

    def foreign_append(self) -> None:
        """Append one row with PyIceberg."""
        self._load().append(pa.table({"id": pa.array([-1], pa.int64())}))

    def change_schema(self) -> None:
        """Rename the column."""
        self._load().update_schema().rename_column("id", "number").commit()

    def drop_and_create(self) -> None:
        """Drop the table, and make it again."""
        self.drop()
        self._create()

    def remove_file(self, path: str) -> None:
        """Delete a file without going through the table."""
        self._load().io.delete(path)

    def path_outside(self) -> str:
        """Return a path in a folder whose name begins with the table's."""
        return f"{self._load().location().rstrip('/')}-other/data/x.parquet"

    def drop(self) -> None:
        """Drop the table, but not its files."""
        self.others.drop_table(self.name)

    def roll_back(self, snapshot_id: int) -> None:
        """Roll back with PyIceberg."""
        self._load().manage_snapshots().rollback_to_snapshot(snapshot_id).commit()

    def expire_history(self) -> None:
        """Expire every snapshot but the head, with PyIceberg."""
        table = self._load()
        head = table.metadata.current_snapshot_id
        old = [
            snapshot.snapshot_id for snapshot in table.snapshots() if snapshot.snapshot_id != head
        ]
        table.maintenance.expire_snapshots().by_ids(old).commit()

    def forget_marks(self) -> None:
        """Remove the marks, and raise the horizon to the newest snapshot."""
        table = self._load()
        marks = [name for name in table.properties if name.startswith(MARK_PREFIX)]
        assert marks  # The case is not empty.
        with table.transaction() as change:
            change.remove_properties(*marks)
            change.set_properties({HORIZON: str(table.metadata.next_sequence_number() - 1)})

    def _create(self) -> None:
        self.others.create_table(self.name, schema=_SCHEMA, properties={"format-version": "2"})

    def _load(self) -> Table:
        return self.others.load_table(self.name)


class RestTable(IcebergTable):
    """A table in a REST catalog; sinks reach it through a proxy, other writers directly."""

    def __init__(
        self,
        catalog_name: str,
        properties: Mapping[str, str],
        proxy: FaultProxy,
        session: SparkSession,
        *,
        empty: bool,
    ) -> None:
        """Create the table; the session knows the catalog by the same name."""
        self._proxy, self._session = proxy, session
        super().__init__(catalog_name, properties, empty=empty)

    def open_catalog(self) -> Catalog:
        """Open the catalog through the proxy."""
        return open_catalog(self.catalog_name, {**self.properties, "uri": self._proxy.uri})

    def replace(self) -> None:
        """Replace the table's content with Spark."""
        self._session.sql(
            f"CREATE OR REPLACE TABLE {self.catalog_name}.{self.name} USING iceberg "
            "AS SELECT cast(-2 AS bigint) AS id"
        )

    def lose_next_answer(self, *, landed: bool) -> None:
        """Cut the connection before or after the catalog gets the post."""
        self._proxy.faults = [Fault(forward=landed, lose_answer=True)]


class NessieTable(RestTable):
    """A table in Nessie, which shows the newest snapshot only."""

    def change_schema(self) -> None:
        """Rename the column with Spark: Nessie answers PyIceberg's request with an error."""
        self._session.sql(f"ALTER TABLE {self.catalog_name}.{self.name} RENAME COLUMN id TO number")

    def roll_back(self, snapshot_id: int) -> None:
        """Skip the case: there is nothing to roll back to."""
        assert snapshot_id not in [snapshot.snapshot_id for snapshot in self._load().snapshots()]
        self.cannot("roll back: Nessie shows the newest snapshot only")

    def expire_history(self) -> None:
        """Check that the history is hidden already."""
        assert len(self._load().snapshots()) == 1


class SqlTable(IcebergTable):
    """A table in an SQL catalog."""

    def open_catalog(self) -> Catalog:
        """Open the catalog, with a commit that can fail.

        A connection cannot be cut exactly between the database's commit and its answer, so the
        commit runs to its end and then raises.
        """
        catalog = open_catalog(self.catalog_name, self.properties)
        commit = catalog.commit_table

        def commit_or_fail(*args: Any) -> Any:  # noqa: ANN401 - PyIceberg's own arguments.
            landed, self._next_landed = self._next_landed, None
            answer = None if landed is False else commit(*args)
            if landed is not None:
                raise ConnectionError("server closed the connection")
            return answer

        catalog.commit_table = commit_or_fail  # type: ignore[assignment, method-assign]
        return catalog

    def replace(self) -> None:
        """Start a new history without a parent, as Iceberg's own replacement does."""
        table = self._load()
        required = (AssertTableUUID(uuid=table.metadata.table_uuid),)
        self.others.commit_table(table, required, (RemoveSnapshotRefUpdate(ref_name="main"),))
        self.foreign_append()

    def lose_next_answer(self, *, landed: bool) -> None:
        """Let the next commit of a sink raise."""
        self._next_landed = landed

    # Whether the next commit lands before it fails; None: it does not fail.
    _next_landed: bool | None = None
