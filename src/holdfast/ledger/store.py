"""The ledger's store: create-once writes, their failures in the user's terms, and the probe.

Clients retry inside, so "already exists" may be our own write, and a refused write may have
stored nothing. After anything but success we therefore read back: our bytes mean won, other
bytes mean lost, absent means try again. Bytes carry a nonce, so no two writers' are equal.

Such a store would let two drivers both believe that they own the run.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator

from holdfast.errors import LedgerDamagedError, StoreUnavailableError, UnsafeStoreError
from holdfast.failpoints import failpoint
from holdfast.ledger.layout import probe_uri
from holdfast.storage.port import AlreadyThereError, Storage, StorageError


# ---- Answers of the store: a failed call is told in the user's terms, wherever the ledger makes
# it
@contextlib.contextmanager
def answers(uri: str) -> Iterator[None]:
    """Speak of the store where a call to it fails; a missing object stays `FileNotFoundError`.

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


def refuse_links(folder: str, uris: Iterable[str]) -> None:
    """Refuse objects that are reached through a link inside a run's folder, before they go.

    A link leads anywhere: what stands behind it was not written by the run. Only folders of the
    local file system can be links; a link to one file is deleted itself, not what it leads to.

    Raises:
        LedgerDamagedError: A folder is a link.
    """
    if not folder.startswith("file://"):
        return
    # Sorted, so that each is looked at once and its parents before it.
    inner = {parent for uri in uris for parent in _parents(uri, folder)}
    for uri in sorted(inner):
        if os.path.islink(uri.removeprefix("file://")):  # noqa: PTH114 - a path of a URI.
            raise LedgerDamagedError(uri=uri, reason="a link, which may lead out of the store")


def _parents(uri: str, folder: str) -> Iterator[str]:
    """Yield the folders that hold an object, up to the one that is given."""
    parent = uri.rpartition("/")[0]
    while len(parent) > len(folder):
        yield parent
        parent = parent.rpartition("/")[0]


def read_whole(storage: Storage, uri: str, digest: str) -> bytes:
    """Return an object's bytes, which must be those that the digest was made of.

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
        raise LedgerDamagedError(uri=uri, reason="the digest does not fit the content")
    return data


# ---- Create-once: the one primitive that the whole protocol stands on

_ATTEMPTS_MAX = 6
_FIRST_PAUSE_S = 0.1


def create_once(
    storage: Storage, uri: str, data: bytes, *, sleep: Callable[[float], None]
) -> bytes:
    """Create the object, or find out who did; return the bytes that stand there.

    Equal to `data`: we won. Anything else is another writer's object, whole or damaged.

    Args:
        storage: Where.
        uri: Which object.
        data: Its content, with a nonce of ours inside.
        sleep: How to pause between attempts.

    Raises:
        StoreUnavailableError: No attempt ended in a certain answer.
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
        reason="created, but never seen" if refusal is None else str(refusal),
        retry_safe=refusal is None or not refusal.lasts,
    )


# ---- The store probe: a store that ignores create-if-absent is refused before any work

_PROBE_ATTEMPTS_MAX = 4
_PAUSE_S = 0.2
_OVERWRITES = "it overwrites when asked to create-if-absent"


def probe_store(
    storage: Storage, store: str, nonce: str, *, sleep: Callable[[float], None]
) -> None:
    """Prove that the store creates an object once only.

    Args:
        storage: How the store is reached.
        store: Its URI.
        nonce: A name nobody else uses.
        sleep: How to pause between attempts.

    Raises:
        UnsafeStoreError: The second create was accepted, or the first was not kept.
        StoreUnavailableError: The store cannot be reached or written.
    """
    uri = probe_uri(store, nonce)
    first, second = f"first {nonce}".encode(), f"second {nonce}".encode()
    if create_once(storage, uri, first, sleep=sleep) != first:
        raise UnsafeStoreError(store=store, what="a fresh object has another's content")
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
            raise UnsafeStoreError(store=store, what="an object it took is gone") from error
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
    """Whether a create over an object is refused; None if no answer came, which proves nothing."""
    try:
        storage.create(uri, data)
    except AlreadyThereError:
        return True
    except StorageError:
        return None
    return False
