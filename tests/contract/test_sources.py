"""The source contract: what a run on a scan relies on, for every kind of input.

What is specific to one kind is in tests/unit/sources.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.errors import InputChangedError
from holdfast.model.coverage import Ranges
from holdfast.sources.base import TAG_COLUMN, PinnedScan
from holdfast.sources.files import scan_files
from holdfast.sources.materialized import MaterializedScan, WritePlan
from tests.fakes.iceberg_scans import Tables, stored
from tests.fakes.iceberg_tables import local_path
from tests.fakes.lance_scans import Dataset
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.parquet_scans import STORAGE, on_disk, read, write_parquet

ROWS = 7
# The rows are in at least two files, three in each but the last.
FILE_ROWS = 3


@dataclass(frozen=True, kw_only=True)
class Source:
    """An input of seven rows, and what others do to it."""

    # What a start of the script names.
    scan: Callable[[], PinnedScan]
    # Adds a row that comes after all others.
    add: Callable[[], object] | None
    # Deletes a file that is pinned, by its URI.
    remove: Callable[[str], object]


def _pieces() -> list[list[int]]:
    return [list(range(ROWS))[start : start + FILE_ROWS] for start in range(0, ROWS, FILE_ROWS)]


def _parquet(folder: Path) -> Source:
    for number, ids in enumerate(_pieces()):
        write_parquet(folder / f"{number}.parquet", {"id": ids}, row_group_size=2)
    return Source(
        scan=lambda: on_disk(folder),
        add=lambda: write_parquet(folder / "later.parquet", {"id": [ROWS]}),
        remove=lambda uri: local_path(uri).unlink(),
    )


def _files(folder: Path) -> Source:
    for number in range(ROWS):
        (folder / f"{number}.bin").write_bytes(bytes([number]) * (number + 1))
    return Source(
        scan=lambda: scan_files(str(folder)).on(STORAGE),
        add=lambda: (folder / "later.bin").write_bytes(b"more"),
        remove=lambda uri: local_path(uri).unlink(),
    )


def _iceberg(folder: Path) -> Source:
    tables = Tables(folder)
    tables.create()
    for ids in _pieces():
        tables.append(*ids)
    return Source(
        scan=tables.scan,
        add=lambda: tables.append(ROWS),
        remove=lambda uri: local_path(uri).unlink(),
    )


def _lance(folder: Path) -> Source:
    dataset = Dataset(folder)
    dataset.append(*range(ROWS), max_rows_per_file=FILE_ROWS)

    def remove(_uri: str) -> None:  # Fragments are pinned by number.
        min((dataset.path / "data").iterdir()).unlink()

    return Source(scan=dataset.scan, add=lambda: dataset.append(ROWS), remove=remove)


def _materialized(_folder: Path) -> Source:
    storage, schema = MemoryStorage(), pa.schema([("id", pa.int64())])

    def write(plan: WritePlan) -> list[str]:
        return [
            plan.run(
                [pa.RecordBatch.from_pydict({"id": ids}, schema)], place=place, attempt=place
            ).to_json()
            for place, ids in enumerate(_pieces())
        ]

    return Source(
        scan=lambda: MaterializedScan(storage, "s3://store/r/input/nonce", schema, write),
        add=None,  # Its files are the run's own.
        remove=lambda uri: storage.delete([uri]),
    )


KINDS = {
    "parquet": _parquet,
    "files": _files,
    "iceberg": _iceberg,
    "lance": _lance,
    "materialized": _materialized,
}


@pytest.fixture(
    params=[
        pytest.param(kind, marks=pytest.mark.lance if kind == "lance" else ()) for kind in KINDS
    ]
)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    """Return an input of each kind in turn."""
    return KINDS[request.param](tmp_path)


def test_every_row_comes_once_in_order_and_under_its_number(source: Source) -> None:
    """Numbers continue across files; the columns are those that the driver was given."""
    scan = source.scan()
    pins = scan.pin()
    found = read(scan, pins)
    assert len(pins.files) > 1  # There is more than one file.
    assert len({str(row) for row in found.rows}) == ROWS
    assert (found.tags, found.passed_over) == ([(n, n + 1) for n in range(ROWS)], [])
    assert found.schema is not None
    assert found.schema.equals(scan.schema(pins), check_metadata=True)


def test_a_resume_reads_what_is_left_under_the_same_numbers(source: Source) -> None:
    """It does so wherever a start stopped, inside a file or between two."""
    scan = source.scan()
    pins = scan.pin()
    everything = read(scan, pins).rows
    for left in ([(1, 2)], [(0, 1), (2, 5)], [(3, 6)], [(6, 7)], []):
        found = read(scan, pins, Ranges.of(left))
        numbers = [number for start, stop in left for number in range(start, stop)]
        assert found.rows == [everything[number] for number in numbers]
        assert found.accounted == numbers


def test_pins_survive_the_driver_and_readers_survive_pickling(source: Source) -> None:
    """A later start reads the pins from the ledger; a task gets its reader and slices pickled."""
    scan = source.scan()
    pins = scan.pin()
    kept = stored(pins)
    items = kept.items(kept.whole, slots=1, item_bytes=1 << 40)
    reader, slices = pickle.loads(  # noqa: S301 - the test's own.
        pickle.dumps((scan.reader(kept), items[0]))
    )
    batches = [batch.drop_columns([TAG_COLUMN]) for batch in reader.read(slices, [])]
    assert [row for batch in batches for row in batch.to_pylist()] == read(scan, pins).rows


def test_a_later_start_reads_what_was_pinned_and_says_what_came_since(source: Source) -> None:
    """Otherwise rows that came since would be left out silently."""
    first = source.scan()
    pins = stored(first.pin())
    assert first.compare(pins) == ""
    before = read(first, pins)
    if source.add is not None:
        source.add()
        assert source.scan().compare(pins) != ""
    again = source.scan()
    assert again.identity == first.identity
    assert read(again, pins) == before


def test_a_pinned_file_that_is_gone_is_an_error_in_the_task(source: Source) -> None:
    """It is never taken for a file without rows."""
    scan = source.scan()
    pins = stored(scan.pin())
    source.remove(pins.files[0].uri)
    with pytest.raises(InputChangedError):
        read(scan, pins)
