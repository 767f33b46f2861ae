"""The commit: whatever the catalog answers, or if it does not, the run is in the table once."""

from __future__ import annotations

import pytest

from holdfast.errors import (
    CatalogUnavailableError,
    CommitConflictError,
    CommitUnknownError,
    RunFencedError,
    StoreUnavailableError,
)
from holdfast.model.records import Receipt
from holdfast.sinks.base import Outcome, TableView
from tests.fakes.memory_table import DriverDiedError, MemoryTable, PostFault
from tests.fakes.rig import GROUPS, LAYOUT, Rig

# ---- The commit: whatever the catalog answers, the run is in the table once
ATTEMPTS = 100
# A catalog that never answers is given up sooner than one that is only busy.
UNANSWERED = 20


def kinds(rig: Rig) -> list[str]:
    """Return the kinds of all records in the log, in order."""
    log = rig.commit_step().log
    return [type(record.body).__name__ for record in log.records[:-1]]


def test_an_answered_post_lands_once() -> None:
    """One intent, one post, one snapshot, one receipt."""
    rig = Rig()
    landed = rig.publish()
    (snapshot,) = rig.table.data_snapshots
    assert snapshot.groups == tuple(GROUPS)
    assert (landed.posts, landed.present) == (1, True)
    assert landed.receipt == Receipt(
        intent_number=2,
        snapshot_id=snapshot.snapshot_id,
        sequence_number=snapshot.sequence_number,
        staged=rig.part(),
        rows=7,
        files=2,
        size_bytes=700,
    )
    assert kinds(rig) == ["Claim", "Intent", "Receipt"]


@pytest.mark.parametrize("fault", [PostFault.ANSWER_LOST, PostFault.LANDS_AS_CONFLICT])
def test_a_post_that_landed_though_the_answer_says_otherwise_is_found_by_its_mark(
    fault: PostFault,
) -> None:
    """A lost answer and a false 409 both hide a landed commit; it is not posted again."""
    rig = Rig()
    rig.table.post_faults.append(fault)
    landed = rig.publish()
    (snapshot,) = rig.table.data_snapshots
    assert landed.receipt.snapshot_id == snapshot.snapshot_id
    assert (landed.posts, len(rig.table.posts)) == (1, 1)
    assert kinds(rig) == ["Claim", "Intent", "Receipt"]


@pytest.mark.parametrize(
    ("fault", "times"),
    [
        (PostFault.RIVAL_FIRST, 1),
        (PostFault.RIVAL_FIRST, ATTEMPTS - 1),
        (PostFault.NEVER_ARRIVES, 1),
        (PostFault.NEVER_ARRIVES, UNANSWERED - 1),
    ],
)
def test_a_post_that_did_not_land_is_made_again_with_a_fresh_intent(
    fault: PostFault, times: int
) -> None:
    """Every post has its own intent, id and mark; only the last one lands."""
    rig = Rig()
    rig.table.post_faults.extend([fault] * times)
    landed = rig.publish()
    assert len(rig.table.data_snapshots) == 1
    assert landed.posts == len(rig.table.posts) == times + 1
    assert len({mark.snapshot_id for mark in rig.table.posts}) == times + 1
    # A conflict is recorded once a look has confirmed it; a post without an answer stays in doubt.
    step = ["Intent", "Refused"] if fault is PostFault.RIVAL_FIRST else ["Intent"]
    assert kinds(rig) == ["Claim", *step * times, "Intent", "Receipt"]
    intents = [number for number, kind in enumerate(kinds(rig), 1) if kind == "Intent"]
    assert [mark.intent_number for mark in rig.table.posts] == intents
    assert landed.receipt.intent_number == intents[-1]
    in_doubt = set(rig.log().doubtful) - {intents[-1]}
    assert in_doubt == (set() if fault is PostFault.RIVAL_FIRST else set(intents[:-1]))


def test_a_delayed_post_and_its_successor_do_not_both_land() -> None:
    """The first post arrives after the look; the second is refused, and the mark names the first.

    The receipt copies the intent that landed, not the latest one.
    """
    rig = Rig()
    rig.table.post_faults.append(PostFault.DELAYED)
    landed = rig.publish()
    (snapshot,) = rig.table.data_snapshots
    assert snapshot.mark == rig.table.posts[0]
    assert landed.receipt.intent_number == rig.table.posts[0].intent_number == 2
    assert landed.posts == 2


def test_pauses_between_posts_grow_to_a_bound_and_are_injected() -> None:
    """A busy table is not hammered, and no pause lasts for minutes."""
    rig = Rig()
    rig.table.post_faults.extend([PostFault.RIVAL_FIRST] * 20)
    rig.publish()
    assert len(rig.time.sleeps) == 20
    assert rig.time.sleeps == sorted(rig.time.sleeps)
    assert rig.time.sleeps[-1] <= 5.0


