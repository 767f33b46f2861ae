"""An upsert by merge-on-read: rows go by position deletes, and files stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType

from holdfast.engine.cleanup import abort, sweep
from holdfast.engine.options import WriteOptions
from holdfast.errors import LedgerDamagedError, SettingsError, UnsupportedTableError
from holdfast.ledger.parts import read_list, read_objects
from holdfast.model.records import Intent, Rewritten
from holdfast.model.work import Rewrite
from holdfast.sinks.iceberg.manifests import manifest_entries
from tests.fakes.iceberg_tables import local_path
from tests.fakes.position_deletes import delete_positions
from tests.unit.engine.test_commit_upsert import (
    BY_BUCKET,
    BY_HUNDRED,
    OLD,
    Merged,
    _watched,
    killed_after,
)

MODE = "write.merge.mode"
PATH, POSITION = 2147483546, 2147483545


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Merged:
    """Return a table that wants merge-on-read."""
    return asking(Merged.table_of(tmp_path), monkeypatch, {MODE: "merge-on-read"})


def asking(made: Merged, monkeypatch: pytest.MonkeyPatch, properties: dict[str, str]) -> Merged:
    """Set properties of a table."""
    with made.lake.table.transaction() as change:
        change.set_properties(properties)
    return _watched(made, monkeypatch)


def summary(table: Table) -> dict[str, str]:
    """Return the summary of the newest snapshot, with its operation."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return {
        "operation": snapshot.summary.operation.value,
        **snapshot.summary.additional_properties,
    }


def manifests(table: Table, content: ManifestContent) -> list[ManifestFile]:
    """Return the manifests that the newest snapshot has added."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return [
        manifest
        for manifest in snapshot.manifests(table.io)
        if manifest.content == content and manifest.added_snapshot_id == snapshot.snapshot_id
    ]


def deletes(table: Table) -> list[DataFile]:
    """Return the files of deletes that the newest snapshot has added."""
    return [
        entry.data_file
        for manifest in manifests(table, ManifestContent.DELETES)
        for entry in manifest_entries(manifest, table.io)
    ]


def positions(file: DataFile) -> list[tuple[str, int]]:
    """Return what a file of deletes says."""
    rows = pq.read_table(local_path(file.file_path)).to_pydict()
    return list(zip(rows["file_path"], rows["pos"], strict=True))


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_deletes_stay_as_long_as_their_file_is_listed(mode: str, made: Merged) -> None:
    """Others have restored a file's rows by adding it again: the first one needs its deletes."""
    (first, *_) = sorted(made.files, key=lambda path: path.count("hundred=0"), reverse=True)
    made.start(3, run_id="a")
    (hidden,) = deletes(made.lake.table)
    made.lake.table.add_files([first], check_duplicate_files=False)
    made.start(3, run_id="b", write_mode=mode)
    live = made.lake.table.inspect.files()
    paths = live["file_path"].to_pylist()
    assert hidden.file_path in paths
    assert paths.count(first) == (1 if mode == "copy-on-write" else 2)


def test_files_stay_and_get_deletes(made: Merged) -> None:
    """A file of deletes for each file, with its partition and its whole path as both bounds."""
    before = made.files
    report = made.start(3, 5, 100, 400)
    assert made.rows == OLD | dict.fromkeys([3, 5, 100, 400], "new")
    assert before <= made.files
    assert (report.replaced_rows, report.replaced_files, report.delete_files) == (3, 2, 2)
    assert report.carried_rows == 0
    assert "3 rows in 2 files of 2 partitions, by 2 files of position deletes" in str(report)
    found = deletes(made.lake.table)
    assert sorted(file.partition[0] for file in found) == [0, 100]
    for file in found:
        rows = positions(file)
        assert rows == sorted(rows)
        assert len({path for path, _ in rows} & before) == 1
        path, numbers = rows[0][0], [number for _, number in rows]
        assert file.record_count == len(rows)
        assert file.file_size_in_bytes == local_path(file.file_path).stat().st_size
        for bounds, number in ((file.lower_bounds, numbers[0]), (file.upper_bounds, numbers[-1])):
            assert bounds == {PATH: path.encode(), POSITION: number.to_bytes(8, "little")}
    schema = pq.read_schema(local_path(found[0].file_path))
    assert [(column.name, column.nullable) for column in schema] == [
        ("file_path", False),
        ("pos", False),
    ]
    ids = [int(column.metadata[b"PARQUET:field_id"]) for column in schema]
    assert ids == [PATH, POSITION]


