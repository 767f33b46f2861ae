"""Staged files as storage sees them: which are gone, which are old, which may be deleted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote

from holdfast.errors import LedgerDamagedError, StagedFileMissingError
from holdfast.model.staged import StagedGroup, sizes_of
from holdfast.storage.port import Storage

# What a path's segment must not be: a file system or a server resolves these.
_UNRESOLVED = ("", ".", "..")
_SEPARATORS = re.compile(r"[/\\]")


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


def refuse_outside(table: str, folders: Sequence[str], paths: Sequence[str]) -> None:
    """Stop unless every path is a plain one inside one of the folders.

    All paths are checked before the caller deletes the first. A path that has to be resolved is
    refused even where it would end inside: no writer of ours makes one.

    Args:
        table: The table's name, for the error.
        folders: Where the table's files are, with or without a trailing slash.
        paths: What the run's records name.

    Raises:
        LedgerDamagedError: A path is outside, or has empty, `.` or `..` segments, plain or encoded.
    """
    prefixes = [f"{folder.rstrip('/')}/" for folder in folders]
    for path in paths:
        inside = [path.removeprefix(prefix) for prefix in prefixes if path.startswith(prefix)]
        if not any(all(map(_is_plain, rest.split("/"))) for rest in inside):
            raise LedgerDamagedError(
                uri=path, reason=f"a staged file that is outside of {table}, or may lead there"
            )


def _is_plain(segment: str) -> bool:
    """Whether a segment of a path names one folder or file, however often it is decoded."""
    if "=" in segment:  # The value of a partition, which may be any text; storage decodes no key.
        return True
    while (decoded := unquote(segment)) != segment:
        segment = decoded
    return not any(part in _UNRESOLVED for part in _SEPARATORS.split(segment))