def test_endless_conflicts_end_in_an_error_that_says_nothing_landed() -> None:
    """Other writers won every attempt; the files are kept for the next start."""
    rig = Rig()
    rig.table.post_faults.extend([PostFault.RIVAL_FIRST] * ATTEMPTS)
    with pytest.raises(CommitConflictError, match="nothing landed") as caught:
        rig.publish()
    assert caught.value.attempts == ATTEMPTS
    assert rig.table.data_snapshots == []
    assert rig.storage.names_called("delete") == []
    assert rig.publish().posts == 1


def test_a_catalog_that_never_answers_ends_in_unknown_and_deletes_nothing() -> None:
    """One of the posts may still arrive: the error says so, and every file is kept."""
    rig = Rig()
    rig.table.post_faults.extend([PostFault.NEVER_ARRIVES] * UNANSWERED)
    with pytest.raises(CommitUnknownError, match="Delete nothing"):
        rig.publish()
    assert len(rig.table.posts) == UNANSWERED
    assert rig.storage.names_called("delete") == []
    assert "Receipt" not in kinds(rig)


def test_one_unknown_among_conflicts_is_enough_to_be_unknown() -> None:
    """The error says that nothing landed only if every post was answered."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.NEVER_ARRIVES)
    rig.table.post_faults.extend([PostFault.RIVAL_FIRST] * (ATTEMPTS - 1))
    with pytest.raises(CommitUnknownError):
        rig.publish()


@pytest.mark.parametrize("fault", [PostFault.LANDS_AS_CONFLICT, PostFault.ANSWER_LOST])
def test_the_last_post_is_looked_up_too(fault: PostFault) -> None:
    """A post that landed at the last attempt is found; no error says that nothing landed."""
    rig = Rig()
    rig.table.post_faults.extend([PostFault.RIVAL_FIRST] * (ATTEMPTS - 1) + [fault])
    landed = rig.publish()
    assert landed.receipt.snapshot_id == rig.table.posts[-1].snapshot_id
    assert landed.posts == ATTEMPTS


def test_an_empty_table_first_gets_an_empty_snapshot() -> None:
    """A data intent always has a parent, so that a delayed post can be refused."""
    rig = Rig(table=MemoryTable(empty=True))
    landed = rig.publish()
    first, second = rig.table.snapshots.values()
    assert (first.mark, first.groups, first.parent_id) == (None, (), None)
    assert second.parent_id == first.snapshot_id
    assert (landed.receipt.snapshot_id, landed.posts) == (second.snapshot_id, 1)
    intent = rig.commit_step().log.intents[2]
    assert intent.parent_snapshot_id == first.snapshot_id
    assert rig.time.sleeps == []  # The look after it is enough: no attempt is lost.


def test_without_the_empty_snapshot_no_rows_are_posted() -> None:
    """It did not arrive: rows posted then would have no parent, and could land twice."""
    rig = Rig(table=MemoryTable(empty=True))
    rig.table.post_empty_faults.append(PostFault.NEVER_ARRIVES)
    rig.publish()
    first, second = rig.table.snapshots.values()
    assert (first.mark, second.parent_id) == (None, first.snapshot_id)
    assert (rig.table.empty_posts, len(rig.table.posts)) == (2, 1)


def test_an_empty_snapshot_that_is_never_answered_is_given_up_too() -> None:
    """After as many attempts as posts of rows."""
    rig = Rig(table=MemoryTable(empty=True))
    rig.table.post_empty_faults.extend([PostFault.NEVER_ARRIVES] * ATTEMPTS)
    with pytest.raises(CommitUnknownError):
        rig.publish()
    assert (rig.table.empty_posts, rig.table.posts) == (UNANSWERED, [])


def test_the_table_is_looked_at_again_after_its_empty_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run had landed on a branch that was dropped, and that is restored at that moment."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_LANDED)
    with pytest.raises(DriverDiedError):
        rig.publish()
    there, post_empty = (rig.table.head, rig.table.marks), rig.table.post_empty
    rig.table.head, rig.table.marks = None, {}

    def restore_and_post(view: TableView) -> Outcome:
        rig.table.head, rig.table.marks = there
        return post_empty(view)

    monkeypatch.setattr(rig.table, "post_empty", restore_and_post)
    assert rig.publish().receipt.intent_number == 2
    assert len(rig.table.data_snapshots) == 1


@pytest.mark.parametrize("fault", [PostFault.DIES_LANDED, PostFault.DIES_DELAYED])
def test_the_receipt_copies_an_older_drivers_intent_if_the_mark_names_it(fault: PostFault) -> None:
    """A dead driver's post has landed, or lands late: the new driver adopts it as it is."""
    rig = Rig()
    rig.table.post_faults.append(fault)
    with pytest.raises(DriverDiedError):
        rig.publish()
    landed = rig.publish()
    (snapshot,) = rig.table.data_snapshots
    assert snapshot.mark == rig.table.posts[0]
    assert landed.receipt.intent_number == 2
    assert landed.receipt.snapshot_id == snapshot.snapshot_id


