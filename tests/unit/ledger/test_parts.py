"""Parts hold what is too large for a record."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.errors import LedgerDamagedError, StoreUnavailableError
from holdfast.ledger import parts
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.parts import read_work, write_work
from holdfast.model.coverage import NOTHING, Coverage
from holdfast.model.records import PartReference
from holdfast.model.work import Chunk, StagedFile, StagedGroup, TaskRecord, Work
from tests.fakes.memory_storage import MemoryStorage, bit_flipped, truncated
from tests.fakes.memory_writer import staged_group

LAYOUT = RunLayout.of("s3://store", "r")
GROUPS = (
    staged_group("a"),
    StagedGroup(
        path="mem://m/größe.avro",
        size_bytes=2**40,
        files=tuple(
            StagedFile(path=f"mem://d/{i}", size_bytes=i, rows=2**33 + i) for i in range(3)
        ),
        detail={"spec_id": 3, "partitions": [{"lower": None, "upper": "00ff"}]},
    ),
    StagedGroup(path="mem://m/none.avro", size_bytes=1, files=(), detail={}),
)
LOG = "00000001/rows/000000/000000000000"
WORK = Work(
    records=(
        TaskRecord(
            name=f"{LOG}/0000",
            coverage=Coverage(rows=2**33, low=2**63, high=2**62, keys_bytes=7, span=(-5, 2**40)),
            seconds=1.25,
            chunk=Chunk(rows=4, size_bytes=5, digest="d"),
        ),
        TaskRecord(
            name=f"{LOG}/0001",
            coverage=NOTHING,
            seconds=0.0,
            groups=GROUPS,
            supersedes=(f"{LOG}/0000",),
            end="complete",
        ),
    )
)


@pytest.mark.parametrize("work", [WORK, Work()])
def test_work_is_read_back_as_it_was_written(work: Work) -> None:
    """Coverage, chunks, files and the sink's own detail survive, even without any record."""
    storage = MemoryStorage()
    reference = write_work(storage, LAYOUT, "work-1.parquet", work)
    assert reference.records == len(work.records)
    assert list(storage.objects) == [LAYOUT.part("work-1.parquet")]
    assert read_work(storage, LAYOUT, reference) == work


@pytest.mark.parametrize(("portion_bytes", "portions"), [(1, 2), (1 << 20, 1)])
def test_large_records_are_encoded_one_by_one(
    monkeypatch: pytest.MonkeyPatch, portion_bytes: int, portions: int
) -> None:
    """A record may list ten thousand files: Arrow does not get all of them at once."""
    monkeypatch.setattr(parts, "_PORTION_BYTES", portion_bytes)
    storage = MemoryStorage()
    reference = write_work(storage, LAYOUT, "p", WORK)
    file = pq.ParquetFile(pa.BufferReader(storage.objects[LAYOUT.part("p")]))
    assert file.num_row_groups == portions
    assert read_work(storage, LAYOUT, reference) == WORK


def test_empty_work_is_a_part_too() -> None:
    """A seal of a run without rows names it like any other."""
    storage = MemoryStorage()
    reference = write_work(storage, LAYOUT, "p", Work())
    assert (read_work(storage, LAYOUT, reference), reference.records) == (Work(), 0)


@pytest.mark.parametrize("damage", [truncated, bit_flipped, lambda _: b""])
def test_a_part_that_is_not_as_written_is_refused(damage: Callable[[bytes], bytes]) -> None:
    """The digest in the record is checked before a byte of the part is trusted."""
    storage = MemoryStorage()
    reference = write_work(storage, LAYOUT, "p", WORK)
    storage.damage[LAYOUT.part("p")] = damage
    with pytest.raises(LedgerDamagedError, match="digest"):
        read_work(storage, LAYOUT, reference)


def test_another_whole_part_under_the_same_name_is_refused() -> None:
    """Well-formed is not enough: it must be the part that the record names."""
    storage = MemoryStorage()
    reference = write_work(storage, LAYOUT, "p", WORK)
    write_work(storage, LAYOUT, "p", Work(records=WORK.records[:1]))
    with pytest.raises(LedgerDamagedError, match="digest"):
        read_work(storage, LAYOUT, reference)


def test_a_missing_part_is_damage() -> None:
    """A record that points to nothing is never read as an empty list."""
    with pytest.raises(LedgerDamagedError, match="missing"):
        read_work(MemoryStorage(), LAYOUT, PartReference(name="p", digest="d", records=1))


@pytest.mark.parametrize("kind", ["put", "get"])
def test_a_store_that_cannot_write_or_read_a_part_is_unavailable(kind: str) -> None:
    """The error names the object."""
    storage = MemoryStorage()
    storage.failures[kind] = 1
    with pytest.raises(StoreUnavailableError, match=LAYOUT.part("p")):
        read_work(storage, LAYOUT, write_work(storage, LAYOUT, "p", WORK))
