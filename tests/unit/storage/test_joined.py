"""An object of parts of others: their bytes in order, or no object."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.storage import joined
from holdfast.storage.joined import join
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import Storage, StorageError
from tests.fakes.memory_storage import MemoryStorage

DATA = os.urandom(3_000_000)


def _without_copying(*_arguments: Any) -> int:  # noqa: ANN401 - of `copy_file_range`.
    raise OSError(errno.EOPNOTSUPP, "not here")


def _some_bytes(source: int, target: int, size: int, start: int, offset: int) -> int:
    return os.pwrite(target, os.pread(source, min(size, 70_001), start), offset)


@pytest.fixture(params=["files", "no copying", "in small steps", "streamed", "memory"])
def storage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """Return each way of doing it in turn."""
    monkeypatch.setattr(joined, "_COPIED_BYTES", 1_000_000)
    ways: dict[str, Callable[..., int]] = {
        "no copying": _without_copying,
        "in small steps": _some_bytes,
    }
    if request.param in ways:
        monkeypatch.setattr(os, "copy_file_range", ways[request.param], raising=False)
    if request.param == "streamed":
        monkeypatch.setattr(joined, "_are_plain_files", lambda _uri, _sources: False)
        monkeypatch.setattr(joined, "PART_BYTES", 500_000)
    return MemoryStorage(lambda: 0.0) if request.param == "memory" else ObjectStorage()


def test_pieces_are_in_order(storage: Storage, tmp_path: Path) -> None:
    """Ranges of objects and bytes, of any size."""
    folder = f"file://{tmp_path}"
    storage.put(f"{folder}/a", DATA)
    storage.put(f"{folder}/b", b"other")
    pieces: list[joined.Piece] = [
        (f"{folder}/a", 0, 2_500_001),
        bytes(63),
        (f"{folder}/b", 1, 3),
        (f"{folder}/b", 2, 2),
        (f"{folder}/a", 17, 3_000_000),
        b"end",
    ]
    wanted = DATA[:2_500_001] + bytes(63) + b"th" + DATA[17:] + b"end"
    assert join(storage, f"{folder}/new", pieces) == len(wanted)
    assert storage.get(f"{folder}/new") == wanted


def test_an_object_that_is_too_short_makes_none(storage: Storage, tmp_path: Path) -> None:
    """The bytes after it would be those of something else."""
    folder = f"file://{tmp_path}"
    storage.put(f"{folder}/a", b"12345")
    with pytest.raises(StorageError):
        join(storage, f"{folder}/new", [b"x", (f"{folder}/a", 0, 6), b"y"])
    assert storage.sizes([f"{folder}/new"]) == [None]


def test_an_object_that_is_missing_makes_none(storage: Storage, tmp_path: Path) -> None:
    """Python's own error says so."""
    folder = f"file://{tmp_path}"
    with pytest.raises(FileNotFoundError):
        join(storage, f"{folder}/new", [(f"{folder}/none", 0, 6)])
    assert storage.sizes([f"{folder}/new"]) == [None]


def test_a_local_file_of_any_name_is_found(tmp_path: Path) -> None:
    """Libraries escape some characters in names of files, but not the same ones."""
    storage, folder = ObjectStorage(), f"file://{tmp_path}/a b#c%3A"
    storage.put(f"{folder}/a?*", DATA)
    assert join(storage, f"{folder}/b#", [(f"{folder}/a?*", 5, 2_000_000), b"x"]) == 1_999_996
    assert storage.get(f"{folder}/b#") == DATA[5:2_000_000] + b"x"


def test_a_local_file_is_not_overwritten(tmp_path: Path) -> None:
    """Names are new; if one is not, something is wrong."""
    (tmp_path / "a").write_bytes(b"mine")
    with pytest.raises(StorageError, match="there is such a file"):
        join(ObjectStorage(), f"file://{tmp_path}/a", [b"x"])
    assert (tmp_path / "a").read_bytes() == b"mine"


def test_a_full_disk_is_an_error_of_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written so far is removed."""

    def full(*_arguments: Any) -> int:  # noqa: ANN401 - of `copy_file_range`.
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full, raising=False)
    (tmp_path / "a").write_bytes(b"12345")
    with pytest.raises(StorageError, match="No space left"):
        join(ObjectStorage(), f"file://{tmp_path}/new", [b"x", (f"file://{tmp_path}/a", 0, 5)])
    assert not (tmp_path / "new").exists()
