"""What became of our snapshot after the commit: a later start reports it, or that it is unknown."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import CommittedThenRemovedError, TableChangedError
from tests.integration.process_watched import ROWS, WatchedTable
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

ALL = list(range(ROWS))


def current_snapshot(watched: WatchedTable) -> int:
    """Return the head of the table's main branch."""
    found = watched.lake.table(f"{watched.name}.refs").where("name = 'main'").collect()
    snapshot_id: int = found[0]["snapshot_id"]
    return snapshot_id


def expire_all_but_the_last(watched: WatchedTable) -> None:
    """Expire all that Iceberg's own procedure can."""
    watched.lake.sql(
        f"CALL lake.system.expire_snapshots(table => '{watched.namespace}.rows', "
        "older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => 1)"
    )


@pytest.mark.parametrize("later", [0, 3], ids=["at once", "after later commits"])
def test_rolled_back_after_the_commit_is_reported(watched: WatchedTable, later: int) -> None:
    """The rows were removed on purpose: no start of the run brings them back.

    Foreign commits after the roll-back fork the history, but do not hide the roll-back.
    """
    watched.append(watched.input(rows=1), run_id="first", key="n")
    before = current_snapshot(watched)
    landed = watched.append()
    watched.lake.sql(f"CALL lake.system.rollback_to_snapshot('{watched.namespace}.rows', {before})")
    for number in range(later):
        watched.lake.sql(f"INSERT INTO {watched.name} VALUES ({-number})")
    rows = watched.numbers()
    for if_committed in ("compare", "return"):
        with pytest.raises(CommittedThenRemovedError) as caught:
            watched.append(if_committed=if_committed)
        assert caught.value.snapshot_id == landed.snapshot_id
    assert watched.numbers() == rows
    assert watched.append(run_id="nightly, again").outcome == "committed"


def test_replaced_after_the_commit_is_reported(watched: WatchedTable) -> None:
    """CREATE OR REPLACE keeps the table's UUID, its properties and our mark, but not our rows."""
    landed = watched.append()
    watched.lake.sql(
        f"CREATE OR REPLACE TABLE {watched.name} USING iceberg AS SELECT cast(100 AS bigint) AS n"
    )
    with pytest.raises((CommittedThenRemovedError, TableChangedError)) as caught:
        watched.append()
    assert isinstance(caught.value, CommittedThenRemovedError), caught.value
    assert caught.value.snapshot_id == landed.snapshot_id
    assert watched.numbers() == [100]


def test_dropped_and_made_again_is_another_table(watched: WatchedTable) -> None:
    """The same name is not the same table: the run's rows are not in it, and are not put there."""
    watched.append()
    watched.lake.sql(f"DROP TABLE {watched.name} PURGE")
    watched.lake.sql(f"CREATE TABLE {watched.name} (n bigint) USING iceberg")
    with pytest.raises(hf.HoldfastError, match="is not the one that it was started with"):
        watched.append()
    assert watched.numbers() == []


def test_overwritten_after_the_commit_is_still_committed(watched: WatchedTable) -> None:
    """An overwrite or a delete by others is later history: our commit stays what it was."""
    landed = watched.append()
    watched.lake.sql(f"DELETE FROM {watched.name} WHERE n < 5")
    watched.lake.sql(f"INSERT OVERWRITE {watched.name} VALUES (100)")
    again = watched.append()
    assert (again.outcome, again.snapshot_id) == ("already_committed", landed.snapshot_id)
    assert again.still_in_table == "yes"
    assert watched.numbers() == [100]


def test_expired_with_its_manifest_still_there_is_still_known(watched: WatchedTable) -> None:
    """The snapshot is gone, the rows are not: the manifest that it added is still listed."""
    landed = watched.append()
    for number in (100, 101):
        watched.lake.sql(f"INSERT INTO {watched.name} VALUES ({number})")
    expire_all_but_the_last(watched)
    assert watched.snapshots() == []  # It was expired, so the test is not vacuous.
    again = watched.append()
    assert (again.outcome, again.snapshot_id) == ("already_committed", landed.snapshot_id)
    assert again.still_in_table == "yes"
    assert watched.numbers() == [*ALL, 100, 101]


def test_expired_without_a_trace_is_reported_as_unknown(watched: WatchedTable) -> None:
    """The history is gone: the receipt is returned with a warning, and nothing is posted."""
    landed = watched.append()
    watched.lake.sql(f"INSERT INTO {watched.name} VALUES (100)")
    watched.lake.sql(
        f"CALL lake.system.rewrite_data_files(table => '{watched.namespace}.rows', "
        "options => map('rewrite-all', 'true'))"
    )
    watched.lake.sql(f"INSERT INTO {watched.name} VALUES (101)")
    watched.lake.sql(f"CALL lake.system.rewrite_manifests('{watched.namespace}.rows')")
    expire_all_but_the_last(watched)
    with pytest.warns(UserWarning, match="still"):
        again = watched.append()
    assert (again.outcome, again.snapshot_id) == ("already_committed", landed.snapshot_id)
    assert again.still_in_table == "unknown"
    assert "unknown" in str(again)
    assert watched.numbers() == [*ALL, 100, 101]
    assert watched.computed() == ALL


def test_a_mark_that_was_removed_does_not_let_the_rows_land_twice(
    watched: WatchedTable,
) -> None:
    """The ledger's receipt and the table's history both still show the commit."""
    landed = watched.append()
    watched.lake.sql(f"ALTER TABLE {watched.name} UNSET TBLPROPERTIES ('holdfast.run.nightly')")
    again = watched.append()
    assert (again.outcome, again.snapshot_id) == ("already_committed", landed.snapshot_id)
    assert watched.numbers() == watched.computed() == ALL


@pytest.mark.nessie
def test_overwritten_where_history_is_hidden_is_reported_as_unknown(
    lake: SparkSession, stack: Stack, namespace: str, ledger: dict[str, Any]
) -> None:
    """Nessie shows the newest snapshot only: what it does not show is reported as unknown.

    Method: the table is overwritten twice, so that not even a manifest of ours is left.
    """
    catalog = stack.nessie_catalog_properties()
    lake.sql(f"CREATE NAMESPACE nessie.{namespace}")
    table = f"nessie.{namespace}.t"
    lake.sql(f"CREATE TABLE {table} (id bigint) USING iceberg")
    target = hf.IcebergTable(f"{namespace}.t", catalog=catalog)
    run = hf.Run("r", **ledger)
    landed = run.append(lake.range(ROWS), to=target, key="id")
    for number in (100, 101):
        lake.sql(f"INSERT OVERWRITE {table} VALUES ({number})")
    with pytest.warns(UserWarning, match="still"):
        again = run.append(lake.range(ROWS), to=target, key="id")
    assert (again.outcome, again.snapshot_id) == ("already_committed", landed.snapshot_id)
    assert again.still_in_table == "unknown"
    assert [row["id"] for row in lake.table(table).collect()] == [101]
