"""Storage in a dict, with switches for what real stores do wrong."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from holdfast.storage.port import AlreadyThereError, ObjectSink, StorageError


class CreateFault(Enum):
    """How one create goes wrong: what is stored, and what is answered."""

    LANDS_AND_FAILS = "stored, answered with an error"
    LANDS_AND_IS_THERE = "stored, answered 'already there' (the client had retried inside)"
    FAILS = "nothing stored, answered with an error"
    IS_THERE = "nothing stored, answered 'already there'"


_STORES = {CreateFault.LANDS_AND_FAILS, CreateFault.LANDS_AND_IS_THERE}
_SAYS_THERE = {CreateFault.LANDS_AND_IS_THERE, CreateFault.IS_THERE}


class MemoryStorage:
    """Objects by URI. Faults are set from outside; without any it is a perfect store."""

    def __init__(self) -> None:
        """Start empty and without faults."""
        self.objects: dict[str, bytes] = {}
        self.calls: list[tuple[str, str]] = []
        # One entry per create to come; None is a create that goes well.
        self.create_faults: deque[CreateFault | None] = deque()
        # How many of the next calls of each kind fail.
        self.failures: dict[str, int] = {}
        # A store that takes create-if-absent for a plain put.
        self.overwrites_on_create = False
        # What a reader gets instead of the object's bytes, by URI.
        self.damage: dict[str, Callable[[bytes], bytes]] = {}
        # Runs once, just before the next create: a rival that is faster.
        self.before_create: Callable[[], None] | None = None

    def create(self, uri: str, data: bytes) -> None:
        """Write the object only if there is none, unless a fault is due."""
        if (rival := self.before_create) is not None:
            self.before_create = None
            rival()
        self._called("create", uri)
        fault = self.create_faults.popleft() if self.create_faults else None
        taken = uri in self.objects and not self.overwrites_on_create
        if not taken and (fault is None or fault in _STORES):
            self.objects[uri] = bytes(data)
        if fault in _SAYS_THERE or (fault is None and taken):
            raise AlreadyThereError(uri)
        if fault is not None:
            raise StorageError(f"{uri}: connection reset")

    def put(self, uri: str, data: bytes) -> None:
        """Write the object, over an older one if there is one."""
        self._called("put", uri)
        self.objects[uri] = bytes(data)

    def get(self, uri: str) -> bytes:
        """Return the object's bytes, damaged if they are to be."""
        self._called("get", uri)
        if uri not in self.objects:
            raise FileNotFoundError(uri)
        return self.damage.get(uri, bytes)(self.objects[uri])

    def get_range(self, uri: str, start: int, length: int) -> bytes:
        """Return some of the object's bytes."""
        return self.get(uri)[start : start + length]

    def size(self, uri: str) -> int:
        """Return the object's size in bytes."""
        self._called("size", uri)
        if uri not in self.objects:
            raise FileNotFoundError(uri)
        return len(self.objects[uri])

    def sizes(self, uris: Sequence[str]) -> list[int | None]:
        """Return the size of each object, None where it is missing."""
        return [self.size(uri) if uri in self.objects else None for uri in uris]

    def list(self, prefix_uri: str) -> list[str]:
        """Return the URIs of all objects in a folder, sorted."""
        self._called("list", prefix_uri)
        return sorted(uri for uri in self.objects if uri.startswith(f"{prefix_uri}/"))

    def delete(self, uris: Iterable[str]) -> None:
        """Delete the objects; missing ones are no error."""
        for uri in uris:
            self._called("delete", uri)
            self.objects.pop(uri, None)

    def open_sink(self, uri: str) -> ObjectSink:
        """Start an object that is written piece by piece."""
        self._called("open_sink", uri)
        return _MemorySink(self, uri)

    def names_called(self, kind: str) -> Sequence[str]:
        """Return the URIs of all calls of one kind so far."""
        return [uri for name, uri in self.calls if name == kind]

    def _called(self, kind: str, uri: str) -> None:
        self.calls.append((kind, uri))
        if self.failures.get(kind, 0) > 0:
            self.failures[kind] -= 1
            raise StorageError(f"{uri}: no answer to {kind}")


class _MemorySink:
    def __init__(self, storage: MemoryStorage, uri: str) -> None:
        self._storage = storage
        self._uri = uri
        self._data: bytearray | None = bytearray()

    def write(self, data: bytes | memoryview, /) -> int:
        if self._data is None:
            raise StorageError(f"{self._uri}: written after its end")
        self._data += data
        return len(data)

    def tell(self) -> int:
        return len(self._data or b"")

    def close(self) -> None:
        if self._data is not None:
            self._storage.put(self._uri, bytes(self._data))
            self._data = None

    def abandon(self) -> None:
        self._data = None


def truncated(data: bytes) -> bytes:
    """Return what a reader sees of an object that was cut short."""
    return data[: len(data) // 2]


def bit_flipped(data: bytes) -> bytes:
    """Return the object with one bit in its middle turned over."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
