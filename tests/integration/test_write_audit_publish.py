"""A run on a branch that is published: later starts find it in main, however it got there."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import CommittedThenRemovedError
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

PUBLISHED = {
    "fast-forwarded": ["CALL lake.system.fast_forward('{name}', 'main', 'audit')"],
    "cherry-picked": ["CALL lake.system.cherrypick_snapshot('{name}', {snapshot})"],
    "cherry-picked over another commit": [
        "INSERT INTO lake.{name} VALUES (-2)",
        "CALL lake.system.cherrypick_snapshot('{name}', {snapshot})",
        "INSERT INTO lake.{name} VALUES (-3)",
    ],
}


class Audited:
    """A table with one row and a branch, and a run that writes to the branch."""

    def __init__(
        self, stack: Stack, lake: SparkSession, namespace: str, ledger: dict[str, Any]
    ) -> None:
        """Make them."""
        self.lake, self.ledger, self.name = lake, ledger, f"{namespace}.rows"
        catalog = stack.rest_catalog_properties()
        self.target = hf.IcebergTable(self.name, catalog=catalog, branch="audit")
        lake.sql(f"CREATE TABLE lake.{self.name} (id BIGINT) USING iceberg")
        lake.sql(f"INSERT INTO lake.{self.name} VALUES (-1)")
        lake.sql(f"ALTER TABLE lake.{self.name} CREATE BRANCH audit")

    def append(self) -> hf.Report:
        """Start the script."""
        run = hf.Run("audited", **self.ledger)
        return run.append(self.lake.range(100), to=self.target, key="id")

    def sql(self, *statements: str, snapshot: int = 0) -> None:
        """Run statements of others."""
        for statement in statements:
            self.lake.sql(statement.format(name=self.name, snapshot=snapshot))

    def ids(self) -> list[int]:
        """Return what readers of the table see."""
        rows = self.lake.table(f"lake.{self.name}").collect()
        return sorted(row["id"] for row in rows)


@pytest.fixture
def audited(stack: Stack, lake: SparkSession, namespace: str, ledger: dict[str, Any]) -> Audited:
    """Return a table with a branch."""
    return Audited(stack, lake, namespace, ledger)


@pytest.mark.parametrize("how", PUBLISHED)
def test_a_run_that_was_published_is_recognised_as_landed(audited: Audited, how: str) -> None:
    """Before it is published, after that, and when the branch is gone: no row is written again."""
    first = audited.append()
    assert (first.outcome, audited.ids()) == ("committed", [-1])
    assert audited.append().outcome == "already_committed"
    audited.sql(*PUBLISHED[how], snapshot=first.snapshot_id or 0)
    published = audited.ids()
    assert [id_ for id_ in published if id_ >= 0] == list(range(100))
    assert audited.append().still_in_table == "yes"
    audited.sql("ALTER TABLE lake.{name} DROP BRANCH audit")
    again = audited.append()
    assert (again.outcome, again.still_in_table) == ("already_committed", "yes")
    assert audited.ids() == published


def test_a_run_whose_branch_was_dropped_unpublished_says_so(audited: Audited) -> None:
    """It has landed, and what landed is not in the table: its rows are not written again."""
    audited.append()
    audited.sql("ALTER TABLE lake.{name} DROP BRANCH audit")
    with pytest.raises(CommittedThenRemovedError):
        audited.append()
    assert audited.ids() == [-1]
