"""What a change that removes rows must do: a part of the sink contract."""

from __future__ import annotations

from holdfast.sinks.base import MarkFound, Outcome
from tests.contract.table_under_test import (
    IDS,
    OTHER_IDS,
    Attempt,
    Cases,
    TableUnderTest,
    expect,
    expect_landed,
    expect_refused,
)


class ReplaceCases(Cases):
    """A replace removes what its look showed, all of it, or does not land."""

    def test_a_replace_removes_all_rows_and_adds_its_own(self) -> None:
        """Rows of other writers and of earlier runs go in the snapshot that adds the new ones."""
        table = self.table()
        expect_landed(table.attempt(OTHER_IDS, run_id="earlier", nonce="of-the-earlier-run"))
        attempt = table.attempt(IDS, removes="all")
        loss = attempt.change.loss
        expect((loss.files >= 1, loss.rows >= len(OTHER_IDS)), (True, True), "what is counted")
        expect_landed(attempt)
        expect(sorted(table.rows()), IDS, "rows after a replace")
        wanted = MarkFound(mark=attempt.mark, present=True)
        expect(attempt.find(table.sink()), wanted, "the mark of a replace")

    def test_a_replace_of_nothing_adds_its_rows(self) -> None:
        """A table without rows loses none."""
        table = self.table(empty=True)
        attempt = self._first(table)
        expect(attempt.change.loss.rows, 0, "rows that an empty table loses")
        expect_landed(attempt)
        expect(sorted(table.rows()), IDS, "rows after a replace")

    def test_a_replace_without_rows_empties_the_table(self) -> None:
        """All rows go, and the run has landed."""
        table = self.table()
        expect_landed(table.attempt(OTHER_IDS, run_id="earlier", nonce="of-the-earlier-run"))
        attempt = table.attempt([], removes="all")
        expect_landed(attempt)
        expect(table.rows(), [], "rows after a replace without rows")
        wanted = MarkFound(mark=attempt.mark, present=True)
        expect(attempt.find(table.sink()), wanted, "the mark of a replace without rows")

    def test_a_replace_that_others_have_overtaken_removes_nothing(self) -> None:
        """What it removes was live in its look; rows that came since must not stay or go by it."""
        table = self.table()
        attempt = table.attempt(IDS, removes="all")
        table.foreign_append()
        before = sorted(table.rows())
        expect_refused(attempt.post(), "a replace after a foreign append")
        expect(sorted(table.rows()), before, "rows after a refused replace")
        again = table.attempt(IDS, number=2, removes="all")
        expect(again.post(), Outcome.LANDED, "the next attempt")
        expect(sorted(table.rows()), IDS, "rows after the next attempt")

    def test_a_replace_whose_answer_is_lost_is_found_by_its_mark(self) -> None:
        """It is not posted again: by then, others may have added rows that it would remove."""
        table = self.table()
        attempt = table.attempt(IDS, removes="all")
        table.lose_next_answer(landed=True)
        expect(attempt.post(), Outcome.UNKNOWN, "a post without an answer")
        wanted = MarkFound(mark=attempt.mark, present=True)
        expect(attempt.find(), wanted, "the mark of a replace that has arrived")
        expect(sorted(table.rows()), IDS, "rows of a replace that has arrived")

    def test_what_a_replace_writes_stays_as_long_as_readers_need_it(self) -> None:
        """It may list files of other writers: a sweep deletes only what no reader needs."""
        table = self.table()
        attempt = table.attempt(IDS, removes="all")
        change, nonce = attempt.change, attempt.mark.run_nonce
        paths = list(change.loss.writes)
        live = attempt.sink.live_files(attempt.view, paths, nonce)
        expect(live, set(), "what is live before the post")
        expect(
            attempt.sink.post(attempt.view, attempt.run_id, attempt.mark, change),
            Outcome.LANDED,
            "a replace",
        )
        sink = table.sink()
        view = sink.load()
        needed = sink.live_files(view, paths, nonce)
        sink.delete_files(view, sorted(set(paths) - needed))
        expect(sorted(table.rows()), IDS, "rows after a sweep")

    @staticmethod
    def _first(table: TableUnderTest) -> Attempt:
        """Return an attempt on a table that has a snapshot by then, as the engine makes it."""
        sink = table.sink()
        view = sink.load()
        if view.parent_snapshot_id is None:
            expect(sink.post_empty(view), Outcome.LANDED, "an empty snapshot")
        return table.attempt(IDS, removes="all")
