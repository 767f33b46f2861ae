"""What an overwrite by a filter leaves is what Spark's own DELETE and INSERT leave.

For each filter two branches begin at the same rows: our run writes one, Spark the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

import holdfast as hf
from holdfast.sinks.base import Outcome
from holdfast.sinks.iceberg.catalog import open_catalog
from holdfast.sinks.iceberg.sink import IcebergSink
from tests.integration.test_replaced_files import Lake
from tests.integration.test_types_and_layouts import LAYOUTS
from tests.integration.wide_rows import COLUMNS, comparable, differences, table_ddl, wide_rows
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]


@pytest.fixture
def ours(lake: SparkSession, namespace: str, stack: Stack) -> Lake:
    """Return a fresh namespace."""
    return Lake(lake, namespace, open_catalog("lake", stack.rest_catalog_properties()))


@dataclass(frozen=True, kw_only=True)
class Filter:
    """A filter, as we take it and as Spark does."""

    ours: str
    theirs: str = ""
    # Whether Spark's own overwrite by a filter takes it: it removes whole files only.
    is_whole: bool = False

    @property
    def sql(self) -> str:
        """The condition in Spark's words."""
        return self.theirs or self.ours


@dataclass
class Twins:
    """A table; for each filter a branch that we have written, and one that Spark has."""

    lake: Lake
    ledger: Mapping[str, Any]
    filters: Sequence[Filter] = ()
    reports: list[hf.Report] = field(default_factory=list)
    # Spark fails on its own deletes where the column of an older partition spec was dropped.
    upkeep_of_deletes: ClassVar[Mapping[str, str]] = {}

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements; {t} is the table, {s} its name in the catalog. Return the last's rows."""
        names = {"t": self.lake.name("t"), "s": f"{self.lake.namespace}.t"}
        return [self.lake.sql(statement.format(**names)) for statement in statements][-1]

    def replace(self, source: DataFrame, filters: Sequence[Filter]) -> None:
        """Replace the rows of each filter by those rows of the source for which it is true."""
        self.filters = filters
        for at, each in enumerate(filters):
            self.sql(*(f"ALTER TABLE {{t}} CREATE BRANCH {who}{at}" for who in ("ours", "theirs")))
            rows = source.where(f"coalesce({each.sql}, false)")
            target = hf.IcebergTable(self.lake.name("t"), branch=f"ours{at}")
            run = hf.Run(f"filter-{at}", **self.ledger)
            report = run.overwrite(rows, to=target, key="id", where=each.ours, allow_empty=True)
            self.reports.append(report)
            theirs = rows.coalesce(1).writeTo(f"{self.lake.name('t')}.branch_theirs{at}")
            if each.is_whole:
                theirs.overwrite(expr(each.sql))
            else:
                self.sql(f"DELETE FROM {{t}}.branch_theirs{at} WHERE {each.sql}")
                theirs.append()

    def rows(self, branch: str) -> DataFrame:
        """Return the rows of a branch."""
        query = f"SELECT * FROM {self.lake.name('t')} VERSION AS OF '{branch}'"
        return self.lake.session.sql(query)

    def labelled(self, who: str) -> DataFrame:
        """Return the rows of all branches of ours or theirs, each with its filter."""
        found = [
            comparable(self.rows(f"{who}{at}")).withColumn("filter", expr(f"{at}"))
            for at in range(len(self.filters))
        ]
        joined = found[0]
        for more in found[1:]:
            joined = joined.unionAll(more)
        return joined

    def check(self) -> None:
        """Check all rows: none is in one branch only, or more often in one than in the other."""
        left, right = self.labelled("ours"), self.labelled("theirs")
        wrong = left.exceptAll(right).unionAll(right.exceptAll(left)).select("filter", "id")
        assert [(self.filters[row[0]].ours, row[1]) for row in wrong.collect()] == []

    def head(self, branch: str) -> int:
        """Return the newest snapshot of a branch."""
        ((found,),) = self.sql(f"SELECT snapshot_id FROM {{t}}.refs WHERE name = '{branch}'")
        return int(found)

    def summary(self, branch: str) -> dict[str, str]:
        """Return the summary of a branch's newest snapshot."""
        query = (
            "SELECT s.operation, s.summary FROM {t}.snapshots s JOIN {t}.refs r "
            f"ON r.snapshot_id = s.snapshot_id WHERE r.name = '{branch}'"
        )
        ((operation, summary),) = self.sql(query)
        return {"operation": operation, **dict(summary)}

    def removed_by_delete(self, at: int) -> dict[str, str]:
        """Return what Spark's DELETE says that it removed; its INSERT came after it."""
        query = (
            "SELECT d.summary FROM {t}.refs r JOIN {t}.snapshots s USING (snapshot_id) "
            f"JOIN {{t}}.snapshots d ON d.snapshot_id = s.parent_id WHERE name = 'theirs{at}'"
        )
        ((summary,),) = self.sql(query)
        return dict(summary)

    def check_totals(self, at: int) -> None:
        """Check that the totals of our branch are those of its files."""
        found = self.summary(f"ours{at}")
        ((files, rows, deletes, size),) = self.sql(
            "SELECT count_if(content = 0), sum(if(content = 0, record_count, 0)), "
            "count_if(content > 0), sum(file_size_in_bytes) "
            f"FROM {{t}}.files VERSION AS OF 'ours{at}'"
        )
        names = ("total-data-files", "total-records", "total-delete-files", "total-files-size")
        assert {name: int(found[name]) for name in names} == dict(
            zip(names, (files, rows, deletes, size), strict=True)
        )

    def keeps_working(self, at: int) -> None:
        """Let Spark maintain the table with our rows as its main branch: no row may change."""
        self.sql(f"CALL lake.system.fast_forward('{{s}}', 'main', 'ours{at}')")
        theirs = self.rows(f"theirs{at}").localCheckpoint()
        calls = {
            "rewrite_manifests": "use_caching => false",
            **self.upkeep_of_deletes,
            "rewrite_data_files": "options => map('rewrite-all', 'true')",
            "expire_snapshots": "retain_last => 1, older_than => TIMESTAMP '2100-01-01 00:00:00'",
        }
        for name, options in calls.items():
            self.sql(f"CALL lake.system.{name}(table => '{{s}}', {options})")
            assert differences(self.lake.rows("t"), theirs) == 0, name


