"""Each requirement of a post, on a catalog without a server: a change meanwhile refuses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.transforms import BucketTransform, IdentityTransform

from holdfast.sinks.base import Outcome
from tests.contract.iceberg_tables import SqlTable


def _partition(table: SqlTable) -> None:
    with table.others.load_table(table.name).update_spec() as change:
        change.add_field("id", BucketTransform(4), "bucket")


def _sort(table: SqlTable) -> None:
    with table.others.load_table(table.name).update_sort_order() as change:
        change.asc("id", IdentityTransform())


def _roll_back(table: SqlTable) -> None:
    # Not an append: that would take our sequence number as well, which refuses the post by itself.
    table.roll_back(table.others.load_table(table.name).snapshots()[0].snapshot_id)


CHANGES: dict[str, Callable[[SqlTable], object]] = {
    "table": SqlTable.drop_and_create,
    "branch": _roll_back,
    "schema": SqlTable.change_schema,
    "spec": _partition,
    "sort": _sort,
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_was_checked_must_hold_when_the_post_lands(what: str, tmp_path: Path) -> None:
    """A post from before the change is a conflict, and nothing of it is in the table."""
    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse"
    # Only an empty table, created again, has the same branch: none.
    empty = what == "table"
    properties = {"type": "sql", "uri": uri, "warehouse": warehouse}
    table = SqlTable("local", properties, empty=empty)
    if not empty:
        table.foreign_append()
    attempt = table.attempt([1, 2, 3])
    CHANGES[what](table)
    assert attempt.post() is Outcome.CONFLICT
    assert not {1, 2, 3}.intersection(table.rows())
    table.close()
