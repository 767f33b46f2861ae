"""A scan of a Lance dataset: which version it pins, and what stops it."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast as hf
from holdfast.errors import (
    InputChangedError,
    RunMismatchError,
    SettingsError,
    StoreUnavailableError,
    TableMissingError,
    TransformError,
)
from holdfast.model.coverage import Ranges
from holdfast.opening import open_scan
from holdfast.sources.lance import PinnedLanceScan
from tests.fakes.iceberg_scans import ids, stored
from tests.fakes.lance_scans import Dataset
from tests.fakes.parquet_scans import read
from tests.fakes.rig import Rig

pytestmark = pytest.mark.lance

MOVED = "has moved from version"


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Return a place for a dataset."""
    return Dataset(tmp_path)


class Stopping:
    """A transform that records the ids it gets, and fails at some."""

    def __init__(self, *poison: int) -> None:
        """Take the ids that fail."""
        self.poison = set(poison)
        self.asked: list[int] = []

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Record the ids."""
        found = batch["id"].to_pylist()
        if self.poison.intersection(found):
            raise ValueError("poison")
        self.asked += found
        return batch


def test_a_version_is_read_whatever_comes_later(dataset: Dataset) -> None:
    """Rows arrive in fragment order, with their numbers; the reader can be pickled."""
    dataset.append(*range(7), max_rows_per_file=3)
    scan = dataset.scan()
    pins = stored(scan.pin())
    assert [file.group_rows for file in pins.files] == [(3,), (3,), (1,)]
    dataset.append(7)
    dataset.delete("id = 2")
    found = read(dataset.scan(), pins)
    assert [row["id"] for row in found.rows] == list(range(7))
    assert found.tags == [(number, number + 1) for number in range(7)]
    assert found.schema == scan.schema(pins) == pa.schema([("id", pa.int64()), ("name", "string")])
    assert pickle.loads(pickle.dumps(scan.reader(pins)))  # noqa: S301 - the test's own.


def test_a_dataset_that_has_moved_is_reported_and_its_version_can_be_named(
    dataset: Dataset,
) -> None:
    """New rows belong to another run; an index or a setting makes a version without new rows."""
    version = dataset.append(1)
    scan = dataset.scan()
    pins = stored(scan.pin())
    assert scan.compare(pins) == ""
    dataset.load().create_scalar_index("id", "BTREE")
    assert dataset.load().version > version
    assert scan.compare(pins) == ""
    now = dataset.append(2)
    assert f"{MOVED} {version} to {now}, whose rows are not in this run" in scan.compare(pins)
    named = dataset.scan(version=version)
    assert named.compare(pins) == ""
    assert named.identity == scan.identity
    assert f"but this start names {now}" in dataset.scan(version=now).compare(pins)


def test_an_older_version_can_be_named(dataset: Dataset) -> None:
    """It is read with the columns that it had."""
    version = dataset.append(1)
    dataset.load().add_columns({"twice": "id * 2"})
    assert [*read(dataset.scan(version=version)).rows] == [{"id": 1, "name": "name 1"}]
    assert read(dataset.scan(columns=["twice"])).rows == [{"twice": 2}]
    with pytest.raises(SettingsError, match=r"has no version 70[^$]*the newest is 2"):
        dataset.scan(version=70).pin()


def test_a_version_that_was_cleaned_up_is_an_error(dataset: Dataset) -> None:
    """After a compaction and a clean-up the row numbers mean other rows."""
    version = dataset.append(*range(4), max_rows_per_file=2)
    scan = dataset.scan()
    pins = stored(scan.pin())
    dataset.load().optimize.compact_files()
    assert MOVED in scan.compare(pins)
    assert ids(read(scan, pins)) == [0, 1, 2, 3]
    dataset.clean_up()
    for fails in (lambda: scan.compare(pins), lambda: read(scan, pins)):
        with pytest.raises(InputChangedError, match=f"version {version} of .* was cleaned up"):
            fails()


@pytest.mark.parametrize("rows", [(1, 2), (3, 4), (1, 2, 3)])
def test_a_dataset_that_was_made_again_is_another_input(
    dataset: Dataset, rows: tuple[int, ...]
) -> None:
    """Whatever it looks like, its files are different."""
    dataset.append(1, 2)
    scan = dataset.scan()
    pins = stored(scan.pin())
    dataset.drop()
    with pytest.raises(InputChangedError, match=r"rows\.lance is gone"):
        scan.compare(pins)
    with pytest.raises(TableMissingError):
        scan.pin()
    dataset.append(*rows)
    for fails in (lambda: scan.compare(pins), lambda: read(scan, pins)):
        with pytest.raises(InputChangedError, match="is not the dataset that"):
            fails()


def test_a_dataset_that_was_made_again_with_fewer_versions_is_an_error(dataset: Dataset) -> None:
    """The pinned version does not exist yet."""
    dataset.append(1)
    dataset.append(2)
    scan = dataset.scan()
    pins = stored(scan.pin())
    dataset.drop()
    dataset.append(1)
    with pytest.raises(InputChangedError, match="was recreated: it has versions up to 1, not 2"):
        scan.compare(pins)


def test_an_empty_dataset_that_was_made_again_with_rows_is_another_input(dataset: Dataset) -> None:
    """No fragment was pinned, and now one exists."""
    dataset.append()
    scan = dataset.scan()
    pins = stored(scan.pin())
    assert pins.whole == Ranges()
    assert read(scan, pins).rows == []
    dataset.drop()
    dataset.append(1)
    with pytest.raises(InputChangedError, match="is not the dataset"):
        scan.compare(pins)


def test_a_data_file_that_is_gone_is_named(dataset: Dataset) -> None:
    """It was deleted without Lance; a file that is only damaged raises another error."""
    dataset.append(1, 2)
    scan = dataset.scan()
    pins = stored(scan.pin())
    (file,) = (dataset.path / "data").iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreUnavailableError, match=file.name):
        read(scan, pins)
    file.unlink()
    with pytest.raises(InputChangedError, match=f"{file.name} is gone"):
        read(scan, pins)


def test_another_deletion_is_another_fragment(dataset: Dataset) -> None:
    """The same files with other deleted rows hold other rows."""
    dataset.append(1, 2, 3)
    dataset.delete("id = 2")
    scan = dataset.scan()
    pins = stored(scan.pin())
    (file,) = pins.files
    without = replace(pins, files=(replace(file, deletes=()),))
    with pytest.raises(InputChangedError, match="fragment 0 has different files"):
        scan.compare(without)


def test_what_is_read_is_part_of_the_identity(dataset: Dataset, tmp_path: Path) -> None:
    """Another dataset, other columns or other rows are another input."""
    other = Dataset(tmp_path / "other")
    scans = [
        dataset.scan(),
        dataset.scan(columns=["id"]),
        dataset.scan(where=[("id", ">", 1)]),
        other.scan(),
    ]
    assert len({scan.identity for scan in scans}) == len(scans)


@pytest.mark.parametrize(
    "options",
    [
        {"version": "3"},
        {"version": True},
        {"columns": "id"},
        {"where": "id > 3"},
    ],
)
def test_arguments_of_another_kind_are_refused(dataset: Dataset, options: object) -> None:
    """They are refused before anything is read."""
    with pytest.raises(SettingsError):
        dataset.scan(**options)  # type: ignore[arg-type]


def test_unknown_columns_and_places_are_refused(dataset: Dataset) -> None:
    """The error names the columns that exist."""
    dataset.append(1)
    with pytest.raises(SettingsError, match=r"no column 'colour'[^$]*\['id', 'name'\]"):
        dataset.scan(columns=["colour"]).pin()
    with pytest.raises(SettingsError, match="colour"):
        dataset.scan(where=pc.field("colour") == "red").pin()
    with pytest.raises(SettingsError, match="an absolute path"):
        hf.scan_lance("rows.lance")


def test_a_scan_is_opened_with_its_options(dataset: Dataset) -> None:
    """Credentials are not shown."""
    dataset.append(1)
    scan = hf.scan_lance(str(dataset.path), options={"aws_secret_access_key": "hidden"})
    opened = open_scan(scan, None)
    assert isinstance(opened, PinnedLanceScan)
    assert ids(read(opened)) == [1]
    assert "hidden" not in f"{scan!r} {opened.identity} {opened.reader(opened.pin())!r}"


@pytest.mark.filterwarnings("ignore:.*code has changed")
def test_a_run_resumes_in_the_middle_of_a_fragment(dataset: Dataset) -> None:
    """Finished rows are not read again, although the dataset has moved on; each lands once."""
    dataset.append(*range(20))
    dataset.delete("id in (0, 7, 8, 13, 19)")
    rig, first, second = Rig(), Stopping(5, 16), Stopping()
    scan = dataset.scan(columns=["id"], where=[("id", "!=", 10)])
    with pytest.raises(TransformError):
        rig.scan(scan, transform=first, retries=0, batch_rows=1)
    version = dataset.load().version
    dataset.append(100)
    with pytest.raises(RunMismatchError, match=MOVED):
        rig.scan(scan, transform=second, batch_rows=1)
    scan = dataset.scan(columns=["id"], where=[("id", "!=", 10)], version=version)
    driven = rig.scan(scan, transform=second, batch_rows=1)
    wanted = [number for number in range(20) if number not in {0, 7, 8, 10, 13, 19}]
    assert sorted(first.asked + second.asked) == wanted
    assert 0 < driven.kept_rows < 20
    assert sorted(rig.table.ids) == wanted
    assert rig.scan(scan).outcome == "already_committed"


@pytest.mark.filterwarnings("ignore:.*code has changed")
def test_a_run_whose_version_is_gone_lands_nothing(dataset: Dataset) -> None:
    """It fails at the next start, or in a task at work."""
    dataset.append(*range(6))
    rig, scan = Rig(), dataset.scan(columns=["id"])
    with pytest.raises(TransformError):
        rig.scan(scan, transform=Stopping(4), retries=0, batch_rows=1)
    with pytest.raises(RunMismatchError, match="but this start names 2"):
        rig.scan(dataset.scan(columns=["id"], version=2))
    dataset.append(6)
    dataset.load().optimize.compact_files()
    dataset.clean_up()
    with pytest.raises(InputChangedError, match="was cleaned up"):
        rig.scan(scan)
    assert list(rig.table.ids) == []
    landing, opened = Rig(), dataset.scan(columns=["id"])
    pinned = opened.pin

    def pin_and_drop() -> object:
        pins = pinned()
        dataset.drop()
        dataset.append(1, 2)
        return pins

    opened.pin = pin_and_drop  # type: ignore[method-assign, assignment]
    with pytest.raises(InputChangedError, match="was recreated"):
        landing.scan(opened)
    assert list(landing.table.ids) == []
