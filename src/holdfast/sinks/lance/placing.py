"""Placing: which staged values belong to which rows of a version, and which rows have none.

Values were computed for rows of fragments as they were pinned. A fragment with the same state has
the same rows. Rows of any other fragment are known only by stable row ids, and only while history
shows that no row has changed without a trace; otherwise they are computed again, unless they were
appended since.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.errors import LedgerDamagedError
from holdfast.model.coverage import PinnedFile, Pins, Ranges, Span
from holdfast.model.work import StagedGroup
from holdfast.reading.lance_rows import Positions, RowIds, live_positions, spans_in, state_of
from holdfast.sinks.lance.history import GoneError, History


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Pinned rows of one fragment, and their staged values."""

    base: int
    file: PinnedFile
    groups: tuple[StagedGroup, ...]

    @property
    def fragment(self) -> int:
        """The number of the fragment."""
        return int(self.file.values["fragment"])

    @property
    def version(self) -> int:
        """The version in which they were pinned."""
        return int(self.file.values["version"])

    @property
    def state(self) -> str:
        """The state of the fragment in that version."""
        return str(self.file.values["state"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """What belongs to one fragment of a version."""

    parts: Sequence[Part]
    # Rows that others have added since this version have no value; 0 if there are none such here.
    since: int = 0
    # How many these are.
    appended: int = 0


@dataclass(kw_only=True)
class Placing:
    """One version of the dataset, and where the values belong in it."""

    history: History
    pins: Pins
    # The staged values, by the number of the first row of the pinned file.
    groups: Mapping[int, Sequence[StagedGroup]]
    # The numbers of the columns that the values were computed from.
    read: Collection[int]
    # What belongs to each fragment, and the live rows that have no value: filled by `run`.
    placed: dict[int, Placed] = field(default_factory=dict, init=False)
    missing: dict[int, list[Span]] = field(default_factory=dict, init=False)
    # Pinned rows whose fragment is not there any more, or not in the same state.
    _gone: list[Part] = field(default_factory=list, init=False)
    _opened: dict[int, Any] = field(default_factory=dict, init=False)

    def run(self) -> None:
        """Look at each fragment.

        Raises:
            LedgerDamagedError: Staged values do not belong to the pinned rows.
            StoreUnavailableError: The store does not answer.
        """
        known = self._known()
        fragments = self.history.dataset.get_fragments()
        states = {part.fragment_id: state_of(part.metadata, self.read) for part in fragments}
        live = set(states.values())
        gone = (part for state, parts in known.items() if state not in live for part in parts)
        self._gone = sorted(gone, key=lambda part: part.base)
        for fragment in fragments:
            parts = known.get(states[fragment.fragment_id], [])
            self._place(fragment, parts)

    def _place(self, fragment: Any, parts: Sequence[Part]) -> None:  # noqa: ANN401 - LanceFragment.
        """Place the values of one fragment's rows, and note the rows that have none."""
        number = fragment.fragment_id
        self.placed[number] = Placed(parts=parts)
        if parts and not len(lacks := self._revived(fragment, parts)):
            return
        if not parts:
            files = {file.path for file in fragment.metadata.files}
            if files & self._appended:
                rows = fragment.count_rows()
                self.placed[number] = Placed(parts=(), since=self._first, appended=rows)
                return
            lacks = live_positions(fragment)
        if self._row_ids is not None:
            lacks = self._place_by_ids(fragment, parts, lacks, self._row_ids)
        if len(lacks):
            self.missing[number] = spans_in(lacks)

    @property
    def _first(self) -> int:
        """The version in which the run began."""
        return int(self.pins.origin.version or 0)

    @cached_property
    def _appended(self) -> frozenset[str]:
        """The files of rows that others have appended since the run began."""
        return self.history.added_since(self._first)

    def _known(self) -> dict[str, list[Part]]:
        """Return the pinned rows of each fragment, by its state.

        Raises:
            LedgerDamagedError: A group does not belong to the pinned rows.
        """
        left, known = dict(self.groups), dict[str, list[Part]]()
        for base, file in zip(self.pins.bases, self.pins.files, strict=False):
            if file.rows:
                part = Part(base=base, file=file, groups=tuple(left.pop(base, ())))
                known.setdefault(part.state, []).append(part)
        for group, *_ in left.values():
            raise LedgerDamagedError(uri=group.path, reason="its rows are not in the run's input")
        return known

    def _revived(self, fragment: Any, parts: Sequence[Part]) -> Positions:  # noqa: ANN401
        """Return positions that are live, and were deleted when the fragment was pinned.

        If the version is gone, that is not known any more: then all live ones are returned.
        """
        deletion = fragment.deletion_file()
        now = () if deletion is None else (str(deletion),)
        if any(part.file.deletes in {(), now} and not part.file.left_out for part in parts):
            return np.array([], dtype=np.int64)
        live = live_positions(fragment)
        for part in parts:
            then = self._then(part)
            if then is not None:
                pinned = live_positions(then)
                live = np.setdiff1d(live, pinned[is_read(part.file, pinned)])
        return live

    def _then(self, part: Part) -> Any:  # noqa: ANN401 - LanceFragment.
        """Return a fragment as it was pinned; None if the version is gone."""
        if part.version not in self._opened:
            try:
                self._opened[part.version] = self.history.opened(part.version)
            except GoneError:
                self._opened[part.version] = None
        then = self._opened[part.version]
        return None if then is None else then.get_fragment(part.fragment)

    # ---- Rows that are known by their ids

    @cached_property
    def _row_ids(self) -> _PinnedIds | None:
        """The ids of pinned rows whose fragment is gone; None if they prove nothing."""
        dataset = self.history.dataset
        if not dataset.has_stable_row_ids or not self.history.traces_rows_since(self._first):
            return None
        return _PinnedIds(self._gone, self._then)

    def _place_by_ids(
        self,
        fragment: Any,  # noqa: ANN401 - LanceFragment.
        own: Sequence[Part],
        lacks: Positions,
        pinned: _PinnedIds,
    ) -> Positions:
        """Place rows by their ids; return the positions of those that have no value yet."""
        rows = RowIds.of(fragment).only(lacks)
        appended = rows.created > self._first
        found = pinned.parts_of(rows)
        parts = [pinned.parts[number] for number in np.unique(found[found >= 0])]
        self.placed[fragment.fragment_id] = Placed(
            parts=[*own, *parts], since=self._first, appended=int(appended.sum())
        )
        left: Positions = np.sort(rows.positions[~appended & (found < 0)])
        return left


@dataclass
class _PinnedIds:
    """The ids of pinned rows whose fragments are gone from the dataset."""

    parts: Sequence[Part]
    then: Callable[[Part], Any]

    def parts_of(self, rows: RowIds) -> Positions:
        """Return for each row the number of the part that it was pinned in; -1 if in none."""
        starts, stops, owners = self._spans
        if not len(starts):
            return np.full(len(rows.ids), -1)
        at = np.maximum(np.searchsorted(starts, rows.ids, side="right") - 1, 0)
        inside = (starts[at] <= rows.ids) & (rows.ids < stops[at])
        owner = np.where(inside, owners[at], -1)
        versions = np.asarray([part.version for part in self.parts])
        changed = np.maximum(rows.created, rows.updated) > versions[owner]
        found: Positions = np.where(changed, -1, owner)
        return found

    @cached_property
    def _spans(self) -> tuple[Positions, Positions, Positions]:
        """Disjoint spans of ids, sorted, and which part each belongs to; of two the later one."""
        found: list[tuple[int, int, int]] = []
        for number, part in enumerate(self.parts):
            if (then := self.then(part)) is not None:
                rows = RowIds.of(then)
                spans = spans_in(rows.ids[is_read(part.file, rows.positions)])
                found += [(start, stop, number) for start, stop in spans]
        found.sort()
        if any(span[1] > following[0] for span, following in pairwise(found)):
            found = _disjoint(found)
        starts, stops, owners = np.asarray(found, dtype=np.int64).reshape(-1, 3).T
        return starts, stops, owners


def _disjoint(spans: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return spans with owners so that each number belongs to the last of its owners only."""
    by_owner: dict[int, list[Span]] = {}
    for start, stop, owner in spans:
        by_owner.setdefault(owner, []).append((start, stop))
    taken, found = Ranges(), list[tuple[int, int, int]]()
    for owner in sorted(by_owner, reverse=True):
        own = Ranges.of(by_owner[owner])
        found += [(*span, owner) for span in own.minus(taken)]
        taken = taken.plus(own)
    return sorted(found)


def is_read(file: PinnedFile, positions: Positions) -> Any:  # noqa: ANN401 - an array of bool.
    """Return which positions of a pinned file are read."""
    edges = np.cumsum([0, *file.group_rows])
    groups = np.searchsorted(edges, positions, side="right") - 1
    return ~np.isin(groups, file.left_out)


def within(spans: Sequence[Span], base: int, rows: int) -> Iterator[Span]:
    """Yield the parts of spans in one file, counted from its first row."""
    for start, stop in spans:
        low, high = max(start, base), min(stop, base + rows)
        if low < high:
            yield low - base, high - base


# ---- One fragment, put together: which value belongs to which row


@dataclass(frozen=True, kw_only=True)
class AssemblyPart:
    """Pinned rows of a fragment, and where their values are."""

    # The number of the fragment's first row, the fragment, and the version it was pinned in.
    base: int
    fragment: int
    version: int
    # Path, rows and bytes of each file with values.
    files: tuple[tuple[str, int, int], ...]
    # The positions of rows that failed.
    failed: tuple[Span, ...]


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """One fragment, and where the values of its rows are."""

    # Its name in the ledger: others of the same name would have the same values.
    state: str
    fragment: int
    version: int
    rows: int
    parts: tuple[AssemblyPart, ...]
    # If not 0: the fragment holds rows of others, known by their ids, and rows that were added
    # after this version have no value.
    since: int
    # Whether rows without a new value keep the one that they have.
    keeps: bool
    # One of the files with values, as Lance describes it; those of a run have the same columns.
    like: str = ""

    def to_json(self) -> str:
        """Return it as the text of a work item."""
        return json.dumps(asdict(self))


class Places:
    """Where pinned rows are in the fragment that is put together."""

    def __init__(
        self,
        work: Assembly,
        part: AssemblyPart,
        ids: RowIds | None,
        fragment: Callable[[int, int], Any],
    ) -> None:
        """Look up the rows' ids, if these are what they are known by."""
        self._rows = work.rows
        self._places: Positions | None = None
        if ids is None or part.fragment == work.fragment:
            return
        then = fragment(part.fragment, part.version)
        pinned = RowIds.of(then)
        found = pinned.places_of(ids.ids)
        is_same = (found >= 0) & ids.unchanged_since(part.version)
        self._places = np.full(then.physical_rows, -1)
        self._places[pinned.positions[found[is_same]]] = ids.positions[is_same]

    def of(self, positions: Positions) -> Positions:
        """Return the place of each pinned row; -1 for rows that are not there any more.

        Raises:
            LedgerDamagedError: A position is not in the pinned fragment.
        """
        size = self._rows if self._places is None else len(self._places)
        if len(positions) and int(positions.max()) >= size:
            raise LedgerDamagedError(uri="a column file", reason="it holds rows of no fragment")
        return positions if self._places is None else self._places[positions]


def refuse_doubles(work: Assembly, sources: Sequence[Positions]) -> None:
    """Refuse values of one part of which two are for the same row.

    Raises:
        LedgerDamagedError: There are such.
    """
    positions = np.concatenate([np.array([], dtype=np.int64), *sources])
    positions = np.sort(positions[positions >= 0])
    if np.any(positions[1:] == positions[:-1]):
        where = f"fragment {work.fragment} of version {work.version}"
        raise LedgerDamagedError(uri=where, reason="a row has two values")


class Order:
    """Which value belongs to which row of a fragment."""

    def __init__(
        self,
        work: Assembly,
        sources: Sequence[Positions],
        live: Positions,
        has_value: npt.NDArray[np.bool_],
    ) -> None:
        """Sort the values by their rows.

        Args:
            work: The fragment.
            sources: The row of each value, by file; -1 for values that are not needed.
            live: The rows that are not deleted.
            has_value: The rows that need none.

        Raises:
            LedgerDamagedError: A live row has no value.
        """
        self._positions = positions = np.concatenate([*sources, np.array([], dtype=np.int64)])
        order = np.argsort(positions, kind="stable")
        self._order = order[positions[order] >= 0]
        self._sorted = positions[self._order]
        self._starts = np.cumsum([0, *(len(source) for source in sources)])
        where = f"fragment {work.fragment} of version {work.version}"
        has_value[self._sorted] = True
        if not work.keeps and not has_value[live].all():
            lacks = int((~has_value[live]).sum())
            raise LedgerDamagedError(uri=where, reason=f"{lacks} rows have no value")

    def between(self, first: int, stop: int) -> tuple[dict[int, Positions], Positions]:
        """Return the values of some rows: by source the rows there, and the row of each value.

        Values are in the order of sources, and of rows within each.
        """
        low, high = np.searchsorted(self._sorted, [first, stop])
        chosen = np.sort(self._order[low:high])
        source = np.searchsorted(self._starts, chosen, side="right") - 1
        rows = {
            int(number): chosen[source == number] - self._starts[number]
            for number in np.unique(source)
        }
        return rows, self._positions[chosen]
