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
    StorageError,
)
from tests.fakes.memory_storage import StoredObjects
from tests.simulation.world import World

_READ_FAULTS = 0.004
_WRITE_FAULTS = 0.012
_DELETE_FAULTS = 0.03
# How likely a listing of the run log or of runs is stale, and how young the objects are that it may
# miss. A store must list task logs completely. For the run log a listing only saves requests, since
# the create decides; the time of a folder's newest object is only a hint.
_STALE = 0.01
_YOUNG_S = 30.0


class SimStorage(StoredObjects):
    """One store for all processes; every call is a step of the world."""

    def __init__(self, world: World) -> None:
        """Start empty."""
        super().__init__()
        self._world = world
        self.is_down = False
        # Whether it ignores create-if-absent.
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

    def get_many(self, uris: Sequence[str]) -> builtins.list[bytes | None]:
        """Return the bytes of each object, None where it is missing."""
        if uris:
            self._read(f"get {len(uris)} objects")
        return [self.objects.get(uri) for uri in uris]

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
        """Copy each object to the name it is paired with."""
        for source, target in names.items():
            self.put(target, self.get(source))

    def delete(self, uris: Iterable[str]) -> None:
        """Delete the objects one by one, until the process dies."""
        for uri in uris:
            # By value: another may be deleted when it arrives.
            gone = functools.partial(self.objects.pop, uri, None)
            self._write(f"delete {_short(uri)}", gone, faults=_DELETE_FAULTS)

    def _asked(self, kind: str, uri: str) -> None:
        self._read(f"{kind} {_short(uri)}")

    def _found(self, kind: str, prefix_uri: str) -> builtins.list[str]:
        found = self._inside(prefix_uri)
        if kind != "list":
            return [] if self._is_stale() else found
        self.listed_at.setdefault(prefix_uri, self._world.clock)
        if prefix_uri.endswith("/log") and self._is_stale():
            old = self._world.clock - _YOUNG_S
            # It ends early: the log's names are in the order of its numbers.
            return [*itertools.takewhile(lambda uri: self.written_at[uri] < old, found)]
        return found

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
        """Do a write, unless a fault is due; return whether a landing is hidden."""
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


def _short(uri: str) -> str:
    return uri.removeprefix("s3://store/r/")
