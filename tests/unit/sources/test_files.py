"""A scan of files of any kind: one row per file."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import InputChangedError, SettingsError
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.parts import read_pins, write_pins
from holdfast.model.coverage import FileSlice, PinnedFile
from holdfast.sources import files as reading
from holdfast.sources.files import FilesReader, PinnedFilesScan, scan_files
from holdfast.storage import runtime
from holdfast.storage.port import ObjectFacts
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.parquet_scans import STORAGE, read, read_slices


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with four files."""
    for name, content in {"a.pdf": b"A" * 10, "b.pdf": b"", "sub/c.png": b"CC", "d": b"D"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def scan_of(path: Path | str) -> PinnedFilesScan:
    """Return a scan of local files."""
    return scan_files(str(path)).on(STORAGE)


def test_each_file_is_a_row(folder: Path) -> None:
    """This includes empty files; a row's number is the file's place among all files."""
    scan = scan_of(folder)
    pins = scan.pin()
    found = read(scan, pins)
    assert [(row["path"].rsplit("/", 1)[-1], row["bytes"]) for row in found.rows] == [
        ("a.pdf", b"A" * 10),
        ("b.pdf", b""),
        ("d", b"D"),
        ("c.png", b"CC"),
    ]
    assert [row["size"] for row in found.rows] == [10, 0, 1, 2]
    assert found.tags == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert found.schema == scan.schema(pins)
    assert found.schema.field("bytes").type == pa.large_binary()
    assert len(read(scan_of(folder / "*.pdf")).rows) == 2


def test_the_time_is_the_one_that_was_pinned(folder: Path) -> None:
    """The ledger stores it to the microsecond."""
    stamp = dt.datetime(2026, 11, 15, 12, 0, 0, 123456, tzinfo=dt.timezone.utc)
    nanoseconds = int(stamp.timestamp()) * 10**9 + 123_456_000
    os.utime(folder / "a.pdf", ns=(nanoseconds, nanoseconds))
    storage, layout = MemoryStorage(), RunLayout.of("s3://b", "r")
    scan = scan_of(folder)
    pins = read_pins(storage, layout, write_pins(storage, layout, "p", scan.pin()))
    assert read(scan, pins).rows[0]["modified"] == stamp


def test_a_changed_or_deleted_file_is_an_error_that_names_it(folder: Path) -> None:
    """This holds at the next start and on the worker."""
    scan = scan_of(folder)
    pins = scan.pin()
    (folder / "a.pdf").write_bytes(b"B" * 10)
    with pytest.raises(InputChangedError, match=r"a\.pdf was rewritten"):
        scan.compare(pins)
    with pytest.raises(InputChangedError, match=r"a\.pdf was rewritten"):
        read(scan, pins)
    (folder / "a.pdf").unlink()
    with pytest.raises(InputChangedError, match=r"a\.pdf is gone"):
        scan.compare(pins)
    with pytest.raises(InputChangedError, match=r"a\.pdf is gone"):
        read(scan, pins)


def test_new_files_are_refused_or_left(folder: Path) -> None:
    """`new_files` decides which."""
    pins = scan_of(folder).pin()
    (folder / "e").touch()
    assert "1 files were added" in scan_of(folder).compare(pins)
    assert scan_files(str(folder), new_files="leave").on(STORAGE).compare(pins) == ""


def test_batches_are_bounded_in_rows_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first limit reached counts; a large object is fetched in parts and arrives whole."""
    monkeypatch.setattr(reading, "_BATCH_BYTES", 100)
    monkeypatch.setattr(reading, "_PART_BYTES", 7)
    monkeypatch.setattr(runtime, "AHEAD_BYTES", 50)
    sizes = [1] * 70 + [60, 60, 500, 0, 3]
    for number, size in enumerate(sizes):
        (tmp_path / f"{number:03d}").write_bytes(bytes(range(256))[:size] * (1 + size // 300))
    scan = scan_of(tmp_path)
    pins = scan.pin()
    slices = [part for item in pins.items(pins.whole, 1, 1 << 40) for part in item]
    batches = list(scan.reader(pins).read(slices, []))
    assert [batch.num_rows for batch in batches] == [64, 8, 1, 2]
    found = read_slices(scan, pins, slices)
    assert [len(row["bytes"]) for row in found.rows] == [file.size_bytes for file in pins.files]
    assert found.rows[72]["bytes"] == (tmp_path / "072").read_bytes()


def test_what_is_fetched_ahead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects beyond the budget wait until earlier ones are handed on."""
    monkeypatch.setattr(runtime, "AHEAD_BYTES", 25)
    monkeypatch.setattr(reading, "_BATCH_ROWS", 1)
    asked: list[str] = []

    class Watched(FilesReader):
        def _ask(self, file: PinnedFile) -> Any:  # noqa: ANN401 - futures.
            asked.append(file.uri[-1])
            return super()._ask(file)

    storage = MemoryStorage()
    sizes = {"a": 10, "b": 10, "c": 10, "d": 90, "e": 10}
    for name, size in sizes.items():
        storage.put(f"s3://b/{name}", b"x" * size)
    scan = scan_files("s3://b").on(storage)
    pins = scan.pin()
    slices = [
        FileSlice(file=file, base=number, start=0, stop=1) for number, file in enumerate(pins.files)
    ]
    batches = Watched(storage=storage, schema=pins.schema).read(slices, [])
    begun = [(batch.column("path")[0].as_py()[-1], "".join(asked)) for batch in batches]
    assert begun == [("a", "abc"), ("b", "abc"), ("c", "abc"), ("d", "abcde"), ("e", "abcde")]


def test_an_object_too_large_for_a_row_is_refused_with_advice() -> None:
    """It is refused before anything is paid for."""

    class Large(MemoryStorage):
        def facts(self, prefix_uri: str) -> list[ObjectFacts]:
            return [ObjectFacts(uri=f"{prefix_uri}/x", size_bytes=2 << 30, tag="t", modified=0.0)]

    with pytest.raises(SettingsError, match=r"(?s)s3://b/x has 2,147,483,648 bytes.*in parts"):
        scan_files("s3://b").on(Large()).pin()
