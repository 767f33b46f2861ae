"""A file of which only some bytes are at hand: those that were fetched for the next read."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator


class RangedFile(io.RawIOBase):
    """What pyarrow takes for a file; a read outside the bytes at hand is an error."""

    def __init__(self, size_bytes: int) -> None:
        """Hold nothing yet."""
        super().__init__()
        self._size = size_bytes
        self._at = 0
        self._held: list[tuple[int, memoryview]] = []

    @contextlib.contextmanager
    def holding(self, pieces: Iterable[tuple[int, bytes | memoryview]]) -> Iterator[None]:
        """Have these bytes at hand, each piece by where it starts."""
        self._held = [(start, memoryview(data)) for start, data in pieces]
        try:
            yield
        finally:
            self._held = []

    def readable(self) -> bool:
        """Say so."""
        return True

    def seekable(self) -> bool:
        """Say so."""
        return True

    def tell(self) -> int:
        """Return where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place in the file."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> memoryview:
        """Return bytes that are at hand, without a copy.

        Raises:
            OSError: They are not.
        """
        stop = self._size if size < 0 else min(self._size, self._at + size)
        for start, data in self._held:
            if start <= self._at and stop <= start + len(data):
                piece = data[self._at - start : stop - start]
                self._at = stop
                return piece
        if stop <= self._at:
            return memoryview(b"")
        raise OSError(f"bytes {self._at} to {stop} were not fetched")
