"""Merge: many small groups enter the table as a few large ones, and the ledger knows which."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.engine import resolve
from holdfast.engine.cleanup import abort, sweep
from holdfast.ledger import run_log
from tests.fakes.memory_storage import DriverDiedError
from tests.fakes.memory_table import PostFault
from tests.fakes.rig import Rig, two_partitions

ALL = list(range(20))
STEPS = {
    "before-merged": run_log,
    "after-merged": run_log,
    "before-merge": resolve,
    "after-merge": resolve,
}


@pytest.fixture(autouse=True)
def _two_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "_MERGED_FROM", 2)


def at_step(monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], object]) -> None:
    """Call a function each time a driver reaches a step."""
    monkeypatch.setattr(STEPS[step], "failpoint", lambda name: act() if name == step else None)


def landed_groups(rig: Rig) -> list[str]:
    """Return the paths of the groups that the run's one snapshot lists."""
    (snapshot,) = rig.table.data_snapshots
    return [group.path for group in snapshot.groups]


def small_groups(rig: Rig) -> list[str]:
    """Return the paths of the groups that tasks have staged."""
    return [group.path for group in rig.sealed().groups]


def swept(rig: Rig) -> None:
    """Sweep the run, as its user does when it has landed."""
    sweep(rig.ledger(), lambda _identity: rig.table)


def test_groups_are_listed_before_and_after_they_are_merged() -> None:
    """The table has one group for two, and every row."""
    rig = Rig()
    assert rig.start().files == 2
    assert rig.kinds()[-5:] == ["Seal", "Merged", "Merged", "Intent", "Receipt"]
    assert [record.is_written for record in rig.log().merged] == [False, True]
    (path,) = landed_groups(rig)
    assert path not in small_groups(rig)
    assert rig.table.ids == ALL


def test_few_groups_are_published_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small job makes no request for it."""
    monkeypatch.setattr(resolve, "_MERGED_FROM", 3)
    rig = Rig()
    rig.start()
    assert landed_groups(rig) == small_groups(rig)
    assert "Merged" not in rig.kinds()


def test_a_start_after_a_kill_uses_what_was_merged() -> None:
    """It writes no group, and the intent names the same list."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    rig.start_and_die()
    merged = rig.log().merged
    rig.start()
    assert rig.log().merged == merged
    assert {intent.merged for intent in rig.log().intents.values()} == {merged[-1].merges}
    assert len(landed_groups(rig)) == 1
    assert rig.table.ids == ALL


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_each_step_leaves_every_row_once_and_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """What the killed start has written is swept if it was not used."""
    rig = Rig()

    def die() -> None:
        raise DriverDiedError

    with monkeypatch.context() as patch:
        at_step(patch, step, die)
        rig.start_and_die()
    rig.start()
    assert rig.table.ids == ALL
    (path,) = landed_groups(rig)
    swept(rig)
    files = {file.path for group in rig.sealed().groups for file in group.files}
    assert set(rig.table.files) == {path, *files}


def test_a_merged_group_that_vanished_is_found_and_written_again() -> None:
    """It went while the post was refused; nothing is posted without it."""
    rig = Rig()

    def lose() -> None:
        (merged,) = [path for path in rig.table.files if "-merged-" in path]
        rig.table.lost_files.append(merged)
        del rig.table.files[merged]

    rig.table.post_faults.append(PostFault.RIVAL_FIRST)
    rig.table.after_post = lose
    rig.start()
    (path,) = landed_groups(rig)
    assert path in rig.table.files
    assert rig.table.ids == ALL


def test_a_merged_group_is_not_used_once_a_record_behind_it_is_withdrawn() -> None:
    """It lists a file that is gone."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    rig.start_and_die()
    (old,) = [path for path in rig.table.files if "-merged-" in path]
    (file, _) = [file.path for group in rig.sealed().groups for file in group.files]
    rig.table.lost_files.append(file)
    del rig.table.files[file]
    assert rig.start(two_partitions()).withdrawn_rows == 10
    assert old not in landed_groups(rig)
    assert rig.table.ids == ALL


def test_an_old_merged_group_is_written_again() -> None:
    """Someone may be about to delete it as an orphan."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    rig.start_and_die()
    (old,) = [path for path in rig.table.files if "-merged-" in path]
    rig.time.now_s += 49 * 3600.0
    rig.start()
    assert old not in landed_groups(rig)
    assert rig.table.ids == ALL


def test_a_sweep_deletes_the_groups_that_others_stand_for() -> None:
    """The table reads the merged one and the files; a second sweep changes nothing."""
    rig = Rig()
    rig.start()
    (path,) = landed_groups(rig)
    small = small_groups(rig)
    for _ in range(2):
        swept(rig)
        assert set(small) <= set(rig.table.deleted_files)
        assert path not in rig.table.deleted_files
        assert rig.table.ids == ALL


def test_a_sweep_keeps_small_groups_that_a_post_in_doubt_may_land() -> None:
    """Of two posts in doubt one lists the small groups themselves.

    Method: the first start merges nothing; both die before their post, and marks are dropped.
    """
    rig = Rig()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resolve, "_MERGED_FROM", 3)
        rig.table.post_faults.append(PostFault.DIES_UNSENT)
        rig.start_and_die()
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    rig.start_and_die()
    rig.table.foreign_append()
    rig.table.drop_marks()
    with pytest.warns(UserWarning, match="2 posts without an answer"):
        abort(rig.ledger(), lambda _identity: rig.table, "no longer wanted")
    swept(rig)
    assert rig.table.deleted_files == []
    assert len(rig.table.files) == 3
