"""Abort and sweep while a driver acts between two of their steps."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from holdfast.engine.cleanup import abort, sweep
from holdfast.errors import (
    RunAbortedError,
    RunCommittedError,
    RunUnfinishedError,
    TableMissingError,
)
from holdfast.model.records import Abort
from tests.fakes.memory_table import PostFault
from tests.fakes.rig import LAYOUT, Rig


def test_an_abort_finds_a_run_that_landed_after_it_had_looked_for_one() -> None:
    """A driver creates the run and lands while the abort believes that there is no run.

    Found by the simulation (seed 38, on its first day): the abort said that nothing had landed.
    """
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_LANDED)
    rig.storage.before_create = rig.start_and_die  # Between the abort's first look and its record.
    with pytest.raises(RunCommittedError):
        abort(rig.ledger(), lambda _identity: rig.table, "why not")
    assert rig.log().is_aborted


def test_a_start_after_such_an_abort_reports_that_the_run_has_landed() -> None:
    """A user who reads "aborted" starts over under another id, and gets all rows twice.

    Found by the model (HOLE_ABORTED), when it still had that hole.
    """
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_LANDED)
    rig.storage.before_create = rig.start_and_die
    with pytest.raises(RunCommittedError):
        abort(rig.ledger(), lambda _identity: rig.table, "why not")
    assert rig.log().receipt is not None
    assert rig.start().outcome == "already_committed"
    assert rig.table.ids == list(range(20))


def test_a_driver_aborted_between_post_and_receipt_reports_the_same() -> None:
    """Its rows are in the table."""
    rig = Rig()

    def give_up() -> None:
        with pytest.raises(RunCommittedError):
            abort(rig.ledger(), lambda _identity: rig.table, "why not")

    rig.table.before_post = lambda: rig.ledger().log.claim(Abort(reason="why not"))
    with pytest.raises(RunCommittedError):
        rig.start()
    give_up()
    assert rig.table.ids == list(range(20))


def test_a_start_of_a_run_that_was_aborted_in_time_says_so() -> None:
    """Nothing has landed, and nothing can land."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    rig.start_and_die()
    abort(rig.ledger(), lambda _identity: rig.table, "why not")
    with pytest.raises(RunAbortedError):
        rig.start()
    assert rig.table.data_snapshots == []


def test_an_abort_after_a_receipt_says_so_even_if_the_table_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log itself shows that the run has landed.

    Found by the simulation (seed 10057766): with the table dropped, nothing else showed it.
    """
    rig = Rig()

    def land_and_drop() -> None:
        rig.start()
        missing = TableMissingError(table="lake.db.t", what="there is no such table")
        monkeypatch.setattr(rig.table, "load", Mock(side_effect=missing))

    rig.storage.before_create = land_and_drop
    with pytest.raises(RunCommittedError):
        abort(rig.ledger(), lambda _identity: rig.table, "why not")


def test_a_sweep_after_such_an_abort_keeps_what_has_landed() -> None:
    """Its files and the list of them are all that is left of the run."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_LANDED)
    rig.storage.before_create = rig.start_and_die
    with pytest.raises(RunCommittedError):
        abort(rig.ledger(), lambda _identity: rig.table, "why not")
    sweep(rig.ledger(), lambda _identity: rig.table)
    assert rig.table.ids == list(range(20))
    assert len(rig.storage.list(LAYOUT.parts)) == 1


def test_a_sweep_keeps_files_that_may_have_landed_in_a_table_that_was_dropped() -> None:
    """A dropped table can be registered again, and its snapshot must then find its files.

    Found by the simulation (seed 1000467): nothing in the new table showed that it had landed.
    """
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_LANDED)
    rig.start_and_die()
    files = set(rig.table.files)
    rig.table.uuid, rig.table.marks = "uuid-2", {}
    with pytest.warns(UserWarning, match="aborted with 1 post without an answer"):
        done = abort(rig.ledger(), lambda _identity: rig.table, "it is gone", table_is_gone=True)
    assert (done.posts, len(done.in_doubt)) == (1, 1)
    assert "a different table" in done.reason
    swept = sweep(rig.ledger(), lambda _identity: rig.table)
    assert files
    assert set(rig.table.files) == files
    assert swept.data_files == 0
    assert swept.in_doubt >= len(files)  # Including the objects that list them.


def test_a_sweep_of_a_run_that_may_resume_deletes_nothing() -> None:
    """Its files are finished work, and its driver may only be paused."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    rig.start_and_die()
    files = set(rig.table.files)
    with pytest.raises(RunUnfinishedError):
        sweep(rig.ledger(), lambda _identity: rig.table)
    assert set(rig.table.files) == files
    rig.start()
    assert rig.table.ids == list(range(20))


def test_two_aborts_at_once_both_succeed() -> None:
    """Found by the failpoints: the slower abort raised an error that the run is aborted."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    rig.start_and_die()

    def be_faster() -> None:
        abort(rig.ledger(), lambda _identity: rig.table, "first")

    rig.storage.before_create = be_faster
    abort(rig.ledger(), lambda _identity: rig.table, "second")
    assert [record.body for record in rig.log().records if isinstance(record.body, Abort)] == [
        Abort(reason="first")
    ]
