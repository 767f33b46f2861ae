"""Uploads: parts are sent while the caller continues, bounded over all uploads of a process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.store import LocalStore

from holdfast.model.limits import PART_BYTES
from holdfast.storage import upload as upload_module
from holdfast.storage.port import StorageError
from holdfast.storage.runtime import IoRuntime
from holdfast.storage.upload import Upload

LATE_S = 20.0
PIECE = bytes(1024 * 1024)


class SlowWriter:
    """Stands in for obstore's writer: takes parts when allowed, and records how it ended."""

    def __init__(self, gate: threading.Event) -> None:
        """Wait for the gate at each part."""
        self.gate = gate
        self.parts: list[int] = []
        self.ended = ""
        self.fails_at: int | None = None

    def write(self, part: bytes) -> None:
        """Take a part, or fail."""
        assert self.gate.wait(LATE_S)
        if len(self.parts) == self.fails_at:
            raise OSError("no answer")
        self.parts.append(len(part))

    def close(self) -> None:
        """End successfully."""
        self.ended = "closed"

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End as obstore does: abort if there is an error."""
        self.ended = "aborted" if kind else "closed"


class Bench:
    """Uploads on their own runtime, into slow writers."""

    def __init__(self) -> None:
        """Start with the gate closed."""
        self.runtime = IoRuntime()
        self.gate = threading.Event()
        self.writers: list[SlowWriter] = []

    def open(self) -> Upload:
        """Start an upload."""
        return Upload("file:///x", LocalStore("/"), "none/x")

    def opened(self, *_: object, **__: object) -> SlowWriter:
        """Stand in for `obstore.open_writer`."""
        self.writers.append(SlowWriter(self.gate))
        return self.writers[-1]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Let uploads go to slow writers."""
    made = Bench()
    monkeypatch.setattr(obstore, "open_writer", made.opened)
    monkeypatch.setattr(upload_module, "io_runtime", lambda: made.runtime)
    yield made
    made.gate.set()


def fill(upload: Upload, mib: int) -> None:
    """Write this many MiB, as an encoder does."""
    for _ in range(mib):
        upload.write(PIECE)


def test_the_encoder_continues_while_parts_wait_for_the_store(bench: Bench) -> None:
    """No part was taken yet, and four were written."""
    upload = bench.open()
    fill(upload, 35)
    assert upload.tell() == 35 * len(PIECE)
    bench.gate.set()
    upload.close()
    assert bench.writers[0].parts == [PART_BYTES] * 4 + [3 * len(PIECE)]
    assert bench.writers[0].ended == "closed"


def test_all_uploads_of_a_process_share_one_budget(bench: Bench) -> None:
    """Sixteen open files have 64 MiB in flight plus their unfinished parts, not 16 x 32 MiB."""
    uploads = [bench.open() for _ in range(16)]
    ended = threading.Event()

    def encode() -> None:
        for _ in range(40):
            for upload in uploads:
                upload.write(PIECE)
        for upload in uploads:
            upload.close()
        ended.set()

    threading.Thread(target=encode, daemon=True).start()
    assert not ended.wait(0.5)  # The store takes nothing: the encoder is blocked.
    bench.gate.set()
    assert ended.wait(LATE_S)
    limit = 16 * PART_BYTES + PART_BYTES
    assert 64 * 1024 * 1024 <= bench.runtime.uploads.most_bytes <= limit
    assert all(sum(writer.parts) == 40 * len(PIECE) for writer in bench.writers)
    assert bench.runtime.uploads.in_flight_bytes == 0


def test_a_part_that_the_store_refuses_ends_the_upload(bench: Bench) -> None:
    """A later write or the close says so, the upload is aborted, and the budget is free."""
    upload = bench.open()
    fill(upload, 8)
    bench.gate.set()
    while not (bench.writers and bench.writers[0].parts):
        time.sleep(0.01)
    bench.writers[0].fails_at = 1
    fill(upload, 8)
    with pytest.raises(StorageError, match="file:///x: OSError: no answer"):
        upload.close()
    assert bench.writers[0].ended == "aborted"
    assert bench.runtime.uploads.in_flight_bytes == 0
    with pytest.raises(StorageError, match="no answer"):
        upload.write(b"1")
    upload.abandon()


def test_no_part_is_sent_after_one_that_failed(bench: Bench) -> None:
    """It would begin a second upload that nothing ends: its parts would stay on the server."""
    upload = bench.open()
    fill(upload, 24)
    until = time.monotonic() + LATE_S
    while not bench.writers and time.monotonic() < until:
        time.sleep(0.01)
    bench.writers[0].fails_at = 0
    bench.gate.set()
    with pytest.raises(StorageError, match="no answer"):
        upload.close()
    assert [writer.parts for writer in bench.writers] == [[]]


