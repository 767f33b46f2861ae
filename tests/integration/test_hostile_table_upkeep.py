"""Maintenance and other writers at the worst moment: the run is in the table once, or says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from holdfast.errors import CommittedThenRemovedError, StoreUnavailableError
from holdfast.sinks.base import Outcome
from tests.integration.hostile import ROWS, RUN, HostileTable
from tests.integration.hostile_catalogs import (
    NO_REFS,
    NO_ROLL_BACK,
    NO_WAP,
    each_on_catalogs,
    hostile_table,
    on_catalogs,
)
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack]


@pytest.fixture
def hostile(
    request: pytest.FixtureRequest, lake: SparkSession, stack: Stack, ledger: dict[str, Any]
) -> HostileTable:
    """Return a table with two foreign rows, in a file and a manifest each."""
    table = hostile_table(request.param, lake, stack, ledger)
    table.insert(-2)
    return table


def by_sql(*statements: str) -> Callable[[HostileTable], None]:
    """Return what runs the statements."""
    return lambda table: table.sql(*statements)


def remove_orphans(table: HostileTable) -> list[str]:
    """Remove every file that the table does not refer to, however young; return what was removed.

    Method: the action behind the procedure; the procedure itself refuses anything younger than a
    day.
    """
    session: Any = table.spark
    jvm = session._jvm.org.apache.iceberg  # noqa: SLF001 - there is no public way.
    loaded = jvm.spark.Spark3Util.loadIcebergTable(session._jsparkSession, table.name)  # noqa: SLF001
    action = jvm.spark.actions.SparkActions.get().deleteOrphanFiles(loaded)
    result = action.usePrefixListing(True).olderThan(2**52).execute()  # noqa: FBT003 - Java's.
    return list(result.orphanFileLocations())


def commit_to_wap(table: HostileTable) -> None:
    """Stage a foreign row as a snapshot that no branch shows, as write-audit-publish does."""
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.wap.enabled'='true')")
    table.spark.conf.set("spark.wap.id", "audit-1")
    try:
        table.insert(-30)
    finally:
        table.spark.conf.unset("spark.wap.id")


EXPIRE = (
    "CALL {c}.system.expire_snapshots(table => '{s}', retain_last => 1, "
    "older_than => TIMESTAMP '2999-01-01 00:00:00')"
)
REWRITE = (
    "CALL {c}.system.rewrite_data_files(table => '{s}', options => map('rewrite-all', 'true'))"
)
# Changes that leave the rows of the table as they are.
UPKEEP: dict[str, Callable[[HostileTable], object]] = {
    "snapshots expired": by_sql(EXPIRE),
    "data files rewritten": by_sql(REWRITE),
    "manifests rewritten": by_sql("CALL {c}.system.rewrite_manifests('{s}')"),
    "orphans removed": remove_orphans,
    "properties changed": by_sql("ALTER TABLE {t} SET TBLPROPERTIES ('team'='us')"),
    "tag created": by_sql("ALTER TABLE {t} CREATE TAG monthly"),
    "branch created": by_sql("ALTER TABLE {t} CREATE BRANCH audit"),
    "commit to a branch": by_sql(
        "ALTER TABLE {t} CREATE BRANCH audit",
        "INSERT INTO {t}.branch_audit (id, label) VALUES (-20, 'on the branch')",
    ),
    "commit for write-audit-publish": commit_to_wap,
}
# Changes after which the table refuses a post, because the post's premises no longer hold.
ELSEWHERE = ("commit to a branch", "commit for write-audit-publish")
REFUSED = ("data files rewritten", "manifests rewritten", *ELSEWHERE)
NOT_APPLICABLE = {
    ("tag created", "nessie"): NO_REFS,
    ("branch created", "nessie"): NO_REFS,
    ("commit to a branch", "nessie"): NO_REFS,
    ("commit for write-audit-publish", "nessie"): NO_WAP,
}
BEFORE = [name for name in UPKEEP if name != "orphans removed"]


@pytest.mark.parametrize(
    ("hostile", "upkeep"), each_on_catalogs(BEFORE, NOT_APPLICABLE), indirect=["hostile"]
)
def test_upkeep_before_the_post_ends_in_one_commit(hostile: HostileTable, upkeep: str) -> None:
    """The post lands, or is refused and repeated; the table shows our rows once."""
    report = hostile.append_while(lambda: UPKEEP[upkeep](hostile))
    assert report.outcome == "committed"
    refused = [Outcome.CONFLICT] if upkeep in REFUSED else []
    assert hostile.posts == [*refused, Outcome.LANDED]
    hostile.assert_each_row_once(foreign=(-2, -1))
    assert hostile.runs_in_history() == [RUN]


@pytest.mark.parametrize(
    ("hostile", "upkeep"), each_on_catalogs(UPKEEP, NOT_APPLICABLE), indirect=["hostile"]
)
def test_upkeep_after_the_commit_does_not_hide_the_run(hostile: HostileTable, upkeep: str) -> None:
    """The next start finds what has landed, and writes nothing but the receipt.

    Where history is hidden and our manifest is rewritten, it warns that it cannot see the rows.
    """
    snapshot_id = hostile.land_and_die()
    hostile.insert(-3)
    UPKEEP[upkeep](hostile)
    is_rewritten = upkeep in ("data files rewritten", "manifests rewritten")
    hostile.find_landed(snapshot_id, is_told=not (is_rewritten and hostile.hides_history))
    hostile.assert_each_row_once(foreign=(-3, -2, -1))


@pytest.mark.parametrize(
    ("hostile", "upkeep"), each_on_catalogs(ELSEWHERE, NOT_APPLICABLE), indirect=["hostile"]
)
def test_a_commit_elsewhere_between_two_posts_costs_one_more_post(
    hostile: HostileTable, upkeep: str
) -> None:
    """It raises the sequence number and leaves main alone: only a new intent can land then."""
    report = hostile.append_while(lambda: hostile.insert(-3), lambda: UPKEEP[upkeep](hostile))
    assert report.outcome == "committed"
    assert hostile.posts == [Outcome.CONFLICT, Outcome.CONFLICT, Outcome.LANDED]
    hostile.assert_each_row_once(foreign=(-3, -2, -1))


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_orphan_removal_that_takes_a_staged_file_costs_the_work_but_no_row(
    hostile: HostileTable,
) -> None:
    """A post over missing files would lose their rows: they are computed again, and then land."""
    removed: list[str] = []

    def clean_up() -> None:
        hostile.insert(-3)
        removed.extend(remove_orphans(hostile))

    if hostile.hides_history:
        # Iceberg takes the files of a hidden snapshot for orphans, the post's own parent included.
        with pytest.raises(StoreUnavailableError, match="no such object") as caught:
            hostile.append_while(clean_up)
        assert caught.value.retry_safe
        report = hostile.append()
    else:
        report = hostile.append_while(clean_up)
    assert any(path.endswith(".parquet") for path in removed)  # It took a staged file.
    assert (report.outcome, report.withdrawn_rows) == ("committed", ROWS)
    hostile.assert_each_row_once(foreign=(-3, -2, -1))


def overwrite(table: HostileTable) -> None:
    """Overwrite the whole table with one row, with an engine other than Spark: PyIceberg."""
    loaded = table.py_table()
    schema = loaded.schema().as_arrow()
    row = {"id": -5, "label": "theirs", "n": None, "f": None, "d": None}
    loaded.overwrite(pa.Table.from_pylist([row], schema=schema))


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_an_overwrite_by_another_engine_before_the_post_spares_our_rows(
    hostile: HostileTable,
) -> None:
    """It replaced what it saw, and ours came after: both are in the table."""
    report = hostile.append_while(lambda: overwrite(hostile))
    assert (report.outcome, hostile.posts) == ("committed", [Outcome.CONFLICT, Outcome.LANDED])
    hostile.assert_each_row_once(foreign=[-5])


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_an_overwrite_by_another_engine_after_the_commit_is_later_history(
    hostile: HostileTable,
) -> None:
    """Our rows were in the table and were replaced like any others: they are not brought back."""
    snapshot_id = hostile.land_and_die()
    overwrite(hostile)
    hostile.find_landed(snapshot_id, is_told=not hostile.hides_history)
    hostile.assert_nothing_of_ours(foreign=[-5])


@pytest.mark.parametrize("hostile", on_catalogs(nessie=NO_ROLL_BACK), indirect=True)
def test_a_roll_back_before_the_post_is_kept(hostile: HostileTable) -> None:
    """Our rows land on the snapshot that was rolled back to: the row lost that way stays lost."""
    first = hostile.first_snapshot()
    rollback = f"CALL {{c}}.system.rollback_to_snapshot('{{s}}', {first})"
    report = hostile.append_while(lambda: hostile.sql(rollback))
    assert (report.outcome, hostile.posts) == ("committed", [Outcome.CONFLICT, Outcome.LANDED])
    hostile.assert_each_row_once(foreign=[-1])


@pytest.mark.parametrize("hostile", on_catalogs(nessie=NO_ROLL_BACK), indirect=True)
def test_a_roll_back_of_our_commit_is_reported_until_it_is_undone(hostile: HostileTable) -> None:
    """The rows were removed: no start brings them back, but they are found after a roll-forward."""
    before = hostile.head()
    snapshot_id = hostile.land_and_die()
    hostile.sql(f"CALL {{c}}.system.rollback_to_snapshot('{{s}}', {before})")
    with pytest.raises(CommittedThenRemovedError, match="rolled back or replaced") as caught:
        hostile.append()
    assert caught.value.snapshot_id == snapshot_id
    assert "if the rows are wanted again, use a new run id" in str(caught.value)
    hostile.assert_nothing_of_ours(foreign=(-2, -1))
    hostile.sql(f"CALL {{c}}.system.set_current_snapshot('{{s}}', {snapshot_id})")
    report = hostile.append()
    assert (report.outcome, report.snapshot_id) == ("already_committed", snapshot_id)
    hostile.assert_each_row_once(foreign=(-2, -1))


@pytest.mark.parametrize("hostile", on_catalogs(nessie=NO_ROLL_BACK), indirect=True)
def test_a_roll_back_to_our_commit_keeps_the_run(hostile: HostileTable) -> None:
    """What came after our commit is gone; our commit is not."""
    snapshot_id = hostile.land_and_die()
    hostile.insert(-3)
    hostile.sql(f"CALL {{c}}.system.rollback_to_snapshot('{{s}}', {snapshot_id})")
    report = hostile.append()
    assert (report.outcome, report.snapshot_id) == ("already_committed", snapshot_id)
    hostile.assert_each_row_once(foreign=(-2, -1))
