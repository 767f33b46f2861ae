"""Which staged files a table's snapshots reach: a sweep deletes none of them, whatever a log says.

A ledger that was restored, cut or copied can list files that have landed, so the table is asked:
every snapshot that it keeps, and every manifest of these. Files are told by their last name, which
has a nonce in it: other engines write the rest of a path in ways of their own (s3a:// for s3://).

Manifests are not decoded at first. Their blocks are unpacked and searched for the nonces of the
names, by C code that runs on all threads; only where one is found, entries are read one by one.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntryStatus, ManifestFile, read_manifest_list
from pyiceberg.table import Table

from holdfast.sinks.iceberg.manifest_reads import manifest_entries
from holdfast.storage.runtime import io_runtime

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
# Names are ours up to here: <nonce>-<more>. A shorter start is no nonce, and all of it is compared.
_NONCE_CHARS = 16


def live_paths(table: Table, paths: Collection[str]) -> set[str]:
    """Return those of the paths that a snapshot which the table keeps reaches.

    Args:
        table: A fresh look at the table.
        paths: Data files and manifests.

    Raises:
        StorageError: A manifest could not be read.
    """
    names = {path.rsplit("/", 1)[1] for path in paths}
    found = {path.rsplit("/", 1)[1] for path in _metadata_files(table)}
    manifests = _manifests(table)
    found.update(path.rsplit("/", 1)[1] for path in manifests)
    needles = sorted({_needle(name) for name in names - found})

    def live_names(manifest: ManifestFile) -> set[str]:
        if not _may_hold(_read(table.io, manifest.manifest_path), needles):
            return set()
        return {
            entry.data_file.file_path.rsplit("/", 1)[1]
            for entry in manifest_entries(manifest, table.io)
            if entry.status != ManifestEntryStatus.DELETED
        }

    if needles:
        for some in io_runtime().each(live_names, manifests.values()):
            found |= some
    return {path for path in paths if path.rsplit("/", 1)[1] in found}


def _metadata_files(table: Table) -> Iterator[str]:
    """Give what the table's metadata names itself."""
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (one.manifest_list for one in metadata.snapshots)
    yield from (one.statistics_path for one in metadata.statistics)
    yield from (one.statistics_path for one in metadata.partition_statistics)


def _manifests(table: Table) -> dict[str, ManifestFile]:
    """Return the manifests of all snapshots, by path."""

    def of_one(path: str) -> list[ManifestFile]:
        return list(read_manifest_list(table.io.new_input(path)))

    lists = io_runtime().each(of_one, [one.manifest_list for one in table.metadata.snapshots])
    return {manifest.manifest_path: manifest for some in lists for manifest in some}


def _needle(name: str) -> bytes:
    """Return the part of a name that all files of its job share, if it is long enough to tell."""
    nonce = name.partition("-")[0]
    return (nonce if len(nonce) >= _NONCE_CHARS else name).encode()


def _read(io: FileIO, path: str) -> bytes:
    with io.new_input(path).open(seekable=False) as stream:
        return stream.read()


def _may_hold(data: bytes, needles: Iterable[bytes]) -> bool:
    """Whether a manifest names a file with one of the parts; true as well if it cannot be told."""
    try:
        unpacked = b"".join(_blocks(data))  # Some writers make a block of each entry.
        return any(needle in unpacked for needle in needles)
    except (ValueError, IndexError, zlib.error):
        return True  # Packed in another way, or no Avro at all: then reading it says so.


def _blocks(data: bytes) -> Iterator[bytes]:
    """Give the blocks of an Avro file, unpacked.

    Raises:
        ValueError: It is packed in a way that is not looked into here.
    """
    if not data.startswith(_MAGIC):
        raise ValueError("no Avro file")
    at, header = _header(data, len(_MAGIC))
    codec = header.get(b"avro.codec", b"null")
    if codec not in {b"null", b"deflate"}:
        raise ValueError(f"packed by {codec!r}")
    at += _SYNC_BYTES
    while at < len(data):
        _, at = _number(data, at)
        size, at = _number(data, at)
        block = data[at : at + size]
        yield zlib.decompress(block, wbits=-15) if codec == b"deflate" else block
        at += size + _SYNC_BYTES


def _header(data: bytes, at: int) -> tuple[int, dict[bytes, bytes]]:
    """Read the map at the start of an Avro file; return where it ends, and what it says."""
    found: dict[bytes, bytes] = {}
    while True:
        count, at = _number(data, at)
        if count == 0:
            return at, found
        if count < 0:  # Then its size in bytes follows.
            count, (_, at) = -count, _number(data, at)
        for _ in range(count):
            name, at = _bytes(data, at)
            found[name], at = _bytes(data, at)


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _number(data, at)
    return data[at : at + size], at + size


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Read a number as Avro writes it: seven bits a byte, and the sign in the lowest bit."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1), at
