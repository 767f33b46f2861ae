"""Storage on obstore.

obstore is not fork-safe and PySpark forks its workers, so stores are opened lazily and
belong to the process that opened them. Instances can be pickled: they carry options, not
connections.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import logging
import os
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING, TypeVar

import obstore

from holdfast.model.limits import PART_BYTES
from holdfast.storage import credentials, locations
from holdfast.storage.calls import call as _call
from holdfast.storage.calls import facts_below, read_range
from holdfast.storage.calls import write as _write
from holdfast.storage.port import ObjectFacts, ObjectSink, StorageError
from holdfast.storage.runtime import io_runtime
from holdfast.storage.upload import Upload
from holdfast.text import printable

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

_log = logging.getLogger("holdfast")

_Answer = TypeVar("_Answer")

_READS_MAX = 4
_S3 = ("s3://", "s3a://", "s3n://")
# How many objects S3 deletes in one request, and how many names are held at a time.
_GROUP_MAX = 1000
_DELETED_AT_ONCE = 32 * _GROUP_MAX
# S3's tag of an object sent in one request: the MD5 of its bytes, unless it is encrypted.
_MD5_TAG = re.compile(r'"?([0-9a-f]{32})"?')


class ObjectStorage:
    """All objects that one set of options reaches."""

    def __init__(
        self,
        options: Mapping[str, str] | None = None,
        vendor: credentials.Vendor | None = None,
    ) -> None:
        """Keep the options; nothing is opened yet.

        Args:
            options: Iceberg FileIO properties (`s3.endpoint`, ...).
            vendor: The vendor of keys, if there is one.
        """
        self._options = locations.storage_options(options or {})
        self._vendor = vendor
        # TLS detects bytes corrupted in transit; without it nothing below us does.
        self._is_guarded = not locations.is_plain_http(options or {})

    def create(self, uri: str, data: bytes) -> None:
        """Write the object only if there is none."""
        store, key = self._locate(uri)
        _write(uri, lambda: obstore.put(store, key, data, mode="create"), size=len(data))

    def put(self, uri: str, data: bytes) -> None:
        """Write the object, replacing an older one."""
        store, key = self._locate(uri)
        _write(uri, lambda: obstore.put(store, key, data, mode="overwrite"), size=len(data))

    def get(self, uri: str) -> bytes:
        """Return the object's bytes."""
        return self._get(uri, is_sure=False)

    def get_sure(self, uri: str) -> bytes:
        """Return the bytes of an object for which we have no digest."""
        return self._get(uri, is_sure=True)

    def get_many(self, uris: Sequence[str]) -> list[bytes | None]:
        """Return the bytes of each object, None if it is missing; many at once."""
        return _at_once(self.get, uris)

    def get_range(self, uri: str, start: int, stop: int, *, tag: str = "") -> bytes | memoryview:
        """Return a range of bytes from the version of the object that has the tag."""
        store, key = self._locate(uri)
        return _call(uri, lambda: read_range(store, key, uri, (start, stop), tag))

    def size(self, uri: str) -> int:
        """Return the object's size in bytes."""
        store, key = self._locate(uri)
        return int(_call(uri, lambda: obstore.head(store, key))["size"])

    def sizes(self, uris: Sequence[str]) -> list[int | None]:
        """Return the size of each object, None if it is missing; many at once."""
        return self._each_fact(uris, lambda meta: int(meta["size"]))

    def last_written(self, uris: Sequence[str]) -> list[float | None]:
        """Return when each object was written, in Unix seconds, None if it is missing."""
        return self._each_fact(uris, lambda meta: float(meta["last_modified"].timestamp()))

    def _each_fact(
        self, uris: Sequence[str], fact: Callable[[ObjectMeta], _Answer]
    ) -> list[_Answer | None]:
        """Return a fact about each object, None if it is missing.

        Many objects of one folder are listed, a thousand per request. What a listing does not show
        is asked for, so that a store's order and its encoding of names decide nothing. So is
        everything if the store refuses to list.
        """
        found: dict[str, _Answer] = {}

        def list_some(names: _Names) -> None:
            store, _ = self._locate(names.folder)
            try:
                found.update(_call(names.folder, lambda: dict(names.facts(store, fact))))
            except StorageError as error:
                if not error.lasts:
                    raise

        def ask(uri: str) -> _Answer:
            store, key = self._locate(uri)
            return fact(_call(uri, lambda: obstore.head(store, key)))

        io_runtime().each(list_some, _many_of_a_folder(uris))
        rest = [uri for uri in uris if uri not in found]
        asked = dict(zip(rest, _at_once(ask, rest), strict=True))
        return [found.get(uri, asked.get(uri)) for uri in uris]

    def copy(self, names: Mapping[str, str]) -> None:
        """Copy each object to its new name, many at once; the store copies if it can."""
        io_runtime().each(lambda pair: self._copy(*pair), names.items())

    def folders(self, prefix_uri: str) -> list[str]:
        """Return the names of a folder's direct subfolders, sorted."""
        _, prefix = locations.split(prefix_uri)
        store, _ = self._locate(prefix_uri)
        found = _call(prefix_uri, lambda: obstore.list_with_delimiter(store, prefix=f"{prefix}/"))
        return sorted(folder.rstrip("/").rsplit("/", 1)[-1] for folder in found["common_prefixes"])

    def list(self, prefix_uri: str) -> list[str]:
        """Return the URIs of all objects in a folder, sorted."""
        root, prefix = locations.split(prefix_uri)
        store, _ = self._locate(prefix_uri)
        pages = _call(prefix_uri, lambda: list(obstore.list(store, prefix=f"{prefix}/")))
        slash = "/" if not root.endswith("/") or root == "file://" else ""
        return sorted(f"{root}{slash}{meta['path']}" for page in pages for meta in page)

    def walk(self, prefix_uri: str) -> Iterator[tuple[str, int]]:
        """Yield URI and size of each object in a folder, in any order, however many there are."""
        root, prefix = locations.split(prefix_uri)
        store, _ = self._locate(prefix_uri)

        def begun() -> tuple[Iterator[Sequence[ObjectMeta]], Sequence[ObjectMeta] | None]:
            stream = iter(obstore.list(store, prefix=f"{prefix}/", chunk_size=_PAGE))
            return stream, next(stream, None)

        slash = "/" if not root.endswith("/") or root == "file://" else ""
        # Only the beginning may be retried: a stream that has failed might look as if it had ended.
        stream, page = _call(prefix_uri, begun)
        pages, last, is_sorted = 0, "", _lists_in_order(root)
        while page is not None:
            yield from ((f"{root}{slash}{meta['path']}", meta["size"]) for meta in page)
            names = [last, *(meta["path"] for meta in page)]
            is_sorted = is_sorted and all(a < b for a, b in pairwise(names))
            pages, last = pages + 1, names[-1]
            if pages == _FIRST_PAGES and is_sorted and len(page) == _PAGE:
                rest = _rest(lambda: self._locate(prefix_uri)[0], prefix_uri, last)
                yield from ((f"{root}{slash}{path}", size) for path, size in rest)
                return
            page = _call(prefix_uri, lambda: next(stream, None), renews=False)

    def facts(self, prefix_uri: str) -> builtins.list[ObjectFacts]:
        """Return the facts of all objects in a folder, or of the one object, sorted by URI."""
        root, key = locations.split(prefix_uri)
        store, _ = self._locate(prefix_uri)
        return _call(prefix_uri, lambda: facts_below(store, root, key))

    def newest(self, prefix_uri: str) -> float | None:
        """Return when the newest object in a folder was written, in Unix seconds."""
        _, prefix = locations.split(prefix_uri)
        store, _ = self._locate(prefix_uri)
        pages = _call(prefix_uri, lambda: list(obstore.list(store, prefix=f"{prefix}/")))
        return max(
            (meta["last_modified"].timestamp() for page in pages for meta in page), default=None
        )

    def delete(self, uris: Iterable[str]) -> None:
        """Delete the objects, many at once; a missing object is not an error."""
        every = iter(uris)
        while some := list(islice(every, _DELETED_AT_ONCE)):
            groups = [group for _, of_root in _by_root(some) for group in _groups(of_root)]
            left = io_runtime().each(self._delete_group, groups)
            io_runtime().each(self._delete_one, [uri for group in left for uri in group])

    def open_sink(self, uri: str) -> ObjectSink:
        """Open an object for streaming writes."""
        store, key = self._locate(uri)
        return Upload(uri, store, key)

    def _delete_group(self, uris: Sequence[str]) -> Sequence[str]:
        """Delete objects of one store in one request, if it can; return those left to delete."""
        root, _ = locations.split(uris[0])
        if not root.startswith(_S3) or len(uris) == 1:
            return uris
        store, _ = self._locate(uris[0])
        keys = [locations.split(uri)[1] for uri in uris]
        try:
            _call(uris[0], lambda: obstore.delete(store, keys))
        except (StorageError, FileNotFoundError):
            # One that cannot be deleted must keep no other, and is named.
            return uris
        return ()

    def _delete_one(self, uri: str) -> None:
        store, key = self._locate(uri)
        with contextlib.suppress(FileNotFoundError):
            _call(uri, lambda: obstore.delete(store, key))

    def _copy(self, source: str, target: str) -> None:
        store, key = self._locate(source)
        _, new_key = self._locate(target)
        if locations.split(source)[0] != "file://":  # A local copy is a link, with the old time.
            try:
                _call(source, lambda: obstore.copy(store, key, new_key))
            except StorageError as error:
                # S3 does not copy objects above 5 GB, nor any of S3 Tables. Bytes that pass through
                # us need TLS.
                if not self._is_guarded:
                    raise
                _log.info("%s; its bytes pass through this process", printable(str(error)))
            else:
                return
        found = _call(source, lambda: obstore.get(store, key))
        upload = Upload(target, store, new_key)
        pieces = iter(found.stream(min_chunk_size=PART_BYTES))
        try:
            while (piece := _call(source, lambda: next(pieces, None))) is not None:
                upload.write(memoryview(piece))
            upload.close()
        except BaseException:
            upload.abandon()
            raise

    def _get(self, uri: str, *, is_sure: bool) -> bytes:
        store, key = self._locate(uri)
        if self._is_guarded:
            return _call(uri, lambda: obstore.get(store, key).bytes().to_bytes())
        return _call(uri, lambda: _read(store, key, is_sure=is_sure))

    def _locate(self, uri: str) -> tuple[ObjectStore, str]:
        root, key = locations.split(uri)
        store = _open_store(os.getpid(), root, self._options, self._vendor)
        if root != "file://":
            credentials.refresh(dict(self._options), self._vendor)
        return store, key


