"""Storage on obstore.

obstore is not fork-safe and PySpark forks its workers, so stores are opened lazily and
belong to the process that opened them. Instances can be pickled: they carry options, no
connections.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from holdfast.storage import locations
from holdfast.storage.port import AlreadyThereError, ObjectSink, StorageError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_Result = TypeVar("_Result")
_Answer = TypeVar("_Answer")

_UPLOAD_PART_BYTES = 8 * 1024 * 1024
_UPLOADS_IN_FLIGHT = 4
_REQUESTS_AT_ONCE = 32
_READS_MAX = 4
# What S3 gives an object that was sent as a whole: the MD5 of its bytes, unless it is encrypted.
_MD5_TAG = re.compile(r'"?([0-9a-f]{32})"?')


class ObjectStorage:
    """All objects that one set of options reaches."""

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        """Keep the options; nothing is opened yet.

        Args:
            options: Iceberg FileIO properties (`s3.endpoint`, ...).
        """
        self._options = locations.storage_options(options or {})
        # TLS finds bytes that were spoiled on the way; without it nothing below us does.
        self._is_guarded = not locations.is_plain_http(options or {})

    def create(self, uri: str, data: bytes) -> None:
        """Write the object only if there is none."""
        store, key = self._locate(uri)
        _write(uri, lambda: obstore.put(store, key, data, mode="create"))

    def put(self, uri: str, data: bytes) -> None:
        """Write the object, over an older one if there is one."""
        store, key = self._locate(uri)
        _write(uri, lambda: obstore.put(store, key, data, mode="overwrite"))

    def get(self, uri: str) -> bytes:
        """Return the object's bytes."""
        return self._get(uri, is_sure=False)

    def get_sure(self, uri: str) -> bytes:
        """Return the bytes of an object that no digest of ours can vouch for."""
        return self._get(uri, is_sure=True)

    def get_many(self, uris: Sequence[str]) -> list[bytes | None]:
        """Return the bytes of each object, None where it is missing; many at once."""
        return _at_once(self.get, uris)

    def size(self, uri: str) -> int:
        """Return the object's size in bytes."""
        store, key = self._locate(uri)
        return int(_call(uri, lambda: obstore.head(store, key))["size"])

    def sizes(self, uris: Sequence[str]) -> list[int | None]:
        """Return the size of each object, None where it is missing; many at once."""
        return _at_once(self.size, uris)

    def last_written(self, uris: Sequence[str]) -> list[float | None]:
        """Return when each object was written, in Unix seconds, None where it is missing."""

        def ask(uri: str) -> float:
            store, key = self._locate(uri)
            return float(_call(uri, lambda: obstore.head(store, key))["last_modified"].timestamp())

        return _at_once(ask, uris)

    def copy(self, names: Mapping[str, str]) -> None:
        """Copy each object to the name beside it, many at once; the store does it where it can."""
        with ThreadPoolExecutor(max_workers=min(_REQUESTS_AT_ONCE, len(names) or 1)) as pool:
            list(pool.map(self._copy, names, names.values()))

    def folders(self, prefix_uri: str) -> list[str]:
        """Return the names of the folders right inside a folder, sorted."""
        _, prefix = locations.split(prefix_uri)
        store, _ = self._locate(prefix_uri)
        found = _call(prefix_uri, lambda: obstore.list_with_delimiter(store, prefix=f"{prefix}/"))
        return sorted(one.rstrip("/").rsplit("/", 1)[-1] for one in found["common_prefixes"])

    def list(self, prefix_uri: str) -> list[str]:
        """Return the URIs of all objects in a folder, sorted."""
        root, prefix = locations.split(prefix_uri)
        store, _ = self._locate(prefix_uri)
        pages = _call(prefix_uri, lambda: list(obstore.list(store, prefix=f"{prefix}/")))
        slash = "/" if not root.endswith("/") or root == "file://" else ""
        return sorted(f"{root}{slash}{meta['path']}" for page in pages for meta in page)

    def newest(self, prefix_uri: str) -> float | None:
        """Return when the newest object of a folder was written, in Unix seconds."""
        _, prefix = locations.split(prefix_uri)
        store, _ = self._locate(prefix_uri)
        pages = _call(prefix_uri, lambda: list(obstore.list(store, prefix=f"{prefix}/")))
        return max(
            (meta["last_modified"].timestamp() for page in pages for meta in page), default=None
        )

    def delete(self, uris: Iterable[str]) -> None:
        """Delete the objects, many at once; missing ones are no error."""

        def remove(uri: str) -> None:
            store, key = self._locate(uri)
            with contextlib.suppress(FileNotFoundError):
                _call(uri, lambda: obstore.delete(store, key))

        with ThreadPoolExecutor(max_workers=_REQUESTS_AT_ONCE) as pool:
            list(pool.map(remove, uris))

    def open_sink(self, uri: str) -> ObjectSink:
        """Start an object that is written piece by piece."""
        store, key = self._locate(uri)
        return _Upload(uri, store, key)

    def _copy(self, source: str, target: str) -> None:
        store, key = self._locate(source)
        _, new_key = self._locate(target)
        if locations.split(source)[0] != "file://":  # There a copy is a link, with the old time.
            try:
                _call(source, lambda: obstore.copy(store, key, new_key))
            except StorageError:
                # S3 copies no object above 5 GB. What passes through here must not be spoiled.
                if not self._is_guarded:
                    raise
            else:
                return
        found = _call(source, lambda: obstore.get(store, key))
        upload = _Upload(target, store, new_key)
        pieces = iter(found.stream(min_chunk_size=_UPLOAD_PART_BYTES))
        while (piece := _call(source, lambda: next(pieces, None))) is not None:
            upload.write(memoryview(piece))
        upload.close()

    def _get(self, uri: str, *, is_sure: bool) -> bytes:
        store, key = self._locate(uri)
        if self._is_guarded:
            return _call(uri, lambda: obstore.get(store, key).bytes().to_bytes())
        return _call(uri, lambda: _read(store, key, is_sure=is_sure))

    def _locate(self, uri: str) -> tuple[ObjectStore, str]:
        root, key = locations.split(uri)
        return _open_store(os.getpid(), root, self._options), key


