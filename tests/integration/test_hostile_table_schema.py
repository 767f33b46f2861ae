"""The table's schema or layout changes at the worst moment: one commit, or a clear error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pyiceberg.table.update import SetCurrentSchemaUpdate
from pyiceberg.types import StringType
from pyspark.sql import SparkSession

from holdfast.errors import TableChangedError, UnsupportedTableError
from tests.integration.hostile import ROWS, RUN, HostileTable, made
from tests.integration.hostile_catalogs import (
    NO_UPGRADE,
    REST,
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
    """Return a table of five columns with one foreign row."""
    return hostile_table(request.param, lake, stack, ledger)


def add_required_column(table: HostileTable) -> None:
    """Add a required column that older files do not have; Spark's own SQL refuses to."""
    with table.py_table().update_schema(allow_incompatible_changes=True) as update:
        update.add_column("must", StringType(), required=True)


def restore_schema(table: HostileTable) -> None:
    """Make the first schema the current one again."""
    loaded = table.py_table()
    update = SetCurrentSchemaUpdate(schema_id=0)
    loaded.catalog.commit_table(loaded, (), (update,))


def by_sql(*statements: str) -> Callable[[HostileTable], None]:
    """Return what runs the statements."""
    return lambda table: table.sql(*statements)


@dataclass(frozen=True, kw_only=True)
class Harm:
    """A change that staged files do not survive, the error that it causes, and how it is undone."""

    do: Callable[[HostileTable], None]
    told: str
    undo: Callable[[HostileTable], None] = restore_schema
    # Where our rows are read after the change, if it comes after the commit.
    columns: tuple[str, ...] = ("label", "n", "f", "d")
    label_lost: bool = False


HARMLESS = {
    "optional column added": ["ALTER TABLE {t} ADD COLUMN extra string"],
    "partition spec changed": ["ALTER TABLE {t} ADD PARTITION FIELD bucket(4, id)"],
    "sort order changed": ["ALTER TABLE {t} WRITE ORDERED BY id DESC"],
    "columns promoted": [  # Iceberg reads old files that way.
        "ALTER TABLE {t} ALTER COLUMN n TYPE bigint",
        "ALTER TABLE {t} ALTER COLUMN f TYPE double",
        "ALTER TABLE {t} ALTER COLUMN d TYPE decimal(18,2)",
    ],
}
HARMFUL = {
    "column dropped": Harm(
        do=by_sql("ALTER TABLE {t} DROP COLUMN label"),
        told="column 'label' was dropped",
        columns=("n", "f", "d"),
    ),
    "column renamed": Harm(
        do=by_sql("ALTER TABLE {t} RENAME COLUMN label TO name"),
        told="column 'label' was renamed to 'name'",
        undo=by_sql("ALTER TABLE {t} RENAME COLUMN name TO label"),
        columns=("name", "n", "f", "d"),
    ),
    "column dropped and re-added": Harm(
        do=by_sql("ALTER TABLE {t} DROP COLUMN label", "ALTER TABLE {t} ADD COLUMN label string"),
        told="column 'label' was dropped",
        label_lost=True,
    ),
    "required column added": Harm(
        do=add_required_column,
        told="required column 'must' was added",
        undo=by_sql("ALTER TABLE {t} DROP COLUMN must"),
    ),
}


@pytest.mark.parametrize(("hostile", "change"), each_on_catalogs(HARMLESS), indirect=["hostile"])
def test_a_harmless_change_before_the_post_ends_in_one_commit(
    hostile: HostileTable, change: str
) -> None:
    """The post that was made for the old table is refused; the next one lands, once."""
    report = hostile.append_while(lambda: hostile.sql(*HARMLESS[change]))
    assert (report.outcome, report.posts) == ("committed", 2)
    hostile.assert_each_row_once()
    assert hostile.runs_in_history() == [RUN]


