"""Spread: how evenly rows and bytes are divided, over places and files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log2
from statistics import median

from holdfast.model.staged import StagedGroup
from holdfast.model.work import TaskRecord

_BARS_MAX = 60
_BINS = 8
# Sizes that differ by more are put into classes that double.
_WIDE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The places of one job, and how many rows each had."""

    # Its claim, and what the job does.
    claim: int
    job: str
    places: int
    largest: int
    median: float
    # The largest first; where there are many places, every so many of them.
    rows: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeClass:
    """Files of about one size."""

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
    """Return the rows of each place of the job that has done most; None if none has done any."""
    jobs: dict[tuple[int, str], dict[str, int]] = {}
    for record in records:
        if record.coverage.rows:
            _, job, place, *_ = record.name.split("/")
            rows = jobs.setdefault((record.claim, job), {})
            rows[place] = rows.get(place, 0) + record.coverage.rows
    if not jobs:
        return None
    (claim, job), rows = max(jobs.items(), key=lambda one: sum(one[1].values()))
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
    """Return how large the files are; None if there is none."""
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
