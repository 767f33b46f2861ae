"""Rows of a Lance fragment: where their values are, and which of them are live.

A fragment's state says where the values of some columns are. As long as it stays the same, so do
the values: files never change, and a row's position in a fragment never changes. Deleting a row,
or adding a column, does not change the state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.model.coverage import Span

Positions = npt.NDArray[np.int64]
# What Lance writes in place of a field whose values are in another file now.
TOMBSTONE = -2
_POSITION_BITS = 32
_ADDRESS = "_rowaddr"


def field_ids(schema: Any, names: Collection[str]) -> frozenset[int]:  # noqa: ANN401 - LanceSchema.
    """Return the numbers of columns, and of all columns below them."""
    return frozenset(
        number
        for column in schema.fields()
        if column.name() in names
        for number in _numbers_of(column)
    )


def all_field_ids(schema: Any) -> frozenset[int]:  # noqa: ANN401 - LanceSchema.
    """Return the numbers of all columns."""
    return frozenset(number for column in schema.fields() for number in _numbers_of(column))


def _numbers_of(column: Any) -> Iterator[int]:  # noqa: ANN401 - LanceField.
    yield column.id()
    for child in column.children():
        yield from _numbers_of(child)


def state_of(fragment: Any, fields: Collection[int]) -> str:  # noqa: ANN401 - FragmentMetadata.
    """Return a text that stays the same as long as the values of some columns do.

    Args:
        fragment: Lance's metadata of the fragment.
        fields: The numbers of the columns.
    """
    files = [
        (file.path, file.base_id, [pair for pair in _columns(file) if pair[0] in fields])
        for file in fragment.files
    ]
    found = sorted((file for file in files if file[2]), key=str)
    facts = [fragment.id, fragment.physical_rows, found]
    if fragment.overlays:  # Newer files that replace some values of the others.
        facts.append(fragment.to_json()["overlays"])
    text = json.dumps(facts, default=str)
    return f"{fragment.id} {hashlib.sha256(text.encode()).hexdigest()}"


def _columns(file: Any) -> Iterable[tuple[int, int]]:  # noqa: ANN401 - DataFile.
    return zip(file.fields, file.column_indices, strict=True)


def live_positions(fragment: Any) -> Positions:  # noqa: ANN401 - LanceFragment.
    """Return the positions of a fragment's rows that are not deleted, in order."""
    if fragment.metadata.deletion_file is None:
        return np.arange(fragment.physical_rows)
    found = fragment.scanner(columns=[], with_row_address=True).to_table()
    first = fragment.fragment_id << _POSITION_BITS
    positions: Positions = np.asarray(found[_ADDRESS]).astype(np.int64) - first
    return positions


def spans_in(positions: Positions) -> list[Span]:
    """Return ascending positions as few spans."""
    if not len(positions):
        return []
    breaks = np.flatnonzero(np.diff(positions) != 1) + 1
    firsts = np.concatenate(([0], breaks))
    lasts = np.concatenate((breaks, [len(positions)])) - 1
    return [(int(positions[a]), int(positions[b]) + 1) for a, b in zip(firsts, lasts, strict=True)]


# ---- Stable row ids: which row of one fragment is which row of another

ROW_ID = "_rowid"
_CREATED, _UPDATED = "_row_created_at_version", "_row_last_updated_at_version"


@dataclass(frozen=True, slots=True)
class RowIds:
    """The live rows of a fragment, sorted by their stable ids."""

    ids: Positions
    positions: Positions
    # The versions that have added and last changed each row.
    created: Positions
    updated: Positions

    @classmethod
    def of(cls, fragment: Any) -> RowIds:  # noqa: ANN401 - LanceFragment.
        """Read them; the dataset must have stable row ids."""
        columns = [_CREATED, _UPDATED]
        found = fragment.scanner(
            columns=columns, with_row_id=True, with_row_address=True
        ).to_table()
        ids = np.asarray(found[ROW_ID]).astype(np.int64)
        order = np.argsort(ids, kind="stable")
        first = fragment.fragment_id << _POSITION_BITS
        positions = np.asarray(found[_ADDRESS]).astype(np.int64) - first
        versions = (np.asarray(found[name]).astype(np.int64)[order] for name in columns)
        return cls(ids[order], positions[order], *versions)

    def only(self, positions: Positions) -> RowIds:
        """Return some of the rows."""
        chosen = np.isin(self.positions, positions)
        return RowIds(
            self.ids[chosen], self.positions[chosen], self.created[chosen], self.updated[chosen]
        )

    def places_of(self, others: Positions) -> Positions:
        """Return where each of these ids is in this list; -1 if it is not."""
        if not len(self.ids):
            return np.full(len(others), -1)
        places = np.minimum(np.searchsorted(self.ids, others), len(self.ids) - 1)
        found: Positions = np.where(self.ids[places] == others, places, -1)
        return found

    def unchanged_since(self, version: int) -> npt.NDArray[np.bool_]:
        """Return which rows were there in a version, with the values that they have now."""
        return (self.created <= version) & (self.updated <= version)
