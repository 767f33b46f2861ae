"""Fragments of a Lance version as the pins name them, and columns whose values are stored apart.

A row's position in a fragment never changes: deleting it only adds a deletion file. So the rows of
a fragment are numbered by position, whether they are deleted or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from holdfast.errors import InputChangedError, TableMissingError, UnsupportedTableError
from holdfast.model.arrow_types import is_any_list
from holdfast.model.coverage import PinnedFile
from holdfast.reading.parquet_file import Numbers
from holdfast.storage.port import Storage

# ---- Fragments: the parts of a version, as the pins name them and as the dataset stores them

# The assumed size of a row if a file does not state its own size, as old ones do not.
_ROW_BYTES = 100
# A row's address is the number of its fragment, with its position there in the lower bits.
_PLACE_BITS = 32
ADDRESS = "_rowaddr"


class Place(Protocol):
    """A dataset's location, and how it is reached. Pickled with a task, never stored."""

    @property
    def uri(self) -> str:
        """The dataset's folder."""

    @property
    def storage(self) -> Storage:
        """Its objects, accessed without Lance."""

    def identity(self) -> str | None:
        """Return the dataset's id; None if no run has written to it.

        Raises:
            StoreUnavailableError: The store does not answer.
        """

    def open(self, version: int | None = None) -> Any:  # noqa: ANN401 - Lance ships no types.
        """Open the dataset at a version, or at the newest.

        Raises:
            TableMissingError: There is no such dataset, or no such version.
            StoreUnavailableError: The store does not answer.
        """


