"""Delete files for tables of tests: PyIceberg writes none."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record

from tests.fakes.iceberg_tables import local_path


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _AddDeletes(_FastAppendFiles):
    """A snapshot that adds delete files and keeps what is there."""

    deletes: Sequence[DataFile] = ()

    def _manifests(self) -> list[ManifestFile]:
        output = self.new_manifest_output()
        metadata = self._transaction.table_metadata
        with _DeleteManifest(
            metadata.spec(), metadata.schema(), output, self.snapshot_id, "deflate"
        ) as writer:
            for file in self.deletes:
                writer.add_entry(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self.snapshot_id,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=file,
                    )
                )
        return [writer.to_manifest_file(), *self._existing_manifests()]


def delete_positions(
    table: Table,
    rows: Mapping[str, Sequence[int]],
    file_format: FileFormat = FileFormat.PARQUET,
    partition: Record | None = None,
) -> None:
    """Delete rows of files by their positions, in one delete file, or so the table says."""
    columns = {
        "file_path": [path for path, positions in rows.items() for _ in positions],
        "pos": [position for positions in rows.values() for position in positions],
    }
    content = DataFileContent.POSITION_DELETES
    _add(table, columns, content, file_format=file_format, partition=partition or Record())


def add_equality_deletes(table: Table) -> None:
    """Delete the row whose id is 1, by its value."""
    _add(table, {"id": [1]}, DataFileContent.EQUALITY_DELETES, equality_ids=[1])


def _add(
    table: Table,
    columns: dict[str, Any],
    content: DataFileContent,
    **more: Any,  # noqa: ANN401 - fields of a data file.
) -> None:
    uri = f"{table.location()}/data/{uuid.uuid4().hex}-deletes.parquet"
    path = local_path(uri)
    pq.write_table(pa.table(columns), path)
    file = DataFile.from_args(
        content=content,
        file_path=uri,
        file_format=more.pop("file_format", FileFormat.PARQUET),
        partition=more.pop("partition", Record()),
        record_count=len(next(iter(columns.values()))),
        file_size_in_bytes=path.stat().st_size,
        **more,
    )
    file.spec_id = table.spec().spec_id
    with table.transaction() as transaction:
        update = _AddDeletes(
            operation=Operation.DELETE, transaction=transaction, io=table.io, branch="main"
        )
        update.deletes = [file]
        update.commit()
