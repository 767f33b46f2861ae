"""The commit stops with the right error when the table is not what rows were staged for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from holdfast.engine.base import FILES_KNOWN_S
from holdfast.engine.cleanup import abort
from holdfast.errors import (
    CommitError,
    CommitRefusedError,
    CommittedThenRemovedError,
    CommitUnknownError,
    RunCommittedError,
    RunMismatchError,
    StagedFileMissingError,
    TableChangedError,
)
from holdfast.model.work import StagedGroup
from holdfast.sinks.base import RunMark, TableView
from tests.fakes.memory_table import DriverDiedError, MemoryTable, PostFault
from tests.fakes.rig import GROUPS, Rig


def _replace(table: MemoryTable) -> None:
    table.uuid = "uuid-2"


def _add_column(table: MemoryTable) -> None:
    table.schema = {"columns": ["id", "other"]}


def _lose_file(table: MemoryTable) -> None:
    table.lost_files.append(GROUPS[1].files[0].path)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (_replace, TableChangedError, "UUID"),
        (_add_column, TableChangedError, "columns"),
        (_lose_file, StagedFileMissingError, GROUPS[1].files[0].path),
    ],
)
def test_a_change_before_the_post_stops_it(
    change: Callable[[MemoryTable], None], error: type[CommitError], said: str
) -> None:
    """Nothing is posted, no intent is written, and nothing is deleted."""
    rig = Rig()
    commit = rig.commit_step()
    change(rig.table)
    with pytest.raises(error, match=said):
        rig.publish(commit)
    assert rig.table.posts == []
    assert commit.log.intents == {}
    assert rig.storage.names_called("delete") == []


@pytest.mark.parametrize("change", [_replace, _add_column, _lose_file])
def test_a_change_between_two_posts_stops_the_second(
    change: Callable[[MemoryTable], None],
) -> None:
    """Every attempt looks and checks again."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.RIVAL_FIRST)
    rig.table.after_post = lambda: change(rig.table)
    with pytest.raises(CommitError):
        rig.publish()
    assert len(rig.table.posts) == 1


class _AskedFiles:
    """Counts how often a table is asked for staged files, and lets time pass meanwhile."""

    def __init__(self, rig: Rig, takes_s: float) -> None:
        self.times = 0
        self._rig, self._takes_s = rig, takes_s
        self._ask = rig.table.refuse_missing_files
        rig.table.refuse_missing_files = self  # type: ignore[method-assign]

    def __call__(self, view: TableView, groups: Sequence[StagedGroup]) -> None:
        self.times += 1
        self._rig.time.now_s += self._takes_s
        self._ask(view, groups)


def test_files_are_asked_for_once_however_many_posts_are_refused() -> None:
    """What took a minute would take one before each post, and other writers would always win."""
    rig = Rig()
    asked = _AskedFiles(rig, takes_s=60.0)
    rig.table.post_faults.extend([PostFault.RIVAL_FIRST] * 7)
    assert rig.publish().posts == 8
    assert asked.times == 1


def test_a_look_at_the_table_is_repeated_after_a_long_look_at_files() -> None:
    """With a commit of another writer each minute, a check of 70 s would never be followed by one.

    Method: the other writer commits while the files are asked for.
    """
    rig = Rig()
    asked = _AskedFiles(rig, takes_s=70.0)
    ask = rig.table.refuse_missing_files

    def ask_beside_a_rival(view: TableView, groups: Sequence[StagedGroup]) -> None:
        rig.table.foreign_append()
        ask(view, groups)

    rig.table.refuse_missing_files = ask_beside_a_rival  # type: ignore[method-assign]
    assert rig.publish().posts == 1
    assert asked.times == 1


def test_files_are_asked_for_again_once_some_minutes_have_passed() -> None:
    """A file that was removed meanwhile is found, and nothing is posted without it."""
    rig = Rig()
    _AskedFiles(rig, takes_s=60.0)
    rig.table.post_faults.append(PostFault.RIVAL_FIRST)

    def pass_time() -> None:
        rig.time.now_s += FILES_KNOWN_S
        _lose_file(rig.table)

    rig.table.after_post = pass_time
    with pytest.raises(StagedFileMissingError):
        rig.publish()
    assert len(rig.table.posts) == 1


