"""Merge rows into a table of 10,000 files while another writer appends every 2 s.

Each upsert has 180 rows: ten keys in files of all large manifests, which come again every fifth
time; ten keys that are new, beside these; and every second key that the other writer may add. So
files are removed whole, files are rewritten for the rows that stay, and each second row of the
other writer has to be found in a file that is new. A post that it has overtaken is refused; then
files that are new are searched.

At the end, the table's history is replayed snapshot by snapshot, and every row must be where the
replay puts it. Takes for how many minutes (10), and how rows are replaced (`copy-on-write`).
"""

from __future__ import annotations

import statistics
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import holdfast as hf
from bench.overwrite_busy import (
    CONTESTED,
    FILES,
    MANIFESTS,
    BusyTable,
    Overwrite,
    Replay,
    rival_of,
)
from bench.process_tree import answer, kill_whole, start
from bench.session import open_session, open_stack

_MINUTES = "10"
_CYCLE = 5
_WARM_UP = 2
# Rows of the other writer with an even number go to the contested partition: 160 of 10.6 minutes.
_CONTESTED_KEYS = 160


def rows_of(number: int) -> dict[int, set[int]]:
    """Return the ids that an upsert writes, by partition: old ones, new ones, contested ones."""
    apart = FILES // MANIFESTS
    found = {CONTESTED: {-1 - 2 * at for at in range(_CONTESTED_KEYS)}}
    for manifest in range(MANIFESTS):
        old = 1 + number % _CYCLE + apart * manifest
        found[old] = {old, FILES + number * MANIFESTS + manifest}
    return found


class Merging(Replay):
    """The rows that a table must hold: a key of ours is there once, after each upsert."""

    def __init__(self) -> None:
        """Begin with one row in each partition."""
        super().__init__()
        self._rows = Counter((part, row) for part, ids in self.ids.items() for row in ids)

    def append(self, row_id: int, partition: int) -> None:
        """Follow an append of one row, whose key may be there."""
        self._rows[partition, row_id] += 1

    def overwrite(self, number: int) -> int:
        """Follow an upsert; return how many rows it replaces."""
        new = [(part, row) for part, ids in rows_of(number).items() for row in ids]
        replaced = sum(self._rows[row] for row in new)  # A key is in one partition only.
        self._rows.update({row: 1 - self._rows[row] for row in new})
        return replaced

    def rows(self) -> list[tuple[int, int]]:
        """Return partition and id of all rows, in order."""
        return sorted(self._rows.elements())


class _MergeTable(BusyTable):
    """The same table, with upserts."""

    def __init__(
        self, session: SparkSession, options: dict[str, str], folder: Path, how: str
    ) -> None:
        super().__init__(session, options, folder)
        # The default needs no argument.
        self._how: dict[str, Any] = {} if how == "copy-on-write" else {"write_mode": how}

    def rows_of(self, number: int) -> Mapping[int, set[int]]:
        """Return the ids that an upsert writes, by partition."""
        return rows_of(number)

    def write(self, run: hf.Run, source: Any, target: hf.IcebergTable) -> hf.Report:  # noqa: ANN401
        """Merge the rows of a scan."""
        return run.upsert(source, to=target, on="id", **self._how)


def figures(made: Sequence[Overwrite], appended: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of the upserts that began beside the other writer."""
    first, last = appended["landed_at"][0], appended["landed_at"][-1]
    counted = [each for each in made if first <= each.started_at <= last]
    landed = [each for each in counted if each.snapshot_id is not None]
    searched = sum(each.searched_files for each in landed)
    again = sum(each.searched_again for each in landed)
    posts = Counter(each.posts for each in landed)
    return {
        "upserts": len(counted),
        "landed": len(landed),
        "replans": sum(each.posts - 1 for each in landed),
        "replans_max": max(posts, default=1) - 1,
        "upserts_by_replans": {str(number - 1): posts[number] for number in sorted(posts)},
        "searched_files": searched,
        "searched_again": again,
        "redone_share": round(again / max(1, searched), 3),
        "median_s": round(statistics.median(each.seconds for each in counted), 2),
        "longest_s": round(max(each.seconds for each in counted), 2),
        "rival_rows": len(appended["landed_at"]),
        "rival_refused": appended["refused"],
    }


def run(minutes: str = _MINUTES, write_mode: str = "copy-on-write") -> dict[str, Any]:
    """Measure and return the figures.

    Raises:
        SystemExit: A row is not where it must be.
    """
    stack = open_stack()
    session = open_session(stack.spark_catalog_conf("lake"))
    with tempfile.TemporaryDirectory(prefix="holdfast-busy-") as folder:
        options = stack.rest_catalog_properties()
        table = _MergeTable(session, options, Path(folder), write_mode)
        for _ in range(_WARM_UP):
            table.overwrite()
        rival = rival_of(table.name, 60 * float(minutes))
        child = start("bench.overwrite_rival", rival.arguments())
        try:
            while child.poll() is None:
                table.overwrite()
        except BaseException:
            kill_whole(child)
            raise
        appended = answer(child)
        if wrong := table.problem(rival, Merging()):
            raise SystemExit(f"{table.name}: {wrong}")
        table.drop()
    return {
        **figures(table.overwrites, appended),
        "files": FILES,
        "manifests": MANIFESTS,
        "minutes": float(minutes),
        "write_mode": write_mode,
    }
