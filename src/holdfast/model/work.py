"""Work: what tasks have durably done, what they have staged, and which of it counts.

A task record covers input rows and says where their output is: in table files, in a chunk, or, for
rows that failed, in a quarantine. A record that writes chunks into table files names the records
of these chunks; their coverage moves to it. Nothing here depends on order or position, so dropping
a record restores exactly what it replaced.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import msgspec

from holdfast.model.coverage import Coverage, InputSums, Span
from holdfast.model.stored import (
    Cost,
    Count,
    RecordDamagedError,
    Seconds,
    Sum,
    TaskName,
    parse_typed,
    refuse_deep,
    typed,
)
from holdfast.model.usage import NO_USAGE, Usage

# ---- Staged output: files that executors have written and no snapshot refers to yet

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

    `path` names the group: either a separate object, or the first of its files. Or the group is one
    object with keys of rows to delete. It has no files, and never enters the table.
    """

    path: str
    size_bytes: int
    files: tuple[StagedFile, ...]
    # JSON values that only the sink understands (for Iceberg: spec and partition bounds).
    detail: Mapping[str, Any]
    # How many keys of rows to delete it holds; 0 if it is a group of rows.
    deleted_keys: int = 0

    @property
    def with_keys(self) -> tuple[StagedFile, ...]:
        """The files that hold its keys: those of its rows, or of the rows to delete."""
        if not self.deleted_keys:
            return self.files
        return (StagedFile(path=self.path, size_bytes=self.size_bytes, rows=self.deleted_keys),)

    @property
    def paths(self) -> tuple[str, ...]:
        """All objects that the group needs: itself, and its files."""
        return tuple(dict.fromkeys((self.path, *(file.path for file in self.files))))

    def renamed(self, tag: str) -> StagedGroup:
        """Return the group under new names, each in the folder of the old one.

        Args:
            tag: A tag that no other name has. It replaces the tag of an earlier copy.
        """
        path = _tagged(self.path, tag)
        folder, new_folder = f"{_without_suffix(self.path)}/", f"{_without_suffix(path)}/"
        names = [
            # Files in a folder with the group's name move with it.
            new_folder + file.path.removeprefix(folder)
            if file.path.startswith(folder)
            else _tagged(file.path, tag)
            for file in self.files
        ]
        files = zip(self.files, names, strict=True)
        return replace(
            self, path=path, files=tuple(replace(file, path=name) for file, name in files)
        )

    def to_json(self) -> dict[str, Any]:
        """Return the group as plain JSON values."""
        return {
            "path": self.path,
            "size_bytes": self.size_bytes,
            "files": [[file.path, file.size_bytes, file.rows] for file in self.files],
            "detail": dict(self.detail),
            **({"deleted_keys": self.deleted_keys} if self.deleted_keys else {}),
        }

    @classmethod
    def from_json(cls, value: object) -> StagedGroup:
        """Read back what `to_json` gave.

        Raises:
            RecordDamagedError: The value is not a group.
        """
        return typed(value, GroupJson).group()


