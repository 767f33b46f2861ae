"""Other writers between an overwrite's look at the table and its post.

Our run replaces the rows that are there when it lands, or an error says why it cannot, and the
table is as the others left it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import StoreUnavailableError, TableChangedError, UnsupportedTableError
from holdfast.sinks.base import Change, Outcome
from holdfast.sinks.iceberg.catalog import open_catalog
from holdfast.sinks.iceberg.sink import IcebergSink
from tests.integration.replace_desk import (
    ALL,
    BY_FILTER,
    MODES,
    PARTITIONS,
    ROWS,
    SPARING,
    SPARING_WHERE,
    WHERE,
    Mode,
    Target,
)
from tests.integration.test_replaced_files import Lake
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

each_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)


@pytest.fixture
def target(lake: SparkSession, namespace: str, stack: Stack, ledger: dict[str, Any]) -> Target:
    """Return a table with old rows."""
    catalog = open_catalog("lake", stack.rest_catalog_properties())
    return Target(Lake(lake, namespace, catalog), ledger)


Action = Callable[[Target, Change], object]


def by_sql(*statements: str) -> Action:
    """Return what runs the statements."""
    return lambda target, _change: target.sql(*statements)


def unlink(target: Target, path: str) -> None:
    """Delete an object of the table's storage."""
    target.lake.load("t").io.delete(path)


def meddle(
    monkeypatch: pytest.MonkeyPatch, target: Target, steps: Sequence[tuple[str, Action]]
) -> list[tuple[str, Action]]:
    """Let others act before calls of the sink, each step before the next call of its name.

    `loss` computes for a look at the table which files go, `rewriter` is asked for what rewrites
    files of which some rows go, and `post` publishes all that. Return the steps that are left.
    """
    left = list(steps)

    def before(name: str) -> None:
        method = getattr(IcebergSink, name)

        def act_first(sink: IcebergSink, *arguments: Any) -> Any:  # noqa: ANN401 - the method's.
            (change,) = (each for each in arguments if isinstance(each, Change))
            # A start asks once without rows, before it computes any.
            if change.adds and left and left[0][0] == name:
                left.pop(0)[1](target, change)
            answer = method(sink, *arguments)
            if name == "post":
                target.outcomes.append(answer)
            return answer

        monkeypatch.setattr(IcebergSink, name, act_first)

    for name in ("loss", "rewriter", "post"):
        before(name)
    return left


INSERT = "INSERT INTO {t} VALUES (9001, 1), (9003, 3)"
OVERWRITE = "INSERT OVERWRITE {t} VALUES (9001, 1), (9003, 3)"
DELETE = "DELETE FROM {t} WHERE id IN (1001, 1003)"
SET = "ALTER TABLE {t} SET TBLPROPERTIES "
EXPIRE = (
    "CALL lake.system.expire_snapshots(table => '{s}', retain_last => 1, "
    "older_than => TIMESTAMP '2100-01-01 00:00:00')"
)
COMPACT = (
    "CALL lake.system.rewrite_data_files(table => '{s}', options => map('rewrite-all', 'true'))"
)
ADD_FIELD = "ALTER TABLE {t} ADD PARTITION FIELD bucket(2, id)"
DROP_FIELD = "ALTER TABLE {t} DROP PARTITION FIELD p"
REPLACE = (
    "CREATE OR REPLACE TABLE {t} USING iceberg PARTITIONED BY (p) AS "
    "SELECT * FROM VALUES (9001L, 1), (9003L, 3) AS rows (id, p)"
)


def roll_back(target: Target, _change: Change) -> None:
    """Return to the first snapshot."""
    first = target.snapshots()[-1]
    target.sql(f"CALL lake.system.rollback_to_snapshot('{{s}}', {first})")


