"""The Lance sink: one dataset behind the engine's protocol, and how it is opened."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import msgspec
import pyarrow as pa
from lance import LanceDataset, LanceOperation, Transaction
from lance.fragment import DataFile, FragmentMetadata
from lance.schema import LanceSchema

from holdfast.errors import (
    CommitRefusedError,
    LedgerDamagedError,
    SettingsError,
    StoreUnavailableError,
    TableChangedError,
    TableMissingError,
    UnsupportedTableError,
)
from holdfast.failpoints import failpoint
from holdfast.ledger.row_files import damage_at
from holdfast.model.lasting import lasts
from holdfast.model.records import Intent
from holdfast.model.stored import RecordDamagedError
from holdfast.model.work import Merge, StagedGroup
from holdfast.sinks.base import (
    Change,
    ColumnPath,
    Filter,
    Loss,
    MarkFound,
    MayLack,
    Outcome,
    RewriterSpec,
    RunMark,
    Sink,
    TableView,
)
from holdfast.sinks.lance.dataset import DatasetPlace, give_identity, read_identity, unindexed_rows
from holdfast.sinks.lance.fields import refuse_first_format
from holdfast.sinks.lance.history import GoneError, History
from holdfast.sinks.lance.loss import Removal, loss_of, states
from holdfast.sinks.lance.marks import find_mark, mark_changes, metadata_of
from holdfast.sinks.lance.post import Post, added_columns, changes_since, schema_json, with_metadata
from holdfast.sinks.lance.writer import LanceStagedReaderSpec, LanceWriterSpec, given_schema
from holdfast.sinks.staged import (
    MARK_NOTE,
    StagedFiles,
    mark_text,
    refuse_outside,
)
from holdfast.sinks.targets import Create, LanceTable
from holdfast.storage.locations import normalise
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import StorageError
from holdfast.text import in_short, reason_and_cause

# ---- The Lance sink: one dataset behind the engine's protocol

_LOOKS_MAX = 5


class _FragmentJson(msgspec.Struct):
    """A fragment as Lance describes it."""

    id: int
    files: list[dict[str, Any]]
    physical_rows: int
    # What Lance records of fragments that are not new.
    deletion_file: Any = None
    row_id_meta: Any = None
    created_at_version_meta: Any = None
    last_updated_at_version_meta: Any = None
    overlays: Any = None

    @property
    def is_new(self) -> bool:
        return not (
            self.deletion_file
            or self.row_id_meta
            or self.created_at_version_meta
            or self.last_updated_at_version_meta
            or self.overlays
        )


@lru_cache(maxsize=64)
def _shared(numbers: tuple[int, ...]) -> list[int]:
    return list(numbers)


_READ_FRAGMENT = msgspec.json.Decoder(_FragmentJson)


WithoutId = Literal["give", "refuse", "look"]


class LanceSink(StagedFiles):
    """One Lance dataset."""

    def __init__(
        self,
        place: DatasetPlace,
        *,
        rows_per_file: int,
        bytes_per_file: int,
        without_id: WithoutId = "give",
    ) -> None:
        """Keep the location; the dataset is opened at each look.

        Args:
            place: The dataset's location.
            rows_per_file: How many rows make a good file.
            bytes_per_file: How many bytes make a good file, if they are reached first.
            without_id: What becomes of a dataset without an id: it is given one; it is refused, as
                the ledger that names it says that it has one; or it is only looked at.
        """
        self._place = place
        self._rows_per_file = rows_per_file
        self._bytes_per_file = bytes_per_file
        self._without_id = without_id

    @property
    def name(self) -> str:
        """The dataset's URI."""
        return self._place.uri

    def load(self) -> TableView:
        """Load the dataset's current state.

        Raises:
            TableMissingError: There is no such dataset, or it is not the known run's.
            StoreUnavailableError: The store does not answer.
            TableChangedError: The dataset keeps being dropped and recreated.
        """
        for _ in range(_LOOKS_MAX):
            identity = read_identity(self._place)
            dataset = self._place.open()
            if identity is None:
                if self._without_id == "refuse":
                    raise TableMissingError(table=self.name, what="no run has written to it")
                if self._without_id == "look":
                    return self._view(dataset, "")
                give_identity(self._place)
            elif read_identity(self._place) == identity:  # The id of the dataset that was opened.
                return self._view(dataset, identity)
        raise TableChangedError(table=self.name, change="it keeps being dropped and recreated")

    def columns_since(self, view: TableView, began: Mapping[str, Any]) -> frozenset[ColumnPath]:
        """Return the columns that the dataset has gained since: those with new numbers.

        Raises:
            LedgerDamagedError: `began` is not a schema.
        """
        with damage_at(self.name):
            return added_columns(began, view.schema)

    def key_meaning(self, _view: TableView, _on: Sequence[str]) -> str:
        """Refuse: rows of a dataset are not replaced by a key.

        Raises:
            UnsupportedTableError: Always.
        """
        raise self._cannot_filter()

    def staged_reader(self, view: TableView, on: Sequence[str] = ()) -> LanceStagedReaderSpec:
        """Return what executors need to read staged files; rows have no keys here.

        Raises:
            UnsupportedTableError: Keys are asked for, or there are blobs.
        """
        return LanceStagedReaderSpec.of(self.writer_spec(view, on=on))

    def writer_spec(
        self,
        view: TableView,
        may_lack: MayLack = frozenset(),
        where: Filter | None = None,
        on: Sequence[str] = (),
        delete_column: str = "",  # noqa: ARG002 - it goes with `on`.
    ) -> LanceWriterSpec:
        """Return what executors need to write to this dataset.

        Raises:
            UnsupportedTableError: There is a filter, rows are to be found by a key, or the
                dataset's file format loses values.
        """
        if where is not None or on:
            raise self._cannot_filter()
        dataset: LanceDataset = view.handle.dataset
        refuse_first_format(self.name, dataset)
        stored = dataset.schema.remove_metadata()
        return LanceWriterSpec(
            table=self.name,
            place=self._place,
            schema=given_schema(stored),
            stored=stored,
            rows_per_file=self._rows_per_file,
            bytes_per_file=self._bytes_per_file,
            storage_version=str(dataset.data_storage_version),
            may_lack=may_lack,
        )

    def find_mark(
        self, view: TableView, run_id: str, run_nonce: str, intents: Mapping[int, Intent]
    ) -> MarkFound | None:
        """Look for the run's mark.

        Raises:
            RunMismatchError: Another run of the same id has landed there.
            CommitUnknownError: The mark is missing, but that proves nothing.
            TableChangedError: Versions went back.
        """
        return find_mark(
            view.handle,
            table=self.name,
            identity=view.uuid,
            run_id=run_id,
            run_nonce=run_nonce,
            intents=intents,
        )

    def check(
        self, view: TableView, schemas: Sequence[dict[str, Any]], groups: Sequence[StagedGroup]
    ) -> None:
        """Stop if staged files no longer fit the dataset. Makes no request.

        Raises:
            TableChangedError: The schema has changed.
            LedgerDamagedError: The ledger's schemas or groups are not what was written.
        """
        try:
            changes = changes_since(view.handle, schemas, view.schema)
        except RecordDamagedError as error:
            raise LedgerDamagedError(uri=self.name, reason=str(error)) from error
        for group in groups:
            self._fragment(group)
        if changes:
            raise TableChangedError(table=self.name, change="; ".join(changes))

    def copy_groups(
        self, view: TableView, groups: Sequence[StagedGroup], targets: Sequence[StagedGroup]
    ) -> list[StagedGroup]:
        """Copy fragments with all their files, and return the copies as staged.

        Raises:
            StagedFileMissingError: A staged file is gone.
            StoreUnavailableError: The store does not answer.
        """
        names = {
            old: new
            for group, target in zip(groups, targets, strict=True)
            for old, new in zip(group.paths, target.paths, strict=True)
        }
        with self._reading(view, groups) as storage:
            storage.copy(names)
        return [self._under_own_name(target) for target in targets]

    def merge_paths(self, view: TableView, groups: Sequence[StagedGroup], name: str) -> list[str]:  # noqa: ARG002
        """Return nothing: a version lists its fragments one by one."""
        return []

    def merge(
        self,
        view: TableView,  # noqa: ARG002
        groups: Sequence[StagedGroup],  # noqa: ARG002
        paths: Sequence[str],  # noqa: ARG002
    ) -> list[Merge]:
        """Return nothing: a version lists its fragments one by one."""
        return []

    def live_files(
        self,
        view: TableView,
        paths: Sequence[str],
        run_nonce: str,  # noqa: ARG002 - Lance names its files.
    ) -> set[str]:
        """Return those of a run's staged files that are reachable from a retained version.

        Raises:
            LedgerDamagedError: A path is outside the dataset.
            StoreUnavailableError: The store does not answer.
        """
        self._refuse_outside(paths)
        history: History = view.handle
        data, deletions = f"{self._place.data}/", f"{self._place.deletions}/"
        # A data file's additional files are in a folder with its name.
        names = {
            path: path.removeprefix(data).removeprefix(deletions).split("/")[0].split(".")[0]
            for path in paths
        }
        live = history.live_names(set(names.values()))
        return {path for path, name in names.items() if name in live}

    def delete_files(
        self,
        view: TableView,
        paths: Sequence[str],
    ) -> None:
        """Delete staged files that no version refers to; refuse a path outside the dataset.

        Raises:
            LedgerDamagedError: A path is outside the dataset.
            StoreUnavailableError: The store does not answer.
        """
        self._refuse_outside(paths)
        with self._storage_of(view) as storage:
            storage.delete(paths)

    def _refuse_outside(self, paths: Sequence[str]) -> None:
        refuse_outside(self.name, [self._place.data, self._place.deletions], paths)

    def new_snapshot_id(self, view: TableView) -> int:
        """Return the version that a post makes, if no index or setting is committed in between."""
        return view.next_sequence_number

    def post_empty(self, view: TableView) -> Outcome:
        """Make a version that adds nothing, and after which no older post can land.

        Raises:
            CommitRefusedError: The store refused permanently.
            TableChangedError: It landed in a dataset that was recreated, or cleaned up meanwhile.
        """
        schema = view.handle.dataset.lance_schema
        outcome, _ = Post(place=self._place, view=view, schema=schema).send()
        return outcome

    def states(self, view: TableView, snapshot_id: int | None) -> frozenset[str]:
        """Return a text for each fragment of a version; the same texts mean the same rows.

        Raises:
            TableChangedError: The dataset no longer has the version.
            StoreUnavailableError: The store does not answer.
        """
        history: History = view.handle
        if snapshot_id in {None, history.dataset.version}:
            return states(history.dataset)
        try:
            return states(history.opened(snapshot_id or 0))
        except GoneError as error:
            raise TableChangedError(
                table=self.name, change=f"version {snapshot_id} is gone"
            ) from error

    def loss(self, view: TableView, change: Change, name: str) -> Loss:
        """Return what a change removes from the dataset; nothing is written yet.

        Raises:
            UnsupportedTableError: Partitions are to be replaced.
            TableChangedError: Others have changed rows of `change.base`.
        """
        if change.removes == "nothing":
            return Loss()
        if change.removes == "partitions":
            raise UnsupportedTableError(
                table=self.name, what="a Lance dataset has no partitions", cure="call overwrite"
            )
        if change.is_by_row:
            raise self._cannot_filter()
        return loss_of(self._place, view.handle.dataset, change, name)

    def rewriter(self, _view: TableView, _change: Change) -> RewriterSpec:
        """Refuse: rows of a dataset are not replaced by a filter.

        Raises:
            UnsupportedTableError: Always.
        """
        raise self._cannot_filter()

    def _cannot_filter(self) -> UnsupportedTableError:
        return UnsupportedTableError(
            table=self.name,
            what="rows of a Lance dataset cannot be replaced by a filter or a key",
            cure="call overwrite without where, or write to an Iceberg table",
        )

    def post(self, view: TableView, run_id: str, mark: RunMark, change: Change) -> Outcome:
        """Publish the change in one version, once, if the dataset is still as in the view.

        Raises:
            CommitRefusedError: The store refused permanently.
            TableChangedError: It landed in a dataset that was recreated, or cleaned up meanwhile.
            StoreUnavailableError: The store does not answer.
        """
        history: History = view.handle
        changes = mark_changes(metadata_of(history.dataset), run_id, mark, view.uuid)
        removal: Removal | None = change.loss.handle
        if removal is not None:
            with self._storage_of(view) as storage:
                removal.write(storage)
        with _collector_paused():
            fragments = [self._fragment(group) for group in change.adds]
        post = Post(
            place=self._place,
            view=view,
            schema=with_metadata(history.dataset.lance_schema, changes),
            fragments=fragments,
            changed=removal.fragments if removal else {},
            notes={"holdfast.run": run_id, MARK_NOTE: mark_text(mark)},
        )
        outcome, version = post.send()
        if outcome is Outcome.LANDED and version != mark.snapshot_id:
            # A setting or an index was committed in between: the next look shows the true version.
            return Outcome.UNKNOWN
        return outcome

    def unindexed_rows(self) -> dict[str, int]:
        """Return how many rows each index does not cover yet."""
        return unindexed_rows(self._place)

    def _view(self, dataset: LanceDataset, identity: str) -> TableView:
        history = History(dataset)
        return TableView(
            uuid=identity,
            schema=schema_json(dataset),
            parent_snapshot_id=dataset.version,
            next_sequence_number=dataset.version + 1,
            settled_below=history.settled_below(),
            handle=history,
            location=self._place.uri,
        )

    def _fragment(self, group: StagedGroup) -> FragmentMetadata:
        """Return a staged group as Lance's fragment metadata.

        Raises:
            LedgerDamagedError: The ledger's details of the group are not what was written.
        """
        try:
            text = _fragment_text(group)
            found = _READ_FRAGMENT.decode(text)
            own = f"{self._place.data}/{found.files[0]['path']}"
            if found.is_new:  # As Lance itself reads it, without its own way, which takes longer.
                for file in found.files:  # The same lists for all, which saves much memory.
                    file["fields"] = _shared(tuple(file["fields"]))
                    file["column_indices"] = _shared(tuple(file["column_indices"]))
                files = [DataFile(**file) for file in found.files]
                made = FragmentMetadata(found.id, files, found.physical_rows)
            else:
                made = FragmentMetadata.from_json(text)
        except Exception as error:  # Lance's own reader raises errors of every kind.
            raise LedgerDamagedError(uri=group.path, reason=in_short(error)) from error
        if own != group.path:
            raise LedgerDamagedError(uri=group.path, reason=f"its fragment is in {own}")
        return made

    def _under_own_name(self, target: StagedGroup) -> StagedGroup:
        fragment = json.loads(_fragment_text(target))
        fragment["files"][0]["path"] = target.path.removeprefix(f"{self._place.data}/")
        return replace(target, detail={**target.detail, "fragment": json.dumps(fragment)})

    @contextlib.contextmanager
    def _storage_of(
        self,
        view: TableView,  # noqa: ARG002 - other formats find their storage there.
    ) -> Iterator[ObjectStorage]:
        """Yield the dataset's storage; raise its failures as an error that names it.

        Raises:
            StoreUnavailableError: The storage failed.
        """
        try:
            yield self._place.storage
        except (OSError, StorageError) as error:
            raise StoreUnavailableError(
                uri=self.name, reason=in_short(error), retry_safe=not lasts(error)
            ) from error


