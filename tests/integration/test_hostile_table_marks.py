"""The run's mark, or its ledger, is lost at the worst moment: no row is written twice."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import CommitUnknownError, LedgerDamagedError, RunMismatchError
from holdfast.sinks.base import Change, Outcome, RunMark
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.sinks.staged import MARK_PREFIX, MARKS_MAX, mark_text
from tests.integration.hostile import RUN, HostileTable
from tests.integration.hostile_catalogs import hostile_table, on_catalogs
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack]

MARK = f"{MARK_PREFIX}{RUN}"
UNSET = f"ALTER TABLE {{t}} UNSET TBLPROPERTIES ('{MARK}')"
EXPIRE = (
    "CALL {c}.system.expire_snapshots(table => '{s}', retain_last => 1, "
    "older_than => TIMESTAMP '2999-01-01 00:00:00')"
)
REWRITE = (
    "CALL {c}.system.rewrite_data_files(table => '{s}', options => map('rewrite-all', 'true'))"
)


@pytest.fixture
def hostile(
    request: pytest.FixtureRequest, lake: SparkSession, stack: Stack, ledger: dict[str, Any]
) -> HostileTable:
    """Return a table with one foreign row."""
    return hostile_table(request.param, lake, stack, ledger)


def land_others(table: HostileTable, count: int) -> None:
    """Let other runs land in the table, each with its mark, without any row.

    Method: the first and the last land as runs do; the marks between come in one commit of
    properties, because a hundred commits on three catalogs take minutes.
    """
    sink = IcebergSink(table.py_catalog(), table.short, "main")
    first = sink.load().next_sequence_number
    _land(sink, 0)
    between = {
        f"{MARK_PREFIX}later-{number}": mark_text(_mark(number, 1000 + number, first + number))
        for number in range(1, count - 1)
    }
    with table.py_table().transaction() as change:
        change.set_properties(between)
    _land(sink, count - 1)


def _mark(number: int, snapshot_id: int, sequence_number: int) -> RunMark:
    return RunMark(
        run_nonce=f"nonce-{number}",
        intent_number=2,
        snapshot_id=snapshot_id,
        sequence_number=sequence_number,
    )


def _land(sink: IcebergSink, number: int) -> None:
    view = sink.load()
    mark = _mark(number, sink.new_snapshot_id(view), view.next_sequence_number)
    assert sink.post(view, f"later-{number}", mark, Change()) is Outcome.LANDED


def lose_traces(table: HostileTable) -> None:
    """Compact and expire until neither snapshot nor manifest of ours is left."""
    table.insert(-2)
    table.sql(REWRITE)
    table.insert(-3)
    if not table.hides_history:
        table.sql(EXPIRE)


def copy_of_ledger(table: HostileTable) -> dict[str, bytes]:
    """Return every object of the run's ledger."""
    uris = table.storage.list(table.layout().folder)
    return {uri: table.storage.get(uri) for uri in uris}


