"""How a page divides rows, files and time into bars and points."""

from __future__ import annotations

import pytest

from holdfast.model.coverage import Coverage
from holdfast.model.usage import Usage
from holdfast.model.work import StagedFile, StagedGroup, TaskRecord
from holdfast.pages.facts import hosts_of
from holdfast.pages.spread import file_sizes_of, places_of
from holdfast.pages.timeline import highest, thinned


def record(name: str, rows: int, usage: Usage | None = None) -> TaskRecord:
    """Return a record of this many rows."""
    coverage = Coverage(rows=rows, low=0, high=0, keys_bytes=0)
    return TaskRecord(name=name, coverage=coverage, seconds=1.0, usage=usage or Usage())


def files(*sizes: int) -> list[StagedGroup]:
    """Return groups of one file of each size."""
    return [
        StagedGroup(
            path=f"g{number}",
            size_bytes=1,
            files=(StagedFile(path=f"f{number}", size_bytes=size, rows=1),),
            detail={},
        )
        for number, size in enumerate(sizes)
    ]


def test_rows_by_place_are_those_of_the_largest_job() -> None:
    """The largest place comes first; smaller jobs of other passes are left out."""
    records = [
        record("00000001/rows/000000/0/0000", 5),
        record("00000001/rows/000001/0/0000", 20),
        record("00000001/rows/000001/0/0001", 10),
        record("00000004/rows/000000/0/0000", 12),
    ]
    found = places_of(records)
    assert found is not None
    assert (found.claim, found.job, found.places, found.rows) == (1, "rows", 2, [30, 5])
    assert (found.largest, found.median) == (30, 17.5)
    many = places_of([record(f"00000001/rows/{n:06d}/0/0000", n + 1) for n in range(10_000)])
    assert many is not None
    assert (len(many.rows), many.rows[0], many.rows[-1], many.places) == (60, 10_000, 1, 10_000)


@pytest.mark.parametrize(
    "sizes",
    [(5,), (1, 1, 1), (100, 101), (0, 0), (1, 2, 3, 1_000_000_000), tuple(range(1_000, 9_000, 7))],
)
def test_each_file_is_in_one_size_class(sizes: tuple[int, ...]) -> None:
    """This holds however the sizes are spread."""
    found = file_sizes_of(files(*sizes))
    assert found is not None
    assert sum(size.files for size in found.classes) == found.files == len(sizes)
    assert 1 <= len(found.classes) <= 8
    for earlier, later in zip(found.classes, found.classes[1:], strict=False):
        assert earlier.below_bytes == later.from_bytes
    assert (found.smallest, found.largest) == (min(sizes), max(sizes))


def test_hosts_are_added_up_and_the_busiest_comes_first() -> None:
    """Records that do not say where they were written are left out."""
    records = [
        record("00000001/rows/000000/0/0000", 5, Usage(at=1.0, host="a", memory_bytes=7)),
        record("00000001/rows/000001/0/0000", 5, Usage(at=1.0, host="b", waited_s=9.0)),
        record("00000001/rows/000002/0/0000", 5, Usage(at=2.0, host="a", memory_bytes=3)),
        record("00000001/rows/000003/0/0000", 5),
    ]
    found = hosts_of(records)
    assert [(host.host, host.rows, host.waited_s, host.memory_bytes) for host in found] == [
        ("b", 5, 9.0, 0),
        ("a", 10, 0.0, 7),
    ]


def test_thinning_keeps_the_first_and_the_last_point_and_the_peaks_of_memory() -> None:
    """Points in between may be dropped."""
    points = [(float(n), float(n)) for n in range(10_000)]
    some = thinned(points, 100)
    assert (len(some), some[0], some[-1]) == (100, points[0], points[-1])
    # A flat part keeps both of its ends, where it began and where it rose again.
    flat = [(float(n), min(n, 500.0)) for n in range(9_001)] + [(9_001.0, 501.0)]
    flat = [point for point in flat if not 500 < point[0] < 9_000] + [(9_002.0, 502.0)]
    assert {(500.0, 500.0), (9_000.0, 500.0)} <= set(thinned(flat, 100))
    peaks = highest([*points, (5_000.0, 1e9)], 9_999.0, 50)
    assert len(peaks) == 50
    assert (5_000.0, 1e9) in peaks
