"""Staged files as storage sees them: which are gone, and which have waited for long."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import StagedFileMissingError
from holdfast.model.staged import StagedGroup, sizes_of
from holdfast.storage.port import Storage


def missing_paths(storage: Storage, groups: Sequence[StagedGroup]) -> list[str]:
    """Return the paths of staged files and groups that are gone or of another size.

    Raises:
        StorageError: Storage failed.
    """
    expected = sizes_of(groups)
    sizes = storage.sizes(list(expected))
    pairs = zip(expected.items(), sizes, strict=True)
    return [path for (path, size), found in pairs if found != size]


def groups_before(
    storage: Storage, table: str, groups: Sequence[StagedGroup], before: float
) -> list[StagedGroup]:
    """Return the groups of which an object was last written before a moment (Unix seconds).

    Args:
        storage: How the files are reached.
        table: The table's name, for the error.
        groups: What is staged.
        before: The moment.

    Raises:
        StagedFileMissingError: A staged file is gone.
        StorageError: Storage failed.
    """
    paths = [path for group in groups for path in group.paths]
    written = dict(zip(paths, storage.last_written(paths), strict=True))
    refuse_missing(table, [path for path, moment in written.items() if moment is None])
    old = {path for path, moment in written.items() if moment is not None and moment < before}
    return [group for group in groups if old.intersection(group.paths)]


def refuse_missing(table: str, paths: Sequence[str]) -> None:
    """Stop if staged files are gone.

    Args:
        table: The table's name, for the error.
        paths: Those that are.

    Raises:
        StagedFileMissingError: There are some.
    """
    if paths:
        raise StagedFileMissingError(table=table, count=len(paths), path=paths[0])
