"""Answers of the store: a failed call is told in the user's terms, wherever the ledger makes it."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator

from holdfast.errors import LedgerDamagedError, StoreUnavailableError
from holdfast.storage.port import Storage, StorageError


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
