"""The peers' input: the same events, in a layout that every engine can read.

Spark wrote them in four files of one row group each, with times as INT96, which Iceberg's other
writers do not take. Here they are in sixteen files of small row groups, with times in microseconds,
so that an engine whose unit of progress is a file can keep half of its work too.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.data import cache_folder, events
from bench.session import open_session

_FILES = 16
_GROUP_ROWS = 128 * 1024
_DONE = "_SUCCESS"


def local_input(rows: int) -> Path:
    """Return the folder with the rows; a child makes it first if it is missing.

    A child makes it, because a JVM that stayed here would take memory from the measured engines.
    """
    folder = cache_folder() / f"peers-{rows}"
    if not (folder / _DONE).exists():
        subprocess.run([sys.executable, "-m", "bench.peer_input", str(rows)], check=True)
    return folder


def _make(rows: int) -> None:
    folder = cache_folder() / f"peers-{rows}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    session = open_session({})
    sources = events(session, rows).inputFiles()
    session.stop()
    per_source = _FILES // len(sources)
    for number, source in enumerate(sources):
        table = pq.read_table(source.removeprefix("file://"), coerce_int96_timestamp_unit="us")
        at = table.schema.get_field_index("at")
        table = table.set_column(at, "at", table.column(at).cast(pa.timestamp("us", "UTC")))
        each = -(-table.num_rows // per_source)
        for part in range(per_source):
            pq.write_table(
                # Without Spark's notes on the schema, which only some of the engines read.
                table.slice(part * each, each).replace_schema_metadata(),
                folder / f"part-{number * per_source + part:02}.parquet",
                row_group_size=_GROUP_ROWS,
                compression="zstd",
            )
    (folder / _DONE).touch()


if __name__ == "__main__":
    _make(int(sys.argv[1]))
