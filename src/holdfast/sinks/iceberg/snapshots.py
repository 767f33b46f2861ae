"""Snapshots: how one is built and posted, and which staged files a table's snapshots reach.

A restored, truncated or copied ledger can list files that have landed, so the table is checked:
every snapshot that it keeps, and all of their manifests. Files are matched by their base name,
which contains a nonce: other engines write the rest of a path differently (s3a:// for s3://).

Manifests are not decoded at first. Their blocks are decompressed and searched for the nonces of the
names, by C code that runs on all threads; only if one is found are entries read one by one.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.manifest import (
    ManifestEntryStatus,
    ManifestFile,
    read_manifest_list,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.table.locations import SimpleLocationProvider
from pyiceberg.table.metadata import TableMetadata
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

from holdfast.errors import LedgerDamagedError, UnsupportedTableError
from holdfast.failpoints import failpoint
from holdfast.model.work import StagedGroup, StagedTotals
from holdfast.sinks.base import Change
from holdfast.sinks.iceberg.avro import DamagedFileError, blocks, decoding
from holdfast.sinks.iceberg.file_io import file_bytes
from holdfast.sinks.iceberg.joined import listed_manifest, refuse_unlistable
from holdfast.sinks.iceberg.loss import Removal, live_manifests
from holdfast.sinks.iceberg.manifests import (
    avro_codec,
    detail_of,
    manifest_entries,
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
        TableChangedError: A partition spec is gone, or is another one.
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
    listed = [*change.adds, *(removal.listed if removal else ())]
    refuse_unlistable(".".join(table.name()), table, listed)
    ours = [listed_manifest(group, snapshot_id) for group in change.adds]
    others = removal.write(table.io, snapshot_id) if removal else live_manifests(table.io, parent)
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
        writer.add_manifests([*ours, *others])
    snapshot = Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent.snapshot_id if parent else None,
        manifest_list=uri,
        sequence_number=sequence_number,
        timestamp_ms=_timestamp_ms(metadata),
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


def _timestamp_ms(metadata: TableMetadata) -> int:
    """Return the time of a new snapshot: now, or after the table's last change.

    Another writer's clock may be ahead. Java loads no table whose logs are out of order.
    """
    last = [
        metadata.last_updated_ms,
        *(snapshot.timestamp_ms for snapshot in metadata.snapshots),
        *(entry.timestamp_ms for entry in metadata.snapshot_log),
        *(entry.timestamp_ms for entry in metadata.metadata_log),
    ]
    # Not the same time: PyIceberg would take that for "not set", and write the clock's.
    return max(time.time_ns() // 1_000_000, max(last) + 1)


def _summary(parent: Snapshot | None, change: Change, notes: Mapping[str, str]) -> Summary:
    removal: Removal | None = change.loss.handle
    figures = dict(removal.summary if removal else {})
    # The new rows, and rows of removed files that stay.
    totals = StagedTotals.of([*change.adds, *(removal.added if removal else ())])
    deletes = StagedTotals.of(removal.deletes if removal else ())
    operation = Operation.APPEND
    if removal is not None and (removal.rewritten or deletes.files):
        operation = Operation.OVERWRITE if totals.files else Operation.DELETE
    if totals.files:
        figures |= {"added-data-files": str(totals.files), "added-records": str(totals.rows)}
    if totals.files or deletes.files:
        figures["added-files-size"] = str(totals.size_bytes + deletes.size_bytes)
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
        StorageError: Storage failed.
        DamagedFileError: A manifest or a list of manifests cannot be decoded.
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
        with decoding(path):
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
        LedgerDamagedError: A manifest cannot be read, or lists other files than the ledger does.
    """
    if group.deleted_keys:
        return target
    try:
        entries = manifest_entries(listed_manifest(group, _NO_SNAPSHOT), table.io)
    except DamagedFileError as error:
        raise LedgerDamagedError(uri=group.path, reason=str(error.__cause__)) from error
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