def test_the_snapshot_says_what_spark_says(made: Merged) -> None:
    """Operation, files, positions, and totals."""
    made.start(3, 5, 100, 400)
    found = summary(made.lake.table)
    wanted = {
        "operation": "overwrite",
        "added-data-files": "3",
        "added-records": "4",
        "added-delete-files": "2",
        "added-position-delete-files": "2",
        "added-position-deletes": "3",
        "changed-partition-count": "3",
        "total-delete-files": "2",
        "total-position-deletes": "3",
        "total-records": str(len(OLD) + 4),
    }
    assert {name: found.get(name) for name in wanted} == wanted
    assert "deleted-data-files" not in found
    sizes = [*made.lake.table.inspect.files().to_pylist()]
    new = {task["file_path"]: task["file_size_in_bytes"] for task in sizes}
    assert int(found["total-files-size"]) == sum(new.values())
    made.start(600, run_id="only new")
    assert summary(made.lake.table)["operation"] == "append"


def test_many_files_of_a_spec_share_a_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of deletes for each spec, whatever the number of files; entries inherit the snapshot."""
    made = Merged.table_of(tmp_path, BY_HUNDRED)
    with made.lake.table.update_spec() as update:
        update.add_field("name", BucketTransform(3), "bucket")
    made = asking(Merged(made.lake), monkeypatch, {MODE: "merge-on-read"})
    made.append([*range(500, 520)])
    wanted = dict(made.rows)
    made.start(3, 100, 305, 505, 506, 507)
    assert made.rows == wanted | dict.fromkeys([3, 100, 305, 505, 506, 507], "new")
    found = manifests(made.lake.table, ManifestContent.DELETES)
    assert sorted(manifest.partition_spec_id for manifest in found) == [0, 1]
    head = made.lake.table.current_snapshot()
    assert head is not None
    for manifest in found:
        listed = manifest_entries(manifest, made.lake.table.io)
        # The file of 305 has no row left.
        assert manifest.added_rows_count == {0: 2, 1: 3}[manifest.partition_spec_id]
        assert manifest.added_files_count == len(listed) > 1
        assert {entry.sequence_number for entry in listed} == {head.sequence_number}
        spec = made.lake.table.specs()[manifest.partition_spec_id]
        assert {len(entry.data_file.partition) for entry in listed} == {len(spec.fields)}
        assert manifest.partitions
        assert len(manifest.partitions) == len(spec.fields)


def test_copy_on_write_shares_a_manifest_too(made: Merged) -> None:
    """Three files are written anew, and listed together."""
    report = made.start(3, 100, 305, write_mode="copy-on-write")
    assert made.rows == OLD | dict.fromkeys([3, 100, 305], "new")
    found = manifests(made.lake.table, ManifestContent.DATA)
    assert [m.added_files_count for m in found if m.added_files_count == 2] == [2]
    assert (report.delete_files, report.carried_rows, report.replaced_files) == (0, 18, 3)
    # What tasks have listed is listed again, so their own manifests go, and nothing else.
    folder = local_path(made.lake.table.location())
    before = set(folder.rglob("*"))
    assert sweep(made.lake.ledger("r"), lambda _identity: made.lake.sink).data_files == 2
    gone = {path.name for path in before - set(folder.rglob("*"))}
    assert [name.endswith("-m.avro") for name in gone] == [True, True]
    assert made.rows == OLD | dict.fromkeys([3, 100, 305], "new")


def test_a_file_without_a_row_left_is_removed(made: Merged) -> None:
    """With its own deletes; as Iceberg's DELETE does."""
    made.start(3, 5, run_id="some")
    before = made.files
    made.start(*range(10), run_id="all")
    assert made.rows == OLD | dict.fromkeys(range(10), "new")
    assert len(before - made.files) == 3  # The old file, its deletes, and that of the first run.
    assert summary(made.lake.table)["removed-position-deletes"] == "2"