# ---- From the user's target to an open sink; the dataset is created if asked to

_SETTINGS = "spark.holdfast.lance."
# The properties that `Create(properties=)` accepts.
_STABLE_ROW_IDS = "enable_stable_row_ids"


def place_of(
    target: LanceTable, settings_under: Callable[[str], Mapping[str, str]]
) -> DatasetPlace:
    """Return where the user's dataset is, and how it is reached."""
    options = target.storage_options
    if options is None:
        options = settings_under(_SETTINGS)
    return DatasetPlace(uri=normalise(target.uri), options=dict(options))


def open_sink(  # noqa: PLR0913 - each is another fact of the dataset.
    target: LanceTable,
    *,
    settings_under: Callable[[str], Mapping[str, str]],
    create: Create | None,
    default_schema: Callable[[], pa.Schema],
    without_id: WithoutId = "give",
    before_create: Callable[[Sink], object] = lambda _: None,
) -> LanceSink:
    """Open the dataset and, if asked to, create it.

    Args:
        target: The user's target.
        settings_under: Returns the session's settings below a prefix.
        create: How to create the dataset if it does not exist.
        default_schema: Returns the new dataset's schema if the user gave none.
        without_id: As for `LanceSink`.
        before_create: Called if the dataset does not exist, before it is created; may refuse.

    Raises:
        SettingsError: An argument cannot be used.
        CommitRefusedError: The dataset could not be created.
        StoreUnavailableError: The store does not answer.
    """
    place = place_of(target, settings_under)
    sink = LanceSink(
        place,
        rows_per_file=target.max_rows_per_file,
        bytes_per_file=target.max_bytes_per_file,
        without_id=without_id,
    )
    if create is not None:
        try:
            sink.load()
        except TableMissingError:
            before_create(sink)
            schema = create.schema if create.schema is not None else default_schema()
            _create(place, create, schema)
    return sink


