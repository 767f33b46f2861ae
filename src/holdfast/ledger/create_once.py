"""Create-once: the one primitive that the whole protocol stands on.

Clients retry inside, so "already exists" may be our own write, and a refused write may have
stored nothing. After anything but success we therefore read back: our bytes mean won, other
bytes mean lost, absent means try again. Bytes carry a nonce, so no two writers' are equal.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import StoreUnavailableError
from holdfast.storage.port import Storage, StorageError

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
