"""Hits: the numbers of found keys come back as they were kept, and are counted once each."""

from __future__ import annotations

import json

import numpy as np
import pytest

from holdfast.errors import LedgerDamagedError
from holdfast.ledger import key_hits
from holdfast.ledger.key_hits import count_hits, read_hits, write_hits
from holdfast.ledger.layout import RunLayout
from tests.fakes.memory_storage import MemoryStorage

LAYOUT = RunLayout.of("s3://store", "r")
KEYS = 3_000_000


@pytest.mark.parametrize("inline_bytes", [0, 1 << 30])
@pytest.mark.parametrize(
    "numbers",
    [[0], [KEYS - 1], [5, 5, 3], [0, 300, 70_000, 2_999_999], list(range(KEYS // 2, KEYS, 7))],
)
def test_numbers_come_back(
    numbers: list[int], inline_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, each once; from the text or from an object."""
    monkeypatch.setattr(key_hits, "_INLINE_BYTES", inline_bytes)
    storage = MemoryStorage()
    text = write_hits(storage, LAYOUT, np.array(numbers), KEYS)
    assert len(storage.objects) == (inline_bytes == 0)
    assert read_hits(storage, LAYOUT, text, KEYS).tolist() == sorted(set(numbers))
    assert count_hits(storage, LAYOUT, [text, "", text], KEYS)[0] == len(set(numbers))


def test_nothing_is_kept_of_no_hits() -> None:
    """Most files have none."""
    storage = MemoryStorage()
    assert write_hits(storage, LAYOUT, np.array([], np.int64), KEYS) == ""
    assert count_hits(storage, LAYOUT, [], 0) == (0, 0)


def test_hits_of_several_files_are_united(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they share, and at every bit."""
    monkeypatch.setattr(key_hits, "_PORTION_BYTES", 10)
    storage, rng = MemoryStorage(), np.random.default_rng(5)
    files = [rng.integers(0, 1001, size) for size in (1, 50, 400, 900)]
    texts = [write_hits(storage, LAYOUT, numbers, 1001) for numbers in files]
    wanted = set(np.concatenate(files).tolist())
    assert count_hits(storage, LAYOUT, texts, 1001)[0] == len(wanted)


@pytest.mark.parametrize(
    "changes",
    [
        {"width": 3},
        {"width": 8},
        {"keys": 4},
        {"keys": 2},
        {"keys": 10**12},
        {"data": "AAAA"},
        {"data": "ä"},
        {"name": "../../x", "digest": ""},
        {"name": "hits-x.zst", "digest": "0"},
    ],
)
def test_damaged_hits_are_an_error(changes: dict[str, object]) -> None:
    """Figures that may be wrong are not shown."""
    storage = MemoryStorage()
    text = write_hits(storage, LAYOUT, np.array([1, 5, 9]), 10)
    with pytest.raises(LedgerDamagedError):
        read_hits(storage, LAYOUT, json.dumps(json.loads(text) | changes), 10)


@pytest.mark.parametrize("text", ["x", "[]", '{"keys":1}', '{"keys":-1,"width":1}'])
def test_what_are_no_hits_is_an_error(text: str) -> None:
    """A record of the ledger may be anything."""
    with pytest.raises(LedgerDamagedError):
        read_hits(MemoryStorage(), LAYOUT, text, 10)


def test_numbers_beyond_the_keys_are_an_error() -> None:
    """They are hits of another index."""
    storage = MemoryStorage()
    text = write_hits(storage, LAYOUT, np.array([1, 5, 9]), 10)
    with pytest.raises(LedgerDamagedError):
        read_hits(storage, LAYOUT, text, 9)
