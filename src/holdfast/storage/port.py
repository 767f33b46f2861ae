"""What the rest of Holdfast needs from storage.

Objects are named by absolute URI (`s3://bucket/key`, `file:///folder/name`). The ledger needs
one primitive, create-if-absent, plus reads and listings that see every finished write. A
simulation implements this protocol in memory.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


class StorageError(Exception):
    """A storage call did not succeed; whether it took effect is unknown."""

    def __init__(self, text: str = "", *, lasts: bool = False) -> None:
        """Keep the text, and whether a retry would fail in the same way."""
        super().__init__(text)
        self.lasts = lasts


class ForbiddenError(StorageError):
    """The store refused these credentials; S3 may say so of a missing object, too."""


class AlreadyThereError(StorageError):
    """A create found an object, or the store said so: it may be our own."""


class ObjectChangedError(StorageError):
    """An object is not the one that was pinned: it was overwritten since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFacts:
    """What a listing says about an object."""

    uri: str
    size_bytes: int
    # Changes whenever the object is overwritten; empty if the store has no tags.
    tag: str
    # When it was written, in Unix seconds.
    modified: float


class ObjectSink(Protocol):
    """A writable stream that becomes an object when it is closed."""

    def write(self, data: bytes | memoryview, /) -> int:
        """Take the bytes; they may be sent later."""

    def tell(self) -> int:
        """Return how many bytes were taken."""

    def close(self) -> None:
        """Send what is left; the object exists when this returns."""

    def abandon(self) -> None:
        """Discard the object; nothing becomes visible."""


class Storage(Protocol):
    """Objects by absolute URI; a missing object is a `FileNotFoundError`."""

    def create(self, uri: str, data: bytes) -> None:
        """Write the object only if there is none; see `ledger.create_once` for the outcomes."""

    def put(self, uri: str, data: bytes) -> None:
        """Write the object, replacing an older one."""

    def get(self, uri: str) -> bytes:
        """Return the object's bytes."""

    def get_sure(self, uri: str) -> bytes:
        """Return the bytes of an object for which we have no digest."""

    def get_many(self, uris: Sequence[str]) -> list[bytes | None]:
        """Return the bytes of each object, None if it is missing; many at once."""

    def get_range(self, uri: str, start: int, stop: int, *, tag: str = "") -> bytes | memoryview:
        """Return a range of bytes from the version of the object that has the tag.

        Raises:
            ObjectChangedError: The object has another tag now.
        """

    def size(self, uri: str) -> int:
        """Return the object's size in bytes."""

    def sizes(self, uris: Sequence[str]) -> list[int | None]:
        """Return the size of each object, None if it is missing; many at once."""

    def last_written(self, uris: Sequence[str]) -> list[float | None]:
        """Return when each object was written, in Unix seconds, None if it is missing."""

    def copy(self, names: Mapping[str, str]) -> None:
        """Copy each object to its new name in the same store, as an object written now.

        A missing object is a `FileNotFoundError`; others may have been copied by then.
        """

    def folders(self, prefix_uri: str) -> list[str]:
        """Return the names of a folder's direct subfolders, sorted."""

    def list(self, prefix_uri: str) -> list[str]:
        """Return the URIs of all objects in a folder, sorted."""

    def walk(self, prefix_uri: str) -> Iterator[tuple[str, int]]:
        """Yield URI and size of each object in a folder, in any order, however many there are."""

    def facts(self, prefix_uri: str) -> builtins.list[ObjectFacts]:
        """Return the facts of all objects in a folder, or of the one object, sorted by URI."""

    def newest(self, prefix_uri: str) -> float | None:
        """Return when the newest object in a folder was written, in Unix seconds."""

    def delete(self, uris: Iterable[str]) -> None:
        """Delete the objects; a missing object is not an error."""

    def open_sink(self, uri: str) -> ObjectSink:
        """Open an object for streaming writes."""
