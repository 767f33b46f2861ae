"""Pin a snapshot of an Iceberg table: its files, their deletes, and the schema it is read in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform

from holdfast.errors import (
    InputChangedError,
    SettingsError,
    StoreUnavailableError,
    UnsupportedTableError,
)
from holdfast.ledger.store import answers
from holdfast.model.coverage import Origin, PinnedFile, Pins
from holdfast.model.lasting import lasts
from holdfast.reading.iceberg_rows import (
    ByFieldId,
    FieldsDifferError,
    PositionDeletes,
    as_expression,
    columns_to_read,
    compact_first,
    for_columns,
    for_rows,
    names_of,
    text_of,
    without_metadata,
)
from holdfast.reading.parquet_file import parse_footer
from holdfast.sources.base import Tagging
from holdfast.sources.filters import chosen
from holdfast.sources.parquet import footers, pinned_file
from holdfast.sources.parquet_reader import ParquetReader
from holdfast.sources.scans import IcebergScan
from holdfast.storage.port import ObjectFacts, Storage

# Types of all formats are accepted: whether the table may have them is not checked here.
_NEWEST_FORMAT: Literal[3] = 3


class PinnedIcebergScan:
    """A scan together with its table."""

    def __init__(
        self, scan: IcebergScan, name: str, branch: str, load: Callable[[], Table]
    ) -> None:
        """Keep the parts; nothing is read yet.

        Args:
            scan: The user's scan.
            name: The table's display name.
            branch: The branch to read if no snapshot is named.
            load: Loads the table's current state; its `io` uses our storage.
        """
        self._scan = scan
        self._name = name
        self._branch = branch
        self._load = load
        self._where = as_expression(scan.where)

    @property
    def identity(self) -> str:
        """What is read from the table, as a string; the snapshot is compared separately."""
        scan = self._scan
        facts = {
            "scan": "iceberg",
            "table": self._name,
            "columns": scan.columns,
            "where": text_of(scan.where),
        }
        return json.dumps(facts)

    def pin(self) -> Pins:
        """Choose a snapshot, and find its files.

        Raises:
            SettingsError: There is no such snapshot, or the columns or the filter do not fit.
            UnsupportedTableError: Workers cannot read its files.
            StoreUnavailableError: The storage does not answer.
        """
        table = self._load()
        metadata = table.metadata
        snapshot_id = self._snapshot_of(metadata)
        origin = Origin(
            table_uuid=str(metadata.table_uuid), snapshot_id=snapshot_id, branch=self._branch
        )
        schema = self._schema_of(metadata)
        fit = ByFieldId(schema=self._to_read(schema, metadata))
        if snapshot_id is None:
            return Pins(files=(), schema=fit.schema, origin=origin)
        tasks = self._plan(table, snapshot_id, schema)
        with answers(metadata.location):
            files = tuple(self._pinned(table, tasks, fit))
        return Pins(files=files, schema=fit.schema, origin=origin)

    def compare(self, pins: Pins) -> str:
        """Return how this start's snapshot differs from the pins; empty if it does not.

        Raises:
            InputChangedError: The table is a different one under the same name.
        """
        metadata = self._load().metadata
        if str(metadata.table_uuid) != pins.origin.table_uuid:
            raise InputChangedError(what=f"{self._name} is not the table that the run began with")
        before, now = pins.origin.snapshot_id, self._scan.snapshot_id
        if now is None:
            now = self._snapshot_of(metadata)
            if now != before:
                return (
                    f"{self._name} has moved from snapshot {before} to {now}, whose rows are not "
                    f"in this run; pass snapshot_id={before} to continue with what the run began "
                    "with, or read the newer rows in a separate run"
                )
        elif now != before:
            return f"the run reads snapshot {before} of {self._name}, but this start names {now}"
        return ""

    def schema(self, pins: Pins) -> pa.Schema:
        """Return the columns that the transform gets."""
        return chosen(without_metadata(pins.schema), self._scan.columns)

    def reader(self, pins: Pins) -> ParquetReader:
        """Return the reader that executors use for the pinned files."""
        storage = _storage_of(self._load())
        where = self._row_filter(pins)
        has_deletes = any(file.deletes for file in pins.files)
        return ParquetReader(
            storage=storage,
            fit=ByFieldId(schema=pins.schema),
            tagging=Tagging(
                columns=tuple(self.schema(pins).names),
                where=where,
                is_sparse=where is not None or has_deletes,
            ),
            deleted=PositionDeletes(storage=storage) if has_deletes else None,
        )

    def _snapshot_of(self, metadata: TableMetadata) -> int | None:
        """Return the requested snapshot; None for a table without any.

        Raises:
            SettingsError: There is no such snapshot or branch.
        """
        wanted = self._scan.snapshot_id
        if wanted is not None:
            if metadata.snapshot_by_id(wanted) is None:
                raise SettingsError(
                    what=f"{self._name} has no snapshot {wanted}",
                    cure=f"look at {self._name}.snapshots; it may have been expired",
                )
            return wanted
        ref = metadata.refs.get(self._branch)
        if ref is None and self._branch != "main":
            raise SettingsError(
                what=f"{self._name} has no branch {self._branch!r}", cure="name one that exists"
            )
        return ref.snapshot_id if ref is not None else metadata.current_snapshot_id

    def _schema_of(self, metadata: TableMetadata) -> Schema:
        """Return the table's schema; for a named snapshot, the schema it was written with."""
        snapshot_id = self._scan.snapshot_id
        snapshot = metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
        if snapshot is None or snapshot.schema_id is None:
            return metadata.schema()
        return metadata.schema_by_id(snapshot.schema_id) or metadata.schema()

    def _to_read(self, schema: Schema, metadata: TableMetadata) -> pa.Schema:
        """Return the requested columns, and those that the filter needs, with their ids.

        Raises:
            SettingsError: There is no such column, or the filter does not fit.
            UnsupportedTableError: A column's default cannot be recorded.
        """
        _, needed = for_rows(self._where, schema)
        known = {field.name: field for field in schema.fields}
        wanted = chosen(pa.schema([(name, pa.null()) for name in known]), self._scan.columns).names
        more = [
            name
            for name, field in known.items()
            if name not in wanted and needed & Schema(field).field_ids
        ]
        fields = [known[name] for name in (*wanted, *more)]
        try:
            return columns_to_read(fields, names_of(self._name, metadata))
        except FieldsDifferError as error:
            raise self._refused(str(error)) from error

    def _row_filter(self, pins: Pins) -> pc.Expression | None:
        schema = pyarrow_to_schema(pins.schema, format_version=_NEWEST_FORMAT)
        return for_rows(self._where, schema)[0]

    def _plan(self, table: Table, snapshot_id: int, schema: Schema) -> list[FileScanTask]:
        """Find the snapshot's files.

        Raises:
            UnsupportedTableError: It has equality deletes, or PyIceberg cannot read its manifests.
            StoreUnavailableError: The storage does not answer.
        """
        # PyIceberg looks up files by the current names of columns.
        is_current = schema.schema_id == table.metadata.current_schema_id
        where = for_columns(self._where, schema) if is_current else AlwaysTrue()
        try:
            tasks = table.scan(row_filter=where, snapshot_id=snapshot_id).plan_files()
            return sorted(tasks, key=lambda task: str(task.file.file_path))
        except (ValueError, NotImplementedError) as error:
            raise self._refused(str(error)) from error
        except OSError as error:
            raise StoreUnavailableError(
                uri=table.metadata.location, reason=str(error), retry_safe=not lasts(error)
            ) from error

    def _pinned(
        self, table: Table, tasks: Sequence[FileScanTask], fit: ByFieldId
    ) -> Iterator[PinnedFile]:
        """Yield the files of a snapshot.

        Raises:
            UnsupportedTableError: Workers cannot read one of them.
            SettingsError: A file is not as the table says.
        """
        by_uri = {task.file.file_path: task for task in tasks}
        for task in tasks:
            self._refuse_formats([task.file, *task.delete_files])
        facts = [
            ObjectFacts(uri=uri, size_bytes=task.file.file_size_in_bytes, tag="", modified=0.0)
            for uri, task in by_uri.items()
        ]
        for file, footer in footers(_storage_of(table), facts):
            task, metadata = by_uri[file.uri], parse_footer(footer)
            if metadata.num_rows != task.file.record_count:
                raise SettingsError(
                    what=f"{file.uri} has {metadata.num_rows} rows, but the table says that it "
                    f"has {task.file.record_count}",
                    cure="the table is damaged: repair it first",
                )
            self._check_columns(table, task.file, fit, metadata.schema.to_arrow_schema())
            deletes = tuple(sorted(delete.file_path for delete in task.delete_files))
            yield replace(pinned_file(file, metadata, {}), deletes=deletes)

    def _refuse_formats(self, files: Sequence[DataFile]) -> None:
        """Refuse files that workers cannot read.

        Raises:
            UnsupportedTableError: A file is in an unsupported format.
        """
        for file in files:
            if file.file_format == FileFormat.PUFFIN:
                raise self._refused("it has deletion vectors")
            if file.file_format != FileFormat.PARQUET:
                raise self._refused(f"{file.file_path} has format {file.file_format}")

    def _check_columns(self, table: Table, file: DataFile, fit: ByFieldId, own: pa.Schema) -> None:
        """Refuse a file whose columns cannot be matched to the table's.

        Raises:
            UnsupportedTableError: The columns cannot be matched.
        """
        try:
            missing = fit.check(own)
        except FieldsDifferError as error:
            raise self._refused(f"{file.file_path}: {error}") from error
        in_path = {
            field.source_id
            for field in table.metadata.specs()[file.spec_id].fields
            if isinstance(field.transform, IdentityTransform)
        }
        if missing & in_path:
            raise self._refused(f"{file.file_path} has partition columns only in its path")

    def _refused(self, what: str) -> UnsupportedTableError:
        return UnsupportedTableError(table=self._name, what=what, cure=compact_first(self._name))


def _storage_of(table: Table) -> Storage:
    storage: Storage = table.io.storage  # type: ignore[attr-defined]
    return storage
