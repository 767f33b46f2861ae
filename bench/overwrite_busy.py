"""Replace partitions of a table of 10,000 files while another writer appends every 2 s.

Each overwrite replaces 11 partitions, from a small scan: ten whose files are spread over all large
manifests, so that all 10,000 entries are read and written anew each time; and one that the other
writer appends to, alternating with a partition that nothing replaces. The other writer is a process
of its own and uses PyIceberg. A post that it has overtaken is refused; then what goes is computed
again.

The same overwrites run in turns on a second table that has no other writer. At the end, the history
of both tables is replayed snapshot by snapshot, and every row must be where the replay puts it.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

import holdfast as hf
from bench.overwrite_rival import ROW_PROPERTY, Rival
from bench.process_tree import answer, kill_whole, start
from bench.rounds import Times
from bench.session import open_session, open_stack
from holdfast.errors import CommitConflictError

FILES = 10_000
MANIFESTS = 10
_ROWS_OF_A_PARTITION = 10
_SECONDS = 300.0
_EVERY_S = 2.0
_WARM_UP = 2
_SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.int32())])
# What the other writer appends to: a partition that each overwrite replaces, and another.
CONTESTED, _LEFT_ALONE = 0, FILES - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Overwrite:
    """One overwrite. Without a snapshot, it gave up."""

    number: int
    started_at: float
    seconds: float
    posts: int = 0
    replaced_rows: int = 0
    # Files that were read for rows to replace, and how many of them after a refused post.
    searched_files: int = 0
    searched_again: int = 0
    snapshot_id: int | None = None


def partitions_of(number: int) -> tuple[int, ...]:
    """Return the partitions that an overwrite replaces: the contested one, and one a manifest.

    Raises:
        SystemExit: There are more overwrites than partitions for them.
    """
    apart = FILES // MANIFESTS
    if not 0 < number < apart - 1:
        raise SystemExit(f"overwrite {number} would replace what another has replaced")
    return (CONTESTED, *(number + apart * manifest for manifest in range(MANIFESTS)))


def rows_of(number: int) -> dict[int, set[int]]:
    """Return the ids that an overwrite puts into each partition."""
    found = {}
    for at, partition in enumerate(partitions_of(number), number * (MANIFESTS + 1)):
        first = FILES + at * _ROWS_OF_A_PARTITION
        found[partition] = set(range(first, first + _ROWS_OF_A_PARTITION))
    return found


@dataclass(slots=True)
class Replay:
    """The rows that a table must hold, worked out from its history."""

    ids: dict[int, set[int]] = field(
        default_factory=lambda: {partition: {partition} for partition in range(FILES)}
    )

    def append(self, row_id: int, partition: int) -> None:
        """Follow an append of one row."""
        self.ids.setdefault(partition, set()).add(row_id)

    def overwrite(self, number: int) -> int:
        """Follow an overwrite; return how many rows it replaces."""
        new = rows_of(number)
        replaced = sum(len(self.ids.get(partition, ())) for partition in new)
        self.ids |= new
        return replaced

    def rows(self) -> list[tuple[int, int]]:
        """Return partition and id of all rows, in order."""
        return sorted((partition, row) for partition, ids in self.ids.items() for row in ids)


def problem(
    history: Iterable[tuple[int, Mapping[str, str]]],
    overwrites: Sequence[Overwrite],
    rival: Rival,
    found: Sequence[tuple[int, int]],
    replay: Replay | None = None,
) -> str:
    """Return what is wrong with a table; empty if every row is where it must be.

    Args:
        history: The table's snapshots in order: id and summary.
        overwrites: Those that were made.
        rival: The other writer.
        found: Partition and id of all rows of the table, in order.
        replay: Follows the history; by default one of overwrites.
    """
    landed = {made.snapshot_id: made for made in overwrites if made.snapshot_id is not None}
    replay = replay or Replay()
    for snapshot_id, summary in history:
        if (row := summary.get(ROW_PROPERTY)) is not None:
            replay.append(*rival.row(int(row)))
        if (made := landed.pop(snapshot_id, None)) is not None:
            replaced = replay.overwrite(made.number)
            if replaced != made.replaced_rows:
                said = made.replaced_rows
                return f"overwrite {made.number} says it replaced {said} rows, not {replaced}"
    if landed:
        return f"{len(landed)} overwrites are not in the table's history"
    missing, more = Counter(replay.rows()), Counter(found)
    missing, more = missing - more, more - missing
    if missing or more:
        lacks, has = (list(rows.elements())[:5] for rows in (missing, more))
        return f"{missing.total()} rows are missing, as {lacks}; {more.total()} more, as {has}"
    return ""


def figures(
    pairs: Sequence[tuple[Overwrite, Overwrite]], appended: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the figures of the overwrites beside the other writer and without it.

    Args:
        pairs: One of each, shortly after each other. Only those count whose first was made between
            the other writer's first append and its last.
        appended: What the other writer reported.
    """
    first, last = appended["landed_at"][0], appended["landed_at"][-1]
    counted = [
        (beside, alone)
        for beside, alone in pairs
        if first <= beside.started_at and beside.started_at + beside.seconds <= last
    ]
    times = Times(
        {
            "beside": [beside.seconds for beside, _ in counted],
            "alone": [alone.seconds for _, alone in counted],
        }
    )
    landed = [beside for beside, _ in counted if beside.snapshot_id is not None]
    posts = Counter(made.posts for made in landed)
    return {
        "ratio": times.ratio("beside", "alone"),
        "overwrites": len(counted),
        "landed": len(landed),
        "replans_max": max(posts, default=1) - 1,
        "overwrites_by_replans": {str(number - 1): posts[number] for number in sorted(posts)},
        "rival_rows": len(appended["landed_at"]),
        "rival_refused": appended["refused"],
        **{
            f"{side}_median_s": round(statistics.median(seconds), 2)
            for side, seconds in times.seconds.items()
        },
        **times.figures(),
    }


