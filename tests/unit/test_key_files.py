"""Key files: keys come back exactly, cost little, and are never held as a whole."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.errors import LedgerDamagedError
from holdfast.ledger import row_files
from holdfast.ledger.row_files import KeyFile, KeyFiles, parquet_batches, read_key_table, read_keys
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import StorageError
from holdfast.worker.coverage import key_hashes
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.task_ledgers import WatchedStorage

URI = "mem://store/tasks/0000.keys"
BERLIN = timezone(timedelta(hours=1))


@pytest.fixture
def storage() -> WatchedStorage:
    """Return an empty store."""
    return WatchedStorage()


def read(storage: WatchedStorage, schema: pa.Schema) -> list[dict[str, Any]]:
    """Return all keys of the file."""
    return [row for batch in read_keys(storage, URI, schema) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [-(2**63), -1, 0, 2**63 - 1]),
        (pa.int32(), [-(2**31), 5, 2**31 - 1]),
        (pa.int16(), [-(2**15), 2**15 - 1]),
        (pa.int8(), [-128, 127]),
        (pa.bool_(), [True, False]),
        (pa.string(), ["", "ä\0b", "x" * 10_000, "a b/c"]),
        (pa.binary(), [b"", b"\0\xff", b"x" * 10_000]),
        (pa.date32(), [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)]),
        (pa.timestamp("us"), [datetime(1, 1, 1), datetime(2026, 11, 14, 1, 2, 3, 456_789)]),  # noqa: DTZ001 - Spark's TIMESTAMP_NTZ has none.
        (pa.timestamp("us", tz="UTC"), [datetime(2026, 10, 25, 1, 30, tzinfo=timezone.utc)]),
        (pa.decimal128(38, 10), [Decimal("1234567890.0123456789"), Decimal("-0.0000000001")]),
        (pa.decimal128(9, 2), [Decimal("1.10"), Decimal("-9999999.99")]),
    ],
    ids=str,
)
def test_keys_come_back_exactly(
    storage: WatchedStorage, kind: pa.DataType, values: list[object]
) -> None:
    """Every type that a key may have, at its ends: a key that changes is a row done twice."""
    file = KeyFile(storage, URI)
    file.add(["id"], [pa.array(values, kind)])
    file.finish()
    assert read(storage, pa.schema([("id", kind)])) == [{"id": value} for value in values]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [-1, 2]),
        (pa.int64(), [-1, 2]),
        (pa.date32(), [date(1969, 1, 1), date(2026, 11, 14)]),
        (pa.timestamp("us", "UTC"), [datetime(2026, 11, 14, tzinfo=timezone.utc)]),
        (pa.decimal128(9, 2), [Decimal("-1.10"), Decimal("2.00")]),
    ],
)
def test_the_driver_computes_the_same_hashes_from_the_file(
    storage: WatchedStorage, kind: pa.DataType, values: list[object]
) -> None:
    """A type that came back another would hash to another number."""
    keys = pa.array(values, kind)
    file = KeyFile(storage, URI)
    file.add(["id"], [keys])
    file.finish()
    found = read_key_table(URI, storage.get(URI), len(keys)).column("id").combine_chunks()
    assert found.type == kind
    assert list(key_hashes([found])) == list(key_hashes([keys]))


def test_a_key_of_two_columns_comes_back_in_its_order(storage: WatchedStorage) -> None:
    """Names that a path in Parquet could mistake are no trouble."""
    file, names = KeyFile(storage, URI), ["a.b", "the `day`"]
    file.add(names, [pa.array([1, 2]), pa.array(["x", "y"])])
    file.add(names, [pa.array([1]), pa.array(["y"])])
    file.finish()
    found = read(storage, pa.schema([("a.b", pa.int64()), ("the `day`", pa.string())]))
    assert [tuple(row.values()) for row in found] == [(1, "x"), (2, "y"), (1, "y")]


def test_keys_are_read_under_the_names_and_types_of_the_session(storage: WatchedStorage) -> None:
    """Another session may have another time zone; the moments are the same."""
    moment = datetime(2026, 11, 14, 12, tzinfo=timezone.utc)
    file = KeyFile(storage, URI)
    file.add(["at"], [pa.array([moment], pa.timestamp("us", tz="UTC"))])
    file.finish()
    (row,) = read(storage, pa.schema([("k0", pa.timestamp("us", tz="+01:00"))]))
    assert row == {"k0": moment.astimezone(BERLIN)}


def test_a_key_that_does_not_fit_the_sessions_type_is_an_error(storage: WatchedStorage) -> None:
    """Cut short in silence it would stand for another row's key."""
    file = KeyFile(storage, URI)
    file.add(["id"], [pa.array([2**40])])
    file.finish()
    with pytest.raises(pa.ArrowInvalid):
        read(storage, pa.schema([("id", pa.int32())]))