def test_a_refusal_that_only_the_second_look_proves_is_recorded() -> None:
    """Otherwise the post stays in doubt for ever.

    Method: the answer is a conflict, but the table moves past the post only while files are asked
    for, before the next one.
    """
    rig = Rig()
    asked = _AskedFiles(rig, takes_s=60.0)
    ask = rig.table.refuse_missing_files

    def ask_beside_a_rival(view: TableView, groups: Sequence[StagedGroup]) -> None:
        if asked.times:
            rig.table.foreign_append()
        ask(view, groups)

    def pass_time() -> None:
        rig.time.now_s += FILES_KNOWN_S

    rig.table.refuse_missing_files = ask_beside_a_rival  # type: ignore[method-assign]
    rig.table.post_faults.append(PostFault.CONFLICT_THEN_LANDS)
    rig.table.after_post = pass_time
    assert rig.publish().posts == 2
    log = rig.log()
    assert min(log.intents) not in log.doubtful


def test_several_refusals_are_recorded_once_a_later_look_proves_them() -> None:
    """Otherwise the earlier post stays in doubt for ever.

    Method: two answers are conflicts, but the table moves past both only after the second. Found by
    the simulation (seed 962001201), where a compaction came while the loss was computed.
    """
    rig = Rig()
    rig.table.post_faults += [PostFault.CONFLICT_THEN_LANDS, PostFault.CONFLICT_THEN_LANDS]

    def rival_after_the_second() -> None:
        rig.table.after_post = rig.table.foreign_append

    rig.table.after_post = rival_after_the_second
    assert rig.publish().posts == 3
    log = rig.log()
    assert not set(log.doubtful).intersection(sorted(log.intents)[:2])


def test_a_permanent_refusal_is_raised_at_once() -> None:
    """A catalog that refuses for good is not asked a hundred times."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.REFUSED)
    with pytest.raises(CommitRefusedError):
        rig.publish()
    assert len(rig.table.posts) == 1
    assert rig.publish().posts == 1


@pytest.mark.parametrize("receipt_written", [False, True])
def test_a_run_that_was_rolled_back_is_not_written_again(*, receipt_written: bool) -> None:
    """It landed and was removed on purpose: only a new id writes it again."""
    rig = Rig()
    before = rig.table.head or 0
    if not receipt_written:
        rig.table.after_post = lambda: rig.table.roll_back(before)
        rig.table.post_faults.append(PostFault.ANSWER_LOST)
    else:
        rig.publish()
        rig.table.roll_back(before)
    with pytest.raises(CommittedThenRemovedError) as caught:
        rig.publish()
    (snapshot,) = rig.table.data_snapshots
    assert caught.value.snapshot_id == snapshot.snapshot_id
    assert len(rig.table.posts) == 1


def test_the_same_id_from_another_ledger_is_refused() -> None:
    """Another nonce under our id is another run: never a silent no-op."""
    rig = Rig()
    rig.publish()
    other = Rig(table=rig.table)
    with pytest.raises(RunMismatchError):
        other.publish()
    assert len(rig.table.data_snapshots) == 1


def test_hidden_history_gives_the_receipt_and_says_that_presence_is_unknown() -> None:
    """The mark says that it landed; whether the rows are still there cannot be known."""
    rig = Rig()
    first = rig.publish()
    rig.table.history_hidden = True
    found = rig.commit_step().look()
    assert found is not None
    assert (found.receipt, found.present, found.posts) == (first.receipt, None, 0)


def test_a_mark_that_is_gone_does_not_undo_a_receipt() -> None:
    """The mark was removed: the receipt counts, presence is unknown, nothing is posted."""
    rig = Rig()
    first = rig.publish()
    rig.table.marks = {}
    found = rig.commit_step().look()
    assert found is not None
    assert (found.receipt, found.present) == (first.receipt, None)


def test_behind_the_horizon_a_receipt_is_trusted() -> None:
    """A hundred later runs have pushed the mark out: the receipt still says that it landed."""
    rig = Rig()
    first = rig.publish()
    rig.table.drop_marks()
    found = rig.commit_step().look()
    assert found is not None
    assert (found.receipt, found.present) == (first.receipt, None)


def test_behind_the_horizon_without_a_receipt_the_outcome_is_unknown() -> None:
    """The intent may have landed and lost its mark since: posting again could double its rows."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    with pytest.raises(DriverDiedError):
        rig.publish()
    rig.table.foreign_append()
    rig.table.drop_marks()
    with pytest.raises(CommitUnknownError):
        rig.publish()
    assert len(rig.table.posts) == 1


