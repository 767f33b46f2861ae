"""What an append leaves for the indices of a Lance dataset to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.lance_rig import IDS, LanceRig


@pytest.fixture
def rig(tmp_path: Path) -> LanceRig:
    """Return a dataset with one foreign row."""
    return LanceRig(f"file://{tmp_path}/t.lance")


def test_a_dataset_without_indices_has_nothing_to_tell(rig: LanceRig) -> None:
    """Nothing is said where there is no index."""
    rig.start()
    assert rig.sink().unindexed_rows() == {}


def test_rows_that_an_index_does_not_know_are_counted(rig: LanceRig) -> None:
    """The rows of the run are counted until somebody brings the index up to date."""
    rig.dataset().create_scalar_index("id", "BTREE")
    assert rig.sink().unindexed_rows() == {}
    rig.start()
    assert rig.sink().unindexed_rows() == {"id_idx": len(IDS)}
    found = rig.dataset().to_table(filter="id = 7")
    assert found["label"].to_pylist() == ["l7"]  # Found all the same.
    rig.dataset().optimize.optimize_indices()
    assert rig.sink().unindexed_rows() == {}


def test_an_id_of_a_removed_fragment_is_not_used_again(rig: LanceRig) -> None:
    """An index remembers fragments by number: a new one of an old number would not be searched."""
    rig.make([100, 101], mode="append")
    rig.dataset().create_scalar_index("id", "BTREE")
    rig.dataset().delete("id >= 100")
    rig.start()
    assert rig.dataset().to_table(filter="id = 7")["label"].to_pylist() == ["l7"]


def test_what_cannot_be_found_out_is_no_error(rig: LanceRig) -> None:
    """The run has landed by then, whatever became of the dataset since."""
    rig.start()
    rig.drop()
    assert rig.sink().unindexed_rows() == {}
