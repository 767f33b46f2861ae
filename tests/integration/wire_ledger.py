"""Each kind of object in a ledger, written and read by the code that the product uses for it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.ledger.layout import RunLayout, task_log_name, tasks_name
from holdfast.ledger.ledger import Ports, TaskPorts
from holdfast.ledger.parts import read_work, write_work
from holdfast.ledger.row_files import ChunkFile, KeyFile, read_chunk, read_keys
from holdfast.ledger.run_log import RunLog, open_run_file, read_run_file
from holdfast.ledger.task_log import TaskLog, read_task_records
from holdfast.model.coverage import Coverage
from holdfast.model.identity import Identity
from holdfast.model.records import Claim
from holdfast.model.work import TaskRecord, Work
from holdfast.storage.port import Storage
from tests.fakes.rig import Rig

IDENTITY = Rig().identity()
CLAIM = Claim(
    holdfast_version="0", host="h", process_id=1, machine="m", code="c", checkpoint_every_s=1.0
)
ROWS = pa.RecordBatch.from_pydict({"id": list(range(50)), "text": [f"row {n}" for n in range(50)]})
KEYS = pa.schema([("id", pa.int64())])
_TASK = task_log_name(tasks_name(1), "rows", 0, 7)
_RECORD = TaskRecord(
    name=f"{_TASK}/0000",
    coverage=Coverage(rows=50, low=1, high=2, keys_bytes=3, span=(0, 49)),
    seconds=1.5,
    end="complete",
)
_WORK = Work(records=(_RECORD,))


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of object.

    `write` returns what `read` needs to find it, and `read` returns what was written.
    """

    # A part of the names of such objects, and of no others.
    part: str
    write: Callable[[Storage, RunLayout], Any]
    read: Callable[[Storage, RunLayout, Any], Any]
    content: Any
    # Whether it is created once: then no failure of the wire may keep it from being written.
    create_once: bool


def fresh_layout(bucket: str) -> RunLayout:
    """Return the layout of a run that was never started."""
    return RunLayout.of(f"s3://{bucket}/wire-{uuid.uuid4().hex[:10]}", "r")


def run_log(storage: Storage, layout: RunLayout) -> RunLog:
    """Open the run's log, as a driver that never sleeps does."""
    ports = Ports()
    return RunLog(
        run_id="r",
        layout=layout,
        storage=storage,
        new_nonce=ports.new_nonce,
        now=ports.now,
        sleep=lambda _: None,
    )


def _write_run_file(storage: Storage, layout: RunLayout) -> str:
    nonce = uuid.uuid4().hex
    written = open_run_file(
        storage, layout, run_id="r", identity=IDENTITY, nonce=nonce, sleep=lambda _: None
    )
    assert written.nonce == nonce  # Ours, and not taken for another driver's.
    return nonce


def _read_run_file(storage: Storage, layout: RunLayout, nonce: str) -> Identity | None:
    found = read_run_file(storage, layout)
    assert found is None or found.nonce == nonce
    return None if found is None else found.identity


def _write_record(storage: Storage, layout: RunLayout) -> str:
    return run_log(storage, layout).claim(CLAIM).nonce


def _read_record(storage: Storage, layout: RunLayout, nonce: str) -> Any:  # noqa: ANN401 - any body.
    log = run_log(storage, layout)
    log.refresh()
    assert [record.nonce for record in log.records] == [nonce]  # Once, and ours.
    return log.records[0].body


def _write_task_record(storage: Storage, layout: RunLayout) -> str:
    TaskLog(storage, layout, _TASK, ports=TaskPorts(sleep=lambda _: None)).append(_RECORD)
    return layout.task_record(_RECORD.name)


def _read_task_record(storage: Storage, layout: RunLayout, uri: str) -> TaskRecord:
    (found,) = read_task_records(storage, layout, [uri])
    return found


def _write_chunk(storage: Storage, layout: RunLayout) -> Any:  # noqa: ANN401 - a chunk's name.
    file = ChunkFile(storage, layout.chunk("c"), ROWS.schema)
    file.write([ROWS])
    return file.finish()


def _read_chunk(storage: Storage, layout: RunLayout, chunk: Any) -> pa.RecordBatch:  # noqa: ANN401
    (batch,) = read_chunk(storage, layout.chunk("c"), chunk)
    return batch


def _write_keys(storage: Storage, layout: RunLayout) -> str:
    file = KeyFile(storage, layout.keys("k"))
    file.add(["id"], [ROWS.column("id")])
    assert file.finish() > 0
    return layout.keys("k")


def _read_keys(storage: Storage, _: RunLayout, uri: str) -> pa.RecordBatch:
    return pa.concat_batches(list(read_keys(storage, uri, KEYS)))


KINDS: dict[str, Kind] = {
    "run.json": Kind(
        part="/run.json",
        write=_write_run_file,
        read=_read_run_file,
        content=IDENTITY,
        create_once=True,
    ),
    "record of the run log": Kind(
        part="/log/00000001.json",
        write=_write_record,
        read=_read_record,
        content=CLAIM,
        create_once=True,
    ),
    "task record": Kind(
        part="/0000.json",
        write=_write_task_record,
        read=_read_task_record,
        content=_RECORD,
        create_once=True,
    ),
    "part of a seal": Kind(
        part="/parts/",
        write=lambda storage, layout: write_work(storage, layout, "p", _WORK),
        read=read_work,
        content=_WORK,
        create_once=False,
    ),
    "chunk": Kind(
        part=".chunk", write=_write_chunk, read=_read_chunk, content=ROWS, create_once=False
    ),
    "key file": Kind(
        part=".keys",
        write=_write_keys,
        read=_read_keys,
        content=ROWS.select(["id"]),
        create_once=False,
    ),
}
