"""Fragments: the parts of a version, as the pins name them and as they stand in the dataset.

A row's place in a fragment never changes: deleting it only adds a deletion file. So the rows of a
fragment are numbered by their places, whether they are deleted or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from holdfast.errors import InputChangedError, TableMissingError
from holdfast.model.pins import PinnedFile
from holdfast.sources.tagging import Numbers
from holdfast.storage.port import Storage

# What a row weighs where a file does not say how large it is: old ones do not.
_ROW_BYTES = 100
# A row's address is the number of its fragment, and in the lower bits its place there.
_PLACE_BITS = 32
ADDRESS = "_rowaddr"


class Place(Protocol):
    """Where a dataset stands, and how it is reached. Pickled with a task, never stored."""

    @property
    def uri(self) -> str:
        """Its folder."""

    @property
    def storage(self) -> Storage:
        """Its objects, past Lance."""

    def open(self, version: int | None = None) -> Any:  # noqa: ANN401 - Lance ships no types.
        """Look at the dataset afresh: at a version, or at the newest.

        Raises:
            TableMissingError: There is no such dataset, or no such version.
            StoreUnavailableError: The store does not answer.
        """


def pinned_fragment(uri: str, fragment: Any, beside: Mapping[str, int]) -> PinnedFile:  # noqa: ANN401
    """Return a fragment as a version names it.

    Args:
        uri: The dataset's folder.
        fragment: Lance's fragment.
        beside: Bytes that stand beside data files, by the file's name without its ending.
    """
    files, rows = fragment.metadata.files, fragment.physical_rows
    sizes = [one.file_size_bytes or rows * _ROW_BYTES // len(files) for one in files]
    sizes += [beside.get(str(one.path).removesuffix(".lance"), 0) for one in files]
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
    """Return the dataset at the version that was pinned.

    Raises:
        InputChangedError: It is gone.
        StoreUnavailableError: The store does not answer.
    """
    try:
        return place.open(version)
    except TableMissingError as error:
        raise InputChangedError(what=_why_gone(place, version)) from error


def refuse_other(uri: str, file: PinnedFile, fragment: Any | None) -> None:  # noqa: ANN401
    """Stop at a fragment that is not the one that was pinned.

    Raises:
        InputChangedError: It has other files, rows or deletions, or is not there.
    """
    if fragment is not None:
        deletion = fragment.deletion_file()
        now = (_names(fragment), (fragment.physical_rows,), () if deletion is None else (deletion,))
        if now == (file.values["files"], file.group_rows, file.deletes):
            return
    raise InputChangedError(
        what=f"{uri} is another dataset than the one that the run began with: its fragment "
        f"{file.values['fragment']} has other files"
    )


def place_of(addresses: Numbers, fragment: int) -> Numbers:
    """Return the places in a fragment that row addresses name; of another fragment, none fits."""
    places: Numbers = addresses.astype(np.int64) - address_of(fragment, 0)
    return places


def address_of(fragment: int, place: int) -> int:
    """Return the address of a row."""
    return (fragment << _PLACE_BITS) + place


def gone_file(place: Place, file: PinnedFile) -> str:
    """Return the first of a fragment's files that is not there any more; empty if all are.

    Raises:
        StorageError: The store does not answer.
    """
    # Files of a clone may stand in another dataset: their place is not known here.
    names = [f"data/{one}" for one in file.values["files"] if ":" not in one]
    uris = [f"{place.uri}/{one}" for one in (*names, *file.deletes)]
    found: Iterable[int | None] = place.storage.sizes(uris)
    return next((uri for uri, size in zip(uris, found, strict=True) if size is None), "")


def _why_gone(place: Place, version: int) -> str:
    try:
        newest = place.open().version
    except TableMissingError:
        return f"{place.uri} is gone"
    if newest < version:
        return f"{place.uri} was made again: it has versions up to {newest}, not {version}"
    return (
        f"version {version} of {place.uri} was cleaned away (a tag on the version that is being "
        "read would have kept it)"
    )


def _names(fragment: Any) -> list[str]:  # noqa: ANN401
    """Return the names of all files that give a fragment its values."""
    described = fragment.metadata
    names = [
        str(one.path) if one.base_id is None else f"{one.base_id}:{one.path}"
        for one in described.files
    ]
    if described.overlays:  # Newer files that replace some values of the others.
        names += [f"overlay:{one}" for one in described.to_json()["overlays"]]
    return names
