"""The contract itself: it catches each promise that a sink breaks, and asks for nothing more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from holdfast.errors import RunMismatchError
from holdfast.model.records import Intent
from holdfast.model.work import StagedGroup
from holdfast.sinks.base import MarkFound, Outcome, RunMark, TableView
from tests.contract.simulated_table import SharedSimTable, SimulatedTable
from tests.contract.sink_contract import SinkContract


class ForgetsMarks(SharedSimTable):
    """Never finds a mark."""

    def find_mark(
        self, view: TableView, run_id: str, run_nonce: str, intents: Mapping[int, Intent]
    ) -> MarkFound | None:
        """Find nothing, but still distinguish runs."""
        super().find_mark(view, run_id, run_nonce, intents)
        return None


class IgnoresHorizon(SharedSimTable):
    """Takes a missing mark as proof, though old marks are dropped."""

    def find_mark(
        self, view: TableView, run_id: str, run_nonce: str, intents: Mapping[int, Intent]
    ) -> MarkFound | None:
        """Look as if no mark had ever been dropped."""
        bare = replace(view, handle=replace(view.handle, horizon=0))
        return super().find_mark(bare, run_id, run_nonce, intents)


class GoesByIds(SharedSimTable):
    """Looks for a mark under the run's present id only."""

    def find_mark(
        self, view: TableView, run_id: str, run_nonce: str, intents: Mapping[int, Intent]
    ) -> MarkFound | None:
        """Look as if no other run had left a mark."""
        marks = {name: mark for name, mark in view.handle.marks.items() if name == run_id}
        bare = replace(view, handle=replace(view.handle, marks=marks))
        return super().find_mark(bare, run_id, run_nonce, intents)


class TrustsAnyNonce(SharedSimTable):
    """Takes every run of the same id for ours."""

    def find_mark(
        self, view: TableView, run_id: str, run_nonce: str, intents: Mapping[int, Intent]
    ) -> MarkFound | None:
        """Find other runs' marks too."""
        try:
            return super().find_mark(view, run_id, run_nonce, intents)
        except RunMismatchError:
            return super().find_mark(view, run_id, view.handle.marks[run_id].run_nonce, intents)


class SaysPresent(SharedSimTable):
    """Takes a mark as proof that the rows are there."""

    def _present(self, head: int | None, mark: RunMark) -> bool | None:  # noqa: ARG002
        return True


class SaysGone(SharedSimTable):
    """Takes a history that is silent for one that denies."""

    def _present(self, head: int | None, mark: RunMark) -> bool | None:
        return bool(super()._present(head, mark))


class LooksLive(SharedSimTable):
    """Looks for marks in the table as it is now, whatever the view."""

    def find_mark(
        self, view: TableView, run_id: str, run_nonce: str, intents: Mapping[int, Intent]
    ) -> MarkFound | None:
        """Look again behind the engine's back."""
        handle = replace(view.handle, marks=dict(self.marks))
        return super().find_mark(replace(view, handle=handle), run_id, run_nonce, intents)


class LandsAnywhere(SharedSimTable):
    """Posts without any condition, whatever the head is."""

    def _arrive(self, post: Any) -> bool:  # noqa: ANN401 - the fake's own.
        now = {"head_seen": self.head}
        number = self.last_sequence_number + 1
        return super()._arrive(
            replace(post, **now, mark=replace(post.mark, sequence_number=number))
        )


class ForgetsNumbers(SharedSimTable):
    """Asserts the head, but not the sequence number."""

    def _arrive(self, post: Any) -> bool:  # noqa: ANN401 - the fake's own.
        number = self.last_sequence_number + 1
        return super()._arrive(replace(post, mark=replace(post.mark, sequence_number=number)))


class TakesAnyUuid(SharedSimTable):
    """Takes any table of the same name for the same table."""

    def post_empty(self, view: TableView) -> Outcome:
        """Assert the head only, which neither table has."""
        return super().post_empty(replace(view, uuid=self.uuid))


class PostsEmptyAnywhere(SharedSimTable):
    """Gives a table more than one first snapshot."""

    def post_empty(self, view: TableView) -> Outcome:
        """Assert nothing."""
        return super().post_empty(replace(view, handle=replace(view.handle, head=self.head)))


class DrawsOneId(SharedSimTable):
    """Always draws the same snapshot id."""

    def new_snapshot_id(self, view: TableView) -> int:  # noqa: ARG002
        """Draw the same one."""
        return 77


