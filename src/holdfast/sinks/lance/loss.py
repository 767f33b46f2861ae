"""The loss: which fragments of a dataset a change removes.

Lance's own overwrite would drop the indices. A merge must name all fragments that are there, so a
fragment goes by a deletion file over all of its rows: Lance leaves it out of the new version then,
and indices stay, as definitions for the rows that come.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lance import LanceDataset
from lance.fragment import DeletionFile, FragmentMetadata

from holdfast.errors import TableChangedError
from holdfast.failpoints import failpoint
from holdfast.sinks.base import Change, Loss
from holdfast.sinks.lance.dataset import DatasetPlace
from holdfast.storage.port import Storage
from holdfast.storage.runtime import io_runtime

# A number in a deletion file's name has 64 bits, and Lance's Python takes 63 of them.
_ID_BITS = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What a loss means for the next version: the fragments that go, and their deletion files."""

    # By the number of the fragment, as the merge names it.
    fragments: Mapping[int, FragmentMetadata]
    files: Mapping[str, bytes]

    def write(self, storage: Storage) -> None:
        """Store the deletion files."""
        failpoint("before-removal")
        io_runtime().each(lambda uri: storage.put(uri, self.files[uri]), self.files)
        failpoint("after-removal")


def states(dataset: LanceDataset) -> frozenset[str]:
    """Return the state of each fragment: all that decides which rows it adds."""
    return frozenset(_state(fragment.metadata) for fragment in dataset.get_fragments())


def loss_of(place: DatasetPlace, dataset: LanceDataset, change: Change, name: str) -> Loss:
    """Return what a change removes from a version.

    Args:
        place: The dataset's location.
        dataset: The version that the change builds on.
        change: The change; it removes something.
        name: No other post uses it.

    Raises:
        TableChangedError: Others have changed rows of `change.base`.
    """
    found = {fragment.fragment_id: fragment for fragment in dataset.get_fragments()}
    by_state = {_state(fragment.metadata): number for number, fragment in found.items()}
    if change.base is not None:
        if gone := change.base - by_state.keys():
            raise TableChangedError(
                table=place.uri,
                change=f"{len(gone)} of its fragments were changed or rewritten, so that rows that "
                "others added cannot be told from those that this run replaces; "
                'isolation_level="serializable" replaces them all',
            )
        found = {by_state[state]: found[by_state[state]] for state in change.base}
    fragments, files = {}, {}
    for number, fragment in sorted(found.items()):
        rows = fragment.physical_rows
        whole = _deletion_of_all(dataset.version, rows, f"{name} {number}")
        metadata = FragmentMetadata.from_json(json.dumps(fragment.metadata.to_json()))
        metadata.deletion_file = whole
        fragments[number] = metadata
        files[f"{place.deletions}/{number}-{whole.read_version}-{whole.id}.bin"] = all_rows(rows)
    data = [file for metadata in fragments.values() for file in metadata.files]
    return Loss(
        files=len(data),
        rows=sum(fragment.physical_rows for fragment in found.values()),
        size_bytes=sum(file.file_size_bytes or 0 for file in data),
        writes={uri: len(content) for uri, content in files.items()},
        handle=Removal(fragments=fragments, files=files),
    )


def all_rows(rows: int) -> bytes:
    """Return the numbers from 0 up as a Roaring bitmap: one run in each block of 65,536.

    Written as the format's public specification says.
    """
    blocks = [min(1 << 16, rows - first) for first in range(0, rows, 1 << 16)]
    flags = bytearray((len(blocks) + 7) // 8)
    for block in range(len(blocks)):
        flags[block // 8] |= 1 << (block % 8)  # It holds runs.
    head = struct.pack("<HH", _RUNS_COOKIE, len(blocks) - 1) + bytes(flags)
    head += b"".join(struct.pack("<HH", *block) for block in enumerate(n - 1 for n in blocks))
    if len(blocks) >= _OFFSETS_FROM:
        first = len(head) + 4 * len(blocks)
        head += struct.pack(f"<{len(blocks)}I", *(first + 6 * at for at in range(len(blocks))))
    return head + b"".join(struct.pack("<HHH", 1, 0, n - 1) for n in blocks)


_RUNS_COOKIE = 12347
# With so many blocks, their places are listed.
_OFFSETS_FROM = 4


def _deletion_of_all(version: int, rows: int, name: str) -> DeletionFile:
    digest = hashlib.sha256(name.encode()).digest()
    return DeletionFile(
        read_version=version,
        id=int.from_bytes(digest[:8], "big") >> (64 - _ID_BITS),
        num_deleted_rows=rows,
        file_type="bitmap",
        base_id=None,
    )


def _state(metadata: Any) -> str:  # noqa: ANN401 - FragmentMetadata, or what is built like it.
    text = json.dumps(metadata.to_json(), sort_keys=True, default=str)
    return f"{metadata.id} {hashlib.sha256(text.encode()).hexdigest()}"
