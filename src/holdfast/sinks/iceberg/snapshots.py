"""Snapshots: how one is built and posted, and which staged files a table's snapshots reach.

A restored, truncated or copied ledger can list files that have landed, so the table is checked:
every snapshot that it keeps, and all of their manifests. Files are matched by their base name,
which contains a nonce: other engines write the rest of a path differently (s3a:// for s3://).

Manifests are not decoded at first. Their blocks are decompressed and searched for the nonces of the
names, by C code that runs on all threads; only if one is found are entries read one by one.

Each task writes manifests of its own, and a table with thousands of them is slow to read. They are
merged before they are published. Avro files consist of blocks of entries, so those of equal headers
are joined without decoding an entry, at some microseconds each. The record of a small manifest
carries its entries, so that only one manifest of each header is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import (
    ManifestEntryStatus,
    ManifestFile,
    read_manifest_list,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.locations import SimpleLocationProvider
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, update_snapshot_summaries
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSortOrderId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.types import IcebergType, PrimitiveType

from holdfast.errors import LedgerDamagedError, UnsupportedTableError
from holdfast.failpoints import failpoint
from holdfast.model.work import Merge, StagedGroup, StagedTotals
from holdfast.sinks.base import Change
from holdfast.sinks.iceberg.data_file import WriteOptions
from holdfast.sinks.iceberg.file_io import file_bytes
from holdfast.sinks.iceberg.loss import Removal, live_manifests
from holdfast.sinks.iceberg.manifests import (
    Blocks,
    Detail,
    PartitionSummary,
    avro_codec,
    blocks,
    carried_entries,
    detail_of,
    header_digest,
    listed_manifest,
    manifest_entries,
    read_header,
    write_staged_manifest,
)
from holdfast.storage.port import Storage
from holdfast.storage.runtime import io_runtime


# ---- Build one snapshot: the manifest list, the summary, and what the catalog must check
def requirements(table: Table, branch: str) -> tuple[TableRequirement, ...]:
    """Return what must still hold when the commit lands: everything that was checked.

    The ref alone is not enough: schema, spec and sort order change without moving it, and an empty
    table that was dropped and recreated has the same absent ref.
    """
    metadata = table.metadata
    ref = metadata.refs.get(branch)
    return (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId(ref=branch, snapshot_id=ref.snapshot_id if ref else None),
        AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
        AssertDefaultSpecId(default_spec_id=metadata.default_spec_id),
        AssertDefaultSortOrderId(default_sort_order_id=metadata.default_sort_order_id),
    )


def snapshot_updates(
    table: Table,
    branch: str,
    snapshot_id: int,
    change: Change,
    notes: Mapping[str, str],
) -> tuple[TableUpdate, ...]:
    """Write the manifest list of a new snapshot and return the updates that publish it.

    Args:
        table: Freshly loaded; the snapshot builds on the head of its branch.
        branch: The branch.
        snapshot_id: The new snapshot's id.
        change: The staged manifests to add; none for an empty snapshot.
        notes: What goes into the snapshot's summary besides the totals.

    Raises:
        UnsupportedTableError: The catalog does not show the head of the branch.
    """
    metadata = table.metadata
    ref = metadata.refs.get(branch)
    parent = metadata.snapshot_by_id(ref.snapshot_id) if ref else None
    if ref is not None and parent is None:
        # Without the parent's manifests the new snapshot would hide every row of the table.
        raise UnsupportedTableError(
            table=".".join(table.name()),
            what=f"the catalog hides snapshot {ref.snapshot_id}, which {branch!r} points to",
            cure="use a catalog that shows at least the newest snapshot",
        )
    sequence_number = metadata.next_sequence_number()
    removal: Removal | None = change.loss.handle
    ours = [listed_manifest(group, snapshot_id) for group in _added(change)]
    if removal is None:
        kept: Sequence[ManifestFile] = live_manifests(table.io, parent)
    else:
        kept = [*removal.write(table.io, snapshot_id), *removal.kept]
    locations = SimpleLocationProvider(table.location(), table.properties)
    uri = locations.new_metadata_location(f"snap-{snapshot_id}-0-holdfast.avro")
    with write_manifest_list(
        format_version=metadata.format_version,
        output_file=table.io.new_output(uri),
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent.snapshot_id if parent else None,
        sequence_number=sequence_number,
        avro_compression=avro_codec(metadata.properties),
    ) as writer:
        writer.add_manifests([*ours, *kept])
    snapshot = Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent.snapshot_id if parent else None,
        manifest_list=uri,
        sequence_number=sequence_number,
        summary=_summary(parent, change, notes),
        schema_id=metadata.current_schema_id,
    )
    return (
        AddSnapshotUpdate(snapshot=snapshot),
        SetSnapshotRefUpdate(
            ref_name=branch,
            type=SnapshotRefType.BRANCH,
            snapshot_id=snapshot_id,
            # The update replaces the whole ref, so its retention rules must be carried over.
            max_ref_age_ms=ref.max_ref_age_ms if ref else None,
            max_snapshot_age_ms=ref.max_snapshot_age_ms if ref else None,
            min_snapshots_to_keep=ref.min_snapshots_to_keep if ref else None,
        ),
    )


def _added(change: Change) -> list[StagedGroup]:
    """Return what the snapshot adds: the new rows, and rows of removed files that stay."""
    removal: Removal | None = change.loss.handle
    return [*change.adds, *(removal.added if removal else ())]


def _summary(parent: Snapshot | None, change: Change, notes: Mapping[str, str]) -> Summary:
    removal: Removal | None = change.loss.handle
    totals, figures = StagedTotals.of(_added(change)), dict(removal.summary if removal else {})
    operation = Operation.APPEND
    if removal is not None and removal.rewritten:
        operation = Operation.OVERWRITE if totals.files else Operation.DELETE
    if totals.files:
        figures |= {
            "added-data-files": str(totals.files),
            "added-records": str(totals.rows),
            "added-files-size": str(totals.size_bytes),
        }
    return update_snapshot_summaries(
        summary=Summary(operation=operation, **figures, **notes),
        previous_summary=(
            {k: str(v) for k, v in parent.summary.additional_properties.items()}
            if parent is not None and parent.summary is not None
            else None
        ),
    )


# ---- Which staged files a table's snapshots reach: a sweep never deletes these

# Our names begin <nonce>-<more>. A shorter prefix is not a nonce, and the whole name is compared.
_NONCE_CHARS = 16


def live_paths(table: Table, paths: Collection[str]) -> set[str]:
    """Return those of the paths that are reachable from a retained snapshot.

    Args:
        table: A fresh look at the table.
        paths: Data files and manifests.

    Raises:
        StorageError: A manifest could not be read.
    """
    names = {path.rsplit("/", 1)[1] for path in paths}
    found = {path.rsplit("/", 1)[1] for path in _metadata_files(table)}
    manifests = _manifests(table)
    found.update(path.rsplit("/", 1)[1] for path in manifests)
    needles = sorted({_needle(name) for name in names - found})

    def live_names(manifest: ManifestFile) -> set[str]:
        if not _may_hold(file_bytes(table.io, manifest.manifest_path), needles):
            return set()
        return {
            entry.data_file.file_path.rsplit("/", 1)[1]
            for entry in manifest_entries(manifest, table.io)
            if entry.status != ManifestEntryStatus.DELETED
        }

    if needles:
        for some in io_runtime().each(live_names, manifests.values()):
            found |= some
    return {path for path in paths if path.rsplit("/", 1)[1] in found}


def _metadata_files(table: Table) -> Iterator[str]:
    """Yield the files that the table's metadata names directly."""
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (snapshot.manifest_list for snapshot in metadata.snapshots)
    yield from (file.statistics_path for file in metadata.statistics)
    yield from (file.statistics_path for file in metadata.partition_statistics)


