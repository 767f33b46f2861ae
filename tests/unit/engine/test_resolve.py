"""Renew: staged files that have waited for a long time are published under new names."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from holdfast.engine import resolve
from holdfast.engine.cleanup import abort, sweep
from holdfast.errors import RunFencedError, StoreUnavailableError, TableChangedError
from holdfast.ledger import run_log
from holdfast.ledger.layout import RunLayout
from holdfast.sinks.iceberg import snapshots
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import StorageError
from tests.fakes.iceberg_tables import Lake, local_path, new_table
from tests.fakes.logs import CLAIM
from tests.fakes.memory_storage import DriverDiedError
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.memory_table import PostFault
from tests.fakes.rig import Rig, two_partitions

ALL = list(range(20))
HOUR_S = 3600.0
SCHEMA = Schema(NestedField(1, "id", LongType()))
# The module that calls each step of a driver. The copies of two files are a step each.
STEPS = {
    "before-renewal": run_log,
    "after-renewal": run_log,
    "before-copies": resolve,
    "second-copy": None,
    "before-manifest-copies": snapshots,
    "after-copies": resolve,
    "before-seal": run_log,
    "after-seal": run_log,
    "after-intent": run_log,
}


def at_step(monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], object]) -> None:
    """Call a function each time a driver reaches a step."""

    def come_to(name: str) -> None:
        if name == step:
            act()

    monkeypatch.setattr(STEPS[step], "failpoint", come_to)


def staged_rig() -> Rig:
    """Return a run that is fully staged, and whose driver died before its post arrived."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    rig.start_and_die()
    return rig


@pytest.mark.parametrize("hours", [0, 47.9])
def test_a_young_run_is_published_as_it_is_without_more_looks(hours: float) -> None:
    """It looks at the table, the files and the ledger no more often than usual."""
    rig = staged_rig()
    rig.time.now_s += hours * HOUR_S
    rig.table.load = Mock(wraps=rig.table.load)  # type: ignore[method-assign]
    rig.table.old_groups = Mock()  # type: ignore[method-assign]
    driven = rig.start()
    assert rig.table.load.call_count == 3  # By the script, for the intent, and for the post.
    assert not rig.table.old_groups.called
    assert "Renewal" not in rig.kinds()
    assert (driven.copied_files, rig.table.ids) == (0, ALL)


def test_old_files_are_published_under_new_names() -> None:
    """The log lists the copies before any is made, and the next seal makes them count."""
    rig = staged_rig()
    old = set(rig.table.files)
    rig.time.now_s += 49 * HOUR_S
    driven = rig.start()
    landed = {path for group in rig.table.data_snapshots[0].groups for path in group.paths}
    assert rig.kinds()[-5:] == ["Claim", "Renewal", "Seal", "Intent", "Receipt"]
    assert not landed & old
    assert old <= set(rig.table.files)  # Nothing is deleted before a sweep.
    assert (driven.copied_files, rig.table.ids) == (2, ALL)
    assert driven.kept_rows == 20


def test_a_file_that_is_not_old_keeps_its_name() -> None:
    """A copy costs: only the files of the first start have waited."""
    rig, submitter = Rig(), two_partitions()
    submitter.before_task[1] = rig.storage.kill
    rig.start_and_die(submitter)
    (old,) = rig.table.files
    rig.time.now_s += 49 * HOUR_S
    driven = rig.start()
    landed = {group.files[0].path for group in rig.table.data_snapshots[0].groups}
    (copy,) = (path for path in landed if "-copy-" in path)
    assert copy.startswith(old.removesuffix(".parquet"))
    assert (driven.copied_files, rig.table.ids) == (1, ALL)


def test_copies_that_have_waited_for_a_long_time_are_copied_again() -> None:
    """Younger ones are left alone: a start copies nothing that is young."""
    rig = staged_rig()
    copied = []
    for hours in (49, 1, 49):
        rig.time.now_s += hours * HOUR_S
        rig.table.post_faults.append(PostFault.DIES_UNSENT)
        rig.start_and_die()
        copied.append(rig.kinds().count("Renewal"))
    rig.start()
    assert copied == [1, 1, 2]
    assert rig.table.ids == ALL


