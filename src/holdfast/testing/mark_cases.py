"""The mark: how a run that has landed is found again, whatever happens to its table since."""

from __future__ import annotations

from functools import partial

from holdfast.errors import CommitUnknownError, RunMismatchError, TableMissingError
from holdfast.sinks.base import MarkFound, Outcome
from holdfast.testing.expectations import (
    expect,
    expect_error,
    expect_found,
    expect_landed,
    expect_no_landing,
    expect_not,
    expect_used_up,
    our_rows,
)
from holdfast.testing.table_under_test import IDS, OTHER_IDS, Cases

_INTENT = 7
# Ids that a careless encoding would take for one another.
_RUN_IDS = ("r", "R", "r/1", "r=2F1", "r 1", "r.1", "r%2F1", "r\u00e9")


class MarkCases(Cases):
    """What `find_mark` must tell, and what it must not make up."""

    # ---- whose it is ------------------------------------------------------------------------
    def test_the_mark_names_the_intent(self) -> None:
        """Nonce, intent number, snapshot id and sequence number come back as they were posted."""
        table = self.table()
        attempt = table.attempt(IDS, number=_INTENT)
        expect_landed(attempt)
        table.foreign_append()
        found = expect_found(attempt.find(table.sink()), "by another driver, after an append")
        mark = found.mark
        expect(
            (mark.run_nonce, mark.intent_number, mark.snapshot_id, mark.sequence_number),
            (
                attempt.mark.run_nonce,
                _INTENT,
                attempt.intent.snapshot_id,
                attempt.view.next_sequence_number,
            ),
            "what the mark names",
        )
        wanted = MarkFound(mark=attempt.mark, present=True)
        expect(found, wanted, "the mark and presence after a foreign append")

    def test_the_same_run_id_of_another_ledger_is_a_mismatch(self) -> None:
        """A run of the same id but another nonce is somebody else's, and is not taken for ours."""
        table = self.table()
        expect_landed(table.attempt(IDS, nonce="nonce-of-another-ledger"))
        attempt = table.attempt(OTHER_IDS)
        expect_error(RunMismatchError, attempt.find, "another ledger's run of the same id")

    def test_run_ids_do_not_share_a_mark(self) -> None:
        """The mark of one run is not found under another id, however alike they are."""
        table = self.table()
        landed = table.attempt(IDS, run_id=_RUN_IDS[2])
        expect_landed(landed)
        others = [one for one in _RUN_IDS if one != landed.run_id]
        found = {one: table.attempt([], run_id=one, nonce=f"of {one}").find() for one in others}
        expect(found, dict.fromkeys(others), "marks under other ids")
        expect_found(landed.find(), "under its own id")

    def test_a_run_that_was_copied_to_another_id_is_found_by_its_nonce(self) -> None:
        """The rows are there, whatever the folder of the ledger is called by now."""
        table = self.table()
        landed = table.attempt(IDS)
        expect_landed(landed)
        table.foreign_append()
        sink = table.sink()
        found = sink.find_mark(sink.load(), "the-copy", landed.mark.run_nonce, {})
        expect(expect_found(found, "under another id").mark, landed.mark, "the mark")

    def test_a_view_stays_as_it_was_loaded(self) -> None:
        """What happens after a look does not reach it: the engine decides on one state."""
        table = self.table()
        attempt = table.attempt(IDS)
        view = table.sink().load()
        parent, number = view.parent_snapshot_id, view.next_sequence_number
        expect_landed(attempt)
        intents = {attempt.mark.intent_number: attempt.intent}
        found = attempt.sink.find_mark(view, attempt.run_id, attempt.mark.run_nonce, intents)
        expect(found, None, "the mark in a look from before the post")
        expect((view.parent_snapshot_id, view.next_sequence_number), (parent, number), "the look")

    # ---- lost answers -----------------------------------------------------------------------
    def test_a_post_whose_answer_is_lost_is_found_by_its_mark(self) -> None:
        """No answer is no refusal: the outcome is unknown, and the mark tells."""
        table = self.table()
        attempt = table.attempt(IDS)
        table.lose_next_answer(landed=True)
        expect(attempt.post(), Outcome.UNKNOWN, "a post without an answer")
        wanted = MarkFound(mark=attempt.mark, present=True)
        expect(attempt.find(), wanted, "the mark of a post that has arrived")
        expect(our_rows(table), IDS, "rows of a post that has arrived")

    def test_a_post_that_never_arrives_is_not_found_and_the_next_lands(self) -> None:
        """A post that was lost on the way leaves nothing behind, and the next attempt is free."""
        table = self.table()
        attempt = table.attempt(IDS)
        table.lose_next_answer(landed=False)
        expect(attempt.post(), Outcome.UNKNOWN, "a post that never arrives")
        expect((our_rows(table), attempt.find()), ([], None), "rows and mark of a lost post")
        second = table.attempt(IDS, number=2, sink=attempt.sink)
        expect_landed(second)
        expect(expect_found(second.find(), "after the second post").mark, second.mark, "the mark")
        expect(our_rows(table), IDS, "rows after the second post")

    def test_a_first_snapshot_whose_answer_is_lost_is_seen(self) -> None:
        """An empty snapshot without an answer is unknown too; the next look shows it or not."""
        for landed in (True, False):
            table = self.table_without_snapshot()
            sink = table.sink()
            view = sink.load()
            table.lose_next_answer(landed=landed)
            expect(sink.post_empty(view), Outcome.UNKNOWN, "an empty snapshot without an answer")
            shown = sink.load().parent_snapshot_id is not None
            expect(shown, landed, "whether an empty snapshot is shown")

    # ---- what others do to the table --------------------------------------------------------
    def test_a_run_that_was_rolled_back_is_said_to_be_gone(self) -> None:
        """The mark outlives a roll-back, which has removed the rows on purpose."""
        table = self.table()
        attempt = table.attempt(IDS)
        expect_landed(attempt)
        table.roll_back(attempt.intent.parent_snapshot_id)
        expect(our_rows(table), [], "rows after a roll-back")
        for moment in ("a roll-back", "a roll-back and an append"):
            found = expect_found(attempt.find(), f"after {moment}")
            expect(found, MarkFound(mark=attempt.mark, present=False), f"after {moment}")
            expect_used_up(attempt.sink.load(), attempt, f"after {moment}")
            table.foreign_append()

    def test_a_run_that_was_replaced_is_not_said_to_be_there(self) -> None:
        """The mark outlives a replaced content; its rows are gone, or nobody can tell."""
        table = self.table()
        attempt = table.attempt(IDS)
        expect_landed(attempt)
        table.replace()
        view = attempt.sink.load()
        expect(view.uuid, attempt.view.uuid, "the table's UUID after its content was replaced")
        expect(our_rows(table), [], "rows after a replace")
        found = expect_found(attempt.find(), "after a replace")
        expect(found.mark, attempt.mark, "the mark after a replace")
        still = MarkFound(mark=attempt.mark, present=True)
        expect_not(found, still, "a run whose rows were replaced")
        expect_used_up(view, attempt, "after a replace")

    def test_a_run_whose_history_is_expired_is_not_said_to_be_gone(self) -> None:
        """The mark outlives its snapshot; its rows are there, provably or not."""
        table = self.table()
        attempt = table.attempt(IDS)
        expect_landed(attempt)
        for _ in range(2):  # The newest one's parent may still be named.
            table.foreign_append()
        table.expire_history()
        expect(our_rows(table), IDS, "rows after an expiry")
        found = expect_found(attempt.find(), "after an expiry")
        expect(found.mark, attempt.mark, "the mark after an expiry")
        removed = MarkFound(mark=attempt.mark, present=False)
        expect_not(found, removed, "a run whose rows are there")

    def test_a_missing_mark_proves_nothing_once_marks_were_forgotten(self) -> None:
        """A table may drop old marks, but a run that has landed is never said not to have."""
        table = self.table()
        attempt = table.attempt(IDS)
        expect_landed(attempt)
        table.forget_marks()
        try:
            found = attempt.find()
        except CommitUnknownError:
            return
        expect(expect_found(found, "after marks were forgotten").mark, attempt.mark, "the mark")

    def test_a_table_that_was_made_again_takes_no_post_of_the_old_one(self) -> None:
        """The same name is not the same table: its UUID tells, and the post asserts it."""
        for empty in (False, True):
            table = self.table(empty=empty)
            attempt = table.attempt(IDS)
            table.drop_and_create()
            view = table.sink().load()
            expect_not(view.uuid, attempt.view.uuid, "the UUID of a table that was made again")
            parent = view.parent_snapshot_id
            expect_no_landing(table, attempt.post, "a post from a look at the old table")
            expect_no_landing(
                table,
                partial(attempt.sink.post_empty, attempt.view),
                "an empty snapshot from a look at the old table",
            )
            expect(table.sink().load().parent_snapshot_id, parent, "the parent in the new table")
            expect(table.attempt(IDS).find(), None, "the mark in the new table")

    def test_a_dropped_table_is_said_to_be_missing(self) -> None:
        """A look at a table that is no more is an error of its own, and a post does not land."""
        table = self.table()
        attempt = table.attempt(IDS)
        table.drop()
        expect_error(TableMissingError, attempt.sink.load, "a look at a dropped table")
        expect_not(attempt.post(), Outcome.LANDED, "a post to a dropped table")
        expect_error(TableMissingError, attempt.sink.load, "a look after a late post")
