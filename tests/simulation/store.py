"""The store: objects in memory, whose answers get lost or come late."""

from __future__ import annotations

import builtins
import functools
import itertools
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.storage.port import (
    AlreadyThereError,
    ObjectChangedError,
    ObjectFacts,
    ObjectSink,
    StorageError,
)
from tests.simulation.world import World

_READ_FAULTS = 0.004
_WRITE_FAULTS = 0.012
_DELETE_FAULTS = 0.03
# How likely a listing of the run log or of runs is stale, and how young is what it may miss. Task
# logs must be listed whole: that is asked of a store. Of the run log a listing only saves requests,
# for the create decides; when the newest object of a folder was written is advice.
_STALE = 0.01
_YOUNG_S = 30.0


class SimStorage:
    """One store for all processes; every call is a step of the world."""

    def __init__(self, world: World) -> None:
        """Start empty."""
        self._world = world
        self.objects: dict[str, bytes] = {}
        self.written_at: dict[str, float] = {}
        self.is_down = False
        # Whether it does not know what create-if-absent means.
        self.overwrites = False
        # When each folder was listed first.
        self.listed_at: dict[str, float] = {}

    def create(self, uri: str, data: bytes) -> None:
        """Write the object only if there is none."""

        def effect() -> bool:
            if uri in self.objects and not self.overwrites:
                return False
            self._store(uri, data)
            return True

        landed, is_hidden = self._write(f"create {_short(uri)}", effect, hides=True)
        if not landed or is_hidden:
            raise AlreadyThereError(uri)

    def put(self, uri: str, data: bytes) -> None:
        """Write the object, over an older one."""
        self._write(f"put {_short(uri)}", lambda: self._store(uri, data))

    def get(self, uri: str) -> bytes:
        """Return the object's bytes."""
        self._read(f"get {_short(uri)}")
        if uri not in self.objects:
            raise FileNotFoundError(uri)
        return self.objects[uri]

    def get_sure(self, uri: str) -> bytes:
        """Return the object's bytes: there is no wire."""
        return self.get(uri)

    def get_many(self, uris: Sequence[str]) -> builtins.list[bytes | None]:
        """Return the bytes of each object, None where it is missing."""
        if uris:
            self._read(f"get {len(uris)} objects")
        return [self.objects.get(uri) for uri in uris]

    def get_range(self, uri: str, start: int, stop: int, *, tag: str = "") -> bytes:
        """Return some of the object's bytes, of the very object that had the tag."""
        self._read(f"range of {_short(uri)}")
        if uri not in self.objects:
            raise FileNotFoundError(uri)
        if tag not in ("", self._tag(uri)):
            raise ObjectChangedError(f"{uri}: written anew since it was pinned")
        if start < stop > len(self.objects[uri]):
            raise ObjectChangedError(f"{uri}: ends before byte {stop}")
        return self.objects[uri][start:stop]

    def size(self, uri: str) -> int:
        """Return the object's size."""
        self._read(f"size {_short(uri)}")
        if uri not in self.objects:
            raise FileNotFoundError(uri)
        return len(self.objects[uri])

    def sizes(self, uris: Sequence[str]) -> builtins.list[int | None]:
        """Return the size of each object, None where it is missing."""
        if uris:
            self._read(f"sizes of {len(uris)} objects")
        return [len(self.objects[uri]) if uri in self.objects else None for uri in uris]

    def last_written(self, uris: Sequence[str]) -> builtins.list[float | None]:
        """Return when each object was written, None where it is missing."""
        self._read(f"times of {len(uris)} objects")
        return [self.written_at[uri] if uri in self.objects else None for uri in uris]

    def copy(self, names: Mapping[str, str]) -> None:
        """Copy each object to the name beside it."""
        for source, target in names.items():
            self.put(target, self.get(source))

    def folders(self, prefix_uri: str) -> builtins.list[str]:
        """Return the names of the folders right inside a folder."""
        self._read(f"folders {_short(prefix_uri)}")
        found = self._inside(prefix_uri) if not self._is_stale() else []
        inside = [uri.removeprefix(f"{prefix_uri}/") for uri in found]
        return sorted({path.split("/", 1)[0] for path in inside if "/" in path})

    def list(self, prefix_uri: str) -> builtins.list[str]:
        """Return the URIs of all objects in a folder."""
        self._read(f"list {_short(prefix_uri)}")
        self.listed_at.setdefault(prefix_uri, self._world.clock)
        found = self._inside(prefix_uri)
        if prefix_uri.endswith("/log") and self._is_stale():
            old = self._world.clock - _YOUNG_S
            # It ends sooner than it should: the log's names are in the order of its numbers.
            return [*itertools.takewhile(lambda uri: self.written_at[uri] < old, found)]
        return found

    def facts(self, prefix_uri: str) -> builtins.list[ObjectFacts]:
        """Return what is known of all objects in a folder, or of the one object."""
        self._read(f"facts of {_short(prefix_uri)}")
        alone = [prefix_uri] if prefix_uri in self.objects else []
        return [
            ObjectFacts(
                uri=uri,
                size_bytes=len(self.objects[uri]),
                tag=self._tag(uri),
                modified=self.written_at[uri],
            )
            for uri in self._inside(prefix_uri) or alone
        ]

    def newest(self, prefix_uri: str) -> float | None:
        """Return when the newest object of a folder was written."""
        self._read(f"newest in {_short(prefix_uri)}")
        if self._is_stale():
            return None
        return max((self.written_at[uri] for uri in self._inside(prefix_uri)), default=None)

    def delete(self, uris: Iterable[str]) -> None:
        """Delete the objects one by one, as far as the process lives."""
        for uri in uris:
            # By value: another may be deleted when it arrives.
            gone = functools.partial(self.objects.pop, uri, None)
            self._write(f"delete {_short(uri)}", gone, faults=_DELETE_FAULTS)

    def open_sink(self, uri: str) -> ObjectSink:
        """Start an object that is written piece by piece."""
        return _Sink(self, uri)

    def _inside(self, prefix_uri: str) -> builtins.list[str]:
        return sorted(uri for uri in self.objects if uri.startswith(f"{prefix_uri}/"))

    def _tag(self, uri: str) -> str:
        return f'"{self.written_at[uri]}-{zlib.crc32(self.objects[uri])}"'

    def _store(self, uri: str, data: bytes) -> bool:
        self.objects[uri] = bytes(data)
        self.written_at[uri] = self._world.clock
        return True

    def _read(self, label: str) -> None:
        world = self._world
        world.pause(label)
        if self.is_down:
            raise StorageError(f"{label}: the store is down")
        if world.faults.calls and world.chance.happens(_READ_FAULTS):
            self._fault("no answer")
            raise StorageError(f"{label}: no answer")

    def _write(
        self,
        label: str,
        effect: Callable[[], Any],
        *,
        hides: bool = False,
        faults: float = _WRITE_FAULTS,
    ) -> tuple[Any, bool]:
        """Do a write, unless something goes wrong; say whether a landing is hidden."""
        world = self._world
        world.pause(label)
        if self.is_down:
            raise StorageError(f"{label}: the store is down")
        if not world.faults.calls:
            return effect(), False
        fault = world.chance.of(5 if hides else 4, faults)
        if fault == 1:
            self._fault("it does not arrive")
            raise StorageError(f"{label}: it does not arrive")
        if fault == 2:
            self._fault("it arrives late")
            world.spawn(f"late: {label}", lambda: self._arrive(label, effect))
            raise StorageError(f"{label}: no answer yet")
        landed = effect()
        if fault == 3:
            self._fault("it lands, the answer is lost")
            raise StorageError(f"{label}: the answer is lost")
        if fault == 4:
            self._fault("it lands, and a retry inside the client hides it")
        return landed, fault == 4

    def _is_stale(self) -> bool:
        world = self._world
        if not world.faults.calls or not world.chance.happens(_STALE):
            return False
        self._fault("the answer is stale")
        return True

    def _arrive(self, label: str, effect: Callable[[], Any]) -> None:
        self._world.rest()
        self._world.pause(label)
        effect()

    def _fault(self, what: str) -> None:
        self._world.faults.calls -= 1
        self._world.counts["lost answers"] += 1
        self._world.note(f"  fault: {what}")


class _Sink:
    def __init__(self, storage: SimStorage, uri: str) -> None:
        self._storage = storage
        self._uri = uri
        self._data: bytearray | None = bytearray()
        self._size = 0

    def write(self, data: bytes | memoryview, /) -> int:
        if self._data is None:
            raise StorageError(f"{self._uri}: written after its end")
        self._data += data
        self._size += len(data)
        return len(data)

    def tell(self) -> int:
        return self._size

    def close(self) -> None:
        if self._data is not None:
            data, self._data = bytes(self._data), None
            self._storage.put(self._uri, data)

    def abandon(self) -> None:
        self._data = None


def _short(uri: str) -> str:
    return uri.removeprefix("s3://store/r/")
