"""The sink contract: what the engine relies on, as tests for any table format.

Derive a class whose name begins with `Test`, give it `table`, and let pytest collect it. Each
case is a promise of `holdfast.sinks.base.Sink`; its docstring says which, and a failure says
what was expected instead.
"""

from __future__ import annotations

import json
import pickle
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from holdfast.errors import (
    CommitUnknownError,
    LedgerDamagedError,
    RunMismatchError,
    StagedFileMissingError,
    TableChangedError,
    TableMissingError,
)
from holdfast.sinks.base import MarkFound, Outcome
from tests.contract.replace_cases import ReplaceCases
from tests.contract.table_under_test import (
    IDS,
    OTHER_IDS,
    RUN_ID,
    Attempt,
    Cases,
    expect,
    expect_error,
    expect_found,
    expect_landed,
    expect_no_landing,
    expect_not,
    expect_refused,
    expect_used_up,
    our_rows,
)

# ---- The mark: how a run that has landed is found again, whatever happens to the table later
_INTENT = 7
# Ids that a careless encoding would confuse.
_RUN_IDS = ("r", "R", "r/1", "r=2F1", "r 1", "r.1", "r%2F1", "r\u00e9")


class MarkCases(Cases):
    """What `find_mark` must find, and what it must not invent."""

    # ---- whose mark it is -------------------------------------------------------------------
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
        """A run with the same id but another nonce is another run, and is not taken for ours."""
        table = self.table()
        expect_landed(table.attempt(IDS, nonce="nonce-of-another-ledger"))
        attempt = table.attempt(OTHER_IDS)
        expect_error(RunMismatchError, attempt.find, "another ledger's run of the same id")

    def test_run_ids_do_not_share_a_mark(self) -> None:
        """The mark of one run is not found under another id, however similar."""
        table = self.table()
        landed = table.attempt(IDS, run_id=_RUN_IDS[2])
        expect_landed(landed)
        others = [id_ for id_ in _RUN_IDS if id_ != landed.run_id]
        found = {id_: table.attempt([], run_id=id_, nonce=f"of {id_}").find() for id_ in others}
        expect(found, dict.fromkeys(others), "marks under other ids")
        expect_found(landed.find(), "under its own id")

    def test_a_run_that_was_copied_to_another_id_is_found_by_its_nonce(self) -> None:
        """The rows are there, whatever the ledger's folder is called now."""
        table = self.table()
        landed = table.attempt(IDS)
        expect_landed(landed)
        table.foreign_append()
        sink = table.sink()
        found = sink.find_mark(sink.load(), "the-copy", landed.mark.run_nonce, {})
        expect(expect_found(found, "under another id").mark, landed.mark, "the mark")

    def test_a_view_stays_as_it_was_loaded(self) -> None:
        """Later changes do not reach a loaded view: the engine decides on one state."""
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
        """No answer is not a refusal: the outcome is unknown until the mark is looked for."""
        table = self.table()
        attempt = table.attempt(IDS)
        table.lose_next_answer(landed=True)
        expect(attempt.post(), Outcome.UNKNOWN, "a post without an answer")
        wanted = MarkFound(mark=attempt.mark, present=True)
        expect(attempt.find(), wanted, "the mark of a post that has arrived")
        expect(our_rows(table), IDS, "rows of a post that has arrived")

    def test_a_post_that_never_arrives_is_not_found_and_the_next_lands(self) -> None:
        """A post that was lost on the way leaves nothing behind; the next attempt can land."""
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
        """An empty snapshot without an answer is unknown too, until the next look."""
        for landed in (True, False):
            table = self.table_without_snapshot()
            sink = table.sink()
            view = sink.load()
            table.lose_next_answer(landed=landed)
            expect(sink.post_empty(view), Outcome.UNKNOWN, "an empty snapshot without an answer")
            shown = sink.load().parent_snapshot_id is not None
            expect(shown, landed, "whether an empty snapshot is shown")

    # ---- what others do to the table --------------------------------------------------------
    def test_a_run_that_was_rolled_back_is_reported_as_gone(self) -> None:
        """The mark survives a roll-back, which removed the rows on purpose."""
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

    def test_a_run_that_was_replaced_is_not_reported_as_there(self) -> None:
        """The mark survives a replaced content; its rows are gone, or that is unknown."""
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

    def test_a_run_whose_history_is_expired_is_not_reported_as_gone(self) -> None:
        """The mark survives its snapshot; its rows are there, provably or not."""
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
        """A table may drop old marks, but a landed run is never reported as not landed."""
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
        """The same name is not the same table: the post asserts the UUID."""
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

    def test_a_dropped_table_is_reported_as_missing(self) -> None:
        """Loading a dropped table raises its own error, and a post does not land."""
        table = self.table()
        attempt = table.attempt(IDS)
        table.drop()
        expect_error(TableMissingError, attempt.sink.load, "a look at a dropped table")
        expect_not(attempt.post(), Outcome.LANDED, "a post to a dropped table")
        expect_error(TableMissingError, attempt.sink.load, "a look after a late post")


