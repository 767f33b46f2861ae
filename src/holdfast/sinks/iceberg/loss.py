"""The loss: which files of a table a change removes, and the manifests that say so.

A loss is computed for one look at the table, and only a post that builds on that look may use it:
the files are those that were live then. After a conflict it is computed again.

Only metadata is read. Manifests never change, so each is read and rewritten once; a later look
reads only those that are new. A rewritten manifest is used only while the old one is listed: after
another writer has merged manifests, it would bring all its files back.

Merge-on-read leaves a file in the table that keeps a row, and adds a file of position deletes for
it. A file without a row left is removed in either mode.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import count
from typing import get_args

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.locations import SimpleLocationProvider
from pyiceberg.table.snapshots import Snapshot

from holdfast.errors import TableChangedError, UnsupportedTableError
from holdfast.failpoints import failpoint
from holdfast.model.work import Rewrite, StagedGroup, StagedTotals, sizes_of
from holdfast.sinks.base import Change, Loss, WriteMode
from holdfast.sinks.iceberg.avro import decoding
from holdfast.sinks.iceberg.file_io import file_bytes
from holdfast.sinks.iceberg.joined import Heads, NewManifests, joined_manifests, listed_manifest
from holdfast.sinks.iceberg.manifests import avro_codec, detail_of, manifests_of
from holdfast.sinks.iceberg.matching import KeyColumns, Matching
from holdfast.sinks.iceberg.position_deletes import is_of_deletes
from holdfast.sinks.iceberg.rewrite import LiveFile, Manifest, PartitionKey, Rewritten
from holdfast.sinks.iceberg.rewrite_rows import AppliedDeletes, TargetFile, as_item
from holdfast.sinks.iceberg.where import Verdict, Where
from holdfast.storage.runtime import io_runtime

# A partition: its spec, and its values there.
Partition = tuple[int, PartitionKey]
_DATA, _POSITION_DELETES, _EQUALITY_DELETES = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What a loss means for the next snapshot: the manifests it lists, and its summary."""

    # The parent's manifests that are listed again as they are.
    kept: Sequence[ManifestFile]
    # The others, each with its new path.
    rewritten: Mapping[str, Rewritten]
    # New files with the rows of removed ones that stay, and files of deletes.
    added: Sequence[StagedGroup]
    deletes: Sequence[StagedGroup]
    # The manifests that list these, and the content of those that are not written yet, by path.
    listed: Sequence[StagedGroup]
    joined: Mapping[str, bytes]
    summary: Mapping[str, str]

    def write(self, io: FileIO, snapshot_id: int) -> list[ManifestFile]:
        """Store the manifests, and return the entries of new and old ones in the manifest list."""
        data = {path: new.data for path, new in self.rewritten.items()} | dict(self.joined)

        def store(path: str) -> None:
            with io.new_output(path).create() as stream:
                stream.write(data[path])

        failpoint("before-removal")
        io_runtime().each(store, data)
        failpoint("after-removal")
        return [
            *(listed_manifest(group, snapshot_id) for group in self.listed),
            *(new.listed(path, snapshot_id) for path, new in self.rewritten.items()),
            *self.kept,
        ]


@dataclass(slots=True)
class _Chosen:
    """Which files go, by their states, and what is known of those that are looked at by row."""

    states: set[str] = field(default_factory=set)
    targets: dict[str, str] = field(default_factory=dict)
    added: list[StagedGroup] = field(default_factory=list)
    # Rows of files that go which are in new files, or hidden by deletes.
    kept_rows: int = 0
    carried_rows: int = 0
    # The files that stay and lose rows, and their deletes.
    touched: list[LiveFile] = field(default_factory=list)
    deletes: list[StagedGroup] = field(default_factory=list)
    # What became of the files that lose rows.
    used: list[Rewrite] = field(default_factory=list)


