"""Manifests written on executors, listed by the driver.

Entries leave snapshot id and sequence numbers empty: readers inherit them from the snapshot
that lists the manifest. So a manifest can be written before anyone knows which snapshot it
will be part of, and the driver never sees the files one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast

import msgspec
from pyiceberg.avro.codecs import AvroCompressionCodec
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    write_manifest,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.types import DoubleType, FloatType, IcebergType

from holdfast.ledger.decoded import damage_at
from holdfast.model.staged import StagedFile, StagedGroup
from holdfast.model.stored import Count, typed

# PyIceberg's own mark for "assign it when the snapshot is written".
_UNASSIGNED = -1
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
    nobody = cast("int", None)  # The snapshot is not known yet; PyIceberg's types want an int.
    version: Literal[2] = 2
    with write_manifest(
        format_version=version,
        spec=spec,
        schema=schema,
        output_file=io.new_output(uri),
        snapshot_id=nobody,
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
                _summary_json(one, field.field_type)
                for one, field in zip(
                    manifest.partitions or [], spec.partition_type(schema).fields, strict=True
                )
            ],
        },
    )


class Summary(msgspec.Struct):
    """What a staged group says of one partition field, with bounds in hexadecimal."""

    contains_null: bool
    contains_nan: bool | None
    lower: HexText | None
    upper: HexText | None


class Detail(msgspec.Struct):
    """What a staged group says that only Iceberg understands."""

    spec_id: Count
    partitions: list[Summary]


def detail_of(group: StagedGroup) -> Detail:
    """Return what a ledger says of a staged group.

    Raises:
        LedgerDamagedError: It is not what `write_staged_manifest` has said.
    """
    with damage_at(group.path):
        return typed(group.detail, Detail)


def listed_manifest(group: StagedGroup, snapshot_id: int) -> ManifestFile:
    """Return the manifest-list entry of a staged group for one snapshot.

    Raises:
        LedgerDamagedError: The ledger does not say of the group what was written.
    """
    detail = detail_of(group)
    return ManifestFile.from_args(
        manifest_path=group.path,
        manifest_length=group.size_bytes,
        partition_spec_id=detail.spec_id,
        content=ManifestContent.DATA,
        sequence_number=_UNASSIGNED,
        min_sequence_number=_UNASSIGNED,
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
        # -0.0 precedes 0.0 for readers that prune, and PyIceberg takes whichever comes first.
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
