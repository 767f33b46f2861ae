"""Commits of Iceberg's own library that were planned before an upsert, and come after it.

What they planned for rows that the upsert replaced is refused, or does no harm; the rest is applied
to the new rows, as if it had been planned after it.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from holdfast.sinks.iceberg.catalog import open_catalog
from tests.integration.replace_desk import Mode
from tests.integration.test_replace_late_commits import Gate, Planner, until
from tests.integration.test_replaced_files import Lake
from tests.integration.upsert_desk import MERGES, MergeTarget
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

each_merge = pytest.mark.parametrize("mode", MERGES, ids=lambda mode: mode.name)
# Planned for the file that has two of our keys, 1001 as its first row; and what refuses it, if
# that file was rewritten.
PLANNED = {
    "delete_of_first": "missing data files",
    "compaction": "Missing required files to delete",
    "rewrite_of_rows": "Missing required files to delete",
}


@pytest.fixture
def target(lake: SparkSession, namespace: str, stack: Stack, ledger: dict[str, Any]) -> MergeTarget:
    """Return a table with old rows."""
    catalog = open_catalog("lake", stack.rest_catalog_properties())
    return MergeTarget(Lake(lake, namespace, catalog), ledger)


@each_merge
def test_what_was_planned_for_files_that_we_rewrote_is_refused(
    target: MergeTarget, mode: Mode
) -> None:
    """If only deletes were added to the file, a delete of the same row may land: it is gone."""
    java = Planner(target)
    planned = {name: getattr(java, name)(1) for name in PLANNED}
    target.replace(mode)
    refused = {}
    for name, commit in planned.items():
        try:
            commit.commit()
        except Py4JJavaError as error:
            refused[name] = str(error)
        target.check_rows(mode, java.start)
    assert refused.keys() >= {"compaction", "rewrite_of_rows"}
    if "copy-on-write" in mode.name:
        assert refused.keys() == PLANNED.keys()
    for name, message in refused.items():
        assert "ValidationException" in message
        assert "copy-on-write" not in mode.name or PLANNED[name] in message


@each_merge
def test_what_was_planned_for_files_without_our_keys_lands(target: MergeTarget, mode: Mode) -> None:
    """Their entries are in manifests that we have rewritten, and are found there."""
    java = Planner(target)
    planned = [java.compaction(2), java.delete_of_first(3)]
    target.replace(mode)
    for commit in planned:
        commit.commit()
    stays = target.as_of(java.start).where(f"({mode.stays}) AND id != 1003")
    target.check_equal(stays.union(target.source()))


@each_merge
def test_a_planned_rewrite_of_deletes_brings_no_row_back(target: MergeTarget, mode: Mode) -> None:
    """One of the deleted rows has a key of ours, and the other does not."""
    target.sql(
        "ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')",
        "DELETE FROM {t} WHERE id IN (1001, 1021)",
    )
    java = Planner(target)
    planned = java.rewrite_of_deletes(1)
    target.replace(mode)
    target.check_rows(mode, java.start)
    if "copy-on-write" in mode.name:
        with pytest.raises(Py4JJavaError, match=r"ValidationException: .*Missing required files"):
            planned.commit()
    else:
        planned.commit()
    stays = target.as_of(java.start).where(mode.stays)
    target.check_equal(stays.union(target.source()))


@each_merge
def test_appends_that_were_planned_before_ours_add_their_rows(
    target: MergeTarget, mode: Mode
) -> None:
    """Also under keys of ours, which are then there twice: an append replaces nothing."""
    target.sql("ALTER TABLE {t} SET TBLPROPERTIES ('commit.manifest.min-count-to-merge'='2')")
    java = Planner(target)
    fast, merging = java.table.newFastAppend(), java.table.newAppend()
    planned = [fast.appendFile(java.copy(1)), merging.appendFile(java.copy(3))]
    target.replace(mode)
    for commit in planned:
        commit.commit()
    before = target.as_of(java.start)
    theirs = before.where("p IN (1, 3) AND id < 1100")
    target.check_equal(before.where(mode.stays).union(target.source()).union(theirs))


@each_merge
@pytest.mark.parametrize("how", ["copy-on-write", "merge-on-read"])
def test_a_merge_of_spark_that_began_before_ours_is_refused(
    target: MergeTarget, tmp_path: Path, how: str, mode: Mode
) -> None:
    """It has read the old row of a key of ours when we land, in the weaker isolation."""
    gate, errors, before = Gate(tmp_path), [], target.snapshots()[0]
    target.lake.session.udf.register("at_gate", gate, "boolean")
    settings = f"'write.merge.mode'='{how}', 'write.merge.isolation-level'='snapshot'"
    target.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({settings})")

    def merge() -> None:
        try:
            target.sql(
                "MERGE INTO {t} t USING (SELECT * FROM VALUES (1001L) AS s (id)) s "
                "ON t.id = s.id AND at_gate(t.id) WHEN MATCHED THEN UPDATE SET p = 1"
            )
        except Exception as error:  # noqa: BLE001 - shown below.
            errors.append(str(error))

    thread = threading.Thread(target=merge)
    thread.start()
    try:
        until(gate.asked.exists)
        target.replace(mode)
    finally:
        gate.opened.touch()
        thread.join()
    assert len(errors) == 1
    assert "ValidationException" in errors[0]
    target.check_rows(mode, before)
