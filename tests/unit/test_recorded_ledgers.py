"""Ledgers that earlier versions wrote are read, and their runs go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.engine.status import status
from holdfast.ledger.parts import read_work
from holdfast.ledger.task_log import read_task_records
from tests.fakes.rig import LAYOUT, STORE, Rig, durable_ids
from tests.fakes.watched_transform import WatchedTransform

LEDGERS = Path(__file__).parents[1] / "ledgers"
VERSIONS = sorted(folder.name for folder in LEDGERS.iterdir() if (folder / "killed").is_dir())
ALL = list(range(20))

pytestmark = pytest.mark.parametrize("version", VERSIONS)


def recorded(version: str, name: str) -> Rig:
    """Return a store that holds a recorded ledger, and an empty table."""
    rig, folder = Rig(), LEDGERS / version / name
    for file in folder.rglob("*"):
        if file.is_file():
            uri = f"{STORE}/{file.relative_to(folder).as_posix()}"
            rig.storage.objects[uri] = file.read_bytes()
    assert rig.storage.objects  # It was recorded: the test is not vacuous.
    return rig


@pytest.mark.parametrize("name", ["killed", "sealed"])
def test_a_killed_run_of_an_earlier_version_goes_on(version: str, name: str) -> None:
    """Its finished rows are not computed again, and each row lands once."""
    rig, transform = recorded(version, name), WatchedTransform()
    kept = durable_ids(rig)
    assert 0 < len(kept) < len(ALL)
    driven = rig.start(transform=transform, takeover="now")
    assert sorted(transform.ids) == sorted(set(ALL) - kept)
    assert (driven.kept_rows, rig.table.ids) == (len(kept), ALL)


@pytest.mark.parametrize("name", ["killed", "sealed", "committed"])
def test_every_record_of_an_earlier_version_is_read(version: str, name: str) -> None:
    """No object of the ledger is passed over or taken for damaged."""
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
