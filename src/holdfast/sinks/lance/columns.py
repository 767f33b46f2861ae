"""Columns of a Lance dataset: what a run that computes them changes in a version.

No row is added. Each fragment gets one more file, with the new columns, and the next version has
these fragments and the new schema. A fragment is known by its state: where the values are that
the new ones were computed from. If others change a fragment in another way, nothing is lost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata

from holdfast.errors import (
    LedgerDamagedError,
    TableChangedError,
    UnsupportedTableError,
)
from holdfast.model.coverage import PinnedFile, Pins, Span
from holdfast.model.work import StagedGroup
from holdfast.reading.lance_rows import (
    TOMBSTONE,
    Positions,
    field_ids,
    live_positions,
    spans_in,
    state_of,
)
from holdfast.sinks.base import (
    Change,
    Filter,
    Loss,
    MayLack,
    Outcome,
    RowsMovedError,
    RunMark,
    TableView,
)
from holdfast.sinks.lance.column_files import (
    COLUMN,
    AssemblerSpec,
    Assembly,
    ColumnPlace,
    ColumnWriterSpec,
)
from holdfast.sinks.lance.dataset import DatasetPlace
from holdfast.sinks.lance.fields import fitted, numbers_in_dataset, with_fields
from holdfast.sinks.lance.history import GoneError, History
from holdfast.sinks.lance.marks import mark_changes, metadata_of
from holdfast.sinks.lance.post import Post, with_metadata
from holdfast.sinks.lance.sink import LanceSink, place_of
from holdfast.sinks.staged import MARK_NOTE, mark_text
from holdfast.sinks.targets import LanceTable


# ---- The sink: the same dataset, for a run that computes columns
@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnWork:
    """What a run computes."""

    # The new columns; those of `update_columns` have the table's types.
    schema: pa.Schema
    # Whether they are there already, and other rows keep their values.
    is_update: bool
    # The rows that they are computed for. Each fragment's values name its version and its state.
    pins: Pins


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What is known of a fragment: the pinned rows of it, and their staged values."""

    base: int
    file: PinnedFile
    groups: tuple[StagedGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fill:
    """What the post changes: fragments with one more file, by number; and the schema."""

    fragments: Mapping[int, FragmentMetadata]
    schema: Any


class LanceColumnSink(LanceSink):
    """One Lance dataset, of which columns are computed."""

    work: ColumnWork | None = None

    @property
    def place(self) -> DatasetPlace:
        """The dataset's location."""
        return self._place

    def begin(self, schema: pa.Schema, pins: Pins, *, is_update: bool) -> None:
        """Take what the run computes; again, if rows were added to it.

        Args:
            schema: The columns, from `fit`.
            pins: The rows.
            is_update: Whether the columns are there already.
        """
        self.work = ColumnWork(schema=schema, is_update=is_update, pins=pins)

    def fit(self, schema: pa.Schema, *, is_update: bool) -> pa.Schema:
        """Return columns as they will be in the dataset.

        Raises:
            SettingsError: The columns do not fit the dataset.
            UnsupportedTableError: The dataset's file format cannot hold them.
        """
        dataset = self._place.open()
        if dataset.data_storage_version in {"0.1", "legacy"}:
            raise UnsupportedTableError(
                table=self.name,
                what="its file format is Lance's first one, which has no separate columns",
                cure="write it anew with a current version of Lance",
            )
        return fitted(dataset.schema, schema, is_update=is_update)

    def check_names(self, view: TableView) -> None:
        """Stop if the columns cannot be put into the dataset any more.

        Raises:
            TableChangedError: A column has been added under the same name, or is gone.
        """
        work = self._work
        there = set(view.handle.dataset.schema.names)
        if work.is_update:
            fields = view.handle.dataset.schema
            for column in work.schema:
                if column.name not in there:
                    change = f"column {column.name!r} was dropped"
                    raise TableChangedError(table=self.name, change=change)
                if fields.field(column.name).type != column.type:
                    change = f"column {column.name!r} has another type now"
                    raise TableChangedError(table=self.name, change=change)
            return
        if taken := [name for name in work.schema.names if name in there]:
            raise TableChangedError(
                table=self.name, change=f"another writer has added a column {taken[0]!r}"
            )

    def check(
        self,
        view: TableView,
        schemas: Sequence[dict[str, Any]],  # noqa: ARG002 - see `check_names`.
        groups: Sequence[StagedGroup],
    ) -> None:
        """Stop if the columns cannot be put into the dataset any more. Makes no request.

        Raises:
            TableChangedError: A column has been added under the same name, or is gone.
            LedgerDamagedError: The ledger's groups are not what was written.
        """
        self.check_names(view)
        for group in groups:
            self._fragment(group)
            _column_facts(group)

    def writer_spec(  # type: ignore[override]
        self,
        view: TableView,
        may_lack: MayLack = frozenset(),  # noqa: ARG002 - all new columns are needed.
        where: Filter | None = None,  # noqa: ARG002 - the input is filtered.
        on: Sequence[str] = (),  # noqa: ARG002
    ) -> ColumnWriterSpec:
        """Return what executors need to write values."""
        return ColumnWriterSpec(
            columns=self._columns(view),
            bases=self._work.pins.bases,
            bytes_per_file=self._bytes_per_file,
        )

    def rewriter(self, view: TableView, _change: Change) -> AssemblerSpec:
        """Return what executors need to put column files together."""
        return AssemblerSpec(columns=self._columns(view))

    def loss(self, view: TableView, change: Change, name: str) -> Loss:  # noqa: ARG002
        """Return which fragments get which file; those without one yet are targets.

        Raises:
            RowsMovedError: Rows of the dataset have no value, and are to have one.
            TableChangedError: A column has been added under the same name, or is gone.
            StoreUnavailableError: The store does not answer.
        """
        history: History = view.handle
        dataset, work = history.dataset, self._work
        known = _known_of(work.pins, change.adds)
        read = field_ids(dataset.lance_schema, work.pins.schema.names)
        schema = dataset.lance_schema if work.is_update else with_fields(dataset, work.schema)
        own = field_ids(schema, work.schema.names)
        if missing := self._moved(history, known, read):
            raise RowsMovedError(dataset.version, missing)
        fragments: dict[int, FragmentMetadata] = {}
        targets: dict[str, str] = {}
        writes: dict[str, int] = {}
        for fragment in dataset.get_fragments():
            metadata = fragment.metadata
            parts = known.get(state_of(metadata, read), ())
            groups = [group for part in parts for group in part.groups]
            if not groups:
                continue  # It is new, or no row of it has a value.
            whole = groups[0] if len(groups) == 1 else None
            if whole is None or not _column_facts(whole)["is_whole"]:
                assembly = self._assembly(view, metadata, parts, change.failed, own)
                made = change.rewritten.get(assembly.state)
                if made is None or made.group is None:
                    targets[assembly.state] = assembly.to_json()
                    continue
                whole = made.group
            writes[whole.path] = whole.size_bytes
            fragments[fragment.fragment_id] = self._filled(metadata, whole, schema, own)
        return Loss(
            writes=writes, targets=targets, handle=_Fill(fragments=fragments, schema=schema)
        )

    def post(self, view: TableView, run_id: str, mark: RunMark, change: Change) -> Outcome:
        """Publish the columns in one version, once, if the dataset is still as in the view.

        Raises:
            CommitRefusedError: The store refused permanently.
            TableChangedError: It landed in a dataset that was recreated, or cleaned up meanwhile.
            StoreUnavailableError: The store does not answer.
        """
        history: History = view.handle
        fill: _Fill = change.loss.handle
        changes = mark_changes(metadata_of(history.dataset), run_id, mark, view.uuid)
        post = Post(
            place=self._place,
            view=view,
            schema=with_metadata(fill.schema, changes),
            changed=fill.fragments,
            notes={"holdfast.run": run_id, MARK_NOTE: mark_text(mark)},
        )
        outcome, version = post.send()
        if outcome is Outcome.LANDED and version != mark.snapshot_id:
            # A setting or an index was committed in between: the next look shows the true version.
            return Outcome.UNKNOWN
        return outcome

    def rows_without_columns(self) -> int:
        """Return how many rows of the dataset have no file with the new columns."""
        dataset = self._place.open()
        own = field_ids(dataset.lance_schema, self._work.schema.names)
        return sum(
            fragment.count_rows()
            for fragment in dataset.get_fragments()
            if not any(own.intersection(file.fields) for file in fragment.metadata.files)
        )

    @property
    def _work(self) -> ColumnWork:
        assert self.work is not None  # noqa: S101 - the input is settled first.
        return self.work

    def _columns(self, view: TableView) -> ColumnPlace:
        return ColumnPlace(
            table=self.name,
            place=self._place,
            schema=self._work.schema,
            storage_version=view.handle.dataset.data_storage_version,
        )

    def _assembly(
        self,
        view: TableView,
        metadata: Any,  # noqa: ANN401 - FragmentMetadata.
        parts: Sequence[_Known],
        failed: Sequence[Span],
        own: Collection[int],
    ) -> Assembly:
        rows, keeps = metadata.physical_rows, self._work.is_update
        sources = tuple(
            (group.path, part.base, group.files[0].rows, group.size_bytes)
            for part in parts
            for group in part.groups
        )
        in_fragment = [span for part in parts for span in _within(failed, part.base, rows)]
        spans = tuple(sorted(in_fragment))
        facts = [
            *(part.file.values["state"] for part in parts[:1]),
            state_of(metadata, own) if keeps else "",
            sorted(sources),
            spans,
            self._work.schema.to_string(),
        ]
        digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        return Assembly(
            state=f"{metadata.id} {digest}",
            fragment=metadata.id,
            version=view.handle.dataset.version,
            rows=rows,
            sources=sources,
            failed=spans,
            keeps=keeps,
        )

    def _filled(
        self,
        metadata: Any,  # noqa: ANN401 - FragmentMetadata.
        group: StagedGroup,
        schema: Any,  # noqa: ANN401 - LanceSchema.
        own: Collection[int],
    ) -> FragmentMetadata:
        """Return a fragment with one more file, in place of the columns that it had.

        Raises:
            LedgerDamagedError: The file is not one of this fragment's rows.
        """
        staged, facts = self._fragment(group), _column_facts(group)
        if staged.physical_rows != metadata.physical_rows:
            raise LedgerDamagedError(uri=group.path, reason="it has other rows than its fragment")
        new, names = metadata.to_json(), facts["names"]
        (file,) = staged.to_json()["files"]
        numbers = numbers_in_dataset(self._work.schema, names, schema)
        pairs = [
            (numbers[number], column)
            for number, column in zip(file["fields"], file["column_indices"], strict=True)
            if number in numbers
        ]
        file["fields"], file["column_indices"] = [p[0] for p in pairs], [p[1] for p in pairs]
        for old in new["files"]:
            old["fields"] = [TOMBSTONE if number in own else number for number in old["fields"]]
        kept = [old for old in new["files"] if any(number >= 0 for number in old["fields"])]
        new["files"] = [*kept, file]
        return FragmentMetadata.from_json(json.dumps(new))

    def _moved(
        self,
        history: History,
        known: Mapping[str, Sequence[_Known]],
        read: Collection[int],
    ) -> dict[int, list[Span]]:
        """Return live rows that have no value and are to have one: positions, by fragment."""
        found: dict[int, list[Span]] = {}
        versions = [part.file.values["version"] for parts in known.values() for part in parts]
        pinned = _PinnedVersions(history)
        added: frozenset[str] | None = None
        for fragment in history.dataset.get_fragments():
            parts = known.get(state_of(fragment.metadata, read), ())
            if parts:
                revived = pinned.revived(fragment, parts)
                if len(revived):
                    found[fragment.fragment_id] = spans_in(revived)
                continue
            if added is None:
                added = history.added_since(min(versions, default=0))
            # If it was not appended, rows of it may be old ones.
            if not added.intersection(file.path for file in fragment.metadata.files):
                found[fragment.fragment_id] = spans_in(live_positions(fragment))
        return {number: spans for number, spans in found.items() if spans}


class _PinnedVersions:
    """The versions in which rows were pinned: which of their rows were live."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._opened: dict[int, Any] = {}

    def revived(
        self,
        fragment: Any,  # noqa: ANN401 - LanceFragment.
        parts: Sequence[_Known],
    ) -> Positions:
        """Return positions that are live, and were deleted when the fragment was pinned.

        If the version is gone, that is not known any more: then all live ones are returned.
        """
        deletion = fragment.deletion_file()
        now = () if deletion is None else (str(deletion),)
        if any(part.file.deletes in {(), now} and not part.file.left_out for part in parts):
            return np.array([], dtype=np.int64)
        live = live_positions(fragment)
        for part in parts:
            live = np.setdiff1d(live, self._read(fragment.fragment_id, part.file))
        return live

    def _read(self, number: int, file: PinnedFile) -> Positions:
        """Return the positions of a fragment that were pinned."""
        version = file.values["version"]
        try:
            if version not in self._opened:
                self._opened[version] = self._history.opened(version)
        except GoneError:
            return np.array([], dtype=np.int64)
        live = live_positions(self._opened[version].get_fragment(number))
        edges = np.cumsum([0, *file.group_rows])
        groups = np.searchsorted(edges, live, side="right") - 1
        chosen: Positions = live[~np.isin(groups, file.left_out)]
        return chosen


def open_sink(
    target: LanceTable, settings_under: Callable[[str], Mapping[str, str]]
) -> LanceColumnSink:
    """Open the dataset of a run that computes columns.

    Args:
        target: The user's target.
        settings_under: Returns the session's settings below a prefix.
    """
    return LanceColumnSink(
        place_of(target, settings_under),
        rows_per_file=target.max_rows_per_file,
        bytes_per_file=target.max_bytes_per_file,
    )


def _is_read(file: PinnedFile, positions: Any) -> Any:  # noqa: ANN401
    edges = np.cumsum([0, *file.group_rows])
    groups = np.searchsorted(edges, positions, side="right") - 1
    return ~np.isin(groups, file.left_out)


def _within(spans: Sequence[Span], base: int, rows: int) -> Iterator[Span]:
    """Yield the parts of spans in one file, counted from its first row."""
    for start, stop in spans:
        low, high = max(start, base), min(stop, base + rows)
        if low < high:
            yield low - base, high - base


def _known_of(pins: Pins, groups: Sequence[StagedGroup]) -> dict[str, list[_Known]]:
    """Return what is known of each pinned fragment, by its state.

    Raises:
        LedgerDamagedError: A group does not belong to the pinned rows.
    """
    by_base: dict[int, list[StagedGroup]] = {}
    for group in groups:
        by_base.setdefault(_column_facts(group)["base"], []).append(group)
    known: dict[str, list[_Known]] = {}
    for base, file in zip(pins.bases, pins.files, strict=False):
        if file.rows:
            found = _Known(base=base, file=file, groups=tuple(by_base.pop(base, ())))
            known.setdefault(file.values["state"], []).append(found)
    if by_base:
        (group, *_) = next(iter(by_base.values()))
        raise LedgerDamagedError(uri=group.path, reason="its rows are not in the run's input")
    return known


def _column_facts(group: StagedGroup) -> Mapping[str, Any]:
    """Return what a staged group says of its rows.

    Raises:
        LedgerDamagedError: It does not say it.
    """
    facts = group.detail.get(COLUMN)
    if not isinstance(facts, dict) or not isinstance(facts.get("names"), list):
        raise LedgerDamagedError(uri=group.path, reason="it does not say which rows it holds")
    return facts
