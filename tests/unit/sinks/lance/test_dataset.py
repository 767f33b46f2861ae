"""Which rows an append leaves unindexed in a Lance dataset."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from holdfast.opening import open_table
from holdfast.sinks.targets import LanceTable
from tests.fakes.lance_rig import IDS, LanceRig


@pytest.fixture
def rig(tmp_path: Path) -> LanceRig:
    """Return a dataset with one foreign row."""
    return LanceRig(f"file://{tmp_path}/t.lance")


def test_a_dataset_without_indices_has_no_unindexed_rows(rig: LanceRig) -> None:
    """Nothing is reported without an index."""
    rig.start()
    assert rig.sink().unindexed_rows() == {}


def test_rows_that_an_index_does_not_know_are_counted(rig: LanceRig) -> None:
    """The rows of the run are counted until the index is brought up to date."""
    rig.dataset().create_scalar_index("id", "BTREE")
    assert rig.sink().unindexed_rows() == {}
    rig.start()
    assert rig.sink().unindexed_rows() == {"id_idx": len(IDS)}
    found = rig.dataset().to_table(filter="id = 7")
    assert found["label"].to_pylist() == ["l7"]  # Found without the index.
    rig.dataset().optimize.optimize_indices()
    assert rig.sink().unindexed_rows() == {}


def test_an_id_of_a_removed_fragment_is_not_used_again(rig: LanceRig) -> None:
    """An index knows fragments by number: a new one with an old number would not be searched."""
    rig.make([100, 101], mode="append")
    rig.dataset().create_scalar_index("id", "BTREE")
    rig.dataset().delete("id >= 100")
    rig.start()
    assert rig.dataset().to_table(filter="id = 7")["label"].to_pylist() == ["l7"]


def test_a_dataset_that_cannot_be_read_is_not_an_error(rig: LanceRig) -> None:
    """The run has already landed, whatever happened to the dataset since."""
    rig.start()
    rig.drop()
    assert rig.sink().unindexed_rows() == {}


def test_a_trial_gives_a_dataset_no_id(tmp_path: Path) -> None:
    """Nothing is written by a look, not even beside the dataset."""
    lance.write_dataset(pa.table({"id": [1, 2]}), tmp_path / "t.lance")
    before = sorted(tmp_path.rglob("*"))
    sink = open_table(LanceTable(f"{tmp_path}/t.lance"), None, only_looks=True)
    assert sink.writer_spec(sink.load()).schema.names == ["id"]
    assert sorted(tmp_path.rglob("*")) == before