@pytest.mark.parametrize(("hostile", "change"), each_on_catalogs(HARMFUL), indirect=["hostile"])
def test_a_harmful_change_before_the_post_stops_the_run_until_it_is_undone(
    hostile: HostileTable, change: str
) -> None:
    """The files would read as NULL or not at all: nothing lands, and the work is kept."""
    harm = HARMFUL[change]
    with pytest.raises(TableChangedError, match=harm.told) as caught:
        hostile.append_while(lambda: harm.do(hostile))
    assert "undo the change and run the same script again" in str(caught.value)
    with pytest.raises(TableChangedError, match=harm.told):
        hostile.append()
    assert hostile.runs_in_history() == []
    harm.undo(hostile)
    report = hostile.append()
    assert (report.outcome, report.kept_rows) == ("committed", ROWS)
    hostile.assert_each_row_once()


@pytest.mark.parametrize(
    ("hostile", "change"), each_on_catalogs([*HARMLESS, *HARMFUL]), indirect=["hostile"]
)
def test_a_change_after_the_commit_does_not_cause_another_write(
    hostile: HostileTable, change: str
) -> None:
    """The rows have landed, and are read like any old file; the next start finds them."""
    snapshot_id = hostile.land_and_die()
    if change in HARMLESS:
        hostile.sql(*HARMLESS[change])
    else:
        HARMFUL[change].do(hostile)
    hostile.find_landed(snapshot_id)
    harm = HARMFUL.get(change)
    columns = harm.columns if harm else ()
    rows = [row for row in hostile.rows(*columns) if row[0] >= 0]
    expected = made(*("label" if name == "name" else name for name in columns))
    if harm and harm.label_lost:  # By the owner who dropped the column, not by us.
        expected = [(row[0], None, *row[2:]) for row in expected]
    assert rows == expected
    assert hostile.runs_in_history() == [RUN]


@pytest.mark.rest
@pytest.mark.parametrize("hostile", [REST], indirect=True)
def test_a_column_dropped_after_the_commit_does_not_hide_a_run_without_transform(
    hostile: HostileTable,
) -> None:
    """Nothing is left to write, so the columns need not fit: the mark is found."""
    snapshot_id = hostile.land_and_die(transform=None)
    hostile.sql("ALTER TABLE {t} DROP COLUMN label")
    report = hostile.append(transform=None)
    assert (report.outcome, report.snapshot_id) == ("already_committed", snapshot_id)


@pytest.mark.parametrize("hostile", on_catalogs(nessie=NO_UPGRADE), indirect=True)
def test_a_table_upgraded_to_v3_before_the_post_is_refused(hostile: HostileTable) -> None:
    """A v2 snapshot does not fit a v3 table: nothing lands, and the error names the version."""
    upgrade = "ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='3')"
    with pytest.raises(UnsupportedTableError, match="it has format v3") as caught:
        hostile.append_while(lambda: hostile.sql(upgrade))
    assert "write to a v2 table" in str(caught.value)
    with pytest.raises(UnsupportedTableError, match="it has format v3"):
        hostile.append()
    hostile.assert_nothing_of_ours()


@pytest.mark.parametrize("hostile", on_catalogs(nessie=NO_UPGRADE), indirect=True)
def test_a_table_upgraded_to_v3_after_the_commit_still_holds_the_run(
    hostile: HostileTable,
) -> None:
    """Nothing is left to write, so the format does not matter: the mark is found."""
    snapshot_id = hostile.land_and_die()
    hostile.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='3')")
    hostile.find_landed(snapshot_id)
    hostile.assert_each_row_once()


@pytest.mark.parametrize("hostile", on_catalogs(nessie=NO_UPGRADE), indirect=True)
def test_a_v1_table_is_refused_until_it_is_upgraded(hostile: HostileTable) -> None:
    """On v1 a delayed post could land twice; the error says how to upgrade, and then it works."""
    hostile.sql("DROP TABLE {t}")
    hostile.make("{t}", "TBLPROPERTIES ('format-version'='1')")
    with pytest.raises(UnsupportedTableError, match="it has format v1") as caught:
        hostile.append()
    assert "SET TBLPROPERTIES ('format-version'='2')" in str(caught.value)
    hostile.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='2')")
    assert hostile.append().outcome == "committed"
    hostile.assert_each_row_once(foreign=())
