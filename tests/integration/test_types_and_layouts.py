"""What Holdfast writes is what Spark's own Iceberg writer writes, for every type and layout."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from tests.integration.wide_rows import differences, table_ddl, wide_rows

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

LAYOUTS = {
    "unpartitioned": "",
    "identity": "PARTITIONED BY (text)",
    "identity of each plain type": "PARTITIONED BY (flag, small, day, dec9)",
    "identity of times": "PARTITIONED BY (at, local_at)",
    "identity of floats": "PARTITIONED BY (f64)",
    "bucket": "PARTITIONED BY (bucket(4, id), bucket(3, text))",
    "bucket of other types": "PARTITIONED BY (bucket(3, at), bucket(3, dec38), bucket(2, day))",
    "truncate": "PARTITIONED BY (truncate(2, text), truncate(10, big))",
    "truncate of decimals": "PARTITIONED BY (truncate(50, dec9))",
    "day": "PARTITIONED BY (days(at))",
    "hour": "PARTITIONED BY (hours(at))",
    "month and year": "PARTITIONED BY (months(local_at), years(day))",
    "nested": "PARTITIONED BY (place.y.name)",
}


def make_pair(session: SparkSession, namespace: str, layout: str) -> tuple[str, str]:
    """Create two tables of one layout and return their names."""
    names = f"lake.{namespace}.ours", f"lake.{namespace}.theirs"
    for name in names:
        session.sql(f"CREATE TABLE {name} ({table_ddl()}) USING iceberg {layout}")
    return names


def total(session: SparkSession, table: str, name: str) -> str:
    """Return one figure of the newest snapshot's summary."""
    summary = session.sql(f"SELECT summary FROM {table}.snapshots ORDER BY committed_at DESC")
    return str(summary.first()["summary"][name])  # type: ignore[index]


@pytest.mark.sampled
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_type_and_layout_reads_back_as_from_sparks_own_writer(
    lake: SparkSession, namespace: str, ledger: dict[str, Any], layout: str
) -> None:
    """The same rows are in both tables, in the same partitions, with the same totals."""
    ours, theirs = make_pair(lake, namespace, LAYOUTS[layout])
    df = wide_rows(lake)
    report = hf.Run(layout, **ledger).append(df, to=ours, key="id")
    df.writeTo(theirs).append()
    assert report.rows == df.count()
    assert differences(lake.table(ours), df) == 0
    assert differences(lake.table(ours), lake.table(theirs)) == 0
    if LAYOUTS[layout]:
        partitions = [
            lake.table(f"{name}.partitions").select("partition", "record_count", "spec_id")
            for name in (ours, theirs)
        ]
        assert differences(*partitions) == 0
    for figure in ("added-records", "total-records"):
        assert total(lake, ours, figure) == total(lake, theirs, figure)
    files = lake.table(f"{ours}.files").count()
    assert total(lake, ours, "total-data-files") == str(files)
    assert report.files == files
    sizes = lake.sql(f"SELECT sum(file_size_in_bytes) s FROM {ours}.files").first()
    assert total(lake, ours, "total-files-size") == str(sizes["s"])  # type: ignore[index]


def test_a_changed_partition_spec_is_followed(
    lake: SparkSession, namespace: str, ledger: dict[str, Any]
) -> None:
    """Rows from before and after the change are all there, in the partitions that Spark makes."""
    ours, theirs = make_pair(lake, namespace, "PARTITIONED BY (days(at))")
    df = wide_rows(lake)
    evolve = ("ADD PARTITION FIELD bucket(4, id)", "DROP PARTITION FIELD days(at)")
    for step, change in enumerate(("", *evolve)):
        for table in (ours, theirs):
            if change:
                lake.sql(f"ALTER TABLE {table} {change}")
        hf.Run(f"step-{step}", **ledger).append(df, to=ours, key="id")
        df.writeTo(theirs).append()
    assert differences(lake.table(ours), lake.table(theirs)) == 0
    partitions = [
        lake.table(f"{name}.partitions").select("partition", "record_count", "spec_id")
        for name in (ours, theirs)
    ]
    assert differences(*partitions) == 0
    assert total(lake, ours, "total-records") == str(3 * df.count())


