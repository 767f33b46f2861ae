"""The table is dropped, replaced, renamed or rewound at the worst moment: whose is it now?"""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.errors import (
    CommittedThenRemovedError,
    RunMismatchError,
    TableChangedError,
    TableMissingError,
)
from holdfast.sinks.base import Outcome
from tests.integration.hostile import ROWS, RUN, HostileTable
from tests.integration.hostile_catalogs import NO_EMPTYING, hostile_table, on_catalogs
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack]

BY_QUERY = (
    "CREATE OR REPLACE TABLE {t} USING iceberg AS "
    "SELECT bigint(-9) id, 'x' label, int(1) n, float(1) f, cast(1 AS decimal(9,2)) d"
)


@pytest.fixture
def hostile(
    request: pytest.FixtureRequest, lake: SparkSession, stack: Stack, ledger: dict[str, Any]
) -> HostileTable:
    """Return a table with one foreign row."""
    return hostile_table(request.param, lake, stack, ledger)


def make_again(table: HostileTable) -> None:
    """Drop the table and create another of the same name."""
    table.sql("DROP TABLE {t}")
    table.make()
    table.insert(-9)


def register(table: HostileTable, metadata: str) -> None:
    """Point the catalog's name at this metadata file, whatever it pointed at before."""
    catalog = table.py_catalog()
    if catalog.table_exists(table.short):
        catalog.drop_table(table.short)
    catalog.register_table(table.short, metadata)


def swap(table: HostileTable) -> None:
    """Rename the table, and give its name to another one."""
    table.make("{c}.{n}.other")
    table.sql("ALTER TABLE {t} RENAME TO {n}.aside", "ALTER TABLE {c}.{n}.other RENAME TO {s}")


def swap_back(table: HostileTable) -> None:
    """Undo the swap."""
    table.sql("ALTER TABLE {t} RENAME TO {n}.other", "ALTER TABLE {c}.{n}.aside RENAME TO {s}")


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_dropped_and_made_again_before_the_post_is_another_table(hostile: HostileTable) -> None:
    """Nothing lands in a table that the run was not started for; a new run id may write it."""
    with pytest.raises(TableChangedError, match=r"created again \(its UUID differs\)"):
        hostile.append_while(lambda: make_again(hostile))
    with pytest.raises(RunMismatchError, match="it was dropped and created again, or") as caught:
        hostile.append()
    assert "use a new run id" in str(caught.value)
    hostile.assert_nothing_of_ours(foreign=[-9])
    assert hostile.append(hostile.run("new")).outcome == "committed"
    hostile.assert_each_row_once(foreign=[-9])


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_dropped_and_made_again_after_the_commit_is_another_table(hostile: HostileTable) -> None:
    """The rows are gone with the table: the next start says so, and a new run id writes them."""
    hostile.land_and_die()
    make_again(hostile)
    with pytest.raises(RunMismatchError, match="it was dropped and created again, or"):
        hostile.append()
    hostile.assert_nothing_of_ours(foreign=[-9])
    assert hostile.append(hostile.run("new")).outcome == "committed"
    hostile.assert_each_row_once(foreign=[-9])


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_dropped_before_the_post_and_registered_again_goes_on(hostile: HostileTable) -> None:
    """Without a table there is no commit; when it is back, the work continues."""
    metadata = hostile.py_table().metadata_location
    with pytest.raises(TableMissingError, match="there is no such table"):
        hostile.append_while(lambda: hostile.sql("DROP TABLE {t}"))
    register(hostile, metadata)
    report = hostile.append()
    assert (report.outcome, report.kept_rows) == ("committed", ROWS)
    hostile.assert_each_row_once()


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_dropped_after_the_commit_and_registered_again_still_holds_the_run(
    hostile: HostileTable,
) -> None:
    """The mark comes back with the table."""
    snapshot_id = hostile.land_and_die()
    metadata = hostile.py_table().metadata_location
    hostile.sql("DROP TABLE {t}")
    with pytest.raises(TableMissingError, match="there is no such table"):
        hostile.append()
    register(hostile, metadata)
    report = hostile.append()
    assert (report.outcome, report.snapshot_id) == ("already_committed", snapshot_id)
    hostile.assert_each_row_once()


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_replaced_by_a_query_before_the_post_gets_our_rows(hostile: HostileTable) -> None:
    """The table keeps its identity and columns: the query's row is there, and ours, once."""
    report = hostile.append_while(lambda: hostile.sql(BY_QUERY))
    assert (report.outcome, hostile.posts) == ("committed", [Outcome.CONFLICT, Outcome.LANDED])
    hostile.assert_each_row_once(foreign=[-9])


@pytest.mark.parametrize("hostile", on_catalogs(nessie=NO_EMPTYING), indirect=True)
def test_replaced_by_an_equal_table_before_the_post_gets_our_rows(hostile: HostileTable) -> None:
    """CREATE OR REPLACE keeps the table's identity: its old rows are gone, and ours land once."""
    report = hostile.append_while(lambda: hostile.make(verb="CREATE OR REPLACE"))
    assert (report.outcome, hostile.posts) == ("committed", [Outcome.CONFLICT, Outcome.LANDED])
    hostile.assert_each_row_once(foreign=())


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_replaced_by_other_columns_before_the_post_is_refused(hostile: HostileTable) -> None:
    """The files do not fit: nothing lands; replaced back, the table takes a new run."""
    other = "CREATE OR REPLACE TABLE {t} USING iceberg AS SELECT bigint(-9) id, 'x' other"
    with pytest.raises(TableChangedError, match="column 'label' was dropped"):
        hostile.append_while(lambda: hostile.sql(other))
    hostile.assert_nothing_of_ours(foreign=[-9])
    hostile.sql(BY_QUERY)
    assert hostile.append(hostile.run("new")).outcome == "committed"
    hostile.assert_each_row_once(foreign=[-9])


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_replaced_by_a_query_after_the_commit_is_not_written_again(hostile: HostileTable) -> None:
    """The rows were replaced: an error says so or, where history is hidden, a warning."""
    snapshot_id = hostile.land_and_die()
    hostile.sql(BY_QUERY)
    if hostile.hides_history:
        hostile.find_landed(snapshot_id, is_told=False)
    else:
        with pytest.raises(CommittedThenRemovedError, match="rolled back or replaced"):
            hostile.append()
    hostile.assert_nothing_of_ours(foreign=[-9])


