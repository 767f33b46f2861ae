"""Manifests of many tasks, joined: a table with thousands of small ones is slow to read.

Avro files consist of blocks of entries, so those of equal headers are joined without decoding an
entry, at some microseconds each. The record of a small manifest carries its entries, so that only
one manifest of each header is read.

What an upsert or a filter has written in place of files is joined by each post for itself: one
manifest of data and one of deletes for each partition spec. Its headers are known to the driver,
so nothing is read. Files of deletes have no manifest before that.
"""

from __future__ import annotations

import base64
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import (
    UNASSIGNED_SEQ,
    ManifestContent,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.locations import SimpleLocationProvider
from pyiceberg.types import IcebergType, PrimitiveType

from holdfast.errors import LedgerDamagedError, TableChangedError, UnsupportedTableError
from holdfast.model.work import Merge, StagedGroup
from holdfast.sinks.iceberg.avro import Blocks, DamagedFileError, blocks, decoding, read_header
from holdfast.sinks.iceberg.data_file import WriteOptions
from holdfast.sinks.iceberg.manifests import (
    UNPACKED_BYTES,
    Detail,
    PartitionSummary,
    detail_of,
    header_digest,
    manifest_head,
    spec_text,
)
from holdfast.sinks.iceberg.schemas import Layout, layouts_of
from holdfast.storage.port import Storage
from holdfast.storage.runtime import io_runtime

# ---- Manifests of many tasks, joined to the size that the table wants

_ENABLED = "commit.manifest-merge.enabled"
# Manifests with other headers, as after a change of the table's schema, are joined apart.
_KINDS_MAX = 8
# Readers decode manifests in parallel, and ask for each. So there is one for each core, as Java
# writes them, but none is begun for fewer files than this.
_FILES_MIN = 10_000
# How much is fetched at a time.
_FETCHED_BYTES = 8 << 20


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
    most += sum(len(group.files) for group in groups) // _files_max(groups)
    locations = SimpleLocationProvider(table.location(), table.properties)
    return [
        locations.new_metadata_location(f"{name}-merged-{number:05d}.avro")
        for number in range(min(most, len(groups) // 2))
    ]


def _files_max(groups: Sequence[StagedGroup]) -> int:
    """Return how many files a manifest lists at most, even if its entries are small."""
    files = sum(len(group.files) for group in groups)
    return max(_FILES_MIN, -(-files // (os.cpu_count() or 1)))


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
    open_ones: dict[str, _Joined] = {}
    found: list[Merge] = []
    own = [group for group in groups if details[group.path].spec_id == spec.spec_id]
    files_max = _files_max(own)
    for group, source in _sources(storage, own, details):
        joined = open_ones.get(source.header)
        if joined is None:
            if (path := next(free, None)) is None:
                continue
            joined = open_ones[source.header] = _Joined(path, source.head)
        joined.take(group, source)
        if joined.size_bytes >= target or joined.files >= files_max:
            done = open_ones.pop(source.header)
            found += done.write(storage, spec, table.schema(), details)
    for joined in open_ones.values():
        found += joined.write(storage, spec, table.schema(), details)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What a manifest consists of: its beginning, up to the first block, and its entries."""

    header: str  # The digest.
    head: bytes
    listed: int
    entries: bytes


def _sources(
    storage: Storage, groups: Sequence[StagedGroup], details: Mapping[str, Detail]
) -> Iterator[tuple[StagedGroup, _Source]]:
    """Yield what is to be joined: first the manifests that must be read.

    Raises:
        LedgerDamagedError: A manifest cannot be read, or has another header than its record.
    """
    first: dict[str, str] = {}
    for group in groups:
        first.setdefault(details[group.path].header, group.path)
    carried = [g for g in groups if (d := details[g.path]).entries and first[d.header] != g.path]
    names = {group.path for group in carried}
    heads: dict[str, bytes] = {}
    for group, data in _fetched(storage, [g for g in groups if g.path not in names]):
        try:
            with decoding(group.path):
                header, parts = read_header(data), list(blocks(data))
        except DamagedFileError as error:
            raise LedgerDamagedError(uri=group.path, reason=str(error.__cause__)) from error
        digest, entries = header_digest(header), b"".join(block for _, block in parts)
        heads[digest] = data[: header.blocks_at]
        listed = sum(count for count, _ in parts)
        yield group, _Source(header=digest, head=heads[digest], listed=listed, entries=entries)
    for group in carried:
        detail = details[group.path]
        if (head := heads.get(detail.header)) is None:
            raise LedgerDamagedError(uri=group.path, reason="it has another header than its record")
        entries, listed = carried_entries(group, detail.entries), detail.listed
        yield group, _Source(header=detail.header, head=head, listed=listed, entries=entries)


def carried_entries(group: StagedGroup, entries: str) -> bytes:
    """Return the entries that a record carries.

    Raises:
        LedgerDamagedError: They cannot be read.
    """
    try:
        return zlib.decompressobj().decompress(base64.b64decode(entries), UNPACKED_BYTES)
    except (ValueError, zlib.error) as error:
        raise LedgerDamagedError(uri=group.path, reason=f"its entries: {error}") from error


class _Joined(Blocks):
    """One manifest that stands for others."""

    def __init__(self, path: str, head: bytes) -> None:
        super().__init__(head)
        self._path = path
        self.sources: list[str] = []
        self.files = 0

    def take(self, group: StagedGroup, source: _Source) -> None:
        """Take the entries of a manifest.

        Raises:
            LedgerDamagedError: It lists other files than the ledger does.
        """
        found, at = source.listed, 0
        if found != len(group.files):
            raise LedgerDamagedError(
                uri=group.path, reason=f"it lists {found} files, the ledger {len(group.files)}"
            )
        for file in group.files:  # In the order of the entries.
            if (at := source.entries.find(file.path.encode(), at)) < 0:
                raise LedgerDamagedError(uri=group.path, reason=f"it does not list {file.path}")
        self.add(found, source.entries)
        self.files += found
        self.sources.append(group.path)

    def write(
        self,
        storage: Storage,
        spec: PartitionSpec,
        schema: Schema,
        details: Mapping[str, Detail],
    ) -> list[Merge]:
        """Write the manifest; one alone stays as it is."""
        if len(self.sources) == 1:
            return []
        storage.put(self._path, self.finished())
        return [self.merge(spec, schema, details)]

    def merge(self, spec: PartitionSpec, schema: Schema, details: Mapping[str, Detail]) -> Merge:
        """Return the finished manifest as a group that stands for others."""
        fields = spec.partition_type(schema).fields
        columns = zip(*(details[path].partitions for path in self.sources), strict=True)
        partitions = [
            _joint_summary(summaries, field.field_type)
            for summaries, field in zip(columns, fields, strict=True)
        ]
        first = details[self.sources[0]]  # All have the same header, and so the same spec.
        group = StagedGroup(
            path=self._path,
            size_bytes=self.size_bytes,
            files=(),
            detail={
                "spec_id": spec.spec_id,
                "spec": first.spec,
                "has_sound_bounds": all(details[path].has_sound_bounds for path in self.sources),
                "partitions": partitions,
                **({"content": first.content} if first.content else {}),
            },
        )
        return Merge(group=group, sources=tuple(self.sources))


def _joint_summary(summaries: Sequence[PartitionSummary], kind: IcebergType) -> dict[str, Any]:
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


# ---- What was written in place of files or their rows, joined for one post


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """How manifests of one partition spec begin; entries with the same header fit into them."""

    data: bytes
    header: str  # The digest.
    layout: Layout


@dataclass(slots=True)
class Heads:
    """How new manifests of a table begin, by the partition spec of what they list."""

    table: Table
    content: ManifestContent
    _known: dict[int, Head | None] = field(default_factory=dict)
    _layouts: Mapping[int, tuple[str, str]] | None = None

    def of(self, spec_id: int) -> Head | None:
        """Return how manifests of a spec begin; None if no schema has the spec's columns."""
        if spec_id not in self._known:
            self._known[spec_id] = self._made(spec_id)
        return self._known[spec_id]

    def _made(self, spec_id: int) -> Head | None:
        if self._layouts is None:
            self._layouts = layouts_of(self.table)
        if spec_id not in self._layouts:
            return None
        layout = Layout.of(*self._layouts[spec_id])
        data = manifest_head(layout.schema, layout.spec, self.table.properties, self.content)
        return Head(data=data, header=header_digest(read_header(data)), layout=layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewManifests:
    """What a post lists for groups: manifests, and the content of those that it writes itself."""

    listed: Sequence[StagedGroup]
    data: Mapping[str, bytes]


def joined_manifests(
    groups: Sequence[StagedGroup], heads: Heads, paths: Iterator[str]
) -> NewManifests:
    """Join the manifests of groups, as far as their records carry their entries.

    Args:
        groups: The groups. Those of deletes have no manifest of their own.
        heads: How the manifests begin.
        paths: Names that no other object has.

    Raises:
        LedgerDamagedError: A record carries other entries than it should.
    """
    properties = heads.table.properties
    target = WriteOptions.of(".".join(heads.table.name()), properties).manifest_bytes
    details, whole = {g.path: detail_of(g) for g in groups}, {g.path: g for g in groups}
    open_ones: dict[int, _Joined] = {}
    files_max = _files_max(groups)
    listed: list[StagedGroup] = []
    data: dict[str, bytes] = {}

    def close(spec_id: int, head: Head) -> None:
        joined = open_ones.pop(spec_id)
        if len(joined.sources) == 1 and heads.content is ManifestContent.DATA:
            listed.append(whole[joined.sources[0]])  # It has a manifest already.
            return
        finished = joined.finished()
        merge = joined.merge(head.layout.spec, head.layout.schema, details)
        data[merge.group.path] = finished
        listed.append(merge.whole(whole))

    for group in groups:
        detail = details[group.path]
        head = heads.of(detail.spec_id)
        if head is None or detail.header != head.header:
            if heads.content is not ManifestContent.DATA:
                reason = "its entry has another header than that of the table's manifests"
                raise LedgerDamagedError(uri=group.path, reason=reason)
            listed.append(group)
            continue
        entries = carried_entries(group, detail.entries)
        if detail.spec_id not in open_ones:
            open_ones[detail.spec_id] = _Joined(next(paths), head.data)
        joined = open_ones[detail.spec_id]
        joined.take(
            group,
            _Source(header=head.header, head=head.data, listed=detail.listed, entries=entries),
        )
        if joined.size_bytes >= target or joined.files >= files_max:
            close(detail.spec_id, head)
    for spec_id in list(open_ones):
        if (head := heads.of(spec_id)) is not None:
            close(spec_id, head)
    return NewManifests(listed=listed, data=data)


# ---- How a snapshot lists what was staged


def refuse_other_specs(name: str, table: Table, groups: Iterable[StagedGroup]) -> None:
    """Stop if the table has no longer the partition specs that groups were staged by.

    Once a spec is unused, others may remove it, and the table then gives its number to the next.

    Raises:
        TableChangedError: A partition spec is gone, or is another one.
        LedgerDamagedError: The ledger's details of a group are not what was written.
    """
    specs = {spec.spec_id: spec for spec in table.metadata.partition_specs}
    texts = {number: spec_text(spec) for number, spec in specs.items()}
    for group in groups:
        detail = detail_of(group)
        number = detail.spec_id
        if number not in specs:
            raise TableChangedError(table=name, change=f"partition spec {number} is gone")
        # Earlier versions have recorded no fields, which `refuse_unlistable` knows.
        if detail.has_sound_bounds and detail.spec != texts[number]:
            raise TableChangedError(
                table=name,
                change=f"its partition spec {number} is ({texts[number]}), and was ({detail.spec}) "
                "when files were staged: the spec was removed, and its number given again",
            )
        # A manifest list with fewer or more fields could not be read.
        if len(detail.partitions) != len(specs[number].fields):
            raise LedgerDamagedError(
                uri=group.path, reason="it has a different number of partition fields than its spec"
            )


def refuse_unlistable(name: str, table: Table, groups: Sequence[StagedGroup]) -> None:
    """Stop if a snapshot with these groups would be read wrongly.

    Raises:
        TableChangedError: A partition spec is gone, or is another one.
        UnsupportedTableError: An earlier version has staged the files.
        LedgerDamagedError: The ledger's details of a group are not what was written.
    """
    for group in groups:
        if not detail_of(group).has_sound_bounds:
            raise UnsupportedTableError(
                table=name,
                what=f"{group.path} was staged by an earlier version of Holdfast, which did not "
                "count NaN: a DELETE of another engine could drop rows with NaN",
                cure="abort this run, and compute its rows under a new run id",
            )
    refuse_other_specs(name, table, groups)


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
        content=ManifestContent(detail.content),
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


def _summary(value: PartitionSummary) -> PartitionFieldSummary:
    return PartitionFieldSummary.from_args(
        contains_null=value.contains_null,
        contains_nan=value.contains_nan,
        lower_bound=None if value.lower is None else bytes.fromhex(value.lower),
        upper_bound=None if value.upper is None else bytes.fromhex(value.upper),
    )