class ChecksNothing(SharedSimTable):
    """Lets every commit pass."""

    def check(
        self, view: TableView, schemas: Sequence[dict[str, Any]], groups: Sequence[StagedGroup]
    ) -> None:
        """Pass."""


class MissesNothing(SharedSimTable):
    """Takes every staged file to be there."""

    def refuse_missing_files(self, view: TableView, groups: Sequence[StagedGroup]) -> None:
        """Pass."""


class DeletesAnything(SharedSimTable):
    """Deletes what a damaged ledger names."""

    def delete_files(self, view: TableView, paths: Sequence[str]) -> None:
        """Check nothing."""


class DeletesByPrefix(SharedSimTable):
    """Takes any path with the table's prefix for the table's own."""

    def refuse_outside(self, paths: Sequence[str]) -> None:
        """Refuse paths without the prefix, and nothing else."""
        super().refuse_outside([path for path in paths if not path.startswith("mem://")])


class DeletesOnce(SharedSimTable):
    """Fails when a sweep is repeated."""

    def delete_files(self, view: TableView, paths: Sequence[str]) -> None:
        """Demand that every file is there."""
        assert [path for path in paths if path in self.files]
        super().delete_files(view, paths)


CAUGHT: list[tuple[type[SharedSimTable], str]] = [
    (ForgetsMarks, "test_a_post_lands_its_rows_once_with_its_mark"),
    (ForgetsMarks, "test_a_post_whose_answer_is_lost_is_found_by_its_mark"),
    (IgnoresHorizon, "test_a_missing_mark_proves_nothing_once_marks_were_forgotten"),
    (GoesByIds, "test_a_run_that_was_copied_to_another_id_is_found_by_its_nonce"),
    (TrustsAnyNonce, "test_the_same_run_id_of_another_ledger_is_a_mismatch"),
    (SaysPresent, "test_a_run_that_was_rolled_back_is_reported_as_gone"),
    (SaysPresent, "test_a_run_that_was_replaced_is_not_reported_as_there"),
    (SaysGone, "test_a_run_whose_history_is_expired_is_not_reported_as_gone"),
    (LooksLive, "test_a_view_stays_as_it_was_loaded"),
    (LandsAnywhere, "test_a_second_post_from_the_same_view_is_a_conflict"),
    (LandsAnywhere, "test_a_post_from_a_stale_view_is_a_conflict"),
    (LandsAnywhere, "test_of_two_rivals_with_the_same_view_one_lands"),
    (LandsAnywhere, "test_of_rivals_that_post_at_once_one_lands"),
    (LandsAnywhere, "test_a_delayed_post_is_refused_once_its_number_is_used"),
    (ForgetsNumbers, "test_a_delayed_post_is_refused_even_on_its_own_parent"),
    (TakesAnyUuid, "test_a_table_that_was_made_again_takes_no_post_of_the_old_one"),
    (PostsEmptyAnywhere, "test_an_empty_table_gets_its_first_snapshot_once"),
    (PostsEmptyAnywhere, "test_a_late_first_snapshot_hides_no_rows"),
    (DrawsOneId, "test_new_snapshot_ids_are_fresh"),
    (MissesNothing, "test_each_missing_file_is_named_and_stops_the_commit"),
    (ChecksNothing, "test_a_changed_schema_stops_the_commit"),
    (DeletesAnything, "test_a_path_outside_the_table_is_refused"),
    (DeletesByPrefix, "test_a_path_that_has_to_be_resolved_is_refused"),
    (DeletesOnce, "test_deleting_staged_files_is_safe_to_repeat"),
]


class Contract(SinkContract):
    """The contract on a simulated table that breaks one promise."""

    def __init__(self, kind: type[SharedSimTable]) -> None:
        """Take the table's kind."""
        self._kind = kind

    def table(self, *, empty: bool = False) -> SimulatedTable:
        """Return a new table of that kind."""
        return SimulatedTable(empty=empty, kind=self._kind)


@pytest.mark.parametrize(
    ("broken", "case"), CAUGHT, ids=[f"{kind.__name__}-{case}" for kind, case in CAUGHT]
)
def test_a_broken_promise_is_caught(broken: type[SharedSimTable], case: str) -> None:
    """A sink that breaks one promise fails the case for it; a correct sink passes it."""
    getattr(Contract(SharedSimTable), case)()
    with pytest.raises(AssertionError):
        getattr(Contract(broken), case)()
