"""Manifests of many tasks that are joined: readers see the same, and the driver decodes nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestContent
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestampType

from holdfast.engine import resolve
from holdfast.engine.cleanup import sweep
from holdfast.errors import LedgerDamagedError, StagedFileMissingError, UnsupportedTableError
from holdfast.model.work import Merge, StagedGroup
from holdfast.sinks.iceberg.joined import listed_manifest
from holdfast.sinks.iceberg.manifests import (
    manifest_entries,
    write_staged_manifest,
)
from holdfast.sinks.iceberg.sink import IcebergSink
from tests.fakes.iceberg_tables import Lake, edit_metadata, local_path, new_table
from tests.fakes.memory_submitter import MemorySubmitter

SCHEMA = Schema(NestedField(1, "id", LongType()))
WIDE = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "x", DoubleType()),
    NestedField(3, "s", StringType()),
    NestedField(4, "t", TimestampType()),
)
BY_ALL = PartitionSpec(
    PartitionField(1, 1000, BucketTransform(4), "id_bucket"),
    PartitionField(2, 1001, IdentityTransform(), "x"),
    PartitionField(3, 1002, IdentityTransform(), "s"),
    PartitionField(4, 1003, DayTransform(), "t_day"),
)
ROWS: list[dict[str, list[Any]]] = [
    {"id": [1, 2], "x": [0.1, float("nan")], "s": ["a", None], "t": [0, 86_400_000_000]},
    {"id": [3, 4], "x": [-0.0, 0.0], "s": ["\U0001f600", "\uffee"], "t": [-1, None]},
    {"id": [-300], "x": [1e308], "s": ["aa"], "t": [86_400_000_000 * 400]},
    {"id": [None], "x": [None], "s": [None], "t": [None]},
]


def made(
    folder: Path, schema: Schema = SCHEMA, spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC
) -> IcebergSink:
    """Return a sink on a table that already has its first, empty snapshot."""
    sink, _ = new_table(folder, schema, partition_spec=spec)
    sink.post_empty(sink.load())
    return sink


def staged(sink: IcebergSink, *tasks: dict[str, list[Any]]) -> list[StagedGroup]:
    """Write rows as tasks do, a manifest each."""
    groups = []
    for number, rows in enumerate(tasks):
        writer = sink.writer_spec(sink.load()).open(f"task-{number}-{len(tasks)}")
        types = {field.name: field.type for field in writer.stored_schema}
        batch = pa.record_batch({name: pa.array(v, types[name]) for name, v in rows.items()})
        writer.write(writer.fit(batch))
        groups += writer.cut()
    return groups


def give(sink: IcebergSink, name: str, value: str) -> None:
    """Let others set a property of the table."""
    table = sink.load().handle
    edit_metadata(table, lambda metadata: metadata["properties"].update({name: value}))


def merged(sink: IcebergSink, groups: list[StagedGroup]) -> list[Merge]:
    """Merge groups as a driver does."""
    view = sink.load()
    return sink.merge(view, groups, sink.merge_paths(view, groups, "run-job"))


def entries(group: StagedGroup) -> list[str]:
    """Return all that a manifest says about each file."""
    with local_path(group.path).open("rb") as file:
        return [repr(entry) for entry in fastavro.reader(file)]


def test_a_merged_manifest_says_what_the_others_say(tmp_path: Path) -> None:
    """Every value of every entry, and of each partition field what all files together give.

    Method: compare with the manifest that PyIceberg writes for all files.
    """
    sink = made(tmp_path, WIDE, BY_ALL)
    groups = staged(sink, *ROWS)
    view = sink.load()
    (merge,) = merged(sink, groups)
    whole = merge.whole({group.path: group for group in groups})
    assert entries(whole) == [entry for group in groups for entry in entries(group)]
    assert whole.size_bytes == local_path(whole.path).stat().st_size
    files = [
        entry.data_file
        for group in groups
        for entry in manifest_entries(listed_manifest(group, 7), view.handle.io)
    ]
    table = view.handle
    one = write_staged_manifest(
        table.io,
        f"{table.location()}/metadata/one.avro",
        schema=table.schema(),
        spec=table.spec(),
        properties={},
        data_files=files,
    )
    of_all = ("spec_id", "spec", "has_sound_bounds", "partitions")
    assert whole.detail == {name: one.detail[name] for name in of_all}
    assert whole.files == one.files


def test_manifests_grow_to_the_size_that_the_table_wants(tmp_path: Path) -> None:
    """A group is in one of them, and none is larger by a group's entries or more.

    Method: sizes follow from those of the groups, whose entries hold the paths of their files.
    """
    sink = made(tmp_path)
    groups = staged(sink, *({"id": [number]} for number in range(40)))
    with local_path(groups[0].path).open("rb") as file:
        head_bytes = next(fastavro.block_reader(file)).offset
    entry_bytes = max(group.size_bytes for group in groups) - head_bytes
    target = head_bytes + 9 * entry_bytes
    give(sink, "commit.manifest.target-size-bytes", str(target))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.sinks.iceberg.avro._BLOCK_BYTES", 1)
        found = merged(sink, groups)
    assert len(found) > 2
    assert sorted(path for merge in found for path in merge.sources) == sorted(
        group.path for group in groups
    )
    sizes = [merge.group.size_bytes for merge in found[:-1]]
    assert all(target <= size < target + entry_bytes for size in sizes)


@pytest.mark.parametrize(("cores", "files"), [(1, [12]), (3, [4, 4, 4]), (64, [2] * 6)])
def test_there_is_a_manifest_for_each_core_that_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, files: list[int]
) -> None:
    """But none is begun for few files."""
    monkeypatch.setattr("holdfast.sinks.iceberg.joined._FILES_MIN", 2)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    sink = made(tmp_path)
    groups = staged(sink, *({"id": [number]} for number in range(12)))
    assert [len(merge.sources) for merge in merged(sink, groups)] == files


def test_manifests_with_other_headers_are_merged_apart(tmp_path: Path) -> None:
    """The table gained a column meanwhile, which the manifests' own schema shows."""
    sink = made(tmp_path)
    groups = staged(sink, {"id": [1]}, {"id": [2]})
    with sink.load().handle.update_schema() as change:
        change.add_column("more", LongType())
    groups += staged(sink, *({"id": [number], "more": [1]} for number in (3, 4, 5)))
    assert [len(merge.sources) for merge in merged(sink, groups)] == [2, 3]