@dataclass(frozen=True, kw_only=True)
class Case:
    """What others do, and what our run then replaces."""

    steps: Sequence[tuple[str, Action]]
    # A query and its one value after the run, which shows that the others did what they should.
    shows: tuple[str, object]
    # Rows in the replaced files, by the name of the mode; one that is not there is not tried.
    replaced: Mapping[str, int]
    # Files that an overwrite by a filter reads again, because they are new or have new deletes.
    searched_again: int = 0
    posts: int = 2


def before_post(*statements: str) -> list[tuple[str, Action]]:
    """Return the step of others who run statements before the first post."""
    return [("post", by_sql(*statements))]


CASES = {
    "an append": Case(
        steps=before_post(INSERT),
        shows=("SELECT count(*) FROM {t} VERSION AS OF {parent}", 50),
        replaced={
            "all": 50,
            "partitions": 25,
            "all, snapshot": 48,
            "partitions, snapshot": 24,
            "where": 28,
            "where, snapshot": 27,
        },
    ),
    "an append that merges manifests": Case(
        steps=before_post(SET + "('commit.manifest.min-count-to-merge'='2')", INSERT),
        shows=("SELECT count(*) FROM {t}.manifests VERSION AS OF {parent}", 1),
        replaced={
            "all": 50,
            "partitions": 25,
            "all, snapshot": 48,
            "partitions, snapshot": 24,
            "where": 28,
            "where, snapshot": 27,
        },
    ),
    "a merge-on-read delete": Case(
        steps=before_post(SET + "('write.delete.mode'='merge-on-read')", DELETE),
        shows=("SELECT count(*) FROM {t}.delete_files VERSION AS OF {parent}", 2),
        replaced={"all": 48, "partitions": 24, "where": 25},
        searched_again=2,
    ),
    "a copy-on-write delete": Case(
        steps=before_post(SET + "('write.delete.mode'='copy-on-write')", DELETE),
        shows=("SELECT sum(record_count) FROM {t}.files VERSION AS OF {parent}", 46),
        replaced={"all": 46, "partitions": 23, "where": 25},
        searched_again=2,
    ),
    "a compaction": Case(
        steps=before_post(COMPACT),
        shows=("SELECT count(*) FROM {t}.files VERSION AS OF {parent}", 4),
        replaced={"all": 48, "partitions": 24, "where": 27},
        searched_again=3,
    ),
    "a roll-back": Case(
        steps=[("post", roll_back)],
        shows=("SELECT count(*) FROM {t} VERSION AS OF {parent}", 40),
        replaced={"all": 40, "partitions": 20, "where": 25},
    ),
    "an overwrite, with the earlier snapshots expired": Case(
        steps=before_post(OVERWRITE, EXPIRE),
        shows=("SELECT count(*) FROM {t}.snapshots", 2),
        replaced={"all": 2, "partitions": 1, "where": 1},
    ),
    "an overwrite, with the parent expired while it is read": Case(
        steps=[("post", by_sql(INSERT)), ("loss", by_sql(OVERWRITE, EXPIRE))],
        shows=("SELECT count(*) FROM {t}.snapshots", 2),
        replaced={"partitions": 1, "where": 1},
    ),
    "a new column": Case(
        steps=before_post("ALTER TABLE {t} ADD COLUMN note STRING"),
        shows=("SELECT count(*) FROM {t} WHERE note IS NULL AND id < 1000", ROWS),
        replaced={
            "all": 48,
            "partitions": 24,
            "partitions, snapshot": 24,
            "where": 27,
            "where, snapshot": 27,
        },
    ),
    "a wider partition column": Case(
        steps=before_post("ALTER TABLE {t} ALTER COLUMN p TYPE BIGINT", INSERT),
        shows=("SELECT count(*) FROM {t} VERSION AS OF {parent}", 50),
        replaced={"partitions": 25, "where": 28},
        searched_again=3,  # The filter uses the column.
    ),
    "a rewrite of manifests": Case(
        steps=before_post("CALL lake.system.rewrite_manifests(table => '{s}')"),
        shows=("SELECT count(*) FROM {t}.manifests VERSION AS OF {parent}", 1),
        replaced={"partitions": 24, "all, snapshot": 48, "where": 27, "where, snapshot": 27},
    ),
    "a delete of all rows": Case(
        steps=before_post("DELETE FROM {t}"),
        shows=("SELECT count(*) FROM {t}.files VERSION AS OF {parent}", 0),
        replaced={"partitions": 0, "where": 0},
    ),
    "a replacement of the table": Case(
        steps=before_post(REPLACE),
        shows=("SELECT count(*) FROM {t} VERSION AS OF {parent}", 2),
        replaced={"partitions": 1, "where": 1},
    ),
    "a commit to another branch": Case(
        steps=before_post(
            "ALTER TABLE {t} CREATE BRANCH audit", "INSERT INTO {t}.branch_audit VALUES (9001, 1)"
        ),
        shows=("SELECT count(*) FROM {t} VERSION AS OF 'audit'", 49),
        replaced={"partitions": 24, "where": 27},
    ),
    "a new partition field": Case(
        steps=before_post(ADD_FIELD, INSERT),
        shows=("SELECT count(DISTINCT spec_id) FROM {t}.files VERSION AS OF {parent}", 2),
        replaced={"all": 50, "all, snapshot": 48, "where": 28, "where, snapshot": 27},
    ),
    "an append of which some rows match": Case(
        steps=before_post("INSERT INTO {t} VALUES (9001, 1), (9005, 1), (9003, 3)"),
        shows=("SELECT count(*) FROM {t} VERSION AS OF {parent}", 51),
        replaced={"where": 28, "where, snapshot": 27},
        searched_again=1,
    ),
    "a rewrite of files that others delete": Case(
        steps=[("rewriter", by_sql(SET + "('write.delete.mode'='copy-on-write')", DELETE, EXPIRE))],
        shows=("SELECT sum(record_count) FROM {t}.files VERSION AS OF {parent}", 46),
        replaced={"where": 25},
        posts=1,
    ),
    "one after the other": Case(
        steps=[("post", by_sql(INSERT)), ("post", by_sql(COMPACT)), ("post", by_sql(DELETE))],
        shows=("SELECT count(*) FROM {t} VERSION AS OF {parent}", 48),
        replaced={"partitions": 24, "where": 26},
        searched_again=5,
        posts=4,
    ),
}
# What an overwrite by a filter does differently from one of all rows; the rest is run nightly.
BY_ROW = (
    "an append of which some rows match",
    "an append that merges manifests",
    "a merge-on-read delete",
    "a compaction",
    "a roll-back",
    "an overwrite, with the earlier snapshots expired",
    "a rewrite of files that others delete",
    "a new partition field",
)


