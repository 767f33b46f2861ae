"""The Iceberg sink: one table behind the engine's protocol."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
)
from pyiceberg.schema import index_by_id
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import (
    RemovePropertiesUpdate,
    SetPropertiesUpdate,
    TableUpdate,
)

from holdfast.errors import (
    CommitRefusedError,
    SettingsError,
    StoreUnavailableError,
    TableChangedError,
    TableMissingError,
    UnsupportedTableError,
)
from holdfast.ledger.row_files import damage_at
from holdfast.model.lasting import lasts
from holdfast.model.records import Intent
from holdfast.model.work import Merge, StagedFile, StagedGroup
from holdfast.reading.iceberg_rows import names_of
from holdfast.sinks.base import (
    Change,
    ColumnPath,
    Filter,
    Loss,
    MarkFound,
    MayLack,
    Outcome,
    RunMark,
    TableView,
)
from holdfast.sinks.iceberg.avro import DamagedFileError
from holdfast.sinks.iceberg.catalog import RedirectedError, pointers_among, single_post
from holdfast.sinks.iceberg.data_file import WriteOptions
from holdfast.sinks.iceberg.joined import (
    merged_manifests,
    merged_paths,
    refuse_other_specs,
    refuse_unlistable,
)
from holdfast.sinks.iceberg.loading import io_of, load_table
from holdfast.sinks.iceberg.loss import Losses, is_by_position, row_test
from holdfast.sinks.iceberg.marks import find_mark, mark_changes
from holdfast.sinks.iceberg.matching import IcebergStagedReaderSpec, KeyColumns
from holdfast.sinks.iceberg.rewrite_rows import IcebergRewriterSpec, RewriteSpec
from holdfast.sinks.iceberg.schemas import added_columns, schema_changes, schema_json
from holdfast.sinks.iceberg.snapshots import (
    copied_groups,
    live_paths,
    requirements,
    snapshot_updates,
)
from holdfast.sinks.iceberg.where import Where
from holdfast.sinks.iceberg.writer import IcebergWriterSpec
from holdfast.sinks.staged import (
    MARK_NOTE,
    MARK_PREFIX,
    StagedFiles,
    is_root,
    mark_text,
    refuse_foreign,
    refuse_missing,
    refuse_outside,
)
from holdfast.storage.port import Storage, StorageError
from holdfast.text import in_short, reason_and_cause

_FORMAT_VERSION = 2
# How long it counts that files were there when manifests were merged.
_THERE_S = 60.0
# Where a table's files may be written besides its own location.
_FOLDER_PROPERTIES = ("write.data.path", "write.metadata.path")


class IcebergSink(StagedFiles):
    """One Iceberg table and branch."""

    def __init__(self, catalog: Catalog, identifier: str, branch: str) -> None:
        """Keep the catalog; the table is loaded at each look.

        Args:
            catalog: An open catalog, from `open_catalog`.
            identifier: `namespace.table`.
            branch: The branch to write.
        """
        self._catalog = catalog
        self._identifier = identifier
        self._branch = branch
        # With the catalog's name: an SQL catalog with another name does not know the table.
        self._name = f"{catalog.name}.{identifier}"
        self._losses = Losses(self._name)
        # The staged files that were there when manifests were merged, and until when that counts.
        self._there: tuple[float, frozenset[str]] = (0.0, frozenset())

    @property
    def name(self) -> str:
        """The table's display name."""
        return self._name

    def load(self) -> TableView:
        """Load the table's current state.

        Raises:
            TableMissingError: There is no such table.
            UnsupportedTableError: The table is not format v2 and holds no run, or the branch is a
                tag.
            CatalogUnavailableError: The catalog does not answer.
        """
        table = load_table(self._catalog, self._identifier, self._name)
        metadata = table.metadata
        if not any(name.startswith(MARK_PREFIX) for name in metadata.properties):
            # A run that landed before the table was upgraded must be found, not refused: if there
            # is a mark, `check` tests the format once the run is known not to be in the table.
            self._refuse_format(table)
        ref = metadata.refs.get(self._branch)
        if ref is not None and ref.snapshot_ref_type != SnapshotRefType.BRANCH:
            raise UnsupportedTableError(
                table=self._name,
                what=f"{self._branch!r} is a tag, which a commit would move",
                cure="name a branch",
            )
        return TableView(
            uuid=str(metadata.table_uuid),
            schema=schema_json(metadata.schema()),
            parent_snapshot_id=ref.snapshot_id if ref else None,
            next_sequence_number=metadata.next_sequence_number(),
            settled_below=metadata.next_sequence_number(),
            handle=table,
            location=table.location(),
        )

    def columns_since(self, view: TableView, began: Mapping[str, Any]) -> frozenset[ColumnPath]:
        """Return the columns that the table has gained since: those with new ids.

        Raises:
            LedgerDamagedError: `began` is not a schema.
        """
        with damage_at(self._name):
            return added_columns(began, view.schema)

    def key_meaning(self, view: TableView, on: Sequence[str]) -> str:
        """Return which columns key columns are, and of which types.

        Raises:
            SettingsError: The columns do not fit the table, or cannot be a key.
        """
        table: Table = view.handle
        return KeyColumns.of(self._name, table.schema(), on).meaning

    def staged_reader(self, view: TableView, on: Sequence[str] = ()) -> IcebergStagedReaderSpec:
        """Return what executors need to read staged files: their key columns, or all.

        Raises:
            SettingsError: The columns do not fit the table, or cannot be a key.
        """
        schema = view.handle.schema()
        columns = KeyColumns.of(self._name, schema, on) if on else KeyColumns.all_of(schema)
        return IcebergStagedReaderSpec(writer=self.writer_spec(view), columns=columns)

    def writer_spec(
        self,
        view: TableView,
        may_lack: MayLack = frozenset(),
        where: Filter | None = None,
        on: Sequence[str] = (),
        delete_column: str = "",
    ) -> IcebergWriterSpec:
        """Return what executors need to write to this table.

        Raises:
            UnsupportedTableError: The table's file format is not Parquet, a property cannot be
                read, or the table is partitioned by a column that was dropped.
            SettingsError: The filter, the key columns or the column that says which rows delete do
                not fit the table.
        """
        table: Table = view.handle
        WriteOptions.of(self._name, table.properties)  # Refused here, not on an executor.
        self._refuse_lost_sources(table)
        if where is not None or on:  # Rows of the table are looked for.
            names_of(self._name, table.metadata)
        names = [column.name for column in table.schema().fields]
        if delete_column and delete_column in names:
            raise SettingsError(
                what=f"delete_column={delete_column!r}, and {self._name} has a column of that name",
                cure="let the output say under another name which rows delete; if the table has "
                "gained the column since the run began, rename it there",
            )
        return IcebergWriterSpec(
            table=self._name,
            schema_json=table.schema().model_dump_json(),
            spec_json=table.spec().model_dump_json(),
            sort_order_json=table.sort_order().model_dump_json(),
            location=table.location(),
            properties=dict(table.properties),
            may_lack=may_lack,
            where=None if where is None else Where.of(self._name, table.schema(), where),
            on=KeyColumns.of(self._name, table.schema(), on).on,
            delete_column=delete_column,
            io_properties={key: str(value) for key, value in table.io.properties.items()},
            vendor=io_of(table).vendor,
        )

    def find_mark(
        self, view: TableView, run_id: str, run_nonce: str, intents: Mapping[int, Intent]
    ) -> MarkFound | None:
        """Look for the run's mark.

        Raises:
            RunMismatchError: Another run of the same id has landed there.
            CommitUnknownError: The mark is missing, but that proves nothing.
            TableChangedError: The catalog was rolled back.
        """
        table: Table = view.handle
        with self._storage_of(view):
            return find_mark(
                table.metadata,
                table.io,
                table=self._name,
                branch=self._branch,
                run_id=run_id,
                run_nonce=run_nonce,
                intents=intents,
            )

    def check(
        self, view: TableView, schemas: Sequence[dict[str, Any]], groups: Sequence[StagedGroup]
    ) -> None:
        """Stop if staged files no longer fit the table. Makes no request.

        Raises:
            UnsupportedTableError: The table is not format v2.
            TableMissingError: The branch does not exist.
            TableChangedError: The schema or the layout has changed.
            LedgerDamagedError: The ledger's schemas or groups are not what was written.
        """
        table: Table = view.handle
        self._refuse_format(table)
        self._refuse_missing_branch(view)
        for schema in schemas:
            with damage_at(self._name):
                changes = schema_changes(schema, view.schema)
            if changes:
                raise TableChangedError(table=self._name, change="; ".join(changes))
        refuse_unlistable(self._name, table, groups)

    def copy_groups(
        self, view: TableView, groups: Sequence[StagedGroup], targets: Sequence[StagedGroup]
    ) -> list[StagedGroup]:
        """Copy groups with all their files, and return the copies as staged.

        Raises:
            TableChangedError: A partition spec is gone.
            StagedFileMissingError: A staged file is gone.
            LedgerDamagedError: A manifest lists other files than the ledger does.
            StoreUnavailableError: The table's storage does not answer.
        """
        table: Table = view.handle
        with_manifests = [group for group in groups if not group.deleted_keys]
        refuse_other_specs(self._name, table, with_manifests)
        with self._reading(view, groups) as storage:
            return copied_groups(table, storage, groups, targets)

    def merge_paths(self, view: TableView, groups: Sequence[StagedGroup], name: str) -> list[str]:
        """Return where manifests would be written that stand for many small ones."""
        return merged_paths(view.handle, groups, name)

    def merge(
        self, view: TableView, groups: Sequence[StagedGroup], paths: Sequence[str]
    ) -> list[Merge]:
        """Write manifests of the table's target size; those that it leaves out enter as they are.

        Meanwhile the store is asked for the files, which is mostly waiting. The next call of
        `refuse_missing_files` uses the answer.

        Raises:
            TableChangedError: A partition spec is gone.
            StagedFileMissingError: A staged group or one of its files is gone.
            LedgerDamagedError: A manifest is not what the ledger says.
            StoreUnavailableError: The table's storage does not answer.
        """
        table: Table = view.handle
        refuse_unlistable(self._name, table, groups)
        files = {file.path: file.size_bytes for group in groups for file in group.files}
        with self._reading(view, groups) as storage, ThreadPoolExecutor(max_workers=1) as pool:
            asked = pool.submit(storage.sizes, list(files))
            found = merged_manifests(table, storage, groups, paths)
            there = zip(files.items(), asked.result(), strict=True)
        paths_there = frozenset(path for (path, size), known in there if known == size)
        refuse_missing(self._name, sorted(files.keys() - paths_there))
        self._there = (time.monotonic() + _THERE_S, paths_there)
        return found

    def refuse_missing_files(self, view: TableView, groups: Sequence[StagedGroup]) -> None:
        """Stop if staged objects are gone; what a merge has just asked for is not asked again.

        Raises:
            StagedFileMissingError: Some staged objects are gone.
            StoreUnavailableError: The table's storage does not answer.
        """
        (until, there), self._there = self._there, (0.0, frozenset())
        if time.monotonic() < until:
            groups = [replace(g, files=_not_among(there, g.files)) for g in groups]
        super().refuse_missing_files(view, groups)

    def live_files(self, view: TableView, paths: Sequence[str], run_nonce: str) -> set[str]:
        """Return those of a run's staged files that are reachable from a retained snapshot.

        Raises:
            LedgerDamagedError: A path is outside the table, or its name is not one of the run's.
            StoreUnavailableError: The table's storage does not answer.
        """
        table: Table = view.handle
        self._refuse_outside(table, paths)
        refuse_foreign(self._name, run_nonce, paths)
        with self._storage_of(view):
            return live_paths(table, paths)

    def delete_files(self, view: TableView, paths: Sequence[str]) -> None:
        """Delete staged files that no snapshot refers to, inside the table's own location.

        Files are written to a folder that a property names, but nothing is deleted there: anyone
        who may alter the table could name another table's folder.

        Raises:
            LedgerDamagedError: A path is outside the table.
            UnsupportedTableError: A path is in a folder that the table may share.
            StoreUnavailableError: The table's storage does not answer.
        """
        table: Table = view.handle
        self._refuse_outside(table, paths)
        own = table.location()
        prefix = f"{own.rstrip('/')}/"
        elsewhere = [path for path in paths if is_root(own) or not path.startswith(prefix)]
        if elsewhere:
            raise UnsupportedTableError(
                table=self._name,
                what=f"{elsewhere[0]} is not in a folder that only this table uses, so it is not "
                "deleted",
                cure="delete such files yourself, once no table refers to them",
            )
        with self._storage_of(view) as storage:
            storage.delete(paths)

    def _refuse_outside(self, table: Table, paths: Sequence[str]) -> None:
        named = [table.properties.get(name) for name in _FOLDER_PROPERTIES]
        folders = [folder for folder in (table.location(), *named) if folder]
        refuse_outside(self._name, folders, paths)

    def new_snapshot_id(self, view: TableView) -> int:
        """Return an id that no snapshot of the table has."""
        table: Table = view.handle
        return int(table.metadata.new_snapshot_id())

    def post_empty(self, view: TableView) -> Outcome:
        """Give the branch a first, empty snapshot, so that every data snapshot has a parent.

        Raises:
            UnsupportedTableError: The table is not format v2.
            TableMissingError: The branch does not exist and must be created first.
        """
        table: Table = view.handle
        self._refuse_format(table)
        self._refuse_missing_branch(view)
        with self._storage_of(view):
            updates = snapshot_updates(
                table, self._branch, self.new_snapshot_id(view), Change(), {}
            )
        return self._send(table, updates)

    def _refuse_format(self, table: Table) -> None:
        version = table.metadata.format_version
        if version != _FORMAT_VERSION:
            raise UnsupportedTableError(
                table=self._name,
                what=f"it has format v{version}; Holdfast writes only v2",
                cure="upgrade a v1 table with ALTER TABLE ... SET TBLPROPERTIES "
                "('format-version'='2'); write to a v2 table instead of v3",
            )
        if names := pointers_among(self._catalog, table.properties):
            raise UnsupportedTableError(
                table=self._name,
                what=f"its property {names[0]} would hide every commit",
                cure=f"ALTER TABLE ... UNSET TBLPROPERTIES ('{names[0]}')",
            )

    def _refuse_lost_sources(self, table: Table) -> None:
        known = index_by_id(table.schema())
        for field in table.spec().fields:
            if field.source_id not in known:
                raise UnsupportedTableError(
                    table=self._name,
                    what=f"its partition field {field.name!r} is of a column that was dropped",
                    cure=f"ALTER TABLE {self._name} DROP PARTITION FIELD `{field.name}`",
                )

    def _refuse_missing_branch(self, view: TableView) -> None:
        # Not at every look: a run may have landed on a branch that was since merged and dropped.
        if view.parent_snapshot_id is None and self._branch != MAIN_BRANCH:
            raise TableMissingError(
                table=self._name,
                what=f"it has no branch {self._branch!r}",
                cure=f"create the branch: ALTER TABLE {self._name} CREATE BRANCH {self._branch}",
            )

    def states(self, view: TableView, snapshot_id: int | None) -> frozenset[str]:
        """Return a text for each live file of a snapshot; the same texts mean the same rows.

        Raises:
            TableChangedError: The table no longer has the snapshot.
            StoreUnavailableError: The table's storage does not answer.
        """
        table: Table = view.handle
        snapshot = table.metadata.snapshot_by_id(snapshot_id) if snapshot_id else None
        if snapshot_id and snapshot is None:
            raise TableChangedError(table=self._name, change=f"snapshot {snapshot_id} is gone")
        with self._storage_of(view):
            return self._losses.states(table, snapshot)

    def loss(self, view: TableView, change: Change, name: str) -> Loss:
        """Return what a change removes from the table; nothing is written yet.

        Raises:
            UnsupportedTableError: Partitions cannot be replaced in this table.
            TableChangedError: Others have changed rows of `change.base`.
            StoreUnavailableError: The table's storage does not answer.
        """
        if change.removes == "nothing":
            return Loss()
        table: Table = view.handle
        parent = table.metadata.snapshot_by_id(view.parent_snapshot_id or 0)
        with self._storage_of(view):
            return self._losses.of(table, parent, change, name)

    def rewriter(self, view: TableView, change: Change) -> IcebergRewriterSpec:
        """Return what executors need to rewrite the targets of a loss."""
        table: Table = view.handle
        where = row_test(self._name, table.schema(), change)
        by_position = is_by_position(self._name, table, change)
        writer = self.writer_spec(view)
        return IcebergRewriterSpec(RewriteSpec.of(table, writer, where, by_position=by_position))

    def post(self, view: TableView, run_id: str, mark: RunMark, change: Change) -> Outcome:
        """Publish the change in one snapshot, once, if the table is still as in the view.

        Raises:
            CommitRefusedError: The catalog refused permanently.
        """
        table: Table = view.handle
        changes = mark_changes(table.properties, run_id, mark)
        notes = {"holdfast.run": run_id, MARK_NOTE: mark_text(mark)}
        updates: tuple[TableUpdate, ...] = (SetPropertiesUpdate(updates=changes.updates),)
        with self._storage_of(view):
            updates += snapshot_updates(table, self._branch, mark.snapshot_id, change, notes)
        if changes.removals:
            updates = (RemovePropertiesUpdate(removals=changes.removals), *updates)
        return self._send(table, updates)

    def unindexed_rows(self) -> dict[str, int]:
        """Return an empty dict: Iceberg has no indices."""
        return {}

    def _send(self, table: Table, updates: tuple[TableUpdate, ...]) -> Outcome:
        """Post once. Anything but a clear answer is unknown, and the mark will show the outcome.

        Raises:
            CommitRefusedError: The catalog refused permanently.
        """
        post, required = single_post(self._catalog), requirements(table, self._branch)
        try:
            post(table, required, updates)
        except CommitFailedException:
            return Outcome.CONFLICT
        except (BadRequestError, ForbiddenError, RedirectedError) as error:
            stale = isinstance(error, BadRequestError) and self._has_changed(table)
            if stale or "sequence number" in str(error):
                return Outcome.CONFLICT
            reason, cause = reason_and_cause(error, self._catalog.properties)
            raise CommitRefusedError(table=self._name, reason=reason) from cause
        except Exception as error:  # noqa: BLE001 - lost answers have any shape.
            # Catalogs in Python refuse a stale sequence number or a known snapshot this way.
            stale = "sequence number" in str(error) or "already exists" in str(error)
            return Outcome.CONFLICT if isinstance(error, ValueError) and stale else Outcome.UNKNOWN
        return Outcome.LANDED

    def _has_changed(self, table: Table) -> bool:
        """Whether the table has changed since the post was built; a new look then shows more.

        The change may well be the reason for a refusal. Catalogs word that in any way: for a table
        that was upgraded to v3 meanwhile, "first-row-id is null".
        """
        try:
            now = self._catalog.load_table(self._identifier)
        except Exception:  # noqa: BLE001 - each kind of catalog has errors of its own.
            return False
        return bool(now.metadata_location != table.metadata_location)

    def _known_object(self, view: TableView) -> str:
        """Return the table's metadata file, which is there."""
        table: Table = view.handle
        return table.metadata_location

    @contextlib.contextmanager
    def _storage_of(self, view: TableView) -> Iterator[Storage]:
        """Yield the table's storage; raise its failures as an error that names it.

        Raises:
            StoreUnavailableError: The storage failed.
            UnsupportedTableError: A file of the table's metadata cannot be decoded.
        """
        table: Table = view.handle
        try:
            yield io_of(table).storage
        except DamagedFileError as error:
            cure = "see whether Spark reads the table; if not, it is damaged: repair it first"
            raise UnsupportedTableError(table=self._name, what=str(error), cure=cure) from error
        except (OSError, StorageError, EOFError, ValueError) as error:
            raise StoreUnavailableError(
                uri=table.location(), reason=in_short(error), retry_safe=not lasts(error)
            ) from error


def _not_among(paths: frozenset[str], files: Sequence[StagedFile]) -> tuple[StagedFile, ...]:
    return tuple(file for file in files if file.path not in paths)