# ---- The post: one conditional step, and what must stop it
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
        """Neither an intent nor staged files make a mark, whether intents are given or not."""
        table = self.table()
        attempt = table.attempt(IDS)
        expect(attempt.find(), None, "the mark of a run that has not posted")
        none = attempt.sink.find_mark(attempt.view, RUN_ID, attempt.mark.run_nonce, {})
        expect(none, None, "the mark of a run without intents")

    def test_a_second_post_from_the_same_view_is_a_conflict(self) -> None:
        """A view is good for one post: neither the same intent nor another lands on it again."""
        table = self.table()
        first = table.attempt(IDS)
        second = table.attempt(OTHER_IDS, number=2, sink=first.sink, view=first.view)
        expect_landed(first)
        for again in (first, second):
            expect_refused(again.post(), "a second post from one view")
        expect(our_rows(table), IDS, "rows after a second post from one view")
        expect(expect_found(first.find(), "after a conflict").mark, first.mark, "the mark")

    def test_a_post_from_a_stale_view_is_a_conflict(self) -> None:
        """Whatever other writers have added since the look wins; nothing of ours lands."""
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
        first = table.attempt(IDS, number=1)
        two = table.attempt(OTHER_IDS, number=2)
        expect(first.post(), Outcome.LANDED, "the first of two rivals")
        expect_refused(two.post(), "the second of two rivals")
        expect(our_rows(table), IDS, "rows after two rivals")
        found = two.sink.find_mark(two.sink.load(), RUN_ID, two.mark.run_nonce, {2: two.intent})
        expect(expect_found(found, "by the loser").mark, first.mark, "the mark the loser finds")

    def test_of_rivals_that_post_at_once_one_lands(self) -> None:
        """The table decides between posts that arrive at the same moment."""
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
        claimed = [number for number, outcome in enumerate(outcomes) if outcome is Outcome.LANDED]
        # An outcome may be unknown, but one that says LANDED must be right.
        expect(claimed or landed, landed, f"who got the answer LANDED ({outcomes})")

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
        """No two drivers draw the same id, or one that the table has."""
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
        """The post of the data has a parent even in a new table; two rivals do not both make it."""
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
        """A first snapshot that arrives late does not replace what has landed meanwhile."""
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


# ---- The sink contract: what the engine relies on, as tests for any table format
# Parts of a path, between folder and name, that a file system or a server resolves.
_WAYS_OUT = ("../", "../../", "./", "/", "%2e%2e/", "%252E%252e/", "..%2f", "x/../../", "..\\")