def test_a_refusal_is_recorded_only_once_the_table_has_moved_past_the_post() -> None:
    """A copy of the request may still be in flight: a missing mark proves nothing.

    Found by the simulation (seed 933): the run landed, was reported as aborted, and was swept.
    """
    rig = Rig()
    rig.table.post_faults.append(PostFault.CONFLICT_THEN_LANDS)
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    with pytest.raises(DriverDiedError):
        rig.publish()
    assert 2 in rig.log().doubtful
    rig.table.arrive_late()
    with pytest.raises(RunCommittedError):
        abort(rig.ledger(), lambda _identity: rig.table, "why not")
    assert len(rig.table.data_snapshots) == 1


def test_behind_the_horizon_a_post_that_was_refused_is_not_in_doubt() -> None:
    """The log says that the intent was refused: it cannot have had a mark."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.RIVAL_FIRST)
    rig.table.post_faults.append(PostFault.REFUSED)
    with pytest.raises(CommitRefusedError):
        rig.publish()
    first, second = rig.log().intents
    assert set(rig.log().doubtful) == {second}  # The table has not moved past that one.
    assert first not in rig.log().doubtful


def test_a_post_that_lands_and_is_answered_with_a_refusal_is_found() -> None:
    """A request that is sent twice on its way lands first, and is refused the second time."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.LANDS_REFUSED)
    landed = rig.publish()
    assert landed.receipt.intent_number in rig.log().doubtful
    assert len(rig.table.data_snapshots) == 1


def test_a_rewound_catalog_is_noticed_although_a_receipt_exists() -> None:
    """The receipt's sequence number is above the table's last: the rows are certainly gone."""
    rig = Rig()
    rig.publish()
    rig.table.rewind()
    with pytest.raises(CommitError):
        rig.commit_step().look()


def test_a_mark_that_names_no_intent_of_the_ledger_is_unknown() -> None:
    """A ledger that lost a record cannot know what landed, and does not guess."""
    rig = Rig()
    rig.publish()
    mark = rig.table.marks["r"]
    fresh = Rig(table=rig.table)
    commit = fresh.commit_step()
    fresh.table.marks["r"] = type(mark)(
        run_nonce=commit.run_file.nonce,
        intent_number=9,
        snapshot_id=mark.snapshot_id,
        sequence_number=mark.sequence_number,
    )
    with pytest.raises(CommitUnknownError, match="intent 9"):
        commit.look()
    assert commit.log.receipt is None


def test_a_mark_of_another_copy_of_the_ledger_is_unknown() -> None:
    """Copies of a ledger use the same numbers: intent 2 there is not intent 2 here.

    Found by the simulation (seed 42669): the receipt listed files that had not landed, and a sweep
    with it would have deleted those that had.
    """
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    with pytest.raises(DriverDiedError):
        rig.publish()
    (number,) = rig.log().intents
    commit = rig.commit_step()
    rig.table.foreign_append()
    rig.table.marks["r"] = RunMark(
        run_nonce=commit.run_file.nonce,
        intent_number=number,
        snapshot_id=rig.table.head or 0,
        sequence_number=rig.table.last_sequence_number,
    )
    with pytest.raises(CommitUnknownError, match=f"intent {number}, which the ledger lacks"):
        commit.look()
    assert rig.log().receipt is None
