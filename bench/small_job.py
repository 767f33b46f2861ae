"""A job of 1,000 rows: what Holdfast adds to bare Spark, in seconds and in requests.

Both sides read the same files, cross to Python once and append to a table made for the purpose,
alternating in one warm session. Both reach the S3 server and the catalog through proxies of ours
that count what is on the wire. Two cases: a table without a snapshot (Holdfast gives it an empty
one first) and a table that has one. The goals hold for the worse of the two.
"""

from __future__ import annotations

import re
import statistics
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from bench.counting_proxy import CountingProxy, Exchange, count_requests
from bench.data import COLUMNS, events
from bench.session import open_session, open_stack

_ROWS = 1_000
_ROUNDS = 5
_GOAL_SECONDS_MORE = 2.0
_GOAL_REQUESTS_MORE = 30
_REFUSED_FROM = 300
_STORE = "s3://lake/_holdfast"
# What each case's table holds beforehand: a row is a snapshot.
_CASES = {"empty_table": 0, "one_snapshot": 1}
_SIDES = ("bare", "holdfast")

# The first that matches says what a request is about.
_S3_KINDS = {
    r"\?.*list-type=2": "listing",
    r"\?delete": "deletion",
    r"/=probe/": "probe",
    r"/run\.json": "run file",
    r"/log/\d+\.json": "log record",
    r"/parts/": "staged list",
    r"/tasks/": "task record",
    r"/metadata/snap-": "manifest list",
    r"/metadata/.*\.avro": "manifest",
    r"\.metadata\.json": "table metadata",
    r"/data/": "data file",
}
_CATALOG_KINDS = {
    r"/config(\?|$)": "config",
    r"/tables/[^/?]+/metrics": "metrics",
    r"/tables/[^/?]+(\?|$)": "table",
    r"/namespaces": "namespace",
}


def _identity(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    yield from batches


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """One append."""

    seconds: float
    s3: list[Exchange]
    catalog: list[Exchange]

    def requests(self) -> int:
        return len(self.s3) + len(self.catalog)

    def breakdown(self) -> dict[str, dict[str, int]]:
        return {
            "methods": _counts(exchange.method for exchange in (*self.s3, *self.catalog)),
            "s3": _counts(_label(exchange, _S3_KINDS) for exchange in self.s3),
            "catalog": _counts(_label(exchange, _CATALOG_KINDS) for exchange in self.catalog),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """What all rounds share."""

    session: SparkSession
    df: DataFrame
    s3: CountingProxy
    catalog: CountingProxy
    # Storage options that lead through the proxies; the catalog's are the session's own.
    store_options: Mapping[str, str]

    def measure(self, side: str, case: str) -> _Measured:
        """Make a table, append to it, check it and drop it.

        Raises:
            SystemExit: The rows did not arrive, or requests bypassed the proxies.
        """
        table = f"lake.bench.small_{uuid.uuid4().hex[:12]}"
        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        self.session.sql(f"CREATE TABLE {table} ({columns}) USING iceberg")
        if _CASES[case]:
            self.df.limit(_CASES[case]).writeTo(table).append()
        self.s3.reset()
        self.catalog.reset()
        started = time.monotonic()
        self._append(side, table)
        seconds = time.monotonic() - started
        found = _Measured(seconds=seconds, s3=self.s3.settled(), catalog=self.catalog.settled())
        self.session.catalog.refreshTable(table)
        rows, expected = self.session.table(table).count(), _CASES[case] + _ROWS
        if rows != expected:
            raise SystemExit(f"{side}: {rows} rows are in the table, not {expected}")
        if not (found.s3 and found.catalog):
            raise SystemExit(f"{side}: requests bypassed the proxies")
        # Without PURGE, which is a Spark job of 200 tasks and would heat up the next round.
        self.session.sql(f"DROP TABLE {table}")
        return found

    def _append(self, side: str, table: str) -> None:
        if side == "bare":
            self.df.mapInArrow(_identity, self.df.schema).writeTo(table).append()
        else:
            run = hf.Run(f"bench-{table}", store=_STORE, store_options=self.store_options)
            run.append(self.df, to=table, key="id", transform=_same)


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    stack = open_stack()
    with count_requests(stack.s3.endpoint) as s3, count_requests(stack.rest.uri) as catalog:
        wired = replace(
            stack,
            s3=replace(stack.s3, endpoint=s3.url),
            rest=replace(stack.rest, uri=catalog.url),
        )
        session = open_session(wired.spark_catalog_conf("lake"))
        session.sql("CREATE NAMESPACE IF NOT EXISTS lake.bench")
        bench = _Bench(
            session=session,
            df=events(session, _ROWS),
            s3=s3,
            catalog=catalog,
            store_options=wired.rest_catalog_properties(),
        )
        found: dict[tuple[str, str], list[_Measured]] = {
            (case, side): [] for case in _CASES for side in _SIDES
        }
        for round_number in range(_ROUNDS + 1):
            for (case, side), measured in found.items():
                result = bench.measure(side, case)
                _print_round(round_number, case, side, result)
                if round_number:  # The first round warms the session up.
                    measured.append(result)
        tasks = bench.df.rdd.getNumPartitions()
        session.stop()
    # Each task writes its own files: a count of requests means little without the number of tasks.
    return {**_figures(found), "rows": _ROWS, "tasks": tasks}


def _figures(found: Mapping[tuple[str, str], list[_Measured]]) -> dict[str, Any]:
    cases = {case: _case_figures(*(found[case, side] for side in _SIDES)) for case in _CASES}
    return {
        # The worse case of each figure.
        "ratio": max(case["ratio"] for case in cases.values()),
        "seconds_more": max(case["seconds_more"] for case in cases.values()),
        "goal_seconds_more": _GOAL_SECONDS_MORE,
        "requests_more": max(case["requests_more"] for case in cases.values()),
        "goal_requests_more": _GOAL_REQUESTS_MORE,
        "cases": cases,
    }


def _case_figures(bare: list[_Measured], ours: list[_Measured]) -> dict[str, Any]:
    seconds = [statistics.median(result.seconds for result in side) for side in (bare, ours)]
    requests = [statistics.median(result.requests() for result in side) for side in (bare, ours)]
    return {
        "ratio": round(seconds[1] / seconds[0], 3),
        "seconds_more": round(seconds[1] - seconds[0], 3),
        "requests_more": requests[1] - requests[0],
        "bare": _side_figures(bare),
        "holdfast": _side_figures(ours),
    }


def _side_figures(measured: list[_Measured]) -> dict[str, Any]:
    return {
        "seconds": [round(result.seconds, 3) for result in measured],
        "s3_requests": [len(result.s3) for result in measured],
        "catalog_requests": [len(result.catalog) for result in measured],
        "requests": [result.requests() for result in measured],
        "last_round": measured[-1].breakdown(),
    }


def _counts(labels: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(labels).items()))


def _label(exchange: Exchange, kinds: Mapping[str, str]) -> str:
    """Return method, kind of path and, unless it is a success, status."""
    target = unquote(exchange.target)
    named = (kind for pattern, kind in kinds.items() if re.search(pattern, target))
    label = f"{exchange.method} {next(named, urlsplit(target).path)}"
    return label if exchange.status < _REFUSED_FROM else f"{label} ({exchange.status})"


def _print_round(number: int, case: str, side: str, one: _Measured) -> None:
    print(
        f"  round {number} {case:<12} {side:<8} {one.seconds:6.2f} s"
        f"  {len(one.s3):3} to S3  {len(one.catalog):3} to the catalog",
        flush=True,
    )