def _at_once(ask: Callable[[str], _Answer], uris: Sequence[str]) -> list[_Answer | None]:
    """Ask for many objects at once; None where one is missing."""

    def one(uri: str) -> _Answer | None:
        try:
            return ask(uri)
        except FileNotFoundError:
            return None

    with ThreadPoolExecutor(max_workers=min(_REQUESTS_AT_ONCE, len(uris) or 1)) as pool:
        return list(pool.map(one, uris))


@lru_cache(maxsize=64)
def _open_store(process_id: int, root: str, options: tuple[tuple[str, str], ...]) -> ObjectStore:  # noqa: ARG001
    """Open a store once per process: ledger, table and files share its connections."""
    return locations.open_root(root, dict(options))


def _read(store: ObjectStore, key: str, *, is_sure: bool) -> bytes:
    """Return an object's bytes as they are stored; what the wire has spoiled is read again.

    Args:
        store: Where.
        key: Which object.
        is_sure: Whether bytes without a tag that tells must arrive twice alike.

    Raises:
        ValueError: No two reads gave the same bytes, and none fits the object's tag.
    """
    seen: set[bytes] = set()
    for _ in range(_READS_MAX):
        found = obstore.get(store, key)
        data = found.bytes().to_bytes()
        tag = _MD5_TAG.fullmatch(found.meta["e_tag"] or "")
        fits = not is_sure if tag is None else _md5(data) == tag[1]
        if fits or data in seen:
            return data  # Twice the same: then the tag is not of these bytes, as with encryption.
        seen.add(data)
    raise ValueError(f"{_READS_MAX} reads gave {_READS_MAX} different objects")


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


class _Upload:
    """One object on its way: small ones go out as one put, large ones in parts."""

    def __init__(self, uri: str, store: ObjectStore, key: str) -> None:
        self._uri = uri
        self._store = store
        self._key = key
        self._position = 0
        self._writer: Any = obstore.open_writer(
            store, key, buffer_size=_UPLOAD_PART_BYTES, max_concurrency=_UPLOADS_IN_FLIGHT
        )

    def write(self, data: bytes | memoryview, /) -> int:
        _write(self._uri, lambda: self._writer.write(data))
        self._position += len(data)
        return len(data)

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        try:
            _write(self._uri, self._writer.close)
        except StorageError:
            # The client tries again by itself, and an upload that has landed can then be unknown
            # to the store. Nobody else uses the name, and an object appears whole or not at all.
            if not self._is_there():
                raise

    def _is_there(self) -> bool:
        try:
            found = _call(self._uri, lambda: obstore.head(self._store, self._key))
        except (FileNotFoundError, StorageError):
            return False
        return bool(found["size"] == self._position)

    def abandon(self) -> None:
        # Dropping the writer unfinished leaves no object; parts already sent are removed by
        # the store's own rule for unfinished uploads.
        self._writer = None


def _call(uri: str, action: Callable[[], _Result]) -> _Result:
    """Run one obstore call and speak of its failures in our own terms.

    Raises:
        FileNotFoundError: There is no such object.
        AlreadyThereError: A create found one.
        StorageError: Anything else; whether the call took effect is unknown.
    """
    try:
        return action()
    except FileNotFoundError:
        raise FileNotFoundError(f"{uri}: no such object") from None
    except (AlreadyExistsError, PreconditionError):
        raise AlreadyThereError(uri) from None
    except (BaseError, OSError, ValueError) as error:
        # Without the cause: a store's answer may repeat the credentials that it did not accept.
        raise StorageError(f"{uri}: {type(error).__name__}: {_in_short(str(error))}") from None


def _in_short(text: str) -> str:
    """Return an obstore error's first line; of a store's XML only the code and the message."""
    # Cut at the first tag, whatever it is: only these two elements are known to hold no secret.
    line = text.strip().partition("\n")[0].partition("<")[0].strip(" :")
    found = [re.search(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL) for tag in ("Code", "Message")]
    return ": ".join([line, *(" ".join(one[1].split()) for one in found if one)])


def _write(uri: str, action: Callable[[], object]) -> None:
    """Run a call that writes: here "not found" speaks of the bucket, not of the object.

    Raises:
        StorageError: It failed; whether it took effect is unknown.
    """
    try:
        _call(uri, action)
    except FileNotFoundError:
        raise StorageError(f"{uri}: the bucket or container does not exist") from None
