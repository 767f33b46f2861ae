"""What an upsert leaves is what Spark's own MERGE leaves, in the mode that the table asks for.

For each key two branches begin at the same rows: our run writes one, Spark the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.sinks.iceberg.catalog import open_catalog
from tests.integration.test_replaced_files import Lake
from tests.integration.test_types_and_layouts import LAYOUTS
from tests.integration.test_where_like_spark import Twins
from tests.integration.wide_rows import COLUMNS, differences, table_ddl, wide_rows
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

MERGE = """MERGE INTO {t}.branch_{branch} t USING {source} s ON {on}
WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""


@pytest.fixture
def ours(lake: SparkSession, namespace: str, stack: Stack) -> Lake:
    """Return a fresh namespace."""
    return Lake(lake, namespace, open_catalog("lake", stack.rest_catalog_properties()))


class Merges(Twins):
    """A table; for each key a branch that we have written, and one that Spark has."""

    upkeep_of_deletes: ClassVar[Mapping[str, str]] = {
        "rewrite_position_delete_files": "options => map('rewrite-all', 'true')"
    }

    def merge(self, source: DataFrame, keys: Sequence[str]) -> None:
        """Merge the rows of a source that have all columns of a key, once for each key."""
        for at, key in enumerate(keys):
            on = key.split()
            self.sql(*(f"ALTER TABLE {{t}} CREATE BRANCH {who}{at}" for who in ("ours", "theirs")))
            rows = source.where(" and ".join(f"{name} is not null" for name in on))
            target = hf.IcebergTable(self.lake.name("t"), branch=f"ours{at}")
            run = hf.Run(f"key-{at}", **self.ledger)
            self.reports.append(run.upsert(rows, to=target, on=on))
            rows.createOrReplaceTempView("source")
            equal = " and ".join(f"t.{name} = s.{name}" for name in on)
            names = {"t": self.lake.name("t"), "branch": f"theirs{at}", "source": "source"}
            self.lake.sql(MERGE.format(**names, on=equal))

    def check_keys(self, keys: Sequence[str]) -> None:
        """Check all rows: none is in one branch only, or more often in one than in the other."""
        for at, key in enumerate(keys):
            assert differences(self.rows(f"ours{at}"), self.rows(f"theirs{at}")) == 0, key
            found, theirs = self.summary(f"ours{at}"), self.summary(f"theirs{at}")
            assert found["operation"] == theirs["operation"]
            live = [
                int(each["total-records"]) - int(each["total-position-deletes"])
                for each in (found, theirs)
            ]
            # Spark leaves deletes of files that it has replaced, which its totals then count.
            assert live[1] <= live[0] == self.rows(f"ours{at}").count()

    def keeps_working(self, at: int) -> None:
        """Let Spark maintain the table, and then delete rows."""
        super().keeps_working(at)
        theirs = self.rows(f"theirs{at}").localCheckpoint()
        self.sql("DELETE FROM {t} WHERE id % 3 = 0")
        assert differences(self.lake.rows("t"), theirs.where("id % 3 != 0 OR id IS NULL")) == 0

    def check_mode(self, mode: str) -> None:
        """Check that deletes were written in one mode only, and that PyIceberg reads the rows."""
        written = any(report.delete_files for report in self.reports)
        assert written == (mode == "merge-on-read")
        table = self.lake.load("t")
        for at, report in enumerate(self.reports):
            found = self.summary(f"ours{at}")
            assert int(found.get("added-delete-files", 0)) == report.delete_files
            self.check_totals(at)
            scan = table.scan(snapshot_id=self.head(f"ours{at}"))
            assert scan.to_arrow().num_rows == self.rows(f"theirs{at}").count()


# ---- Every type and layout

KEYS = ("id", "big", "dec38 dec9", "day text", "at local_at", "raw", "small dec18 flag")
OFTEN = ("identity of each plain type",)
KEEP_WORKING = ("unpartitioned", "identity of each plain type")
MODES = ("copy-on-write", "merge-on-read")

