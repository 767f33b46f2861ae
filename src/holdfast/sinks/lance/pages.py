"""Pages of Lance files: files of the same columns become one, without decoding a value.

Lance encodes some thousand rows of a column as one page. The end of a file says where its pages
are, and which rows they hold; a page itself does not. So the pages of several files, one file after
the other, are a file of all their rows, once its end says so. Lance's own compaction does the same
if asked for a binary copy. Whatever is not known to be as described here is left to Lance.

Layout, from Lance's `file2.proto`: pages; global buffers, of which the first describes the columns
and the number of rows; a message for each column; where these messages are; where the global
buffers are; a footer.
"""

from __future__ import annotations

import logging
import struct
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from holdfast.storage.joined import Piece, join
from holdfast.storage.port import Storage

_log = logging.getLogger(__name__)

# Lance wants pages to begin at multiples of 64. File systems that can share the blocks of files, in
# place of copying them, want whole blocks.
_ALIGNMENT = 4096
_FOOTER = struct.Struct("<QQQIIHH4s")
_PLACE = struct.Struct("<QQ")
_MAGIC = b"LANC"
# File formats in which each page holds whole rows, of any type.
_VERSIONS = {(2, 1), (2, 2)}
# The fields of a column's message, the kind of encoding that is in it, and what it is called. The
# layouts are those of values; that of blobs says where in the file these are.
_ENCODING, _PAGES, _DIRECT = 1, 2, 2
_LAYOUT, _LAYOUTS = b"/lance.encodings21.PageLayout", {1, 2, 3}
# How much of a file's end is read first.
_END_BYTES = 256 * 1024

# A place in a file: where it begins, and its size.
Place = tuple[int, int]


class OtherPagesError(Exception):
    """The files cannot be put together as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Encoded rows of one column."""

    buffers: tuple[Place, ...]
    rows: int
    encoding: bytes
    # The number of its first row.
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """What the end of a file says."""

    version: tuple[int, int]
    rows: int
    # How many bytes come before the end: all pages.
    size_bytes: int
    # The columns, as Lance describes them.
    schema: bytes
    # The pages of each column, and how the column is encoded as a whole.
    columns: tuple[tuple[Page, ...], ...]
    encodings: tuple[bytes, ...]

    @property
    def count(self) -> int:
        """The number of all pages."""
        return sum(map(len, self.columns))


# ---- Several files as one
def write_joined(
    storage: Storage, folder: str, files: Sequence[tuple[str, int]], page_bytes_min: int
) -> tuple[str, int] | None:
    """Write a file of the pages of others, and return its path and its size.

    Args:
        storage: Reaches them.
        folder: Where it is written.
        files: Path and size of each, in the order of their rows.
        page_bytes_min: How large a page is to be, on average: small ones are slow to read.

    Returns:
        None if the files are not known to be such that their pages can be copied.

    Raises:
        FileNotFoundError: A file is missing.
        StorageError: A file cannot be read or written.
    """
    try:
        found = [(path, read_pages(storage, path, size_bytes)) for path, size_bytes in files]
        pieces = joined(found)
    except OtherPagesError as error:
        _log.debug("pages are not copied: %s", error)
        return None
    if sum(p.size_bytes for _, p in found) < page_bytes_min * sum(p.count for _, p in found):
        return None
    path = f"{folder}/{uuid.uuid4().hex}.lance"
    return path, join(storage, path, pieces)


def joined(files: Sequence[tuple[str, Pages]]) -> list[Piece]:
    """Return what a file of all rows consists of.

    Args:
        files: Path and pages of each, in the order of their rows.

    Raises:
        OtherPagesError: They have other columns, or are of another format.
    """
    _, like = files[0]
    pieces: list[Piece] = []
    columns: list[list[Page]] = [[] for _ in like.columns]
    rows = size_bytes = 0
    for path, pages in files:
        if not _are_alike(pages, like):
            raise OtherPagesError(f"{path} has other columns than {files[0][0]}")
        for column, own in zip(columns, pages.columns, strict=True):
            column += [_moved(page, size_bytes, rows) for page in own]
        padding = -pages.size_bytes % _ALIGNMENT
        pieces += [(path, 0, pages.size_bytes), bytes(padding)]
        size_bytes += pages.size_bytes + padding
        rows += pages.rows
    whole = replace(
        like, rows=rows, size_bytes=size_bytes, columns=tuple(tuple(some) for some in columns)
    )
    return [*pieces, end_of(whole)]