# ---- Every type and layout

EVERYWHERE = (
    Filter(ours="small not in (3, 7) and big > 500000000000"),
    Filter(
        ours="f64 is nan or (f32 > 2 and place.x < 6)",
        theirs="isnan(f64) or (f32 > 2 and not isnan(f32) and place.x < 6)",
    ),
    Filter(ours="text is null or day > '1970-01-20'", theirs="text is null or day > '1970-01-20'"),
)
# What is decided by partitions alone.
ALIGNED = {
    "unpartitioned": Filter(ours="id >= 0", is_whole=True),
    "identity": Filter(ours="text in ('t10', 't11') or text is null", is_whole=True),
    "identity of each plain type": Filter(ours="flag = true", is_whole=True),
    "identity of times": Filter(
        ours="local_at >= '2000-01-01T08:00:00' or at is null",
        theirs="local_at >= timestamp_ntz'2000-01-01 08:00:00' or at is null",
        is_whole=True,
    ),
    "identity of floats": Filter(ours="f64 is null", is_whole=True),
    "bucket": Filter(ours="text is null", is_whole=True),
    "bucket of other types": Filter(ours="dec38 is null", is_whole=True),
    "truncate": Filter(ours="text like 't1%'", is_whole=True),
    "truncate of decimals": Filter(ours="dec9 >= 10.5", is_whole=True),
    "day": Filter(
        ours="at >= '1970-01-03T00:00:00+00:00'",
        theirs="at >= timestamp'1970-01-03 00:00:00+00:00'",
        is_whole=True,
    ),
    "hour": Filter(
        ours="at >= '1970-01-03T05:00:00+00:00'",
        theirs="at >= timestamp'1970-01-03 05:00:00+00:00'",
        is_whole=True,
    ),
    "month and year": Filter(
        ours="day >= '1970-01-01'", theirs="day >= date'1970-01-01'", is_whole=True
    ),
    "nested": Filter(ours="place.y.name in ('n10', 'n11')", is_whole=True),
}
# Not those of delete files: Spark keeps some that apply to no file any more. `check_totals` counts
# ours.
OF_ROWS = (
    "operation",
    "added-records",
    "deleted-data-files",
    "deleted-records",
    "changed-partition-count",
    "total-records",
)
OFTEN = ("truncate",)
# Spark's own upkeep works after it; where there are many partitions it takes minutes.
KEEP_WORKING = ("unpartitioned", "month and year")


