"""A table whose rows a run replaces while others write to it, and what must be in it then.

Whatever others did, the rows in the end are those that the parent of our snapshot leaves, and ours:
mode(rows of the parent, source).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

import holdfast as hf
from holdfast.sinks.base import Outcome
from tests.integration.test_replaced_files import Lake
from tests.integration.wide_rows import differences

ROWS = 12


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A verb with its options, and the rows of the parent that it leaves."""

    name: str
    verb: str
    stays: str
    options: Mapping[str, Any] = field(default_factory=dict)


# The source has rows in partitions 0 and 1, the table in 0 to 3.
ALL = Mode(name="all", verb="overwrite", stays="false")
PARTITIONS = Mode(name="partitions", verb="overwrite_partitions", stays="p > 1")
MODES = (ALL, PARTITIONS)
# Of the files of the first snapshot, that of partition 0 goes whole and three in part; of those of
# the second, that of partition 0.
_FILTER = "p = 0 or id < 1020 or id = 9001"
WHERE = Mode(name="where", verb="overwrite", stays=f"NOT ({_FILTER})", options={"where": _FILTER})
# Rows that others add while a run is at work have ids from 9000 on.
_SPARES = {"isolation_level": "snapshot"}
SPARING = (
    Mode(name="all, snapshot", verb="overwrite", stays="id >= 9000", options=_SPARES),
    Mode(
        name="partitions, snapshot",
        verb="overwrite_partitions",
        stays="p > 1 OR id >= 9000",
        options=_SPARES,
    ),
)
SPARING_WHERE = Mode(
    name="where, snapshot",
    verb="overwrite",
    stays=f"{WHERE.stays} OR id >= 9000",
    options={**WHERE.options, **_SPARES},
)
BY_FILTER = (WHERE, SPARING_WHERE)


@dataclass
class Target:
    """A table with two snapshots, of 40 and 8 rows in four partitions, and a run that replaces."""

    lake: Lake
    ledger: dict[str, Any]
    outcomes: list[Outcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the table."""
        self.sql("CREATE TABLE {t} (id BIGINT, p INT) USING iceberg PARTITIONED BY (p)")
        for start, rows in ((1000, 40), (1100, 8)):
            old = self.lake.session.range(start, start + rows, 1, 1)
            old.selectExpr("id", "cast(id % 4 as int) p").writeTo(self.lake.name("t")).append()

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements; {t} is the table, {s} its name in the catalog. Return the last's rows."""
        names = {"t": self.lake.name("t"), "s": f"{self.lake.namespace}.t"}
        return [self.lake.sql(statement.format(**names)) for statement in statements][-1]

    def source(self) -> DataFrame:
        """Return the new rows."""
        return self.lake.session.range(0, ROWS, 1, 1).selectExpr("id", "cast(id % 2 as int) p")

    def replace(self, mode: Mode) -> hf.Report:
        """Start the run."""
        verb = getattr(hf.Run("r", **self.ledger), mode.verb)
        report: hf.Report = verb(self.source(), to=self.lake.name("t"), key="id", **mode.options)
        return report

    def snapshots(self) -> list[int]:
        """Return the ids of the snapshots of main, the newest first."""
        table = self.lake.load("t")
        head = table.metadata.current_snapshot_id
        ids = []
        while head is not None and (snapshot := table.snapshot_by_id(head)) is not None:
            ids.append(head)
            head = snapshot.parent_snapshot_id
        return ids

    def as_of(self, snapshot_id: int) -> DataFrame:
        """Return the rows of a snapshot."""
        query = f"SELECT * FROM {self.lake.name('t')} VERSION AS OF {snapshot_id}"
        return self.lake.session.sql(query)

    def check_rows(self, mode: Mode, parent: int) -> None:
        """Check the rows and the totals: the parent's rows that stay, and the source's."""
        stays = self.as_of(parent).where(mode.stays)
        self.check_equal(stays.unionByName(self.source(), allowMissingColumns=True))
        query = "SELECT count(*), sum(record_count) FROM {t}.files WHERE content = 0"
        snapshot = self.lake.load("t").current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        totals = snapshot.summary["total-data-files"], snapshot.summary["total-records"]
        assert self.sql(query) == [tuple(int(total or 0) for total in totals)]

    def check_equal(self, expected: DataFrame) -> None:
        """Check the rows, doubled ones too."""
        rows = self.lake.rows("t")
        all_columns = rows.limit(0).unionByName(expected, allowMissingColumns=True)
        assert differences(rows, all_columns) == 0
