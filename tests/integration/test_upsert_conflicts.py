"""Other writers between an upsert's look at the table and its post.

The rows in the end are those that sequential execution gives, first theirs and then ours; or an
error says why our run cannot land, and the table is as the others left it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.io import PY_IO_IMPL
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import SettingsError, StoreUnavailableError, TableChangedError
from holdfast.sinks.base import Change, Outcome
from holdfast.sinks.iceberg.catalog import open_catalog
from holdfast.sinks.iceberg.file_io import FILE_IO_PATH
from tests.integration.replace_desk import Mode
from tests.integration.test_replace_conflicts import (
    ADD_FIELD,
    COMPACT,
    DELETE,
    DROP_FIELD,
    EXPIRE,
    INSERT,
    OVERWRITE,
    RENAMED,
    REPLACE,
    SET,
    Action,
    before_post,
    by_sql,
    meddle,
    roll_back,
    unlink,
)
from tests.integration.test_replaced_files import Lake
from tests.integration.upsert_desk import KEYS, MERGES, SEARCHED, SPARING_MERGES, MergeTarget
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

each_merge = pytest.mark.parametrize("mode", MERGES, ids=lambda mode: mode.name)


@pytest.fixture
def target(lake: SparkSession, namespace: str, stack: Stack, ledger: dict[str, Any]) -> MergeTarget:
    """Return a table with old rows."""
    catalog = open_catalog("lake", stack.rest_catalog_properties())
    return MergeTarget(Lake(lake, namespace, catalog), ledger)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What others do, and what our run does about it."""

    steps: Sequence[tuple[str, Action]]
    # A query and its one value after the run, which shows that the others did what they should.
    shows: tuple[str, object]
    # Files that are read again, because they are new or have new deletes: all but those whose
    # bounds rule out every key.
    again: int = 0
    # How many more in one way to write, at each isolation level.
    more: Mapping[str, int] = field(default_factory=dict)
    # Others only added rows, or none: then a run with snapshot isolation lands too.
    adds_only: bool = False
    posts: int = 2


