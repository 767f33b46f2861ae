"""Ledgers that earlier versions wrote are read, and their runs resume."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import lance
import pytest

from holdfast.engine.cleanup import abort, sweep
from holdfast.engine.watch import status
from holdfast.errors import LedgerDamagedError, RunAbortedError, RunCommittedError
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.parts import read_work
from holdfast.ledger.task_log import read_logs, read_task_records
from holdfast.model.records import open_json
from holdfast.model.work import Work
from holdfast.opening import open_table
from holdfast.sinks.targets import LanceTable
from tests.fakes.cli_lake import CliLake
from tests.fakes.manual_ports import manual_ports
from tests.fakes.memory_scan import MemoryScan
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.rig import LAYOUT, STORE, Rig, durable_ids
from tests.fakes.watched_transform import WatchedTransform
from tests.ledgers.record import moved

LEDGERS = Path(__file__).parents[2] / "ledgers"
VERSIONS = sorted(folder.name for folder in LEDGERS.iterdir() if (folder / "killed").is_dir())
# The versions recorded after more kinds of runs were added.
LATER = [version for version in VERSIONS if (LEDGERS / version / "aborted").is_dir()]
ALL = list(range(20))

# They were recorded on Python 3.11; other versions compile the same transform to other code.
if sys.version_info[:2] != (3, 11):
    pytestmark = pytest.mark.filterwarnings(
        "ignore:.* the transform's code has changed:UserWarning"
    )

# The versions whose records do not name their run.
UNNAMED = [version for version in VERSIONS if version != "format-2"]

of_every_version = pytest.mark.parametrize("version", VERSIONS)
of_later_versions = pytest.mark.parametrize("version", LATER)
of_unnamed_versions = pytest.mark.parametrize("version", UNNAMED)


def recorded(version: str, name: str) -> Rig:
    """Return a store that holds a recorded ledger, and an empty table."""
    rig, folder = Rig(), LEDGERS / version / name
    for file in folder.rglob("*"):
        if file.is_file():
            uri = f"{STORE}/{file.relative_to(folder).as_posix()}"
            rig.storage.objects[uri] = file.read_bytes()
    assert rig.storage.objects  # It was recorded: the test is not vacuous.
    return rig


@of_every_version
@pytest.mark.parametrize("name", ["killed", "sealed"])
def test_a_killed_run_of_an_earlier_version_resumes(version: str, name: str) -> None:
    """Its finished rows are not computed again, and each row lands once."""
    rig, transform = recorded(version, name), WatchedTransform()
    kept = durable_ids(rig)
    assert 0 < len(kept) < len(ALL)
    driven = rig.start(transform=transform, takeover="now")
    assert sorted(transform.ids) == sorted(set(ALL) - kept)
    assert (driven.kept_rows, rig.table.ids) == (len(kept), ALL)


@of_every_version
@pytest.mark.parametrize("name", ["killed", "sealed", "committed"])
def test_every_record_of_an_earlier_version_is_read(version: str, name: str) -> None:
    """No object of the ledger is skipped or taken for damaged."""
    rig = recorded(version, name)
    log = rig.log()
    assert len(log.records) == len(rig.storage.list(LAYOUT.log)) > 0
    tasks = rig.storage.list(LAYOUT.tasks)
    records = read_task_records(rig.storage, LAYOUT, tasks)
    assert len(records) == len([uri for uri in tasks if uri.endswith(".json")]) > 0
    for seal in log.seals.values():
        assert read_work(rig.storage, LAYOUT, seal.work).sums == seal.covered
    state = status(rig.ledger()).state
    assert state == ("committed" if name == "committed" else "started")


@of_every_version
def test_a_run_of_an_earlier_version_that_has_landed_says_so(version: str) -> None:
    """Its receipt is trusted, and what it no longer needs can be swept."""
    rig = recorded(version, "committed")
    log = rig.log()
    assert log.receipt is not None
    swept = sweep(rig.ledger(), lambda _identity: rig.table)
    assert (swept.live, swept.ledger_objects > 0) == (0, True)
    assert status(rig.ledger()).state == "committed"


@of_every_version
def test_a_receipt_of_an_earlier_version_counts_only_with_its_run_file(version: str) -> None:
    """Its records may name no run: in another run's folder they would say that it has landed."""
    rig = recorded(version, "committed")
    del rig.storage.objects[LAYOUT.identity]
    with pytest.raises(LedgerDamagedError, match=r"run\.json.*missing"):
        status(rig.ledger())


