"""The post: one conditional step, and what must stop it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from holdfast.sinks.base import MarkFound, Outcome
from holdfast.testing.expectations import (
    expect,
    expect_found,
    expect_landed,
    expect_not,
    expect_refused,
    expect_used_up,
    our_rows,
)
from holdfast.testing.table_under_test import IDS, OTHER_IDS, RUN_ID, Attempt, Cases

_DRAWS = 50
_RIVALS = 3


class PostCases(Cases):
    """What `post`, `post_empty` and `new_snapshot_id` must do."""

    def test_a_post_lands_its_rows_once_with_its_mark(self) -> None:
        """A post adds its rows and its mark, and becomes the parent of the next."""
        table = self.table()
        attempt = table.attempt(IDS)
        expect(our_rows(table), [], "staged rows before the post")
        expect_landed(attempt)
        expect(our_rows(table), IDS, "rows after the post")
        expect(
            attempt.find(), MarkFound(mark=attempt.mark, present=True), "the mark after the post"
        )
        view = attempt.sink.load()
        expect(view.parent_snapshot_id, attempt.mark.snapshot_id, "the newest snapshot")
        expect(view.uuid, attempt.view.uuid, "the table's UUID after a post")
        expect_used_up(view, attempt, "after a post")

    def test_a_mark_is_not_found_before_the_post(self) -> None:
        """Neither an intent nor staged files make a mark, with or without a look at intents."""
        table = self.table()
        attempt = table.attempt(IDS)
        expect(attempt.find(), None, "the mark of a run that has not posted")
        none = attempt.sink.find_mark(attempt.view, RUN_ID, attempt.mark.run_nonce, {})
        expect(none, None, "the mark of a run without intents")

    def test_a_second_post_from_the_same_view_is_a_conflict(self) -> None:
        """A view is good for one post: neither the same intent nor another one lands on it."""
        table = self.table()
        first = table.attempt(IDS)
        second = table.attempt(OTHER_IDS, number=2, sink=first.sink, view=first.view)
        expect_landed(first)
        for again in (first, second):
            expect_refused(again.post(), "a second post from one view")
        expect(our_rows(table), IDS, "rows after a second post from one view")
        expect(expect_found(first.find(), "after a conflict").mark, first.mark, "the mark")

    def test_a_post_from_a_stale_view_is_a_conflict(self) -> None:
        """Whatever others have added since the look wins; nothing of ours lands."""
        table = self.table()
        attempt = table.attempt(IDS)
        table.foreign_append()
        expect_refused(attempt.post(), "a post from a stale view")
        expect(our_rows(table), [], "rows after a conflict")
        expect(attempt.find(), None, "the mark after a conflict")
        expect_landed(table.attempt(IDS, number=2))
        expect(our_rows(table), IDS, "rows after the next attempt")

    def test_of_two_rivals_with_the_same_view_one_lands(self) -> None:
        """Two drivers of one run that have seen the same table do not both land."""
        table = self.table()
        one = table.attempt(IDS, number=1)
        two = table.attempt(OTHER_IDS, number=2)
        expect(one.post(), Outcome.LANDED, "the first of two rivals")
        expect_refused(two.post(), "the second of two rivals")
        expect(our_rows(table), IDS, "rows after two rivals")
        found = two.sink.find_mark(two.sink.load(), RUN_ID, two.mark.run_nonce, {2: two.intent})
        expect(expect_found(found, "by the loser").mark, one.mark, "the mark that the loser finds")

    def test_of_rivals_that_post_at_once_one_lands(self) -> None:
        """Posts that arrive at the same moment are decided by the table, not by luck."""
        table = self.table()
        rivals = [table.attempt([number], number=number) for number in range(_RIVALS)]
        start = threading.Barrier(_RIVALS)

        def post(rival: Attempt) -> Outcome:
            start.wait(timeout=60)
            return rival.post()

        with ThreadPoolExecutor(_RIVALS) as pool:
            outcomes = list(pool.map(post, rivals))
        landed = our_rows(table)
        expect(len(landed), 1, f"how many rivals have rows in the table ({outcomes})")
        mark = expect_found(rivals[0].find(), "after a race").mark
        expect(mark, rivals[landed[0]].mark, "the mark after a race")
        told = [number for number, one in enumerate(outcomes) if one is Outcome.LANDED]
        # An answer may be unknown, but whoever is told that it has landed must be right.
        expect(told or landed, landed, f"who is told that it has landed ({outcomes})")

    def test_a_delayed_post_is_refused_once_its_number_is_used(self) -> None:
        """An empty snapshot uses up the number of an intent, which then never lands."""
        table = self.table()
        delayed = table.attempt(IDS)
        rival = table.sink()
        expect(rival.post_empty(rival.load()), Outcome.LANDED, "an empty snapshot")
        expect_used_up(rival.load(), delayed, "after an empty snapshot")
        expect_refused(delayed.post(), "a delayed post")
        expect((our_rows(table), delayed.find()), ([], None), "rows and mark of a delayed post")

    def test_a_delayed_post_is_refused_even_on_its_own_parent(self) -> None:
        """A roll-back brings an intent's parent back, but not its sequence number."""
        table = self.table()
        delayed = table.attempt(IDS)
        rival = table.sink()
        expect(rival.post_empty(rival.load()), Outcome.LANDED, "an empty snapshot")
        table.roll_back(delayed.intent.parent_snapshot_id)
        view = rival.load()
        if not table.counts_versions:
            parent = delayed.intent.parent_snapshot_id
            expect(view.parent_snapshot_id, parent, "the roll-back's head")
        expect_used_up(view, delayed, "after a roll-back")
        expect_refused(delayed.post(), "a delayed post on its own parent")
        expect((our_rows(table), delayed.find()), ([], None), "rows and mark of a delayed post")

    def test_a_post_after_a_changed_schema_is_a_conflict(self) -> None:
        """What was checked must still hold when the post arrives, though no snapshot was added."""
        table = self.table()
        attempt = table.attempt(IDS)
        table.change_schema()
        expect_refused(attempt.post(), "a post from before a change of the schema")
        expect((our_rows(table), attempt.find()), ([], None), "rows and mark after a conflict")

    def test_new_snapshot_ids_are_fresh(self) -> None:
        """No two drivers draw the same id, nor one that the table has."""
        table = self.table()
        if table.counts_versions:
            sink, view = table.sink(), table.sink().load()
            expect(sink.new_snapshot_id(view), view.next_sequence_number, "the next version")
            table.cannot("choose the names of its versions")
        attempt = table.attempt(IDS)
        expect_landed(attempt)
        drawn = [attempt.mark.snapshot_id, attempt.intent.parent_snapshot_id]
        for sink in (table.sink(), table.sink()):
            view = sink.load()
            drawn += [sink.new_snapshot_id(view) for _ in range(_DRAWS)]
        expect(len(set(drawn)), len(drawn), "how many ids differ")

    # ---- the first snapshot -----------------------------------------------------------------
    def test_an_empty_table_gets_its_first_snapshot_once(self) -> None:
        """The data's post has a parent even in a new table, and rivals do not both make one."""
        table = self.table_without_snapshot()
        sink, rival = table.sink(), table.sink()
        view, same = sink.load(), rival.load()
        expect(view.parent_snapshot_id, None, "the parent in a table without snapshots")
        expect(sink.post_empty(view), Outcome.LANDED, "the first snapshot")
        after = sink.load()
        expect_not(after.parent_snapshot_id, None, "the parent after an empty snapshot")
        expect_refused(rival.post_empty(same), "a second first snapshot")
        expect(sink.load().parent_snapshot_id, after.parent_snapshot_id, "the newest snapshot")
        expect(table.rows(), [], "rows of an empty snapshot")
        expect_landed(table.attempt(IDS, sink=sink))
        expect(our_rows(table), IDS, "rows after the first post")

    def test_a_late_first_snapshot_hides_no_rows(self) -> None:
        """A first snapshot that arrives late does not push aside what has landed meanwhile."""
        table = self.table_without_snapshot()
        late = table.sink()
        view = late.load()
        sink = table.sink()
        expect(sink.post_empty(sink.load()), Outcome.LANDED, "the first snapshot")
        attempt = table.attempt(IDS, sink=sink)
        expect_landed(attempt)
        outcome = late.post_empty(view)
        expect(our_rows(table), IDS, f"rows after a late first snapshot ({outcome})")
        expect_refused(outcome, "a late first snapshot")
        expect(attempt.find(), MarkFound(mark=attempt.mark, present=True), "the mark")

    def test_an_empty_snapshot_hides_no_rows(self) -> None:
        """On a table with rows an empty snapshot adds nothing, and takes nothing away."""
        table = self.table()
        attempt = table.attempt(IDS)
        expect_landed(attempt)
        rows = sorted(table.rows())
        expect(attempt.sink.post_empty(attempt.sink.load()), Outcome.LANDED, "an empty snapshot")
        expect(sorted(table.rows()), rows, "rows after an empty snapshot")
        expect(attempt.find(), MarkFound(mark=attempt.mark, present=True), "the mark")
