"""Record the ledgers of this version: python -m tests.ledgers.record VERSION.

Run once for each version that changes what a ledger holds, and never again for that version:
what a released version wrote does not change any more.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest

from holdfast.engine.cleanup import abort
from holdfast.ledger.ledger import Ports
from holdfast.model.records import open_json, seal_json
from tests.fakes.cli_lake import CliLake
from tests.fakes.memory_scan import MemoryScan
from tests.fakes.memory_storage import DriverDiedError
from tests.fakes.memory_table import PostFault
from tests.fakes.rig import STORE, Rig, two_partitions
from tests.fakes.watched_transform import WatchedTransform

HERE = Path(__file__).parent


def killed() -> Rig:
    """Return a run whose driver was killed in its first task, which had written chunks."""
    rig, transform = Rig(), WatchedTransform()
    transform.at[6] = rig.storage.kill
    rig.start_and_die(transform=transform, batch_rows=2, checkpoint_every=1e-9)
    return rig


def sealed() -> Rig:
    """Return a run whose second driver has sealed the first one's work, and was killed as well."""
    rig, submitter = killed(), two_partitions()
    submitter.before_task[0] = rig.storage.kill
    rig.start_and_die(submitter, transform=WatchedTransform(), batch_rows=2, checkpoint_every=1e-9)
    return rig


def committed() -> Rig:
    """Return a run that has landed."""
    rig = Rig()
    rig.start(batch_rows=2, checkpoint_every=1e-9)
    return rig


def aborted() -> Rig:
    """Return a run that was given up after a post that others were faster than."""
    rig = killed()
    rig.table.post_faults.append(PostFault.RIVAL_FIRST)
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    rig.start_and_die(two_partitions(), transform=WatchedTransform(), takeover="now")
    abort(rig.ledger(), lambda _identity: rig.table, "no longer wanted")
    return rig


def scanned() -> Rig:
    """Return a run of a scan whose driver was killed in its first task, with chunks written."""
    rig, transform = Rig(), WatchedTransform()
    transform.at[6] = rig.storage.kill
    with pytest.raises(DriverDiedError):
        rig.scan(MemoryScan(range(20)), transform=transform, batch_rows=2, checkpoint_every=1e-9)
    rig.storage.revive()
    return rig


def on_lance(folder: Path) -> None:
    """Leave a store and a dataset: a run whose driver was killed when only chunks were written."""

    def die() -> None:
        raise DriverDiedError

    lake, transform = CliLake(folder), WatchedTransform()
    transform.at[6] = die
    with pytest.raises(DriverDiedError):
        lake.start(
            "r",
            two_partitions(),
            Ports(process_id=2**30, host="host-1", machine="machine-1"),
            sink=lake.make_dataset(),
            transform=transform,
            batch_rows=2,
            checkpoint_every=1e-9,
        )


def moved(file: Path, dataset: str) -> None:
    """Let the run of `on_lance` write a dataset that is elsewhere: its records name no other file.

    Args:
        file: The run's run.json.
        dataset: The new URI.
    """
    content = open_json(file.read_bytes())
    content["identity"]["table"] = dataset
    file.write_bytes(seal_json(content))


@mock.patch("socket.gethostname", return_value="host-1")
def main(_hostname: object) -> None:
    """Write all ledgers of one version."""
    (version,) = sys.argv[1:]
    with TemporaryDirectory() as folder:
        on_lance(Path(folder))
        moved(Path(folder) / "store" / "r" / "run.json", "file:///recorded/t.lance")
        shutil.copytree(folder, HERE / version / "on_lance")
    for make in (killed, sealed, committed, aborted, scanned):
        for uri, data in make().storage.objects.items():
            file = HERE / version / make.__name__ / uri.removeprefix(f"{STORE}/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)


if __name__ == "__main__":
    main()
