"""Row files: chunks and keys are read back as they were written, or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.errors import LedgerDamagedError, StoreUnavailableError
from holdfast.ledger import row_files
from holdfast.ledger.row_files import (
    ChunkFile,
    KeyFile,
    KeyFiles,
    parquet_batches,
    read_chunk,
    read_key_table,
    read_keys,
    sampled_key_bytes,
)
from holdfast.model.work import Chunk
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import StorageError
from holdfast.storage.upload import ArrowFile
from holdfast.worker.coverage import key_hashes
from tests.fakes.memory_storage import MemoryStorage, bit_flipped, truncated
from tests.fakes.task_ledgers import Row, WatchedStorage

# ---- Chunks: rows are read back as they were written, or not at all
URI = "mem://store/tasks/0000.chunk"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "1"}),
        pa.field("text", pa.string()),
        pa.field("vector", pa.list_(pa.float32())),
        pa.field("parts", pa.struct([("a", pa.int32()), ("b", pa.map_(pa.string(), pa.int64()))])),
        pa.field("uuid", pa.uuid()),
    ]
)
ROWS: list[Row] = [
    {"id": 1, "text": "x", "vector": [1.0, None], "parts": None, "uuid": None},
    {"id": 2, "text": None, "vector": None, "parts": {"a": 1, "b": [("k", 2)]}, "uuid": b"u" * 16},
    {"id": 3, "text": "", "vector": [], "parts": {"a": None, "b": []}, "uuid": b"\0" * 16},
]


@pytest.fixture
def storage() -> WatchedStorage:
    """Return an empty store."""
    return WatchedStorage()


def rows_as_batch(rows: list[Row]) -> pa.RecordBatch:
    """Return rows in the chunk's schema."""
    columns = []
    for field in SCHEMA:
        values = [row[field.name] for row in rows]
        if field.name == "uuid":
            raw = pa.array(values, pa.binary(16))
            columns.append(pa.ExtensionArray.from_storage(field.type, raw))
        else:
            columns.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def written(storage: WatchedStorage) -> Chunk:
    """Write all rows in two batches, the first of which is a slice."""
    file = ChunkFile(storage, URI, SCHEMA)
    whole = rows_as_batch(ROWS)
    file.write([whole.slice(0, 2)])
    file.write([whole.slice(2), whole.slice(3)])
    return file.finish()


def test_rows_are_read_back_as_they_were_written(storage: WatchedStorage) -> None:
    """Values, NULLs, nested types, and the schema with its field ids."""
    chunk = written(storage)
    batches = list(read_chunk(storage, URI, chunk))
    assert pa.Table.from_batches(batches).equals(pa.Table.from_batches([rows_as_batch(ROWS)]))
    assert batches[0].schema.equals(SCHEMA, check_metadata=True)


