"""Read manifests with their floating-point values intact.

PyIceberg 0.12.0's compiled Avro decoder reads a double through a float: 0.1 becomes
0.10000000149011612, 1e308 becomes infinity. Doubles appear in manifests as partition values, so
pruning by them loses rows, and a manifest that is written anew gets other values. Every table
that `load_table` returns is read through this module. PyIceberg itself is not patched: the rest
of the user's process keeps what it had.

`tests/unit/test_iceberg_manifest_reads.py` notices when PyIceberg has mended its decoder.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import Any, TypeVar

from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.file import AvroFile
from pyiceberg.avro.reader import DoubleReader, FloatReader, Reader
from pyiceberg.avro.resolver import ReadSchemaResolver, SchemaPartnerAccessor
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    _inherit_from_manifest,
)
from pyiceberg.schema import visit_with_partner
from pyiceberg.table import DataScan, FileScanTask, ManifestGroupPlanner, Table
from pyiceberg.typedef import StructProtocol
from pyiceberg.types import DoubleType, FloatType, IcebergType

_Entry = TypeVar("_Entry", bound=StructProtocol)

_DOUBLE = struct.Struct("<d")
# Deletes find their data files by equal partition values, and only the same NaN is equal.
_NAN = float("nan")


class ExactTable(Table):
    """A table whose scans are planned with exact partition values."""

    @classmethod
    def of(cls, table: Table, io: FileIO) -> ExactTable:
        """Return a loaded table, with another way to its files."""
        return cls(
            identifier=table.name(),
            metadata=table.metadata,
            metadata_location=table.metadata_location,
            io=io,
            catalog=table.catalog,
            config=table.config,
        )

    # The arguments are PyIceberg's.
    def scan(self, *args: Any, **options: Any) -> DataScan:  # noqa: ANN401
        """Return a scan of the table."""
        scan = super().scan(*args, **options)
        return _ExactScan(
            table_metadata=scan.table_metadata,
            io=scan.io,
            row_filter=scan.row_filter,
            selected_fields=scan.selected_fields,
            case_sensitive=scan.case_sensitive,
            snapshot_id=scan.snapshot_id,
            options=scan.options,
            limit=scan.limit,
            catalog=scan.catalog,
            table_identifier=scan.table_identifier,
        )


def manifest_entries(manifest: ManifestFile, io: FileIO) -> list[ManifestEntry]:
    """Return all entries of a manifest, deleted ones too."""
    return _exact(manifest).fetch_manifest_entry(io, discard_deleted=False)


class _ExactScan(DataScan):
    def plan_files(self) -> Iterable[FileScanTask]:
        if self.catalog is not None and self.catalog.supports_server_side_planning():
            return super().plan_files()  # The server has decoded the manifests.
        snapshot = self.snapshot()
        if snapshot is None:
            return []
        planner = ManifestGroupPlanner(
            table_metadata=self.table_metadata,
            io=self.io,
            row_filter=self.row_filter,
            case_sensitive=self.case_sensitive,
            options=self.options,
        )
        return planner.plan_files([_exact(one) for one in snapshot.manifests(self.io)])


class _ExactManifest(ManifestFile):
    def fetch_manifest_entry(
        self,
        io: FileIO,
        discard_deleted: bool = True,  # noqa: FBT001, FBT002 - the signature is PyIceberg's.
    ) -> list[ManifestEntry]:
        with _ExactFile[ManifestEntry](
            io.new_input(self.manifest_path),
            MANIFEST_ENTRY_SCHEMAS[DEFAULT_READ_VERSION],
            read_types={-1: ManifestEntry, 2: DataFile},
            read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
        ) as reader:
            return [
                _inherit_from_manifest(entry, self)
                for entry in reader
                if not discard_deleted or entry.status != ManifestEntryStatus.DELETED
            ]


def _exact(manifest: ManifestFile) -> _ExactManifest:
    return _ExactManifest(*(manifest[i] for i in range(len(manifest))))


class _ExactFile(AvroFile[_Entry]):
    __slots__ = ()

    def __enter__(self) -> _ExactFile[_Entry]:
        super().__enter__()
        resolver = _ExactResolver(self.read_types, self.read_enums)
        accessor = SchemaPartnerAccessor()
        self.reader = visit_with_partner(self.schema, self.read_schema, resolver, accessor)  # type: ignore[misc]
        return self


class _ExactResolver(ReadSchemaResolver):
    def visit_float(self, float_type: FloatType, partner: IcebergType | None) -> Reader:  # noqa: ARG002
        return _ExactFloat()  # type: ignore[no-untyped-call]

    def visit_double(self, double_type: DoubleType, partner: IcebergType | None) -> Reader:  # noqa: ARG002
        return _ExactDouble()  # type: ignore[no-untyped-call]


class _ExactFloat(FloatReader):
    def read(self, decoder: BinaryDecoder) -> float:
        return _one_nan(super().read(decoder))


class _ExactDouble(DoubleReader):
    def read(self, decoder: BinaryDecoder) -> float:
        # Not `read_double`: the compiled decoder narrows there. Its plain bytes are right.
        value: float = _DOUBLE.unpack(decoder.read(_DOUBLE.size))[0]
        return _one_nan(value)


def _one_nan(value: float) -> float:
    return _NAN if math.isnan(value) else value