@dataclass(slots=True)
class Losses:
    """Computes the losses of one table; keeps what it has read of manifests."""

    table: str
    _manifests: dict[str, Manifest] = field(default_factory=dict)
    _staged: dict[str, frozenset[Partition]] = field(default_factory=dict)
    # Manifests of the last look without the files that went, by path.
    _rewritten: dict[str, Rewritten] = field(default_factory=dict)
    # What filters and keys say about files, by what decides and the file's state.
    _verdicts: dict[tuple[tuple[str, ...], str], Verdict] = field(default_factory=dict)

    def of(self, table: Table, parent: Snapshot | None, change: Change, name: str) -> Loss:
        """Return what a change removes from the parent of its snapshot.

        Args:
            table: The table, freshly loaded.
            parent: The snapshot that the change builds on.
            change: The change; it removes something.
            name: The beginning of the new manifests' names; no other post uses it.

        Raises:
            UnsupportedTableError: Partitions cannot be replaced in this table.
            TableChangedError: Others have changed rows of `change.base`, or the partition spec.
            DamagedFileError: A manifest cannot be decoded.
        """
        listed = live_manifests(table.io, parent)
        self._read(table.io, listed)
        if change.removes == "partitions":
            self._refuse_other_specs(table, listed, change.adds)
        new = self._partitions_of(table.io, change.adds)
        if change.base is not None:
            self._refuse_changed(self._files(listed), change, new)
        found = self._chosen(table, listed, change, new)
        if found.targets:
            return Loss(targets=found.targets)
        locations = SimpleLocationProvider(table.location(), table.properties)
        paths = (locations.new_metadata_location(f"{name}-{at:05d}.avro") for at in count())
        rewritten: dict[str, Rewritten] = {}
        kept: list[ManifestFile] = []
        for manifest in listed:
            old = self._manifests[manifest.manifest_path]
            gone = {file.at for file in old.files if _state(file) in found.states}
            if not gone:
                kept.append(manifest)
                continue
            rewritten[next(paths)] = self._without(manifest, gone, avro_codec(table.properties))
        of_new = (
            joined_manifests(found.added, Heads(table, ManifestContent.DATA), paths),
            joined_manifests(found.deletes, Heads(table, ManifestContent.DELETES), paths),
        )
        return self._loss(change, found, kept, rewritten, of_new, new)

    def _loss(  # noqa: PLR0913, PLR0917 - they are the parts of one loss.
        self,
        change: Change,
        found: _Chosen,
        kept: Sequence[ManifestFile],
        rewritten: Mapping[str, Rewritten],
        of_new: Sequence[NewManifests],
        new: AbstractSet[Partition],
    ) -> Loss:
        """Return the loss, given the manifests: those kept, rewritten, and of new files."""
        removed = [file for manifest in rewritten.values() for file in manifest.removed]
        data = [file for file in removed if file.content == _DATA]
        partitions = new | {(file.spec_id, file.partition) for file in (*removed, *found.touched)}
        manifests = [group for some in of_new for group in some.listed]
        writes = {path: len(manifest.data) for path, manifest in rewritten.items()}
        writes |= sizes_of(manifests)
        deletes = StagedTotals.of(found.deletes)
        summary = {
            **_summary(removed),
            **_summary_of_deletes(deletes),
            "changed-partition-count": str(len(partitions)),
            **({"replace-partitions": "true"} if change.removes == "partitions" else {}),
        }
        losing = [*data, *found.touched]
        return Loss(
            files=len(losing),
            rows=sum(file.rows for file in data) - found.kept_rows + deletes.rows,
            size_bytes=sum(file.size_bytes for file in data),
            partitions=len({(file.spec_id, file.partition) for file in losing if file.partition}),
            delete_files=deletes.files,
            carried_rows=found.carried_rows,
            writes=writes,
            used=found.used,
            handle=Removal(
                kept=kept,
                rewritten=rewritten,
                added=found.added,
                deletes=found.deletes,
                listed=manifests,
                joined={path: data for some in of_new for path, data in some.data.items()},
                summary=summary,
            ),
        )

    def _chosen(
        self,
        table: Table,
        listed: Sequence[ManifestFile],
        change: Change,
        new: AbstractSet[Partition],
    ) -> _Chosen:
        """Find out which files go.

        Raises:
            UnsupportedTableError: A file of which only some rows may go cannot be rewritten.
            SettingsError: The filter does not fit the table.
        """
        if change.is_by_row:
            return self._filtered(table, listed, change)
        return _Chosen(
            states={
                _state(file)
                for file in _may_go(self._files(listed), change)
                if change.removes == "all" or (file.spec_id, file.partition) in new
            }
        )

    def _filtered(self, table: Table, listed: Sequence[ManifestFile], change: Change) -> _Chosen:
        """Find out which files hold rows that match, as far as metadata and rewrites tell.

        A delete file goes with the one file that it names; those for several files stay.

        Raises:
            UnsupportedTableError: A file of which only some rows may go cannot be rewritten.
            SettingsError: The filter does not fit the table.
        """
        where = row_test(self.table, table.schema(), change)
        searches = _Searches.of(self.table, table, change, where.meaning)
        specs = table.specs()
        plain = [spec_id for spec_id, spec in specs.items() if spec.is_unpartitioned()]
        deletes = AppliedDeletes(self._files(listed), plain)
        found, gone = _Chosen(), set()
        for manifest in listed:
            home, spec = self._manifests[_path(manifest)], specs[manifest.partition_spec_id]
            files = [file for file in _may_go(home.files, change) if file.content == _DATA]
            verdicts, unseen = self._judged(where, home, files, spec), []
            for file, verdict in zip(files, verdicts, strict=True):
                if verdict == "none":
                    continue
                if verdict == "some":
                    known = change.rewritten.get(searches.name(file, deletes))
                    if known is None:
                        unseen.append(file)
                        continue
                    if not known.removed_rows:
                        continue
                    found.used.append(known)
                    if known.group and is_of_deletes(known.group):
                        found.touched.append(file)
                        found.deletes.append(known.group)
                        continue
                    found.kept_rows += file.rows - known.removed_rows
                    if known.group:
                        found.added.append(known.group)
                        found.carried_rows += known.kept_rows if change.removes == "keys" else 0
                gone.add(file.path)
                found.states.add(_state(file))
            for file, data_file in home.data_files(unseen, spec):
                target = TargetFile.of(self.table, data_file, deletes.to(file))
                state = searches.name(file, deletes)
                found.targets[state] = as_item(state, target)
        # A path that is listed twice stays if one of the two does, and so do its deletes.
        gone -= {
            file.path
            for file in self._files(listed)
            if file.content == _DATA and file.path in gone and _state(file) not in found.states
        }
        found.states |= {
            _state(file)
            for file in self._files(listed)
            if file.content == _POSITION_DELETES and file.referenced in gone
        }
        return found

    def _judged(
        self, where: RowsByTest, home: Manifest, files: Sequence[LiveFile], spec: PartitionSpec
    ) -> list[Verdict]:
        """Return what the filter says about data files of a manifest."""
        known, basis = self._verdicts, where.basis
        unknown = [file for file in files if (basis, _state(file)) not in known]
        for file, data_file in home.data_files(unknown, spec):
            known[basis, _state(file)] = where.verdict(data_file, spec)
        return [known[basis, _state(file)] for file in files]

    def states(self, table: Table, snapshot: Snapshot | None) -> frozenset[str]:
        """Return the states of the files that are live in a snapshot, of deletes too.

        Raises:
            DamagedFileError: A manifest cannot be decoded.
        """
        listed = live_manifests(table.io, snapshot)
        self._read(table.io, listed)
        return frozenset(map(_state, self._files(listed)))

    def _files(self, listed: Sequence[ManifestFile]) -> Iterator[LiveFile]:
        for manifest in listed:
            yield from self._manifests[_path(manifest)].files

    def _refuse_changed(
        self, files: Iterable[LiveFile], change: Change, new: AbstractSet[Partition]
    ) -> None:
        """Stop if others have done more than add rows where rows are to be replaced.

        A row that they updated or compacted since the run began is in a file that looks added.

        Raises:
            TableChangedError: A file of the base is gone, or there are deletes that it lacks.
        """
        base = change.base or frozenset()
        touched = {f"{_partition_text(partition)} " for partition in new}
        everywhere = change.removes != "partitions"
        live = set()
        deletes = []
        for file in files:
            live.add(state := _state(file))
            if file.content != _DATA and state not in base:
                is_touched = not file.partition or (file.spec_id, file.partition) in new
                deletes += [file.path] if everywhere or is_touched else []
        gone = [
            state.split(" ", 4)[4]
            for state in base - live
            if everywhere or f"{state.partition(' ')[0]} " in touched
        ]
        if not gone and not deletes:
            return
        found = (
            f"{len(gone)} of the files that were there are gone, for example {min(gone)}"
            if gone
            else f"rows were deleted by {min(deletes)}"
        )
        raise TableChangedError(
            table=self.table,
            change=f"{found}, so that rows that others added cannot be told from those that this "
            'run replaces; isolation_level="serializable" replaces them all',
        )

    def _without(self, manifest: ManifestFile, gone: set[int], codec: str) -> Rewritten:
        """Return a manifest without some files; as at the last look, if the same files go."""
        path = _path(manifest)
        known = self._rewritten.get(path)
        if known is None or {file.at for file in known.removed} != gone:
            known = self._rewritten[path] = self._manifests[path].without(gone, codec)
        return known

    def _read(self, io: FileIO, listed: Sequence[ManifestFile]) -> None:
        """Read the manifests that are not known yet, and forget those that are no longer listed."""
        known = self._manifests
        unknown = [manifest for manifest in listed if manifest.manifest_path not in known]
        read = io_runtime().each(partial(_read, io), unknown)
        found = dict(zip(map(_path, unknown), read, strict=True))
        paths = [_path(manifest) for manifest in listed]
        self._manifests = {path: found.get(path) or known[path] for path in paths}
        done = self._rewritten
        self._rewritten = {path: done[path] for path in paths if path in done}

    def _partitions_of(self, io: FileIO, groups: Sequence[StagedGroup]) -> frozenset[Partition]:
        """Return the partitions that the staged files are in."""

        def read(group: StagedGroup) -> frozenset[Partition]:
            files = _read(io, listed_manifest(group, 0)).files
            return frozenset((file.spec_id, file.partition) for file in files)

        unknown = [group for group in groups if group.path not in self._staged]
        found = zip(unknown, io_runtime().each(read, unknown), strict=True)
        self._staged |= {group.path: partitions for group, partitions in found}
        return frozenset[Partition]().union(*(self._staged[group.path] for group in groups))

    def _refuse_other_specs(
        self, table: Table, listed: Sequence[ManifestFile], staged: Sequence[StagedGroup]
    ) -> None:
        """Refuse a table in which a partition of the new rows does not tell all rows of it.

        Raises:
            UnsupportedTableError: It is not partitioned, or has files of another partition spec.
            TableChangedError: The new rows were staged by another spec.
        """
        spec = table.spec()
        if spec.is_unpartitioned():
            raise UnsupportedTableError(
                table=self.table, what="it has no partitions", cure="call overwrite instead"
            )
        others = {
            file.path
            for manifest in listed
            for file in self._manifests[manifest.manifest_path].files
            if file.spec_id != spec.spec_id
        }
        if others:
            raise UnsupportedTableError(
                table=self.table,
                what=f"{len(others)} of its files are partitioned differently: they were written "
                f"before the table's partition spec changed, for example {min(others)}",
                cure="CALL system.rewrite_data_files with 'rewrite-all' first, or call overwrite",
            )
        if any(detail_of(group).spec_id != spec.spec_id for group in staged):
            raise TableChangedError(
                table=self.table,
                change="its partition spec is no longer the one that rows were staged by, so that "
                "the rows to be replaced cannot be found by their partitions",
            )