class BusyTable:
    """A table of many files, and overwrites of it."""

    def __init__(self, session: SparkSession, options: dict[str, str], folder: Path) -> None:
        """Make the table, with one file of one row for each partition."""
        self._session, self._options, self._folder = session, options, folder
        self.name = f"bench.busy_{uuid.uuid4().hex[:8]}"
        self.overwrites: list[Overwrite] = []
        self._pauses = random.Random(7)
        session.sql("CREATE NAMESPACE IF NOT EXISTS lake.bench")
        session.sql(
            f"CREATE TABLE lake.{self.name} (id bigint, part int) USING iceberg "
            "PARTITIONED BY (part) TBLPROPERTIES ('write.distribution-mode' = 'none')"
        )
        apart = FILES // MANIFESTS
        for first in range(0, FILES, apart):
            rows = session.range(first, first + apart, 1, 2)
            rows.selectExpr("id", "cast(id AS int) AS part").writeTo(f"lake.{self.name}").append()
        self._check_files()

    def overwrite(self) -> Overwrite:
        """Replace partitions once; a refusal for good is recorded, not raised."""
        number = len(self.overwrites) + 1
        source = str(self._folder / f"{self.name}-{number}.parquet")
        rows = [(row, part) for part, ids in self.rows_of(number).items() for row in sorted(ids)]
        columns = dict(zip(_SCHEMA.names, zip(*rows, strict=True), strict=True))
        pq.write_table(pa.table(columns, schema=_SCHEMA), source)
        run = hf.Run(
            f"bench-{self.name}-{number}",
            store="s3://lake/_holdfast",
            store_options=self._options,
            progress=False,
        )
        target = hf.IcebergTable(self.name, catalog=self._options)
        # Without a pause of any length, overwrites might fall into step with the other writer.
        time.sleep(self._pauses.uniform(0, _EVERY_S))
        started_at, started = time.time(), time.monotonic()
        landed: dict[str, int] = {}
        try:
            report = self.write(run, hf.scan_parquet(source, options={}), target)
            names = ("posts", "replaced_rows", "searched_files", "searched_again", "snapshot_id")
            landed = {name: getattr(report, name) for name in names}
        except CommitConflictError as error:
            print(f"  {self.name} {number}: {error}", flush=True)
        made = Overwrite(
            number=number, started_at=started_at, seconds=time.monotonic() - started, **landed
        )
        print(f"  {self.name} {number:3} {made.seconds:6.2f} s  {made.posts} posts", flush=True)
        self.overwrites.append(made)
        return made

    def rows_of(self, number: int) -> Mapping[int, set[int]]:
        """Return the ids that one of the runs writes, by partition."""
        return rows_of(number)

    def write(self, run: hf.Run, source: Any, target: hf.IcebergTable) -> hf.Report:  # noqa: ANN401
        """Replace rows of the table by those of a scan."""
        return run.overwrite_partitions(source, to=target)

    def problem(self, rival: Rival, replay: Replay | None = None) -> str:
        """Return what is wrong with the table, by a replay; empty if nothing is."""
        table = load_catalog("lake", **self._options).load_table(self.name)
        snapshots = sorted(table.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)
        history = [
            (snapshot.snapshot_id, snapshot.summary.additional_properties)
            for snapshot in snapshots
            if snapshot.summary is not None
        ]
        self._session.catalog.refreshTable(f"lake.{self.name}")
        rows = self._session.sql(f"SELECT part, id FROM lake.{self.name}").collect()
        return problem(history, self.overwrites, rival, sorted(map(tuple, rows)), replay)

    def drop(self) -> None:
        """Drop the table with its files."""
        self._session.sql(f"DROP TABLE lake.{self.name} PURGE")

    def _check_files(self) -> None:
        query = f"SELECT count(*) FROM lake.{self.name}."
        found = [self._session.sql(query + kind).collect()[0][0] for kind in ("files", "manifests")]
        if found != [FILES, MANIFESTS]:
            raise SystemExit(f"the table has {found[0]} files in {found[1]} manifests")


def rival_of(table: str, seconds: float) -> Rival:
    """Return the other writer of a table."""
    partitions = (CONTESTED, _LEFT_ALONE)
    return Rival(table=table, seconds=seconds, every_s=_EVERY_S, partitions=partitions)


def run() -> dict[str, Any]:
    """Measure and return the figures.

    Raises:
        SystemExit: A row is not where it must be.
    """
    stack = open_stack()
    session = open_session(stack.spark_catalog_conf("lake"))
    with tempfile.TemporaryDirectory(prefix="holdfast-busy-") as folder:
        options = stack.rest_catalog_properties()
        busy, quiet = (BusyTable(session, options, Path(folder)) for _ in range(2))
        for table in (busy, quiet) * _WARM_UP:
            table.overwrite()
        rival = rival_of(busy.name, _SECONDS)
        child = start("bench.overwrite_rival", rival.arguments())
        try:
            while child.poll() is None:
                # Each goes first as often as the other.
                order = (busy, quiet) if len(busy.overwrites) % 2 else (quiet, busy)
                for table in order:
                    table.overwrite()
        except BaseException:
            kill_whole(child)
            raise
        appended = answer(child)
        for table in (busy, quiet):
            if wrong := table.problem(rival):
                raise SystemExit(f"{table.name}: {wrong}")
            table.drop()
    pairs = list(zip(busy.overwrites, quiet.overwrites, strict=True))
    return {
        **figures(pairs, appended),
        "files": FILES,
        "manifests": MANIFESTS,
        "every_s": _EVERY_S,
    }
