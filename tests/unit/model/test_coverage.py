"""Coverage: ranges of row numbers, and the pins that number the rows of files."""

from __future__ import annotations

import hashlib
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import LedgerDamagedError
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.parts import read_pins, write_pins
from holdfast.model.coverage import FileSlice, Origin, PinnedFile, Pins, Ranges, Span
from holdfast.model.records import PartReference
from holdfast.worker.task import ScanTask
from tests.fakes.memory_scan import MemoryReader
from tests.fakes.memory_storage import MemoryStorage

# ---- Ranges: they behave exactly like sets of row numbers
SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def numbers(ranges: Ranges) -> set[int]:
    """Return the individual row numbers."""
    return {number for start, stop in ranges for number in range(start, stop)}


def of(spans: list[Span]) -> set[int]:
    """Return the rows of spans that may be empty or overlap."""
    return {number for start, stop in spans for number in range(start, stop)}


@given(SPANS)
def test_spans_are_in_order_and_never_touch(spans: list[Span]) -> None:
    """So equal rows give equal ranges, however they were given."""
    found = Ranges.of(spans)
    assert numbers(found) == of(spans)
    assert found.rows == len(of(spans))
    assert bool(found) == bool(of(spans))
    edges = [edge for span in found for edge in span]
    assert edges == sorted(set(edges))


@given(SPANS, SPANS)
def test_plus_minus_and_overlap_are_those_of_sets(some: list[Span], others: list[Span]) -> None:
    """Nothing is lost and nothing is counted twice."""
    a, b = Ranges.of(some), Ranges.of(others)
    assert a.plus(b) == Ranges.of([*some, *others])
    assert numbers(a.minus(b)) == of(some) - of(others)
    assert numbers(a.overlap(b)) == of(some) & of(others)
    assert a.minus(b) == Ranges.of(a.minus(b).spans)
    assert a.minus(b).rows + a.overlap(b).rows == a.rows


# ---- Pins: rows are numbered through all files and shared out evenly
SCHEMA = pa.schema([("id", pa.int64())])
ROW_BYTES = 10


def file(name: str, *groups: int, left_out: tuple[int, ...] = ()) -> PinnedFile:
    """Return a file with row groups of these sizes."""
    return PinnedFile(
        uri=f"s3://b/{name}",
        size_bytes=sum(groups) * ROW_BYTES,
        tag=f"tag of {name}",
        group_rows=groups,
        group_bytes=tuple(rows * ROW_BYTES for rows in groups),
        left_out=left_out,
    )


def pins(*files: PinnedFile) -> Pins:
    """Return pins of files."""
    return Pins(files=files, schema=SCHEMA)


def rows_of(items: list[tuple[FileSlice, ...]]) -> list[int]:
    """Return the numbers of all rows in the items."""
    return [
        piece.base + row
        for item in items
        for piece in item
        for row in range(piece.start, piece.stop)
    ]


def test_rows_are_numbered_through_all_files() -> None:
    """Groups that cannot match are numbered but not read."""
    found = pins(file("a", 3, 2), file("b", 4, 1, left_out=(0,)))
    assert found.bases == (0, 5, 10)
    assert found.whole == Ranges(((0, 5), (9, 10)))
    task = ScanTask(reader=MemoryReader(), items=found.items(found.whole, 2, 100))
    assert task.locate(4) == ("s3://b/a", 4)
    assert task.locate(9) == ("s3://b/b", 4)


def test_a_cut_is_between_row_groups_where_possible() -> None:
    """A group in two items is read twice."""
    found = pins(file("a", 100, 100), file("b", 100, 100))
    items = found.items(found.whole, slots=2, item_bytes=10**9)
    assert [
        [(piece.file.uri[-1], piece.start, piece.stop) for piece in item] for item in items
    ] == [
        [("a", 0, 200)],
        [("b", 0, 200)],
    ]


def test_one_large_row_group_still_keeps_every_slot_at_work() -> None:
    """For a slow transform it is worth reading the group twice."""
    found = pins(file("a", 1000))
    items = found.items(found.whole, slots=4, item_bytes=10**9)
    assert len(items) == 4
    assert sorted(rows_of(items)) == list(range(1000))
    assert max(len(rows_of([item])) for item in items) <= 300


