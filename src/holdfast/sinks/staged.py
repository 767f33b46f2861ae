"""What all sinks share: the run's mark as text, and its staged files in storage."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from urllib.parse import unquote

from holdfast.errors import (
    LedgerDamagedError,
    SettingsError,
    StagedFileMissingError,
    StoreUnavailableError,
    UnsupportedTableError,
)
from holdfast.model.work import StagedGroup, sizes_of
from holdfast.sinks.base import RunMark, TableView
from holdfast.storage.locations import split
from holdfast.storage.port import ForbiddenError, Storage
from holdfast.storage.runtime import io_runtime

# ---- The mark as text: how a run's mark is stored in a table, in every format

MARK_PREFIX = "holdfast.run."
# A copy of the mark, in the summary of its snapshot or the note of its version.
MARK_NOTE = "holdfast.mark"
# How many marks a table keeps: each new one drops the oldest beyond that.
MARKS_MAX = 100


def mark_text(mark: RunMark, **more: str) -> str:
    """Return the mark as it is stored in the table.

    Args:
        mark: The mark.
        **more: Further values that a format needs.
    """
    return json.dumps(
        {
            "nonce": mark.run_nonce,
            "intent": mark.intent_number,
            "intent_nonce": mark.intent_nonce,
            "snapshot": mark.snapshot_id,
            "sequence": mark.sequence_number,
            **more,
        }
    )


def oldest_beyond(properties: Mapping[str, str], ours: str, most: int) -> list[tuple[int, str]]:
    """Return the marks that a new one displaces: sequence number and name, oldest first.

    Args:
        properties: The table's properties, including marks.
        ours: The name of the new mark.
        most: How many marks may remain.

    Raises:
        UnsupportedTableError: A mark cannot be read.
    """
    others = sorted(
        (parse_mark(name, text).sequence_number, name)
        for name, text in properties.items()
        if name.startswith(MARK_PREFIX) and name != ours
    )
    return others[: max(0, len(others) + 1 - most)]


def mark_of_run(texts: Iterable[str], run_nonce: str) -> RunMark | None:
    """Return the mark that a run left under any id; a copied ledger uses another id.

    Args:
        texts: Marks of the table, of any run; unreadable ones are skipped.
        run_nonce: The nonce of the run whose mark is wanted.
    """
    for text in texts:
        with contextlib.suppress(UnsupportedTableError):
            if (mark := parse_mark("", text)).run_nonce == run_nonce:
                return mark
    return None


def parse_mark(name: str, text: str) -> RunMark:
    """Read back the output of `mark_text`.

    Raises:
        UnsupportedTableError: The text is not a mark.
    """
    try:
        value = json.loads(text)
        return RunMark(
            run_nonce=value["nonce"],
            intent_number=value["intent"],
            snapshot_id=value["snapshot"],
            sequence_number=value["sequence"],
            intent_nonce=value.get("intent_nonce", ""),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnsupportedTableError(
            table=name,
            what=f"the table property with this run's mark cannot be read: {text[:80]!r}",
            cure="restore that property from an older metadata file of the table",
        ) from error


# ---- Staged files in storage: which are gone, which are old, which may be deleted

# Path segments that a file system or a server resolves; not allowed.
_UNRESOLVED = ("", ".", "..")
_SEPARATORS = re.compile(r"[/\\]")
# What `split` calls the local file system, and the depth at which a folder can be a table's own.
_LOCAL, _LOCAL_DEPTH = "file://", 2


def missing_paths(storage: Storage, groups: Sequence[StagedGroup], known: str = "") -> list[str]:
    """Return the paths of staged files and groups that are gone or have another size.

    Args:
        storage: How the files are reached.
        groups: The staged groups.
        known: An object beside them that is there, if one is known.

    Raises:
        ForbiddenError: The store refuses the credentials.
        StorageError: Storage failed.
    """
    expected = sizes_of(groups)
    try:
        sizes = storage.sizes(list(expected))
    except ForbiddenError:
        sizes = _sizes_without_lists(storage, list(expected), known) if known else []
        # If none may be read, that is the likelier reason: the rows must not be paid for again.
        if not any(sizes):
            raise
    pairs = zip(expected.items(), sizes, strict=True)
    return [path for (path, size), found in pairs if found != size]


def _sizes_without_lists(storage: Storage, uris: Sequence[str], known: str) -> list[int | None]:
    """Return the size of each object, None if it is missing, for a caller that may not list.

    To such a caller S3 answers "forbidden" where an object is missing. The known object shows,
    before and after, that the credentials are accepted.

    Raises:
        StorageError: Storage failed, or refuses the known object.
    """

    def ask(uri: str) -> int | None:
        try:
            return storage.size(uri)
        except (FileNotFoundError, ForbiddenError):
            return None

    storage.size(known)
    found = io_runtime().each(ask, uris)
    storage.size(known)
    return found


def groups_before(
    storage: Storage, table: str, groups: Sequence[StagedGroup], before: float
) -> list[StagedGroup]:
    """Return the groups with an object that was last written before a time (Unix seconds).

    Args:
        storage: How the files are reached.
        table: The table's name, for the error.
        groups: The staged groups.
        before: The time.

    Raises:
        StagedFileMissingError: A staged file is gone.
        StorageError: Storage failed.
    """
    paths = [path for group in groups for path in group.paths]
    written = dict(zip(paths, storage.last_written(paths), strict=True))
    refuse_missing(table, [path for path, moment in written.items() if moment is None])
    old = {path for path, moment in written.items() if moment is not None and moment < before}
    return [group for group in groups if old.intersection(group.paths)]


class StagedFiles:
    """What a sink does with its staged files through storage alone, in every format."""

    @property
    def name(self) -> str:
        """The table's display name.

        Raises:
            NotImplementedError: Always: each format defines its own.
        """
        raise NotImplementedError

    def _storage_of(self, view: TableView) -> AbstractContextManager[Storage]:
        """Yield the table's storage; its failures become a StoreUnavailableError.

        Raises:
            NotImplementedError: Always: each format defines its own.
        """
        raise NotImplementedError

    def missing_files(self, view: TableView, groups: Sequence[StagedGroup]) -> list[str]:
        """Return the paths of staged objects that are gone or have another size.

        Raises:
            StoreUnavailableError: The table's storage does not answer.
        """
        with self._storage_of(view) as storage:
            return missing_paths(storage, groups, self._known_object(view))

    def _known_object(self, view: TableView) -> str:  # noqa: ARG002 - for formats that know one.
        """Return an object of the table's that is there; empty if none is known."""
        return ""

    def old_groups(
        self, view: TableView, groups: Sequence[StagedGroup], before: float
    ) -> list[StagedGroup]:
        """Return the groups with an object that was last written before a time (Unix seconds).

        Raises:
            StagedFileMissingError: A staged file is gone.
            StoreUnavailableError: The table's storage does not answer.
        """
        with self._storage_of(view) as storage:
            return groups_before(storage, self.name, groups, before)

    def refuse_missing_files(self, view: TableView, groups: Sequence[StagedGroup]) -> None:
        """Stop if staged objects are gone.

        Raises:
            StagedFileMissingError: Some staged objects are gone.
            StoreUnavailableError: The table's storage does not answer.
        """
        refuse_missing(self.name, self.missing_files(view, groups))

    @contextlib.contextmanager
    def _reading(self, view: TableView, groups: Sequence[StagedGroup]) -> Iterator[Storage]:
        """Yield the table's storage, to read staged groups; name an object that is missing.

        Raises:
            StagedFileMissingError: A staged object is gone.
            StoreUnavailableError: The table's storage does not answer.
        """
        try:
            with self._storage_of(view) as storage:
                yield storage
        except StoreUnavailableError:
            self.refuse_missing_files(view, groups)  # Storage did answer: an object is missing.
            raise


