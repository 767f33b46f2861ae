"""What cannot be done to a table in Nessie: the reasons for skipped cases still hold.

A case that fails here means that Nessie has changed: then take its reason out of
hostile_catalogs.py, and the cases that it kept away run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tests.integration.hostile import HostileTable
from tests.integration.hostile_catalogs import NESSIE, NO_REFS, hostile_table
from tests.integration.test_hostile_table_upkeep import commit_to_wap
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.nessie]

POM = Path(__file__).parents[2] / "dev" / "stack" / "nessie" / "pom.xml"


@pytest.fixture
def table(lake: SparkSession, stack: Stack, ledger: dict[str, Any]) -> HostileTable:
    """Return a table in Nessie with one row."""
    return hostile_table(NESSIE, lake, stack, ledger)


def ids(table: HostileTable) -> list[int]:
    """Return the ids of the table's rows, without a cache."""
    table.sql("REFRESH TABLE {t}")
    return sorted(row["id"] for row in table.spark.table(table.name).collect())


def test_the_reasons_name_the_version_that_is_installed() -> None:
    """Another version is checked again before a reason names it."""
    version = NO_REFS.split()[1]
    assert f"<artifactId>nessie-quarkus</artifactId><version>{version}</version>" in POM.read_text()


@pytest.mark.parametrize("kind", ["BRANCH", "TAG"])
def test_there_is_no_ref_but_main(table: HostileTable, kind: str) -> None:
    """A branch and a tag are refused."""
    with pytest.raises(Py4JJavaError, match="ref must be 'main', but is 'other'"):
        table.sql(f"ALTER TABLE {{t}} CREATE {kind} other")
    assert list(table.py_table().refs()) == ["main"]


def test_a_snapshot_staged_for_an_audit_is_shown_at_once(table: HostileTable) -> None:
    """Write-audit-publish would show it only when it is published."""
    commit_to_wap(table)
    assert ids(table) == [-30, -1]


def test_only_the_newest_snapshot_is_shown(table: HostileTable) -> None:
    """There is none to roll back to."""
    before = table.py_table().current_snapshot()
    table.insert(-2)
    after = table.py_table()
    assert before is not None
    assert [snapshot.snapshot_id for snapshot in after.snapshots()] == [
        after.metadata.current_snapshot_id
    ]
    with pytest.raises(Py4JJavaError, match="unknown snapshot"):
        table.sql(f"CALL {{c}}.system.set_current_snapshot('{{s}}', {before.snapshot_id})")


def test_a_table_is_v2_and_stays_so(table: HostileTable) -> None:
    """An upgrade is answered with 500, and a request for v1 is ignored."""
    with pytest.raises(Py4JJavaError, match="500: Implement format version update"):
        table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='3')")
    table.sql("DROP TABLE {t}")
    table.make("{t}", "TBLPROPERTIES ('format-version'='1')")
    assert table.py_table().metadata.format_version == 2


def test_a_table_that_is_replaced_by_an_empty_one_keeps_its_rows(table: HostileTable) -> None:
    """CREATE OR REPLACE without AS should remove them."""
    table.make(verb="CREATE OR REPLACE")
    assert ids(table) == [-1]
