"""Search for keys in a large index: its files are fetched once to an executor's disk, and streamed.

All worker processes of an executor share what was fetched. They find it in a folder of Spark's own
local directories, which Spark deletes at its end, and a lock for each file lets one of them fetch
it. What is on the disk has a checksum, is mapped into memory one file at a time, and holds numbers
and bytes only.

The keys of rows are collected up to a bound and put in the order of their hashes, so that one pass
over the index finds all of them. Values are compared only where hashes are the same.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import hashlib
import io
import os
import shutil
import socket
import stat
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from holdfast.errors import ExecutorSetupError, LedgerDamagedError
from holdfast.failpoints import failpoint
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.parts import IndexFile
from holdfast.ledger.row_files import parquet_batches
from holdfast.ledger.store import read_whole
from holdfast.storage.port import Storage
from holdfast.storage.runtime import io_runtime
from holdfast.worker.coverage import key_hashes
from holdfast.worker.key_values import (
    Numbers,
    Places,
    Words,
    comparable,
    equal_keys,
    known_rows,
    one_array,
    same_keys,
)

# How many bytes of rows' keys are searched for at a time: each time the index is read once.
_PORTION_BYTES = 24 * 1024 * 1024
# What a row takes besides its key.
_ROW_BYTES = 48
# How many files one process fetches at a time.
_FETCHED = 2
# How long a process waits until another has fetched a file, and how often it looks.
_WAIT_S, _LOOK_S = 30.0, 0.05
# An index that has not been searched for so long is deleted before another comes.
_UNUSED_S = 3600.0
_FOLDER = "holdfast-keys"
_SPARKS_FOLDERS = "SPARK_LOCAL_DIRS"
_SUM_BYTES = 4
# How often a file is fetched that is not on the disk as it was put there.
_TRIES = 3
_FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

# Where a process puts an index if Spark does not say where; deleted when the process ends.
_private: Path | None = None


@dataclass(slots=True, kw_only=True)
class BucketSearch:
    """Searches an index whose files are divided by hash. Runs on an executor."""

    storage: Storage
    layout: RunLayout
    files: Sequence[IndexFile]
    # How many columns a key has.
    columns: int
    _folder: Path | None = None
    # The files whose checksum this process has compared.
    _compared: set[int] = field(default_factory=set)

    def search(self, batches: Iterable[Sequence[pa.Array]]) -> Iterator[Places]:
        """Yield the number of each row's key: see `KeyIndex.search`.

        Raises:
            LedgerDamagedError: A file of the index is gone, or not as it was written.
            ExecutorSetupError: The executor's disk has no room for the index.
        """
        waiting: list[list[pa.Array]] = []
        size = 0
        for keys in batches:
            waiting.append([_plain(column) for column in keys])
            size += sum(column.nbytes + _ROW_BYTES * len(column) for column in waiting[-1])
            if size >= _PORTION_BYTES:
                yield self._places(waiting)
                waiting, size = [], 0
        if waiting:
            yield self._places(waiting)

    def _places(self, batches: list[list[pa.Array]]) -> Places:
        columns = [pa.concat_arrays(parts) for parts in zip(*batches, strict=True)]
        batches.clear()
        found = np.full(len(columns[0]), -1, dtype=np.int64)
        rows = known_rows(columns)
        hashes = key_hashes(columns)[rows]
        order = np.argsort(hashes)
        rows, hashes = rows[order], hashes[order]
        first = 0
        for number, file in enumerate(self.files):
            start = np.searchsorted(hashes, np.uint64(file.first), "left")
            stop = np.searchsorted(hashes, np.uint64(file.last), "right")
            if start < stop:
                self._find(number, columns, rows[start:stop], hashes[start:stop], found, first)
            first += file.rows
        return found

    def _find(  # noqa: PLR0913, PLR0917 - parts of one search.
        self,
        number: int,
        columns: Sequence[pa.Array],
        rows: Numbers,
        hashes: Words,
        found: Places,
        first: int,
    ) -> None:
        """Note the places of keys that are in one file of the index."""
        known, ours = self._opened(number)

        def is_same(some: Numbers, at: Numbers) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
            return equal_keys(columns, rows[some], ours, at)

        for some, at in same_keys(known, hashes, is_same):
            found[rows[some]] = at + first

    # ---- The files on this executor's disk

    def _opened(self, number: int) -> tuple[Words, list[pa.Array]]:
        """Return the hashes and the keys of a file, mapped into memory.

        Raises:
            LedgerDamagedError: A file of the index is gone, or not as it was written.
            ExecutorSetupError: The executor's disk does not keep the index.
        """
        file, batch = self.files[number], None
        for _ in range(_TRIES):
            batch = self._on_disk_or_fetched(number)
            if batch is not None and batch.num_rows == file.rows:
                self._compared.add(number)
                return batch.column(0).to_numpy(), batch.columns[1:]
        if batch is None:
            raise self._unusable("its files are gone as soon as they are written")
        reason = f"it has {batch.num_rows} keys, not {file.rows}"
        raise LedgerDamagedError(uri=self.layout.part(file.name), reason=reason)

    def _on_disk_or_fetched(self, number: int) -> pa.RecordBatch | None:
        """Return a file from the disk; if it is not there as it should be, fetch it first.

        Raises:
            LedgerDamagedError: A file of the index is gone, or not as it was written.
            ExecutorSetupError: The executor's disk does not keep the index.
        """
        try:
            found = self._on_disk(number)
            if found is None or found.num_rows != self.files[number].rows:
                self._fetch_all()
                found = self._on_disk(number)
        except OSError as error:
            self._leave_folder(error)
            return None
        return found

    def _on_disk(self, number: int) -> pa.RecordBatch | None:
        path = self._there() / f"{number}.arrow"
        try:
            return _mapped(path, compare=number not in self._compared)
        except FileNotFoundError:
            return None
        except (pa.ArrowException, OSError, ValueError):
            path.unlink(missing_ok=True)  # This disk has lost some of it.
            return None

    def _there(self) -> Path:
        """Return the folder of this index on this executor."""
        if self._folder is None:
            name = self._name
            parent = _shared_folder(name) or _own_folder()
            _delete_unused(parent, name)
            self._folder = parent / name
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # A disk that has become read-only still has the index.
            os.utime(self._folder)
        return self._folder

    @property
    def _name(self) -> str:
        digests = "\n".join(f"{file.name} {file.digest}" for file in self.files)
        return hashlib.sha256(f"{self.columns}\n{digests}".encode()).hexdigest()[:32]

    def _leave_folder(self, error: OSError) -> None:
        """Use a folder of this process alone, unless the one in use was only deleted.

        Raises:
            ExecutorSetupError: That cannot be used either.
        """
        if isinstance(error, FileNotFoundError) and self._folder is not None:
            return  # A clean-up of temporary files took it: it is made again.
        try:
            own = _own_folder() / self._name
        except OSError as another:
            raise self._unusable(another) from error
        if self._folder == own:
            raise self._unusable(error) from error
        self._folder = own
        self._compared.clear()

    def _unusable(self, reason: OSError | str) -> ExecutorSetupError:
        return ExecutorSetupError(
            host=socket.gethostname(),
            what=f"its disk does not keep an index of keys: {reason}",
            cure="let spark.local.dir name a folder that can be written",
        )

    def _fetch_all(self) -> None:
        """Fetch what is not there yet; other processes do so at the same time.

        Raises:
            LedgerDamagedError: A file of the index is gone, or not as it was written.
            ExecutorSetupError: The disk has no room.
            OSError: The disk has failed.
        """
        folder = self._there()
        self._refuse_small_disk(folder)
        turn = os.getpid() % len(self.files)  # So that not all begin with the same.
        numbers = [*range(turn, len(self.files)), *range(turn)]
        busy: list[int] = []
        while numbers or busy:
            some: list[int] = []
            with contextlib.ExitStack() as locks:
                while numbers and len(some) < _FETCHED:
                    number = numbers.pop()
                    if (folder / f"{number}.arrow").exists():
                        continue
                    if locks.enter_context(_locked(folder / f"{number}.lock")):
                        some.append(number)
                    else:
                        busy.append(number)
                if not some and busy:  # Another process fetches it: wait for that, but not long.
                    number = busy.pop()
                    locks.enter_context(_locked(folder / f"{number}.lock", wait_s=_WAIT_S))
                    some.append(number)
                missing = [n for n in some if not (folder / f"{n}.arrow").exists()]
                for number, data in zip(
                    missing, io_runtime().each(self._data, missing), strict=True
                ):
                    self._keep(number, data, folder)

    def _data(self, number: int) -> bytes:
        file = self.files[number]
        return read_whole(self.storage, self.layout.part(file.name), file.digest)

    def _keep(self, number: int, data: bytes, folder: Path) -> None:
        """Check a file of the index, and put its keys onto the disk with their hashes.

        Raises:
            LedgerDamagedError: It is not as it was written.
            ExecutorSetupError: The disk has no room.
            OSError: The disk has failed.
        """
        file = self.files[number]
        uri = self.layout.part(file.name)
        table = pa.Table.from_batches(parquet_batches(uri, data, rows=file.rows))
        if table.num_columns != self.columns:
            raise LedgerDamagedError(uri=uri, reason="it has other columns than the key")
        columns = [_plain(one_array(column)) for column in table.columns]
        hashes = key_hashes(columns)
        if not len(hashes) or (hashes[1:] < hashes[:-1]).any():
            raise LedgerDamagedError(uri=uri, reason="its keys are not in order")
        if (int(hashes[0]), int(hashes[-1])) != (file.first, file.last):
            raise LedgerDamagedError(uri=uri, reason="it has the keys of another file")
        failpoint("before-index-is-local")
        temporary = folder / f"{number}.{os.getpid()}"
        temporary.unlink(missing_ok=True)  # Of a process with this id that was killed.
        try:
            _write_local(temporary, hashes, columns)
            temporary.replace(folder / f"{number}.arrow")
        except OSError as error:
            temporary.unlink(missing_ok=True)
            if error.errno in _FULL_DISK:
                raise self._no_room(folder) from error
            raise
        failpoint("after-index-is-local")

    def _refuse_small_disk(self, folder: Path) -> None:
        """Stop before a disk is filled up.

        Raises:
            ExecutorSetupError: It has no room for what is not there yet.
        """
        missing = sum(
            file.local_bytes
            for number, file in enumerate(self.files)
            if not (folder / f"{number}.arrow").exists()
        )
        if shutil.disk_usage(folder).free < missing:
            raise self._no_room(folder)

    def _no_room(self, folder: Path) -> ExecutorSetupError:
        size = sum(file.local_bytes for file in self.files) // 10**6 + 1
        return ExecutorSetupError(
            host=socket.gethostname(),
            what=f"its disk has no room at {folder} for an index of keys, which takes {size:,} MB",
            cure="free disk space there, or let spark.local.dir name a larger disk",
        )


def _plain(column: pa.Array) -> pa.Array:
    """Return a key column as numbers or as bytes."""
    column = comparable(column)
    return column if pt.is_int64(column.type) else column.cast(pa.large_binary())


def _write_local(path: Path, hashes: Words, columns: Sequence[pa.Array]) -> None:
    names = ["hash", *map(str, range(len(columns)))]
    batch = pa.record_batch([pa.array(hashes), *columns], names)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        summed = _Summed(file)
        with pa.ipc.new_file(pa.PythonFile(summed, mode="w"), batch.schema) as writer:
            writer.write_batch(batch)
        file.write(summed.sum.to_bytes(_SUM_BYTES, "little"))


class _Summed(io.RawIOBase):
    """A file whose bytes are summed while they are written."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self.sum = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:  # noqa: ANN401 - whatever has bytes.
        self.sum = zlib.crc32(data, self.sum)
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()


