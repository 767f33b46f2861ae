"""What a dataset's versions show, including those that Lance's Python cannot fully read."""

from __future__ import annotations

from pathlib import Path

import pytest
from lance.optimize import Compaction

from holdfast.errors import CommittedThenRemovedError
from holdfast.sinks.base import Outcome
from holdfast.sinks.lance.history import History
from tests.fakes.lance_rig import IDS, LanceRig


@pytest.fixture
def rig(tmp_path: Path) -> LanceRig:
    """Return a dataset with two foreign rows in two fragments, and an index."""
    found = LanceRig(f"file://{tmp_path}/t.lance")
    found.make([-2], mode="append")
    found.dataset().create_scalar_index("id", "BTREE")
    return found


class HalfCompaction:
    """A compaction that reserves fragment numbers in one version, and then fails.

    Meanwhile a row of a fragment that it has rewritten was deleted.
    """

    def __init__(self, rig: LanceRig) -> None:
        """Rewrite fragments, and delete one of their rows."""
        self._rig, self._dataset = rig, rig.dataset()
        tasks = Compaction.plan(self._dataset, {}).tasks
        self._rewrites = [task.execute(self._dataset) for task in tasks]
        rig.dataset().delete("id = -2")

    def reserve(self) -> None:
        """Run it to the point where it fails."""
        before = self._rig.dataset().version
        with pytest.raises(OSError, match="conflict"):
            Compaction.commit(self._dataset, self._rewrites)
        assert self._rig.dataset().version == before + 1  # The test is not vacuous.


def test_a_dataset_with_an_index_is_written_after_its_compaction(rig: LanceRig) -> None:
    """Lance's Python cannot represent that version, but it is still a rewrite."""
    rig.dataset().optimize.compact_files()
    with pytest.raises(TypeError, match="RewrittenIndex"):  # Not yet fixed in Lance.
        rig.dataset().read_transaction(rig.dataset().version)
    rig.start()
    rig.assert_each_row_once(foreign=[-1, -2])
    assert rig.start().outcome == "already_committed"


def test_a_landed_run_is_found_after_such_a_compaction(rig: LanceRig) -> None:
    """The driver died before its receipt; then the dataset was compacted."""
    version = rig.land_and_die()
    rig.dataset().optimize.compact_files()
    driven = rig.start()
    assert (driven.outcome, driven.snapshot_id) == ("already_committed", version)
    rig.assert_each_row_once(foreign=[-1, -2])


def test_a_compaction_under_way_does_not_prove_a_post_dead(rig: LanceRig) -> None:
    """Its reservation lets an earlier post pass, so nothing may be deleted yet."""
    sink, compaction = rig.sink(), HalfCompaction(rig)
    before = sink.load()
    compaction.reserve()
    assert sink.load().settled_below <= before.next_sequence_number


def test_a_post_that_passes_a_compaction_under_way_reports_its_true_version(rig: LanceRig) -> None:
    """The reservation has the version number that the post expected."""
    driven = rig.start_while(HalfCompaction(rig).reserve)
    assert rig.posts[0] is Outcome.UNKNOWN  # It did pass: the test is not vacuous.
    assert driven.snapshot_id == rig.dataset().version
    rig.assert_each_row_once()


def test_a_run_that_passed_a_compaction_and_was_overwritten_is_not_written_twice(
    rig: LanceRig,
) -> None:
    """Its mark is gone; the versions show that it has landed."""
    rig.land_and_die(HalfCompaction(rig).reserve)
    rig.make([-3], mode="overwrite")
    with pytest.raises(CommittedThenRemovedError):
        rig.start()
    assert rig.ids() == [-3]


def test_every_kind_of_version_is_read(rig: LanceRig) -> None:
    """None of them prevents reading the history."""
    dataset = rig.dataset
    dataset().delete("id = -2")
    dataset().update({"label": "'x'"}, where="id = -1")
    dataset().add_columns({"more": "id + 1"})
    dataset().drop_columns(["more"])
    dataset().update_config({"team": "us"})
    rig.make([-3], mode="append")
    dataset().optimize.optimize_indices()
    dataset().optimize.compact_files()
    dataset().drop_index("id_idx")
    rig.dataset(version=2).restore()
    rig.make(IDS, mode="overwrite")
    history = History(dataset())
    kinds = {history.step(version).kind for version in range(1, dataset().version + 1)}
    assert kinds == {
        *("Overwrite", "Append", "CreateIndex", "Delete", "Update", "Merge", "Project"),
        *("UpdateConfig", "BaseOperation", "Rewrite", "Restore"),
    }
