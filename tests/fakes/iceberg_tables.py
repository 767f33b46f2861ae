"""Iceberg tables that need no server: SQLite holds the catalog, a temp folder the files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, ManifestEntry
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

from holdfast.model.staged import StagedGroup
from holdfast.sinks.iceberg.catalog import open_catalog
from holdfast.sinks.iceberg.file_io import HoldfastFileIO
from holdfast.sinks.iceberg.manifests import listed_manifest
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.sinks.iceberg.writer import IcebergWriterSpec


def writer_spec(  # noqa: PLR0913 - they are what a table says about its files.
    folder: Path,
    schema: Schema,
    *,
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
    order: SortOrder = UNSORTED_SORT_ORDER,
    properties: Mapping[str, str] | None = None,
    io_properties: Mapping[str, str] | None = None,
) -> IcebergWriterSpec:
    """Return what an executor gets to write files into a folder."""
    return IcebergWriterSpec(
        table="lake.db.t",
        schema_json=schema.model_dump_json(),
        spec_json=spec.model_dump_json(),
        sort_order_json=order.model_dump_json(),
        location=f"file://{folder}/t",
        properties=dict(properties or {}),
        io_properties=dict(io_properties or {}),
    )


def write(
    spec: IcebergWriterSpec, *batches: pa.RecordBatch, task: str = "job-0-0"
) -> list[DataFile]:
    """Write the batches as one task does and return its manifest's data files."""
    writer = spec.open(task)
    for batch in batches:
        writer.write(batch)
    return [entry.data_file for group in writer.finish() for entry in entries(group)]


def entries(group: StagedGroup) -> list[ManifestEntry]:
    """Read a staged manifest's entries, with ids and numbers still to be inherited."""
    return listed_manifest(group, 7).fetch_manifest_entry(HoldfastFileIO(), discard_deleted=False)


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