class GroupJson(msgspec.Struct):
    """A group as it is stored: its files are lists of path, size and rows."""

    path: str
    size_bytes: Count
    files: tuple[tuple[str, Count, Count], ...]
    detail: dict[str, Any]
    # Not in older ledgers.
    deleted_keys: Count = 0

    def group(self) -> StagedGroup:
        """Return the group.

        Raises:
            RecordDamagedError: The sink's JSON is nested too deeply, or keys to delete have files.
        """
        refuse_deep(self.detail)
        if self.files and self.deleted_keys:
            raise RecordDamagedError("a group of keys to delete has files for the table")
        return StagedGroup(
            path=self.path,
            size_bytes=self.size_bytes,
            files=tuple(
                StagedFile(path=path, size_bytes=size, rows=rows) for path, size, rows in self.files
            ),
            detail=self.detail,
            deleted_keys=self.deleted_keys,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """What became of a file of the table whose rows were looked at one by one."""

    # The state of the file: see `Sink.states`.
    state: str
    # The rows that go, and those that stay.
    removed_rows: int
    kept_rows: int
    # The rows that stay, in a new file, or deletes of the others; None if all stay or all go.
    group: StagedGroup | None = None
    # Which keys the rows that go have: see `ledger.key_hits`. Not in older ledgers.
    hits: str = ""

    def to_json(self) -> str:
        """Return it as JSON text."""
        group = self.group.to_json() if self.group else None
        return json.dumps([self.state, self.removed_rows, self.kept_rows, group, self.hits])

    @classmethod
    def from_json(cls, text: str) -> Rewrite:
        """Read back what `to_json` gave; anything else is a RecordDamagedError."""
        found = parse_typed(text.encode(), _RewriteJson)
        group = found.group.group() if found.group else None
        return cls(**{**msgspec.structs.asdict(found), "group": group})


class _RewriteJson(msgspec.Struct, array_like=True):
    """The same as it is stored."""

    state: str
    removed_rows: Count
    kept_rows: Count
    group: GroupJson | None
    hits: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """A group that enters the table in place of many small ones, with the files of them all."""

    group: StagedGroup  # Without its files.
    sources: tuple[str, ...]  # The paths of the groups that it stands for.

    def whole(self, groups: Mapping[str, StagedGroup]) -> StagedGroup:
        """Return the group with its files, given the groups that it stands for, by path."""
        files = tuple(file for path in self.sources for file in groups[path].files)
        return replace(self.group, files=files)

    def to_json(self) -> str:
        """Return it as JSON text."""
        return json.dumps([self.group.to_json(), list(self.sources)])

    @classmethod
    def from_json(cls, text: str) -> Merge:
        """Read back what `to_json` gave; anything else is a RecordDamagedError."""
        found = parse_typed(text.encode(), tuple[GroupJson, tuple[str, ...]])
        return cls(group=found[0].group(), sources=found[1])


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


# ---- Work: what tasks have durably done, and which of it counts

# "complete": the task's whole input is covered. "failed" and "stopped": the task ended before
# that, and need not be waited for.
TaskEnd = Literal["", "complete", "failed", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Rows in an object of the ledger: output for the table, or failed input."""

    rows: int
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """One durable step of one task attempt."""

    # <tasks>/<job>/<place>/<attempt>/<number>: unique in the run, and sorted by age of the claim,
    # whose number is the first part of the folder's name: see `Plan.tasks`.
    name: str
    coverage: Coverage
    # How long it took to compute the covered rows, which is saved by not doing it again.
    seconds: float
    groups: tuple[StagedGroup, ...] = ()
    chunk: Chunk | None = None
    # The records whose chunks are in this record's files.
    supersedes: tuple[str, ...] = ()
    end: TaskEnd = ""
    # If the covered rows have failed: the input rows, in place of output.
    quarantine: Chunk | None = None
    # The cost of the answers for the covered rows, in the user's own unit; and in the last record
    # of a task, that of its other answers.
    cost: float = 0.0
    lost_cost: float = 0.0
    # The numbers of earlier records of its log that it covers the rows of: it has their keys, and
    # their output is in its files. They count again if it is left out.
    replaces: tuple[int, ...] = ()
    # The numbers of all earlier records of its log that count beside it; None if all do, as in logs
    # of earlier versions. The others need not be read.
    beside: tuple[int, ...] | None = field(default=None, compare=False)
    # Not compared: two records that differ only in usage are equal.
    usage: Usage = field(default=NO_USAGE, compare=False)

    @property
    def claim(self) -> int:
        """The number of the claim under which it was written."""
        return int(self.name.split("/", 1)[0].split("-", 1)[0])

    @property
    def log(self) -> str:
        """The name of the task log that holds it."""
        return self.name.rsplit("/", 1)[0]

    @property
    def number(self) -> int:
        """Its number in that log."""
        return int(self.name.rsplit("/", 1)[1])

    @property
    def paid(self) -> float:
        """The cost of all answers that it knows of."""
        return self.cost + self.lost_cost

    @property
    def replaced(self) -> list[str]:
        """The names of the records that it replaces."""
        return [f"{self.log}/{number:04d}" for number in self.replaces]

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain JSON values."""
        return {
            "name": self.name,
            **self.coverage.to_json(),
            "seconds": round(self.seconds, 3),
            "groups": [group.to_json() for group in self.groups],
            "chunk": _chunk_json(self.chunk),
            "supersedes": list(self.supersedes),
            "end": self.end,
            "quarantine": _chunk_json(self.quarantine),
            "cost": self.cost,
            "lost_cost": self.lost_cost,
            "replaces": list(self.replaces),
            "beside": None if self.beside is None else list(self.beside),
            "usage": self.usage.to_json(),
        }

    @classmethod
    def from_json(cls, value: object) -> TaskRecord:
        """Read back what `to_json` gave.

        Raises:
            RecordDamagedError: The value is not a task record.
        """
        return typed(value, _TaskJson).record()

    @classmethod
    def from_text(cls, text: str) -> TaskRecord:
        """Read back what `to_json` gave, from text, in one step: a long run has very many.

        Raises:
            RecordDamagedError: The value is not a task record.
        """
        return parse_typed(text, _TaskJson).record()


class _TaskJson(msgspec.Struct):
    """A task record as it is stored: flat, with lists instead of small objects."""

    name: TaskName
    rows: Count
    low: Sum
    high: Sum
    keys_bytes: Count
    # A key may have any integer type.
    span: tuple[int, int] | None
    seconds: Seconds
    groups: tuple[GroupJson, ...]
    chunk: _ChunkJson | None
    supersedes: tuple[TaskName, ...]
    end: TaskEnd
    # Ledgers of 0.1 have none of these.
    row_low: Sum | None = None
    row_high: Sum | None = None
    ranges: tuple[tuple[Count, Count], ...] | None = None
    quarantine: _ChunkJson | None = None
    cost: Cost = 0.0
    lost_cost: Cost = 0.0
    usage: Usage | None = None
    replaces: tuple[Count, ...] = ()
    beside: tuple[Count, ...] | None = None

    def record(self) -> TaskRecord:
        """Return the record.

        Raises:
            RecordDamagedError: The sink's JSON is nested too deeply, or it names later records.
        """
        number = int(self.name.rsplit("/", 1)[1])
        if max((*self.replaces, *(self.beside or ())), default=-1) >= number:
            raise RecordDamagedError("it speaks for records that come after it")
        return TaskRecord(
            name=self.name,
            coverage=Coverage(
                rows=self.rows,
                low=self.low,
                high=self.high,
                row_low=self.row_low,
                row_high=self.row_high,
                keys_bytes=self.keys_bytes,
                span=self.span,
                ranges=self.ranges,
            ),
            seconds=self.seconds,
            groups=tuple([group.group() for group in self.groups]),
            chunk=_chunk(self.chunk),
            supersedes=self.supersedes,
            end=self.end,
            quarantine=_chunk(self.quarantine),
            cost=self.cost,
            lost_cost=self.lost_cost,
            replaces=self.replaces,
            beside=self.beside,
            usage=self.usage or NO_USAGE,
        )


# Rows, size and digest.
_ChunkJson = tuple[Count, Count, str]


def _chunk_json(chunk: Chunk | None) -> _ChunkJson | None:
    return None if chunk is None else (chunk.rows, chunk.size_bytes, chunk.digest)


def _chunk(value: _ChunkJson | None) -> Chunk | None:
    return None if value is None else Chunk(rows=value[0], size_bytes=value[1], digest=value[2])


@dataclass(frozen=True, kw_only=True)
class Work:
    """All accepted records of a run."""

    records: tuple[TaskRecord, ...] = ()

    @cached_property
    def superseded(self) -> frozenset[str]:
        """The names of records whose chunk another accepted record has written to table files."""
        return frozenset(name for record in self.records for name in record.supersedes)

    @cached_property
    def groups(self) -> tuple[StagedGroup, ...]:
        """All staged groups: those that enter the table, and keys of rows to delete."""
        return tuple(group for record in self.records for group in record.groups)

    @cached_property
    def adds(self) -> tuple[StagedGroup, ...]:
        """The groups that enter the table."""
        return tuple(group for group in self.groups if not group.deleted_keys)

    @property
    def deleted_keys(self) -> int:
        """How many keys of rows to delete are staged."""
        return sum(group.deleted_keys for group in self.groups)

    @cached_property
    def waiting(self) -> tuple[TaskRecord, ...]:
        """Records whose chunk is not in a table file yet."""
        return tuple(
            record
            for record in self.records
            if record.chunk is not None and record.name not in self.superseded
        )

    @cached_property
    def quarantined(self) -> tuple[TaskRecord, ...]:
        """Records whose rows have failed."""
        return tuple(record for record in self.records if record.quarantine is not None)

    @property
    def quarantined_rows(self) -> int:
        """How many rows have failed."""
        return sum(record.coverage.rows for record in self.quarantined)

    @cached_property
    def sums(self) -> InputSums:
        """The sums of all input rows that are done, including those of superseded records."""
        parts = [record.coverage for record in self.records]
        is_known = not self.rows_without_sums
        return InputSums(
            rows=sum(part.rows for part in parts),
            null_keys=0,
            low=sum(part.low for part in parts),
            high=sum(part.high for part in parts),
            row_low=sum(part.row_low or 0 for part in parts) if is_known else None,
            row_high=sum(part.row_high or 0 for part in parts) if is_known else None,
        )

    @property
    def rows_without_sums(self) -> int:
        """How many input rows are done without row sums."""
        parts = (record.coverage for record in self.records)
        return sum(part.rows for part in parts if part.row_low is None)

    @property
    def seconds(self) -> float:
        """How long tasks have computed for this work."""
        return sum(record.seconds for record in self.records)

    @property
    def cost(self) -> float:
        """The cost of the answers for this work."""
        return sum(record.cost for record in self.records)

    @property
    def cost_and_rows(self) -> tuple[float, int]:
        """What rows with a known cost have cost, and how many they are."""
        priced = [record for record in self.records if record.cost]
        return sum(r.cost for r in priced), sum(r.coverage.rows for r in priced)

    @property
    def paid(self) -> float:
        """The cost of all answers that its records know of."""
        return sum(record.paid for record in self.records)

    @property
    def with_keys(self) -> tuple[TaskRecord, ...]:
        """The records that cover input rows."""
        return tuple(record for record in self.records if record.coverage.rows)

    def proves_unique(self) -> bool:
        """Whether the spans alone show that no row is covered twice."""
        known: list[Span] = []
        for record in self.with_keys:
            coverage = record.coverage
            if coverage.ranges is not None:
                known += ((start, stop - 1) for start, stop in coverage.ranges)
            elif coverage.span is not None:
                known.append(coverage.span)
            else:
                return False
        return all(a[1] < b[0] for a, b in pairwise(sorted(known)))

    def plus(self, records: Iterable[TaskRecord]) -> tuple[Work, tuple[str, ...]]:
        """Accept more records; return the work and the names of those that were refused.

        A record that supersedes something other than a known chunk, or a chunk that is already
        superseded, would put rows into the table twice.
        """
        known = {record.name for record in self.records}
        chunks = {record.name for record in self.records if record.chunk is not None}
        taken = set(self.superseded)
        accepted, refused = list(self.records), []
        for record in records:
            named = set(record.supersedes)
            if record.name in known or named - chunks or named & taken:
                refused.append(record.name)
                continue
            known.add(record.name)
            taken |= named
            if record.chunk is not None:
                chunks.add(record.name)
            accepted.append(record)
        return Work(records=tuple(accepted)), tuple(refused)

    def with_groups(self, new: Mapping[str, StagedGroup]) -> Work:
        """Return the same work, with some groups replaced.

        Args:
            new: The replacement of each group, by the old group's path.
        """
        return replace(
            self,
            records=tuple(
                replace(record, groups=tuple(new.get(group.path, group) for group in record.groups))
                for record in self.records
            ),
        )

    def only(self, counted: Work) -> Work:
        """Return the part of this work that still counts in another."""
        names = {record.name for record in counted.records}
        return replace(self, records=tuple(r for r in self.records if r.name in names))

    def without(self, names: Iterable[str]) -> Work:
        """Drop whole records; what they had superseded counts again.

        A record that has superseded a dropped one holds its rows, and is dropped as well.
        """
        gone = set(names)
        while True:
            holders = {
                record.name
                for record in self.records
                if record.name not in gone and gone.intersection(record.supersedes)
            }
            if not holders:
                break
            gone |= holders
        return replace(self, records=tuple(r for r in self.records if r.name not in gone))
