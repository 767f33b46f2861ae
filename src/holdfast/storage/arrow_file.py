"""An object on its way, as the Python file that pyarrow writes to."""

from __future__ import annotations

import hashlib

import pyarrow as pa

from holdfast.storage.port import ObjectSink


class ArrowFile:
    """Passes pyarrow's bytes on to an object, which becomes visible only by `finish`."""

    closed = False

    def __init__(self, sink: ObjectSink) -> None:
        """Take the open object."""
        self._sink: ObjectSink | None = sink

    @property
    def size_bytes(self) -> int:
        """How many bytes were passed on."""
        return self._sink.tell() if self._sink else 0

    def write(self, data: bytes | pa.Buffer) -> int:
        """Pass bytes on."""
        # Some of pyarrow's buffers call their bytes signed, which obstore refuses.
        return self._sink.write(memoryview(data).cast("B")) if self._sink else len(data)

    def tell(self) -> int:
        """Return the position."""
        return self.size_bytes

    def flush(self) -> None:
        """Row groups and batches are passed on when they are written: nothing to flush."""

    def close(self) -> None:
        """Do nothing: pyarrow closes early, and closing would make the object visible."""

    def finish(self) -> None:
        """Make the object visible."""
        if self._sink is not None:
            self._sink.close()

    def discard(self) -> None:
        """Give the object up, and swallow what is still to come.

        A Parquet writer cannot be closed without writing a footer.
        """
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.abandon()


class DigestingArrowFile(ArrowFile):
    """Also computes a digest of everything that was passed on."""

    def __init__(self, sink: ObjectSink) -> None:
        """Take the open object."""
        super().__init__(sink)
        self._digest = hashlib.sha256()

    def write(self, data: bytes | pa.Buffer) -> int:
        """Pass bytes on."""
        self._digest.update(memoryview(data))
        return super().write(data)

    @property
    def digest(self) -> str:
        """The digest of all bytes so far."""
        return self._digest.hexdigest()
