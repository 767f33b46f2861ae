"""Commits of Iceberg's own library that were planned before an overwrite, and come after it.

What they planned for files that the overwrite removed is refused; the rest is applied to the new
rows, as if it had been planned after it.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from holdfast.sinks.iceberg.catalog import open_catalog
from tests.integration.replace_desk import ALL, MODES, PARTITIONS, WHERE, Mode, Target
from tests.integration.test_replaced_files import Lake
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

each_mode = pytest.mark.parametrize("mode", [*MODES, WHERE], ids=lambda mode: mode.name)


@pytest.fixture
def target(lake: SparkSession, namespace: str, stack: Stack, ledger: dict[str, Any]) -> Target:
    """Return a table with old rows."""
    catalog = open_catalog("lake", stack.rest_catalog_properties())
    return Target(Lake(lake, namespace, catalog), ledger)


class Planner:
    """Plans commits of Java on the table as it is when this is made."""

    def __init__(self, target: Target, *, larger: bool = True) -> None:
        """Load the table as Spark does.

        Args:
            target: The table.
            larger: Which of a partition's two files commits are planned for.
        """
        self.choose = max if larger else min
        session: Any = target.lake.session
        self.io = target.lake.load("t").io
        self.iceberg = session._jvm.org.apache.iceberg  # noqa: SLF001 - there is no public way.
        load = self.iceberg.spark.Spark3Util.loadIcebergTable
        self.table = load(session._jsparkSession, target.lake.name("t"))  # noqa: SLF001
        self.start = self.table.currentSnapshot().snapshotId()

    def is_in(self, partition: int) -> Any:  # noqa: ANN401 - Java's.
        """Return the expression for the rows of a partition."""
        return self.iceberg.expressions.Expressions.equal("p", partition)

    def file(self, partition: int) -> Any:  # noqa: ANN401 - Java's.
        """Return the file of a partition."""
        found, tasks = [], self.table.newScan().filter(self.is_in(partition)).planFiles().iterator()
        while tasks.hasNext():
            found.append(tasks.next().file())
        return self.choose(found, key=lambda file: file.recordCount())

    def copy(self, partition: int) -> Any:  # noqa: ANN401 - Java's.
        """Return a new file with the same rows as that file."""
        file = self.file(partition)
        path = f"{file.location()}.{uuid.uuid4().hex}.parquet"
        with self.io.new_input(file.location()).open() as old:
            data = old.read()
        with self.io.new_output(path).create() as new:
            new.write(data)
        return self.iceberg.DataFiles.builder(self.table.spec()).copy(file).withPath(path).build()

    def delete_of_first(self, partition: int) -> Any:  # noqa: ANN401 - Java's.
        """Plan what a merge-on-read DELETE does to the first row of that file."""
        file, deletes = self.file(partition), self.iceberg.deletes.PositionDelete.create()
        path = self.table.io().newOutputFile(f"{file.location()}.deletes.parquet")
        builder = self.iceberg.parquet.Parquet.writeDeletes(path).withSpec(self.table.spec())
        writer = builder.withPartition(file.partition()).overwrite().buildPositionWriter()
        writer.write(deletes.set(file.location(), 0))
        writer.close()
        planned = self.table.newRowDelta().addDeletes(writer.toDeleteFile())
        return planned.validateFromSnapshot(self.start).validateDataFilesExist([file.location()])

    def rewrite_of_deletes(self, partition: int) -> Any:  # noqa: ANN401 - Java's.
        """Plan a new file in place of one with that file's deletes."""
        tasks = self.table.newScan().filter(self.is_in(partition)).planFiles().iterator()
        deletes = []
        while tasks.hasNext():
            deletes += [*tasks.next().deletes()]
        (old,) = deletes
        path = f"{old.location()}.{uuid.uuid4().hex}.parquet"
        with self.io.new_input(old.location()).open() as stored:
            data = stored.read()
        with self.io.new_output(path).create() as new:
            new.write(data)
        made = self.iceberg.FileMetadata.deleteFileBuilder(self.table.spec()).copy(old)
        planned = self.table.newRewrite().validateFromSnapshot(self.start)
        return planned.deleteFile(old).addFile(made.withPath(path).build())

    def compaction(self, partition: int) -> Any:  # noqa: ANN401 - Java's.
        """Plan a rewrite of that file."""
        planned = self.table.newRewrite().validateFromSnapshot(self.start)
        return planned.deleteFile(self.file(partition)).addFile(self.copy(partition))

    def rewrite_of_rows(self, partition: int) -> Any:  # noqa: ANN401 - Java's.
        """Plan what a copy-on-write UPDATE does, in isolation level snapshot."""
        planned = self.table.newOverwrite().validateFromSnapshot(self.start)
        planned = planned.deleteFile(self.file(partition)).addFile(self.copy(partition))
        return planned.validateNoConflictingDeletes()