def delete_ledger(table: HostileTable) -> None:
    """Delete every object of the run's ledger."""
    table.storage.delete(table.storage.list(table.layout().folder))


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_a_mark_unset_before_the_answer_came_is_not_needed(hostile: HostileTable) -> None:
    """The post landed, its answer was lost, and the mark was removed: the snapshot shows it."""
    report = hostile.append_unanswered(lambda: hostile.sql(UNSET))
    assert (report.outcome, hostile.posts) == ("committed", [Outcome.UNKNOWN])
    hostile.assert_each_row_once()


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_a_mark_unset_before_the_receipt_is_not_needed(hostile: HostileTable) -> None:
    """The intent names the snapshot, and the table still knows it."""
    snapshot_id = hostile.land_and_die()
    assert MARK in hostile.properties()
    hostile.sql(UNSET)
    hostile.insert(-2)
    report = hostile.append()
    assert (report.outcome, report.snapshot_id) == ("already_committed", snapshot_id)
    hostile.assert_each_row_once(foreign=(-2, -1))


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_a_mark_unset_and_every_trace_compacted_away_is_not_written_again(
    hostile: HostileTable,
) -> None:
    """Nothing in the table names the run any more: the error says that its state is unknown."""
    hostile.land_and_die()
    hostile.sql(UNSET)
    lose_traces(hostile)
    with pytest.raises(CommitUnknownError):
        hostile.append()
    hostile.assert_each_row_once(foreign=(-3, -2, -1))


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_a_hundred_runs_before_the_post_do_not_leave_it_in_doubt(hostile: HostileTable) -> None:
    """Marks up to ours were dropped, but another commit has our post's sequence number.

    Where history is hidden that cannot be seen: the run says so, and writes nothing.
    """
    if hostile.hides_history:
        with pytest.raises(CommitUnknownError, match="marks up to sequence number"):
            hostile.append_while(lambda: land_others(hostile, MARKS_MAX + 1))
        hostile.assert_nothing_of_ours()
        return
    report = hostile.append_while(lambda: land_others(hostile, MARKS_MAX + 1))
    assert (report.outcome, hostile.posts) == ("committed", [Outcome.CONFLICT, Outcome.LANDED])
    hostile.assert_each_row_once()


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_a_hundred_runs_after_the_commit_do_not_hide_it(hostile: HostileTable) -> None:
    """Our mark was dropped as the oldest; only the snapshot still shows the run."""
    snapshot_id = hostile.land_and_die()
    land_others(hostile, MARKS_MAX)
    assert MARK not in hostile.properties()
    log = copy_of_ledger(hostile)
    hostile.find_landed(snapshot_id)
    hostile.assert_each_row_once()
    lose_traces(hostile)
    hostile.find_landed(snapshot_id, is_told=False)  # By its receipt.
    delete_ledger(hostile)
    for uri, data in log.items():  # As it was before the receipt.
        hostile.storage.put(uri, data)
    with pytest.raises(CommitUnknownError, match="marks up to sequence number") as caught:
        hostile.append()
    assert "Delete nothing" in str(caught.value)
    hostile.assert_each_row_once(foreign=(-3, -2, -1))


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_a_ledger_deleted_before_the_post_is_noticed_by_the_next_start(
    hostile: HostileTable,
) -> None:
    """What was staged lands once; the next start finds a table that is ahead of the log."""
    report = hostile.append_while(lambda: delete_ledger(hostile))
    assert report.outcome == "committed"
    hostile.assert_each_row_once()
    with pytest.raises(RunMismatchError, match="another ledger"):
        hostile.append()
    with pytest.raises(LedgerDamagedError, match="missing, though later records exist"):
        hostile.append()
    hostile.assert_each_row_once()


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_a_ledger_deleted_after_the_commit_is_reported_until_it_is_restored(
    hostile: HostileTable,
) -> None:
    """The table has the mark of a run that the new ledger does not know: nothing is written."""
    snapshot_id = hostile.land_and_die()
    backup = copy_of_ledger(hostile)
    delete_ledger(hostile)
    for _ in range(2):
        with pytest.raises(RunMismatchError, match="another ledger") as caught:
            hostile.append()
    assert str(snapshot_id) in str(caught.value)
    hostile.assert_each_row_once()
    delete_ledger(hostile)
    for uri, data in backup.items():
        hostile.storage.put(uri, data)
    report = hostile.append()
    assert (report.outcome, report.snapshot_id) == ("already_committed", snapshot_id)
    hostile.assert_each_row_once()


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_the_same_run_id_from_a_second_store_that_lands_first_wins(hostile: HostileTable) -> None:
    """Two ledgers do not know of each other; the table does: one lands, the other gets an error."""
    second = hostile.run(store=f"{hostile.ledger['store']}-second")
    reports: list[hf.Report] = []
    with pytest.raises(RunMismatchError, match="another ledger"):
        hostile.append_while(lambda: reports.append(hostile.append(second)))
    assert reports[0].outcome == "committed"
    hostile.assert_each_row_once()
    with pytest.raises(RunMismatchError, match="another ledger"):
        hostile.append()
    assert hostile.append(second).outcome == "already_committed"
    hostile.assert_each_row_once()


@pytest.mark.parametrize("hostile", on_catalogs(), indirect=True)
def test_the_same_run_id_from_a_second_store_before_the_receipt_is_refused(
    hostile: HostileTable,
) -> None:
    """The first landed but died before its receipt: the second learns that from the table."""
    snapshot_id = hostile.land_and_die()
    second = hostile.run(store=f"{hostile.ledger['store']}-second")
    with pytest.raises(RunMismatchError, match="another ledger"):
        hostile.append(second)
    report = hostile.append()
    assert (report.outcome, report.snapshot_id) == ("already_committed", snapshot_id)
    hostile.assert_each_row_once()
