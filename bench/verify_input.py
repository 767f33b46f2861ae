"""What each kind of input check costs: keys, whole rows, or none.

Twelve million narrow rows, passed on as they are; and a hundred thousand rows of 100 kB, of which
only the size is written, as with documents. All three sides alternate in one session. Besides
wall-clock seconds, CPU seconds are recorded: a busy machine changes them less.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from bench.bare_spark import same_batch
from bench.data import COLUMNS, ROWS, cache_folder, events
from bench.process_tree import descendants
from bench.rounds import Times, alternate
from bench.session import open_session, open_stack
from holdfast.engine.options import VerifyInput

_WIDE_ROWS = 100_000
# A digest of 64 characters, as often as makes 100 kB; compressed it takes next to no room.
_WIDE_REPEATS = 1_563
# By default Spark reads 4,096 rows at a time, and hands over 10,000.
_WIDE_SETTINGS = {
    "spark.sql.parquet.columnarReaderBatchSize": "64",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "256",
}
_ROUNDS = 2
_SIDES: dict[str, VerifyInput] = {"keys": "keys", "rows": "rows", "unchecked": False}


def wide_rows(session: SparkSession) -> DataFrame:
    """Return rows of 100 kB each, over Parquet files; make the files if they are missing."""
    folder = cache_folder() / f"wide-{_WIDE_ROWS}"
    if not (folder / "_SUCCESS").exists():
        shutil.rmtree(folder, ignore_errors=True)
        text = f"repeat(sha2(cast(id as string), 256), {_WIDE_REPEATS}) as text"
        made = session.range(0, _WIDE_ROWS, 1, 8).selectExpr("id", text)
        made.write.option("compression", "zstd").parquet(str(folder))
    return session.read.parquet(str(folder))


def sizes(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return how long each text is."""
    return {"id": batch["id"], "size": pc.cast(pc.binary_length(batch["text"]), pa.int64())}


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    # One side leaves the input check out on purpose, and Holdfast says so each time.
    warnings.filterwarnings("ignore", message=".*was not compared")
    stack = open_stack()
    session = open_session(stack.spark_catalog_conf("lake"))
    session.sql("CREATE NAMESPACE IF NOT EXISTS lake.bench")
    options = stack.rest_catalog_properties()
    mark = uuid.uuid4().hex[:8]

    def measured(
        df: DataFrame,
        rows: int,
        columns: dict[str, str],
        transform: Callable[[pa.RecordBatch], Any],
        *,
        is_warm: bool,
    ) -> tuple[Times, Times]:
        def table(name: str) -> str:
            ddl = ", ".join(f"{column} {kind}" for column, kind in columns.items())
            session.sql(f"CREATE TABLE lake.bench.{name}_{rows}_{mark} ({ddl}) USING iceberg")
            return f"bench.{name}_{rows}_{mark}"

        def append(name: str, *, verify_input: VerifyInput) -> None:
            before = _worked_s()
            run = hf.Run(
                f"bench-{name}",
                store="s3://lake/_holdfast",
                store_options=options,
                verify_input=verify_input,
            )
            target = hf.IcebergTable(name, catalog=options)
            report = run.append(df, to=target, key="id", transform=transform)
            if report.rows != rows:
                raise SystemExit(f"{report.rows} rows arrived of {rows}")
            worked.seconds[verify_input or "unchecked"].append(_worked_s() - before)

        worked = Times({side: [] for side in _SIDES})
        times = alternate(
            {side: partial(append, verify_input=kind) for side, kind in _SIDES.items()},
            table,
            lambda name: session.sql(f"DROP TABLE lake.{name} PURGE"),
            is_warm=is_warm,
            rounds=_ROUNDS,
        )
        for found in worked.seconds.values():
            del found[:-_ROUNDS]  # The round that warmed up.
        return times, worked

    narrow = measured(events(session), ROWS, COLUMNS, same_batch, is_warm=False)
    columns = {"id": "bigint", "size": "bigint"}
    for name, value in _WIDE_SETTINGS.items():
        session.conf.set(name, value)
    wide = measured(wide_rows(session), _WIDE_ROWS, columns, sizes, is_warm=True)
    return {
        "narrow": {"rows": ROWS, **_figures(*narrow)},
        "wide": {"rows": _WIDE_ROWS, "row_bytes": 64 * _WIDE_REPEATS, **_figures(*wide)},
    }


def _figures(times: Times, worked: Times) -> dict[str, Any]:
    pairs = (("rows", "keys"), ("keys", "unchecked"), ("rows", "unchecked"))
    return {
        **{f"{side}_over_{other}": times.ratio(side, other) for side, other in pairs},
        **{f"{side}_over_{other}_worked": worked.ratio(side, other) for side, other in pairs},
        **times.figures(),
        **{f"worked_{side}": found for side, found in worked.figures().items()},
    }


def _worked_s() -> float:
    """Return the CPU seconds of this process and of all that it has started."""
    ticks = 0
    for process_id in (os.getpid(), *descendants(os.getpid())):
        with contextlib.suppress(OSError):  # It has ended.
            stat = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8")
            ticks += sum(map(int, stat.rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")