def _are_alike(one: Pages, other: Pages) -> bool:
    """Whether two files have the same columns, encoded in the same way.

    Lance writes what a column has as metadata in a random order.

    Raises:
        OtherPagesError: A description cannot be read.
    """
    if (one.version, one.encodings) != (other.version, other.encodings):
        return False
    try:
        return one.schema == other.schema or _ordered(one.schema) == _ordered(other.schema)
    except (ValueError, IndexError) as error:
        raise OtherPagesError(f"columns that are not known: {error}") from error


def _ordered(schema: bytes) -> list[list[tuple[int, int | bytes]]]:
    """Return the columns of a description, each with its parts in one order; then the rest."""
    parts = list(fields_of(schema))
    columns = [sorted(fields_of(_text(value)), key=repr) for name, value in parts if name == 1]
    return [*columns, sorted((part for part in parts if part[0] != 1), key=repr)]


def _moved(page: Page, by_bytes: int, by_rows: int) -> Page:
    buffers = tuple((start + by_bytes, size) for start, size in page.buffers)
    return replace(page, buffers=buffers, first=page.first + by_rows)


def end_of(pages: Pages) -> bytes:
    """Return the end of a file, which says what is in it."""
    described = _field(1, pages.schema) + _field(2, pages.rows)
    found, at = [described], pages.size_bytes
    globals_ = [(at, len(described))]
    at += len(described)
    first = at
    columns: list[Place] = []
    for column, encoding in zip(pages.columns, pages.encodings, strict=True):
        text = _field(1, encoding) + b"".join(_field(2, _page_bytes(page)) for page in column)
        found.append(text)
        columns.append((at, len(text)))
        at += len(text)
    tables = b"".join(_PLACE.pack(*place) for place in (*columns, *globals_))
    footer = _FOOTER.pack(
        first,
        at,
        at + _PLACE.size * len(columns),
        len(globals_),
        len(columns),
        *pages.version,
        _MAGIC,
    )
    return b"".join((*found, tables, footer))


def _page_bytes(page: Page) -> bytes:
    return b"".join(
        (
            _field(1, b"".join(_varint(start) for start, _ in page.buffers)),
            _field(2, b"".join(_varint(size) for _, size in page.buffers)),
            _field(3, page.rows),
            _field(4, page.encoding),
            _field(5, page.first),
        )
    )


# ---- The end of a file, read
def read_pages(storage: Storage, path: str, size_bytes: int) -> Pages:
    """Return what the end of a file says.

    Args:
        storage: Reaches it.
        path: The file.
        size_bytes: Its size.

    Raises:
        OtherPagesError: It is not as this module knows files.
        FileNotFoundError: There is no such file.
        StorageError: It cannot be read.
    """
    start = max(0, size_bytes - _END_BYTES)
    try:
        end = _End(bytes(storage.get_range(path, start, size_bytes)), start)
        if (first := end.first) < start:
            end = _End(bytes(storage.get_range(path, first, size_bytes)), first)
        return end.pages()
    except (ValueError, IndexError, KeyError, struct.error) as error:
        raise OtherPagesError(f"{path}: {error}") from error


