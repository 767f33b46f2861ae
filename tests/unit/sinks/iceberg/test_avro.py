"""Avro files: what is read of one, and that a damaged one is refused, quickly and by name."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestFile, read_manifest_list
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType

from holdfast.engine.cleanup import abort, sweep
from holdfast.errors import LedgerDamagedError, UnsupportedTableError
from holdfast.sinks.iceberg.avro import (
    DamagedFileError,
    avro_block,
    avro_file,
    blocks,
    decoding,
    read_header,
)
from holdfast.sinks.iceberg.file_io import file_bytes
from holdfast.sinks.iceberg.manifests import manifest_entries, manifests_of
from holdfast.sinks.iceberg.rewrite import Manifest
from tests.fakes.cli_lake import CliLake, lake
from tests.fakes.iceberg_tables import local_path, new_table
from tests.fakes.memory_submitter import MemorySubmitter

RECORD: dict[str, Any] = {"type": "record", "name": "r", "fields": []}
# A file without blocks; its last bytes are the marker that each block ends with.
EMPTY = avro_file(RECORD, {}, [], "null")
SYNC = EMPTY[-16:]
# Far more than the quickest of these reads, far less than for ever.
LATE_S = 20


SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))

__all__ = ["lake"]


def number(value: int) -> bytes:
    """Encode a number as Avro does, also one that no writer would write."""
    value, found = value << 1 if value >= 0 else (-value << 1) - 1, bytearray()
    while value >> 7:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _endless(data: bytes) -> bytes:
    """Return a manifest without entries that a block of -18 bytes follows: it leads back to it."""
    return avro_file(read_header(data).schema, {}, [], "null") + number(0) + number(-18)


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    """Fail if what is inside does not end."""

    def late(*_: object) -> None:
        pytest.fail(f"still reading after {LATE_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LATE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "data",
    [
        b"Obj\x01\x02\x00\x05",  # A value of -3 bytes: it ends before it begins.
        b"Obj\x01\x02\x05",  # A name of -3 bytes.
        b"Obj\x01" + number(1 << 62),  # More entries than there are bytes.
        b"Obj\x01" + number(-(1 << 62)) + number(8),
        b"Obj\x01\x02" + number(1 << 62),  # A name that is longer than the file.
        b"Obj\x01" + b"\xff" * 100,  # A number without end.
        b"Obj\x01" + b"\x80",
        b"Obj\x01",
        EMPTY[:-1],  # Half a marker.
    ],
    ids=range(9),
)
def test_a_header_with_damaged_lengths_is_refused(data: bytes) -> None:
    """No stored length leads back, or beyond the end of the file."""
    with in_time(), pytest.raises(ValueError, match=r"cut short|too long"):
        read_header(data)


@pytest.mark.parametrize(
    "block",
    [
        number(0) + number(-18),  # Leads back to its own beginning.
        number(1) + number(-1) + SYNC,
        number(1) + number(100) + b"a" + SYNC,
        number(1) + number(1) + b"a" + SYNC[:-1],
        number(1) + number(1) + b"a" + SYNC[::-1],
        number(1) + number(1 << 62) + b"a" + SYNC,
        number(-1) + number(1) + b"a" + SYNC,
        number(2) + number(1) + b"a" + SYNC,  # More rows than bytes.
        number(1 << 62) + number(1) + b"a" + SYNC,
        b"\xff" * 100,
    ],
    ids=range(10),  # Not the bytes: the marker is drawn at random.
)
def test_a_block_with_damaged_lengths_is_refused(block: bytes) -> None:
    """Blocks are read up to the damaged one, and none twice."""
    whole = avro_block(1, b"a", "null", SYNC)
    found = blocks(EMPTY + whole + block)
    with in_time():
        assert next(found) == (1, b"a")
        with pytest.raises(ValueError, match=r"cut short|too long|does not end|cannot have"):
            next(found)


def test_what_a_decoder_raises_names_the_file() -> None:
    """Decoders raise errors of any kind for damaged bytes; storage has its own."""
    for error in (IndexError("i"), UnicodeDecodeError("utf-8", b"a", 0, 1, "u"), MemoryError()):
        with pytest.raises(DamagedFileError, match=r"m0\.avro cannot be read"), decoding("m0.avro"):
            raise error
    for other in (OSError("o"), LedgerDamagedError(uri="u", reason="r")):
        with pytest.raises(type(other)), decoding("m0.avro"):
            raise other


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return a file with a few bytes changed, removed or inserted."""
    found = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        how, at = rng.random(), rng.randrange(len(found))
        if how < 0.4:
            found[at] = rng.randrange(256)
        elif how < 0.6:
            found[at : at + rng.randrange(1, 10)] = b"\xff" * rng.randrange(1, 10) + b"\1"
        elif how < 0.8 and len(found) > 100:
            del found[at : at + rng.randrange(1, 50)]
        else:
            found[at:at] = rng.randbytes(rng.randrange(1, 20))
    return bytes(found)


def read_all(table: Table, listed: ManifestFile, manifest_list: str) -> None:
    """Read a manifest and a list in every way that the sink does."""
    with decoding(manifest_list):
        list(read_manifest_list(table.io.new_input(manifest_list)))
    data = file_bytes(table.io, listed.manifest_path)
    with decoding(listed.manifest_path):
        list(blocks(data))
        Manifest(listed, data)
    manifest_entries(listed, table.io)


def test_damaged_manifests_are_read_or_refused_in_time(tmp_path: Path) -> None:
    """Whatever is in a manifest or in a list of them, reading ends; mostly by refusing it.

    Method: change a few bytes at random, and read in every way that the sink does.
    """
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng, refused = random.Random(seed), 0
    sink, _ = new_table(tmp_path, SCHEMA)
    table = sink.load().handle
    table.append(pa.table({"id": range(5), "name": ["a"] * 5}))
    snapshot = table.current_snapshot()
    (listed,) = manifests_of(snapshot, table.io)
    for path in (listed.manifest_path, snapshot.manifest_list):
        file, data = local_path(path), file_bytes(table.io, path)
        for _ in range(100):
            file.write_bytes(mutated(data, rng))
            try:
                with in_time():
                    read_all(table, listed, snapshot.manifest_list)
            except DamagedFileError:
                refused += 1
        file.write_bytes(data)
    assert refused > 50


@pytest.mark.parametrize(
    "spoil", [lambda _: b"Obj\x01\x02\x00\x05", _endless], ids=["seven", "endless"]
)
def test_a_sweep_ends_though_a_manifest_of_the_table_is_damaged(
    lake: CliLake, spoil: Callable[[bytes], bytes]
) -> None:
    """It says which file cannot be read, and deletes nothing."""
    sink = lake.make_table()
    table = sink.load().handle
    table.append(pa.table({"id": [-1]}))
    lake.start_and_die("r", MemorySubmitter(range(20), range(20, 40)), sink=sink)
    abort(lake.ledger("r"), lambda _identity: sink, "why not")
    (listed,) = manifests_of(sink.load().handle.current_snapshot(), table.io)
    file = local_path(listed.manifest_path)
    file.write_bytes(spoil(file.read_bytes()))
    before = sorted(lake.folder.rglob("*"))
    with in_time(), pytest.raises(UnsupportedTableError) as caught:
        sweep(lake.ledger("r"), lambda _identity: sink)
    assert f"{listed.manifest_path} cannot be read" in str(caught.value)
    assert not caught.value.retry_safe
    assert sorted(lake.folder.rglob("*")) == before
