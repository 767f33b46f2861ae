"""Copies of staged groups: data files by the store itself, manifests written anew.

A manifest holds the names of its files, so it cannot be copied as it is. All that it says about
them stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.table import Table

from holdfast.errors import LedgerDamagedError
from holdfast.failpoints import failpoint
from holdfast.model.staged import StagedGroup
from holdfast.sinks.iceberg.manifest_reads import manifest_entries
from holdfast.sinks.iceberg.manifests import detail_of, listed_manifest, write_staged_manifest
from holdfast.storage.port import Storage

_MANIFESTS_AT_ONCE = 8
# PyIceberg's records have no other way to change a field.
_FILE_PATH = 1
# Readers give a manifest's entries the id of its snapshot; ours are written without one.
_NO_SNAPSHOT = 0


def copied_groups(
    table: Table, storage: Storage, groups: Sequence[StagedGroup], targets: Sequence[StagedGroup]
) -> list[StagedGroup]:
    """Copy groups with all their files, and return the copies as they are now staged.

    Args:
        table: The table, freshly loaded.
        storage: How its files are reached.
        groups: What to copy.
        targets: Each group under its new names.

    Raises:
        LedgerDamagedError: A manifest lists other files than the ledger says.
        FileNotFoundError: A data file or a manifest is gone.
        StorageError: Storage failed.
    """
    pairs = list(zip(groups, targets, strict=True))
    storage.copy({old: new for pair in pairs for old, new in _names(*pair).items()})
    failpoint("before-manifest-copies")
    with ThreadPoolExecutor(max_workers=_MANIFESTS_AT_ONCE) as pool:
        return list(pool.map(lambda one: _copied_manifest(table, *one), pairs))


def _names(group: StagedGroup, target: StagedGroup) -> dict[str, str]:
    return {old.path: new.path for old, new in zip(group.files, target.files, strict=True)}


def _copied_manifest(table: Table, group: StagedGroup, target: StagedGroup) -> StagedGroup:
    entries = manifest_entries(listed_manifest(group, _NO_SNAPSHOT), table.io)
    data_files, names = [entry.data_file for entry in entries], _names(group, target)
    if sorted(file.file_path for file in data_files) != sorted(names):
        raise LedgerDamagedError(uri=group.path, reason="it lists other files than the ledger")
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
