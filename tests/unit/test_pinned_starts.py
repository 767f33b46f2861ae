"""Starts of a run: whose files are published, for which schema, and which settings are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType, NestedField

from holdfast.engine.drive import warn_of_doubts
from holdfast.errors import (
    CommitConflictError,
    CommitUnknownError,
    InputChangedError,
    JobFailedError,
    NullKeyError,
    RunMismatchError,
    SchemaMismatchError,
    SettingsError,
)
from holdfast.sinks.iceberg.sink import IcebergSink
from tests.fakes.iceberg_tables import Lake, new_table
from tests.fakes.memory_submitter import MemorySubmitter, partition
from tests.fakes.memory_table import DriverDiedError, MemoryTable, PostFault
from tests.fakes.rig import Rig, two_partitions


def rig_with_staged_files() -> Rig:
    """Return a run whose first driver has staged everything and died before its post."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    rig.start_and_die()
    return rig


def test_only_a_start_that_publishes_another_ones_files_has_kept_them() -> None:
    """Neither the start that did the work nor one that finds the run landed says so."""
    assert Rig().start().kept_rows == 0
    rig = rig_with_staged_files()
    inherited = rig.start()
    assert (inherited.kept_rows, inherited.outcome, inherited.tasks) == (20, "committed", 0)
    later = rig.start()
    assert (later.kept_rows, later.outcome) == (0, "already_committed")


def test_inherited_files_that_are_gone_are_made_again_by_this_start() -> None:
    """Then the input was read after all, and nothing is claimed to have been kept."""
    rig = rig_with_staged_files()
    rig.table.lost_files.extend(file.path for group in rig.sealed().groups for file in group.files)
    driven = rig.start()
    assert (driven.kept_rows, driven.tasks, driven.withdrawn_rows) == (0, 2, 20)


def test_inherited_files_of_the_same_input_are_published_without_a_warning() -> None:
    """The input was measured again and is the same: this start stands for the whole of it."""
    rig, submitter = rig_with_staged_files(), two_partitions()
    report = rig.start(submitter)
    assert (report.kept_rows, report.outcome, report.tasks) == (20, "committed", 0)
    assert report.input_compared == "keys"
    assert submitter.key_reads == 1
    assert "20 rows of earlier starts" in str(report)
    assert "earlier starts" not in str(replace(report, kept_rows=0))


def test_inherited_files_of_an_input_that_lost_rows_are_not_published() -> None:
    """The table would get rows that the input does not have any more."""
    rig, submitter = rig_with_staged_files(), MemorySubmitter(range(10), range(10, 19))
    with pytest.raises(InputChangedError, match="1 of 20 finished keys are not in it any more"):
        rig.start(submitter)
    assert (rig.table.data_snapshots, submitter.plans) == ([], [])


def test_inherited_files_are_published_with_the_rows_that_came_since() -> None:
    """The rows that this start was given more would be dropped without a word."""
    rig, submitter = rig_with_staged_files(), MemorySubmitter(range(10), range(10, 21))
    report = rig.start(submitter)
    assert (report.kept_rows, report.rows, len(submitter.plans)) == (20, 21, 1)
    assert rig.table.ids == list(range(21))


def test_a_landed_run_with_another_input_is_refused() -> None:
    """As many rows, but other keys: a reused run id drops data loudly."""
    rig, other = Rig(), MemorySubmitter(range(10), range(11, 21))
    rig.start()
    with pytest.raises(RunMismatchError, match="20 rows as before, but other keys"):
        rig.start(other)
    assert len(rig.table.data_snapshots) == 1


def test_an_input_that_is_not_to_be_compared_is_not_read_and_said_so() -> None:
    """The receipt is returned at once; the report and a warning tell what was not looked at."""
    rig, other = Rig(), MemorySubmitter(range(99))
    rig.start()
    driven = rig.start(other, if_committed="return")
    assert (driven.outcome, driven.input_compared, other.key_reads) == (
        "already_committed",
        None,
        0,
    )
    with pytest.warns(UserWarning, match="the input was not compared"):
        warn_of_doubts(driven)
    assert "not compared" in str(driven)


def test_rows_without_a_key_are_refused_before_any_is_paid_for() -> None:
    """NULL tells no rows apart; the transform is not called once."""
    rig, submitter = Rig(), MemorySubmitter([1, None, None], [None, 2])
    with pytest.raises(NullKeyError, match="3 input rows have NULL"):
        rig.start(submitter)
    assert submitter.plans == []


def test_tasks_that_saw_other_rows_than_were_planned_commit_nothing() -> None:
    """An upstream that gives other rows each time is noticed before the commit."""
    rig, submitter = Rig(), two_partitions()
    submitter.next_reads.append([partition(range(10)), partition(range(10, 21))])
    with pytest.raises(InputChangedError, match=r"1 of 21 finished keys .* \(id=20\)"):
        rig.start(submitter)
    assert rig.table.data_snapshots == []


def test_a_run_that_did_the_work_itself_does_not_warn() -> None:
    """Warnings are errors in this suite: the call below would raise."""
    assert Rig().start().kept_rows == 0


@pytest.mark.parametrize("batch_rows", [True, False, 0, -1, "10", 1.5, 10.0])
def test_a_batch_size_that_is_no_whole_number_is_refused(batch_rows: Any) -> None:  # noqa: ANN401
    """Before anything is written, and with the value that was given."""
    rig, submitter = Rig(), two_partitions()
    with pytest.raises(SettingsError, match=f"batch_rows={batch_rows!r}"):
        rig.start(submitter, batch_rows=batch_rows)
    assert (rig.storage.objects, submitter.plans) == ({}, [])


