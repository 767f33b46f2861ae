"""Append a DataFrame with an identity transform: Holdfast over bare mapInArrow + Iceberg.

Both sides read the same files, cross to Python once, and write the same Iceberg table layout
through the same catalog and store, alternating in one session.
"""

from __future__ import annotations

import statistics
import warnings
from functools import partial
from typing import Any, Literal

import holdfast as hf
from bench.bare_spark import BareSpark, same_batch
from bench.data import ROWS, events
from bench.rounds import alternate
from bench.session import open_session, open_stack


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    # One side leaves the input check out on purpose, and Holdfast says so each time.
    warnings.filterwarnings("ignore", message=".*was not compared")
    stack = open_stack()
    session = open_session(stack.spark_catalog_conf("lake"))
    df = events(session)
    bare = BareSpark(session, df)
    options = stack.rest_catalog_properties()

    def append(name: str, *, verify_input: Literal["keys", False]) -> None:
        run = hf.Run(
            f"bench-{name}",
            store="s3://lake/_holdfast",
            store_options=options,
            verify_input=verify_input,
        )
        target = hf.IcebergTable(name, catalog=options)
        report = run.append(df, to=target, key="id", transform=same_batch)
        if report.rows != ROWS:
            raise SystemExit(f"{report.rows} rows arrived of {ROWS}")

    times = alternate(
        {
            "bare": bare.mapped,
            "ours": partial(append, verify_input="keys"),
            "unchecked": partial(append, verify_input=False),
            "plain": bare.plain,
        },
        bare.table,
        bare.drop,
    )
    medians = {side: statistics.median(found) for side, found in times.seconds.items()}
    found = times.figures()
    return {
        "ratio": times.ratio("ours", "bare"),
        "ratio_of_medians": round(medians["ours"] / medians["bare"], 3),
        "ratio_without_input_check": times.ratio("unchecked", "bare"),
        "rows": ROWS,
        "holdfast_s": found["ours_s"],
        "holdfast_without_input_check_s": found["unchecked_s"],
        "bare_map_in_arrow_s": found["bare_s"],
        "bare_no_map_s": found["plain_s"],
    }