class LostAnswer:
    """Stands in for a store that keeps all or some of the bytes and then does not answer."""

    def __init__(self, path: Path, *, keeps: int | None) -> None:
        """Keep this many bytes; None keeps them all."""
        self._path = path
        self._keeps = keeps
        self._taken = b""

    def put(self, _store: object, _key: str, data: bytes, **_: object) -> None:
        """Stand in for `obstore.put`."""
        self.write(data)
        self.close()

    def open(self, *_: object, **__: object) -> LostAnswer:
        """Stand in for `obstore.open_writer`."""
        return self

    def write(self, part: bytes) -> None:
        """Take a part."""
        self._taken += bytes(part)

    def close(self) -> None:
        """Keep the bytes, and do not answer."""
        self._path.write_bytes(self._taken[: self._keeps])
        raise OSError("no answer")

    def __exit__(self, *_: object) -> None:
        """Abort: too late."""


@pytest.mark.parametrize("mib", [3, 11])
@pytest.mark.parametrize("keeps", [None, 7])
def test_an_upload_without_an_answer_has_landed_if_all_its_bytes_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mib: int, keeps: int | None
) -> None:
    """With one put or many parts; an object of another size is not the one that was sent."""
    store = LostAnswer(tmp_path / "x", keeps=keeps)
    monkeypatch.setattr(obstore, "put", store.put)
    monkeypatch.setattr(obstore, "open_writer", store.open)
    upload = Upload("file:///x", LocalStore("/"), f"{tmp_path}/x".lstrip("/"))
    fill(upload, mib)
    if keeps is None:
        upload.close()
        upload.close()
    else:
        with pytest.raises(StorageError, match="no answer"):
            upload.close()


def test_an_abandoned_upload_is_aborted(bench: Bench) -> None:
    """Parts that have not begun are not sent, and nothing stays in the budget."""
    upload = bench.open()
    fill(upload, 50)
    threading.Timer(0.2, bench.gate.set).start()
    upload.abandon()
    assert bench.writers[0].ended == "aborted"
    assert len(bench.writers[0].parts) == 1
    assert bench.runtime.uploads.in_flight_bytes == 0
    for call in (lambda: upload.write(b"1"), upload.close):
        with pytest.raises(StorageError):
            call()


class Flight(SlowWriter):
    """Stands in for a writer whose parts are in flight for a while after they were taken."""

    def __init__(self) -> None:
        """Take every part at once."""
        super().__init__(threading.Event())
        self.gate.set()
        self.under_way: list[bytes] = []
        self.was_under_way = -1

    def write(self, part: bytes) -> None:
        """Take a part, which arrives later."""
        super().write(part)
        self.under_way.append(part)
        threading.Timer(0.3, self.under_way.clear).start()

    def __exit__(self, kind: type[BaseException] | None, *of: object) -> None:
        """Record how many had not arrived."""
        self.was_under_way = len(self.under_way)
        super().__exit__(kind, *of)


def test_parts_in_flight_arrive_before_the_abort(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that reaches an S3 server after the abort can bring the upload back."""
    writer = Flight()
    monkeypatch.setattr(obstore, "open_writer", lambda *_all, **_named: writer)
    upload = bench.open()
    fill(upload, 17)
    until = time.monotonic() + LATE_S
    while not writer.under_way and time.monotonic() < until:
        time.sleep(0.001)
    upload.abandon()
    assert (writer.ended, writer.was_under_way) == ("aborted", 0)


def test_kept_bytes_are_released_at_the_end(bench: Bench) -> None:
    """Whether an upload succeeds or not, the next ones have the whole budget."""
    bench.gate.set()
    for is_abandoned in (True, False):
        for mib in (3, 11):
            upload = bench.open()
            fill(upload, mib)
            if is_abandoned or mib == 3:
                upload.abandon()
            else:
                upload.close()
    fill(bench.open(), 3)  # Dropped silently, as when a task is killed half way.
    bench.runtime.uploads.take(1)
    bench.runtime.uploads.take(64 * 1024 * 1024 - 1)  # Would wait if anything were kept.


def test_inline_waits_for_each_part(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The empty write after each part returns when obstore has no other in flight."""
    bench.runtime.is_inline = True
    seen: list[dict[str, object]] = []

    def opened(*_: object, **options: object) -> SlowWriter:
        seen.append(options)
        return bench.opened()

    monkeypatch.setattr(obstore, "open_writer", opened)
    bench.gate.set()
    upload = bench.open()
    fill(upload, 16)
    assert bench.writers[0].parts == [PART_BYTES, 0, PART_BYTES, 0]
    assert seen[0]["max_concurrency"] == 1


def test_an_object_of_many_parts_is_whole(tmp_path: Path) -> None:
    """Through obstore itself: every byte is there, in its place."""
    data = bytes(range(256)) * 130_000
    upload = Upload("file:///y", LocalStore("/"), f"{tmp_path}/y".lstrip("/"))
    for start in range(0, len(data), 1_000_003):
        upload.write(memoryview(data)[start : start + 1_000_003])
    upload.close()
    upload.close()
    assert (tmp_path / "y").read_bytes() == data


def test_an_abandoned_object_of_many_parts_leaves_nothing(tmp_path: Path) -> None:
    """Not even the file that the parts were written to."""
    upload = Upload("file:///y", LocalStore("/"), f"{tmp_path}/y".lstrip("/"))
    fill(upload, 20)
    upload.abandon()
    assert list(tmp_path.iterdir()) == []