@pytest.mark.parametrize("hostile", on_catalogs(nessie=NO_EMPTYING), indirect=True)
def test_replaced_after_the_commit_is_reported_until_it_is_undone(hostile: HostileTable) -> None:
    """The rows were removed: no start brings them back, but they are found after a roll-forward."""
    snapshot_id = hostile.land_and_die()
    hostile.make(verb="CREATE OR REPLACE")
    with pytest.raises(CommittedThenRemovedError, match="rolled back or replaced") as caught:
        hostile.append()
    assert caught.value.snapshot_id == snapshot_id
    hostile.assert_nothing_of_ours(foreign=())
    hostile.sql(f"CALL {{c}}.system.set_current_snapshot('{{s}}', {snapshot_id})")
    assert hostile.append().outcome == "already_committed"
    hostile.assert_each_row_once()


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_renamed_before_the_post_goes_on_under_its_new_name(hostile: HostileTable) -> None:
    """The old name is gone; under the new one it is the same table and the same run."""
    aside = f"{hostile.catalog}.{hostile.namespace}.aside"
    with pytest.raises(TableMissingError, match="there is no such table"):
        hostile.append_while(lambda: hostile.sql("ALTER TABLE {t} RENAME TO {n}.aside"))
    hostile.assert_nothing_of_ours(name=aside)
    report = hostile.append(to=aside)
    assert (report.outcome, report.kept_rows) == ("committed", ROWS)
    hostile.assert_each_row_once(name=aside)


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_renamed_after_the_commit_is_found_under_its_new_name(hostile: HostileTable) -> None:
    """Under the old name there is no table, under the new one the run has landed."""
    snapshot_id = hostile.land_and_die()
    hostile.sql("ALTER TABLE {t} RENAME TO {n}.aside")
    with pytest.raises(TableMissingError, match="there is no such table"):
        hostile.append()
    aside = f"{hostile.catalog}.{hostile.namespace}.aside"
    report = hostile.append(to=aside)
    assert (report.outcome, report.snapshot_id) == ("already_committed", snapshot_id)
    hostile.assert_each_row_once(name=aside)


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_swapped_with_another_table_before_the_post_is_refused(hostile: HostileTable) -> None:
    """The other table has the name but not the identity: it gets no row, and loses none."""
    with pytest.raises(TableChangedError, match="its UUID differs"):
        hostile.append_while(lambda: swap(hostile))
    with pytest.raises(RunMismatchError, match="it was dropped and created again, or"):
        hostile.append()
    hostile.assert_nothing_of_ours(foreign=())
    swap_back(hostile)
    report = hostile.append()
    assert (report.outcome, report.kept_rows) == ("committed", ROWS)
    hostile.assert_each_row_once()


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_swapped_with_another_table_after_the_commit_is_reported(hostile: HostileTable) -> None:
    """The other table does not have the rows, and does not get them."""
    snapshot_id = hostile.land_and_die()
    swap(hostile)
    with pytest.raises(RunMismatchError, match="it was dropped and created again, or"):
        hostile.append()
    hostile.assert_nothing_of_ours(foreign=())
    swap_back(hostile)
    report = hostile.append()
    assert (report.outcome, report.snapshot_id) == ("already_committed", snapshot_id)
    hostile.assert_each_row_once()


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_a_catalog_rewound_before_the_post_takes_the_run_once(hostile: HostileTable) -> None:
    """A backup restored older metadata: the post is refused, and repeated on top of it."""
    older = hostile.py_table().metadata_location
    hostile.insert(-2)
    report = hostile.append_while(lambda: register(hostile, older))
    assert (report.outcome, hostile.posts) == ("committed", [Outcome.CONFLICT, Outcome.LANDED])
    hostile.assert_each_row_once(foreign=[-1])
    assert hostile.append().outcome == "already_committed"


@pytest.mark.parametrize("later", [0, 2], ids=["at once", "after later commits"])
@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_a_catalog_rewound_before_the_receipt_takes_the_run_again(
    hostile: HostileTable, later: int
) -> None:
    """Neither the table nor the log knows that it landed: it lands again, and is there once."""
    older = hostile.py_table().metadata_location
    hostile.land_and_die()
    register(hostile, older)
    foreign = [-1]
    for number in range(later):
        foreign.append(-10 - number)
        hostile.insert(-10 - number)
    hostile.assert_nothing_of_ours(foreign=foreign)
    assert hostile.append().outcome == "committed"
    hostile.assert_each_row_once(foreign=foreign)


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_a_catalog_rewound_after_the_receipt_is_reported(hostile: HostileTable) -> None:
    """The log has a receipt for rows that the table has never seen: the user must decide."""
    older = hostile.py_table().metadata_location
    hostile.append()
    newest = hostile.py_table().metadata_location
    register(hostile, older)
    with pytest.raises(TableChangedError, match="the catalog was rewound") as caught:
        hostile.append()
    assert "undo the change" in str(caught.value)
    hostile.assert_nothing_of_ours()
    register(hostile, newest)
    assert hostile.append().outcome == "already_committed"
    hostile.assert_each_row_once()
    assert hostile.runs_in_history() == [RUN]
