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

Each task writes manifests of its own, and a table with thousands of them is slow to read. They are
merged before they are published. Avro files consist of blocks of entries, so those of equal headers
are joined without decoding an entry: a manifest that is merged costs the driver a read, and its
entries some microseconds each.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from pyiceberg.avro.codecs import KNOWN_CODECS, AvroCompressionCodec
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import AvroFile
from pyiceberg.avro.reader import DoubleReader, FloatReader, Reader
from pyiceberg.avro.resolver import ReadSchemaResolver, SchemaPartnerAccessor
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    UNASSIGNED_SEQ,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    _inherit_from_manifest,
    write_manifest,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, visit_with_partner
from pyiceberg.table import DataScan, FileScanTask, ManifestGroupPlanner, Table, TableProperties
from pyiceberg.table.locations import SimpleLocationProvider
from pyiceberg.typedef import StructProtocol
from pyiceberg.types import DoubleType, FloatType, IcebergType, PrimitiveType

from holdfast.errors import LedgerDamagedError
from holdfast.failpoints import failpoint
from holdfast.ledger.row_files import damage_at
from holdfast.model.stored import Count, typed
from holdfast.model.work import Merge, StagedFile, StagedGroup
from holdfast.sinks.iceberg.data_file import WriteOptions
from holdfast.sinks.iceberg.rewrite import AvroHeader, blocks, read_header
from holdfast.storage.port import Storage
from holdfast.storage.runtime import io_runtime

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
    """Return all entries of a manifest, including deleted ones."""
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
        return planner.plan_files([_exact(manifest) for manifest in snapshot.manifests(self.io)])


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
        # Not `read_double`, where the compiled decoder narrows the value. The raw bytes are right.
        value: float = _DOUBLE.unpack(decoder.read(_DOUBLE.size))[0]
        return _one_nan(value)


def _one_nan(value: float) -> float:
    return _NAN if math.isnan(value) else value


# ---- Manifests written on executors, listed by the driver

HexText = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{2})*\Z")]


def avro_codec(properties: Mapping[str, str]) -> AvroCompressionCodec:
    """Return the codec that the table wants for manifests."""
    codec = properties.get(
        TableProperties.WRITE_AVRO_COMPRESSION, TableProperties.WRITE_AVRO_COMPRESSION_DEFAULT
    )
    return cast("AvroCompressionCodec", codec)


def write_staged_manifest(  # noqa: PLR0913 - they are the facts of one manifest.
    io: FileIO,
    uri: str,
    *,
    schema: Schema,
    spec: PartitionSpec,
    properties: Mapping[str, str],
    data_files: Sequence[DataFile],
) -> StagedGroup:
    """Write one manifest over the data files and return it as a staged group."""
    unknown = cast("int", None)  # The snapshot is not known yet, but PyIceberg wants an int.
    version: Literal[2] = 2
    with write_manifest(
        format_version=version,
        spec=spec,
        schema=schema,
        output_file=io.new_output(uri),
        snapshot_id=unknown,
        avro_compression=avro_codec(properties),
    ) as writer:
        for data_file in data_files:
            writer.add_entry(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=None,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=data_file,
                )
            )
    manifest = writer.to_manifest_file()
    return StagedGroup(
        path=uri,
        size_bytes=manifest.manifest_length,
        files=tuple(
            StagedFile(
                path=data_file.file_path,
                size_bytes=data_file.file_size_in_bytes,
                rows=data_file.record_count,
            )
            for data_file in data_files
        ),
        detail={
            "spec_id": spec.spec_id,
            "partitions": [
                _summary_json(summary, field.field_type)
                for summary, field in zip(
                    manifest.partitions or [], spec.partition_type(schema).fields, strict=True
                )
            ],
        },
    )


class Summary(msgspec.Struct):
    """What a staged group records about one partition field, with bounds in hexadecimal."""

    contains_null: bool
    contains_nan: bool | None
    lower: HexText | None
    upper: HexText | None


class Detail(msgspec.Struct):
    """The part of a staged group that only Iceberg understands."""

    spec_id: Count
    partitions: list[Summary]


def detail_of(group: StagedGroup) -> Detail:
    """Return a staged group's details from the ledger.

    Raises:
        LedgerDamagedError: They are not what `write_staged_manifest` recorded.
    """
    with damage_at(group.path):
        return typed(group.detail, Detail)


def listed_manifest(group: StagedGroup, snapshot_id: int) -> ManifestFile:
    """Return the manifest-list entry of a staged group for one snapshot.

    Raises:
        LedgerDamagedError: The ledger's details of the group are not what was written.
    """
    detail = detail_of(group)
    return ManifestFile.from_args(
        manifest_path=group.path,
        manifest_length=group.size_bytes,
        partition_spec_id=detail.spec_id,
        content=ManifestContent.DATA,
        sequence_number=UNASSIGNED_SEQ,
        min_sequence_number=UNASSIGNED_SEQ,
        added_snapshot_id=snapshot_id,
        added_files_count=len(group.files),
        existing_files_count=0,
        deleted_files_count=0,
        added_rows_count=sum(file.rows for file in group.files),
        existing_rows_count=0,
        deleted_rows_count=0,
        partitions=[_summary(summary) for summary in detail.partitions],
        key_metadata=None,
    )


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