def test_a_record_gets_what_it_needs_to_name_the_chunk(storage: WatchedStorage) -> None:
    """Rows, size and digest are those of the stored object."""
    chunk = written(storage)
    data = storage.objects[URI]
    assert chunk == Chunk(rows=3, size_bytes=len(data), digest=hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize(
    "damage", [truncated, bit_flipped, lambda _: b"", lambda data: data + b"x"]
)
def test_a_damaged_chunk_returns_no_row(
    storage: WatchedStorage, damage: Callable[[bytes], bytes]
) -> None:
    """The digest is compared before the first row is returned."""
    chunk = written(storage)
    storage.damage[URI] = damage
    with pytest.raises(LedgerDamagedError, match="digest") as caught:
        list(read_chunk(storage, URI, chunk))
    assert caught.value.uri == URI


@pytest.mark.parametrize("rows", [2, 4])
def test_a_chunk_with_another_number_of_rows_is_refused(storage: WatchedStorage, rows: int) -> None:
    """A record with another count belongs to another chunk."""
    chunk = written(storage)
    with pytest.raises(LedgerDamagedError, match=f"3 rows, but {rows} were written"):
        list(read_chunk(storage, URI, replace(chunk, rows=rows)))


def test_a_chunk_that_is_gone_is_an_error(storage: WatchedStorage) -> None:
    """Its rows count as done: leaving them out would lose them."""
    chunk = written(storage)
    storage.delete([URI])
    with pytest.raises(LedgerDamagedError, match="missing"):
        list(read_chunk(storage, URI, chunk))


def test_a_store_that_does_not_answer_is_asked_again_later(storage: WatchedStorage) -> None:
    """Unavailable is not damaged."""
    chunk = written(storage)
    storage.failures["get"] = 1
    with pytest.raises(StoreUnavailableError):
        list(read_chunk(storage, URI, chunk))
    assert len(list(read_chunk(storage, URI, chunk))) == 3


def test_rows_are_sent_as_they_arrive(storage: WatchedStorage) -> None:
    """The chunk's size costs no memory: every batch is sent before the next one is written."""
    file, sizes = ChunkFile(storage, URI, SCHEMA), []
    for _ in range(5):
        file.write([rows_as_batch(ROWS)])
        sizes.append(storage.sinks[0].tell())
    assert sizes == sorted(set(sizes))
    assert storage.objects == {}
    assert file.finish().rows == 15


def test_an_abandoned_chunk_leaves_nothing(storage: WatchedStorage) -> None:
    """Not even the end of the stream makes it visible."""
    file = ChunkFile(storage, URI, SCHEMA)
    file.write([rows_as_batch(ROWS)])
    file.abandon()
    assert storage.objects == {}
    assert storage.sinks[0].end == "abandoned"


def test_rows_of_another_schema_are_refused(storage: WatchedStorage) -> None:
    """A chunk has one schema: that of the table when it was written."""
    file = ChunkFile(storage, URI, SCHEMA)
    with pytest.raises(pa.ArrowInvalid):
        file.write([pa.RecordBatch.from_pydict({"id": [1]})])
    file.abandon()


def test_closing_pyarrows_handle_does_not_make_an_object_visible(storage: WatchedStorage) -> None:
    """Handles are closed early, in some versions also by garbage collection."""
    file = ArrowFile(storage.open_sink(URI))
    with pa.PythonFile(file, mode="w") as handle:
        handle.write(b"half")
    assert storage.objects == {}
    file.write(b"whole")
    file.finish()
    assert storage.objects == {URI: b"halfwhole"}


def as_chunk(
    storage: WatchedStorage, batches: list[pa.RecordBatch], compression: str | None = None
) -> Chunk:
    """Write batches as a forger would, who is not bound to our options."""
    sink = pa.BufferOutputStream()
    given = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batches[0].schema, options=given) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return put(storage, sink.getvalue().to_pybytes(), sum(batch.num_rows for batch in batches))


def put(storage: WatchedStorage, data: bytes, rows: int) -> Chunk:
    """Replace the chunk's bytes, and return what a forged record says about them."""
    storage.objects[URI] = data
    return Chunk(rows=rows, size_bytes=len(data), digest=hashlib.sha256(data).hexdigest())


def test_an_offset_that_leads_out_of_its_buffer_is_damage(storage: WatchedStorage) -> None:
    """Arrow would read memory outside the chunk, or crash the process."""
    text = pa.RecordBatch.from_pydict({"text": ["x" * 4000]})
    chunk = as_chunk(storage, [text])
    assert read_chunk(storage, URI, chunk) == [text]
    data, pair = storage.objects[URI], b"\0\0\0\0" + (4000).to_bytes(4, "little")
    at = data.rindex(pair)
    forged = data[:at] + pair[:4] + (100_000_000).to_bytes(4, "little") + data[at + 8 :]
    with pytest.raises(LedgerDamagedError, match=URI):
        read_chunk(storage, URI, put(storage, forged, 1))