MERGE = """MERGE INTO {t} t USING (
SELECT * FROM VALUES (1000L, 3), (1001L, 3), (9001L, 3), (9005L, 3) AS s (id, p)
) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""


def by_pyiceberg(rows: Sequence[tuple[int, int]], how: str) -> Action:
    """Return what appends or upserts rows with PyIceberg, or deletes those of their keys."""

    def act(target: Any, _change: Change) -> None:  # noqa: ANN401 - a MergeTarget.
        # The stack's S3 server does not accept how pyarrow's file system completes an upload.
        options = {**target.lake.catalog.properties, PY_IO_IMPL: FILE_IO_PATH}
        table = load_catalog("theirs", **options).load_table(f"{target.lake.namespace}.t")
        ids, parts = (list(column) for column in zip(*rows, strict=True))
        made = pa.table({"id": ids, "p": parts}, schema=table.schema().as_arrow())
        if how == "append":
            table.append(made)
        elif how == "upsert":
            table.upsert(made, join_cols=["id"])
        else:
            table.delete(f"id in ({', '.join(map(str, ids))})")

    return act


def by_holdfast(target: Any, _change: Change) -> None:  # noqa: ANN401 - a MergeTarget.
    """Let another run merge rows of the same keys and others."""
    rows = target.lake.session.createDataFrame(
        [(1000, 2), (9001, 2), (9007, 2)], "id BIGINT, p INT"
    )
    hf.Run("rival", **target.ledger).upsert(rows.coalesce(1), to=target.lake.name("t"), on="id")


def cherry_pick(target: Any, _change: Change) -> None:  # noqa: ANN401 - a MergeTarget.
    """Let others publish what is on a branch, over another commit."""
    target.sql(*SIDE)
    ((picked,),) = target.sql("SELECT snapshot_id FROM {t}.refs WHERE name = 'side'")
    target.sql("INSERT INTO {t} VALUES (9003, 3)")
    target.sql(f"CALL lake.system.cherrypick_snapshot('{{s}}', {picked})")


SIDE = ("ALTER TABLE {t} CREATE BRANCH side", "INSERT INTO {t}.branch_side VALUES (9001, 1)")
_OF_PARENT = "FROM {t} VERSION AS OF {parent}"
CASES = {
    "an append with a key of ours": Case(
        steps=before_post(INSERT),
        shows=(f"SELECT count(*) {_OF_PARENT} WHERE id = 9001", 1),
        again=1,
        adds_only=True,
    ),
    "an append of other keys": Case(
        steps=before_post("INSERT INTO {t} VALUES (9002, 1), (9003, 3)"),
        shows=(f"SELECT count(*) {_OF_PARENT}", 50),
        adds_only=True,
    ),
    "an append of other keys, around one of ours": Case(
        steps=before_post("INSERT INTO {t} VALUES (9000, 1), (9002, 1)"),
        shows=(f"SELECT count(*) {_OF_PARENT}", 50),
        again=1,
        adds_only=True,
    ),
    "an append that merges manifests": Case(
        steps=before_post(SET + "('commit.manifest.min-count-to-merge'='2')", INSERT),
        shows=("SELECT count(*) FROM {t}.manifests VERSION AS OF {parent}", 1),
        again=1,
        adds_only=True,
    ),
    "an append of PyIceberg": Case(
        steps=[("post", by_pyiceberg([(9001, 1), (9003, 3)], "append"))],
        shows=(f"SELECT count(*) {_OF_PARENT} WHERE id = 9001", 1),
        again=1,
        adds_only=True,
    ),
    "a merge-on-read delete": Case(
        steps=before_post(SET + "('write.delete.mode'='merge-on-read')", DELETE),
        shows=("SELECT count(*) FROM {t}.delete_files VERSION AS OF {parent}", 2),
        again=2,
    ),
    "a copy-on-write delete": Case(
        steps=before_post(SET + "('write.delete.mode'='copy-on-write')", DELETE),
        shows=("SELECT sum(record_count) FROM {t}.files VERSION AS OF {parent}", 46),
        again=1,  # The other new file begins after the last key in its range.
    ),
    "a delete of PyIceberg": Case(
        steps=[("post", by_pyiceberg([(1001, 1), (1003, 3)], "delete"))],
        shows=(f"SELECT count(*) {_OF_PARENT}", 46),
        again=1,
    ),
    "a compaction": Case(
        steps=before_post(COMPACT),
        shows=("SELECT count(*) FROM {t}.files VERSION AS OF {parent}", 4),
        again=4,
    ),
    "a rewrite of manifests": Case(
        steps=before_post("CALL lake.system.rewrite_manifests(table => '{s}')"),
        shows=("SELECT count(*) FROM {t}.manifests VERSION AS OF {parent}", 1),
        adds_only=True,
    ),
    "a copy-on-write merge of the same keys": Case(
        steps=before_post(SET + "('write.merge.mode'='copy-on-write')", MERGE),
        shows=(f"SELECT count(*) {_OF_PARENT} WHERE id in (1000, 1001, 9001) AND p = 3", 3),
        again=3,
    ),
    "a merge-on-read merge of the same keys": Case(
        steps=before_post(SET + "('write.merge.mode'='merge-on-read')", MERGE),
        shows=(f"SELECT count(*) {_OF_PARENT} WHERE id in (1000, 1001, 9001) AND p = 3", 3),
        again=3,
        # Our run follows the property, too: what it has rewritten is of no use then.
        more={"copy-on-write": 5},
    ),
    "a merge of the same keys while files are searched": Case(
        steps=[("rewriter", by_sql(SET + "('write.merge.mode'='copy-on-write')", MERGE, EXPIRE))],
        shows=(f"SELECT count(*) {_OF_PARENT} WHERE id in (1000, 1001, 9001) AND p = 3", 3),
        posts=1,
    ),
    "an upsert of PyIceberg": Case(
        steps=[("post", by_pyiceberg([(1000, 2), (9001, 2), (9005, 2)], "upsert"))],
        shows=(f"SELECT count(*) {_OF_PARENT} WHERE id in (1000, 9001) AND p = 2", 2),
        again=3,  # The rest of the file that had 1000, its new row, and the file of new rows.
    ),
    "an upsert of another run": Case(
        steps=[("post", by_holdfast)],
        shows=(f"SELECT count(*) {_OF_PARENT} WHERE id in (1000, 9001) AND p = 2", 2),
        again=2,
    ),
    "a roll-back": Case(
        steps=[("post", roll_back)],
        shows=(f"SELECT count(*) {_OF_PARENT}", 40),
    ),
    "an overwrite, with the earlier snapshots expired": Case(
        steps=before_post(OVERWRITE, EXPIRE),
        shows=("SELECT count(*) FROM {t}.snapshots", 2),
        again=1,
    ),
    "an overwrite, with the parent expired while it is read": Case(
        steps=[("post", by_sql(INSERT)), ("loss", by_sql(OVERWRITE, EXPIRE))],
        shows=("SELECT count(*) FROM {t}.snapshots", 2),
        again=1,
    ),
    "a new column": Case(
        steps=before_post("ALTER TABLE {t} ADD COLUMN note STRING"),
        shows=("SELECT count(*) FROM {t} WHERE note IS NULL AND id < 1000", 4),
        more={"merge-on-read": SEARCHED},  # The table's columns stand in manifests of deletes.
        adds_only=True,
    ),
    "a wider column beside the key": Case(
        steps=before_post("ALTER TABLE {t} ALTER COLUMN p TYPE BIGINT", INSERT),
        shows=(f"SELECT count(*) {_OF_PARENT}", 50),
        again=1,
        more={"merge-on-read": SEARCHED},
        adds_only=True,
    ),
    "a new partition field": Case(
        steps=before_post(ADD_FIELD, INSERT),
        shows=("SELECT count(DISTINCT spec_id) FROM {t}.files VERSION AS OF {parent}", 2),
        again=1,
        adds_only=True,
    ),
    "no partition field": Case(
        steps=before_post(DROP_FIELD, INSERT),
        shows=("SELECT count(DISTINCT spec_id) FROM {t}.files VERSION AS OF {parent}", 2),
        again=1,
        adds_only=True,
    ),
    "a new partition field, and all rows in it": Case(
        steps=before_post(ADD_FIELD, COMPACT),
        shows=("SELECT count(DISTINCT spec_id) FROM {t}.files VERSION AS OF {parent}", 1),
        again=6,  # Of the other two, no key is within the bounds.
    ),
    "a delete of all rows": Case(
        steps=before_post("DELETE FROM {t}"),
        shows=("SELECT count(*) FROM {t}.files VERSION AS OF {parent}", 0),
    ),
    "a replacement of the table": Case(
        steps=before_post(REPLACE),
        shows=(f"SELECT count(*) {_OF_PARENT}", 2),
        again=1,
    ),
    "a commit to another branch": Case(
        steps=before_post(
            "ALTER TABLE {t} CREATE BRANCH audit", "INSERT INTO {t}.branch_audit VALUES (9001, 1)"
        ),
        shows=("SELECT count(*) FROM {t} VERSION AS OF 'audit'", 49),
        adds_only=True,
    ),
    "a branch with a key of ours that is fast-forwarded to": Case(
        steps=before_post(*SIDE, "CALL lake.system.fast_forward('{s}', 'main', 'side')"),
        shows=(f"SELECT count(*) {_OF_PARENT} WHERE id = 9001", 1),
        again=1,
        adds_only=True,
    ),
    "a snapshot with a key of ours that is cherry-picked": Case(
        steps=[("post", cherry_pick)],
        shows=(f"SELECT count(*) {_OF_PARENT} WHERE id IN (9001, 9003)", 2),
        again=1,
        adds_only=True,
    ),
    "one after the other": Case(
        steps=[("post", by_sql(INSERT)), ("post", by_sql(COMPACT)), ("post", by_sql(DELETE))],
        shows=(f"SELECT count(*) {_OF_PARENT}", 48),
        again=7,
        posts=4,
    ),
}
# What concerns the key index; the rest is run nightly.
OFTEN = (
    "an append with a key of ours",
    "a merge-on-read delete",
    "a compaction",
    "a merge of the same keys while files are searched",
    "an upsert of another run",
)


def marks(name: str) -> list[pytest.MarkDecorator]:
    """Return the marks of a case."""
    return [] if name in OFTEN else [pytest.mark.slow]


@pytest.mark.parametrize(
    ("case", "mode"),
    [
        pytest.param(case, mode, id=f"{name}, {mode.name}", marks=marks(name))
        for name, case in CASES.items()
        for mode in (*MERGES, *(SPARING_MERGES if case.adds_only else ()))
    ],
)
def test_the_rows_are_as_if_others_had_written_first(
    target: MergeTarget, monkeypatch: pytest.MonkeyPatch, case: Case, mode: Mode
) -> None:
    """A refused post costs a search of the files that are new, and of no others."""
    left = meddle(monkeypatch, target, case.steps)
    report = target.replace(mode)
    assert left == []
    ours, parent, *_ = [*target.snapshots(), 0]
    assert (report.outcome, report.snapshot_id) == ("committed", ours)
    query, answer = case.shows
    assert target.sql(query.replace("{parent}", str(parent))) == [(answer,)]
    target.check_rows(mode, parent)
    assert report.replaced_rows == target.replaced(mode, parent)
    assert report.posts == case.posts
    again = 0 if mode in SPARING_MERGES else case.again
    again += sum(files for how, files in case.more.items() if how in mode.name)
    if case.posts > 1:
        assert (report.searched_files, report.searched_again) == (SEARCHED + again, again)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(
            name, mode, id=f"{name}, {mode.name}", marks=[] if mode is MERGES[0] else marks(name)
        )
        for name, case in CASES.items()
        for mode in SPARING_MERGES
        if not case.adds_only and case.posts == 2
    ],
)
def test_with_snapshot_isolation_others_may_only_add_rows(
    target: MergeTarget, monkeypatch: pytest.MonkeyPatch, name: str, mode: Mode
) -> None:
    """An old row cannot be told from a new one then; with the stronger isolation the run lands."""
    left = meddle(monkeypatch, target, CASES[name].steps)
    with pytest.raises(TableChangedError, match=r'isolation_level="serializable"'):
        target.replace(mode)
    assert left == [] or name.endswith("while it is read")
    head = target.snapshots()[0]
    stronger = MERGES[SPARING_MERGES.index(mode)]
    report = target.replace(stronger)
    assert (report.kept_rows, report.posts) == (len(KEYS), 1)
    target.check_rows(stronger, head)


# ---- The key columns themselves


@each_merge
@pytest.mark.parametrize("statement", RENAMED)
def test_a_key_column_with_another_name_is_refused(
    target: MergeTarget, monkeypatch: pytest.MonkeyPatch, mode: Mode, statement: str
) -> None:
    """Its name would mean another column, or none; the table is as the others left it."""
    before, rows = target.snapshots(), target.lake.rows("t").collect()
    left = meddle(monkeypatch, target, before_post(*RENAMED[statement]))
    with pytest.raises(TableChangedError, match="column 'id' was "):
        target.replace(mode)
    # A start that finds no such column says so before it looks at what is staged.
    with pytest.raises((TableChangedError, SettingsError), match="column 'id'"):
        target.replace(mode)
    assert (left, target.outcomes) == ([], [Outcome.CONFLICT])
    assert target.snapshots() == before
    assert len(target.lake.rows("t").collect()) == len(rows)


WIDER = {
    "id BIGINT": ("id INT", "cast(id as int)"),
    "id DECIMAL(18, 2)": ("id DECIMAL(9, 2)", "cast(id as decimal(9, 2))"),
}


@each_merge
@pytest.mark.parametrize("wide", WIDER)
def test_a_key_column_that_becomes_wider_still_finds_its_rows(
    target: MergeTarget, monkeypatch: pytest.MonkeyPatch, mode: Mode, wide: str
) -> None:
    """Old files, files since then, and our own are of different types."""
    narrow, value = WIDER[wide]
    column, kind = wide.split(" ", 1)
    target.sql(
        "DROP TABLE {t}",
        f"CREATE TABLE {{t}} ({narrow}, p INT) USING iceberg PARTITIONED BY (p)",
        f"INSERT INTO {{t}} SELECT {value}, cast(id % 4 as int) FROM range(1000, 1040)",
    )
    before = target.lake.rows("t").collect()
    rows = target.source().selectExpr(f"{value} id", "p")
    widen = f"ALTER TABLE {{t}} ALTER COLUMN {column} TYPE {kind}"
    left = meddle(monkeypatch, target, before_post(widen, INSERT))
    run = hf.Run("r", **target.ledger)
    report = run.upsert(rows, to=target.lake.name("t"), **mode.options)
    assert left == []
    theirs = [*((row[0], row[1]) for row in before), (9001, 1), (9003, 3)]
    stays = [row for row in theirs if row[0] not in KEYS]
    new = [(key, 3 - key % 4) for key in KEYS]
    assert sorted(target.sql("SELECT * FROM {t}")) == sorted([*stays, *new])
    assert report.replaced_rows == len(theirs) - len(stays)


# ---- Objects that are removed before they land


def take_a_staged_file(target: Any, change: Change) -> None:  # noqa: ANN401 - a MergeTarget.
    """Delete a data file of the run that has not landed yet, and append."""
    unlink(target, change.adds[0].files[0].path)
    target.sql(INSERT)


@each_merge
def test_a_staged_file_that_is_gone_is_computed_again(
    target: MergeTarget, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """The index was built from it; the new file makes another index."""
    left = meddle(monkeypatch, target, [("post", take_a_staged_file)])
    report = target.replace(mode)
    assert (left, target.outcomes) == ([], [Outcome.CONFLICT, Outcome.LANDED])
    assert report.withdrawn_rows > 0
    target.check_rows(mode, target.snapshots()[1])


def take_a_rewritten_file(target: Any, change: Change) -> None:  # noqa: ANN401 - a MergeTarget.
    """Delete a file that the search has written, and append."""
    handle = change.loss.handle
    unlink(target, (*handle.added, *handle.deletes)[0].files[0].path)
    target.sql(INSERT)


@each_merge
def test_a_file_of_the_search_that_is_gone_is_written_again(
    target: MergeTarget, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """A post without it would lose rows of other keys, or keep old ones."""
    left = meddle(monkeypatch, target, [("post", take_a_rewritten_file)])
    report = target.replace(mode)
    assert (left, target.outcomes) == ([], [Outcome.CONFLICT, Outcome.LANDED])
    assert (report.withdrawn_rows, report.searched_again) == (0, 2)
    target.check_rows(mode, target.snapshots()[1])


@each_merge
def test_a_file_of_the_table_that_is_gone_stops_the_run_until_it_is_restored(
    target: MergeTarget, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """The snapshot still lists it, so its rows cannot be searched; nothing is posted."""
    query = "SELECT file_path FROM {t}.files WHERE lower_bounds[1] = X'E803000000000000'"
    ((path,),) = target.sql(query)
    io = target.lake.load("t").io
    with io.new_input(path).open() as old:
        data = old.read()
    before = target.snapshots()
    left = meddle(monkeypatch, target, [("rewriter", lambda target, _: unlink(target, path))])
    for _start in range(2):
        with pytest.raises(StoreUnavailableError, match="lacks 1 file"):
            target.replace(mode)
    assert (left, target.outcomes, target.snapshots()) == ([], [], before)
    with io.new_output(path).create() as new:
        new.write(data)
    report = target.replace(mode)
    assert (report.kept_rows, report.searched_files) == (len(KEYS), 1)
    target.check_rows(mode, before[0])


# ---- Keys that change after the index was built


@each_merge
def test_a_withdrawn_row_that_gets_another_key_leaves_the_old_keys_row_alone(
    target: MergeTarget, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: Mode
) -> None:
    """The first index has the key 1000, the second 1004 in its place; the table's 1000 stays."""
    key = tmp_path / "key"
    key.write_text("1000")

    def take(target: Any, change: Change) -> None:  # noqa: ANN401 - a MergeTarget.
        for path in [file.path for group in change.adds for file in group.files]:
            unlink(target, path)
        key.write_text("1004")
        target.sql(INSERT)

    def keyed(batch: pa.RecordBatch) -> dict[str, Any]:
        ids = [int(key.read_text()) if row == 1 else 1001 for row in batch["source"].to_pylist()]
        return {"id": pa.array(ids, pa.int64()), "p": pa.array([7] * len(ids), pa.int32())}

    left = meddle(monkeypatch, target, [("post", take)])
    rows = target.lake.session.createDataFrame([(1,), (2,)], "source INT").coalesce(1)
    options: dict[str, Any] = {**mode.options, "key": "source", "transform": keyed}
    report = hf.Run("r", **target.ledger).upsert(rows, to=target.lake.name("t"), **options)
    assert (left, report.withdrawn_rows, report.replaced_rows) == ([], 2, 2)
    found = dict(target.sql("SELECT id, p FROM {t} WHERE id IN (1000, 1001, 1004)"))
    assert found == {1000: 0, 1001: 7, 1004: 7}
    assert target.sql("SELECT count(*) FROM {t}") == [(50,)]
