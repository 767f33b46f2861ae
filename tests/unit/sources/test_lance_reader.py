"""A scan of a Lance dataset: which rows its reader returns, and what they hold."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lance import Blob, blob_array, blob_field

from holdfast.errors import SettingsError, UnsupportedTableError
from holdfast.model.coverage import Ranges
from holdfast.sources import lance_fragments as lance_blobs
from holdfast.sources import lance_reader
from holdfast.sources.lance_reader import UnreadableFragmentError
from holdfast.storage.runtime import io_runtime
from tests.fakes.iceberg_scans import ids, stored
from tests.fakes.lance_scans import Dataset
from tests.fakes.parquet_scans import read

pytestmark = pytest.mark.lance

BLOBS = [b"x" * 10, None, b"", b"y" * 300_000, b"z" * 5_000_000]


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Return a place for a dataset."""
    return Dataset(tmp_path)


@pytest.mark.slow_unit
@pytest.mark.parametrize("storage", ["legacy", "2.0", "2.2"])
@pytest.mark.parametrize("is_stable", [False, True])
def test_deleted_rows_are_left_out_and_every_row_is_accounted_for(
    dataset: Dataset, storage: str, *, is_stable: bool
) -> None:
    """In any range, a deleted row belongs to the row before it, or is passed over.

    Method: random ranges over fragments with deletions at their edges and a whole one deleted.
    """
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    choice = random.Random(seed)
    dataset.append(
        *range(60),
        max_rows_per_file=20,
        data_storage_version=storage,
        enable_stable_row_ids=is_stable,
    )
    dataset.delete("id in (0, 1, 7, 8, 9, 19, 20, 39) or (id >= 50 and id < 59)")
    deleted = {0, 1, 7, 8, 9, 19, 20, 39, *range(50, 59)}
    scan = dataset.scan()
    pins = stored(scan.pin())
    for _ in range(20):
        edges = sorted(choice.sample(range(61), 4))
        rows = Ranges.of([(edges[0], edges[1]), (edges[2], edges[3])])
        asked = [number for start, stop in rows for number in range(start, stop)]
        found = read(scan, pins, rows)
        assert [row["id"] for row in found.rows] == [n for n in asked if n not in deleted]
        assert found.accounted == asked
        assert [start for start, _ in found.tags] == [row["id"] for row in found.rows]


def test_a_fragment_whose_requested_rows_are_all_deleted_is_passed_over(dataset: Dataset) -> None:
    """There is nothing to fetch."""
    dataset.append(*range(10))
    dataset.delete("id >= 2 and id < 8")
    scan = dataset.scan()
    found = read(scan, None, Ranges.of([(3, 6)]))
    assert (found.rows, found.passed_over) == ([], [(3, 6)])


