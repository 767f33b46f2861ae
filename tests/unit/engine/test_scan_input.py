"""Runs over scans: files pinned once, finished ranges left out, each row landed once."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.engine.scan_input import ScanRows
from holdfast.errors import InputChangedError, RunMismatchError, TransformError
from holdfast.ledger.row_files import KeyFiles
from tests.fakes.memory_scan import MemoryScan
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.rig import Rig

# Each start has its own transform here, and Holdfast warns about that.
pytestmark = pytest.mark.filterwarnings("ignore:.*code has changed")

IDS = list(range(11))


@pytest.fixture
def rig() -> Rig:
    """Return an empty table and store."""
    return Rig()


class Counted:
    """A transform that records the ids that it gets, and fails for some of them."""

    def __init__(self, *poison: int) -> None:
        """Take the ids that fail."""
        self.poison = set(poison)
        self.asked: list[int] = []

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Record the ids."""
        ids = batch["id"].to_pylist()
        if self.poison.intersection(ids):
            raise ValueError("poison")
        self.asked += ids
        return batch


def landed(rig: Rig) -> list[int]:
    """Return the ids in the table."""
    return sorted(rig.table.ids)


def test_every_row_lands_once_and_a_second_start_says_so(rig: Rig) -> None:
    """No key is needed, and the log holds one more record."""
    assert rig.scan(MemoryScan(IDS)).outcome == "committed"
    assert landed(rig) == IDS
    assert rig.kinds() == ["Claim", "Pinned", "Plan", "Seal", "Intent", "Receipt"]
    again = rig.scan(MemoryScan(IDS))
    assert (again.outcome, again.input_compared) == ("already_committed", "files")


def test_finished_ranges_are_not_read_again(rig: Rig) -> None:
    """A batch fails in the middle; the next start reads only what is left."""
    first, second = Counted(6), Counted()
    with pytest.raises(TransformError):
        rig.scan(MemoryScan(IDS), transform=first, retries=0, batch_rows=1)
    driven = rig.scan(MemoryScan(IDS), transform=second, batch_rows=1)
    assert sorted(first.asked + second.asked) == IDS
    assert driven.kept_rows == len(first.asked) > 0
    assert landed(rig) == IDS


def test_rows_that_a_filter_leaves_out_count_as_done(rig: Rig) -> None:
    """They are in no file and in no later start."""
    driven = rig.scan(MemoryScan(IDS, left_out=frozenset({0, 5, 10})), batch_rows=1)
    assert landed(rig) == [1, 2, 3, 4, 6, 7, 8, 9]
    assert driven.passes == 1


@pytest.mark.parametrize("has_landed", [True, False])
def test_a_later_start_with_more_files_is_refused(rig: Rig, *, has_landed: bool) -> None:
    """Their rows would be left out silently."""
    if has_landed:
        rig.scan(MemoryScan(IDS[:8]))
    else:
        with pytest.raises(TransformError):
            rig.scan(MemoryScan(IDS[:8]), transform=Counted(6), retries=0)
    with pytest.raises(RunMismatchError, match="a file is new"):
        rig.scan(MemoryScan([*IDS[:8], 8, 9]))
    if has_landed:
        again = rig.scan(MemoryScan([*IDS, 11]), if_committed="return")
        assert again.outcome == "already_committed"
    rig.scan(MemoryScan(IDS[:8]))
    assert landed(rig) == IDS[:8]


def test_a_pinned_file_that_has_changed_stops_the_run(rig: Rig) -> None:
    """Rows done from the old file would not fit the remaining ones."""
    with pytest.raises(TransformError):
        rig.scan(MemoryScan(IDS), transform=Counted(6), retries=0)
    with pytest.raises(InputChangedError):
        rig.scan(MemoryScan(IDS[:-1]))
    assert landed(rig) == []


def test_records_that_share_rows_are_named(rig: Rig) -> None:
    """The record that reaches furthest so far holds what the next one repeats."""
    rows = ScanRows(MemoryScan(IDS), MemoryScan(IDS).pin(), MemorySubmitter())
    covered = {"a": ((0, 4), (8, 9)), "b": ((3, 6),), "c": ((6, 8),), "d": ((0, 1),)}
    finished = KeyFiles(storage=MemoryStorage(), ranges=covered)
    assert rows.overlaps(finished) == {("a", "b"): 1, ("a", "d"): 1}
    assert rows.measure(finished).rows == 2
    assert rig.kinds() == []


def test_finished_rows_that_the_files_do_not_have_are_reported() -> None:
    """The ledger belongs to another input."""
    rows = ScanRows(MemoryScan(IDS), MemoryScan(IDS).pin(), MemorySubmitter())
    finished = KeyFiles(storage=MemoryStorage(), ranges={"a": ((9, 14),)})
    assert (rows.gone(finished).keys, rows.gone(finished).examples) == (3, "((11, 14),)")
    assert rows.duplicates().keys == 0