def _summary(value: Summary) -> PartitionFieldSummary:
    return PartitionFieldSummary.from_args(
        contains_null=value.contains_null,
        contains_nan=value.contains_nan,
        lower_bound=None if value.lower is None else bytes.fromhex(value.lower),
        upper_bound=None if value.upper is None else bytes.fromhex(value.upper),
    )


# ---- Copies of staged groups: the store copies data files, manifests are rewritten

_MANIFESTS_AT_ONCE = 8
# PyIceberg's records offer no other way to change a field.
_FILE_PATH = 1
# Readers give a manifest's entries the id of its snapshot; ours are written without one.
_NO_SNAPSHOT = 0


def copied_groups(
    table: Table, storage: Storage, groups: Sequence[StagedGroup], targets: Sequence[StagedGroup]
) -> list[StagedGroup]:
    """Copy groups with all their files, and return the copies as staged.

    Args:
        table: The table, freshly loaded.
        storage: How its files are reached.
        groups: The groups to copy.
        targets: Each group under its new names.

    Raises:
        LedgerDamagedError: A manifest lists other files than the ledger does.
        FileNotFoundError: A data file or a manifest is gone.
        StorageError: Storage failed.
    """
    pairs = list(zip(groups, targets, strict=True))
    storage.copy({old: new for pair in pairs for old, new in _names(*pair).items()})
    failpoint("before-manifest-copies")
    with ThreadPoolExecutor(max_workers=_MANIFESTS_AT_ONCE) as pool:
        return list(pool.map(lambda pair: _copied_manifest(table, *pair), pairs))


def _names(group: StagedGroup, target: StagedGroup) -> dict[str, str]:
    return {old.path: new.path for old, new in zip(group.files, target.files, strict=True)}


def _copied_manifest(table: Table, group: StagedGroup, target: StagedGroup) -> StagedGroup:
    entries = manifest_entries(listed_manifest(group, _NO_SNAPSHOT), table.io)
    data_files, names = [entry.data_file for entry in entries], _names(group, target)
    if sorted(file.file_path for file in data_files) != sorted(names):
        raise LedgerDamagedError(uri=group.path, reason="it lists different files than the ledger")
    for file in data_files:
        file[_FILE_PATH] = names[file.file_path]
    return write_staged_manifest(
        table.io,
        target.path,
        schema=table.schema(),
        spec=table.specs()[detail_of(group).spec_id],
        properties=table.properties,
        data_files=data_files,
    )


# ---- Manifests of many tasks, joined to the size that the table wants

_ENABLED = "commit.manifest-merge.enabled"
# Manifests with other headers, as after a change of the table's schema, are joined apart.
_KINDS_MAX = 8
# How much is fetched at a time, and how much is compressed at once.
_FETCHED_BYTES = 8 << 20
_BLOCK_BYTES = 256 << 10
_SYNC_BYTES = 16