def test_an_index_that_leads_out_of_its_dictionary_is_damage(storage: WatchedStorage) -> None:
    """Only full validation of the values finds it."""
    bad = pa.DictionaryArray.from_arrays(pa.array([7]), pa.array(["x"]), safe=False)
    with pytest.raises(LedgerDamagedError, match=URI):
        read_chunk(storage, URI, as_chunk(storage, [pa.record_batch({"text": bad})]))


@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int32(), pa.string())])
def test_another_codec_is_refused_before_a_batch_is_unpacked(
    storage: WatchedStorage, kind: pa.DataType
) -> None:
    """Kilobytes of zstd can become gigabytes; LZ4, the codec of chunks, cannot do that."""
    batch = pa.record_batch({"text": pa.array(["A" * 1_000_000], kind)})
    for codec in (None, "lz4"):
        assert read_chunk(storage, URI, as_chunk(storage, [batch], compression=codec)) == [batch]
    bomb = as_chunk(storage, [batch], compression="zstd")
    before = pa.total_allocated_bytes()
    with pytest.raises(LedgerDamagedError, match="codec") as caught:
        read_chunk(storage, URI, bomb)
    assert pa.total_allocated_bytes() - before < 1_000_000, caught


@pytest.mark.parametrize("batches", [1, 4])
def test_a_chunk_that_unpacks_into_too_much_is_damage(
    storage: WatchedStorage, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    """Whatever its codec is, in one batch or in many."""
    text = pa.record_batch({"text": ["A" * 1_000_000] * batches})
    parts = [text.slice(at, 1) for at in range(batches)]
    chunk = as_chunk(storage, parts, compression="lz4")
    assert len(read_chunk(storage, URI, chunk)) == batches
    monkeypatch.setattr("holdfast.ledger.row_files.DECODED_BYTES_FREE", 900_000 * batches)
    monkeypatch.setattr("holdfast.ledger.row_files.DECODED_RATIO_MAX", 1)
    with pytest.raises(LedgerDamagedError, match="unpacks to more than"):
        read_chunk(storage, URI, chunk)


def test_a_dictionary_that_batches_share_counts_once(
    storage: WatchedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stored once, however many batches there are."""
    monkeypatch.setattr("holdfast.ledger.row_files.DECODED_BYTES_FREE", 0)
    monkeypatch.setattr("holdfast.ledger.row_files.DECODED_RATIO_MAX", 2)
    values = pa.array(["x" * 10_000, "y" * 10_000])
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1]), values)
    batches = [pa.record_batch({"text": column})] * 20
    assert len(read_chunk(storage, URI, as_chunk(storage, batches))) == len(batches)


@pytest.mark.parametrize("data", [b"", b"x" * 100, b"\xff\xff\xff\xff\xff\xff\xff\x7f" * 8])
def test_bytes_that_are_not_a_stream_are_damage(storage: WatchedStorage, data: bytes) -> None:
    """A matching digest only shows who wrote last."""
    with pytest.raises(LedgerDamagedError, match=URI):
        read_chunk(storage, URI, put(storage, data, 0))


def test_a_stream_without_a_batch_is_damage(storage: WatchedStorage) -> None:
    """No task writes a chunk without rows, and a reader takes the schema from the first batch."""
    file = ChunkFile(storage, URI, SCHEMA)
    chunk = file.finish()
    assert chunk.rows == 0
    with pytest.raises(LedgerDamagedError, match="it has no batch"):
        read_chunk(storage, URI, chunk)


# ---- Key files: keys are read back exactly, cost little, and are never held as a whole
KEYS_URI = "mem://store/tasks/0000.keys"
BERLIN = timezone(timedelta(hours=1))


def read(storage: WatchedStorage, schema: pa.Schema) -> list[dict[str, Any]]:
    """Return all keys of the file."""
    return [row for batch in read_keys(storage, KEYS_URI, schema) for row in batch.to_pylist()]


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
def test_keys_are_read_back_exactly(
    storage: WatchedStorage, kind: pa.DataType, values: list[object]
) -> None:
    """Every type that a key may have, at its limits: a key that changes is a row done twice."""
    file = KeyFile(storage, KEYS_URI)
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
    """A type that changed would give other hashes."""
    keys = pa.array(values, kind)
    file = KeyFile(storage, KEYS_URI)
    file.add(["id"], [keys])
    file.finish()
    found = read_key_table(KEYS_URI, storage.get(KEYS_URI), len(keys)).column("id").combine_chunks()
    assert found.type == kind
    assert list(key_hashes([found])) == list(key_hashes([keys]))


def test_a_key_of_two_columns_keeps_its_order(storage: WatchedStorage) -> None:
    """Names that look like a Parquet path are handled."""
    file, names = KeyFile(storage, KEYS_URI), ["a.b", "the `day`"]
    file.add(names, [pa.array([1, 2]), pa.array(["x", "y"])])
    file.add(names, [pa.array([1]), pa.array(["y"])])
    file.finish()
    found = read(storage, pa.schema([("a.b", pa.int64()), ("the `day`", pa.string())]))
    assert [tuple(row.values()) for row in found] == [(1, "x"), (2, "y"), (1, "y")]


def test_keys_are_read_under_the_names_and_types_of_the_session(storage: WatchedStorage) -> None:
    """Another session may have another time zone; the points in time are the same."""
    moment = datetime(2026, 11, 14, 12, tzinfo=timezone.utc)
    file = KeyFile(storage, KEYS_URI)
    file.add(["at"], [pa.array([moment], pa.timestamp("us", tz="UTC"))])
    file.finish()
    (row,) = read(storage, pa.schema([("k0", pa.timestamp("us", tz="+01:00"))]))
    assert row == {"k0": moment.astimezone(BERLIN)}


def test_a_key_that_does_not_fit_the_sessions_type_is_an_error(storage: WatchedStorage) -> None:
    """Truncated silently, it would be another row's key."""
    file = KeyFile(storage, KEYS_URI)
    file.add(["id"], [pa.array([2**40])])
    file.finish()
    with pytest.raises(pa.ArrowInvalid):
        read(storage, pa.schema([("id", pa.int32())]))


def test_a_key_file_with_another_number_of_columns_is_an_error(storage: WatchedStorage) -> None:
    """It belongs to another key."""
    file = KeyFile(storage, KEYS_URI)
    file.add(["a"], [pa.array([1])])
    file.finish()
    with pytest.raises(ValueError, match="argument"):
        read(storage, pa.schema([("a", pa.int64()), ("b", pa.int64())]))


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32()])
def test_sequential_numbers_compress_to_almost_nothing(
    storage: WatchedStorage, kind: pa.DataType
) -> None:
    """Ids that increase from row to row cost next to nothing, in the ledger and in transit."""
    file = KeyFile(storage, KEYS_URI)
    for start in range(0, 400_000, 50_000):
        file.add(["id"], [pa.array(np.arange(start, start + 50_000), kind)])
    assert file.finish() < 400_000 * 4 / 200
    assert len(read(storage, pa.schema([("id", kind)]))) == 400_000


