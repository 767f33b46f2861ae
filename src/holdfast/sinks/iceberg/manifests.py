"""Manifests: written on executors, listed by the driver, read back without losing values.

PyIceberg 0.12.0's compiled Avro decoder reads a double through a float: 0.1 becomes
0.10000000149011612, 1e308 becomes infinity. Doubles appear in manifests as partition values, so
pruning by them loses rows, and a rewritten manifest gets different values. Every table that
`load_table` returns is read through this module. PyIceberg itself is not patched: it stays
unchanged for the rest of the user's process.

`tests/unit/sinks/iceberg/test_manifests.py` notices when PyIceberg has fixed its decoder.

Entries leave snapshot id and sequence numbers empty: readers inherit them from the snapshot that
lists the manifest. So a manifest can be written before its snapshot is known, and the driver never
handles the files one by one.

A manifest holds the names of its files, so it cannot be copied as it is. Everything else that it
records about them is kept.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, cast

import msgspec
from pyiceberg.avro.codecs import AvroCompressionCodec
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.file import AvroFile
from pyiceberg.avro.reader import DoubleReader, FloatReader, Reader
from pyiceberg.avro.resolver import ReadSchemaResolver, SchemaPartnerAccessor
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO, InputFile, OutputFile, OutputStream
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    PartitionFieldSummary,
    _inherit_from_manifest,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, visit_with_partner
from pyiceberg.table import DataScan, FileScanTask, ManifestGroupPlanner, Table, TableProperties
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import StructProtocol
from pyiceberg.types import DoubleType, FloatType, IcebergType

from holdfast.ledger.row_files import damage_at
from holdfast.model.stored import Count, typed
from holdfast.model.work import StagedFile, StagedGroup
from holdfast.sinks.iceberg.avro import AvroHeader, Blocks, blocks, decoding, read_header
from holdfast.sinks.iceberg.data_file import drop_unsound_bounds
from holdfast.sinks.iceberg.file_io import HoldfastFileIO

# ---- Read manifests with their floating-point values intact

_Entry = TypeVar("_Entry", bound=StructProtocol)

_DOUBLE = struct.Struct("<d")
# Deletes find their data files by equal partition values, and NaN only equals the same object.
_NAN = float("nan")


class ExactTable(Table):
    """A table whose scans are planned with exact partition values."""

    @classmethod
    def of(cls, table: Table, io: FileIO) -> ExactTable:
        """Return a loaded table that reads its files through another FileIO."""
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
    """Return all entries of a manifest, including deleted ones.

    Raises:
        DamagedFileError: It cannot be read.
    """
    return _exact(manifest).fetch_manifest_entry(io, discard_deleted=False)


def manifests_of(snapshot: Snapshot, io: FileIO) -> list[ManifestFile]:
    """Return the manifests of a snapshot.

    Raises:
        DamagedFileError: Their list cannot be read.
    """
    with decoding(snapshot.manifest_list):
        return snapshot.manifests(io)


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
        return planner.plan_files(
            [_exact(manifest) for manifest in manifests_of(snapshot, self.io)]
        )


class _ExactManifest(ManifestFile):
    def fetch_manifest_entry(
        self,
        io: FileIO,
        discard_deleted: bool = True,  # noqa: FBT001, FBT002 - the signature is PyIceberg's.
    ) -> list[ManifestEntry]:
        file = _ExactFile[ManifestEntry](
            io.new_input(self.manifest_path),
            MANIFEST_ENTRY_SCHEMAS[DEFAULT_READ_VERSION],
            read_types={-1: ManifestEntry, 2: DataFile},
            read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
        )
        with decoding(self.manifest_path), file as reader:
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
        # Not `read_double`, where the compiled decoder narrows the value. The raw bytes are right.
        value: float = _DOUBLE.unpack(decoder.read(_DOUBLE.size))[0]
        return _one_nan(value)


def _one_nan(value: float) -> float:
    return _NAN if math.isnan(value) else value


# ---- Manifests written on executors, listed by the driver

HexText = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{2})*\Z")]


# By Iceberg's names. PyIceberg has no snappy without another package, which executors may lack.
_GZIP = "gzip"
_CODECS = {_GZIP: _GZIP, "zstd": "zstd", "uncompressed": "null"}


def avro_codec(properties: Mapping[str, str]) -> AvroCompressionCodec:
    """Return the codec that the table wants for manifests, or one that every reader knows."""
    wanted = properties.get(TableProperties.WRITE_AVRO_COMPRESSION, _GZIP).lower()
    return cast("AvroCompressionCodec", _CODECS.get(wanted, _GZIP))


class _Memory(OutputFile):
    """Bytes that PyIceberg writes and no store is given yet."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.stream = _Kept()

    def __len__(self) -> int:
        return len(self.stream.getvalue())

    def exists(self) -> bool:
        return False

    def to_input_file(self) -> InputFile:
        raise NotImplementedError

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: ARG002, FBT001, FBT002
        return self.stream


class _Kept(io.BytesIO):
    def close(self) -> None:
        """Keep the bytes: PyIceberg closes the stream before they are used."""


def write_staged_manifest(  # noqa: PLR0913 - they are the facts of one manifest.
    files: FileIO,
    uri: str,
    *,
    schema: Schema,
    spec: PartitionSpec,
    properties: Mapping[str, str],
    data_files: Sequence[DataFile],
) -> StagedGroup:
    """Write one manifest over the data files and return it as a staged group."""
    made = NewManifest.of(schema, spec, properties, data_files)
    cast("HoldfastFileIO", files).storage.put(uri, made.data)
    return StagedGroup(
        path=uri,
        size_bytes=len(made.data),
        files=staged_files(data_files),
        detail={**made.detail, **_if_small(made.carried)},
    )


