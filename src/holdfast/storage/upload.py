"""An object being uploaded: the IO runtime sends its parts while the caller encodes.

The bytes of all parts of all open uploads in a process are bounded. A part counts until obstore
drops its last reference and the memory is free: then it has arrived, or was abandoned.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import obstore
import pyarrow as pa

from holdfast.model.lasting import lasts
from holdfast.model.limits import PART_BYTES
from holdfast.storage.calls import call, write
from holdfast.storage.port import ObjectSink, StorageError
from holdfast.storage.runtime import IoRuntime, Lane, io_runtime

# ---- An upload: the IO runtime sends its parts while the caller encodes the next

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# As many as the budget holds: a single file may use all of it.
_PARTS_IN_FLIGHT = 8
# An abort that the store does not answer continues in the background; the caller does not wait.
_ABORT_WAIT_S = 30.0
# A part that reaches the server after the abort can revive the upload, as S3 documents. So wait
# for parts in flight to arrive first, but not for too long.
_ARRIVAL_WAIT_S = 5.0
_ARRIVAL_POLL_S = 0.01


class Upload:
    """One object being uploaded: small ones are sent as one put, large ones in parts."""

    def __init__(self, uri: str, store: ObjectStore, key: str) -> None:
        """Keep the parts; nothing is sent yet.

        Args:
            uri: The object's URI, for messages.
            store: The store.
            key: The object's key.
        """
        self._uri = uri
        self._store = store
        self._key = key
        self._runtime = io_runtime()
        self._lane = Lane(self._runtime)
        self._position = 0
        self._part = _Part(self._runtime)
        self._has_parts = False
        self._is_closed = False
        self._is_abandoned = False
        # Used by the IO threads: obstore's writer, and what went wrong.
        self._writer: Any = None
        self._error = ""
        self._lasts = False
        self._sent: list[weakref.ref[_Part]] = []

    def write(self, data: bytes | memoryview, /) -> int:
        """Take the bytes; blocks while too many bytes of this process are in flight.

        Raises:
            StorageError: An earlier part failed, or the object is closed or abandoned.
        """
        if self._is_closed or self._is_abandoned:
            raise StorageError(f"{self._uri}: written after it was closed or abandoned")
        left = memoryview(data)
        while left:
            self._raise_failure()
            piece = left[: PART_BYTES - len(self._part)]
            self._part.add(piece)
            left = left[len(piece) :]
            if len(self._part) == PART_BYTES:
                self._hand_over()
        self._position += len(data)
        return len(data)

    def tell(self) -> int:
        """Return how many bytes were taken."""
        return self._position

    def close(self) -> None:
        """Send what is left; the object exists when this returns.

        Raises:
            StorageError: The upload failed, and the object does not exist.
        """
        if self._is_closed:
            return
        if self._is_abandoned:
            raise StorageError(f"{self._uri}: closed after it was abandoned")
        try:
            if self._has_parts:
                self._finish_parts()
            else:
                self._put()
        except StorageError:
            # The client retries internally, and the store may then no longer know an upload that
            # has completed. The name is ours alone, and an object appears whole or not at all.
            if not self._is_there():
                raise
        self._is_closed = True

    def abandon(self) -> None:
        """Discard the object; nothing becomes visible, and no part stays on the server."""
        if self._is_closed or self._is_abandoned:
            return
        self._is_abandoned = True
        self._part.forget()
        self._lane.clear()
        if self._has_parts:
            done = threading.Event()
            self._lane.add(lambda: self._abort(done))
            self._runtime.wait_for(lambda: done.wait(_ABORT_WAIT_S))

    def _hand_over(self) -> None:
        """Let an IO thread send the part, as soon as the budget has room for it."""
        part, self._part = self._part, _Part(self._runtime)
        self._runtime.wait_for(part.enter_flight)
        self._has_parts = True
        self._lane.add(lambda: self._send(part))

    def _put(self) -> None:
        part, self._part = self._part, _Part(self._runtime)
        try:
            write(
                self._uri,
                lambda: obstore.put(self._store, self._key, part, use_multipart=False),
                size=len(part),
            )
        finally:
            part.forget()

    def _finish_parts(self) -> None:
        if self._part:
            self._hand_over()
        done = threading.Event()
        self._lane.add(lambda: self._finish(done))
        self._runtime.wait_for(done.wait)
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._error:
            raise StorageError(self._error, lasts=self._lasts)

    # ---- runs on IO threads, one step at a time ------------------------------------------------

    def _send(self, part: _Part) -> None:
        if self._error or self._is_abandoned:
            return
        try:
            if self._writer is None:
                # Each try opens a new writer: one that failed has lost its position.
                write(self._uri, lambda: self._open(part), size=len(part))
            else:
                write(self._uri, lambda: self._pass_on(part), size=len(part), renews=False)
            part.sent_at = time.perf_counter()  # The rest of the upload runs in the background.
            self._sent = [ref for ref in self._sent if ref() is not None] + [weakref.ref(part)]
        except Exception as error:  # noqa: BLE001 - it is raised by the next call.
            self._fail(error)

    def _open(self, part: _Part) -> None:
        concurrency = 1 if self._runtime.is_inline else _PARTS_IN_FLIGHT
        writer: Any = obstore.open_writer(
            self._store, self._key, buffer_size=PART_BYTES, max_concurrency=concurrency
        )
        writer.write(part)
        self._writer = writer
        self._await_inline()

    def _pass_on(self, part: _Part) -> None:
        self._writer.write(part)
        self._await_inline()

    def _await_inline(self) -> None:
        if self._runtime.is_inline:
            self._writer.write(b"")  # With a concurrency of one, this waits for the part.

    def _finish(self, done: threading.Event) -> None:
        try:
            if not self._error and self._writer is not None:
                writer, self._writer = self._writer, None
                write(self._uri, writer.close, renews=False)
        except Exception as error:  # noqa: BLE001 - it is raised by the next call.
            self._fail(error)
        finally:
            done.set()

    def _fail(self, error: Exception) -> None:
        # Keep only the text: the error's frames would keep the part in memory and in the budget.
        self._error, self._lasts = str(error), lasts(error)
        self._abort()

    def _abort(self, done: threading.Event | None = None) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            self._await_arrival()
            # obstore's writer aborts when its `with` block ends with an error; dropping it would
            # leave the parts on the server. If this fails too, the bucket's own rule removes them.
            with contextlib.suppress(Exception):
                writer.__exit__(StorageError, None, None)
        if done is not None:
            done.set()

    def _await_arrival(self) -> None:
        """Wait until the memory of sent parts is free: they have arrived, or were abandoned."""
        until = time.monotonic() + _ARRIVAL_WAIT_S
        while any(ref() is not None for ref in self._sent) and time.monotonic() < until:
            time.sleep(_ARRIVAL_POLL_S)

    def _is_there(self) -> bool:
        try:
            found = call(self._uri, lambda: obstore.head(self._store, self._key))
        except (FileNotFoundError, StorageError):
            return False
        return bool(found["size"] == self._position)


class _Part(bytearray):
    """The bytes of one part; they count in the budget from when they are added until freed."""

    def __init__(self, runtime: IoRuntime) -> None:
        super().__init__()
        self._runtime = runtime
        self._kept = 0
        self._in_flight = 0
        self.sent_at = 0.0

    def add(self, piece: memoryview) -> None:
        self.extend(piece)
        self._kept += len(piece)
        self._runtime.uploads.keep(len(piece))

    def enter_flight(self) -> None:
        kept, self._kept = self._kept, 0
        self._runtime.uploads.take(len(self), kept_bytes=kept)
        self._in_flight = len(self)

    def forget(self) -> None:
        """Stop counting the bytes as kept."""
        kept, self._kept = self._kept, 0
        self._runtime.uploads.keep(-kept)

    def __del__(self) -> None:
        if self._kept:
            self.forget()
        if self._in_flight:
            self._runtime.uploads.give_back(self._in_flight)
        if self.sent_at:
            self._runtime.count(busy_s=time.perf_counter() - self.sent_at)


# ---- An upload as the Python file that pyarrow writes to
class ArrowFile:
    """Passes pyarrow's bytes to an object, which becomes visible only on `finish`."""

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
        # Some of pyarrow's buffers have signed bytes, which obstore refuses.
        return self._sink.write(memoryview(data).cast("B")) if self._sink else len(data)

    def tell(self) -> int:
        """Return the position."""
        return self.size_bytes

    def flush(self) -> None:
        """Do nothing: row groups and batches are passed on when they are written."""

    def close(self) -> None:
        """Do nothing: pyarrow closes early, and closing would make the object visible."""

    def finish(self) -> None:
        """Make the object visible."""
        if self._sink is not None:
            self._sink.close()

    def discard(self) -> None:
        """Discard the object, and ignore any later writes.

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
