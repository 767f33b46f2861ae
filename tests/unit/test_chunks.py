"""Chunks: rows come back as they were written, or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from holdfast.errors import LedgerDamagedError, StoreUnavailableError
from holdfast.ledger.row_files import ChunkFile, read_chunk
from holdfast.model.work import Chunk
from holdfast.storage.upload import ArrowFile
from tests.fakes.memory_storage import bit_flipped, truncated
from tests.fakes.task_ledgers import Row, WatchedStorage

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


def test_rows_come_back_as_they_were_written(storage: WatchedStorage) -> None:
    """Values, NULLs, nested types, and the schema with its field ids."""
    chunk = written(storage)
    batches = list(read_chunk(storage, URI, chunk))
    assert pa.Table.from_batches(batches).equals(pa.Table.from_batches([rows_as_batch(ROWS)]))
    assert batches[0].schema.equals(SCHEMA, check_metadata=True)


def test_a_record_gets_what_it_needs_to_name_the_chunk(storage: WatchedStorage) -> None:
    """Rows, size and digest are those of the object that stands there."""
    chunk = written(storage)
    data = storage.objects[URI]
    assert chunk == Chunk(rows=3, size_bytes=len(data), digest=hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize(
    "damage", [truncated, bit_flipped, lambda _: b"", lambda data: data + b"x"]
)
def test_a_damaged_chunk_gives_no_row(
    storage: WatchedStorage, damage: Callable[[bytes], bytes]
) -> None:
    """The digest is compared before the first row is handed out."""
    chunk = written(storage)
    storage.damage[URI] = damage
    with pytest.raises(LedgerDamagedError, match="digest") as caught:
        list(read_chunk(storage, URI, chunk))
    assert caught.value.uri == URI


@pytest.mark.parametrize("rows", [2, 4])
def test_a_chunk_of_another_number_of_rows_is_refused(storage: WatchedStorage, rows: int) -> None:
    """A record that says otherwise belongs to something else."""
    chunk = written(storage)
    with pytest.raises(LedgerDamagedError, match=f"3 rows, and {rows} were written"):
        list(read_chunk(storage, URI, replace(chunk, rows=rows)))


def test_a_chunk_that_is_gone_is_an_error(storage: WatchedStorage) -> None:
    """Its rows are counted as done: leaving them out would lose them."""
    chunk = written(storage)
    storage.delete([URI])
    with pytest.raises(LedgerDamagedError, match="missing"):
        list(read_chunk(storage, URI, chunk))


def test_a_store_that_does_not_answer_is_asked_again_later(storage: WatchedStorage) -> None:
    """Unknown is not damaged."""
    chunk = written(storage)
    storage.failures["get"] = 1
    with pytest.raises(StoreUnavailableError):
        list(read_chunk(storage, URI, chunk))
    assert len(list(read_chunk(storage, URI, chunk))) == 3


def test_rows_are_passed_on_as_they_come(storage: WatchedStorage) -> None:
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
    """Handles are closed early, by some versions also when they are collected as garbage."""
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
    """Write batches as a hand would that is not bound to our options."""
    sink = pa.BufferOutputStream()
    given = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batches[0].schema, options=given) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return put(storage, sink.getvalue().to_pybytes(), sum(batch.num_rows for batch in batches))


def put(storage: WatchedStorage, data: bytes, rows: int) -> Chunk:
    """Put bytes to the place of the chunk, and return what a forged record says of them."""
    storage.objects[URI] = data
    return Chunk(rows=rows, size_bytes=len(data), digest=hashlib.sha256(data).hexdigest())


def test_an_offset_that_leads_out_of_its_buffer_is_damage(storage: WatchedStorage) -> None:
    """Arrow would read memory that is not the chunk's, or crash the process."""
    text = pa.RecordBatch.from_pydict({"text": ["x" * 4000]})
    chunk = as_chunk(storage, [text])
    assert read_chunk(storage, URI, chunk) == [text]
    data, pair = storage.objects[URI], b"\0\0\0\0" + (4000).to_bytes(4, "little")
    at = data.rindex(pair)
    forged = data[:at] + pair[:4] + (100_000_000).to_bytes(4, "little") + data[at + 8 :]
    with pytest.raises(LedgerDamagedError, match=URI):
        read_chunk(storage, URI, put(storage, forged, 1))


def test_an_index_that_leads_out_of_its_dictionary_is_damage(storage: WatchedStorage) -> None:
    """Only a full look at the values finds it."""
    bad = pa.DictionaryArray.from_arrays(pa.array([7]), pa.array(["x"]), safe=False)
    with pytest.raises(LedgerDamagedError, match=URI):
        read_chunk(storage, URI, as_chunk(storage, [pa.record_batch({"text": bad})]))


@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int32(), pa.string())])
def test_another_codec_is_refused_before_a_batch_is_unpacked(
    storage: WatchedStorage, kind: pa.DataType
) -> None:
    """Some kilobytes of zstd can be gigabytes; LZ4, in which chunks are written, cannot do that."""
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
    """Whatever it is packed with, in one batch or in many."""
    text = pa.record_batch({"text": ["A" * 1_000_000] * batches})
    parts = [text.slice(at, 1) for at in range(batches)]
    chunk = as_chunk(storage, parts, compression="lz4")
    assert len(read_chunk(storage, URI, chunk)) == batches
    monkeypatch.setattr("holdfast.ledger.row_files.DECODED_BYTES_FREE", 900_000 * batches)
    monkeypatch.setattr("holdfast.ledger.row_files.DECODED_RATIO_MAX", 1)
    with pytest.raises(LedgerDamagedError, match="unpacks into over"):
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
def test_bytes_that_are_no_stream_are_damage(storage: WatchedStorage, data: bytes) -> None:
    """A digest that fits says only who has written last."""
    with pytest.raises(LedgerDamagedError, match=URI):
        read_chunk(storage, URI, put(storage, data, 0))


def test_a_stream_without_a_batch_is_damage(storage: WatchedStorage) -> None:
    """No task writes a chunk of no rows, and a reader takes the schema from the first batch."""
    file = ChunkFile(storage, URI, SCHEMA)
    chunk = file.finish()
    assert chunk.rows == 0
    with pytest.raises(LedgerDamagedError, match="it has no batch"):
        read_chunk(storage, URI, chunk)
