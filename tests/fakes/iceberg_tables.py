"""Iceberg tables that need no server: SQLite holds the catalog, a temp folder the files."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.manifest import DataFile, ManifestEntry
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from sqlalchemy import update

from holdfast.engine.drive import Driver
from holdfast.engine.options import WriteOptions
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.ledger import Ledger
from holdfast.model.identity import Identity
from holdfast.model.report import Report
from holdfast.model.work import StagedGroup
from holdfast.sinks.base import MayLack
from holdfast.sinks.iceberg.catalog import open_catalog
from holdfast.sinks.iceberg.file_io import HoldfastFileIO
from holdfast.sinks.iceberg.joined import listed_manifest
from holdfast.sinks.iceberg.loading import io_of
from holdfast.sinks.iceberg.manifests import manifest_entries
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.sinks.iceberg.writer import IcebergWriterSpec
from tests.fakes.manual_ports import ManualTime, manual_ports
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.unpinned import Unpinned


def writer_spec(  # noqa: PLR0913 - they are what a table says about its files.
    folder: Path,
    schema: Schema,
    *,
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
    order: SortOrder = UNSORTED_SORT_ORDER,
    properties: Mapping[str, str] | None = None,
    io_properties: Mapping[str, str] | None = None,
    may_lack: MayLack = None,
) -> IcebergWriterSpec:
    """Return what an executor gets to write files into a folder; any column may be lacking."""
    return IcebergWriterSpec(
        table="lake.db.t",
        schema_json=schema.model_dump_json(),
        spec_json=spec.model_dump_json(),
        sort_order_json=order.model_dump_json(),
        location=f"file://{folder}/t",
        properties=dict(properties or {}),
        may_lack=may_lack,
        io_properties=dict(io_properties or {}),
    )


def write(
    spec: IcebergWriterSpec, *batches: pa.RecordBatch, task: str = "job-0-0"
) -> list[DataFile]:
    """Write the batches as one task does and return its manifest's data files."""
    writer = spec.open(task)
    for batch in batches:
        writer.write(writer.fit(batch))
    return [entry.data_file for group in writer.cut() for entry in entries(group)]


def entries(group: StagedGroup) -> list[ManifestEntry]:
    """Read a staged manifest's entries, with ids and numbers still to be inherited."""
    return manifest_entries(listed_manifest(group, 7), HoldfastFileIO())


def local_path(uri: str) -> Path:
    """Return the local file behind a URI."""
    return Path(uri.removeprefix("file://"))


def rows_of(data_file: DataFile) -> list[dict[str, Any]]:
    """Read a data file's rows, as another reader would, without the table's schema."""
    with pq.ParquetFile(local_path(data_file.file_path)) as file:
        found: list[dict[str, Any]] = file.read().to_pylist()
    return found


def parquet_metadata(data_file: DataFile) -> Any:  # noqa: ANN401 - pyarrow has no stubs.
    """Read a data file's footer."""
    return pq.read_metadata(local_path(data_file.file_path))


def new_table(
    folder: Path,
    schema: Schema,
    *,
    io_properties: Mapping[str, str] | None = None,
    **arguments: Any,  # noqa: ANN401 - those of `create_table`.
) -> tuple[IcebergSink, Table]:
    """Create a table in a catalog of its own and return a sink on it."""
    properties = {"type": "sql", "uri": "sqlite://", "warehouse": f"file://{folder}/warehouse"}
    catalog = open_catalog("lake", {**properties, **(io_properties or {})})
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", schema=schema, **arguments)
    return IcebergSink(catalog, "db.t", "main"), table


def edit_metadata(table: Table, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the table's newest metadata, as no PyIceberg client would.

    In an SQL catalog it gets a new file, because Holdfast parses a file once; else in place.
    """
    storage, old = io_of(table).storage, table.metadata_location
    metadata = json.loads(storage.get(old))
    change(metadata)
    catalog = table.catalog
    new = old.replace(".metadata.json", f"-{uuid.uuid4().hex[:8]}.metadata.json")
    new = new if isinstance(catalog, SqlCatalog) else old
    storage.put(new, json.dumps(metadata).encode())
    if isinstance(catalog, SqlCatalog):
        with catalog.engine.begin() as database:
            moved = update(IcebergTables).where(IcebergTables.metadata_location == old)
            assert database.execute(moved.values(metadata_location=new)).rowcount == 1


@dataclass
class Lake:
    """A real table and a ledger in memory: runs are started on them as a script does."""

    sink: IcebergSink
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    time: ManualTime = field(default_factory=ManualTime)

    @property
    def table(self) -> Table:
        """The table as it is now."""
        loaded: Table = self.sink.load().handle
        return loaded

    def ids(self) -> list[int]:
        """Return the ids of all rows in `main`, sorted."""
        found: list[int] = self.table.scan().to_arrow()["id"].to_pylist()
        return sorted(found)

    def submitter(self, *ids: int) -> MemorySubmitter:
        """Return an input of these ids, in one partition."""
        return MemorySubmitter(ids)

    def start(
        self,
        submitter: MemorySubmitter,
        *,
        run_id: str = "r",
        mode: str = "append",
        **options: Any,  # noqa: ANN401 - any of `WriteOptions`.
    ) -> Report:
        """Start a run from the look at the table to its receipt."""
        chosen = WriteOptions(**options)
        view = self.sink.load()
        identity = Identity(
            table=self.sink.name,
            table_uuid=view.uuid,
            branch=self.sink._branch,  # noqa: SLF001 - where the test wants to write.
            mode=mode,
            where=chosen.where_text,
            on=chosen.on_columns,
            delete_column=chosen.delete_column or "",
            key=("id",),
            session_time_zone="UTC",
            ansi_mode="true",
            version="",
        )
        given = Unpinned(submitter)
        driver = Driver(ledger=self.ledger(run_id), sink=self.sink, input=given)
        return driver.write(view, identity, chosen)

    def ledger(self, run_id: str = "r") -> Ledger:
        """Open a run's ledger as a new driver does."""
        return Ledger.open(run_id, "s3://store", self.storage, manual_ports(self.time))

    def lose_receipt(self, run_id: str = "r") -> None:
        """Take the last record out of the run's log: the driver died just before it."""
        log = RunLayout.of("s3://store", run_id).log
        last = max(uri for uri in self.storage.objects if uri.startswith(log))
        assert b'"kind": "receipt"' in self.storage.objects.pop(last)
