"""The ledger's store: create-once writes, their failures in the user's terms, and the probe.

Storage clients retry internally, so "already exists" may be our own write, and a refused write may
have stored nothing. After anything but success we therefore read back: our bytes mean won, other
bytes mean lost, absent means try again. The bytes carry a nonce, so no two writers' are equal.

The probe refuses a store that ignores create-if-absent: two drivers could both own a run there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import groupby

from holdfast.errors import LedgerDamagedError, StoreUnavailableError, UnsafeStoreError
from holdfast.failpoints import failpoint
from holdfast.ledger.layout import probe_uri
from holdfast.storage.port import AlreadyThereError, Storage, StorageError


# ---- Answers of the store: a failed call is reported in the user's terms, wherever it is made
@contextlib.contextmanager
def answers(uri: str) -> Iterator[None]:
    """Turn a failed call into a store error; a missing object stays `FileNotFoundError`.

    Raises:
        StoreUnavailableError: The store did not answer.
    """
    try:
        yield
    except StorageError as error:
        raise StoreUnavailableError(
            uri=uri, reason=str(error), retry_safe=not error.lasts
        ) from error


def list_objects(storage: Storage, folder: str) -> list[str]:
    """Return the URIs of all objects in a folder, sorted.

    Raises:
        StoreUnavailableError: The store did not answer.
    """
    with answers(folder):
        return storage.list(folder)


def walk(storage: Storage, folder: str) -> Iterator[str]:
    """Yield the URIs of all objects in a folder, in any order; none is held.

    Raises:
        StoreUnavailableError: The store did not answer.
    """
    yield from (uri for uri, _ in walk_sizes(storage, folder))


def walk_sizes(storage: Storage, folder: str) -> Iterator[tuple[str, int]]:
    """Yield URI and size of each object in a folder, in any order; none is held.

    Raises:
        StoreUnavailableError: The store did not answer.
    """
    with answers(folder):
        yield from storage.walk(folder)


class ObjectNames(Collection[str]):
    """The URIs of many objects, held by folder: a long run has millions."""

    def __init__(self, uris: Iterable[str] = ()) -> None:
        """Take the URIs; those of one folder need not come together."""
        # No name has a slash, so that one can stand around each of them.
        self._names: dict[str, str] = {}
        self._count = 0
        for folder, some in groupby(uris, key=_folder):
            names = [uri.rpartition("/")[2] for uri in some]
            self._names[folder] = f"{self._names.get(folder, '/')}{'/'.join(names)}/"
            self._count += len(names)

    @property
    def folders(self) -> Iterable[str]:
        """The folders that hold the objects."""
        return self._names.keys()

    def __len__(self) -> int:
        """Return how many objects there are."""
        return self._count

    def __iter__(self) -> Iterator[str]:
        """Yield the URIs."""
        for folder, names in self._names.items():
            yield from (f"{folder}/{name}" for name in names[1:-1].split("/"))

    def __contains__(self, uri: object) -> bool:
        """Whether an object is among them."""
        folder, _, name = str(uri).rpartition("/")
        return f"/{name}/" in self._names.get(folder, "")

    def discard(self, uris: Iterable[str]) -> None:
        """Leave out objects; those that are not among them are ignored."""
        for uri in uris:
            if uri in self:
                folder, _, name = uri.rpartition("/")
                self._names[folder] = self._names[folder].replace(f"/{name}/", "/")
                self._count -= 1
                if self._names[folder] == "/":
                    del self._names[folder]


def _folder(uri: str) -> str:
    return uri.rpartition("/")[0]


def refuse_links(folder: str, inner: Iterable[str]) -> None:
    """Refuse to delete objects that are reached through a link inside a run's folder.

    A link can lead anywhere, to objects that the run did not write. Only folders of the local file
    system can be links; deleting a link to a file removes the link, not its target.

    Args:
        folder: The run's folder.
        inner: The folders that hold the objects.

    Raises:
        LedgerDamagedError: A folder is a link.
    """
    if not folder.startswith("file://"):
        return
    # Sorted, so that each is checked once, and after its parents.
    every = {parent for each in inner for parent in (each, *_parents(each, folder))}
    for uri in sorted(every - {folder}):
        if os.path.islink(uri.removeprefix("file://")):  # noqa: PTH114 - a path of a URI.
            raise LedgerDamagedError(
                uri=uri, reason="it is a link, which may lead out of the store"
            )


def _parents(uri: str, folder: str) -> Iterator[str]:
    """Yield the folders that hold an object, up to but not including `folder`."""
    parent = uri.rpartition("/")[0]
    while len(parent) > len(folder):
        yield parent
        parent = parent.rpartition("/")[0]


def read_whole(storage: Storage, uri: str, digest: str) -> bytes:
    """Return an object's bytes, which must match the digest.

    Raises:
        LedgerDamagedError: The object is gone, or not as it was written.
        StoreUnavailableError: The store did not answer.
    """
    try:
        with answers(uri):
            data = storage.get(uri)
    except FileNotFoundError as error:
        raise LedgerDamagedError(uri=uri, reason="missing") from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise LedgerDamagedError(uri=uri, reason="the digest does not match the content")
    return data


# ---- Create-once: the one primitive that the whole protocol depends on

_ATTEMPTS_MAX = 6
_FIRST_PAUSE_S = 0.1


def create_once(
    storage: Storage, uri: str, data: bytes, *, sleep: Callable[[float], None]
) -> bytes:
    """Create the object, unless another writer did; return the bytes that are there.

    If they equal `data`, we won. Anything else is another writer's object, whole or damaged.

    Args:
        storage: How the store is reached.
        uri: The object's URI.
        data: Its content, which holds a nonce of ours.
        sleep: How to pause between attempts.

    Raises:
        StoreUnavailableError: No attempt got a definite answer.
    """
    refusal: StorageError | None = None
    for attempt in range(_ATTEMPTS_MAX):
        if attempt:
            sleep(_FIRST_PAUSE_S * 2**attempt)
        try:
            storage.create(uri, data)
        except StorageError as error:
            refusal = error
        else:
            return data
        try:
            return storage.get(uri)
        except FileNotFoundError:
            continue
        except StorageError as error:
            refusal = error
    raise StoreUnavailableError(
        uri=uri,
        reason="created, but not found when read back" if refusal is None else str(refusal),
        retry_safe=refusal is None or not refusal.lasts,
    )


# ---- The store probe: a store that ignores create-if-absent is refused before any work

_PROBE_ATTEMPTS_MAX = 4
_PAUSE_S = 0.2
_OVERWRITES = "it ignores create-if-absent, and overwrites the object"


def probe_store(
    storage: Storage, store: str, nonce: str, *, sleep: Callable[[float], None]
) -> None:
    """Prove that the store creates an object once only.

    Args:
        storage: How the store is reached.
        store: Its URI.
        nonce: A unique name.
        sleep: How to pause between attempts.

    Raises:
        UnsafeStoreError: The second create was accepted, or the first was not kept.
        StoreUnavailableError: The store cannot be reached or written.
    """
    uri = probe_uri(store, nonce)
    first, second = f"first {nonce}".encode(), f"second {nonce}".encode()
    if create_once(storage, uri, first, sleep=sleep) != first:
        raise UnsafeStoreError(store=store, what="a new object has another object's content")
    refusal = StorageError("no answer to a second create")
    for attempt in range(_PROBE_ATTEMPTS_MAX):
        if attempt:
            sleep(_PAUSE_S * 2**attempt)
        try:
            refused = _is_refused(storage, uri, second)
            if storage.get(uri) != first or refused is False:
                raise UnsafeStoreError(store=store, what=_OVERWRITES)
            if refused:
                break
        except FileNotFoundError as error:
            raise UnsafeStoreError(
                store=store, what="an object that it accepted is gone"
            ) from error
        except StorageError as error:
            refusal = error
    else:
        raise StoreUnavailableError(uri=uri, reason=str(refusal), retry_safe=not refusal.lasts)
    failpoint("before-probe-is-deleted")
    try:
        storage.delete([uri])
    except StorageError as error:
        raise StoreUnavailableError(
            uri=uri, reason=str(error), retry_safe=not error.lasts
        ) from error


def _is_refused(storage: Storage, uri: str, data: bytes) -> bool | None:
    """Whether a create over an object is refused; None without an answer, which proves nothing."""
    try:
        storage.create(uri, data)
    except AlreadyThereError:
        return True
    except StorageError:
        return None
    return False
