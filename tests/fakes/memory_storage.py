"""Storage in a dict: what every store answers, and a store with switches for faults."""

from __future__ import annotations

import abc
import builtins
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum

from holdfast.storage.port import (
    AlreadyThereError,
    ObjectChangedError,
    ObjectFacts,
    ObjectSink,
    StorageError,
)


class DriverDiedError(BaseException):
    """Ends a driver where it is, as a kill does: no handler of ours catches it."""


class CreateFault(Enum):
    """How one create goes wrong: what is stored, and what is answered."""

    LANDS_AND_FAILS = "stored, answered with an error"
    LANDS_AND_IS_THERE = "stored, answered 'already there' (the client had retried inside)"
    FAILS = "nothing stored, answered with an error"
    IS_THERE = "nothing stored, answered 'already there'"


_STORES = {CreateFault.LANDS_AND_FAILS, CreateFault.LANDS_AND_IS_THERE}
_SAYS_THERE = {CreateFault.LANDS_AND_IS_THERE, CreateFault.IS_THERE}


def _always() -> float:
    """Serve as the clock where time does not matter."""
    return 0.0


# Of all storages together: a storage is pickled with the plans that hold it.
_ONE_WINNER = threading.Lock()


class StoredObjects(abc.ABC):
    """Objects by URI, and what a store says about them; subclasses add faults."""

    def __init__(self) -> None:
        """Start empty."""
        self.objects: dict[str, bytes] = {}
        self.written_at: dict[str, float] = {}

    @abc.abstractmethod
    def put(self, uri: str, data: bytes) -> None:
        """Write the object, over an older one if there is one."""

    @abc.abstractmethod
    def _asked(self, kind: str, uri: str) -> None:
        """Record a call that only reads, or make it fail."""

    @abc.abstractmethod
    def _tag(self, uri: str) -> str:
        """Return a tag that changes whenever the object is written again."""

    def _shown(self, uri: str) -> bytes:
        """Return what a reader gets of an object."""
        return self.objects[uri]

    def _found(self, kind: str, prefix_uri: str) -> builtins.list[str]:  # noqa: ARG002
        """Return what a call of this kind finds in a folder, sorted."""
        return self._inside(prefix_uri)

    def get(self, uri: str) -> bytes:
        """Return the object's bytes."""
        self._asked("get", uri)
        self._must_be_there(uri)
        return self._shown(uri)

    def get_sure(self, uri: str) -> bytes:
        """Return the object's bytes: memory has no wire to corrupt them."""
        return self.get(uri)

    def get_range(self, uri: str, start: int, stop: int, *, tag: str = "") -> bytes:
        """Return some of the object's bytes, of the very object that had the tag."""
        self._asked("get_range", uri)
        self._must_be_there(uri)
        if tag not in ("", self._tag(uri)):
            raise ObjectChangedError(f"{uri}: rewritten since it was pinned")
        if start < stop > len(self.objects[uri]):
            raise ObjectChangedError(f"{uri}: ends before byte {stop}")
        return self._shown(uri)[start:stop]

    def size(self, uri: str) -> int:
        """Return the object's size in bytes."""
        self._asked("size", uri)
        self._must_be_there(uri)
        return len(self.objects[uri])

    def folders(self, prefix_uri: str) -> builtins.list[str]:
        """Return the names of the folders right inside a folder, sorted."""
        self._asked("folders", prefix_uri)
        found = self._found("folders", prefix_uri)
        inside = [uri.removeprefix(f"{prefix_uri}/") for uri in found]
        return sorted({path.split("/", 1)[0] for path in inside if "/" in path})

    def list(self, prefix_uri: str) -> builtins.list[str]:
        """Return the URIs of all objects in a folder, sorted."""
        self._asked("list", prefix_uri)
        return self._found("list", prefix_uri)

    def walk(self, prefix_uri: str) -> Iterator[tuple[str, int]]:
        """Yield URI and size of each object in a folder."""
        yield from ((uri, len(self.objects[uri])) for uri in self.list(prefix_uri))

    def facts(self, prefix_uri: str) -> builtins.list[ObjectFacts]:
        """Return what is known about all objects in a folder, or about the one object, by URI."""
        self._asked("facts", prefix_uri)
        alone = [prefix_uri] if prefix_uri in self.objects else []
        return [
            ObjectFacts(
                uri=uri,
                size_bytes=len(self.objects[uri]),
                tag=self._tag(uri),
                modified=self.written_at.get(uri, 0.0),
            )
            for uri in self._inside(prefix_uri) or alone
        ]

    def newest(self, prefix_uri: str) -> float | None:
        """Return when the newest object of a folder was written, in Unix seconds."""
        self._asked("newest", prefix_uri)
        found = self._found("newest", prefix_uri)
        return max((self.written_at.get(uri, 0.0) for uri in found), default=None)

    def open_sink(self, uri: str) -> ObjectSink:
        """Start an object that is written in pieces."""
        return _Sink(self, uri)

    def _inside(self, prefix_uri: str) -> builtins.list[str]:
        # A copy, made in one step: threads may write objects meanwhile.
        return sorted(uri for uri in tuple(self.objects) if uri.startswith(f"{prefix_uri}/"))

    def _must_be_there(self, uri: str) -> None:
        if uri not in self.objects:
            raise FileNotFoundError(uri)