def marks(name: str, mode: Mode) -> list[pytest.MarkDecorator]:
    """Return the marks of a case."""
    is_often = mode not in BY_FILTER or (mode is WHERE and name in BY_ROW) or name == BY_ROW[0]
    return [] if is_often else [pytest.mark.slow]


EACH = [
    pytest.param(case, mode, id=f"{name}, {mode.name}", marks=marks(name, mode))
    for name, case in CASES.items()
    for mode in (*MODES, *SPARING, *BY_FILTER)
    if mode.name in case.replaced
]


@pytest.mark.parametrize(("case", "mode"), EACH)
def test_what_others_changed_meanwhile_is_replaced_too(
    target: Target, monkeypatch: pytest.MonkeyPatch, case: Case, mode: Mode
) -> None:
    """A refused post costs another look: what goes is computed for the table as it is then."""
    left = meddle(monkeypatch, target, case.steps)
    report = target.replace(mode)
    assert left == []
    ours, parent, *_ = [*target.snapshots(), 0]
    assert (report.outcome, report.snapshot_id) == ("committed", ours)
    assert (report.posts, report.replaced_rows) == (case.posts, case.replaced[mode.name])
    assert target.outcomes == [Outcome.CONFLICT] * (case.posts - 1) + [Outcome.LANDED]
    again = case.searched_again if mode is WHERE else 0
    searched = 3 + again if mode in BY_FILTER else 0
    assert (report.searched_files, report.searched_again) == (searched, again)
    query, answer = case.shows
    assert target.sql(query.replace("{parent}", str(parent))) == [(answer,)]
    target.check_rows(mode, parent)