RowsByTest = Where | Matching


def row_test(table: str, schema: Schema, change: Change) -> RowsByTest:
    """Return what decides which rows of a table a change removes.

    Raises:
        SettingsError: The filter or the key columns do not fit the table.
    """
    if change.removes == "keys":
        return Matching(key=KeyColumns.of(table, schema, change.on), keys=change.keys)
    return Where.of(table, schema, change.where or "")


def live_manifests(io: FileIO, parent: Snapshot | None) -> list[ManifestFile]:
    """Return the manifests of a snapshot that list a file that is still in the table."""
    return [
        manifest
        for manifest in (manifests_of(parent, io) if parent else [])
        if manifest.has_added_files() or manifest.has_existing_files()
    ]


def _state(file: LiveFile) -> str:
    """Return all that decides which rows a file adds to a table; its partition is the first word.

    The path is not enough: by its number in the sequence, a delete applies to it or does not.
    """
    partition = _partition_text((file.spec_id, file.partition))
    return f"{partition} {file.content} {file.sequence_number} {file.first_row_id} {file.path}"


@lru_cache(maxsize=10_000)
def _partition_text(partition: Partition) -> str:
    """Return a short text without blanks; the same in every process."""
    spec_id, values = partition
    return f"{spec_id}:{hashlib.sha256(repr(values).encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Searches:
    """Names searches of data files: what one has found counts for those of the same name only."""

    # What decides which rows go.
    meaning: str
    # How manifests of deletes begin, if rows are to be deleted by their numbers.
    heads: Heads | None

    @classmethod
    def of(cls, name: str, table: Table, change: Change, meaning: str) -> _Searches:
        """Return the names for a look at a table.

        Raises:
            UnsupportedTableError: The table asks for a mode that does not exist.
        """
        by_position = is_by_position(name, table, change)
        heads = Heads(table, ManifestContent.DELETES) if by_position else None
        return cls(meaning=meaning, heads=heads)

    def name(self, file: LiveFile, deletes: AppliedDeletes) -> str:
        """Return all that decides which rows of a data file are live, which go, and how."""
        live = sorted([_state(file), *map(_state, deletes.to(file))])
        if self.heads is None:
            return " ".join([*live, self.meaning])
        # Deletes are kept as entries of a manifest, so they count for one with the same header.
        head = self.heads.of(file.spec_id)
        return " ".join([*live, self.meaning, "merge-on-read", head.header if head else ""])


