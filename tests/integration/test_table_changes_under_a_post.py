"""The table changes between our last look and our post: the post is refused, and we look again.

Each test is the proof of one requirement of the post: without it the catalog would take the
commit, as the ref alone does not move when a column, the spec or the order changes.
"""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import TableChangedError
from tests.fault_proxy import Fault, fault_proxy
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

ROWS = 50
HARMLESS = {
    "optional column added": ["ALTER TABLE {t} ADD COLUMN extra string"],
    "partition spec changed": ["ALTER TABLE {t} ADD PARTITION FIELD bucket(4, id)"],
    "sort order changed": ["ALTER TABLE {t} WRITE ORDERED BY id"],
    "column promoted": ["ALTER TABLE {t} ALTER COLUMN n TYPE bigint"],
    "rows appended": ["INSERT INTO {t} VALUES (-2, 'foreign', 2)"],
}
HARMFUL = {
    "column dropped and re-added": (
        ["ALTER TABLE {t} DROP COLUMN label", "ALTER TABLE {t} ADD COLUMN label string"],
        "'label' was dropped",
    ),
    "column renamed": (
        ["ALTER TABLE {t} RENAME COLUMN label TO name"],
        "'label' was renamed to 'name'",
    ),
    "dropped and made again": (
        ["DROP TABLE {t}", "CREATE TABLE {t} (id bigint, label string, n int) USING iceberg"],
        "made again",
    ),
}


class Desk:
    """One table, and an append to it whose first post meets a change."""

    def __init__(
        self, lake: SparkSession, stack: Stack, namespace: str, ledger: dict[str, Any]
    ) -> None:
        """Create the table with one row."""
        self.lake, self.stack, self.namespace, self.ledger = lake, stack, namespace, ledger
        self.table = f"lake.{namespace}.t"
        lake.sql(f"CREATE TABLE {self.table} (id bigint, label string, n int) USING iceberg")
        lake.sql(f"INSERT INTO {self.table} VALUES (-1, 'first', 1)")

    def append_while(self, statements: list[str]) -> tuple[hf.Report, list[int]]:
        """Append, let the statements run just before the first post; return the posts' answers."""

        def change() -> None:
            for statement in statements:
                self.lake.sql(statement.format(t=self.table))

        df = self.lake.range(ROWS).selectExpr("id", "concat('l', id) as label", "cast(id as int) n")
        with fault_proxy(self.stack.rest.uri) as proxy:
            proxy.faults = [Fault(before=change)]
            catalog = {**self.stack.rest_catalog_properties(), "uri": proxy.uri}
            target = hf.IcebergTable(f"{self.namespace}.t", catalog=catalog)
            try:
                report = hf.Run("r", **self.ledger).append(df, to=target, key="id")
            finally:
                self.answers = list(proxy.commits)
        return report, self.answers


@pytest.fixture
def desk(lake: SparkSession, stack: Stack, namespace: str, ledger: dict[str, Any]) -> Desk:
    """Return a table with an append that is about to be disturbed."""
    return Desk(lake, stack, namespace, ledger)


@pytest.mark.parametrize("change", HARMLESS)
def test_a_harmless_change_costs_one_more_post(desk: Desk, change: str) -> None:
    """The first post is refused, the second lands, and no value is lost on either side."""
    report, answers = desk.append_while(HARMLESS[change])
    assert answers == [409, 200]
    assert report.posts == 2
    rows = desk.lake.table(desk.table).where("id >= 0").orderBy("id").collect()
    assert [(row["id"], row["label"], row["n"]) for row in rows] == [
        (number, f"l{number}", number) for number in range(ROWS)
    ]
    foreign = desk.lake.table(desk.table).where("id < 0").count()
    assert foreign == (2 if change == "rows appended" else 1)


@pytest.mark.parametrize("change", HARMFUL)
def test_a_harmful_change_stops_the_run_and_keeps_its_work(desk: Desk, change: str) -> None:
    """Files staged for the old table would read as NULL or belong to nobody: nothing lands."""
    statements, told = HARMFUL[change]
    with pytest.raises(TableChangedError, match=told):
        desk.append_while(statements)
    assert desk.answers == [409]  # It was refused by the catalog: the test is not vacuous.
    assert desk.lake.table(desk.table).where("id >= 0").count() == 0


def test_a_property_that_changes_meanwhile_is_kept(desk: Desk) -> None:
    """A commit of properties alone does no harm, and ours does not undo it."""
    report, answers = desk.append_while(["ALTER TABLE {t} SET TBLPROPERTIES ('team'='us')"])
    assert answers[-1] == 200
    found = desk.lake.sql(f"SHOW TBLPROPERTIES {desk.table}").collect()
    properties = {row["key"]: row["value"] for row in found}
    assert properties["team"] == "us"
    assert "holdfast.run.r" in properties
    assert desk.lake.table(desk.table).count() == ROWS + 1
    assert report.rows == ROWS