def wide_twins(lake: Lake, ledger: Mapping[str, Any], layout: str) -> Twins:
    """Make a table of every type: files of NULL only, and others, with deletes in some."""
    twins, rows, columns = Twins(lake, ledger), wide_rows(lake.session), list(COLUMNS)
    twins.sql(
        f"CREATE TABLE {{t}} ({table_ddl()}) USING iceberg {layout} "
        "TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')"
    )
    rows.coalesce(1).writeTo(lake.name("t")).append()
    some = rows.where("id in (1, 2, 7, 10, 12, 21)").selectExpr("id + 100 as id", *columns)
    nulls = [f"cast(null as {kind}) as {name}" for name, (kind, _) in COLUMNS.items()]
    empty = lake.session.range(400, 403).selectExpr("id", *nulls)
    some.unionAll(empty).coalesce(1).writeTo(lake.name("t")).append()
    twins.sql("DELETE FROM {t} WHERE id IN (3, 11, 17, 110, 401)")
    return twins


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.slow], id=name)
        for name in LAYOUTS
    ],
)
def test_the_rows_that_go_and_come_are_those_of_spark(
    ours: Lake, ledger: dict[str, Any], layout: str
) -> None:
    """Every type and layout, with NULL and NaN, by whole files and by rows; main is untouched."""
    twins = wide_twins(ours, ledger, LAYOUTS[layout])
    before = twins.head("main")
    source = wide_rows(ours.session, 25).selectExpr("id + 1000 as id", *COLUMNS)
    twins.replace(source, [ALIGNED[layout], *EVERYWHERE])
    twins.check()
    assert twins.head("main") == before
    _, *by_row = twins.reports
    assert min(report.replaced_rows for report in twins.reports) > 0
    assert max(report.searched_files for report in by_row) > 0
    found, theirs = twins.summary("ours0"), twins.summary("theirs0")
    assert {name: found.get(name) for name in OF_ROWS} == {
        name: theirs.get(name) for name in OF_ROWS
    }
    for at in range(len(twins.filters)):
        twins.check_totals(at)
    if layout in KEEP_WORKING:
        twins.keeps_working(1)


# ---- Tables that have changed

