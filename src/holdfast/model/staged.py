"""Staged output: what executors have written and no snapshot refers to yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from holdfast.model.stored import Count, refuse_deep, typed

_COPY = "-copy-"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """A data file that an executor has written."""

    path: str
    size_bytes: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedGroup:
    """Files that enter the table together: an Iceberg manifest and what it lists, a Lance fragment.

    `path` names the group, and is an object of its own or the first of its files.
    """

    path: str
    size_bytes: int
    files: tuple[StagedFile, ...]
    # What only the sink understands, as JSON values (for Iceberg: spec and partition bounds).
    detail: Mapping[str, Any]

    @property
    def paths(self) -> tuple[str, ...]:
        """All objects that the group needs: itself, and its files."""
        return tuple(dict.fromkeys((self.path, *(file.path for file in self.files))))

    def renamed(self, tag: str) -> StagedGroup:
        """Return the group under names that nobody has yet, each in the folder of the old one.

        Args:
            tag: What no other name has. That of an earlier copy gives way to it.
        """
        path = _tagged(self.path, tag)
        folder, new_folder = f"{_without_suffix(self.path)}/", f"{_without_suffix(path)}/"
        names = [
            # What stands in a folder of the group's name moves with it.
            new_folder + file.path.removeprefix(folder)
            if file.path.startswith(folder)
            else _tagged(file.path, tag)
            for file in self.files
        ]
        files = zip(self.files, names, strict=True)
        return replace(self, path=path, files=tuple(replace(one, path=name) for one, name in files))

    def to_json(self) -> dict[str, Any]:
        """Return the group as plain JSON values."""
        return {
            "path": self.path,
            "size_bytes": self.size_bytes,
            "files": [[file.path, file.size_bytes, file.rows] for file in self.files],
            "detail": dict(self.detail),
        }

    @classmethod
    def from_json(cls, value: object) -> StagedGroup:
        """Read back what `to_json` gave.

        Raises:
            RecordDamagedError: It is something else.
        """
        return typed(value, GroupJson).group()


class GroupJson(msgspec.Struct):
    """A group as it is stored: its files are lists of path, size and rows."""

    path: str
    size_bytes: Count
    files: tuple[tuple[str, Count, Count], ...]
    detail: dict[str, Any]

    def group(self) -> StagedGroup:
        """Return the group.

        Raises:
            RecordDamagedError: What only the sink understands is nested too deeply.
        """
        refuse_deep(self.detail)
        return StagedGroup(
            path=self.path,
            size_bytes=self.size_bytes,
            files=tuple(
                StagedFile(path=path, size_bytes=size, rows=rows) for path, size, rows in self.files
            ),
            detail=self.detail,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTotals:
    """How much is staged."""

    rows: int
    files: int
    size_bytes: int

    @classmethod
    def of(cls, groups: Iterable[StagedGroup]) -> StagedTotals:
        """Add up the files of all groups."""
        files = [file for group in groups for file in group.files]
        return cls(
            rows=sum(file.rows for file in files),
            files=len(files),
            size_bytes=sum(file.size_bytes for file in files),
        )


def sizes_of(groups: Sequence[StagedGroup]) -> dict[str, int]:
    """Return the size of each object that groups need, by its path."""
    found = {group.path: group.size_bytes for group in groups}
    return found | {file.path: file.size_bytes for group in groups for file in group.files}


def _tagged(path: str, tag: str) -> str:
    folder, _, name = path.rpartition("/")
    stem, _, suffix = name.rpartition(".")
    return f"{folder}/{stem.partition(_COPY)[0]}{_COPY}{tag}.{suffix}"


def _without_suffix(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/{name.rpartition('.')[0]}"