def merged_paths(table: Table, groups: Sequence[StagedGroup], name: str) -> list[str]:
    """Return where manifests would be written that stand for those of groups.

    Args:
        table: The table, freshly loaded.
        groups: The staged groups.
        name: The beginning of the new names.

    Raises:
        UnsupportedTableError: The target size is not a number.
    """
    if table.properties.get(_ENABLED, "true").lower() == "false":
        return []
    target = WriteOptions.of(".".join(table.name()), table.properties).manifest_bytes
    most = sum(group.size_bytes for group in groups) // target + _KINDS_MAX
    locations = SimpleLocationProvider(table.location(), table.properties)
    return [
        locations.new_metadata_location(f"{name}-merged-{number:05d}.avro")
        for number in range(min(most, len(groups) // 2))
    ]


def merged_manifests(
    table: Table, storage: Storage, groups: Sequence[StagedGroup], paths: Sequence[str]
) -> list[Merge]:
    """Write manifests of the table's target size that list the files of groups.

    Groups of other partition specs than the table's own are left out, and so are those for which
    the paths do not suffice.

    Args:
        table: The table, freshly loaded.
        storage: How its files are reached.
        groups: The staged groups.
        paths: Where to write them.

    Raises:
        LedgerDamagedError: A manifest lists another number of files than the ledger does.
        FileNotFoundError: A manifest is gone, or was replaced.
        StorageError: Storage failed.
    """
    target = WriteOptions.of(".".join(table.name()), table.properties).manifest_bytes
    spec, free = table.spec(), iter(paths)
    details = {group.path: detail_of(group) for group in groups}
    open_ones: dict[frozenset[tuple[str, bytes]], _Joined] = {}
    found: list[Merge] = []
    own = [group for group in groups if details[group.path].spec_id == spec.spec_id]
    for group, data in _fetched(storage, own):
        header = read_header(data)
        kind = frozenset(header.metadata.items())
        joined = open_ones.get(kind)
        if joined is None:
            if (path := next(free, None)) is None:
                continue
            joined = open_ones[kind] = _Joined(path, data, header)
        joined.add(group, data)
        if joined.size_bytes >= target:
            found += open_ones.pop(kind).write(storage, spec, table.schema(), details)
    for joined in open_ones.values():
        found += joined.write(storage, spec, table.schema(), details)
    return found


class _Joined:
    """One manifest, made of the blocks of others."""

    def __init__(self, path: str, data: bytes, header: AvroHeader) -> None:
        self._path = path
        self._sources: list[str] = []
        self._head = data[: header.blocks_at]
        codec = header.metadata.get("avro.codec", b"null").decode()
        self._codec = KNOWN_CODECS[cast("AvroCompressionCodec", codec)]
        self._written: list[bytes] = [self._head]
        self._waiting: list[bytes] = []
        self._waiting_rows = self._waiting_bytes = 0
        self.size_bytes = len(self._head)

    def add(self, group: StagedGroup, data: bytes) -> None:
        """Take the entries of a manifest.

        Raises:
            LedgerDamagedError: It lists another number of files than the ledger does.
        """
        found = 0
        for rows, block in blocks(data):
            found += rows
            self._waiting.append(block)
            self._waiting_bytes += len(block)
        if found != len(group.files):
            raise LedgerDamagedError(
                uri=group.path, reason=f"it lists {found} files, the ledger {len(group.files)}"
            )
        self._waiting_rows += found
        self._sources.append(group.path)
        if self._waiting_bytes >= _BLOCK_BYTES:
            self._end_block()

    def _end_block(self) -> None:
        block = b"".join(self._waiting)
        if self._codec is not None:
            block, _ = self._codec.compress(block)
        out = io.BytesIO()
        numbers = BinaryEncoder(out)
        numbers.write_int(self._waiting_rows)
        numbers.write_int(len(block))
        self._written += [out.getvalue(), block, self._head[-_SYNC_BYTES:]]
        self.size_bytes += sum(map(len, self._written[-3:]))
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def write(
        self,
        storage: Storage,
        spec: PartitionSpec,
        schema: Schema,
        details: Mapping[str, Detail],
    ) -> list[Merge]:
        """Write the manifest; one alone stays as it is."""
        if len(self._sources) == 1:
            return []
        if self._waiting:
            self._end_block()
        storage.put(self._path, b"".join(self._written))
        fields = spec.partition_type(schema).fields
        columns = zip(*(details[path].partitions for path in self._sources), strict=True)
        partitions = [
            _joint_summary(summaries, field.field_type)
            for summaries, field in zip(columns, fields, strict=True)
        ]
        group = StagedGroup(
            path=self._path,
            size_bytes=self.size_bytes,
            files=(),
            detail={"spec_id": spec.spec_id, "partitions": partitions},
        )
        return [Merge(group=group, sources=tuple(self._sources))]


def _joint_summary(summaries: Sequence[Summary], kind: IcebergType) -> dict[str, Any]:
    """Return what is true of a partition field in all manifests together."""

    def value(text: str) -> Any:  # noqa: ANN401 - of the field's type.
        return from_bytes(cast("PrimitiveType", kind), bytes.fromhex(text))

    nans = {summary.contains_nan for summary in summaries}
    lower = [summary.lower for summary in summaries if summary.lower is not None]
    upper = [summary.upper for summary in summaries if summary.upper is not None]
    return {
        "contains_null": any(summary.contains_null for summary in summaries),
        "contains_nan": True if True in nans else None if None in nans else False,
        "lower": min(lower, key=value, default=None),
        "upper": max(upper, key=value, default=None),
    }


def _fetched(
    storage: Storage, groups: Sequence[StagedGroup]
) -> Iterator[tuple[StagedGroup, bytes]]:
    """Yield groups with the bytes of their manifests, some of which are in memory at a time.

    Raises:
        FileNotFoundError: A manifest is gone, or has another size.
    """
    batch: list[StagedGroup] = []
    for position, group in enumerate(groups, 1):
        batch.append(group)
        if position < len(groups) and sum(g.size_bytes for g in batch) < _FETCHED_BYTES:
            continue
        found = io_runtime().each(storage.get_sure, [g.path for g in batch])
        for fetched, data in zip(batch, found, strict=True):
            if len(data) != fetched.size_bytes:
                raise FileNotFoundError(f"{fetched.path}: it has another size")
            yield fetched, data
        batch = []
