"""Append a DataFrame with an identity transform: Holdfast over bare mapInArrow + Iceberg.

Both sides read the same files, cross to Python once, and write the same Iceberg table layout
through the same catalog and store, alternating in one session.
"""

from __future__ import annotations

import statistics
import time
import uuid
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pyarrow as pa

import holdfast as hf
from bench.data import COLUMNS, ROWS, events
from bench.session import open_session, open_stack

_ROUNDS = 3


def _identity(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    yield from batches


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _seconds(action: Callable[[], Any]) -> float:
    started = time.monotonic()
    action()
    return time.monotonic() - started


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    # One side leaves the input check out on purpose, and Holdfast says so each time.
    warnings.filterwarnings("ignore", message=".*was not compared")
    stack = open_stack()
    session = open_session(stack.spark_catalog_conf("lake"))
    df = events(session)
    ddl = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    session.sql("CREATE NAMESPACE IF NOT EXISTS lake.bench")
    mark = uuid.uuid4().hex[:8]
    options = stack.rest_catalog_properties()

    def table(side: str, round_number: int) -> str:
        name = f"{side}_{mark}_{round_number}"
        session.sql(f"CREATE TABLE lake.bench.{name} ({ddl}) USING iceberg")
        return f"bench.{name}"

    def bare(name: str) -> None:
        df.mapInArrow(_identity, df.schema).writeTo(f"lake.{name}").append()

    def plain(name: str) -> None:
        df.writeTo(f"lake.{name}").append()

    def append(name: str, *, verify_input: bool) -> None:
        run = hf.Run(f"bench-{name}", store="s3://lake/_holdfast", store_options=options)
        target = hf.IcebergTable(name, catalog=options)
        report = run.append(df, to=target, key="id", transform=_same, verify_input=verify_input)
        if report.rows != ROWS:
            raise SystemExit(f"{report.rows} rows arrived of {ROWS}")

    sides = {
        "bare": bare,
        "ours": partial(append, verify_input=True),
        "unchecked": partial(append, verify_input=False),
        "plain": plain,
    }
    times: dict[str, list[float]] = {side: [] for side in sides}
    for round_number in range(_ROUNDS + 1):
        for side, action in sides.items():
            name = table(side, round_number)
            seconds = _seconds(lambda action=action, name=name: action(name))  # type: ignore[misc]
            print(f"  round {round_number} {side:<9} {seconds:6.2f} s", flush=True)
            if round_number:  # The first round warms the session up.
                times[side].append(seconds)
            session.sql(f"DROP TABLE lake.{name} PURGE")

    # Both sides of a round stand beside each other in time, so their ratio outlives the noise
    # of a shared machine better than a ratio of medians.
    def ratio(side: str) -> float:
        pairs = zip(times[side], times["bare"], strict=True)
        return round(statistics.median(ours / bare for ours, bare in pairs), 3)

    medians = {side: statistics.median(found) for side, found in times.items()}
    return {
        "ratio": ratio("ours"),
        "ratio_of_medians": round(medians["ours"] / medians["bare"], 3),
        "ratio_without_input_check": ratio("unchecked"),
        "rows": ROWS,
        "holdfast_s": [round(one, 2) for one in times["ours"]],
        "holdfast_without_input_check_s": [round(one, 2) for one in times["unchecked"]],
        "bare_map_in_arrow_s": [round(one, 2) for one in times["bare"]],
        "bare_no_map_s": [round(one, 2) for one in times["plain"]],
    }