def _manifests(table: Table) -> dict[str, ManifestFile]:
    """Return the manifests of all snapshots, by path."""

    def of_one(path: str) -> list[ManifestFile]:
        return list(read_manifest_list(table.io.new_input(path)))

    lists = io_runtime().each(
        of_one, [snapshot.manifest_list for snapshot in table.metadata.snapshots]
    )
    return {manifest.manifest_path: manifest for some in lists for manifest in some}


def _needle(name: str) -> bytes:
    """Return the part of a name that all files of its job share, or all of a short name."""
    nonce = name.partition("-")[0]
    return (nonce if len(nonce) >= _NONCE_CHARS else name).encode()


def _may_hold(data: bytes, needles: Iterable[bytes]) -> bool:
    """Whether a manifest may name a file with one of the parts; true if that is unclear."""
    try:
        unpacked = b"".join(block for _, block in blocks(data))  # Some have a block per entry.
        return any(needle in unpacked for needle in needles)
    except Exception:  # noqa: BLE001 - each codec has errors of its own.
        return True  # Damaged, or no Avro at all: then reading it says so.


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
    """Return the new name of each object that the store copies, by the old one."""
    pairs = zip(group.with_keys, target.with_keys, strict=True)
    return {old.path: new.path for old, new in pairs}


def _copied_manifest(table: Table, group: StagedGroup, target: StagedGroup) -> StagedGroup:
    """Write the manifest of copied files; keys of rows to delete have none.

    Raises:
        LedgerDamagedError: A manifest lists other files than the ledger does.
    """
    if group.deleted_keys:
        return target
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
# Readers decode manifests in parallel, so one is not much larger even if its entries are small.
_FILES_MAX = 25_000
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
    most += sum(len(group.files) for group in groups) // _FILES_MAX
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
    open_ones: dict[str, _Joined] = {}
    found: list[Merge] = []
    own = [group for group in groups if details[group.path].spec_id == spec.spec_id]
    for group, source in _sources(storage, own, details):
        joined = open_ones.get(source.header)
        if joined is None:
            if (path := next(free, None)) is None:
                continue
            joined = open_ones[source.header] = _Joined(path, source.head)
        joined.take(group, source)
        if joined.size_bytes >= target or joined.files >= _FILES_MAX:
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
        LedgerDamagedError: A record's entries have another header than their manifest.
    """
    first: dict[str, str] = {}
    for group in groups:
        first.setdefault(details[group.path].header, group.path)
    carried = [g for g in groups if (d := details[g.path]).entries and first[d.header] != g.path]
    names = {group.path for group in carried}
    heads: dict[str, bytes] = {}
    for group, data in _fetched(storage, [g for g in groups if g.path not in names]):
        header, parts = read_header(data), list(blocks(data))
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


class _Joined(Blocks):
    """One manifest that stands for others."""

    def __init__(self, path: str, head: bytes) -> None:
        super().__init__(head)
        self._path = path
        self._sources: list[str] = []
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
        self._sources.append(group.path)

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
        storage.put(self._path, self.finished())
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
