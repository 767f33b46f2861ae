"""Build one snapshot: the manifest list, the summary, and what the catalog is asked to check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyiceberg.manifest import ManifestFile, write_manifest_list
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

from holdfast.errors import UnsupportedTableError
from holdfast.model.staged import StagedGroup, StagedTotals
from holdfast.sinks.iceberg.manifests import avro_codec, listed_manifest


def requirements(table: Table, branch: str) -> tuple[TableRequirement, ...]:
    """Return what must still hold when the commit lands: all that was checked.

    The ref alone is not enough: schema, spec and sort order change without moving it, and an
    empty table that was dropped and made again has the same absent ref.
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


def append_snapshot(
    table: Table,
    branch: str,
    snapshot_id: int,
    groups: Sequence[StagedGroup],
    notes: Mapping[str, str],
) -> tuple[TableUpdate, ...]:
    """Write the manifest list of a new snapshot and return the updates that publish it.

    Args:
        table: Freshly loaded; the snapshot builds on its branch's head.
        branch: The branch.
        snapshot_id: The new snapshot's id.
        groups: Staged manifests; none for an empty snapshot.
        notes: What goes into the snapshot's summary besides the totals.

    Raises:
        UnsupportedTableError: The catalog does not show the branch's own head.
    """
    metadata = table.metadata
    ref = metadata.refs.get(branch)
    parent = metadata.snapshot_by_id(ref.snapshot_id) if ref else None
    if ref is not None and parent is None:
        # Without the parent's manifests the new snapshot would hide every row of the table.
        raise UnsupportedTableError(
            table=".".join(table.name()),
            what=f"the catalog hides the snapshot {ref.snapshot_id} that {branch!r} stands on",
            cure="use a catalog that shows at least the newest snapshot",
        )
    sequence_number = metadata.next_sequence_number()
    kept: list[ManifestFile] = [
        manifest
        for manifest in (parent.manifests(table.io) if parent else [])
        if manifest.has_added_files() or manifest.has_existing_files()
    ]
    ours = [listed_manifest(group, snapshot_id) for group in groups]
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
        summary=_summary(parent, StagedTotals.of(groups), notes),
        schema_id=metadata.current_schema_id,
    )
    return (
        AddSnapshotUpdate(snapshot=snapshot),
        SetSnapshotRefUpdate(
            ref_name=branch,
            type=SnapshotRefType.BRANCH,
            snapshot_id=snapshot_id,
            # The update replaces the ref as a whole: its retention rules must be kept.
            max_ref_age_ms=ref.max_ref_age_ms if ref else None,
            max_snapshot_age_ms=ref.max_snapshot_age_ms if ref else None,
            min_snapshots_to_keep=ref.min_snapshots_to_keep if ref else None,
        ),
    )


def _summary(parent: Snapshot | None, totals: StagedTotals, notes: Mapping[str, str]) -> Summary:
    added: dict[str, str] = {}
    if totals.files:
        added = {
            "added-data-files": str(totals.files),
            "added-records": str(totals.rows),
            "added-files-size": str(totals.size_bytes),
        }
    return update_snapshot_summaries(
        summary=Summary(operation=Operation.APPEND, **added, **notes),
        previous_summary=(
            {k: str(v) for k, v in parent.summary.additional_properties.items()}
            if parent is not None and parent.summary is not None
            else None
        ),
    )