class MemoryStorage(StoredObjects):
    """A store whose faults are set from outside; without any it is perfect."""

    def __init__(self, now: Callable[[], float] = _always) -> None:
        """Start empty and without faults; the clock says when objects are written."""
        super().__init__()
        # Every write that took effect, in order.
        self.written: list[str] = []
        self._now = now
        self.calls: list[tuple[str, str]] = []
        # One entry per coming create; None is a create that succeeds.
        self.create_faults: deque[CreateFault | None] = deque()
        # How many of the next calls of each kind fail.
        self.failures: dict[str, int] = {}
        # See `fail_after`; None when no failure is due.
        self.calls_until_failure: int | None = None
        # A store that treats create-if-absent as a plain put.
        self.overwrites_on_create = False
        # What a reader gets instead of the object's bytes, by URI.
        self.damage: dict[str, Callable[[bytes], bytes]] = {}
        # Runs once, just before the next create: a rival that is faster.
        self.before_create: Callable[[], None] | None = None
        # How many more writes the process survives; a dead one does not even read.
        self.writes_left: int | None = None
        self.dead = False

    def create(self, uri: str, data: bytes) -> None:
        """Write the object only if there is none, unless a fault is due."""
        if (rival := self.before_create) is not None:
            self.before_create = None
            rival()
        self._asked("create", uri)
        fault = self.create_faults.popleft() if self.create_faults else None
        with _ONE_WINNER:
            taken = uri in self.objects and not self.overwrites_on_create
            if not taken and (fault is None or fault in _STORES):
                self._store(uri, data)
        if fault in _SAYS_THERE or (fault is None and taken):
            raise AlreadyThereError(uri)
        if fault is not None:
            raise StorageError(f"{uri}: connection reset")

    def put(self, uri: str, data: bytes) -> None:
        """Write the object, over an older one if there is one."""
        self._asked("put", uri)
        self._store(uri, data)

    def get_many(self, uris: Sequence[str]) -> builtins.list[bytes | None]:
        """Return the bytes of each object, None where it is missing."""

        def one(uri: str) -> bytes | None:
            try:
                return self.get(uri)
            except FileNotFoundError:
                return None

        return [one(uri) for uri in uris]

    def sizes(self, uris: Sequence[str]) -> list[int | None]:
        """Return the size of each object, None where it is missing."""
        return [self.size(uri) if uri in self.objects else None for uri in uris]

    def last_written(self, uris: Sequence[str]) -> list[float | None]:
        """Return when each object was written, None where it is missing."""
        for uri in uris:
            self._asked("last_written", uri)
        return [self.written_at[uri] if uri in self.objects else None for uri in uris]

    def copy(self, names: Mapping[str, str]) -> None:
        """Copy each object to the name it is paired with."""
        for source, target in names.items():
            self._asked("copy", source)
            if source not in self.objects:
                raise FileNotFoundError(source)
            self._store(target, self.objects[source])

    def delete(self, uris: Iterable[str]) -> None:
        """Delete the objects; missing ones are not an error."""
        for uri in uris:
            self._asked("delete", uri)
            self.objects.pop(uri, None)

    def open_sink(self, uri: str) -> ObjectSink:
        """Start an object that is written in pieces."""
        self._asked("open_sink", uri)
        return super().open_sink(uri)

    def names_called(self, kind: str) -> Sequence[str]:
        """Return the URIs of all calls of one kind so far."""
        return [uri for name, uri in self.calls if name == kind]

    def fail_after(self, calls: int) -> None:
        """Let one call of any kind fail, after so many that succeed."""
        self.calls_until_failure = calls

    def kill(self) -> None:
        """End the calling process as a kill does: not even its handlers reach the store."""
        self.dead = True
        raise DriverDiedError

    def revive(self) -> None:
        """Let the next process reach the store again."""
        self.dead, self.writes_left = False, None

    def _shown(self, uri: str) -> bytes:
        return self.damage.get(uri, bytes)(self.objects[uri])

    def _tag(self, uri: str) -> str:
        # It changes even if the same bytes are written.
        return f'"{self.written.count(uri)}-{zlib.crc32(self.objects[uri])}"'

    def _store(self, uri: str, data: bytes) -> None:
        if self.writes_left == 0:
            self.kill()
        if self.writes_left is not None:
            self.writes_left -= 1
        self.objects[uri] = bytes(data)
        self.written_at[uri] = self._now()
        self.written.append(uri)

    def _asked(self, kind: str, uri: str) -> None:
        if self.dead:
            raise DriverDiedError
        self.calls.append((kind, uri))
        if self.calls_until_failure is not None:
            self.calls_until_failure -= 1
            if self.calls_until_failure < 0:
                self.calls_until_failure = None
                raise StorageError(f"{uri}: no answer to {kind}")
        if self.failures.get(kind, 0) > 0:
            self.failures[kind] -= 1
            raise StorageError(f"{uri}: no answer to {kind}")


class _Sink:
    def __init__(self, storage: StoredObjects, uri: str) -> None:
        self._storage = storage
        self._uri = uri
        self._data: bytearray | None = bytearray()
        self._position = 0

    def write(self, data: bytes | memoryview, /) -> int:
        if self._data is None:
            raise StorageError(f"{self._uri}: written after it was closed or abandoned")
        self._data += data
        self._position += len(data)
        return len(data)

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        if self._data is not None:
            data, self._data = bytes(self._data), None
            self._storage.put(self._uri, data)

    def abandon(self) -> None:
        self._data = None


def truncated(data: bytes) -> bytes:
    """Return what a reader sees of an object that was cut short."""
    return data[: len(data) // 2]


def bit_flipped(data: bytes) -> bytes:
    """Return the object with one bit in its middle turned over."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
