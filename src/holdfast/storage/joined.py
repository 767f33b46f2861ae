"""An object made of parts of others: ranges of their bytes, one after the other.

Between local files the system copies, so that no byte passes through this process. From any other
store the ranges are read ahead while those before them are sent.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import accumulate
from pathlib import Path

from holdfast.model.lasting import lasts
from holdfast.model.limits import PART_BYTES
from holdfast.storage import locations
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import Storage, StorageError
from holdfast.storage.runtime import io_runtime, read_ahead

# Bytes, or a range of another object.
Piece = bytes | tuple[str, int, int]

# How many bytes of a local file are copied in one go; several at once.
_COPIED_BYTES = 64 << 20
# What a file system says that does not copy by itself.
_CANNOT_COPY = {errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM}


def join(storage: Storage, uri: str, pieces: Sequence[Piece]) -> int:
    """Write a new object, and return its size.

    Args:
        storage: Reaches all of the objects.
        uri: The new object. Its name must not have been used before.
        pieces: What it is made of, in order.

    Raises:
        FileNotFoundError: An object is missing.
        StorageError: The object could not be written.
    """
    sources = [piece[0] for piece in pieces if not isinstance(piece, bytes)]
    if isinstance(storage, ObjectStorage) and _are_plain_files(uri, sources):
        _join_files(_path_of(uri), pieces)
    else:
        _stream(storage, uri, pieces)
    return sum(map(size_of, pieces))


def size_of(piece: Piece) -> int:
    """Return how many bytes a piece has."""
    return len(piece) if isinstance(piece, bytes) else piece[2] - piece[1]


def _parts_of(piece: Piece, size_bytes: int) -> Iterator[Piece]:
    """Yield a piece in parts of at most some size."""
    if isinstance(piece, bytes):
        yield piece
        return
    uri, first, last = piece
    for start in range(first, last, size_bytes):
        yield uri, start, min(last, start + size_bytes)


# ---- Any store: the bytes pass through this process
def _stream(storage: Storage, uri: str, pieces: Sequence[Piece]) -> None:
    def ask(piece: Piece) -> Future[bytes | memoryview]:
        if isinstance(piece, bytes):
            return io_runtime().read(lambda: piece, len(piece))
        source, start, stop = piece
        return io_runtime().read(lambda: storage.get_range(source, start, stop), stop - start)

    parts = [part for piece in pieces for part in _parts_of(piece, PART_BYTES)]
    sink = storage.open_sink(uri)
    try:
        for _, answer in read_ahead(parts, size_of=size_of, ask=ask, at_least=1):
            sink.write(answer.result())
        sink.close()
    except BaseException:
        sink.abandon()
        raise


# ---- Local files: the system copies from one to the other
def _are_plain_files(uri: str, sources: Sequence[str]) -> bool:
    """Whether all are local files whose names mean the same to every library."""
    is_local = all(locations.split(found)[0] == "file://" for found in (uri, *sources))
    return is_local and "%" not in uri and all(_path_of(found).is_file() for found in sources)


def _path_of(uri: str) -> Path:
    return Path(f"/{locations.split(uri)[1]}")


def _join_files(path: Path, pieces: Sequence[Piece]) -> None:
    """Write a local file.

    Raises:
        FileNotFoundError: A file is missing.
        StorageError: A file ends too early, or cannot be read or written.
    """
    starts = accumulate(map(size_of, pieces), initial=0)
    parts = [at for piece, start in zip(pieces, starts, strict=False) for at in _at(piece, start)]
    try:
        with path.open("xb") as target:
            io_runtime().each(lambda at: _write(target.fileno(), *at), parts)
    except FileExistsError:
        raise StorageError(f"{path}: there is such a file", lasts=True) from None
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            raise StorageError(f"{path}: {error.strerror}", lasts=lasts(error)) from error
        raise


def _at(piece: Piece, offset: int) -> Iterator[tuple[Piece, int]]:
    """Yield the parts of a piece, each with its place in the target."""
    for part in _parts_of(piece, _COPIED_BYTES):
        yield part, offset
        offset += size_of(part)


def _write(target: int, piece: Piece, offset: int) -> None:
    """Write one part of a local file.

    Raises:
        StorageError: The file that holds it ends too early.
    """
    if isinstance(piece, bytes):
        os.pwrite(target, piece, offset)
        return
    uri, start, stop = piece
    with _path_of(uri).open("rb") as source:
        while start < stop:
            done = _copied(source.fileno(), target, start, offset, stop - start)
            if not done:
                raise StorageError(f"{uri}: ends before byte {stop}", lasts=True)
            start, offset = start + done, offset + done


def _copied(source: int, target: int, start: int, offset: int, size: int) -> int:
    """Copy bytes from one open file to another, and return how many.

    Raises:
        OSError: One of them cannot be read or written.
    """
    try:
        return os.copy_file_range(source, target, size, start, offset)
    except AttributeError:
        pass  # Only Linux has it.
    except OSError as error:
        if error.errno not in _CANNOT_COPY:
            raise
    return os.pwrite(target, os.pread(source, min(size, PART_BYTES), start), offset)