class _End:
    """The last bytes of a file, by their places in it."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data, self._start = data, start
        (
            self._columns_start,
            columns_at,
            globals_at,
            globals_count,
            columns_count,
            *version,
            magic,
        ) = _FOOTER.unpack(data[-_FOOTER.size :])
        self.version = (int(version[0]), int(version[1]))
        if magic != _MAGIC or self.version not in _VERSIONS:
            raise ValueError(f"file format {self.version} {magic!r}")
        if globals_count != 1:
            raise ValueError(f"{globals_count} global buffers")
        self._columns = self._table(columns_at, columns_count)
        (self._description,) = self._table(globals_at, globals_count)

    @property
    def first(self) -> int:
        """Where the end begins, and pages end."""
        return min(int(self._columns_start), self._description[0], *(at for at, _ in self._columns))

    def pages(self) -> Pages:
        """Return what it says.

        Raises:
            ValueError: Something in it is not known.
        """
        description = dict(fields_of(self._bytes(self._description)))
        rows = _number(description[2])
        if not self._columns:
            raise ValueError("no columns")
        columns, encodings = [], []
        for place in self._columns:
            found = list(fields_of(self._bytes(place)))
            own = [_page_of(_text(value), self.first) for name, value in found if name == _PAGES]
            (encoding,) = (_text(value) for name, value in found if name == _ENCODING)
            if len(own) + 1 != len(found):
                raise ValueError("a column with buffers of its own")
            if [page.first for page in own] != [*accumulate((p.rows for p in own), initial=0)][:-1]:
                raise ValueError("pages that are not in order")
            if sum(page.rows for page in own) != rows:
                raise ValueError("a column without all rows")
            columns.append(tuple(own))
            encodings.append(encoding)
        return Pages(
            version=self.version,
            rows=rows,
            size_bytes=self.first,
            schema=_text(description[1]),
            columns=tuple(columns),
            encodings=tuple(encodings),
        )

    def _table(self, at: int, count: int) -> list[Place]:
        data = self._bytes((at, count * _PLACE.size))
        return [(int(place), int(size)) for place, size in _PLACE.iter_unpack(data)]

    def _bytes(self, place: Place) -> bytes:
        """Return the bytes of a place.

        Raises:
            ValueError: They are not among those that were read.
        """
        at, size = place[0] - self._start, place[1]
        found = self._data[max(at, 0) : at + size]
        if at < 0 or len(found) != size:
            raise ValueError("its end is longer than what was read, or is broken off")
        return found


def _page_of(data: bytes, end: int) -> Page:
    """Return a page from its description.

    Raises:
        ValueError: It is not all in the file's pages, or is encoded in an unknown way.
    """
    found = dict(fields_of(data))
    if unknown := found.keys() - {1, 2, 3, 4, 5}:
        raise ValueError(f"a page with a field {min(unknown)}")
    starts = _numbers(_text(found.get(1, b"")))
    sizes = _numbers(_text(found.get(2, b"")))
    buffers = tuple(zip(starts, sizes, strict=True))
    if any(start + size > end for start, size in buffers):
        raise ValueError("a page that is elsewhere")
    encoding = _text(found[4])
    _refuse_unknown(encoding)
    return Page(
        buffers=buffers,
        rows=_number(found.get(3, 0)),
        encoding=encoding,
        first=_number(found.get(5, 0)),
    )


def _refuse_unknown(encoding: bytes) -> None:
    """Refuse an encoding that may say where something is in the file.

    Raises:
        ValueError: It is not one of those known to say nothing of the kind.
    """
    ((kind, direct),) = fields_of(encoding)
    ((_, described),) = fields_of(_text(direct))
    named = dict(fields_of(_text(described)))
    layouts = [name for name, _ in fields_of(_text(named[2]))]
    if kind != _DIRECT or named[1] != _LAYOUT or not set(layouts) <= _LAYOUTS:
        raise ValueError(f"a page of layout {named[1]!r} {layouts}")


# ---- Messages: numbered fields, each a number or bytes
def fields_of(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message.

    Raises:
        ValueError: It is none, or has a field of another kind.
    """
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        value, at = _read_varint(data, at)
        if key & 7 == 0:
            yield key >> 3, value
        elif key & 7 == 2:  # noqa: PLR2004 - bytes, by their length.
            if at + value > len(data):
                raise ValueError("a field that ends too late")
            yield key >> 3, data[at : at + value]
            at += value
        else:
            raise ValueError(f"a field of kind {key & 7}")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:  # noqa: PLR2004 - the last byte.
            return value, at


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:  # noqa: PLR2004 - more bytes follow.
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _field(name: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(name << 3) + _varint(value)
    return _varint(name << 3 | 2) + _varint(len(value)) + value


def _numbers(data: bytes) -> list[int]:
    found, at = list[int](), 0
    while at < len(data):
        value, at = _read_varint(data, at)
        found.append(value)
    return found


def _number(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("bytes in place of a number")  # noqa: TRY004 - it is the file's.
    return value


def _text(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number in place of bytes")  # noqa: TRY004 - it is the file's.
    return value
