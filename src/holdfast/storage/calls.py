"""One call to obstore: counted, retried with new credentials, its failures in our terms."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)

from holdfast.model.lasting import lasts, text_lasts
from holdfast.storage import credentials
from holdfast.storage.port import (
    AlreadyThereError,
    ForbiddenError,
    ObjectChangedError,
    ObjectFacts,
    StorageError,
)
from holdfast.storage.runtime import io_runtime
from holdfast.text import without_passwords

# ---- One call to obstore: counted, retried with new credentials, its failures in our terms

_Result = TypeVar("_Result")

# What S3 answers to an expired token, with status 400; versitygw to an expired key, even with 404.
_STALE = re.compile(
    "<Code>(?:ExpiredToken|InvalidToken|TokenRefreshRequired|RequestExpired|XAdminUserNotFound)"
)
# obstore has an error type for these, but does not use it for listings.
_REFUSED = re.compile(r"\b(?:401 Unauthorized|403 Forbidden)\b")
_MISUSES = (InvalidPathError, NotSupportedError, UnknownConfigurationKeyError, ValueError)
# The same for HEAD, whose answer has no body.
_BAD_REQUEST = re.compile(r"\b400 Bad Request\b")


def call(uri: str, action: Callable[[], _Result], *, size: int = 0, renews: bool = True) -> _Result:
    """Run one obstore call and translate its failures into our own errors.

    Args:
        uri: The object or folder, for messages.
        action: The call.
        size: How many bytes it sends.
        renews: Whether a refused call may be retried with new credentials.

    Raises:
        FileNotFoundError: There is no such object.
        AlreadyThereError: A create found an object.
        ForbiddenError: The store refused the credentials.
        StorageError: The call failed otherwise; whether it took effect is unknown.
    """
    try:
        return _run(action, size, renews=renews)
    except FileNotFoundError as error:
        if _is_refusal(error):
            said = f"{uri}: refused: {_in_short(str(error))}{_why()}"
            raise ForbiddenError(said, lasts=_lasts(error)) from None
        raise FileNotFoundError(f"{uri}: no such object") from None
    except (AlreadyExistsError, PreconditionError):
        raise AlreadyThereError(uri) from None
    except (BaseError, OSError, ValueError) as error:
        # Without the cause: a store's answer may repeat the credentials that it refused.
        said = f"{uri}: {type(error).__name__}: {_in_short(str(error))}"
        if _is_refusal(error):
            raise ForbiddenError(f"{said}{_why()}", lasts=_lasts(error)) from None
        raise StorageError(said, lasts=_lasts(error)) from None


def write(uri: str, action: Callable[[], object], *, size: int = 0, renews: bool = True) -> None:
    """Run a call that writes: here "not found" means the bucket, not the object.

    Raises:
        StorageError: The call failed; whether it took effect is unknown.
    """
    try:
        call(uri, action, size=size, renews=renews)
    except FileNotFoundError:
        said = f"{uri}: the bucket or container does not exist"
        raise StorageError(said, lasts=True) from None


def _run(action: Callable[[], _Result], size: int, *, renews: bool) -> _Result:
    started = time.monotonic()
    try:
        return io_runtime().request(action, written=size)
    except (BaseError, FileNotFoundError) as error:
        # Renew even if this call cannot be retried: aborting its upload needs new credentials.
        if not (_is_refusal(error) and credentials.renew(started) and renews):
            raise
    return io_runtime().request(action, written=size)


def _is_refusal(error: Exception) -> bool:
    """Whether other credentials might have been accepted."""
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return True
    text = str(error)
    if _STALE.search(text) or _REFUSED.search(text):
        return True
    return "<Code>" not in text and _BAD_REQUEST.search(text) is not None


def _lasts(error: Exception) -> bool:
    """Whether the store would refuse the same call later, as far as its answer shows."""
    if credentials.trouble():
        return False  # The call used old credentials, because new ones were not available.
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        # The text may still say that a token has expired; the next process reads a new one.
        return text_lasts(f"403 Forbidden {error}")
    return isinstance(error, _MISUSES) or lasts(error)


def _why() -> str:
    trouble = credentials.trouble()
    return f" ({trouble})" if trouble else ""


def _in_short(text: str) -> str:
    """Return an obstore error's first line; from a store's XML only the code and message."""
    # Cut at the first tag, whatever it is: only these two elements are known to hold no secret.
    line = text.strip().partition("\n")[0].partition("<")[0].strip(" :")
    found = [re.search(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL) for tag in ("Code", "Message")]
    said = ": ".join([line, *(" ".join(element[1].split()) for element in found if element)])
    return without_passwords(said)  # The text names the endpoint as the user gave it.


# ---- Reading a part of a pinned object, and listing objects

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore


def read_range(
    store: ObjectStore, key: str, uri: str, bounds: tuple[int, int], tag: str
) -> bytes | memoryview:
    """Return the bytes from the first bound up to the second, without a copy.

    Args:
        store: The store.
        key: The object's key.
        uri: The object's URI, for messages.
        bounds: The first byte, and the one after the last.
        tag: The tag that the object must have; empty for any.

    Raises:
        ObjectChangedError: The object has another tag now, or ends too early.
        FileNotFoundError: There is no such object.
    """
    start, stop = bounds
    if start >= stop:
        return b""  # A store refuses an empty range.
    options: GetOptions = {"range": (start, stop)}
    if tag:
        options["if_match"] = tag
    try:
        found = obstore.get(store, key, options=options)
    except PreconditionError:
        raise ObjectChangedError(f"{uri}: rewritten since it was pinned") from None
    data = memoryview(found.bytes())
    if len(data) != stop - start:
        raise ObjectChangedError(f"{uri}: ends before byte {stop}")
    return data


def facts_below(store: ObjectStore, root: str, key: str) -> list[ObjectFacts]:
    """Return the facts of all objects in a folder, or of the one object with that name.

    Args:
        store: The store.
        root: The root that the store serves, as the beginning of a URI.
        key: The key of the folder or object.
    """
    pages = obstore.list(store, prefix=f"{key}/" if key else None)
    found = [_fact(root, meta) for page in pages for meta in page]
    if not found and key:
        try:
            return [_fact(root, obstore.head(store, key))]
        except FileNotFoundError:
            return []
    return sorted(found, key=lambda fact: fact.uri)


def _fact(root: str, meta: ObjectMeta) -> ObjectFacts:
    return ObjectFacts(
        uri=f"{root}/{meta['path']}",
        size_bytes=meta["size"],
        tag=meta["e_tag"] or "",
        modified=meta["last_modified"].timestamp(),
    )