def is_by_position(name: str, table: Table, change: Change) -> bool:
    """Whether rows that a change removes are deleted by their numbers, as Spark chooses.

    Args:
        name: The table's name, for errors.
        table: The table, freshly loaded.
        change: The change.

    Raises:
        UnsupportedTableError: The table asks for a mode that does not exist.
    """
    if change.removes != "keys":
        return False
    if change.write_mode is not None:
        return change.write_mode == "merge-on-read"
    for property_ in ("write.merge.mode", "write.update.mode"):
        if (asked := table.properties.get(property_)) is None:
            continue
        if asked.lower() not in get_args(WriteMode):
            raise UnsupportedTableError(
                table=name,
                what=f"its property {property_} is {asked!r}",
                cure='set it to "copy-on-write" or "merge-on-read", or give write_mode=',
            )
        return asked.lower() == "merge-on-read"
    return False


def _may_go(files: Iterable[LiveFile], change: Change) -> Iterator[LiveFile]:
    """Yield the files whose rows a change may remove: not those that others have added since."""
    for file in files:
        if change.base is None or _state(file) in change.base:
            yield file


def _path(manifest: ManifestFile) -> str:
    return str(manifest.manifest_path)


def _read(io: FileIO, manifest: ManifestFile) -> Manifest:
    """Read a manifest.

    Raises:
        DamagedFileError: It cannot be decoded.
    """
    with decoding(manifest.manifest_path):
        return Manifest(manifest, file_bytes(io, manifest.manifest_path))


def _summary_of_deletes(deletes: StagedTotals) -> dict[str, str]:
    """Return the figures of new position deletes."""
    figures = {
        "added-delete-files": deletes.files,
        "added-position-delete-files": deletes.files,
        "added-position-deletes": deletes.rows,
    }
    return {name: str(figure) for name, figure in figures.items() if figure}


def _summary(removed: Sequence[LiveFile]) -> dict[str, str]:
    """Return the figures of a snapshot's summary as Iceberg's own writers name them."""
    by_content = {
        content: [file for file in removed if file.content == content]
        for content in (_DATA, _POSITION_DELETES, _EQUALITY_DELETES)
    }
    data, positions, equal = by_content.values()
    figures = {
        "deleted-data-files": len(data),
        "deleted-records": sum(file.rows for file in data),
        "removed-files-size": sum(file.size_bytes for file in removed),
        "removed-delete-files": len(positions) + len(equal),
        "removed-position-delete-files": len(positions),
        "removed-position-deletes": sum(file.rows for file in positions),
        "removed-equality-delete-files": len(equal),
        "removed-equality-deletes": sum(file.rows for file in equal),
    }
    return {name: str(figure) for name, figure in figures.items() if figure}
