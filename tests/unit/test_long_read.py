"""A long read: in pieces, several at once, and bounded."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import InputChangedError
from holdfast.storage import long_read as module
from holdfast.storage.long_read import long_read
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import ObjectChangedError, StorageError
from holdfast.storage.runtime import io_runtime
from tests.fakes.parquet_scans import on_disk, whole_file, write_parquet
from tests.fakes.row_functions import until

CONTENT = os.urandom(10_000)


class Store:
    """Answers when it is told to."""

    def __init__(self) -> None:
        """Hold all answers back."""
        self.answers = threading.Event()
        self.asked: list[tuple[int, int]] = []
        self.fails_at: int | None = None

    def fetch(self, start: int, stop: int) -> bytes:
        """Return some of the content."""
        self.asked.append((start, stop))
        assert self.answers.wait(10)
        if self.fails_at is not None and start <= self.fails_at < stop:
            raise StorageError("503")
        return CONTENT[start:stop]


@pytest.fixture(autouse=True)
def small_requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a request bring 100 bytes, and 800 be on their way."""
    monkeypatch.setattr(module, "REQUEST_BYTES", 100)
    with io_runtime().bounded(800):
        yield


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (7, 107), (7, 108), (3, 9_999)])
def test_the_bytes_are_those_of_the_object(start: int, stop: int) -> None:
    """However they are cut."""
    store = Store()
    store.answers.set()
    assert bytes(long_read(store.fetch, start, stop)()) == CONTENT[start:stop]
    assert sum(end - at for at, end in store.asked) == stop - start


def test_pieces_are_asked_for_at_once_and_nobody_waits_until_they_are_needed() -> None:
    """Two long reads: the current one and the next; each has half of what may be on its way."""
    store = Store()
    reads = [long_read(store.fetch, 0, 10_000) for _ in range(2)]
    until(lambda: len(store.asked) == 8)
    assert io_runtime().reads.in_flight_bytes == 800
    store.answers.set()
    assert all(bytes(read()) == CONTENT for read in reads)
    assert len(store.asked) == 200


def test_a_small_budget_still_reads() -> None:
    """One piece after the other."""
    store = Store()
    with io_runtime().bounded(100):
        read = long_read(store.fetch, 0, 10_000)
        until(lambda: len(store.asked) == 1)
        assert io_runtime().reads.in_flight_bytes == 100
        store.answers.set()
        assert bytes(read()) == CONTENT


def test_a_piece_that_fails_fails_the_read() -> None:
    """Else there would be zeros in its place."""
    store = Store()
    store.fails_at = 5_050
    store.answers.set()
    with pytest.raises(StorageError, match="503"):
        long_read(store.fetch, 0, 10_000)()


def test_a_row_group_is_read_over_all_edges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a Parquet file; or it fails as a whole."""
    rows = {"id": list(range(3_000)), "text": [os.urandom(3).hex() for _ in range(3_000)]}
    write_parquet(tmp_path / "a.parquet", rows)
    scan = on_disk(tmp_path)
    pins = scan.pin()
    get_range = ObjectStorage.get_range
    asked: list[int] = []

    def watched(self: ObjectStorage, uri: str, start: int, stop: int, **how: Any) -> Any:  # noqa: ANN401
        asked.append(stop - start)
        if changes and 2_000 < start < 3_500:
            raise ObjectChangedError(f"{uri}: written anew")
        return get_range(self, uri, start, stop, **how)

    monkeypatch.setattr(ObjectStorage, "get_range", watched)
    changes = False
    batches = scan.reader(pins).read([whole_file(pins.files[0])], [])
    assert pa.Table.from_batches(list(batches)).select(["id", "text"]).to_pydict() == rows
    assert len(asked) > 100
    assert max(asked[1:]) <= 100  # The first is the footer.
    changes = True
    with pytest.raises(InputChangedError, match="written anew"):
        list(scan.reader(pins).read([whole_file(pins.files[0])], []))
