"""Calls per second over what the server's latency and the concurrency allow, with checkpoints.

The limit is the time that the server itself has spent on the calls, divided by all slots:
no client can be faster. Beside it the same job in bare Spark, written as it is usually written:
a batch at a time, with as many calls at once, and no checkpoint.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa

import holdfast as hf
from bench.session import open_session, open_stack

_ROWS = 16_000
_TASKS = 2
_CONCURRENCY = 64
_ROUNDS = 2


class Ask:
    """A client that is built once in each worker process."""

    def __init__(self, url: str) -> None:
        """Open the client; connections come with the calls."""
        self._url = url
        limits = httpx.Limits(max_connections=_CONCURRENCY)
        self._client = httpx.AsyncClient(limits=limits, timeout=30)

    async def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Ask for one row."""
        answer = await self._client.get(f"{self._url}/{row['id']}")
        answer.raise_for_status()
        return {"id": row["id"], "answer": answer.json()["answer"]}


def _bare(url: str) -> Any:  # noqa: ANN401 - what mapInArrow takes.
    def ask_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        async def of_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
            ask, free = Ask(url), asyncio.Semaphore(_CONCURRENCY)

            async def one(row: dict[str, Any]) -> dict[str, Any]:
                async with free:
                    return await ask(row)

            rows = await asyncio.gather(*map(one, batch.to_pylist()))
            return pa.RecordBatch.from_pylist(list(rows))

        for batch in batches:
            yield asyncio.run(of_batch(batch))

    return ask_all


def _counts(url: str) -> tuple[int, float]:
    with urllib.request.urlopen(f"{url}/counts") as answer:  # noqa: S310 - our own server.
        found = json.load(answer)
    return found["calls"], found["seconds"]


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    script = Path(__file__).with_name("slow_server.py")
    server = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    try:
        url = server.stdout.readline().strip() if server.stdout else ""
        return _measure(url)
    finally:
        server.terminate()
        server.wait(10)


def _measure(url: str) -> dict[str, Any]:
    stack = open_stack()
    session = open_session(stack.spark_catalog_conf("lake"))
    session.sql("CREATE NAMESPACE IF NOT EXISTS lake.bench")
    options, mark = stack.rest_catalog_properties(), uuid.uuid4().hex[:8]

    def ours(name: str, rows: int) -> None:
        report = hf.Run(f"bench-{name}", store="s3://lake/_holdfast", store_options=options).append(
            session.range(0, rows, 1, _TASKS),
            to=hf.IcebergTable(f"bench.{name}", catalog=options),
            key="id",
            transform=hf.per_row(hf.per_worker(Ask, url), concurrency=_CONCURRENCY),
            checkpoint_every="5s",
        )
        if report.rows != rows:
            raise SystemExit(f"{report.rows} rows arrived of {rows}")

    def bare(name: str, rows: int) -> None:
        df = session.range(0, rows, 1, _TASKS)
        df.mapInArrow(_bare(url), "id bigint, answer string").writeTo(f"lake.bench.{name}").append()

    figures: dict[str, list[float]] = {"ours": [], "bare": [], "ours_limit": [], "bare_limit": []}
    for number in range(_ROUNDS + 1):
        for side, action in (("ours", ours), ("bare", bare)):
            name, rows = f"{side}_{mark}_{number}", _ROWS if number else 500
            session.sql(f"CREATE TABLE lake.bench.{name} (id bigint, answer string)")
            before, started = _counts(url), time.monotonic()
            action(name, rows)
            seconds, after = time.monotonic() - started, _counts(url)
            session.sql(f"DROP TABLE lake.bench.{name} PURGE")
            if after[0] - before[0] != rows:
                raise SystemExit(f"{after[0] - before[0]} calls were made for {rows} rows")
            limit = (after[1] - before[1]) / (_TASKS * _CONCURRENCY)
            print(f"  round {number} {side} {seconds:6.2f} s, limit {limit:6.2f} s", flush=True)
            if number:  # The first round warms the session up.
                figures[side].append(round(seconds, 2))
                figures[f"{side}_limit"].append(round(limit, 2))
    return {
        "ratio": round(sum(figures["ours"]) / sum(figures["ours_limit"]), 3),
        "ratio_of_bare_spark": round(sum(figures["bare"]) / sum(figures["bare_limit"]), 3),
        "rows": _ROWS,
        "concurrency": _CONCURRENCY,
        "tasks": _TASKS,
        "rows_per_second": round(_ROWS * _ROUNDS / sum(figures["ours"]), 1),
        **{f"{name}_s": found for name, found in figures.items()},
    }