def refuse_missing(table: str, paths: Sequence[str]) -> None:
    """Stop if staged files are gone.

    Args:
        table: The table's name, for the error.
        paths: The missing files.

    Raises:
        StagedFileMissingError: `paths` is not empty.
    """
    if paths:
        raise StagedFileMissingError(table=table, count=len(paths), path=paths[0])


def refuse_outside(table: str, folders: Sequence[str], paths: Sequence[str]) -> None:
    """Refuse any path that is not a plain path inside one of the folders.

    All paths are checked before the caller deletes the first. A path that has to be resolved is
    refused even if it would end inside: our writers never make one. In a local file system the same
    applies to symbolic links.

    Args:
        table: The table's name, for the error.
        folders: Where the table's files are, with or without a trailing slash.
        paths: The paths in the run's records.

    Raises:
        LedgerDamagedError: A path is outside, has empty, `.` or `..` segments, plain or encoded,
            or leads through a symbolic link.
    """
    prefixes = [f"{folder.rstrip('/')}/" for folder in folders]
    links: dict[str, bool] = {}
    for path in paths:
        inside = [path.removeprefix(prefix) for prefix in prefixes if path.startswith(prefix)]
        depths = [len(rest.split("/")) for rest in inside if all(map(_is_plain, rest.split("/")))]
        if not depths or _has_link(path, max(depths), links):
            raise LedgerDamagedError(
                uri=path,
                reason=f"this staged file is outside {table}, or its path may lead outside",
            )


def is_root(folder: str) -> bool:
    """Whether a folder is a whole bucket, a whole file system, or directly below a root.

    Tables share such folders with other tables and unrelated files: a table whose location is there
    does not own what is in them.
    """
    try:
        root, key = split(folder)
    except SettingsError:  # A file system, or an unknown scheme.
        return True
    return len(key.split("/")) < _LOCAL_DEPTH if root == _LOCAL else not key


def _has_link(path: str, depth: int, known: dict[str, bool]) -> bool:
    """Whether one of the last segments of a local path is a symbolic link.

    Args:
        path: The path of a file.
        depth: How many segments are below the table's folder. The folder itself may be reached
            through links: it is where the table says it is.
        known: Results for folders that were checked before.
    """
    root, key = split(path)
    if root != _LOCAL:
        return False
    segments = f"/{key}".split("/")
    for length in range(len(segments), len(segments) - depth, -1):
        part = "/".join(segments[:length])
        if part not in known:
            # Not `Path.is_symlink`: it raises for a name that is too long, which is not a link
            # here.
            known[part] = os.path.islink(part)  # noqa: PTH114
        if known[part]:
            return True
    return False


def refuse_foreign(table: str, run_nonce: str, paths: Sequence[str]) -> None:
    """Refuse any path whose name does not begin with the run's nonce.

    Args:
        table: The table's name, for the error.
        run_nonce: The nonce; empty if file names do not contain it.
        paths: The paths in the run's records.

    Raises:
        LedgerDamagedError: A name does not begin with the nonce.
    """
    for path in paths:
        if run_nonce and not path.rsplit("/", 1)[-1].startswith(f"{run_nonce}-"):
            raise LedgerDamagedError(
                uri=path, reason=f"this file of {table} was not written by this run"
            )


def _is_plain(segment: str) -> bool:
    """Whether a path segment names one folder or file, however often it is decoded."""
    if "\0" in segment:
        return False
    if "=" in segment:  # A partition value, which may be any text; storage decodes no key.
        return True
    while (decoded := unquote(segment)) != segment:
        segment = decoded
    return not any(part in _UNRESOLVED for part in _SEPARATORS.split(segment))
