"""Answers of the store: a failed call is told in the user's terms, wherever the ledger makes it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

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
        raise StoreUnavailableError(uri=uri, reason=str(error)) from error


def list_objects(storage: Storage, folder: str) -> list[str]:
    """Return the URIs of all objects in a folder, sorted.

    Raises:
        StoreUnavailableError: The store did not answer.
    """
    with answers(folder):
        return storage.list(folder)


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