def test_positions_that_are_deleted_are_not_deleted_again(made: Merged) -> None:
    """Deletes of others stay valid, whether they are for one file or for a partition."""
    task = next(t for t in made.lake.table.scan("id = 7").plan_files())
    file, partition = task.file.file_path, task.file.partition
    delete_positions(made.lake.table, {file: [7]}, partition=partition)
    delete_positions(made.lake.table, {file: [1, 2], "another": [5]}, partition=partition)
    made.start(1, 7, 3)
    left = {key: by for key, by in OLD.items() if key != 2}
    assert made.rows == left | dict.fromkeys([1, 3, 7], "new")
    assert [number for found in deletes(made.lake.table) for _, number in positions(found)] == [3]
    made.start(1, 3, 4, run_id="again")
    assert made.rows == left | dict.fromkeys([1, 3, 4, 7], "new")
    found = [number for some in deletes(made.lake.table) for _, number in positions(some)]
    assert sorted(found) == [0, 2, 4]  # Two of them in the file of the first run.


@pytest.mark.parametrize("spec", [UNPARTITIONED_PARTITION_SPEC, BY_BUCKET])
def test_in_other_layouts(
    spec: PartitionSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers look for deletes in the partition of the file."""
    made = asking(Merged.table_of(tmp_path, spec), monkeypatch, {MODE: "merge-on-read"})
    made.start(*range(5, 15), 305)
    assert made.rows == OLD | dict.fromkeys([*range(5, 15), 305], "new")
    made.start(*range(3, 12), 305, 306, run_id="again")
    assert made.rows == OLD | dict.fromkeys([*range(3, 15), 305, 306], "new")


# ---- Which mode


@pytest.mark.slow_unit
@pytest.mark.parametrize(
    ("properties", "given", "by_position"),
    [
        ({}, None, False),
        ({MODE: "Merge-On-Read"}, None, True),
        ({"write.update.mode": "merge-on-read"}, None, True),
        ({"write.update.mode": "merge-on-read", MODE: "copy-on-write"}, None, False),
        ({"write.delete.mode": "merge-on-read"}, None, False),
        ({}, "merge-on-read", True),
        ({MODE: "merge-on-read"}, "copy-on-write", False),
        ({MODE: "sideways"}, "merge-on-read", True),
    ],
)
def test_the_mode_is_that_of_the_table_unless_it_is_given(
    properties: dict[str, str],
    given: Any,  # noqa: ANN401
    by_position: bool,  # noqa: FBT001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the properties that Spark's MERGE and UPDATE look at."""
    made = asking(Merged.table_of(tmp_path), monkeypatch, properties)
    report = made.start(3, write_mode=given)
    assert made.rows == OLD | {3: "new"}
    assert (report.delete_files, report.carried_rows > 0) == (int(by_position), not by_position)


def test_a_mode_that_does_not_exist_is_refused_before_a_row_is_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the table, or of the user."""
    made = asking(Merged.table_of(tmp_path), monkeypatch, {MODE: "sideways"})
    paid: list[int] = []
    with pytest.raises(UnsupportedTableError, match=r"write\.merge\.mode is 'sideways'"):
        made.start(3, transform=lambda _batch: paid.append(1))
    assert not paid
    with pytest.raises(SettingsError, match="write_mode='sideways'"):
        WriteOptions(write_mode="sideways")  # type: ignore[arg-type]


@pytest.mark.parametrize("first", ["copy-on-write", "merge-on-read"])
def test_a_start_in_another_mode_uses_nothing_of_the_first(
    first: Any,  # noqa: ANN401
    made: Merged,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And a sweep deletes what the first has written."""
    other: Any = {"copy-on-write": "merge-on-read"}.get(first, "copy-on-write")
    with killed_after(Rewritten, monkeypatch):
        made.start(3, 305, write_mode=first)
    report = made.start(3, 305, write_mode=other)
    assert made.rows == OLD | {3: "new", 305: "new"}
    assert report.searched_files == 2
    assert (report.delete_files > 0) == (other == "merge-on-read")
    assert sweep(made.lake.ledger("r"), lambda _identity: made.lake.sink).data_files >= 1
    assert made.rows == OLD | {3: "new", 305: "new"}


def test_the_tables_mode_may_change_between_two_attempts(made: Merged) -> None:
    """The post of the second is as the table says then."""

    def change() -> None:
        with made.lake.table.transaction() as changed:
            changed.set_properties({MODE: "copy-on-write"})
        made.append([50], "other")

    made.before_posts = [change]
    report = made.start(3, 305)
    assert made.rows == OLD | {3: "new", 305: "new", 50: "other"}
    assert (report.delete_files, report.posts) == (0, 2)


# ---- Others, kills, and what is left behind


def compact(made: Merged) -> None:
    """Let another writer put all rows into new files."""
    table = made.lake.table
    table.overwrite(table.scan().to_arrow(), AlwaysTrue())


def delete_one(made: Merged) -> None:
    """Let another writer delete the row of id 7 by its position."""
    task = next(t for t in made.lake.table.scan("id = 7").plan_files())
    delete_positions(made.lake.table, {task.file.file_path: [7]}, partition=task.file.partition)


@pytest.mark.slow_unit
@pytest.mark.parametrize(
    ("act", "left"),
    [
        (compact, OLD),
        (delete_one, {key: by for key, by in OLD.items() if key != 7}),
        (lambda made: made.append([50], "other"), OLD | {50: "other"}),
    ],
    ids=["compaction", "delete", "append"],
)
def test_what_others_do_between_look_and_post_counts(
    act: Callable[[Merged], object], left: dict[int | None, str], made: Merged
) -> None:
    """A file of another state is searched again; one that is gone gets no deletes."""
    made.before_posts = [lambda: act(made)]
    report = made.start(3, 7, 305)
    assert made.rows == left | dict.fromkeys([3, 7, 305], "new")
    assert report.posts == 2
    data = {task.file.file_path for task in made.lake.table.scan().plan_files()}
    named = {path for file in deletes(made.lake.table) for path, _ in positions(file)}
    assert named <= data


def test_a_start_after_a_kill_uses_the_deletes(
    made: Merged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in the ledger, with their entries."""
    with killed_after(Rewritten, monkeypatch):
        made.start(3, 305)
    report = made.start(3, 305)
    assert made.rows == OLD | {3: "new", 305: "new"}
    assert report.searched_files == 0


def test_what_a_post_writes_is_listed_before_it_is_written(
    made: Merged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deletes and their manifest; after an abort a sweep finds them all."""
    with killed_after(Intent, monkeypatch):
        made.start(3, 305)
    ledger = made.lake.ledger("r")
    ledger.log.refresh()
    (intent,) = ledger.log.intents.values()
    assert intent.written is not None
    listed = read_objects(ledger.storage, ledger.layout, intent.written)
    assert any("-m.avro" not in path and ".avro" in path for path in listed)
    assert (intent.delete_files, intent.removed_rows) == (1, 2)
    parts = [
        rewrite
        for part in ledger.log.rewritten
        for rewrite in read_list(ledger.storage, ledger.layout, part, Rewrite)
    ]
    assert {r.group.path for r in parts if r.group} <= listed.keys()
    abort(ledger, lambda _identity: made.lake.sink, "enough")
    sweep(made.lake.ledger("r"), lambda _identity: made.lake.sink)
    assert not list(local_path(made.lake.table.location()).rglob("*-deletes.parquet"))
    assert made.rows == OLD


def test_a_sweep_keeps_the_deletes_that_have_landed(made: Merged) -> None:
    """Those of an attempt that others have overtaken go."""
    made.before_posts = [lambda: delete_one(made)]
    made.start(3, 305)
    rows = made.rows
    sweep(made.lake.ledger("r"), lambda _identity: made.lake.sink)
    assert made.rows == rows
    left = {path.name for path in local_path(made.lake.table.location()).rglob("*-deletes.parquet")}
    wanted = {file.file_path.rsplit("/", 1)[1] for file in deletes(made.lake.table)}
    foreign = {name for name in left if len(name.split("-")[0]) == 32 and name.count("-") == 1}
    assert left - foreign == wanted


def test_deletes_that_are_gone_are_made_again(
    made: Merged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clean-up has taken them for orphans."""
    with killed_after(Rewritten, monkeypatch):
        made.start(3, 305)
    for path in local_path(made.lake.table.location()).rglob("*-deletes.parquet"):
        path.unlink()
    report = made.start(3, 305)
    assert made.rows == OLD | {3: "new", 305: "new"}
    assert report.searched_files == 1


def test_a_column_that_others_add_meanwhile_does_not_matter(
    made: Merged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest of deletes has another header then, so the files are searched again."""
    with killed_after(Rewritten, monkeypatch):
        made.start(3, 305)
    with made.lake.table.update_schema() as change:
        change.add_column("later", LongType())
    made.start(3, 305)
    assert made.rows == OLD | {3: "new", 305: "new"}


def test_an_entry_of_another_file_is_refused(made: Merged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its deletes would be those of another search."""
    with killed_after(Rewritten, monkeypatch):
        made.start(3, 100)
    read = Rewrite.from_json

    def damaged(text: str) -> Rewrite:
        found = read(text)
        assert found.group is not None
        swapped.append(found.group)
        detail = {**found.group.detail, "entries": swapped[0].detail["entries"]}
        return Rewrite(
            state=found.state,
            removed_rows=found.removed_rows,
            kept_rows=found.kept_rows,
            group=type(found.group)(
                path=found.group.path,
                size_bytes=found.group.size_bytes,
                files=found.group.files,
                detail=detail,
            ),
        )

    swapped: list[Any] = []
    monkeypatch.setattr(Rewrite, "from_json", damaged)
    with pytest.raises(LedgerDamagedError, match="does not list"):
        made.start(3, 100)
    assert made.rows == OLD


def test_files_are_searched_though_they_could_not_be_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INT96 in another column: nothing but the key is read, and nothing is written anew."""
    made = asking(Merged.table_of(tmp_path), monkeypatch, {})
    file = next(t.file for t in made.lake.table.scan("id = 3").plan_files())
    monkeypatch.setattr(
        "holdfast.sinks.iceberg.rewrite_rows.reads_as", lambda old, _new: str(old) == "long"
    )
    assert file.record_count == 10
    with pytest.raises(UnsupportedTableError):
        made.start(3)
    made.start(3, write_mode="merge-on-read")
    assert made.rows == OLD | {3: "new"}


def orders(found: Sequence[DataFile]) -> list[int | None]:
    """Return the sort orders of files."""
    return [file.sort_order_id for file in found]


def test_deletes_declare_no_order(made: Merged) -> None:
    """They are sorted by path and position, which is no order of the table's."""
    made.start(3)
    assert orders(deletes(made.lake.table)) == [None]