def test_a_key_file_of_another_number_of_columns_is_an_error(storage: WatchedStorage) -> None:
    """It belongs to another key."""
    file = KeyFile(storage, URI)
    file.add(["a"], [pa.array([1])])
    file.finish()
    with pytest.raises(ValueError, match="argument"):
        read(storage, pa.schema([("a", pa.int64()), ("b", pa.int64())]))


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32()])
def test_sequential_numbers_nearly_vanish(storage: WatchedStorage, kind: pa.DataType) -> None:
    """Ids that grow from row to row cost next to nothing, in the ledger and on the way."""
    file = KeyFile(storage, URI)
    for start in range(0, 400_000, 50_000):
        file.add(["id"], [pa.array(np.arange(start, start + 50_000), kind)])
    assert file.finish() < 400_000 * 4 / 200
    assert len(read(storage, pa.schema([("id", kind)]))) == 400_000


def test_the_size_is_that_of_the_object(storage: WatchedStorage, tmp_path: Path) -> None:
    """A later driver compares it, to notice a key file that was cut short."""
    file = KeyFile(storage, URI)
    file.add(["id"], [pa.array(["a", "b"])])
    assert file.finish() == len(storage.objects[URI])
    real, uri = ObjectStorage(), f"file://{tmp_path}/0000.keys"
    file = KeyFile(real, uri)
    file.add(["id"], [pa.array(["a", "b"])])
    assert file.finish() == real.size(uri) > 0


def test_without_keys_there_is_no_file(storage: WatchedStorage) -> None:
    """A record that covers nothing leaves no object behind."""
    assert KeyFile(storage, URI).finish() == 0
    assert storage.sinks == []