def test_the_remaining_rows_are_shared_out_again() -> None:
    """A resume at 90 % gives each slot a part of the remaining tenth."""
    found = pins(file("a", *[100] * 10), file("b", *[100] * 10))
    left = found.whole.minus(Ranges.of([(0, 1800)]))
    items = found.items(left, slots=2, item_bytes=10**9)
    assert [len(rows_of([item])) for item in items] == [100, 100]


def test_if_nothing_is_left_there_is_no_item() -> None:
    """The job then has nothing to do."""
    found = pins(file("a", 10))
    assert found.items(Ranges(), slots=2, item_bytes=100) == []


@given(
    st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=5), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), max_size=6),
    st.integers(1, 5),
    st.integers(1, 3000),
)
def test_each_remaining_row_is_in_one_item(
    groups: list[list[int]], done: list[tuple[int, int]], slots: int, item_bytes: int
) -> None:
    """Whatever the sizes are: none is missed, and none is given out twice."""
    found = pins(*(file(str(number), *rows) for number, rows in enumerate(groups)))
    left = found.whole.minus(Ranges.of(done))
    items = found.items(left, slots, item_bytes)
    assert sorted(rows_of(items)) == [n for start, stop in left for n in range(start, stop)]
    assert all(items)


def test_pins_come_back_as_they_were_written() -> None:
    """With partition values, deletes, and the schema's own types."""
    storage, layout = MemoryStorage(), RunLayout.of("s3://b/store", "r")
    pinned = PinnedFile(
        uri="s3://b/day=7/x.parquet",
        size_bytes=5,
        tag='"abc"',
        group_rows=(1, 2),
        group_bytes=(3, 4),
        left_out=(1,),
        values={"day": 7, "country": None},
        deletes=("s3://b/d.parquet",),
    )
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("v", pa.list_(pa.float32(), 4))])
    written = Pins(files=(pinned,), schema=schema, origin=Origin(table_uuid="u", snapshot_id=5))
    reference = write_pins(storage, layout, "pins-1.parquet", written)
    assert reference.records == 1
    assert read_pins(storage, layout, reference) == written


@pytest.mark.parametrize(
    "origin", [b"[]", b"x", b'{"version": -1}', b'{"version": "7"}', b'{"snapshot_id": []}']
)
def test_an_origin_of_another_shape_is_damage(origin: bytes) -> None:
    """It says which version is read; a start once took it unchecked."""
    storage, layout = MemoryStorage(), RunLayout.of("s3://b/store", "r")
    write_pins(storage, layout, "pins-1.parquet", pins(file("a", 1)))
    uri, buffer = layout.part("pins-1.parquet"), pa.BufferOutputStream()
    found = pq.read_table(pa.BufferReader(storage.objects[uri]))
    facts = {**(found.schema.metadata or {}), b"origin": origin}
    pq.write_table(found.replace_schema_metadata(facts), buffer)
    storage.objects[uri] = buffer.getvalue().to_pybytes()
    digest = hashlib.sha256(storage.objects[uri]).hexdigest()
    with pytest.raises(LedgerDamagedError, match=re.escape(uri)):
        read_pins(storage, layout, PartReference(name="pins-1.parquet", digest=digest, records=1))


@pytest.mark.parametrize("rounds", [1, 3])
def test_items_are_a_multiple_of_the_slots(rounds: int) -> None:
    """So no slot waits for another's last item."""
    found = pins(file("a", *[50] * 60))
    items = found.items(found.whole, slots=2, item_bytes=30_000 // (2 * rounds))
    assert len(items) == 2 * rounds


@pytest.mark.parametrize("slots", [2, 3, 7])
@pytest.mark.parametrize("groups", [[10] * 210, [7, 13] * 105, [1] * 2100])
def test_every_slot_gets_an_equal_share(slots: int, groups: list[int]) -> None:
    """The longest task decides how long the job takes, and small row groups can be split evenly."""
    found = pins(file("a", *groups[: len(groups) // 3]), file("b", *groups[len(groups) // 3 :]))
    shares = [len(rows_of([item])) for item in found.items(found.whole, slots, 10**9)]
    assert len(shares) == slots
    assert max(shares) - min(shares) <= 2 * max(groups)
