"""Another writer, in a process of its own: appends one row to a table every few seconds.

The one argument is a `Rival` in JSON; the last line says what it did, in JSON.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import PY_IO_IMPL

from bench.session import open_stack
from holdfast.sinks.iceberg.file_io import FILE_IO_PATH

# In the summary of each of its snapshots: the number of the row.
ROW_PROPERTY = "bench-row"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """What to append, and how often."""

    table: str
    seconds: float
    every_s: float
    # Which partition each row belongs to, in turns.
    partitions: tuple[int, ...]

    def arguments(self) -> dict[str, Any]:
        """Return it as a child takes it."""
        return asdict(self)

    def row(self, number: int) -> tuple[int, int]:
        """Return the id and the partition of a row."""
        return -1 - number, self.partitions[number % len(self.partitions)]


def main() -> None:
    """Append until the time is over."""
    rival = Rival(**json.loads(sys.argv[1]))
    # The stack's S3 server does not accept how pyarrow's file system completes an upload.
    options = {**open_stack().rest_catalog_properties(), PY_IO_IMPL: FILE_IO_PATH}
    catalog = load_catalog("lake", **options)
    schema = catalog.load_table(rival.table).schema().as_arrow()
    refused = 0
    landed_at: list[float] = []
    started = time.monotonic()
    while time.monotonic() - started < rival.seconds:
        number = len(landed_at)
        row_id, partition = rival.row(number)
        rows = pa.table({"id": [row_id], "part": [partition]}, schema=schema)
        try:
            # A conflict is tried again by PyIceberg itself, a few times.
            catalog.load_table(rival.table).append(
                rows, snapshot_properties={ROW_PROPERTY: str(number)}
            )
        except CommitFailedException:
            refused += 1
            continue
        landed_at.append(time.time())
        passed = time.monotonic() - started
        time.sleep(rival.every_s - passed % rival.every_s)
    print(json.dumps({"landed_at": landed_at, "refused": refused}), flush=True)


if __name__ == "__main__":
    main()