FILTERS = {
    "partition": ("PARTITIONED BY (bucket(4, id))", "id = 7"),
    "day": ("PARTITIONED BY (days(at))", "at > timestamp'1970-01-03 00:00:00'"),
    "string statistics": ("", "text > 'ø'"),
    "number statistics": ("", "big < 300000000000"),
    "time statistics": ("", "at > timestamp'1970-01-05 00:00:00'"),
    "decimal statistics": ("", "dec18 > 5"),
    "null": ("", "text IS NULL"),
    "nested statistics": ("", "place.x > 1000"),
}


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_prunes_as_many_files_as_in_sparks_own_table(
    lake: SparkSession, namespace: str, ledger: dict[str, Any], name: str
) -> None:
    """Partitions and statistics let a reader skip the same files, and no row is hidden.

    Method: both writers leave a file per task and partition, and the scan itself counts the files
    that remain after pruning.
    """
    layout, condition = FILTERS[name]
    ours, theirs = make_pair(lake, namespace, layout)
    # Otherwise Spark gathers each partition's rows in one task first: other files, nothing to
    # compare.
    lake.sql(
        f"ALTER TABLE {theirs} SET TBLPROPERTIES ('write.distribution-mode'='none', "
        "'write.spark.fanout.enabled'='true')"
    )
    df = wide_rows(lake)
    hf.Run(name, **ledger).append(df, to=ours, key="id")
    df.writeTo(theirs).append()
    expected = df.where(condition)
    assert differences(lake.table(ours).where(condition), expected) == 0
    planned = {table: planned_files(lake, table, condition) for table in (ours, theirs)}
    assert planned[ours] == planned[theirs]
    everything = lake.table(f"{ours}.files").count()
    if name != "null":  # Every file holds NULLs: there is nothing to prune.
        assert planned[ours] < everything  # It does prune, so the test is not vacuous.


def planned_files(session: SparkSession, table: str, condition: str) -> int:
    """Return how many data files a filtered scan reads, by the scan's own metric."""
    query: Any = session.sql(f"SELECT * FROM {table} WHERE {condition}")
    plan = query._jdf.queryExecution().executedPlan()  # noqa: SLF001 - there is no public way.
    query.collect()
    leaves = plan.collectLeaves()
    metrics = leaves.head().metrics()
    return int(metrics.get("resultDataFiles").get().value())


def test_sparks_own_maintenance_works_on_the_table(
    lake: SparkSession, namespace: str, ledger: dict[str, Any]
) -> None:
    """Manifests, data files and snapshots can be rewritten and expired; rows can be deleted."""
    table = f"lake.{namespace}.kept"
    lake.sql(f"CREATE TABLE {table} ({table_ddl()}) USING iceberg PARTITIONED BY (bucket(2, id))")
    df = wide_rows(lake)
    for part in range(3):
        rows = df.where(f"id % 3 = {part}")
        hf.Run(f"part-{part}", **ledger).append(rows, to=table, key="id")
    name = f"{namespace}.kept"
    assert differences(lake.table(table), df) == 0
    rewritten = lake.sql(f"CALL lake.system.rewrite_manifests('{name}')").first()
    assert rewritten["rewritten_manifests_count"] >= 3  # type: ignore[index]
    assert differences(lake.table(table), df) == 0
    lake.sql(f"DELETE FROM {table} WHERE id = 11")
    left = df.where("id <> 11")
    assert differences(lake.table(table), left) == 0
    lake.sql(
        f"CALL lake.system.rewrite_data_files(table => '{name}', "
        "options => map('rewrite-all', 'true'))"
    )
    assert differences(lake.table(table), left) == 0
    lake.sql(
        f"CALL lake.system.expire_snapshots(table => '{name}', "
        "older_than => timestamp'2100-01-01 00:00:00', retain_last => 1)"
    )
    assert lake.table(f"{table}.snapshots").count() == 1
    assert differences(lake.table(table), left) == 0
    entries = lake.sql(f"SELECT * FROM {table}.entries WHERE snapshot_id IS NULL")
    assert entries.count() == 0