def test_the_size_is_that_of_the_object(storage: WatchedStorage, tmp_path: Path) -> None:
    """A later driver compares it to notice a truncated key file."""
    file = KeyFile(storage, KEYS_URI)
    file.add(["id"], [pa.array(["a", "b"])])
    assert file.finish() == len(storage.objects[KEYS_URI])
    real, uri = ObjectStorage(), f"file://{tmp_path}/0000.keys"
    file = KeyFile(real, uri)
    file.add(["id"], [pa.array(["a", "b"])])
    assert file.finish() == real.size(uri) > 0


def test_without_keys_there_is_no_file(storage: WatchedStorage) -> None:
    """A record that covers nothing leaves no object behind."""
    assert KeyFile(storage, KEYS_URI).finish() == 0
    assert storage.sinks == []


def test_nothing_is_visible_before_the_end(
    storage: WatchedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is killed half way leaves no partial file."""
    monkeypatch.setattr(row_files, "_ROW_GROUP_BYTES", 1)
    file = KeyFile(storage, KEYS_URI)
    file.add(["id"], [pa.array([1, 2])])
    assert storage.sinks[0].tell() > 0
    assert storage.objects == {}


@pytest.mark.parametrize("row_group_bytes", [1, 1 << 20])
def test_an_abandoned_file_leaves_nothing(
    storage: WatchedStorage, monkeypatch: pytest.MonkeyPatch, row_group_bytes: int
) -> None:
    """Neither after keys were sent, nor while all of them still wait."""
    monkeypatch.setattr(row_files, "_ROW_GROUP_BYTES", row_group_bytes)
    file = KeyFile(storage, KEYS_URI)
    file.add(["id"], [pa.array([1, 2])])
    file.abandon()
    assert storage.objects == {}
    assert [sink.end for sink in storage.sinks] == ["abandoned"] * len(storage.sinks)


def test_a_file_that_cannot_be_finished_can_be_abandoned(storage: WatchedStorage) -> None:
    """The caller sees the store's own error."""
    file = KeyFile(storage, KEYS_URI)
    file.add(["id"], [pa.array([1, 2])])
    storage.failures["put"] = 1
    with pytest.raises(StorageError):
        file.finish()
    file.abandon()
    assert storage.objects == {}


def test_a_large_file_is_written_in_pieces(
    storage: WatchedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buffered keys are bounded, however many a record covers."""
    monkeypatch.setattr(row_files, "_ROW_GROUP_BYTES", 1 << 20)
    random, file = np.random.default_rng(1), KeyFile(storage, KEYS_URI)
    base, peak, sent = pa.total_allocated_bytes(), 0, []
    for _ in range(40):
        file.add(["id"], [pa.array(random.integers(0, 2**60, 32_768))])
        peak = max(peak, pa.total_allocated_bytes() - base)
        sent.append(sum(sink.tell() for sink in storage.sinks))
    assert peak < 4 << 20  # Of 10 MiB; with PyArrow 19 to 21 it is just over 3.
    assert len(set(sent)) >= 9
    assert file.finish() > 8 << 20
    assert sum(1 for _ in read_keys(storage, KEYS_URI, pa.schema([("id", pa.int64())]))) >= 20


def test_keys_do_not_hold_the_memory_of_their_batch(storage: WatchedStorage) -> None:
    """A column of a slice would keep the memory of Spark's whole batch."""
    file = KeyFile(storage, KEYS_URI)
    base = pa.total_allocated_bytes()
    for start in range(20):
        whole = pa.array(np.arange(131_072) + start).cast(pa.int32())
        file.add(["id"], [whole.slice(1000, 10)])
        del whole
    assert pa.total_allocated_bytes() - base < 100_000


def test_a_flipped_bit_of_a_key_file_never_changes_its_keys(storage: WatchedStorage) -> None:
    """The footer has no checksum, and may say that a page has no values: keys would be hidden."""
    file, schema = KeyFile(storage, KEYS_URI), pa.schema([("id", pa.int64())])
    file.add(["id"], [pa.array([5, 6, 7])])
    file.finish()
    written = storage.objects[KEYS_URI]
    hidden = 0
    for bit in range(8 * len(written)):
        data = bytearray(written)
        data[bit // 8] ^= 1 << bit % 8
        storage.objects[KEYS_URI] = bytes(data)
        try:
            batches = list(read_keys(storage, KEYS_URI, schema, rows=3))
        except (LedgerDamagedError, pa.ArrowException):
            hidden += 1
            continue
        assert [key for batch in batches for key in batch.column(0).to_pylist()] == [5, 6, 7]
    assert hidden > len(written)


def test_key_files_are_true_when_there_are_any(storage: WatchedStorage) -> None:
    """Without finished rows no join is planned."""
    assert not KeyFiles(storage=storage, uris={})
    assert KeyFiles(storage=storage, uris={"a": KEYS_URI})


def test_the_bytes_of_a_key_are_judged_by_a_sample(storage: WatchedStorage) -> None:
    """What a broadcast would take depends on how long texts are: their offsets count too."""
    file = KeyFile(storage, KEYS_URI)
    file.add(["a", "b"], [pa.array(["x" * 30, "x" * 50]), pa.array([1, 2])])
    file.finish()
    assert 48 <= sampled_key_bytes(storage, KEYS_URI) <= 56
    storage.objects[KEYS_URI] = b"no parquet"
    with pytest.raises(LedgerDamagedError, match=KEYS_URI):
        sampled_key_bytes(storage, KEYS_URI)
    storage.objects.clear()
    with pytest.raises(LedgerDamagedError, match="missing"):
        sampled_key_bytes(storage, KEYS_URI)
    storage.failures["get"] = 1
    with pytest.raises(StoreUnavailableError):
        sampled_key_bytes(storage, KEYS_URI)


def test_keys_that_unpack_into_too_much_are_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors read key files whole: a crafted one must not take all of their memory."""
    storage, keys = MemoryStorage(), pa.array(range(1000))
    file = KeyFile(storage, KEYS_URI)
    file.add(["id"], [keys])
    file.finish()
    assert len(storage.get(KEYS_URI)) < keys.nbytes / 4  # Increasing numbers compress very well.
    schema = pa.schema([("id", pa.int64())])
    monkeypatch.setattr("holdfast.ledger.row_files.DECODED_BYTES_MAX", keys.nbytes + 200)
    assert sum(batch.num_rows for batch in read_keys(storage, KEYS_URI, schema)) == len(keys)
    monkeypatch.setattr("holdfast.ledger.row_files.DECODED_BYTES_MAX", keys.nbytes - 1)
    with pytest.raises(LedgerDamagedError, match="unpacks to more than"):
        list(read_keys(storage, KEYS_URI, schema))
    with pytest.raises(LedgerDamagedError, match="unpacks to more than"):
        read_key_table(KEYS_URI, storage.get(KEYS_URI), len(keys))


def test_a_footer_that_promises_too_much_is_damage_before_a_page_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Increasing numbers compress to next to nothing, but take their full size when unpacked."""
    storage = MemoryStorage()
    file = KeyFile(storage, KEYS_URI)
    file.add(["id"], [pa.array(range(1000))])
    file.finish()
    monkeypatch.setattr("holdfast.ledger.row_files.DECODED_BYTES_MAX", 7_999)
    read = parquet_batches(KEYS_URI, storage.get(KEYS_URI))
    with pytest.raises(LedgerDamagedError, match="unpacks to more than"):
        next(read)


def test_pages_that_hold_more_than_the_footer_says_are_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A dictionary of one long text gives gigabytes for small indices: they are counted as read."""
    storage, sink = MemoryStorage(), pa.BufferOutputStream()
    pq.write_table(pa.table({"id": ["x" * 10_000] * 1000}), sink)
    storage.objects[KEYS_URI] = sink.getvalue().to_pybytes()
    monkeypatch.setattr("holdfast.ledger.row_files.DECODED_BYTES_MAX", 100_000)
    with pytest.raises(LedgerDamagedError, match="unpacks to more than"):
        list(read_keys(storage, KEYS_URI, pa.schema([("id", pa.string())])))


@pytest.mark.parametrize("data", [b"", b"PAR1" * 9, b"x" * 100])
def test_bytes_that_are_not_a_key_file_are_damage(data: bytes) -> None:
    """The error names the object, not what Parquet reports."""
    storage = MemoryStorage()
    storage.objects[KEYS_URI] = data
    with pytest.raises(LedgerDamagedError, match=KEYS_URI):
        list(read_keys(storage, KEYS_URI, pa.schema([("id", pa.int64())])))
