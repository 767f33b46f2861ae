"""A slow store: does a job take as long as the slower of compute and IO, or as long as their sum?

S3 is behind toxiproxy, which delays each direction and limits each connection; all of Holdfast's
own traffic goes that way: input, ledger, table files. The catalog is reached directly. First the
transform is given as much to compute as IO alone takes; then all sides alternate in one session.
The events are there three times: in a job of seconds, requests that wait for each other at its
start and its end would be a good part of it. With the IO runtime switched off in the workers, which
takes minutes, the events are written once, next to the same job with it on.
"""

from __future__ import annotations

import statistics
import time
import uuid
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

import holdfast as hf
from bench.burn import Burn, repeats_for
from bench.data import COLUMNS
from bench.rounds import Times, alternate
from bench.s3_input import S3Input, upload_events
from bench.session import open_session, open_stack
from tests.integration.wire_toxics import Toxic, toxic_proxy
from tests.stack_access import Stack

_GROUP_ROWS = 128 * 1024
_TASKS = 2
_COPIES = 3
_DELAY_MS = 50
# Per connection, in each direction.
_KILOBYTES_PER_S = 2_500
_TOXICS = [
    Toxic(kind, attributes, stream)
    for stream in ("upstream", "downstream")
    for kind, attributes in (
        ("latency", {"latency": _DELAY_MS, "jitter": 0}),
        ("bandwidth", {"rate": _KILOBYTES_PER_S}),
    )
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """What all sides share."""

    session: SparkSession
    stack: Stack
    input: S3Input
    once: S3Input
    # So small that only the time of requests matters.
    small: S3Input
    slow_endpoint: str
    mark: str

    def make_table(self, name: str) -> str:
        """Make a table, and return its name."""
        ddl = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        self.session.sql(f"CREATE TABLE lake.bench.{name}_{self.mark} ({ddl}) USING iceberg")
        return f"bench.{name}_{self.mark}"

    def drop_table(self, name: str) -> None:
        """Drop a table."""
        self.session.sql(f"DROP TABLE lake.{name} PURGE")

    def append(
        self,
        table: str,
        *,
        data: S3Input | None = None,
        slow: bool = True,
        repeats: int = 0,
        inline: bool = False,
    ) -> None:
        """Do the job.

        Raises:
            SystemExit: Not all rows arrived.
        """
        # Spark keeps the workers of each environment apart.
        self.session.sparkContext.environment["HOLDFAST_IO"] = "inline" if inline else ""
        data = data or self.input
        wire = {"s3.endpoint": self.slow_endpoint} if slow else {}
        options = {**self.stack.rest_catalog_properties(), **wire}
        run = hf.Run(f"bench-{table}", store="s3://lake/_holdfast", store_options=options)
        report = run.append(
            hf.scan_parquet(data.paths, options=options),
            to=hf.IcebergTable(table, catalog=options),
            transform=Burn(repeats),
        )
        if report.rows != data.rows:
            raise SystemExit(f"{report.rows} rows arrived")

    def seconds(self, name: str, **how: Any) -> float:  # noqa: ANN401 - arguments of `append`.
        """Return how long one job takes."""
        table = self.make_table(name)
        started = time.monotonic()
        self.append(table, **how)
        took = time.monotonic() - started
        print(f"  try {name:<12} {took:6.2f} s", flush=True)
        self.drop_table(table)
        return took


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    stack = open_stack()
    session = open_session(stack.spark_catalog_conf("lake"))
    session.sql("CREATE NAMESPACE IF NOT EXISTS lake.bench")
    with toxic_proxy(stack.toxiproxy_api, stack.s3.endpoint) as proxy:
        proxy.add(*_TOXICS)
        bench = _Bench(
            session=session,
            stack=stack,
            input=upload_events(stack, group_rows=_GROUP_ROWS, copies=_COPIES),
            once=upload_events(stack, group_rows=_GROUP_ROWS),
            small=upload_events(stack, rows=1_000, group_rows=_GROUP_ROWS),
            slow_endpoint=proxy.uri,
            mark=uuid.uuid4().hex[:8],
        )
        for inline in (False, True):  # The workers of both kinds are warm from here on.
            bench.seconds(f"warm_{inline}", data=bench.small, inline=inline)
        floor_s = bench.seconds("floor", data=bench.small)
        base_s = bench.seconds("base", slow=False)
        io_s = bench.seconds("try_io")
        wanted_s = max(1.0, io_s - base_s)
        repeats = repeats_for(wanted_s * _TASKS / bench.input.rows)
        # Two processes at once compute more slowly than the one that was asked.
        tries = [bench.seconds(f"try_{n}", slow=False, repeats=repeats) for n in range(2)]
        took_s = min(tries) - base_s
        repeats = max(1, round(repeats * wanted_s / max(1.0, took_s)))
        times = alternate(
            {
                "compute": partial(bench.append, slow=False, repeats=repeats),
                "io": bench.append,
                "both": partial(bench.append, repeats=repeats),
            },
            bench.make_table,
            bench.drop_table,
            is_warm=True,
        )
        once_s = bench.seconds("once", data=bench.once, repeats=repeats)
        inline_s = bench.seconds("once_inline", data=bench.once, repeats=repeats, inline=True)
    return {
        "ratio": _over_the_slower(times, "both", "compute", "io"),
        "inline_over_runtime": round(inline_s / once_s, 3),
        "once_s": round(once_s, 2),
        "once_inline_s": round(inline_s, 2),
        # Time of requests that wait for each other: nothing to overlap.
        "floor_s": round(floor_s, 2),
        "rows": bench.input.rows,
        "input_mb": round(bench.input.size_bytes / 1e6, 1),
        "delay_ms_each_way": _DELAY_MS,
        "kilobytes_per_s_of_a_connection": _KILOBYTES_PER_S,
        **times.figures(),
    }


def _over_the_slower(times: Times, both: str, *alone: str) -> float:
    """Return how long both together take per second of the slower one, round by round."""
    rounds = zip(times.seconds[both], *(times.seconds[side] for side in alone), strict=True)
    return round(float(statistics.median(seconds[0] / max(seconds[1:]) for seconds in rounds)), 3)
