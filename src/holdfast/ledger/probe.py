"""The store probe: a store that ignores create-if-absent is refused before any work.

Such a store would let two drivers both believe that they own the run.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import StoreUnavailableError, UnsafeStoreError
from holdfast.failpoints import failpoint
from holdfast.ledger.create_once import create_once
from holdfast.ledger.layout import probe_uri
from holdfast.storage.port import AlreadyThereError, Storage, StorageError

_ATTEMPTS_MAX = 4
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
    for attempt in range(_ATTEMPTS_MAX):
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
