"""Each input row becomes a row in two table partitions. Workers import this.

A switch in the environment makes one worker kill itself between the closes of the two files.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.sinks.iceberg.writer import IcebergTaskWriter
from tests.crash.counted_calls import count_call

# `<cut> <path>`: at which cut, counted from 0, and the file that records the kill. Nothing happens
# if the file exists already.
KILL_VARIABLE = "HOLDFAST_CRASH_BETWEEN_CLOSES"
HALVES = ("a", "b")


class TwoHalves:
    """y = 2 * id + 1, once for each half."""

    def __init__(self, row_s: float) -> None:
        """Take the time that a row costs."""
        self.row_s = row_s

    def __call__(self, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        """Work on the rows, count them, and return them twice."""
        kill_between_closes()
        began = time.time()
        time.sleep(self.row_s * batch.num_rows)
        columns = {
            "id": batch.column("id"),
            "payload": batch.column("payload"),
            "y": pc.add(pc.multiply(batch.column("id"), 2), 1),
        }
        count_call(batch.column("id").to_numpy(), began)
        for half in HALVES:
            yield {**columns, "half": [half] * batch.num_rows}


@functools.cache
def kill_between_closes() -> None:
    """Make this process's writer kill the process where the environment says so."""
    order = os.environ.get(KILL_VARIABLE)
    if order is None:
        return
    cut, path = order.split(" ", 1)
    close = IcebergTaskWriter._close_file  # noqa: SLF001 - the place to be killed at.

    def killing(writer: IcebergTaskWriter, partition: Any) -> None:  # noqa: ANN401 - private.
        closed = {file.partition[0]: file.file_path for file in writer._closed}  # noqa: SLF001
        other = [uri for half, uri in closed.items() if half != partition.record[0]]
        due = other and partition.file is not None and writer._cuts == int(cut)  # noqa: SLF001
        if due and _first_here(path, other[0]):
            os.kill(os.getpid(), signal.SIGKILL)
        close(writer, partition)

    setattr(IcebergTaskWriter, "_close_file", killing)  # noqa: B010 - types forbid it.


def _first_here(path: str, text: str) -> bool:
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return False
    os.write(file, f"{os.getpid()} {text}".encode())
    os.close(file)
    return True