def pinned_fragment(uri: str, fragment: Any, beside: Mapping[str, int]) -> PinnedFile:  # noqa: ANN401
    """Return a fragment as a version names it.

    Args:
        uri: The dataset's folder.
        fragment: Lance's fragment.
        beside: Bytes stored beside data files, by the file's name without its extension.
    """
    files, rows = fragment.metadata.files, fragment.physical_rows
    sizes = [file.file_size_bytes or rows * _ROW_BYTES // len(files) for file in files]
    sizes += [beside.get(str(file.path).removesuffix(".lance"), 0) for file in files]
    deletion = fragment.deletion_file()
    return PinnedFile(
        uri=f"{uri}/data/{files[0].path}",
        size_bytes=sum(sizes),
        tag="",
        group_rows=(rows,),
        group_bytes=(sum(sizes),),
        values={"fragment": fragment.fragment_id, "files": _names(fragment)},
        deletes=() if deletion is None else (str(deletion),),
    )


def open_pinned(place: Place, version: int) -> Any:  # noqa: ANN401 - Lance ships no types.
    """Return the dataset at the pinned version.

    Raises:
        InputChangedError: The version is gone.
        StoreUnavailableError: The store does not answer.
    """
    try:
        return place.open(version)
    except TableMissingError as error:
        raise InputChangedError(what=_why_gone(place, version)) from error


def refuse_other(uri: str, file: PinnedFile, fragment: Any | None) -> None:  # noqa: ANN401
    """Refuse a fragment that is not the one that was pinned.

    Raises:
        InputChangedError: It has other files, rows or deletions, or does not exist.
    """
    if fragment is not None:
        deletion = fragment.deletion_file()
        now = (_names(fragment), fragment.physical_rows, () if deletion is None else (deletion,))
        if now == (file.values["files"], file.rows, file.deletes):
            return
    raise InputChangedError(
        what=f"{uri} is not the dataset that the run began with: its fragment "
        f"{file.values['fragment']} has different files"
    )


def place_of(addresses: Numbers, fragment: int) -> Numbers:
    """Return positions in a fragment for row addresses; other fragments' are out of range."""
    places: Numbers = addresses.astype(np.int64) - address_of(fragment, 0)
    return places


def address_of(fragment: int, place: int) -> int:
    """Return the address of a row."""
    return (fragment << _PLACE_BITS) + place


def gone_file(place: Place, file: PinnedFile) -> str:
    """Return the first of a fragment's files that no longer exists; empty if all do.

    Raises:
        StorageError: The store does not answer.
    """
    # Files of a clone may be in another dataset: their location is not known here.
    names = [f"data/{name}" for name in file.values["files"] if ":" not in name]
    uris = [f"{place.uri}/{name}" for name in (*names, *file.deletes)]
    found: Iterable[int | None] = place.storage.sizes(uris)
    return next((uri for uri, size in zip(uris, found, strict=True) if size is None), "")


def _why_gone(place: Place, version: int) -> str:
    try:
        newest = place.open().version
    except TableMissingError:
        return f"{place.uri} is gone"
    if newest < version:
        return f"{place.uri} was recreated: it has versions up to {newest}, not {version}"
    return (
        f"version {version} of {place.uri} was cleaned up (a tag on the version that is being "
        "read would have kept it)"
    )


def _names(fragment: Any) -> list[str]:  # noqa: ANN401
    """Return the names of all files that hold a fragment's values."""
    described = fragment.metadata
    names = [
        str(file.path) if file.base_id is None else f"{file.base_id}:{file.path}"
        for file in described.files
    ]
    if described.overlays:  # Newer files that replace some values of the others.
        names += [f"overlay:{overlay}" for overlay in described.to_json()["overlays"]]
    return names


# ---- Blobs: columns whose values are stored apart, and fetched only for rows that are passed on

# Roughly how many bytes are fetched at a time.
_BYTES = 16 * 1024 * 1024
_TYPE = "lance.blob.v2"
# How older datasets mark a blob, in the metadata of a field.
_OLD_MARK = b"lance-encoding:blob"
# How the pins mark such a column.
MARK = b"holdfast:blob"
# The kind of a blob whose bytes are in an object outside the dataset.
_ELSEWHERE = 3


def is_blob(field: pa.Field) -> bool:
    """Whether Lance stores the values of a column apart."""
    return (
        getattr(field.type, "extension_name", "") == _TYPE
        or (field.metadata or {}).get(_OLD_MARK) == b"true"
    )


def holds_blobs(kind: pa.DataType) -> bool:
    """Whether there are blobs inside a type."""
    if pt.is_struct(kind):
        inner = [kind.field(number) for number in range(kind.num_fields)]
    elif pt.is_map(kind):
        inner = [kind.key_field, kind.item_field]
    else:
        inner = [kind.value_field] if is_any_list(kind) else []
    return any(is_blob(field) or holds_blobs(field.type) for field in inner)


def blob_columns(schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns that the pins mark as blobs."""
    return tuple(field.name for field in schema if MARK in (field.metadata or {}))


def with_blobs(
    dataset: Any,  # noqa: ANN401 - Lance ships no types.
    rows: pa.RecordBatch,
    columns: Sequence[str],
    addresses: Numbers,
) -> Iterator[pa.RecordBatch]:
    """Yield rows with the blobs' bytes in place of their descriptions, in pieces of bounded size.

    Args:
        dataset: Where the bytes are fetched from.
        rows: Rows with descriptions.
        columns: The blob columns.
        addresses: The address of each row.

    Raises:
        UnsupportedTableError: A blob is stored outside the dataset.
    """
    sizes = np.zeros(rows.num_rows, dtype=np.int64)
    for name in columns:
        sizes += _sizes(dataset.uri, name, rows.column(name))
    for start, stop in pairwise(_cuts(sizes)):
        piece = rows.slice(start, stop - start)
        for name in columns:
            asked = addresses[start:stop].tolist()
            found = dataset.read_blobs(name, addresses=asked, preserve_order=True)
            # Returning another row's bytes would be a silent error.
            assert [address for address, _ in found] == asked  # noqa: S101
            values = pa.array([data for _, data in found], pa.large_binary())
            index = piece.schema.get_field_index(name)
            field = pa.field(name, pa.large_binary(), rows.schema.field(name).nullable)
            piece = piece.set_column(index, field, values)
        yield piece


def _sizes(uri: str, name: str, described: pa.StructArray) -> Numbers:
    """Return the sizes of blobs.

    Raises:
        UnsupportedTableError: A blob is stored outside the dataset.
    """
    if described.type.get_field_index("kind") >= 0:
        kinds = described.field("kind")
        if pa.compute.any(pa.compute.equal(kinds, _ELSEWHERE)).as_py():
            raise UnsupportedTableError(
                table=uri,
                what=f"column {name!r} has blobs outside the dataset, where nothing keeps "
                "them unchanged",
                cure="leave the column out with columns=, or read the files with hf.scan_files",
            )
    sizes: Numbers = np.asarray(described.field("size").fill_null(0)).astype(np.int64)
    return sizes


def _cuts(sizes: Numbers) -> list[int]:
    """Return where to cut rows, so that the pieces have a similar, bounded number of bytes."""
    cuts, held = [0], 0
    for number, size in enumerate(sizes.tolist()):
        if held and held + size > _BYTES:
            cuts.append(number)
            held = 0
        held += size
    return [*cuts, len(sizes)]