MORE_THAN_ADDED = (
    "a merge-on-read delete",
    "a copy-on-write delete",
    "a compaction",
    "a roll-back",
    "an overwrite, with the earlier snapshots expired",
)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(name, mode, id=f"{name}, {mode.name}", marks=marks(name, mode))
        for name in MORE_THAN_ADDED
        for mode in (*SPARING, SPARING_WHERE)
    ],
)
def test_with_snapshot_isolation_others_may_only_add_rows(
    target: Target, monkeypatch: pytest.MonkeyPatch, name: str, mode: Mode
) -> None:
    """An old row cannot be told from a new one then; told to replace both, the run lands."""
    left = meddle(monkeypatch, target, CASES[name].steps)
    with pytest.raises(TableChangedError, match=r'isolation_level="serializable"'):
        target.replace(mode)
    assert (left, target.outcomes) == ([], [Outcome.CONFLICT])
    (head, *_) = target.snapshots()
    all_go = next(other for other in (*MODES, WHERE) if f"{other.name}, snapshot" == mode.name)
    report = target.replace(all_go)
    assert (report.kept_rows, report.posts) == (ROWS, 1)
    target.check_rows(all_go, head)


RENAMED = {
    "renamed": ("ALTER TABLE {t} RENAME COLUMN id TO key",),
    "dropped and added again": (
        "ALTER TABLE {t} DROP COLUMN id",
        "ALTER TABLE {t} ADD COLUMN id BIGINT",
    ),
}
REFUSED = {
    "a new partition field": (ADD_FIELD, PARTITIONS, "8 of its files are partitioned differently"),
    "no partition field": (DROP_FIELD, PARTITIONS, "it has no partitions"),
    "an upgrade, for all": (SET + "('format-version'='3')", ALL, "format v3"),
    "an upgrade, for partitions": (SET + "('format-version'='3')", PARTITIONS, "format v3"),
    "an upgrade, by a filter": (SET + "('format-version'='3')", WHERE, "format v3"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_that_can_no_longer_be_replaced_is_refused_unchanged(
    target: Target, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """The error is the one that a start on such a table gets."""
    statement, mode, message = REFUSED[case]
    before, rows = target.snapshots(), target.lake.rows("t").collect()
    left = meddle(monkeypatch, target, before_post(statement))
    for _start in range(2):
        with pytest.raises(UnsupportedTableError, match=message):
            target.replace(mode)
    assert (left, target.outcomes) == ([], [Outcome.CONFLICT])
    assert target.snapshots() == before
    assert sorted(target.lake.rows("t").collect()) == sorted(rows)


def test_rows_that_others_partitioned_anew_are_replaced_or_refused(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All live files are of the new spec then, and the staged ones of the old: none is equal."""
    left, before = meddle(monkeypatch, target, before_post(ADD_FIELD, COMPACT)), target.snapshots()
    with contextlib.suppress(TableChangedError):
        target.replace(PARTITIONS)
    if left:
        pytest.fail("nothing was partitioned anew")
    if target.outcomes == [Outcome.CONFLICT]:
        target.check_equal(target.as_of(before[0]))
    else:
        target.check_rows(PARTITIONS, before[0])


def test_a_partition_of_decimals_that_was_widened_is_still_one_partition(target: Target) -> None:
    """Old and new manifests store the same value with different lengths."""
    new = "SELECT 9L AS id, CAST(1.5 AS DECIMAL(18, 2)) AS d"
    target.sql(
        "DROP TABLE {t}",
        "CREATE TABLE {t} (id BIGINT, d DECIMAL(9, 2)) USING iceberg PARTITIONED BY (d)",
        "INSERT INTO {t} VALUES (1, 1.5), (2, 2.5)",
        "ALTER TABLE {t} ALTER COLUMN d TYPE DECIMAL(18, 2)",
        "INSERT INTO {t} VALUES (3, 1.5), (4, 2.5)",
    )
    rows, name = target.lake.session.sql(new), target.lake.name("t")
    hf.Run("r", **target.ledger).overwrite_partitions(rows, to=name, key="id")
    assert sorted(target.sql("SELECT id FROM {t}")) == [(2,), (4,), (9,)]


# ---- Staged files that are removed before they land


def take_a_file(target: Target, change: Change) -> None:
    """Delete a data file of the run that has not landed yet, and append."""
    unlink(target, change.adds[0].files[0].path)
    target.sql(INSERT)


@pytest.mark.parametrize("mode", [*MODES, WHERE], ids=lambda mode: mode.name)
def test_a_staged_file_that_is_gone_is_computed_again(
    target: Target, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """The refused post makes us look again: a post without the file would lose its rows."""
    left = meddle(monkeypatch, target, [("post", take_a_file)])
    report = target.replace(mode)
    assert (left, target.outcomes) == ([], [Outcome.CONFLICT, Outcome.LANDED])
    assert report.withdrawn_rows == ROWS
    assert report.replaced_rows == CASES["an append"].replaced[mode.name]
    target.check_rows(mode, target.snapshots()[1])


def take_a_rewritten_file(target: Target, change: Change) -> None:
    """Delete a new file with rows of the table that stay, and append."""
    unlink(target, change.loss.handle.added[0].files[0].path)
    target.sql(INSERT)


def test_a_rewritten_file_that_is_gone_is_written_again(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A post without it would lose rows that the filter does not match."""
    left = meddle(monkeypatch, target, [("post", take_a_rewritten_file)])
    report = target.replace(WHERE)
    assert (left, target.outcomes) == ([], [Outcome.CONFLICT, Outcome.LANDED])
    assert (report.withdrawn_rows, report.searched_again) == (0, 1)
    target.check_rows(WHERE, target.snapshots()[1])


@pytest.mark.parametrize("statement", RENAMED)
def test_a_filter_whose_column_has_another_name_is_refused(
    target: Target, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """Its text would mean another column, or none."""
    before, rows = target.snapshots(), target.lake.rows("t").collect()
    left = meddle(monkeypatch, target, before_post(*RENAMED[statement]))
    with pytest.raises(TableChangedError, match="column 'id' was "):
        target.replace(WHERE)
    assert (left, target.outcomes) == ([], [Outcome.CONFLICT])
    assert target.snapshots() == before
    assert len(target.lake.rows("t").collect()) == len(rows)


def test_posts_before_a_staged_file_was_gone_are_counted(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report is of the whole start."""
    meddle(monkeypatch, target, [("post", take_a_file)])
    assert target.replace(ALL).posts == len(target.outcomes)


@each_mode
def test_a_staged_manifest_that_is_gone_stops_this_start_and_not_the_next(
    target: Target, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """It lists the partitions of the new rows, and is read after all files were seen to exist."""
    before = target.snapshots()
    take: Action = lambda target, change: unlink(target, change.adds[0].path)  # noqa: E731
    left = meddle(monkeypatch, target, [("loss", take)])
    with pytest.raises(StoreUnavailableError, match="no such object"):
        target.replace(mode)
    assert (left, target.outcomes, target.snapshots()) == ([], [], before)
    report = target.replace(mode)
    assert report.withdrawn_rows == ROWS
    assert report.replaced_rows == (48 if mode is ALL else 24)
    target.check_rows(mode, before[0])
