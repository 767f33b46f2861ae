"""A nursery of drivers: imports once what every driver needs, and forks one for each order.

Orders are lines of JSON on standard input; each is answered with the new process's id. A driver
writes how it ended to the file that its order names. It is a Connect client of a warm server.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.engine import base, large_index, resolve

POISON = 3  # This row fails, whichever driver computes it.
# What an order need not say.
_USUAL = {
    "is_old": False,
    "is_merged": False,
    "is_large": False,
    "is_staged": False,
    "budget": None,
    "scan": "",
    "verb": "append",
    "where": "",
    "write_mode": None,
    "deletes": 0,
}


class Work:
    """In place of a model: y = 2 * id + 1, for all rows but those that fail."""

    def __init__(
        self, row_s: float, *, fails: bool, poison: int | None, deletes: int, only_new: bool = False
    ) -> None:
        """Take how long a row takes, whether all fail, as with code that has a bug, or which.

        Every so many-th row deletes; none if that is 0. Or only the new column is returned.
        """
        self.only_new = only_new
        self.row_s = row_s
        self.fails = fails
        self.poison = poison
        self.deletes = deletes

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Work on a row, which takes a while."""
        ids = batch["id"].to_pylist()
        time.sleep(self.row_s)
        if self.fails or self.poison in ids:
            raise ValueError("cannot be done")
        if self.only_new:
            return {"y": [2 * id_ + 1 for id_ in ids]}
        if not self.deletes:
            return {"id": ids, "y": [2 * id_ + 1 for id_ in ids]}
        gone = [id_ % self.deletes == 0 for id_ in ids]
        y = [None if deletes else 2 * id_ + 1 for id_, deletes in zip(ids, gone, strict=True)]
        return {"id": ids, "y": pa.array(y, pa.int64()), "gone": gone}


def target(order: dict[str, Any]) -> hf.IcebergTable | hf.LanceTable:
    """Return the table to write: an Iceberg table, or a Lance dataset if it has a place."""
    if "://" in order["to"]:
        return hf.LanceTable(order["to"], storage_options=order["store_options"])
    return hf.IcebergTable(order["to"], catalog=order["catalog"])


def act(order: dict[str, Any]) -> dict[str, Any]:
    """Do what the order says, as a user's script would."""
    order = {**_USUAL, **order}
    if order["is_old"]:
        resolve._OLD_AFTER_S = 0.0  # noqa: SLF001 - a process of its own, which cannot wait for days.
    if order["is_merged"]:
        resolve._MERGED_FROM = 2  # noqa: SLF001 - or write hundreds of files.
    if order["is_large"]:  # Few keys are divided and merged like very many.
        base.SMALL_ROWS, large_index._BUCKET_BYTES = 0, 64  # type: ignore[attr-defined]  # noqa: SLF001
    builder: Any = SparkSession.builder
    session: SparkSession = builder.remote(order["remote"]).create()
    run = hf.Run(
        order["run_id"],
        store=order["store"],
        store_options=order["store_options"],
        takeover="now",
        budget=order["budget"],
    )
    to = target(order)
    if order["act"] == "abort":
        run.abort(to=to)
        return {"outcome": "aborted"}
    if order["act"] == "sweep":
        run.sweep(to=to)
        return {"outcome": "swept"}
    if order["verb"] == "add_columns":
        return told(add_columns(run, to, order))
    scan = hf.scan_parquet(order["scan"], options=order["store_options"]) if order["scan"] else None
    verb, poison, more = order["verb"], None, {}
    if verb == "append":
        poison = POISON
        schema = pa.schema([("id", pa.int64()), ("y", pa.int64())])
        more = {"on_error": "quarantine", "max_errors": 2, "create": hf.Create(schema=schema)}
    if order["where"]:
        more = {"where": order["where"]}
    if verb == "upsert":
        more = {"on": "id", "write_mode": order["write_mode"]}
        more["delete_column"] = "gone" if order["deletes"] else None
    report = getattr(run, verb)(
        scan or session.range(0, order["rows"], 1, order["places"]),
        to=to,
        key=None if scan else "id",
        transform=Work(
            order["row_s"], fails=order["fails"], poison=poison, deletes=order["deletes"]
        ),
        batch_rows=1,
        checkpoint_every="0.2s",
        cost=1.0,
        commit=not order["is_staged"],
        **more,
    )
    return told(run.commit(to=to) if order["is_staged"] else report)


def add_columns(
    run: hf.Run, to: hf.IcebergTable | hf.LanceTable, order: dict[str, Any]
) -> hf.Report:
    """Compute a column of a dataset."""
    assert isinstance(to, hf.LanceTable)
    return run.add_columns(
        to=to,
        transform=Work(order["row_s"], fails=False, poison=None, deletes=0, only_new=True),
        read_columns=["id"],
        schema=pa.schema([("y", pa.int64())]),
        batch_rows=1,
        checkpoint_every="0.2s",
        cost=1.0,
    )


def told(report: hf.Report) -> dict[str, Any]:
    """Return what a test wants to know of a report."""
    return {
        "outcome": report.outcome,
        "snapshot_id": report.snapshot_id,
        "rows": report.rows,
        "quarantined_rows": report.quarantined_rows,
    }


def live(order: dict[str, Any]) -> None:
    """Run a driver from its first step to its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ended: dict[str, Any] = {"outcome": "", "error": ""}
    try:
        ended |= act(order)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test is to see it.
        ended |= {"error": type(error).__name__, "text": traceback.format_exc()}
    part = Path(f"{order['end']}.part")
    part.write_text(json.dumps(ended), encoding="utf-8")
    part.rename(order["end"])


def main() -> None:
    """Fork a driver for each order, until there are no more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # The system reaps them.
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                live(json.loads(line))
            finally:
                os._exit(0)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
