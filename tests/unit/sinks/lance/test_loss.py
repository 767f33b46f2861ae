"""The loss of a Lance dataset: all rows that were there go, and indices stay."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance import LanceDataset, LanceOperation, Transaction
from lance.commit import CommitConflictError
from lance.fragment import DeletionFile, FragmentMetadata, write_fragments
from lance.optimize import Compaction

from holdfast.errors import TableChangedError, UnsupportedTableError
from holdfast.sinks.base import Change, Outcome, RunMark
from holdfast.sinks.lance.loss import all_rows
from tests.fakes.lance_rig import IDS, LanceRig

FOREIGN = [-1, -2, -3, -4]


@pytest.fixture
def rig(tmp_path: Path) -> LanceRig:
    """Return a dataset with four foreign rows in two fragments, about to be replaced."""
    made = LanceRig(f"file://{tmp_path}/t.lance", mode="overwrite")
    made.make(FOREIGN[1:], mode="append")
    return made


def ids(rig: LanceRig, version: int | None = None) -> list[int]:
    """Return the ids in the dataset."""
    found: list[int] = rig.dataset(version).to_table()["id"].to_pylist()
    return sorted(found)


# ---- Bitmaps: as the readers of others take them


@pytest.mark.parametrize("rows", [1, 65_535, 65_536, 65_537, 3 << 16, (3 << 16) + 1, 600_001])
def test_lance_reads_a_bitmap_of_the_first_rows(tmp_path: Path, rows: int) -> None:
    """It drops the fragments that we remove without a look at it, but another version may not."""
    uri = f"{tmp_path}/t.lance"
    dataset = lance.write_dataset(pa.table({"id": np.arange(rows + 1)}), uri)
    (fragment,) = dataset.get_fragments()
    metadata = FragmentMetadata.from_json(json.dumps(fragment.metadata.to_json()))
    metadata.deletion_file = DeletionFile(
        read_version=1, id=7, num_deleted_rows=rows, file_type="bitmap", base_id=None
    )
    (tmp_path / "t.lance" / "_deletions").mkdir()
    (tmp_path / "t.lance" / "_deletions" / "0-1-7.bin").write_bytes(all_rows(rows))
    merge = LanceOperation.Merge([metadata], dataset.lance_schema)
    LanceDataset.commit(dataset, Transaction(read_version=1, operation=merge))
    assert lance.dataset(uri).to_table()["id"].to_pylist() == [rows]


# ---- What goes and what stays


def test_a_deletion_file_covers_all_rows_of_its_fragment(rig: LanceRig) -> None:
    """Lance trusts the count; a version that does not finds the same in the file."""
    sink = rig.sink()
    removal = sink.loss(sink.load(), Change(removes="all"), "n").handle
    assert list(removal.fragments) == [0, 1]
    for number, part in removal.fragments.items():
        (path,) = (path for path in removal.files if f"/{number}-" in path)
        assert removal.files[path] == all_rows(part.physical_rows)
        assert part.deletion_file.num_deleted_rows == part.physical_rows


def test_all_rows_go_and_are_readable_by_version(rig: LanceRig) -> None:
    """Rows that were deleted before do not come back."""
    rig.dataset().delete("id = -2")
    before = rig.dataset().version
    report = rig.start()
    rig.assert_each_row_once(foreign=[])
    assert (report.replaced_files, report.replaced_rows) == (2, len(FOREIGN))
    assert ids(rig, before) == [-4, -3, -1]
    assert [fragment.fragment_id for fragment in rig.dataset().get_fragments()] == [2, 3]


@pytest.mark.parametrize("stable", [False, True], ids=["", "stable row ids"])
def test_indices_stay_and_find_the_new_rows(tmp_path: Path, *, stable: bool) -> None:
    """As definitions at first: the report names what is not in them, and Lance adds it later."""
    rig = LanceRig(f"file://{tmp_path}/t.lance", mode="overwrite")
    rows = {"id": pa.array(range(-300, 0)), "label": pa.array(["foreign"] * 300)}
    lance.write_dataset(
        pa.table(rows), rig.uri, mode="overwrite", enable_stable_row_ids=stable
    ).create_scalar_index("id", "BTREE")
    rig.start()
    sink, dataset = rig.sink(), rig.dataset()
    assert sink.unindexed_rows() == {"id_idx": len(IDS)}
    assert dataset.to_table(filter="id = 3")["label"].to_pylist() == ["l3"]
    assert dataset.to_table(filter="id = -3").num_rows == 0
    dataset.optimize.optimize_indices()
    dataset.optimize.compact_files()
    assert sink.unindexed_rows() == {}
    assert rig.dataset().to_table(filter="id = 3")["label"].to_pylist() == ["l3"]
    rig.assert_each_row_once(foreign=[])


def test_a_vector_index_stays(tmp_path: Path) -> None:
    """A search finds the new vectors, which are nearest to themselves."""
    uri = f"{tmp_path}/v.lance"
    kind = pa.list_(pa.float32(), 8)

    def vectors(seed: int) -> pa.Table:
        values = np.random.default_rng(seed).random((512, 8), np.float32)
        return pa.table({"v": pa.array(values.tolist(), kind)})

    options: dict[str, Any] = {"num_partitions": 2, "num_sub_vectors": 2}
    lance.write_dataset(vectors(1), uri).create_index("v", "IVF_PQ", **options)
    rig = LanceRig(f"file://{tmp_path}/t.lance")
    rig.uri = f"file://{uri}"
    sink = rig.sink()
    view = sink.load()
    writer = sink.writer_spec(view).open("task")
    new = vectors(2)
    writer.write(writer.fit(new.to_batches()[0]))
    change = Change(adds=writer.cut(), removes="all")
    change = Change(adds=change.adds, removes="all", loss=sink.loss(view, change, "n"))
    number = view.next_sequence_number
    mark = RunMark(run_nonce="n", intent_number=1, snapshot_id=number, sequence_number=number)
    assert sink.post(view, "r", mark, change) is Outcome.LANDED
    dataset = lance.dataset(uri)
    asked = new["v"][5].as_py()
    near = dataset.to_table(nearest={"column": "v", "q": asked, "k": 1})
    assert (len(dataset.describe_indices()), near["v"][0].as_py()) == (1, asked)
    assert sink.unindexed_rows() == {"v_idx": 512}


def test_partitions_are_refused(rig: LanceRig) -> None:
    """A dataset has none."""
    sink = rig.sink()
    with pytest.raises(UnsupportedTableError, match="no partitions"):
        sink.loss(sink.load(), Change(removes="partitions"), "n")


# ---- Others who write meanwhile


def test_what_others_add_before_the_post_goes_too(rig: LanceRig) -> None:
    """The second post is computed for what is there by then."""
    report = rig.start_while(lambda: rig.make([-9], mode="append"))
    assert rig.posts == [Outcome.UNSENT, Outcome.LANDED]
    assert report.replaced_rows == len(FOREIGN) + 1
    rig.assert_each_row_once(foreign=[])


def test_with_snapshot_isolation_what_others_add_stays(rig: LanceRig) -> None:
    """Only the fragments that were there at the start go."""
    rig.start_while(lambda: rig.make([-9], mode="append"), isolation_level="snapshot")
    rig.assert_each_row_once(foreign=[-9])


CHANGES: dict[str, Any] = {
    "delete": lambda rig: rig.dataset().delete("id = -2"),
    "update": lambda rig: rig.dataset().update({"label": "'new'"}, where="id = -2"),
    "compaction": lambda rig: rig.dataset().optimize.compact_files(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_with_snapshot_isolation_old_rows_must_stay_as_they_are(rig: LanceRig, name: str) -> None:
    """An updated or compacted row would look like one that others have added."""
    with pytest.raises(TableChangedError, match="changed or rewritten"):
        rig.start_while(lambda: CHANGES[name](rig), isolation_level="snapshot")
    assert not set(IDS).intersection(ids(rig))
    rig.start()
    rig.assert_each_row_once(foreign=[])


def test_a_version_that_is_gone_cannot_be_compared(rig: LanceRig) -> None:
    """It was cleaned up."""
    rig.dataset().cleanup_old_versions(older_than=dt.timedelta(0))
    with pytest.raises(TableChangedError, match="version 1 is gone"):
        rig.start(based_on=1)


def planned(rig: LanceRig, name: str) -> Callable[[], object]:
    """Return what another writer has planned on the dataset as it is now."""
    base = rig.dataset()
    part = base.get_fragments()[1]
    new = pa.table({"id": pa.array([-9], pa.int64()), "label": ["foreign"]})
    if name == "compaction":
        merges = [task.execute(base) for task in Compaction.plan(base, {}).tasks]
        return lambda: Compaction.commit(base, merges)
    if name == "delete":
        operation: Any = LanceOperation.Delete([part.delete("id = -2")], [], "id = -2")
    else:
        added = write_fragments(new, base, mode="append")
        operation = LanceOperation.Append(added)
        if name == "update":
            gone = [part.delete("id = -2")]
            operation = LanceOperation.Update(updated_fragments=gone, new_fragments=added)
    made = Transaction(read_version=base.version, operation=operation)
    return lambda: LanceDataset.commit(base, made, max_retries=3)


@pytest.mark.parametrize("name", ["delete", "update", "compaction"])
def test_what_others_have_planned_for_rows_that_are_gone_is_refused(
    rig: LanceRig, name: str
) -> None:
    """It would bring them back."""
    late = planned(rig, name)
    rig.start()
    with pytest.raises((CommitConflictError, OSError)):
        late()
    rig.assert_each_row_once(foreign=[])


def test_an_append_that_others_have_planned_lands(rig: LanceRig) -> None:
    """It comes after ours, as if it had been planned then."""
    late = planned(rig, "append")
    rig.start()
    late()
    rig.assert_each_row_once(foreign=[-9])