def test_manifests_of_another_spec_are_left_alone(tmp_path: Path) -> None:
    """They are published as they are."""
    sink = made(tmp_path)
    groups = staged(sink, {"id": [1]}, {"id": [2]})
    with sink.load().handle.update_spec() as change:
        change.add_identity("id")
    assert merged(sink, groups) == []


def test_a_table_may_refuse_to_merge(tmp_path: Path) -> None:
    """With the property that other writers obey too; a target size must be a number."""
    sink = made(tmp_path)
    groups = staged(sink, {"id": [1]}, {"id": [2]})
    assert sink.merge_paths(sink.load(), groups, "run-job") != []
    give(sink, "commit.manifest-merge.enabled", "False")
    assert sink.merge_paths(sink.load(), groups, "run-job") == []
    give(sink, "commit.manifest-merge.enabled", "true")
    give(sink, "commit.manifest.target-size-bytes", "many")
    with pytest.raises(UnsupportedTableError, match="target-size-bytes is not a number"):
        sink.merge_paths(sink.load(), groups, "run-job")


def test_only_one_of_the_manifests_with_a_header_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records of the others carry their entries, unless these are large."""
    sink = made(tmp_path)
    small = staged(sink, *({"id": [number]} for number in range(4)))
    monkeypatch.setattr("holdfast.sinks.iceberg.manifests._CARRIED_CHARS", 1)
    large = staged(sink, *({"id": [number]} for number in range(5)))
    for group in small[1:]:
        local_path(group.path).unlink()
    (merge,) = merged(sink, [*small, *large])
    assert {*merge.sources} == {group.path for group in (*small, *large)}
    assert len(entries(merge.group)) == 9
    local_path(large[-1].path).unlink()
    with pytest.raises(StagedFileMissingError):
        merged(sink, [*small, *large])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ({"entries": "x"}, "its entries"),
        ({"entries": "eHh4"}, "its entries"),
        ({"header": "x"}, "another header"),
        ({"listed": 2}, "lists 2 files, the ledger 1"),
    ],
)
def test_entries_in_a_record_are_checked(
    tmp_path: Path, damage: dict[str, Any], reason: str
) -> None:
    """A damaged ledger never makes a manifest that lists other files."""
    sink = made(tmp_path)
    first, second, third = staged(sink, {"id": [1]}, {"id": [2]}, {"id": [3]})
    bad = [replace(group, detail={**group.detail, **damage}) for group in (second, third)]
    with pytest.raises(LedgerDamagedError, match=reason):
        merged(sink, [first, *bad])
    with pytest.raises(LedgerDamagedError, match="does not list"):
        merged(sink, [first, replace(second, files=first.files)])


def test_a_manifest_that_is_not_what_was_staged_is_not_merged(tmp_path: Path) -> None:
    """Gone, of another size, or with another number of files."""
    sink = made(tmp_path)
    groups = staged(sink, {"id": [1]}, {"id": [2]})
    more = replace(groups[0], files=groups[0].files * 2)
    with pytest.raises(LedgerDamagedError, match="lists 1 files, the ledger 2"):
        merged(sink, [more, groups[1]])
    data = local_path(groups[0].path).read_bytes()
    local_path(groups[0].path).write_bytes(data + b"x")
    with pytest.raises(StagedFileMissingError, match=groups[0].path):
        merged(sink, groups)
    local_path(groups[0].path).unlink()
    with pytest.raises(StagedFileMissingError, match=groups[0].path):
        merged(sink, groups)


def test_a_run_lands_with_merged_manifests_and_a_sweep_removes_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers find every row, with the numbers of the new snapshot; no small manifest is left."""
    monkeypatch.setattr(resolve, "_MERGED_FROM", 2)
    lake = Lake(made(tmp_path))
    lake.start(MemorySubmitter(*([number] for number in range(5))), run_id="r")
    assert lake.ids() == [0, 1, 2, 3, 4]
    snapshot = lake.table.current_snapshot()
    assert snapshot is not None
    (manifest,) = snapshot.manifests(lake.table.io)
    assert (manifest.content, manifest.added_files_count) == (ManifestContent.DATA, 5)
    found = manifest_entries(manifest, lake.table.io)
    assert {entry.snapshot_id for entry in found} == {snapshot.snapshot_id}
    assert {entry.sequence_number for entry in found} == {snapshot.sequence_number}
    folder = local_path(manifest.manifest_path).parent
    assert len(list(folder.glob("*-m0.avro"))) == 5
    sweep(lake.ledger("r"), lambda _identity: lake.sink)
    assert list(folder.glob("*-m0.avro")) == []
    assert lake.ids() == [0, 1, 2, 3, 4]


def test_files_are_asked_for_while_manifests_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing one stops the merge; the answer counts for the next check, and no longer."""
    sink = made(tmp_path)
    groups = staged(sink, {"id": [1]}, {"id": [2]})
    view = sink.load()
    (merge,) = merged(sink, groups)
    whole = merge.whole({group.path: group for group in groups})
    gone = local_path(groups[1].files[0].path)
    data = gone.read_bytes()
    gone.unlink()
    sink.refuse_missing_files(view, [whole])
    with pytest.raises(StagedFileMissingError, match=gone.name):
        sink.refuse_missing_files(view, [whole])
    with pytest.raises(StagedFileMissingError, match=gone.name):
        merged(sink, groups)
    gone.write_bytes(data)
    monkeypatch.setattr("holdfast.sinks.iceberg.sink._THERE_S", 0.0)
    (late,) = merged(sink, groups)
    gone.unlink()
    with pytest.raises(StagedFileMissingError, match=gone.name):
        sink.refuse_missing_files(view, [late.whole({group.path: group for group in groups})])