def _create(place: DatasetPlace, create: Create, schema: pa.Schema) -> None:
    """Create the dataset; if another start was faster, leave its dataset alone.

    Raises:
        SettingsError: The request contains something that does not exist in Lance.
        CommitRefusedError: The dataset could not be created.
    """
    if create.partition_by:
        raise SettingsError(
            what="Create(partition_by=) is set, but a Lance dataset has no partitions",
            cure="leave it out",
        )
    if unknown := set(create.properties) - {_STABLE_ROW_IDS}:
        raise SettingsError(
            what=f"Create(properties=) has {min(unknown)!r}, which is not supported for Lance",
            cure=f"pass only {_STABLE_ROW_IDS}, or create the dataset with Lance itself",
        )
    if not isinstance(schema, pa.Schema):
        raise SettingsError(
            what=f"Create(schema=) is a {type(schema).__name__}", cure="pass a pyarrow.Schema"
        )
    # Not `write_dataset(mode="create")`: of two concurrent calls both may land, the later over the
    # earlier. Without retries Lance creates version 1, or nothing.
    made = Transaction(
        read_version=0,
        operation=LanceOperation.Overwrite(LanceSchema.from_pyarrow(schema), []),
    )
    options = place.lance_options
    failpoint("before-lance-create")
    try:
        LanceDataset.commit(
            place.uri,
            made,
            storage_options=options,
            max_retries=0,
            enable_stable_row_ids=create.properties.get(_STABLE_ROW_IDS, "").lower() == "true",
        )
    except Exception as error:  # noqa: BLE001 - Lance has no error of its own for a rival.
        try:
            place.open()  # Another start's, or our own whose answer was lost.
        except TableMissingError:
            reason, cause = reason_and_cause(error, place.options)
            raise CommitRefusedError(
                table=place.uri, reason=reason, retry_safe=not lasts(error)
            ) from cause
    failpoint("after-lance-create")


def _fragment_text(group: StagedGroup) -> str:
    """Return a group's fragment as Lance describes it; early ledgers hold it as an object."""
    found = group.detail["fragment"]
    return found if isinstance(found, str) else json.dumps(found)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep Python from looking for garbage: many new objects make it, and there is none."""
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_collecting:
            gc.enable()
