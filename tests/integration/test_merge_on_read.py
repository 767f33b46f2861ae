"""Upserts by merge-on-read beside Iceberg's own library: what it planned, what it left, its upkeep.

Commits that were planned before ours and come after it are refused, or leave the right rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.sinks.iceberg.catalog import open_catalog
from tests.integration.replace_desk import Target
from tests.integration.test_replace_late_commits import Gate, Planner, until
from tests.integration.test_replaced_files import Lake
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

# Each is in the larger of the two files of partition 1, which keeps other rows; 5001 is new.
KEYS = (1001, 1005, 5001)
REFUSED = "ValidationException"


class Merged(Target):
    """The table, and an upsert of rows of its partition 1."""

    def source(self) -> DataFrame:
        """Return the new rows; they are in another partition than the old ones."""
        text = ", ".join(f"({key}, 7)" for key in KEYS)
        return self.lake.session.sql(f"SELECT cast(id AS bigint) id, p FROM VALUES {text} s(id, p)")

    def merge(self) -> hf.Report:
        """Start the run."""
        run = hf.Run("r", **self.ledger)
        name = self.lake.name("t")
        return run.upsert(self.source(), to=name, on="id", write_mode="merge-on-read")

    def check(self, left: DataFrame) -> None:
        """Check the rows: those that are left of others, and ours; for PyIceberg, too."""
        expected = left.where(f"id NOT IN {KEYS}").unionAll(self.source())
        self.check_equal(expected)
        assert self.lake.load("t").scan().to_arrow().num_rows == expected.count()


@pytest.fixture
def target(lake: SparkSession, namespace: str, stack: Stack, ledger: dict[str, Any]) -> Merged:
    """Return a table with old rows."""
    catalog = open_catalog("lake", stack.rest_catalog_properties())
    return Merged(Lake(lake, namespace, catalog), ledger)


def test_what_was_planned_for_a_file_with_new_deletes_is_refused(target: Merged) -> None:
    """A compaction and a rewrite would bring the old rows back."""
    java = Planner(target, larger=True)
    conflicts = java.delete_of_first(1).validateDeletedFiles().validateNoConflictingDeleteFiles()
    planned = [java.compaction(1), java.rewrite_of_rows(1), conflicts]
    report = target.merge()
    assert (report.delete_files, report.replaced_rows) == (1, 2)
    for commit in planned:
        with pytest.raises(Py4JJavaError, match=REFUSED):
            commit.commit()
    assert target.snapshots()[0] == report.snapshot_id
    target.check(target.as_of(java.start))


def test_what_was_planned_for_other_files_lands(target: Merged) -> None:
    """And a delete of an old row that we have replaced deletes no row of ours."""
    java = Planner(target, larger=True)
    planned = [java.compaction(2), java.delete_of_first(3), java.delete_of_first(1)]
    appends = [java.table.newFastAppend().appendFile(java.copy(3))]
    target.merge()
    for commit in (*planned, *appends):
        commit.commit()
    before = target.as_of(java.start)
    copied = before.where("p = 3 AND id < 1100")
    target.check(before.where("id != 1003").unionAll(copied))


def test_a_planned_rewrite_of_deletes_brings_no_row_back(target: Merged) -> None:
    """It concerns the deletes that were there before."""
    target.sql(
        "ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')",
        "DELETE FROM {t} WHERE id IN (1009, 1013)",
    )
    java = Planner(target)
    planned = java.rewrite_of_deletes(1)
    target.merge()
    planned.commit()
    target.check(target.as_of(java.start))


@pytest.mark.parametrize("how", ["merge-on-read", "copy-on-write"])
@pytest.mark.parametrize("statement", ["DELETE", "UPDATE"])
def test_a_statement_of_spark_that_began_before_ours(
    target: Merged, tmp_path: Path, how: str, statement: str
) -> None:
    """It has read the old row when we land, and commits after us, in the weaker isolation.

    A DELETE by positions is as if it came before ours; all others are refused.
    """
    gate, errors, before = Gate(tmp_path), [], target.snapshots()[0]
    target.lake.session.udf.register("at_gate", gate, "boolean")
    target.sql(
        "ALTER TABLE {t} SET TBLPROPERTIES ("
        + ", ".join(
            f"'write.{verb}.mode'='{how}', 'write.{verb}.isolation-level'='snapshot'"
            for verb in ("delete", "update")
        )
        + ")"
    )
    texts = {
        "DELETE": "DELETE FROM {t} WHERE id = 1001 AND at_gate(id)",
        "UPDATE": "UPDATE {t} SET p = 1 WHERE id = 1001 AND at_gate(id)",
    }

    def act() -> None:
        try:
            target.sql(texts[statement])
        except Exception as error:  # noqa: BLE001 - shown below.
            errors.append(str(error))

    thread = threading.Thread(target=act)
    thread.start()
    try:
        until(gate.asked.exists)
        target.merge()
    finally:
        gate.opened.touch()
        thread.join()
    if (how, statement) == ("merge-on-read", "DELETE"):
        assert errors == []
    else:
        assert len(errors) == 1
        assert REFUSED in errors[0]
    target.check(target.as_of(before))


# ---- Deletes that Spark has left, and what it does afterwards


@pytest.mark.parametrize("granularity", ["file", "partition"])
def test_deletes_of_spark_stay_valid(target: Merged, granularity: str) -> None:
    """Those for one file and those for a partition, of which each file has some."""
    target.sql(
        "ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read', "
        f"'write.delete.granularity'='{granularity}')",
        "DELETE FROM {t} WHERE id IN (1001, 1009, 1017, 1101, 1002)",
        "DELETE FROM {t} WHERE id IN (1021)",
    )
    left = target.lake.rows("t").localCheckpoint()
    report = target.merge()
    assert report.replaced_rows == 1  # 1005; 1001 was deleted before.
    target.check(left)
    upkeep(target, lambda: target.check(left))


def upkeep(target: Merged, check: Callable[[], None]) -> None:
    """Let Spark maintain the table, and check it after each step."""
    for name, options in (
        ("rewrite_manifests", "use_caching => false"),
        ("rewrite_position_delete_files", "options => map('rewrite-all', 'true')"),
        ("rewrite_data_files", "options => map('delete-file-threshold', '1')"),
        ("rewrite_data_files", "options => map('rewrite-all', 'true')"),
        ("expire_snapshots", "retain_last => 1, older_than => TIMESTAMP '2100-01-01 00:00:00'"),
    ):
        target.sql(f"CALL lake.system.{name}(table => '{{s}}', {options})")
        check()


def test_two_specs_in_one_snapshot(target: Merged) -> None:
    """Each delete has its file's spec; Spark's DELETE and upkeep work after it."""
    target.sql(
        "ALTER TABLE {t} DROP PARTITION FIELD p",
        "INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, 9 "
        "FROM VALUES (1001L), (1201L), (1202L) v(id)",
    )
    before = target.lake.rows("t").localCheckpoint()
    report = target.merge()
    assert (report.replaced_rows, report.delete_files) == (3, 2)
    specs = target.sql("SELECT spec_id, content FROM {t}.delete_files ORDER BY spec_id")
    assert specs == [(0, 1), (1, 1)]
    assert target.sql("SELECT count(*) FROM {t}.manifests WHERE content = 1") == [(2,)]
    target.check(before)
    target.sql(
        "ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')",
        "DELETE FROM {t} WHERE id IN (1009, 1201)",
    )
    left = before.where("id NOT IN (1009, 1201)")
    target.check(left)
    upkeep(target, lambda: target.check(left))


def test_sparks_own_mode_for_merge(target: Merged) -> None:
    """It looks at `write.merge.mode`; of `write.update.mode` MERGE knows nothing."""
    target.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.update.mode'='merge-on-read')")
    target.source().createOrReplaceTempView("source")
    target.sql(
        "MERGE INTO {t} t USING source s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * "
        "WHEN NOT MATCHED THEN INSERT *"
    )
    assert target.sql("SELECT count(*) FROM {t}.delete_files") == [(0,)]