def test_a_fenced_driver_does_not_write_a_receipt() -> None:
    """Its post landed while another driver claimed: the new driver writes the receipt."""
    rig = Rig()
    old = rig.commit_step()
    rig.table.before_post = rig.commit_step
    with pytest.raises(RunFencedError):
        rig.publish(old)
    assert kinds(rig) == ["Claim", "Intent", "Claim"]
    assert rig.publish().receipt.intent_number == 2
    assert len(rig.table.data_snapshots) == 1


def test_a_fenced_driver_writes_no_intent_and_posts_nothing() -> None:
    """A claim before the intent keeps the old driver away from the table."""
    rig = Rig()
    old = rig.commit_step()
    rig.commit_step()
    with pytest.raises(RunFencedError):
        rig.publish(old)
    assert rig.table.posts == []


def test_an_old_driver_that_finds_the_new_drivers_mark_is_fenced() -> None:
    """Another driver has landed the run, so the outcome is not unknown."""
    rig = Rig()
    old = rig.commit_step()
    rig.table.before_post = rig.publish
    with pytest.raises(RunFencedError):
        rig.publish(old)
    assert len(rig.table.data_snapshots) == 1


def test_a_receipt_that_cannot_be_written_leaves_a_run_that_is_found_by_its_mark() -> None:
    """The rows are in the table and the store is down: the next start finds them."""
    rig = Rig()
    commit = rig.commit_step()
    rig.table.after_post = lambda: rig.storage.failures.update(create=6)
    with pytest.raises(StoreUnavailableError):
        rig.publish(commit)
    found = rig.commit_step().look()
    assert found is not None
    assert (found.receipt.intent_number, found.posts) == (2, 0)
    assert len(rig.table.data_snapshots) == 1
    assert LAYOUT.record(4) in rig.storage.objects


# ---- The commit while the catalog is down: it waits, and never takes the outage for a failure
@pytest.mark.parametrize("fault", [PostFault.ANSWER_LOST, PostFault.NEVER_ARRIVES])
@pytest.mark.parametrize("outage", [1, 30])
def test_an_outage_after_a_lost_answer_is_waited_for(fault: PostFault, outage: int) -> None:
    """The look that would find out fails as well: the driver pauses and looks again."""
    rig = Rig()
    rig.table.post_faults.append(fault)
    rig.table.after_post = lambda: setattr(rig.table, "load_failures", outage)
    landed = rig.publish()
    assert landed.posts == len(rig.table.posts) == (1 if fault is PostFault.ANSWER_LOST else 2)
    assert len(rig.table.data_snapshots) == 1
    assert len(rig.time.sleeps) == outage + 1


def test_an_outage_before_any_post_is_raised_at_once() -> None:
    """Nothing is in flight, so there is nothing to wait for."""
    rig = Rig()
    rig.table.load_failures = 1
    with pytest.raises(CatalogUnavailableError):
        rig.publish()
    assert (rig.table.posts, rig.time.sleeps) == ([], [])


@pytest.mark.parametrize("fault", [PostFault.ANSWER_LOST, PostFault.NEVER_ARRIVES])
def test_an_outage_that_does_not_end_after_a_lost_answer_is_unknown(fault: PostFault) -> None:
    """A post is in flight and its outcome is hidden: the error says that it may have landed."""
    rig = Rig()
    rig.table.post_faults.append(fault)
    rig.table.after_post = lambda: setattr(rig.table, "load_failures", 10_000)
    with pytest.raises(CommitUnknownError, match="Delete nothing"):
        rig.publish()


# ---- Lost answers are counted over both empty posts and data posts
def test_lost_answers_to_empty_and_data_posts_are_counted_together() -> None:
    """If a catalog answers neither, it is one silent catalog."""
    rig = Rig(table=MemoryTable(empty=True))
    rig.table.post_empty_faults.append(PostFault.ANSWER_LOST)
    rig.table.post_faults.extend([PostFault.NEVER_ARRIVES] * 200)
    with pytest.raises(CommitUnknownError):
        rig.publish()
    assert (rig.table.empty_posts, len(rig.table.posts)) == (1, 19)


def test_two_lost_answers_in_one_attempt_do_not_skip_the_limit() -> None:
    """The empty post lands as the twentieth without an answer; the data post is the next one."""
    rig = Rig(table=MemoryTable(empty=True))
    rig.table.post_empty_faults.extend([PostFault.NEVER_ARRIVES] * 19 + [PostFault.ANSWER_LOST])
    rig.table.post_faults.extend([PostFault.NEVER_ARRIVES] * 200)
    with pytest.raises(CommitUnknownError):
        rig.publish()
    assert (rig.table.empty_posts, len(rig.table.posts)) == (20, 1)


def test_a_busy_table_is_still_a_conflict() -> None:
    """With clear answers the outcome is not unknown."""
    rig = Rig()
    rig.table.post_faults.extend([PostFault.RIVAL_FIRST] * 200)
    with pytest.raises(CommitConflictError):
        rig.publish()