each_mode = pytest.mark.parametrize("mode", MODES)


@each_mode
@pytest.mark.sampled
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.slow], id=name)
        for name in LAYOUTS
    ],
)
def test_the_rows_are_those_of_sparks_merge(
    ours: Lake, ledger: dict[str, Any], layout: str, mode: str
) -> None:
    """Keys of every type, one column and several; rows that change their partition; deletes."""
    twins, rows = Merges(ours, ledger), wide_rows(ours.session)
    twins.sql(
        f"CREATE TABLE {{t}} ({table_ddl()}) USING iceberg {LAYOUTS[layout]} "
        "TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read', "
        f"'write.merge.mode'='{mode}')"
    )
    rows.where("id < 15").coalesce(1).writeTo(ours.name("t")).append()
    rows.where("id >= 15").coalesce(1).writeTo(ours.name("t")).append()
    twins.sql("DELETE FROM {t} WHERE id IN (3, 11, 22, 25)")
    source = wide_rows(ours.session, 60).where("id > 20 or id in (2, 3)")
    changed = {
        "id": "if(id % 2 = 0, id, id + 1000)",
        "f64": "f64 - 1",
        "tags": "map('new', id)",
        "place": "struct(1.5D as x, struct('elsewhere' as name, array('q') as codes) as y)",
    }
    columns = [f"{changed.get(name, name)} as {name}" for name in ("id", *COLUMNS)]
    twins.merge(source.selectExpr(*columns), KEYS)
    twins.check_keys(KEYS)
    assert min(report.replaced_rows for report in twins.reports) > 5
    twins.check_mode(mode)
    if layout in KEEP_WORKING:
        twins.keeps_working(1)


# ---- Tables that have changed

EVOLVED = """
CREATE TABLE {t} (id INT, b STRING, d DECIMAL(9, 2), u STRING) USING iceberg
    PARTITIONED BY (b, truncate(10, id)) TBLPROPERTIES ('format-version'='2');
INSERT INTO {t} SELECT cast(id as int), if(id % 3 = 0, null, concat('b', id % 3)),
    cast(id / 8 as decimal(9, 2)), concat('u', id) FROM range(0, 20);
ALTER TABLE {t} DROP PARTITION FIELD b;
INSERT INTO {t} SELECT cast(id as int), concat('b', id), cast(id as decimal(9, 2)), concat('u', id)
    FROM range(20, 30);
ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT;
ALTER TABLE {t} ALTER COLUMN d TYPE DECIMAL(18, 2);
ALTER TABLE {t} RENAME COLUMN u TO name;
ALTER TABLE {t} ADD COLUMN u STRING;
ALTER TABLE {t} ADD PARTITION FIELD bucket(2, name);
INSERT INTO {t} SELECT id, concat('b', id), cast(id as decimal(18, 2)), concat('u', id), 'v'
    FROM range(30, 40)
"""
OF_EVOLVED = ("id", "name", "d", "b name", "id u")


@each_mode
def test_keys_are_found_in_files_of_earlier_specs_and_schemas(
    ours: Lake, ledger: dict[str, Any], mode: str
) -> None:
    """Wider types, a renamed column, another under its old name, three partition specs."""
    twins = Merges(ours, ledger)
    twins.sql(*EVOLVED.split(";"))
    twins.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('write.merge.mode'='{mode}')")
    source = ours.session.range(5, 50).selectExpr(
        "id",
        "concat('b', if(id < 20, id % 3, id)) as b",
        "cast(if(id < 20, id / 8, id) as decimal(18, 2)) as d",
        "concat('u', id) as name",
        "'v' as u",
    )
    twins.merge(source, OF_EVOLVED)
    twins.check_keys(OF_EVOLVED)
    found = [report.replaced_rows for report in twins.reports]
    assert found == [35, 35, 35, 30, 10]
    twins.check_mode(mode)
    twins.keeps_working(1)