@of_every_version
@pytest.mark.parametrize("name", ["killed", "sealed"])
def test_a_run_of_an_earlier_version_can_be_aborted_and_swept(version: str, name: str) -> None:
    """The names of its files do not show whose they are; no file that the table uses is deleted."""
    rig = recorded(version, name)
    abort(rig.ledger(), lambda _identity: rig.table, "no longer wanted")
    assert status(rig.ledger()).state == "aborted"
    sweep(rig.ledger(), lambda _identity: rig.table)
    assert rig.storage.list(LAYOUT.tasks) == []


@of_unnamed_versions
def test_a_copied_folder_of_an_earlier_version_is_recognised_by_the_table(version: str) -> None:
    """Its run file names no run id, but the run has landed under its original id."""
    rig = recorded(version, "sealed")
    copy = RunLayout.of(STORE, "r-copy")
    for uri, data in list(rig.storage.objects.items()):
        rig.storage.objects[uri.replace(LAYOUT.folder, copy.folder)] = data
    rig.start(transform=WatchedTransform(), takeover="now")
    ledger = Ledger.open("r-copy", STORE, rig.storage, manual_ports(rig.time))
    with pytest.raises(RunCommittedError):
        abort(ledger, lambda _identity: rig.table, "a copy")
    assert (rig.table.ids, ledger.log.is_aborted) == (ALL, False)


@of_later_versions
def test_an_aborted_run_of_an_earlier_version_stays_aborted(version: str) -> None:
    """Its log has a refused post, a post that was never sent, and then an abort."""
    rig = recorded(version, "aborted")
    log = rig.log()
    assert (len(log.intents), len(log.doubtful), log.is_aborted) == (2, 1, True)
    rig.table.foreign_append()
    rig.table.foreign_append()
    with pytest.raises(RunAbortedError):
        rig.start(transform=WatchedTransform())
    sweep(rig.ledger(), lambda _identity: rig.table)
    assert rig.table.ids == []


@of_later_versions
def test_a_scan_of_an_earlier_version_resumes(version: str) -> None:
    """Its pins and its finished ranges are read."""
    rig, transform = recorded(version, "scanned"), WatchedTransform()
    driven = rig.scan(MemoryScan(range(20)), transform=transform, batch_rows=2)
    assert 0 < driven.kept_rows < len(ALL)
    assert len(transform.ids) == len(ALL) - driven.kept_rows
    assert sorted(rig.table.ids) == ALL


@of_later_versions
def test_a_lance_run_of_an_earlier_version_resumes(version: str, tmp_path: Path) -> None:
    """Its chunks are written to the dataset, each row once."""
    shutil.copytree(LEDGERS / version / "on_lance", tmp_path, dirs_exist_ok=True)
    lake, transform = CliLake(tmp_path), WatchedTransform()
    moved(tmp_path / "store" / "r" / "run.json", f"file://{tmp_path}/t.lance")
    sink = open_table(LanceTable(f"{tmp_path}/t.lance"), None)
    driven = lake.start(
        "r",
        MemorySubmitter(range(10), range(10, 20)),
        sink=sink,
        transform=transform,
        takeover="now",
    )
    assert driven.kept_rows == 6
    assert sorted(transform.ids) == ALL[6:]
    dataset = lance.dataset(f"{tmp_path}/t.lance")
    assert sorted(dataset.to_table()["id"].to_pylist()) == ALL


@pytest.mark.parametrize("version", [version for version in LATER if version in UNNAMED])
def test_new_records_in_an_older_ledger_have_the_new_format(version: str) -> None:
    """New records name the run, and the tasks' folders have their own names."""
    rig = recorded(version, "killed")
    known = len(rig.log().records)
    rig.start(transform=WatchedTransform(), takeover="now")
    log = rig.log()
    assert {record.run for record in log.records[known:]} == {log.layout.nonce}
    assert {record.run for record in log.records[:known]} == {""}
    assert log.layout.has_unnamed


def test_a_cut_of_an_earlier_version_is_read_with_the_chunks_that_it_supersedes() -> None:
    """Before records replaced others, each kept its own rows; all of them count together."""
    rig = recorded("format-2", "committed")
    logs = read_logs(rig.storage, LAYOUT, rig.storage.list(LAYOUT.tasks))
    assert {len(log) for log in logs.values()} == {6}
    work = Work().plus(record for log in logs.values() for record in log)[0]
    assert (work.sums.rows, work.waiting, len(work.superseded)) == (20, (), 10)


def test_an_earlier_version_refuses_a_record_that_replaces_others() -> None:
    """It would count the rows of replaced records twice."""
    rig = Rig()
    rig.start(batch_rows=2, checkpoint_every=1e-9)
    contents = [
        open_json(rig.storage.objects[LAYOUT.task_record(record.name)])
        for record in read_task_records(rig.storage, LAYOUT, rig.storage.list(LAYOUT.tasks))
    ]
    formats = {bool(content["replaces"]): content["format"] for content in contents}
    assert formats == {False: 2, True: 3}