EVOLVED = """
CREATE TABLE {t} (id BIGINT, a INT, b STRING, f FLOAT, d DECIMAL(9, 2), s STRUCT<x: INT>)
    USING iceberg PARTITIONED BY (b, truncate(10, a))
    TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read');
INSERT INTO {t} SELECT id, cast(id as int), if(id % 3 = 0, null, concat('b', id % 3)),
    cast(id / 4 as float), cast(id / 8 as decimal(9, 2)), named_struct('x', cast(id as int))
    FROM range(0, 20);
ALTER TABLE {t} DROP PARTITION FIELD b;
INSERT INTO {t} SELECT id, cast(id as int), 'old', cast('NaN' as float), null, null
    FROM range(20, 30);
DELETE FROM {t} WHERE id IN (3, 22);
ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode'='copy-on-write');
ALTER TABLE {t} DROP COLUMN b;
ALTER TABLE {t} ALTER COLUMN a TYPE BIGINT;
ALTER TABLE {t} ALTER COLUMN f TYPE DOUBLE;
ALTER TABLE {t} ALTER COLUMN d TYPE DECIMAL(18, 2);
ALTER TABLE {t} RENAME COLUMN a TO number;
ALTER TABLE {t} ADD COLUMN b STRING;
ALTER TABLE {t} ADD PARTITION FIELD bucket(2, b);
INSERT INTO {t} SELECT id, id, cast('NaN' as double), cast(id / 8 as decimal(18, 2)),
    named_struct('x', cast(id as int)), if(id % 2 = 0, 'new', null) FROM range(30, 40)
"""
OF_EVOLVED = (
    Filter(ours="number >= 5 and number < 25"),
    Filter(ours="b is null"),
    Filter(ours="b = 'new' or number in (1, 21)"),
    Filter(ours="f = 0.5 or d > 1.5"),
    Filter(ours="f is nan or s.x >= 18", theirs="isnan(f) or s.x >= 18"),
)


def test_rows_go_from_files_of_earlier_specs_and_schemas(
    ours: Lake, ledger: dict[str, Any]
) -> None:
    """A partition column that was dropped, and added again under its name; wider types."""
    twins = Twins(ours, ledger)
    twins.sql(*EVOLVED.split(";"))
    source = ours.session.range(1000, 1040).selectExpr(
        "id",
        "id % 40 as number",
        "cast(if(id % 5 = 0, 'NaN', id % 7 / 2) as double) as f",
        "cast(id % 3 as decimal(18, 2)) as d",
        "named_struct('x', cast(id % 30 as int)) as s",
        "if(id % 2 = 0, null, 'new') as b",
    )
    twins.replace(source, OF_EVOLVED)
    twins.check()
    for at in range(len(OF_EVOLVED)):
        twins.check_totals(at)
        found, theirs = twins.summary(f"ours{at}"), twins.summary(f"theirs{at}")
        assert (found["operation"], found["total-records"]) == (
            "overwrite",
            theirs["total-records"],
        )
        # A copy-on-write DELETE, which removes the same files as ours.
        deleted, removed = twins.removed_by_delete(at), ("deleted-data-files", "deleted-records")
        assert {name: found.get(name) for name in removed} == {
            name: deleted.get(name) for name in removed
        }
    ((specs,),) = twins.sql(
        "SELECT count(DISTINCT spec_id) FROM {t}.files VERSION AS OF 'ours0' WHERE content = 0"
    )
    assert specs == 3
    assert all(report.searched_files > 0 for report in twins.reports)
    twins.keeps_working(0)


# ---- What readers of changes see


def test_readers_of_changes_see_the_rows_that_went_and_came(
    ours: Lake, ledger: dict[str, Any]
) -> None:
    """Rows that stay, in a new file, are no change; what adds rows only is an append."""
    twins = Twins(ours, ledger)
    twins.sql(
        "CREATE TABLE {t} (id BIGINT, p INT) USING iceberg PARTITIONED BY (p)",
        "INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, cast(id % 2 as int) FROM range(0, 40)",
    )
    name, ids = ours.name("t"), []
    for run_id, where, first in (("some", "id < 10", 5), ("none", "id >= 500", 500)):
        rows = ours.session.range(first, first + 3).selectExpr("id", "1 as p")
        report = hf.Run(run_id, **ledger).overwrite(rows, to=name, key="id", where=where)
        ids.append(report.snapshot_id)
    twins.sql("INSERT INTO {t} VALUES (700, 0)")
    ((begin,), *_, (end,)) = twins.sql(
        "SELECT snapshot_id FROM {t}.snapshots ORDER BY committed_at"
    )
    operations = twins.sql("SELECT operation FROM {t}.snapshots ORDER BY committed_at")
    assert operations == [("append",), ("overwrite",), ("append",), ("append",)]
    twins.sql(
        "CALL lake.system.create_changelog_view(table => '{s}', changelog_view => 'changed', "
        f"options => map('start-snapshot-id', '{begin}'))"
    )
    changes = twins.sql("SELECT _change_type, _commit_snapshot_id, id, p FROM changed")
    # A row that is replaced by an equal one is no change.
    gone = [("DELETE", ids[0], id_, id_ % 2) for id_ in range(10) if id_ not in (5, 7)]
    came = [("INSERT", ids[0], 6, 1)]
    added = [("INSERT", ids[1], id_, 1) for id_ in (500, 501, 502)] + [("INSERT", end, 700, 0)]
    assert sorted(changes) == sorted(gone + came + added)
    reader = ours.session.read.format("iceberg").option("start-snapshot-id", str(begin))
    appended = reader.option("end-snapshot-id", str(end)).load(name).collect()
    assert sorted(row["id"] for row in appended) == [500, 501, 502, 700]