def _by_root(uris: Iterable[str]) -> Iterable[tuple[str, builtins.list[str]]]:
    """Return the objects of each store, by its root."""
    found: dict[str, list[str]] = {}
    for uri in uris:
        found.setdefault(locations.split(uri)[0], []).append(uri)
    return found.items()


def _groups(uris: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield objects in groups that one request can delete."""
    for start in range(0, len(uris), _GROUP_MAX):
        yield uris[start : start + _GROUP_MAX]


def _at_once(ask: Callable[[str], _Answer], uris: Sequence[str]) -> list[_Answer | None]:
    """Ask for many objects at once; None for a missing one."""

    def one(uri: str) -> _Answer | None:
        try:
            return ask(uri)
        except FileNotFoundError:
            return None

    return io_runtime().each(one, uris)


# How many objects of a folder are worth a listing, and how many a listing looks for: several run at
# once. A store returns a thousand per request.
_LISTED_FROM, _LISTED_AT_ONCE, _PAGE = 100, 4_000, 1_000
# Stores that list names in order, from any name on.
_SORTED = ("s3://", "gs://")
# How the names of S3's buckets end that do not.
_DIRECTORY_BUCKET = "--x-s3"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """Objects of one folder that one listing looks for."""

    folder: str
    # By key.
    uris: Mapping[str, str]
    is_sorted: bool

    def facts(
        self, store: ObjectStore, fact: Callable[[ObjectMeta], _Answer]
    ) -> Iterator[tuple[str, _Answer]]:
        """List the folder from the first name to the last, among at most as many others.

        Pages are not kept: what a store says about an object takes ten times as much memory.
        """
        _, prefix = locations.split(self.folder)
        first, last = min(self.uris), max(self.uris)
        # A listing begins after its offset, and the beginning of a name comes before it.
        pages = obstore.list(store, prefix=f"{prefix}/", offset=first[:-1], chunk_size=_PAGE)
        for page in islice(pages, 2 + 2 * len(self.uris) // _PAGE):
            for meta in page:
                if (uri := self.uris.get(meta["path"])) is not None:
                    yield uri, fact(meta)
            if self.is_sorted and page and page[-1]["path"] > last:
                break


def _many_of_a_folder(uris: Sequence[str]) -> list[_Names]:
    """Return the objects that are worth a listing."""
    folders: dict[str, list[str]] = {}
    for uri in uris:
        folders.setdefault(uri.rpartition("/")[0], []).append(uri)
    found = []
    for folder, inside in folders.items():
        if len(inside) < _LISTED_FROM:
            continue
        # Once for the folder: for each of 100,000 objects it takes longer than the rest.
        beginning = locations.split(inside[0])[1].rpartition("/")[0]
        start_of_name = len(folder) if beginning else len(folder) + 1
        keys = {f"{beginning}{uri[start_of_name:]}": uri for uri in inside}
        is_sorted = folder.startswith(_SORTED)
        names = sorted(keys)
        step = _LISTED_AT_ONCE if is_sorted else len(names)
        for start in range(0, len(names), step):
            some = {key: keys[key] for key in names[start : start + step]}
            found.append(_Names(folder=folder, uris=some, is_sorted=is_sorted))
    return found


# ---- A long listing, in parallel: each thread lists the names from one subfolder to another

# From how many pages on a listing is long.
_FIRST_PAGES = 4
# How many listings there are at a time, and how many pages each of them holds.
_LISTINGS, _PAGES = 32, 2
# How many ranges there are, and about how many pages each: a range's last page is wasted in part.
_RANGES, _RANGE_PAGES = 256, 4
# How many levels of subfolders are looked at to find where ranges begin.
_LEVELS = 4

# A range of names: those after the first, up to the second and without it, if there is one.
_Range = tuple[str, str | None]
# An object's name and size.
_Listed = tuple[str, int]


def _rest(store: Callable[[], ObjectStore], folder: str, after: str) -> Iterator[_Listed]:
    """Yield the names in a folder that come after one, with sizes, in any order.

    The ranges have no gap between them, whatever subfolders there are or will be.

    Raises:
        StorageError: The store does not list names in order, or the call failed.
    """
    every = _firsts(store, folder)
    firsts = [first for first in every if first > after]
    # As many subfolders as the first pages have begun are about as many pages.
    pages = _FIRST_PAGES * len(firsts) // max(1, len(every) - len(firsts))
    ranges = min(_RANGES, max(1, pages // _RANGE_PAGES))
    edges = [after, *firsts[:: max(1, -(-len(firsts) // ranges))][1:]]
    todo: deque[_Range] = deque(zip(edges, [*edges[1:], None], strict=True))
    while some := [todo.popleft() for _ in range(min(len(todo), _LISTINGS))]:
        listed = io_runtime().each(lambda part: _listed(store, folder, part), some)
        for (_, until), (found, next_after) in zip(some, listed, strict=True):
            yield from found
            if next_after is not None:
                todo.append((next_after, until))


def _firsts(store: Callable[[], ObjectStore], folder: str) -> list[str]:
    """Return the names with which subfolders begin, in order: of the first level with many."""

    def below(prefix: str) -> Sequence[str]:
        found = _call(folder, lambda: obstore.list_with_delimiter(store(), prefix=f"{prefix}/"))
        return [each.rstrip("/") for each in found["common_prefixes"]]

    found = [locations.split(folder)[1]]
    for _ in range(_LEVELS):
        inner = sorted(each for some in io_runtime().each(below, found) for each in some)
        if not inner:
            break
        found = inner
        if len(found) >= _LISTINGS:
            break
    return [f"{each}/" for each in found]


def _listed(
    store: Callable[[], ObjectStore], folder: str, part: _Range
) -> tuple[list[_Listed], str | None]:
    """Return the first names of a range with sizes, and the last of them if there may be more.

    Raises:
        StorageError: The store does not list names in order, or the call failed.
    """
    after, until = part
    prefix = f"{locations.split(folder)[1]}/"

    def pages() -> list[Sequence[ObjectMeta]]:
        stream = obstore.list(store(), prefix=prefix, offset=after, chunk_size=_PAGE)
        found: list[Sequence[ObjectMeta]] = []
        for page in islice(stream, _PAGES):
            found.append(page)
            if until is not None and page and page[-1]["path"] >= until:
                break
        return found

    found = _call(folder, pages)
    names = [meta["path"] for page in found for meta in page]
    sizes = [meta["size"] for page in found for meta in page]
    if any(a >= b for a, b in pairwise([after, *names])):
        raise StorageError(f"{folder}: the store does not list names in order")
    is_last = len(names) < _PAGES * _PAGE
    if until is not None and names and names[-1] >= until:
        names, is_last = names[: bisect_left(names, until)], True
    return list(zip(names, sizes, strict=False)), None if is_last else names[-1]


def _lists_in_order(root: str) -> bool:
    """Whether a store lists names in order, as far as its name shows."""
    return root.startswith(_SORTED) and not root.rstrip("/").endswith(_DIRECTORY_BUCKET)


@lru_cache(maxsize=64)
def _open_store(
    process_id: int,  # noqa: ARG001 - a part of the key.
    root: str,
    options: tuple[tuple[str, str], ...],
    vendor: credentials.Vendor | None,
) -> ObjectStore:
    """Open a store once per process: ledger, table and files share its connections."""
    return locations.open_root(root, dict(options), vendor)


def _read(store: ObjectStore, key: str, *, is_sure: bool) -> bytes:
    """Return an object's bytes as they are stored; bytes corrupted in transit are read again.

    Args:
        store: The store.
        key: The object's key.
        is_sure: Whether bytes without an MD5 tag must arrive identically twice.

    Raises:
        ValueError: No two reads gave the same bytes, and none matches the object's tag.
    """
    seen: set[bytes] = set()
    for _ in range(_READS_MAX):
        found = obstore.get(store, key)
        data = found.bytes().to_bytes()
        tag = _MD5_TAG.fullmatch(found.meta["e_tag"] or "")
        fits = not is_sure if tag is None else _md5(data) == tag[1]
        if fits or data in seen:
            return data  # Read twice the same: the tag is not their MD5, as with encryption.
        seen.add(data)
    raise ValueError(f"{_READS_MAX} reads returned {_READS_MAX} different contents")


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