def test_rows_arrive_in_pieces_that_fit_into_memory(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first piece has few rows; later ones have as many as earlier row sizes allow."""
    monkeypatch.setattr(lance_reader, "_BATCH_BYTES", 400_000)
    monkeypatch.setattr(lance_reader, "_FIRST_ROWS", 16)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(500 * 1000), pa.float32()), 1000)
    dataset.write(pa.table({"id": range(500), "v": vectors}), max_rows_per_file=300)
    dataset.delete("id % 7 = 0")
    scan = dataset.scan()
    pins = stored(scan.pin())
    (item,) = pins.items(pins.whole, slots=1, item_bytes=1 << 40)
    passed_over: list[Any] = []
    sizes = [batch.num_rows for batch in scan.reader(pins).read(item, passed_over)]
    assert sizes[:2] == [16, 64]
    assert max(sizes) == 99  # 4,008 bytes and some bits each.
    assert ids(read(scan, pins)) == [number for number in range(500) if number % 7]


def test_only_the_requested_columns_and_rows_are_handed_on(dataset: Dataset) -> None:
    """A filter may use other columns; rows that it leaves out are accounted for."""
    dataset.append(*range(30), max_rows_per_file=10)
    dataset.delete("id in (4, 5)")
    scan = dataset.scan(columns=["name"], where=[("id", ">=", 3), ("id", "<", 25)])
    pins = stored(scan.pin())
    assert pins.schema.names == ["name", "id"]
    found = read(scan, pins)
    wanted = [number for number in range(3, 25) if number not in {4, 5}]
    assert found.rows == [{"name": f"name {number}"} for number in wanted]
    assert found.accounted == list(range(30))
    none = read(dataset.scan(where=pc.field("id") > 100))
    assert (none.rows, none.accounted) == ([], list(range(30)))


def test_values_arrive_as_they_were_written(dataset: Dataset) -> None:
    """Vectors keep their type and length; a dictionary is only an encoding."""
    half, full = (pa.array(np.arange(8), kind) for kind in (pa.float16(), pa.float32()))
    rows = pa.table(
        {
            "half": pa.FixedSizeListArray.from_arrays(half, 4),
            "full": pa.FixedSizeListArray.from_arrays(full, 4),
            "large": pa.array([b"a", None], pa.large_binary()),
            "text": pa.array(["u", "v"]).dictionary_encode(),
            "st": pa.array([{"a": 1, "d": ["u"]}, None]),
            "my col": pa.array([1, 2], pa.timestamp("us", "UTC")),
            "j": pa.array(["{}", "[1]"], pa.json_()),
        },
        metadata={"of": "the dataset"},
    )
    dataset.write(rows)
    scan = dataset.scan()
    pins = stored(scan.pin())
    found = read(scan, pins)
    assert found.rows == rows.to_pylist()
    plain = rows.schema.set(3, pa.field("text", pa.string())).remove_metadata()
    assert found.schema is not None
    assert found.schema.equals(plain, check_metadata=True)
    assert scan.schema(pins).equals(plain, check_metadata=True)
    assert len(read(dataset.scan(where=pc.field("text") == "v")).rows) == 1


def test_a_column_that_was_added_later_is_read_with_the_others(dataset: Dataset) -> None:
    """Its values are in a file of their own; older fragments may have none."""
    dataset.append(1, 2)
    dataset.load().add_columns({"twice": "id * 2"})
    dataset.load().add_columns(pa.field("empty", pa.string()))
    found = read(dataset.scan(columns=["twice", "empty", "id"]))
    assert found.rows == [
        {"twice": 2, "empty": None, "id": 1},
        {"twice": 4, "empty": None, "id": 2},
    ]


@pytest.mark.parametrize("is_new", [True, False])
def test_blobs_arrive_as_bytes_and_only_for_rows_that_are_handed_on(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, *, is_new: bool
) -> None:
    """They arrive in pieces that fit into memory, for both kinds of blobs that Lance has."""
    monkeypatch.setattr(lance_blobs, "_BYTES", 600_000)
    if is_new:
        field, values, storage = blob_field("b"), blob_array(BLOBS), "2.2"
    else:
        field = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
        values, storage = pa.array(BLOBS, pa.large_binary()), "2.1"
    rows = pa.table(
        [pa.array(range(5)), values], schema=pa.schema([pa.field("id", pa.int64()), field])
    )
    dataset.write(rows, data_storage_version=storage)
    dataset.write(rows, data_storage_version=storage, mode="append")
    dataset.delete("id = 2")
    scan = dataset.scan()
    pins = stored(scan.pin())
    assert (
        min(file.size_bytes for file in pins.files) > 5_000_000
    )  # Blobs count, wherever they are.
    found = read(scan, pins)
    assert [row["b"] for row in found.rows] == [b for b in BLOBS if b != b""] * 2
    assert found.accounted == list(range(10))
    assert found.schema == scan.schema(pins)
    assert found.schema == pa.schema([("id", pa.int64()), ("b", pa.large_binary())])
    asked: list[int] = []
    true_read = lance.LanceDataset.read_blobs

    def noted(self: Any, name: str, *, addresses: list[int], **options: Any) -> Any:  # noqa: ANN401
        asked.append(len(addresses))
        return true_read(self, name, addresses=addresses, **options)

    monkeypatch.setattr(lance.LanceDataset, "read_blobs", noted)
    some = read(dataset.scan(columns=["b"], where=pc.field("id") != 4))
    assert [row["b"] for row in some.rows] == [BLOBS[0], None, BLOBS[3]] * 2
    assert asked == [3, 3]
    asked.clear()
    read(scan, pins)
    assert asked == [3, 1, 3, 1]  # The largest blob is fetched alone.
    read(dataset.scan(columns=["id"]))
    assert len(asked) == 4  # No blob is fetched needlessly.
    with pytest.raises(SettingsError, match="b"):
        dataset.scan(where=pc.field("b") == b"").pin()


def test_blobs_that_cannot_be_pinned_are_refused(dataset: Dataset, tmp_path: Path) -> None:
    """They are outside the dataset; blobs inside other columns are not read."""
    (tmp_path / "elsewhere").write_bytes(b"q")
    outside = blob_array([Blob.from_uri(f"file://{tmp_path}/elsewhere")])
    rows = pa.table([outside], schema=pa.schema([blob_field("b")]))
    dataset.write(rows, data_storage_version="2.2", allow_external_blob_outside_bases=True)
    with pytest.raises(UnsupportedTableError, match="outside the dataset"):
        read(dataset.scan())
    inner = pa.StructArray.from_arrays([blob_array([b"a"])], fields=[blob_field("b")])
    nested = pa.table(
        [inner, pa.array([1])],
        schema=pa.schema([pa.field("s", pa.struct([blob_field("b")])), ("id", pa.int64())]),
    )
    dataset.write(nested, data_storage_version="2.2", mode="overwrite")
    with pytest.raises(UnsupportedTableError, match=r"'s' contains nested blobs[^$]*columns="):
        dataset.scan().pin()
    assert ids(read(dataset.scan(columns=["id"]))) == [1]


def test_rows_other_than_the_requested_ones_are_refused(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row under another row's number would be lost or duplicated by a resume."""
    dataset.append(*range(5))
    true_scanner = lance.LanceFragment.scanner

    def shifted(self: Any, **options: Any) -> Any:  # noqa: ANN401
        options["offset"] += 1
        return true_scanner(self, **options)

    monkeypatch.setattr(lance.LanceFragment, "scanner", shifted)
    with pytest.raises(UnreadableFragmentError, match="3 rows from 1 on"):
        read(dataset.scan(), None, Ranges.of([(1, 4)]))


def test_a_dataset_is_reopened_when_a_task_takes_long(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials may expire during a slow task; bytes read are counted."""
    monkeypatch.setattr(lance_reader, "_OPEN_S", -1.0)
    monkeypatch.setattr(lance_reader, "_FIRST_ROWS", 1)
    dataset.append(*range(6))
    before = io_runtime().counters
    assert ids(read(dataset.scan())) == list(range(6))
    counted = io_runtime().counters.since(before)
    assert counted.bytes_read > 0
    assert counted.requests > 0