class _DeletesWriter(ManifestWriterV2):
    """Writes a manifest of delete files: PyIceberg writes none."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def _manifest_writer(
    memory: _Memory,
    schema: Schema,
    spec: PartitionSpec,
    properties: Mapping[str, str],
    content: ManifestContent,
) -> ManifestWriterV2:
    unknown = cast("int", None)  # The snapshot is not known yet, but PyIceberg wants an int.
    make = ManifestWriterV2 if content is ManifestContent.DATA else _DeletesWriter
    return make(spec, schema, memory, unknown, avro_codec(properties))


def manifest_head(
    schema: Schema, spec: PartitionSpec, properties: Mapping[str, str], content: ManifestContent
) -> bytes:
    """Return what comes before the first entry of a manifest."""
    memory = _Memory("memory")
    with _manifest_writer(memory, schema, spec, properties, content).new_writer():
        return memory.stream.getvalue()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewManifest:
    """A manifest that adds files, not stored yet."""

    data: bytes
    # What a staged group records about it, and its entries as a record carries them.
    detail: Mapping[str, Any]
    carried: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        schema: Schema,
        spec: PartitionSpec,
        properties: Mapping[str, str],
        files: Sequence[DataFile],
        content: ManifestContent = ManifestContent.DATA,
    ) -> NewManifest:
        """Encode a manifest.

        Args:
            schema: A schema of the table that has the spec's columns.
            spec: The partition spec of the files.
            properties: The table's properties.
            files: The files.
            content: Whether they are files of data, or of deletes.
        """
        memory = _Memory("memory")
        writer = _manifest_writer(memory, schema, spec, properties, content)
        with writer:
            for file in files:
                if content is ManifestContent.DATA:
                    drop_unsound_bounds(file, schema)
                writer.add_entry(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=None,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=file,
                    )
                )
        manifest = writer.to_manifest_file()
        # PyIceberg writes a block for each entry, which is slow to read.
        written = memory.stream.getvalue()
        joined, entries = Blocks(written), []
        for rows, block in blocks(written):
            joined.add(rows, block)
            entries.append(block)
        fields, unpacked = spec.partition_type(schema).fields, b"".join(entries)
        return cls(
            data=joined.finished(),
            detail={
                "spec_id": spec.spec_id,
                "spec": spec_text(spec),
                "has_sound_bounds": True,
                "partitions": [
                    _summary_json(summary, field.field_type)
                    for summary, field in zip(manifest.partitions or [], fields, strict=True)
                ],
                **({} if content is ManifestContent.DATA else {"content": int(content)}),
            },
            carried={}
            if len(unpacked) > UNPACKED_BYTES
            else {
                "header": header_digest(read_header(written)),
                "listed": len(files),
                "entries": base64.b64encode(zlib.compress(unpacked)).decode(),
            },
        )


def staged_files(files: Iterable[DataFile]) -> tuple[StagedFile, ...]:
    """Return files as a staged group has them."""
    return tuple(
        StagedFile(path=file.file_path, size_bytes=file.file_size_in_bytes, rows=file.record_count)
        for file in files
    )


class PartitionSummary(msgspec.Struct):
    """What a staged group records about one partition field, with bounds in hexadecimal."""

    contains_null: bool
    contains_nan: bool | None
    lower: HexText | None
    upper: HexText | None


class Detail(msgspec.Struct):
    """The part of a staged group that only Iceberg understands."""

    spec_id: Count
    partitions: list[PartitionSummary]
    # The fields of its partition spec, as `spec_text` has them: a table may give a number again.
    spec: str = ""
    # Whether it has no bounds of floating-point columns without counts of NaN.
    has_sound_bounds: bool = False
    # A manifest's header, by digest, how many entries it has, and these: compressed, in Base64. All
    # are empty if they are too large for a record.
    header: str = ""
    listed: Count = 0
    entries: str = ""
    # Whether it lists files of data (0) or of deletes (1).
    content: Count = 0


def spec_text(spec: PartitionSpec) -> str:
    """Return all that decides how rows are partitioned, and how manifests record it."""
    return ", ".join(f"{f.field_id}: {f.transform} of {f.source_id}" for f in spec.fields)


def detail_of(group: StagedGroup) -> Detail:
    """Return a staged group's details from the ledger.

    Raises:
        LedgerDamagedError: They are not what `write_staged_manifest` recorded.
    """
    with damage_at(group.path):
        return typed(group.detail, Detail)


# A driver keeps the records of all tasks: with 100,000 of them, at most 200 MB of entries.
_CARRIED_CHARS, UNPACKED_BYTES = 2_000, 1 << 20


def _if_small(carried: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a manifest's entries as its record carries them, if they are small."""
    return carried if carried and len(carried["entries"]) <= _CARRIED_CHARS else {}


def header_digest(header: AvroHeader) -> str:
    """Return a text that only manifests with the same header share."""
    return hashlib.sha256(repr(sorted(header.metadata.items())).encode()).hexdigest()


def _summary_json(summary: PartitionFieldSummary, kind: IcebergType) -> dict[str, Any]:
    lower, upper = summary.lower_bound, summary.upper_bound
    if isinstance(kind, FloatType | DoubleType):
        # -0.0 sorts before 0.0 for readers that prune, and PyIceberg takes whichever comes first.
        zeros = [to_bytes(kind, -0.0), to_bytes(kind, 0.0)]
        lower, upper = (
            (zeros[0] if lower in zeros else lower),
            (zeros[1] if upper in zeros else upper),
        )
    return {
        "contains_null": summary.contains_null,
        "contains_nan": summary.contains_nan,
        "lower": None if lower is None else lower.hex(),
        "upper": None if upper is None else upper.hex(),
    }
