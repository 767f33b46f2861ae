"""Hits: which keys of an index were found in one file of the table, and how many in all.

A key may be in several files, and one search of a file may not count in the end. So each search
keeps the numbers of the keys that it has found; the driver unites those of the files that go, in a
bit for each key.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.ledger.layout import RunLayout
from holdfast.ledger.row_files import damage_at
from holdfast.ledger.store import answers, read_whole
from holdfast.model.stored import Count, RecordDamagedError, Segment, parse_typed
from holdfast.storage.port import Storage

# Hits that take more bytes are an object of their own: the driver holds the texts of all files.
_INLINE_BYTES = 4096

# How many bytes of bits are counted at a time.
_PORTION_BYTES = 1 << 20

_Numbers = npt.NDArray[np.int64]
_Bits = npt.NDArray[np.uint8]


class _HitsJson(msgspec.Struct):
    """Numbers as a text: here, or in an object."""

    keys: Count
    # How many bytes a difference of two numbers has.
    width: Count
    data: str = ""
    name: Segment | None = None
    digest: str = ""


def write_hits(storage: Storage, layout: RunLayout, numbers: _Numbers, keys: int) -> str:
    """Return the numbers of found keys as text; many are written to an object of the ledger.

    Args:
        storage: How the ledger is reached.
        layout: Where its objects are.
        numbers: The numbers; one may be there several times.
        keys: How many keys there are.

    Raises:
        StoreUnavailableError: The store did not take them.
    """
    found = np.unique(numbers)
    if not len(found):
        return ""
    assert 0 <= found[0] <= found[-1] < keys  # noqa: S101 - places in the index.
    steps = np.diff(found, prepend=0)
    width = next(width for width in (1, 2, 4, 8) if int(steps.max()) < 1 << (8 * width))
    data = pa.compress(steps.astype(f"<u{width}").tobytes(), codec="zstd", asbytes=True)
    if len(data) <= _INLINE_BYTES:
        text = base64.b64encode(data).decode()
        return _text(_HitsJson(keys=len(found), width=width, data=text))
    digest = hashlib.sha256(data).hexdigest()
    name = f"hits-{digest[:32]}.zst"  # Another search of the same file writes the same.
    with answers(layout.part(name)):
        storage.put(layout.part(name), data)
    return _text(_HitsJson(keys=len(found), width=width, name=name, digest=digest))


def _text(hits: _HitsJson) -> str:
    return msgspec.json.encode(hits).decode()


def read_hits(storage: Storage, layout: RunLayout, text: str, keys: int) -> _Numbers:
    """Return the numbers that `write_hits` kept, in order, each once.

    Args:
        storage: How the ledger is reached.
        layout: Where its objects are.
        text: What `write_hits` returned.
        keys: How many keys there are.

    Raises:
        LedgerDamagedError: They are not there as they were written.
        StoreUnavailableError: The store did not answer.
    """
    if not text:
        return np.zeros(0, dtype=np.int64)
    with damage_at(layout.parts):
        hits = _parsed(text, keys)
        if hits.name is None:
            return _decoded(_from_base64(hits.data), hits, keys)
    uri = layout.part(hits.name)
    data = read_whole(storage, uri, hits.digest)
    with damage_at(uri):
        return _decoded(data, hits, keys)


def _parsed(text: str, keys: int) -> _HitsJson:
    hits = parse_typed(text, _HitsJson)
    if hits.width not in {1, 2, 4, 8} or not 0 < hits.keys <= keys:
        raise RecordDamagedError("these are not the numbers of keys")
    return hits


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise RecordDamagedError(str(error)) from error


def _decoded(data: bytes, hits: _HitsJson, keys: int) -> _Numbers:
    size = hits.keys * hits.width
    plain = pa.decompress(data, size, codec="zstd", asbytes=True)
    if len(plain) != size:
        raise RecordDamagedError("these are not the numbers of keys")
    steps = np.frombuffer(plain, f"<u{hits.width}")
    if int(steps.max()) >= keys or (len(steps) > 1 and not steps[1:].all()):
        raise RecordDamagedError("these are not the numbers of keys")
    found: _Numbers = np.cumsum(steps, dtype=np.int64)
    if found[-1] >= keys:
        raise RecordDamagedError("these are not the numbers of keys")
    return found


def count_hits(
    storage: Storage,
    layout: RunLayout,
    texts: Iterable[str],
    keys: int,
    among: Iterable[str] = (),
) -> tuple[int, int]:
    """Return how many different keys were found, given the hits of several files.

    A bit or two for each key are held, and the hits of one file at a time.

    Args:
        storage: How the ledger is reached.
        layout: Where its objects are.
        texts: What `write_hits` returned for each of the files.
        keys: How many keys there are.
        among: The same for some of the keys.

    Returns:
        How many keys were found, and how many of `among` are among these.

    Raises:
        LedgerDamagedError: Hits are not there as they were written.
        StoreUnavailableError: The store did not answer.
    """
    found = _bits(storage, layout, texts, keys)
    some = _bits(storage, layout, among, keys)
    return _count(found), _count(np.bitwise_and(found, some, out=some))


def _bits(storage: Storage, layout: RunLayout, texts: Iterable[str], keys: int) -> _Bits:
    bits: _Bits = np.zeros(-(-keys // 8), dtype=np.uint8)
    for text in texts:
        numbers = read_hits(storage, layout, text, keys)
        if not len(numbers):
            continue
        places = numbers >> 3
        firsts = np.flatnonzero(np.diff(places, prepend=-1))
        masks = np.left_shift(1, numbers & 7).astype(np.uint8)
        bits[places[firsts]] |= np.bitwise_or.reduceat(masks, firsts)
    return bits


def _count(bits: _Bits) -> int:
    portions = (bits[at : at + _PORTION_BYTES] for at in range(0, len(bits), _PORTION_BYTES))
    return sum(int(np.unpackbits(portion).sum()) for portion in portions)
