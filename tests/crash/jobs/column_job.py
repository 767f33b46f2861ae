"""A run that computes columns, as a process of its own that can be killed at any step.

Its tasks run in the same process, one after the other.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa

from holdfast.ledger.ledger import Ledger, Ports
from holdfast.storage.objects import ObjectStorage
from tests.fakes.column_rig import ColumnRig

ROWS = 60
_SCHEMA = pa.schema([("double", pa.int64()), ("pair", pa.list_(pa.int32(), 2))])


class StoredRig(ColumnRig):
    """The same, with a ledger in files."""

    def ledger(self) -> Ledger:
        """Open the run's ledger."""
        store = f"file://{Path(self.uri).parent}/ledger"
        return Ledger.open("columns", store, ObjectStorage({}), Ports())


def rig_in(folder: Path) -> StoredRig:
    """Return the run whose files are in a folder."""
    return StoredRig(str(folder / "t.lance"))


def main() -> None:
    """Run the job, and print what it reports."""
    rig = rig_in(Path(sys.argv[1]))
    # Every batch is a checkpoint: there are chunks, and after a kill a replay.
    report = rig.start(
        schema=_SCHEMA, batch_rows=4, checkpoint_every=1e-6, retries=0, takeover="now"
    )
    said = {"outcome": report.outcome, "kept": report.kept_rows, "computed": len(rig.computed)}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