@pytest.mark.parametrize("batch_rows", [1, 10_000, None])
def test_a_batch_size_of_at_least_one_is_taken(batch_rows: int | None) -> None:
    """None leaves the batches as Spark sends them."""
    submitter = two_partitions()
    Rig().start(submitter, batch_rows=batch_rows)
    assert [plan.batch_rows for plan in submitter.plans] == [batch_rows]


@pytest.mark.parametrize("rows", ["some", "", None, True])
def test_a_row_rule_that_does_not_exist_is_refused(rows: Any) -> None:  # noqa: ANN401
    """A typing error must not switch the check off."""
    with pytest.raises(SettingsError, match="rows="):
        Rig().start(rows=rows)


def test_the_row_rule_reaches_the_tasks() -> None:
    """By default a transform keeps the number of rows."""
    default, changed = two_partitions(), two_partitions()
    Rig().start(default)
    Rig().start(changed, rows="any")
    assert [plan.rows for plan in (*default.plans, *changed.plans)] == ["same", "any"]


def test_an_empty_table_that_never_answers_is_given_up_as_unknown() -> None:
    """Twenty lost answers to the first, empty post: not a conflict after a hundred."""
    rig = Rig(table=MemoryTable(empty=True))
    rig.table.post_empty_faults.extend([PostFault.NEVER_ARRIVES] * 200)
    with pytest.raises(CommitUnknownError):
        rig.publish()
    assert (rig.table.empty_posts, rig.table.posts) == (20, [])


def test_lost_answers_to_empty_and_data_posts_are_counted_together() -> None:
    """A catalog that answers neither is the same silent catalog."""
    rig = Rig(table=MemoryTable(empty=True))
    rig.table.post_empty_faults.append(PostFault.ANSWER_LOST)
    rig.table.post_faults.extend([PostFault.NEVER_ARRIVES] * 200)
    with pytest.raises(CommitUnknownError):
        rig.publish()
    assert (rig.table.empty_posts, len(rig.table.posts)) == (1, 19)


def test_two_lost_answers_in_one_attempt_do_not_jump_over_the_limit() -> None:
    """The empty post lands as the twentieth without an answer; the data post is the next."""
    rig = Rig(table=MemoryTable(empty=True))
    rig.table.post_empty_faults.extend([PostFault.NEVER_ARRIVES] * 19 + [PostFault.ANSWER_LOST])
    rig.table.post_faults.extend([PostFault.NEVER_ARRIVES] * 200)
    with pytest.raises(CommitUnknownError):
        rig.publish()
    assert (rig.table.empty_posts, len(rig.table.posts)) == (20, 1)


def test_a_busy_table_is_still_a_conflict() -> None:
    """Clear answers are no reason to speak of the unknown."""
    rig = Rig()
    rig.table.post_faults.extend([PostFault.RIVAL_FIRST] * 200)
    with pytest.raises(CommitConflictError):
        rig.publish()


def test_a_schema_changed_while_nothing_is_staged_does_not_block_the_run() -> None:
    """The failed start left no files behind that could fail to fit."""
    rig, failing = Rig(), two_partitions()
    failing.answers.append(JobFailedError(reason="lost"))
    with pytest.raises(JobFailedError):
        rig.start(failing)
    rig.table.schema = {"columns": ["id", "new"]}
    submitter = two_partitions()
    assert rig.start(submitter).rows == 20
    assert len(submitter.plans) == 1


class _DiesBeforeItsPost(IcebergSink):
    """A driver that is killed after the intent."""

    def post(self, *_: object) -> Any:  # noqa: ANN401 - it never returns.
        """Die."""
        raise DriverDiedError


def narrow_lake(folder: Path) -> Lake:
    """Return a table whose ids are ints of 32 bits."""
    sink, _ = new_table(folder, Schema(NestedField(1, "id", IntegerType())))
    return Lake(sink)


def widen(table: Table) -> None:
    """Follow the advice of a schema error: change the table's column."""
    table.update_schema().update_column("id", LongType()).commit()


def test_a_table_altered_after_a_schema_error_takes_the_same_run(tmp_path: Path) -> None:
    """The error says "change the table's column": doing so must end the trouble."""
    lake = narrow_lake(tmp_path)
    with pytest.raises(SchemaMismatchError, match="id"):
        lake.start(lake.submitter(1, 2))
    widen(lake.table)
    assert lake.start(lake.submitter(1, 2)).rows == 2
    assert lake.ids() == [1, 2]


def test_a_column_widened_after_the_staging_is_no_dead_end(tmp_path: Path) -> None:
    """Readers widen what the staged files hold, as in files that were in the table before."""
    lake = narrow_lake(tmp_path)
    first = MemorySubmitter(partition([1, 2], pa.int32()))
    dying = _DiesBeforeItsPost(lake.sink._catalog, "db.t", "main")  # noqa: SLF001 - the same.
    with pytest.raises(DriverDiedError):
        Lake(dying, storage=lake.storage).start(first)
    widen(lake.table)
    second = MemorySubmitter(partition([1, 2], pa.int32()))
    assert lake.start(second).rows == 2
    assert (len(first.plans), second.plans, lake.ids()) == (1, [], [1, 2])