def test_a_post_that_arrives_late_is_found_before_anything_is_copied() -> None:
    """It has the old names, and so does the table."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_DELAYED)
    rig.start_and_die()
    rig.time.now_s += 49 * HOUR_S
    rig.start()
    assert "Renewal" not in rig.kinds()
    assert rig.table.ids == ALL
    assert len(rig.table.data_snapshots) == 1


def test_a_post_that_arrives_while_files_are_copied_is_found_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The copies are then in no snapshot, and a sweep deletes them."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_DELAYED)
    rig.start_and_die()
    late = rig.table._late.pop()  # noqa: SLF001 - a slow network.
    rig.time.now_s += 49 * HOUR_S
    at_step(monkeypatch, "before-copies", lambda: rig.table._arrive(late))  # noqa: SLF001
    rig.start()
    assert len(rig.table.data_snapshots) == 1
    assert any("-copy-" in path for path in rig.table.files)
    sweep(rig.ledger(), lambda _identity: rig.table)
    assert not any("-copy-" in path for path in rig.table.files)
    assert rig.table.ids == ALL


def test_a_file_that_is_gone_when_it_is_to_be_copied_is_computed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An orphan removal was faster: its rows are withdrawn, not left out."""
    rig = staged_rig()
    rig.time.now_s += 49 * HOUR_S

    def remove() -> None:
        if not rig.table.lost_files:
            rig.table.lost_files.append(min(rig.table.files))
            del rig.table.files[rig.table.lost_files[0]]

    at_step(monkeypatch, "after-renewal", remove)
    driven = rig.start()
    assert (driven.withdrawn_rows, rig.table.ids) == (10, ALL)
    sweep(rig.ledger(), lambda _identity: rig.table)
    landed = {f.path for group in rig.table.data_snapshots[0].groups for f in group.files}
    assert set(rig.table.files) == landed


def test_a_driver_that_loses_the_run_while_it_copies_publishes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its copies never count; the other driver makes its own."""
    rig = staged_rig()
    rig.time.now_s += 49 * HOUR_S
    with monkeypatch.context() as patch:
        at_step(patch, "before-copies", lambda: rig.ledger().log.claim(CLAIM))
        with pytest.raises(RunFencedError):
            rig.start()
    assert rig.table.data_snapshots == []
    rig.time.now_s += HOUR_S
    rig.start()
    assert rig.table.ids == ALL


def test_a_table_that_has_changed_is_refused_before_anything_is_copied() -> None:
    """Copying all files would be wasted."""
    rig = staged_rig()
    rig.time.now_s += 49 * HOUR_S
    view = rig.table.load()
    rig.table.schema = {"columns": ["id", "new"]}
    with pytest.raises(TableChangedError):
        rig.start(view=view)
    assert "Renewal" not in rig.kinds()


def refusing_copies(rig: Rig, *, lasts: bool) -> None:
    """Let the table's store refuse to copy: once it is full, or for ever."""
    refusal = StoreUnavailableError(uri="mem://", reason="405", retry_safe=not lasts)
    rig.table.copy_groups = Mock(side_effect=refusal)  # type: ignore[method-assign]


def test_files_that_a_store_does_not_copy_keep_their_names() -> None:
    """S3 Tables has no copies: the run must not wait for what can never be."""
    rig = staged_rig()
    old = set(rig.table.files)
    rig.time.now_s += 49 * HOUR_S
    refusing_copies(rig, lasts=True)
    with pytest.warns(UserWarning, match=r"2 staged files .* could not be copied \(405\)"):
        driven = rig.start()
    assert {path for g in rig.table.data_snapshots[0].groups for path in g.paths} >= old
    assert (driven.copied_files, driven.not_copied_files, rig.table.ids) == (0, 2, ALL)
    assert "waited    2 files for over 48 h: the store makes no copies" in str(driven)


def test_a_store_that_may_copy_later_is_asked_again() -> None:
    """Old names are a risk, so only a permanent refusal is accepted."""
    rig = staged_rig()
    rig.time.now_s += 49 * HOUR_S
    refusing_copies(rig, lasts=False)
    with pytest.raises(StoreUnavailableError):
        rig.start()
    assert rig.table.data_snapshots == []


def test_a_run_without_rows_has_nothing_to_copy() -> None:
    """However old it is."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    rig.start_and_die(MemorySubmitter([]))
    rig.time.now_s += 49 * HOUR_S
    rig.start(MemorySubmitter([]))
    assert "Renewal" not in rig.kinds()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a real table, and a run on it that was staged three days ago."""
    sink, _ = new_table(tmp_path, SCHEMA)
    lake = Lake(sink)
    lake.time.now_s = time.time() - 72 * HOUR_S
    with pytest.MonkeyPatch.context() as patch:
        at_step(patch, "after-intent", lake.storage.kill)
        start_and_die(lake)
    moment = lake.time.now_s
    for file in staged_files(lake):
        os.utime(file, (moment, moment))
    lake.time.now_s = time.time()
    return lake