# ---- A branch as the target


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A verb with its options, and how Spark does the same to a branch."""

    name: str
    sql: str
    options: Mapping[str, Any] = field(default_factory=dict)


_SOME = {"where": "id < 10 or p = 1"}
_DELETE = "DELETE FROM {t}.branch_theirs WHERE (id < 10 OR p = 1)"
ON_A_BRANCH = {
    "overwrite": Verb(name="overwrite", sql="TRUNCATE TABLE {t}.branch_theirs"),
    "overwrite_partitions": Verb(
        name="overwrite_partitions", sql="DELETE FROM {t}.branch_theirs WHERE p IN (0, 1)"
    ),
    "where": Verb(name="overwrite", sql=_DELETE, options=_SOME),
    "where, snapshot": Verb(
        name="overwrite",
        sql=_DELETE + " AND id < 900",
        options={**_SOME, "isolation_level": "snapshot"},
    ),
}


@pytest.mark.parametrize("verb", ON_A_BRANCH)
def test_of_a_branch_rows_are_replaced_and_main_stays(
    ours: Lake, ledger: dict[str, Any], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Rows that others add to the branch or to main meanwhile are where they belong."""
    twins, chosen = Twins(ours, ledger), ON_A_BRANCH[verb]
    twins.sql(
        "CREATE TABLE {t} (id BIGINT, p INT) USING iceberg PARTITIONED BY (p)",
        "INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, cast(id % 4 as int) FROM range(0, 40)",
        "ALTER TABLE {t} CREATE BRANCH audit",
        "INSERT INTO {t}.branch_audit VALUES (100, 1), (101, 2)",
        "INSERT INTO {t} VALUES (200, 1)",
    )
    insert = "INSERT INTO {{t}}.branch_{} VALUES (901, 1), (902, 2)"
    left = [[insert.format("audit")], ["INSERT INTO {t} VALUES (201, 0)"]]
    post = IcebergSink.post

    def act_first(sink: IcebergSink, *arguments: Any) -> Outcome:  # noqa: ANN401
        if left:
            twins.sql(*left.pop())
        return post(sink, *arguments)

    monkeypatch.setattr(IcebergSink, "post", act_first)
    source = ours.session.range(0, 6).selectExpr("id", "cast(id % 2 as int) as p")
    target = hf.IcebergTable(ours.name("t"), branch="audit")
    twins.sql("ALTER TABLE {t} CREATE BRANCH theirs AS OF VERSION " + str(twins.head("audit")))
    twins.sql(insert.format("theirs"), chosen.sql)
    source.writeTo(f"{ours.name('t')}.branch_theirs").append()
    report = getattr(hf.Run("r", **ledger), chosen.name)(
        source, to=target, key="id", **chosen.options
    )
    assert (left, twins.head("audit")) == ([], report.snapshot_id)
    assert differences(twins.rows("audit"), twins.rows("theirs")) == 0
    main = sorted(row[0] for row in twins.sql("SELECT id FROM {t}"))
    assert main == [*range(40), 200, 201]
