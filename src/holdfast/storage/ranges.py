"""Reading a part of an object that was pinned, and telling what objects are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import PreconditionError

from holdfast.storage.port import ObjectChangedError, ObjectFacts

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore


def read_range(
    store: ObjectStore, key: str, uri: str, bounds: tuple[int, int], tag: str
) -> bytes | memoryview:
    """Return the bytes from the first bound up to the second, without a copy.

    Args:
        store: Where.
        key: Which object.
        uri: Its name in messages.
        bounds: The first byte, and the one after the last.
        tag: What the object's tag must be; empty for whatever stands there now.

    Raises:
        ObjectChangedError: The object has another tag now, or ends too early.
        FileNotFoundError: There is no such object.
    """
    start, stop = bounds
    if start >= stop:
        return b""  # A store refuses to be asked for nothing.
    options: GetOptions = {"range": (start, stop)}
    if tag:
        options["if_match"] = tag
    try:
        found = obstore.get(store, key, options=options)
    except PreconditionError:
        raise ObjectChangedError(f"{uri}: written anew since it was pinned") from None
    data = memoryview(found.bytes())
    if len(data) != stop - start:
        raise ObjectChangedError(f"{uri}: ends before byte {stop}")
    return data


def facts_below(store: ObjectStore, root: str, key: str) -> list[ObjectFacts]:
    """Return what is known of the objects in a folder, or of the one object that has the name.

    Args:
        store: Where.
        root: What the store serves, as the beginning of a URI.
        key: The folder, or the object.
    """
    pages = obstore.list(store, prefix=f"{key}/" if key else None)
    found = [_fact(root, meta) for page in pages for meta in page]
    if not found and key:
        try:
            return [_fact(root, obstore.head(store, key))]
        except FileNotFoundError:
            return []
    return sorted(found, key=lambda one: one.uri)


def _fact(root: str, meta: ObjectMeta) -> ObjectFacts:
    return ObjectFacts(
        uri=f"{root}/{meta['path']}",
        size_bytes=meta["size"],
        tag=meta["e_tag"] or "",
        modified=meta["last_modified"].timestamp(),
    )