class _FileCases(Cases):
    """What writers, `missing_files`, `check`, `copy_groups` and `delete_files` must do."""

    def test_a_writer_spec_survives_the_way_to_an_executor(self) -> None:
        """What executors get is pickled; what they stage with it fits the table."""
        table = self.table()
        sink = table.sink()
        view = sink.load()
        spec = pickle.loads(pickle.dumps(sink.writer_spec(view)))  # noqa: S301 - our own bytes.
        groups = table.stage(IDS, spec)
        sink.check(view, [view.schema], groups)
        expect(sum(file.rows for group in groups for file in group.files), len(IDS), "staged rows")

    def test_a_task_without_rows_stages_nothing(self) -> None:
        """An empty task leaves no file, and a post of nothing but its mark lands."""
        table = self.table()
        attempt = table.attempt([])
        expect(attempt.groups, [], "what a task without rows has staged")
        expect_landed(attempt)
        expect(attempt.find(), MarkFound(mark=attempt.mark, present=True), "its mark")

    def test_each_missing_file_is_named_and_stops_the_commit(self) -> None:
        """A staged file that is gone is named; the check stops before anything is posted."""
        table = self.table()
        for index in range(len(table.attempt(IDS).paths)):
            attempt = table.attempt(IDS)
            sink, view, groups = attempt.sink, attempt.view, attempt.groups
            expect(sink.missing_files(view, groups), [], "missing files while all are there")
            sink.refuse_missing_files(view, groups)
            table.remove_file(attempt.paths[index])
            expect(sink.missing_files(view, groups), [attempt.paths[index]], "missing files")
            error = expect_error(
                StagedFileMissingError,
                partial(sink.refuse_missing_files, view, groups),
                "a check while a staged file is gone",
            )
            expect((error.path, error.count), (attempt.paths[index], 1), "what the error names")

    def test_a_file_of_another_size_counts_as_missing(self) -> None:
        """A file that was overwritten or cut short is not the one that was staged."""
        table = self.table()
        attempt = table.attempt(IDS)
        group = attempt.groups[0]
        file = replace(group.files[0], size_bytes=group.files[0].size_bytes + 1)
        grown = replace(group, files=(file, *group.files[1:]))
        missing = attempt.sink.missing_files(attempt.view, [grown, *attempt.groups[1:]])
        expect(missing, [file.path], "files of another size")

    def test_a_changed_schema_stops_the_commit(self) -> None:
        """Files that were staged for another schema are not posted; the same schema passes."""
        table = self.table()
        attempt = table.attempt(IDS)
        began = json.loads(json.dumps(attempt.view.schema))  # The ledger keeps it as JSON.
        attempt.sink.check(attempt.sink.load(), [began], attempt.groups)
        table.change_schema()
        view = attempt.sink.load()
        expect_error(
            TableChangedError,
            lambda: attempt.sink.check(view, [began], attempt.groups),
            "a check after the schema has changed",
        )

    def test_a_copy_lands_in_place_of_its_original(self) -> None:
        """Copies have other names, and need nothing of the originals once they are made."""
        table = self.table()
        attempt = table.attempt(IDS)
        sink, view, groups = attempt.sink, attempt.view, attempt.groups
        targets = [group.renamed(uuid.uuid4().hex) for group in groups]
        copies = sink.copy_groups(view, groups, targets)
        expect([copy.paths for copy in copies], [group.paths for group in targets], "copies' names")
        _expect_missing(attempt, [], "files that were copied")
        sink.delete_files(view, attempt.paths)
        sink.check(view, [view.schema], copies)
        expect_landed(replace(attempt, groups=copies))
        expect(our_rows(table), IDS, "rows of copies")

    def test_a_copy_of_what_is_gone_is_refused(self) -> None:
        """Every staged object is needed: without it, rows would be dropped silently."""
        table = self.table()
        for index in range(len(table.attempt(IDS).paths)):
            attempt = table.attempt(IDS)
            sink, view, groups = attempt.sink, attempt.view, attempt.groups
            table.remove_file(attempt.paths[index])
            targets = [group.renamed(uuid.uuid4().hex) for group in groups]
            expect_error(
                StagedFileMissingError,
                partial(sink.copy_groups, view, groups, targets),
                "a copy of what is gone",
            )
            expect_error(
                StagedFileMissingError,
                partial(sink.old_groups, view, groups, 0.0),
                "a look at the age of what is gone",
            )

    def test_what_was_just_written_is_old_only_from_later_on(self) -> None:
        """The two moments are hours apart, so any clock will do."""
        attempt = self.table().attempt(IDS)
        sink, view, groups = attempt.sink, attempt.view, attempt.groups
        expect(sink.old_groups(view, groups, sys.float_info.min), [], "what is as old as time")
        expect(sink.old_groups(view, groups, sys.float_info.max), groups, "what is older than ever")

    def test_deleting_staged_files_is_safe_to_repeat(self) -> None:
        """A sweep that was interrupted starts again; what has landed is left alone."""
        table = self.table()
        landed = table.attempt(IDS)
        expect_landed(landed)
        doomed = table.attempt(OTHER_IDS, number=2)
        for _ in range(2):
            doomed.sink.delete_files(doomed.sink.load(), doomed.paths)
        _expect_missing(landed, [], "files that have landed")
        expect(our_rows(table), IDS, "rows after others' files were deleted")

    def test_files_in_the_table_are_live_and_staged_ones_are_not(self) -> None:
        """Whatever a ledger says, a sweep deletes nothing that the table reaches."""
        table = self.table()
        landed = table.attempt(IDS)
        expect_landed(landed)
        staged = table.attempt(OTHER_IDS, number=2)
        sink = table.sink()
        found = sink.live_files(sink.load(), [*landed.paths, *staged.paths], "")
        expect(found, set(landed.paths), "the files that the table reaches")

    def test_deleted_files_are_missing(self) -> None:
        """What was swept can no longer be posted: the check names every file."""
        table = self.table()
        doomed = table.attempt(IDS)
        doomed.sink.delete_files(doomed.sink.load(), doomed.paths)
        _expect_missing(doomed, doomed.paths, "files that were deleted")

    def test_a_path_outside_the_table_is_refused(self) -> None:
        """A ledger that names a file outside the table is damaged; nothing is deleted."""
        table = self.table()
        attempt = table.attempt(IDS)
        outside = table.path_outside()
        expect_error(
            LedgerDamagedError,
            lambda: attempt.sink.delete_files(attempt.view, [outside]),
            "a path outside the table",
        )

    def test_a_path_that_has_to_be_resolved_is_refused(self) -> None:
        """Such a path can lead out of the table, and no writer makes one: nothing is deleted."""
        table = self.table()
        attempt = table.attempt(IDS)
        for path in attempt.paths:
            folder, _, name = path.rpartition("/")
            for way in _WAYS_OUT:
                expect_error(
                    LedgerDamagedError,
                    partial(
                        attempt.sink.delete_files,
                        attempt.view,
                        [*attempt.paths, f"{folder}/{way}{name}"],
                    ),
                    f"a list with a path that has {way!r} inside",
                )
        _expect_missing(attempt, [], "files listed before such a path")

    def test_a_list_with_a_path_outside_deletes_nothing(self) -> None:
        """One foreign path invalidates the whole list: the files before it stay too."""
        table = self.table()
        attempt = table.attempt(IDS)
        paths = [*attempt.paths, table.path_outside()]
        expect_error(
            LedgerDamagedError,
            lambda: attempt.sink.delete_files(attempt.view, paths),
            "a list with a path outside the table",
        )
        _expect_missing(attempt, [], "files listed before a path outside")
        expect_landed(attempt)
        expect(our_rows(table), IDS, "rows after a refused list")


def _expect_missing(attempt: Attempt, wanted: list[str], why: str) -> None:
    __tracebackhide__ = True
    missing = attempt.sink.missing_files(attempt.sink.load(), attempt.groups)
    expect(sorted(missing), sorted(wanted), f"missing among {why}")


class SinkContract(PostCases, MarkCases, _FileCases, ReplaceCases):
    """What every sink must do; each method is one case.

    A case fails with an AssertionError, and is skipped with a reason where the table under test
    cannot do what the case needs.
    """
