"""Columns of a Lance dataset: what a run that computes them changes in a version.

No row is added. Each fragment gets one more file, with the new columns, and the next version has
these fragments and the new schema. A fragment is known by its state: where the values are that
the new ones were computed from. If others change a fragment in another way, nothing is lost.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance.blob import BlobType
from lance.fragment import FragmentMetadata

from holdfast.errors import (
    LedgerDamagedError,
    SettingsError,
    TableChangedError,
)
from holdfast.model.coverage import Pins, Span
from holdfast.model.work import StagedGroup
from holdfast.reading.lance_rows import (
    TOMBSTONE,
    all_field_ids,
    field_ids,
    live_positions,
    state_of,
)
from holdfast.sinks.base import (
    NUMBER_COLUMN,
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
    FRAGMENT,
    AssemblerSpec,
    ColumnPlace,
    ColumnWriterSpec,
)
from holdfast.sinks.lance.dataset import DatasetPlace
from holdfast.sinks.lance.fields import numbers_in_dataset, refuse_first_format, with_fields
from holdfast.sinks.lance.history import History
from holdfast.sinks.lance.marks import mark_changes, metadata_of
from holdfast.sinks.lance.placing import Assembly, AssemblyPart, Placed, Placing, within
from holdfast.sinks.lance.post import Post, with_metadata
from holdfast.sinks.lance.sink import LanceSink, place_of
from holdfast.sinks.staged import MARK_NOTE, mark_text
from holdfast.sinks.targets import LanceTable
from holdfast.text import reason_and_cause


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
class _Fill:
    """What the post changes: fragments with one more file, by number; and the schema."""

    fragments: Mapping[int, FragmentMetadata]
    schema: Any


# How long fragments count as taken out of the indices: a build that began since reads what they
# hold now. Taking them out for each attempt would double the commits that a busy table sees.
_UNCOVERED_S = 60.0


@dataclass(frozen=True, slots=True)
class _Uncovered:
    """Fragments that no index on the columns covers, since a version."""

    version: int
    fragments: frozenset[int]
    at: float


class LanceColumnSink(LanceSink):
    """One Lance dataset, of which columns are computed."""

    work: ColumnWork | None = None
    _uncovered: _Uncovered | None = None
    # How many rows others had appended when the loss was computed.
    _appended: int = 0

    @property
    def place(self) -> DatasetPlace:
        """The dataset's location."""
        return self._place

    def load_writable(self) -> TableView:
        """Load the dataset's current state, which columns can be written to.

        Raises:
            UnsupportedTableError: Its file format loses values.
            TableMissingError: There is no such dataset.
            StoreUnavailableError: The store does not answer.
            TableChangedError: The dataset keeps being dropped and recreated.
        """
        view = self.load()
        refuse_first_format(self.name, view.handle.dataset)
        return view

    def begin(self, schema: pa.Schema, pins: Pins, *, is_update: bool) -> None:
        """Take what the run computes; again, if rows were added to it.

        Args:
            schema: The columns, from `fit`.
            pins: The rows.
            is_update: Whether the columns are there already.
        """
        self.work = ColumnWork(schema=as_stored(schema), is_update=is_update, pins=pins)

    def fit(self, schema: pa.Schema | None, *, is_update: bool) -> pa.Schema:
        """Return columns as they will be in the dataset.

        Args:
            schema: The columns; None if there are no rows that would show them.
            is_update: Whether they are there already.

        Raises:
            SettingsError: The columns do not fit the dataset.
        """
        dataset = self._place.open()
        if schema is not None:
            found = fitted(dataset.schema, schema, is_update=is_update)
            refuse_unwritable(as_stored(found), dataset.data_storage_version)
            return found
        if is_update:
            return pa.schema([])  # There is nothing to do.
        raise SettingsError(
            what="there are no rows, so the transform does not show which columns it returns",
            cure="pass schema=",
        )

    def check_names(self, view: TableView) -> None:
        """Stop if the columns cannot be put into the dataset any more.

        Raises:
            TableChangedError: A column has been added under the same name, or is gone.
        """
        work = self._work
        there = set(view.handle.dataset.schema.names)
        if lacks := [name for name in work.pins.schema.names if name not in there]:
            change = f"column {lacks[0]!r}, which the transform gets, was dropped or renamed"
            raise TableChangedError(table=self.name, change=change)
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
        delete_column: str = "",  # noqa: ARG002 - nothing is merged.
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
        schema = dataset.lance_schema if work.is_update else with_fields(dataset, work.schema)
        own = field_ids(schema, work.schema.names)
        placing = Placing(
            history=history,
            pins=work.pins,
            groups=_by_base(change.adds),
            read=field_ids(dataset.lance_schema, work.pins.schema.names),
        )
        placing.run()
        if placing.missing:
            raise RowsMovedError(dataset.version, placing.missing)
        self._appended = sum(placed.appended for placed in placing.placed.values())
        fragments: dict[int, FragmentMetadata] = {}
        targets: dict[str, str] = {}
        writes: dict[str, int] = {}
        for fragment in dataset.get_fragments():
            placed = placing.placed[fragment.fragment_id]
            groups = [group for part in placed.parts for group in part.groups]
            if not placed.parts:
                continue
            if not groups and not placed.since:
                self._refuse_lost(fragment, placed, change.failed)
                continue
            whole = groups[0] if len(groups) == 1 and not placed.since else None
            if whole is None or not _column_facts(whole)["is_whole"]:
                assembly = self._assembly(view, fragment, placed, change.failed, own)
                made = change.rewritten.get(assembly.state)
                if made is None or made.group is None:
                    targets[assembly.state] = assembly.to_json()
                    continue
                whole = made.group
            writes[whole.path] = whole.size_bytes
            metadata = fragment.metadata
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
        own = field_ids(fill.schema, self._work.schema.names)
        changes = mark_changes(metadata_of(history.dataset), run_id, mark, view.uuid)
        post = Post(
            place=self._place,
            view=view,
            schema=with_metadata(fill.schema, changes),
            changed=fill.fragments,
            notes={"holdfast.run": run_id, MARK_NOTE: mark_text(mark)},
        )
        if self._work.is_update and not self._is_uncovered(fill):
            # The columns are posted on the version that this makes, so it has no mark.
            version = replace(post, notes={"holdfast.run": run_id}).uncover(own)
            if version is not None:
                self._uncovered = _Uncovered(version, frozenset(fill.fragments), time.monotonic())
            return Outcome.UNSENT
        outcome, version = post.send()
        if outcome is Outcome.LANDED and version != mark.snapshot_id:
            # A setting or an index was committed in between: the next look shows the true version.
            return Outcome.UNKNOWN
        return outcome

    def _is_uncovered(self, fill: _Fill) -> bool:
        """Whether no index on the columns covers the fragments that change.

        Raises:
            StoreUnavailableError: The store does not answer.
            TableMissingError: The dataset is gone.
        """
        done, now = self._uncovered, time.monotonic()
        if not fill.fragments:
            return True
        if (
            done is None
            or now - done.at > _UNCOVERED_S
            or not done.fragments >= fill.fragments.keys()
        ):
            return False
        # An index that was built since may cover them.
        return not History(self._place.open()).has_new_index(done.version)

    def rows_without_columns(self) -> int:
        """Return how many rows have no value, because others have appended them since."""
        is_new = self.work is not None and not self.work.is_update
        return self._appended if is_new else 0

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

    def _refuse_lost(
        self,
        fragment: Any,  # noqa: ANN401 - LanceFragment.
        placed: Placed,
        failed: Sequence[Span],
    ) -> None:
        """Stop if a fragment without any value has rows that are to have one.

        Raises:
            LedgerDamagedError: It does.
        """
        if self._work.is_update:
            return
        rows = np.zeros(fragment.physical_rows, dtype=bool)
        rows[live_positions(fragment)] = True
        for part in placed.parts:
            for start, stop in within(failed, part.base, len(rows)):
                rows[start:stop] = False
        if rows.any():
            where = f"{self.name} (fragment {fragment.fragment_id})"
            raise LedgerDamagedError(uri=where, reason=f"{int(rows.sum())} rows have no value")

    def _assembly(
        self,
        view: TableView,
        fragment: Any,  # noqa: ANN401 - LanceFragment.
        placed: Placed,
        failed: Sequence[Span],
        own: frozenset[int],
    ) -> Assembly:
        metadata, keeps = fragment.metadata, self._work.is_update
        parts = tuple(
            AssemblyPart(
                base=part.base,
                fragment=part.fragment,
                version=part.version,
                files=tuple((g.path, g.files[0].rows, g.size_bytes) for g in part.groups),
                failed=tuple(within(failed, part.base, part.file.rows)),
            )
            for part in placed.parts
        )
        # What rows keep depends on where these values are, and on which rows are live.
        kept = [state_of(metadata, own), str(metadata.deletion_file)] if keeps else []
        state = state_of(metadata, all_field_ids(view.handle.dataset.lance_schema) - own)
        facts = [state, kept, placed.since, [asdict(part) for part in parts]]
        text = json.dumps([facts, self._work.schema.to_string()])
        return Assembly(
            state=f"{metadata.id} {hashlib.sha256(text.encode()).hexdigest()}",
            fragment=metadata.id,
            version=view.handle.dataset.version,
            rows=metadata.physical_rows,
            parts=parts,
            since=placed.since,
            keeps=keeps,
            like=next((str(g.detail[FRAGMENT]) for part in placed.parts for g in part.groups), ""),
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


def _by_base(groups: Sequence[StagedGroup]) -> dict[int, list[StagedGroup]]:
    """Return staged values by the number of the first row of their pinned file.

    Raises:
        LedgerDamagedError: A group does not say which rows it holds.
    """
    found: dict[int, list[StagedGroup]] = {}
    for group in groups:
        found.setdefault(_column_facts(group)["base"], []).append(group)
    return found


def _column_facts(group: StagedGroup) -> Mapping[str, Any]:
    """Return what a staged group says of its rows.

    Raises:
        LedgerDamagedError: It does not say it.
    """
    facts = group.detail.get(COLUMN)
    if not isinstance(facts, dict) or not isinstance(facts.get("names"), list):
        raise LedgerDamagedError(uri=group.path, reason="it does not say which rows it holds")
    return facts


# ---- Which columns a run may compute, and as which types


def fitted(there: pa.Schema, schema: pa.Schema, *, is_update: bool) -> pa.Schema:
    """Return the columns that a run computes as they will be in the dataset.

    Args:
        there: The dataset's columns.
        schema: The columns that the user named, or that the transform returned.
        is_update: Whether they are there already.

    Raises:
        SettingsError: The columns do not fit the dataset.
    """
    names = {*schema.names} - {"", NUMBER_COLUMN}
    if not schema.names or len(names) != len(schema):
        raise SettingsError(what=f"the new columns are {schema.names}", cure="name each once")
    if is_update:
        if lacks := [name for name in schema.names if name not in there.names]:
            raise SettingsError(
                what=f"the dataset has no column {lacks[0]!r}", cure="call add_columns"
            )
        found = pa.schema([there.field(name) for name in schema.names])
    else:
        if taken := [name for name in schema.names if name in there.names]:
            raise SettingsError(
                what=f"the dataset has a column {taken[0]!r} already",
                cure="call update_columns to compute it again, or name the new one otherwise",
            )
        if required := [column.name for column in schema if not column.nullable]:
            raise SettingsError(
                what=f"the new column {required[0]!r} may not be NULL",
                cure="make it nullable: rows that others append meanwhile do not have it",
            )
        found = schema.remove_metadata()
    for column in found:
        if has_nulls_only(column.type):
            raise SettingsError(
                what=f"the first rows do not show the type of column {column.name!r}: all are NULL",
                cure="pass schema=",
            )
        if is_blob(column):
            raise SettingsError(
                what=f"column {column.name!r} is a blob column", cure="give its values as binary"
            )
        if is_json(column):
            raise SettingsError(
                what=f"column {column.name!r} is a JSON column, which cannot be put together",
                cure="compute the text in a column of type pa.string()",
            )
    return found


def refuse_unwritable(schema: pa.Schema, storage_version: Any) -> None:  # noqa: ANN401 - a literal.
    """Refuse columns that Lance cannot write, or not without a value, before a row is paid for.

    Args:
        schema: The columns. Rows that fail or were deleted have no value.
        storage_version: The version of Lance's file format that the dataset uses.

    Raises:
        SettingsError: It cannot.
    """
    row = pa.table([pa.nulls(1, column.type) for column in schema], schema=schema)
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        try:
            lance.write_dataset(row, f"{folder}/t.lance", data_storage_version=storage_version)
        except (ValueError, OSError, pa.ArrowException) as error:
            raise SettingsError(
                what=f"the dataset cannot hold the new columns: {reason_and_cause(error, {})[0]}",
                cure="choose other names or types",
            ) from error


def has_nulls_only(kind: pa.DataType) -> bool:
    """Whether a type, or one inside it, holds nothing but NULL."""
    if pa.types.is_null(kind):
        return True
    below = (kind.field(number).type for number in range(kind.num_fields))
    return any(map(has_nulls_only, below))


_JSON = (b"arrow.json", b"lance.json")


def is_json(column: pa.Field) -> bool:
    """Whether a column, or one inside it, holds JSON, which Lance encodes in a way of its own."""
    kind = column.type
    name = getattr(kind, "extension_name", "").encode()
    name = name or (column.metadata or {}).get(b"ARROW:extension:name", b"")
    below = (kind.field(number) for number in range(kind.num_fields))
    return name in _JSON or any(map(is_json, below))


def as_stored(schema: pa.Schema) -> pa.Schema:
    """Return columns with the types that Lance gives them: views become texts and binaries.

    Arrow cannot put the rows of views in another order.
    """
    return pa.schema([_as_stored(column) for column in schema], schema.metadata)


# The types that Lance gives to views.
_STORED = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def _as_stored(column: pa.Field) -> pa.Field:
    kind = column.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_as_stored(field) for field in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(_as_stored(kind.value_field))
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(_as_stored(kind.value_field))
    elif pa.types.is_map(kind):
        key, item = _as_stored(kind.key_field), _as_stored(kind.item_field)
        kind = pa.map_(key, item, keys_sorted=kind.keys_sorted)
    return column.with_type(_STORED.get(kind, kind))


def is_blob(column: pa.Field) -> bool:
    """Whether Lance keeps the values of a column in files of their own."""
    is_marked = (column.metadata or {}).get(b"lance-encoding:blob") == b"true"
    return isinstance(column.type, BlobType) or is_marked
