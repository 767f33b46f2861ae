"""Record the ledgers of this version: python -m tests.ledgers.record VERSION.

Run once for each version that changes what a ledger holds, and never again for that version:
what a released version wrote does not change any more.
"""

from __future__ import annotations

import sys
from pathlib import Path

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


def main() -> None:
    """Write all ledgers of one version."""
    (version,) = sys.argv[1:]
    for make in (killed, sealed, committed):
        for uri, data in make().storage.objects.items():
            file = HERE / version / make.__name__ / uri.removeprefix(f"{STORE}/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)


if __name__ == "__main__":
    main()