def _mapped(path: Path, *, compare: bool) -> pa.RecordBatch:
    """Return what `_write_local` wrote.

    Raises:
        FileNotFoundError: It is not there.
        ValueError: It is not as it was written.
    """
    with pa.memory_map(str(path)) as source:
        whole = source.read_buffer()
    if whole.size <= _SUM_BYTES:
        raise ValueError("it is cut short")
    data = whole.slice(0, whole.size - _SUM_BYTES)
    if compare:
        expected = int.from_bytes(whole.slice(data.size).to_pybytes(), "little")
        if zlib.crc32(data) != expected:
            raise ValueError("its checksum differs")
    return pa.ipc.open_file(pa.BufferReader(data)).get_batch(0)


@contextlib.contextmanager
def _locked(path: Path, *, wait_s: float = 0.0) -> Iterator[bool]:
    """Lock a file, and yield whether that was possible; a process that dies unlocks it.

    One that is suspended does not, so no one waits for it without end. Nothing depends on the lock:
    without it a file is fetched twice.
    """
    descriptor, until = os.open(path, os.O_RDWR | os.O_CREAT, 0o600), time.monotonic() + wait_s
    try:
        while not (is_ours := _is_locked(descriptor)) and time.monotonic() < until:
            time.sleep(_LOOK_S)
        yield is_ours
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    """Try to lock an open file; return whether it is locked by us now."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _shared_folder(name: str) -> Path | None:
    """Return a folder of Spark's own that all workers of this executor use; None without one."""
    found = []
    for text in os.environ.get(_SPARKS_FOLDERS, "").split(","):
        folder = Path(text.strip()) / _FOLDER
        if not text.strip():
            continue
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            facts = folder.lstat()
            # What other users of the machine can write must not be trusted.
            is_ours = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()
            if is_ours and not stat.S_IMODE(facts.st_mode) & 0o022:
                found.append(folder)
    known = next((folder for folder in found if (folder / name).exists()), None)
    return known or max(found, key=lambda folder: shutil.disk_usage(folder).free, default=None)


def _own_folder() -> Path:
    """Return a folder of this process alone."""
    global _private  # noqa: PLW0603 - one for each process.
    if _private is None or not _private.is_dir():  # A clean-up may have taken it.
        _private = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}-"))
        atexit.register(shutil.rmtree, _private, ignore_errors=True)
    return _private


def _delete_unused(parent: Path, name: str) -> None:
    """Delete indexes that have not been searched for long."""
    for folder in parent.iterdir():
        with contextlib.suppress(OSError):
            if folder.name != name and folder.stat().st_mtime < time.time() - _UNUSED_S:
                shutil.rmtree(folder, ignore_errors=True)
