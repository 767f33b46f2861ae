"""What an upsert with a delete column leaves is what Spark's own MERGE leaves."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.sinks.iceberg.catalog import open_catalog
from tests.integration.test_replaced_files import Lake
from tests.integration.test_types_and_layouts import LAYOUTS
from tests.integration.test_upsert_like_spark import Merges
from tests.integration.wide_rows import COLUMNS, table_ddl, wide_rows
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

MERGE = """MERGE INTO {t}.branch_{branch} t USING {source} s ON {on}
WHEN MATCHED AND s.deleted THEN DELETE
WHEN MATCHED THEN UPDATE SET {all}
WHEN NOT MATCHED AND NOT coalesce(s.deleted, false) THEN INSERT ({names}) VALUES ({values})"""
KEYS = ("id", "big", "dec38 dec9", "day text", "at local_at", "raw", "small dec18 flag")
LAYOUT = "identity of each plain type"


class Deletes(Merges):
    """A table, and for each key a branch of ours and one of Spark's."""

    def merge_or_delete(self, source: DataFrame, keys: tuple[str, ...]) -> None:
        """Merge a source whose column `deleted` says which rows delete, once for each key."""
        columns = ["id", *COLUMNS]
        for at, key in enumerate(keys):
            on = key.split()
            self.sql(*(f"ALTER TABLE {{t}} CREATE BRANCH {who}{at}" for who in ("ours", "theirs")))
            rows = source.where(" and ".join(f"{name} is not null" for name in on))
            target = hf.IcebergTable(self.lake.name("t"), branch=f"ours{at}")
            run = hf.Run(f"key-{at}", **self.ledger)
            # Whatever a row that deletes holds besides its key is not looked at.
            given = [
                name if name in on else f"if(deleted, null, {name}) as {name}" for name in columns
            ]
            self.reports.append(
                run.upsert(
                    rows.selectExpr(*given, "deleted"), to=target, on=on, delete_column="deleted"
                )
            )
            rows.createOrReplaceTempView("source")
            texts = {
                "t": self.lake.name("t"),
                "branch": f"theirs{at}",
                "source": "source",
                "on": " and ".join(f"t.{name} = s.{name}" for name in on),
                "all": ", ".join(f"{name} = s.{name}" for name in columns),
                "names": ", ".join(columns),
                "values": ", ".join(f"s.{name}" for name in columns),
            }
            self.lake.sql(MERGE.format(**texts))


@pytest.mark.sampled
@pytest.mark.parametrize("deleting", ["id % 3 = 0", "id % 2 = 0 or id > 40", "true"])
def test_the_rows_are_those_of_sparks_merge(
    lake: SparkSession, namespace: str, stack: Stack, ledger: dict[str, Any], deleting: str
) -> None:
    """Keys of every type, one column and several; flags that are NULL; keys that no row has."""
    ours = Lake(lake, namespace, open_catalog("lake", stack.rest_catalog_properties()))
    twins, rows = Deletes(ours, ledger), wide_rows(ours.session)
    twins.sql(
        f"CREATE TABLE {{t}} ({table_ddl()}) USING iceberg {LAYOUTS[LAYOUT]} "
        "TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')"
    )
    rows.where("id < 15").coalesce(1).writeTo(ours.name("t")).append()
    rows.where("id >= 15").coalesce(1).writeTo(ours.name("t")).append()
    twins.sql("DELETE FROM {t} WHERE id IN (3, 11, 22, 25)")
    source = wide_rows(ours.session, 60).where("id > 20 or id in (2, 3)")
    changed = {"f64": "f64 - 1", "tags": "map('new', id)"}
    columns = [f"{changed.get(name, name)} as {name}" for name in ("id", *COLUMNS)]
    flag = f"if(id % 7 = 1, null, {deleting}) as deleted"
    twins.merge_or_delete(source.selectExpr(*columns, flag), KEYS)
    twins.check_keys(KEYS)
    assert all(report.deleted_keys for report in twins.reports)
    if deleting == "true":  # Only rows with a flag that is NULL are written.
        assert min(report.rows for report in twins.reports) == sum(
            1 for id_ in (2, 3, *range(21, 60)) if id_ % 7 == 1 and id_ % 5 != 4
        )
    twins.keeps_working(1)