@each_mode
def test_what_was_planned_for_files_that_we_removed_is_refused(target: Target, mode: Mode) -> None:
    """By Iceberg's own validation, from what our snapshot and its manifests say."""
    java = Planner(target)
    planned = [
        (java.delete_of_first(1), "missing data files"),
        (java.compaction(1), "Missing required files to delete"),
        (java.rewrite_of_rows(1), "Missing required files to delete"),
    ]
    ours = target.replace(mode).snapshot_id
    for commit, message in planned:
        with pytest.raises(Py4JJavaError, match=f"ValidationException: .*{message}"):
            commit.commit()
    assert target.snapshots()[0] == ours
    target.check_rows(mode, java.start)


@pytest.mark.parametrize(
    ("mode", "deleted"), [(PARTITIONS, 1003), (WHERE, 1103)], ids=("partitions", "where")
)
def test_what_was_planned_for_files_that_we_kept_lands(
    target: Target, mode: Mode, deleted: int
) -> None:
    """Their entries are in manifests that we have rewritten, and are found there."""
    java = Planner(target, larger=mode is PARTITIONS)
    planned = [java.compaction(2), java.delete_of_first(3)]
    target.replace(mode)
    for commit in planned:
        commit.commit()
    assert target.sql("SELECT count(*) FROM {t}.delete_files") == [(1,)]
    stays = target.as_of(java.start).where(f"({mode.stays}) AND id != {deleted}")
    target.check_equal(stays.union(target.source()))


def test_a_planned_rewrite_of_deletes_brings_no_row_back(target: Target) -> None:
    """They are for a file that we wrote anew without the deleted row."""
    target.sql(
        "ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')",
        "DELETE FROM {t} WHERE id IN (1001, 1021)",
    )
    java = Planner(target)
    planned = java.rewrite_of_deletes(1)
    target.replace(WHERE)
    with pytest.raises(Py4JJavaError, match=r"ValidationException: .*Missing required files"):
        planned.commit()
    target.check_rows(WHERE, java.start)


@each_mode
def test_appends_that_were_planned_before_ours_add_their_rows(target: Target, mode: Mode) -> None:
    """The second merges our manifests with its own."""
    target.sql("ALTER TABLE {t} SET TBLPROPERTIES ('commit.manifest.min-count-to-merge'='2')")
    java = Planner(target)
    fast, merging = java.table.newFastAppend(), java.table.newAppend()
    planned = [fast.appendFile(java.copy(1)), merging.appendFile(java.copy(3))]
    target.replace(mode)
    for commit in planned:
        commit.commit()
    assert target.sql("SELECT count(*) FROM {t}.manifests") == [(1,)]
    before = target.as_of(java.start)
    theirs = before.where("p IN (1, 3) AND id < 1100")
    target.check_equal(before.where(mode.stays).union(target.source()).union(theirs))


@each_mode
def test_a_planned_delete_by_condition_is_applied_to_our_rows(target: Target, mode: Mode) -> None:
    """It names no files: it is as if it came after ours. So is a replace of a partition."""
    java = Planner(target)
    delete = java.table.newDelete().deleteFromRowFilter(java.is_in(1))
    replace = java.table.newReplacePartitions().addFile(java.copy(0))
    target.replace(mode)
    delete.commit()
    replace.commit()
    before = target.as_of(java.start)
    stays = before.where(f"({mode.stays}) AND p > 1")
    target.check_equal(stays.union(before.where("p = 0 AND id < 1100")))


class Gate:
    """A condition that holds for every row, once a file exists; it tells when it is asked."""

    def __init__(self, folder: Path) -> None:
        """Take the folder of the files."""
        self.asked, self.opened = folder / "asked", folder / "opened"

    def __call__(self, _id: int) -> bool:
        """Wait for the file."""
        self.asked.touch()
        until(self.opened.exists)
        return True


def until(is_so: Callable[[], bool]) -> None:
    """Wait until it is so."""
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("how", "mode", "id_"),
    [
        ("merge-on-read", ALL, 1001),
        ("copy-on-write", PARTITIONS, 1001),
        ("merge-on-read", WHERE, 1021),
        pytest.param("copy-on-write", WHERE, 1021, marks=pytest.mark.slow),
    ],
    ids=lambda value: value.name if isinstance(value, Mode) else str(value),
)
def test_a_delete_of_spark_that_began_before_ours_is_refused(
    target: Target, tmp_path: Path, how: str, mode: Mode, id_: int
) -> None:
    """It has read the old rows when we land, and commits after us, in the weaker isolation.

    By a filter the row itself stays, but in another file.
    """
    gate, errors, before = Gate(tmp_path), [], target.snapshots()[0]
    target.lake.session.udf.register("at_gate", gate, "boolean")
    settings = f"'write.delete.mode'='{how}', 'write.delete.isolation-level'='snapshot'"
    target.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({settings})")

    def delete() -> None:
        try:
            target.sql(f"DELETE FROM {{t}} WHERE id = {id_} AND at_gate(id)")
        except Exception as error:  # noqa: BLE001 - shown below.
            errors.append(str(error))

    thread = threading.Thread(target=delete)
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