def start_and_die(lake: Lake) -> None:
    """Start the run in a process that is killed on the way."""
    with pytest.raises(DriverDiedError):
        start(lake)
    lake.storage.revive()


def start(lake: Lake) -> int:
    """Start the run, and return how many files were copied."""
    return lake.start(two_partitions()).copied_files


def staged_files(lake: Lake) -> set[Path]:
    """Return the data files and manifests that tasks or copies have left, landed or not."""
    folder = local_path(lake.table.location())
    manifests = (folder / "metadata").glob("*-m*.avro")
    return {*(folder / "data").glob("**/*.parquet"), *manifests}


def landed_files(lake: Lake) -> set[Path]:
    """Return the data files and manifests that the table refers to."""
    table = lake.table
    snapshot = table.current_snapshot()
    assert snapshot is not None
    listed = {local_path(manifest.manifest_path) for manifest in snapshot.manifests(table.io)}
    return listed | {local_path(task.file.file_path) for task in table.scan().plan_files()}


def die_at(monkeypatch: pytest.MonkeyPatch, lake: Lake, step: str) -> None:
    """Kill the process when it reaches a step."""
    if step != "second-copy":
        at_step(monkeypatch, step, lake.storage.kill)
        return
    made: list[str] = []
    copy = ObjectStorage._copy  # noqa: SLF001 - one of many requests.

    def dying(storage: ObjectStorage, source: str, target: str) -> None:
        made.append(source)
        if len(made) > 1:
            lake.storage.kill()
        copy(storage, source, target)

    monkeypatch.setattr(ObjectStorage, "_copy", dying)


@pytest.mark.slow_unit
@pytest.mark.parametrize("step", STEPS)
def test_a_death_at_any_step_neither_loses_nor_doubles_a_row(
    lake: Lake, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start copies again under other names; a sweep leaves what landed."""
    with monkeypatch.context() as patch:
        die_at(patch, lake, step)
        start_and_die(lake)
    assert start(lake) == (0 if step in {"after-seal", "after-intent"} else 2)
    assert lake.ids() == ALL
    assert all("-copy-" in file.name for file in landed_files(lake))
    sweep(lake.ledger(), lambda _identity: lake.sink)
    assert staged_files(lake) == landed_files(lake)
    assert lake.ids() == ALL


def test_an_orphan_removal_that_began_earlier_takes_nothing_from_the_table(lake: Lake) -> None:
    """It listed the old files when they were orphans, and deletes them after we are done."""
    orphans = staged_files(lake)
    assert start(lake) == 2
    for file in orphans:
        file.unlink()
    assert lake.ids() == ALL


@pytest.mark.parametrize("step", [step for step in STEPS if step != "after-intent"])
def test_a_sweep_after_an_abort_deletes_the_copies_too(
    lake: Lake, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the driver died; a second sweep finds nothing to delete, and nothing missing."""
    with monkeypatch.context() as patch:
        die_at(patch, lake, step)
        start_and_die(lake)
    abort(lake.ledger(), lambda _identity: lake.sink, "why not")
    assert staged_files(lake)
    sweep(lake.ledger(), lambda _identity: lake.sink)
    assert staged_files(lake) == set()
    assert sweep(lake.ledger(), lambda _identity: lake.sink).data_files == 0


def test_an_interrupted_sweep_continues_without_the_list_of_copies(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list is deleted after the files that it names."""
    with monkeypatch.context() as patch:
        die_at(patch, lake, "after-copies")
        start_and_die(lake)
    abort(lake.ledger(), lambda _identity: lake.sink, "why not")
    parts = RunLayout.of("s3://store", "r").parts
    delete = lake.storage.delete

    def some(uris: list[str]) -> None:
        delete([uri for uri in uris if "renewal-" in uri])
        raise StorageError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(lake.storage, "delete", some)
        with pytest.raises(StoreUnavailableError):
            sweep(lake.ledger(), lambda _identity: lake.sink)
    assert any(uri.startswith(parts) for uri in lake.storage.objects)
    assert not any("renewal-" in uri for uri in lake.storage.objects)
    sweep(lake.ledger(), lambda _identity: lake.sink)
    assert staged_files(lake) == set()
