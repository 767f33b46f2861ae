"""Spread: how evenly tasks worked, and which rows failed, by error. Rows are not shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, log2
from statistics import median

import pyarrow as pa

from holdfast.errors import HoldfastError, LedgerDamagedError
from holdfast.ledger.row_files import read_chunk
from holdfast.model.work import Chunk, StagedGroup, TaskRecord
from holdfast.storage.port import Storage

# ---- Spread: how evenly rows and bytes are divided over places and files

_BARS_MAX = 60
_BINS = 8
# Sizes that differ by more than this factor are put into classes that double.
_WIDE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The places of one job, and how many rows each had."""

    # The job's claim, and what the job does.
    claim: int
    job: str
    places: int
    largest: int
    median: float
    # Largest first; if there are many places, only every nth.
    rows: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeClass:
    """Files of similar size."""

    from_bytes: int
    below_bytes: int
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSizes:
    """The files that the run has made for the table."""

    files: int
    size_bytes: int
    smallest: int
    median: float
    largest: int
    classes: list[SizeClass]


def places_of(records: Iterable[TaskRecord]) -> Places | None:
    """Return the rows of each place of the job that did the most; None if no job did any."""
    jobs: dict[tuple[int, str], dict[str, int]] = {}
    for record in records:
        if record.coverage.rows:
            _, job, place, *_ = record.name.split("/")
            rows = jobs.setdefault((record.claim, job), {})
            rows[place] = rows.get(place, 0) + record.coverage.rows
    if not jobs:
        return None
    (claim, job), rows = max(jobs.items(), key=lambda job: sum(job[1].values()))
    counted = sorted(rows.values(), reverse=True)
    return Places(
        claim=claim,
        job=job,
        places=len(counted),
        largest=counted[0],
        median=median(counted),
        rows=_some(counted),
    )


def file_sizes_of(groups: Iterable[StagedGroup]) -> FileSizes | None:
    """Return the sizes of the files; None if there are none."""
    sizes = sorted(file.size_bytes for group in groups for file in group.files)
    if not sizes:
        return None
    return FileSizes(
        files=len(sizes),
        size_bytes=sum(sizes),
        smallest=sizes[0],
        median=median(sizes),
        largest=sizes[-1],
        classes=_classes(sizes),
    )


def _some(counted: Sequence[int]) -> list[int]:
    if len(counted) <= _BARS_MAX:
        return list(counted)
    step = (len(counted) - 1) / (_BARS_MAX - 1)
    return [counted[round(number * step)] for number in range(_BARS_MAX)]


def _classes(sizes: Sequence[int]) -> list[SizeClass]:
    smallest, largest = sizes[0], sizes[-1]
    if largest > _WIDE * max(1, smallest):
        top = ceil(log2(largest + 1))
        edges = [0, *(2**power for power in range(max(0, top - _BINS + 1), top + 1))]
    else:
        width = max(1, ceil((largest + 1 - smallest) / _BINS))
        bins = min(_BINS, largest + 1 - smallest)
        edges = [smallest + number * width for number in range(bins + 1)]
    found, at = [], 0
    for low, high in pairwise(edges):
        count = 0
        while at < len(sizes) and sizes[at] < high:
            count, at = count + 1, at + 1
        found.append(SizeClass(from_bytes=low, below_bytes=high, files=count))
    return found


# ---- Failures: the rows that were set aside, by error. Whole rows are private and are not shown

_KINDS_MAX = 20
_TEXT_LENGTH_MAX = 300
_KEY_LENGTH_MAX = 120
# A page about a run in which most rows fail must not read all of them.
_READ_BYTES_MAX = 32 << 20
_READ_OBJECTS_MAX = 500
_COLUMNS = {"error", "key"}
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(slots=True, kw_only=True)
class FailureKind:
    """Rows whose errors differ only in numbers."""

    # The first error, as the transform raised it, and the key of its row.
    error: str
    key: str
    rows: int = 0


@dataclass(slots=True, kw_only=True)
class Failures:
    """All rows that were set aside, as far as they were read."""

    rows: int = 0
    read_rows: int = 0
    kinds: list[FailureKind] = field(default_factory=list)
    # How many further kinds there are, and why rows could not be read.
    other_kinds: int = 0
    problem: str = ""


def failures_of(storage: Storage, chunks: Mapping[str, Chunk]) -> Failures:
    """Read failed rows and count them by error, the most frequent first.

    Never raises for rows that cannot be read: the rest of a page is useful without them.

    Args:
        storage: How the store is reached.
        chunks: The objects that hold them, by URI.
    """
    found = Failures(rows=sum(chunk.rows for chunk in chunks.values()))
    kinds: dict[str, FailureKind] = {}
    left = _READ_BYTES_MAX
    for uri, chunk in list(chunks.items())[:_READ_OBJECTS_MAX]:
        left -= chunk.size_bytes
        if left < 0 and found.read_rows:
            break
        try:
            _count(storage, uri, chunk, kinds)
        except HoldfastError as error:
            found.problem = _short(str(error), _TEXT_LENGTH_MAX)
            break
        found.read_rows += chunk.rows
    ranked = sorted(kinds.values(), key=lambda kind: -kind.rows)
    found.kinds, found.other_kinds = ranked[:_KINDS_MAX], len(ranked[_KINDS_MAX:])
    return found


def _count(storage: Storage, uri: str, chunk: Chunk, kinds: dict[str, FailureKind]) -> None:
    for batch in read_chunk(storage, uri, chunk):
        if not set(batch.schema.names) >= _COLUMNS or not pa.types.is_string(batch["error"].type):
            raise LedgerDamagedError(uri=uri, reason="it does not say why its rows failed")
        for error, key in zip(batch["error"].to_pylist(), batch["key"], strict=True):
            # Errors name rows by number: these are of one kind.
            kind = _NUMBER.sub("#", error or "")
            if kind not in kinds:
                kinds[kind] = FailureKind(
                    error=_short(error or "", _TEXT_LENGTH_MAX), key=_key_text(key.as_py())
                )
            kinds[kind].rows += 1


def _key_text(key: object) -> str:
    named = key if isinstance(key, Mapping) else {}
    values = [f"{name}={value!r}" for name, value in named.items()]
    return _short(", ".join(values), _KEY_LENGTH_MAX)


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