def test_nothing_is_visible_before_the_end(
    storage: WatchedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is killed halfway leaves no half file."""
    monkeypatch.setattr(row_files, "_ROW_GROUP_BYTES", 1)
    file = KeyFile(storage, URI)
    file.add(["id"], [pa.array([1, 2])])
    assert storage.sinks[0].tell() > 0
    assert storage.objects == {}


@pytest.mark.parametrize("row_group_bytes", [1, 1 << 20])
def test_an_abandoned_file_leaves_nothing(
    storage: WatchedStorage, monkeypatch: pytest.MonkeyPatch, row_group_bytes: int
) -> None:
    """Neither when keys were passed on already, nor when all of them still wait."""
    monkeypatch.setattr(row_files, "_ROW_GROUP_BYTES", row_group_bytes)
    file = KeyFile(storage, URI)
    file.add(["id"], [pa.array([1, 2])])
    file.abandon()
    assert storage.objects == {}
    assert [sink.end for sink in storage.sinks] == ["abandoned"] * len(storage.sinks)


def test_a_file_that_cannot_be_finished_can_be_abandoned(storage: WatchedStorage) -> None:
    """The store's own error is the one that is seen."""
    file = KeyFile(storage, URI)
    file.add(["id"], [pa.array([1, 2])])
    storage.failures["put"] = 1
    with pytest.raises(StorageError):
        file.finish()
    file.abandon()
    assert storage.objects == {}


def test_a_large_file_is_written_in_pieces(
    storage: WatchedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits is bounded, however many keys a record covers."""
    monkeypatch.setattr(row_files, "_ROW_GROUP_BYTES", 1 << 20)
    random, file = np.random.default_rng(1), KeyFile(storage, URI)
    base, peak, sent = pa.total_allocated_bytes(), 0, []
    for _ in range(40):
        file.add(["id"], [pa.array(random.integers(0, 2**60, 32_768))])
        peak = max(peak, pa.total_allocated_bytes() - base)
        sent.append(sum(sink.tell() for sink in storage.sinks))
    assert peak < 4 << 20  # Of 10 MiB; with PyArrow 19 to 21 it is just over 3.
    assert len(set(sent)) >= 9
    assert file.finish() > 8 << 20
    assert sum(1 for _ in read_keys(storage, URI, pa.schema([("id", pa.int64())]))) >= 20


def test_keys_do_not_hold_the_batch_that_they_came_in(storage: WatchedStorage) -> None:
    """A column of a slice would keep the memory of Spark's whole batch."""
    file = KeyFile(storage, URI)
    base = pa.total_allocated_bytes()
    for start in range(20):
        whole = pa.array(np.arange(131_072) + start).cast(pa.int32())
        file.add(["id"], [whole.slice(1000, 10)])
        del whole
    assert pa.total_allocated_bytes() - base < 100_000


def test_key_files_are_true_when_there_are_any(storage: WatchedStorage) -> None:
    """Without finished rows no join is planned."""
    assert not KeyFiles(storage=storage, uris={})
    assert KeyFiles(storage=storage, uris={"a": URI})


def test_keys_that_unpack_into_too_much_are_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors read key files whole: a crafted one must not take all of their memory."""
    storage, keys = MemoryStorage(), pa.array(range(1000))
    file = KeyFile(storage, URI)
    file.add(["id"], [keys])
    file.finish()
    assert len(storage.get(URI)) < keys.nbytes / 4  # Numbers that grow nearly vanish.
    schema = pa.schema([("id", pa.int64())])
    monkeypatch.setattr("holdfast.ledger.row_files.DECODED_BYTES_MAX", keys.nbytes + 200)
    assert sum(batch.num_rows for batch in read_keys(storage, URI, schema)) == len(keys)
    monkeypatch.setattr("holdfast.ledger.row_files.DECODED_BYTES_MAX", keys.nbytes - 1)
    with pytest.raises(LedgerDamagedError, match="unpacks into over"):
        list(read_keys(storage, URI, schema))
    with pytest.raises(LedgerDamagedError, match="unpacks into over"):
        read_key_table(URI, storage.get(URI), len(keys))


def test_a_footer_that_promises_too_much_is_damage_before_a_page_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Numbers that grow are packed into next to nothing; unpacked, all of them are there."""
    storage = MemoryStorage()
    file = KeyFile(storage, URI)
    file.add(["id"], [pa.array(range(1000))])
    file.finish()
    monkeypatch.setattr("holdfast.ledger.row_files.DECODED_BYTES_MAX", 7_999)
    read = parquet_batches(URI, storage.get(URI))
    with pytest.raises(LedgerDamagedError, match="unpacks into over"):
        next(read)


def test_pages_that_hold_more_than_the_footer_says_are_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A dictionary of one long text makes gigabytes of small numbers: they are counted as read."""
    storage, sink = MemoryStorage(), pa.BufferOutputStream()
    pq.write_table(pa.table({"id": ["x" * 10_000] * 1000}), sink)
    storage.objects[URI] = sink.getvalue().to_pybytes()
    monkeypatch.setattr("holdfast.ledger.row_files.DECODED_BYTES_MAX", 100_000)
    with pytest.raises(LedgerDamagedError, match="unpacks into over"):
        list(read_keys(storage, URI, pa.schema([("id", pa.string())])))


@pytest.mark.parametrize("data", [b"", b"PAR1" * 9, b"x" * 100])
def test_bytes_that_are_no_key_file_are_damage(data: bytes) -> None:
    """Executors name the object, not what Parquet makes of it."""
    storage = MemoryStorage()
    storage.objects[URI] = data
    with pytest.raises(LedgerDamagedError, match=URI):
        list(read_keys(storage, URI, pa.schema([("id", pa.int64())])))
