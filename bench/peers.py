"""Ours against peers that install from PyPI: the same input, an equal job, four columns.

The job: read the events from local Parquet files, pass each batch on in Python, write a table of
Parquet files on the local file system, which all of them can do. Columns: *plain*, without the
engine's checkpoints; *checkpointed*; *rerun*, the same again when all is done; and *resumed*, the
second start after the first one's process tree was killed at half of the rows. What plain and
checkpointed mean for each engine is in `PEERS` and in the engines' own modules.

Each start is a process in the engine's own environment; the clock starts at the write call of
a warm engine. The engines take turns within each column, so that noise hits them alike.
A column in which an engine fails is recorded with its message.

A small try-out, which is not a measurement: `python -m bench.peers 200000 1`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from bench.data import ROWS
from bench.peer_board import Board, Stages
from bench.peer_environments import OURS, names_of
from bench.peer_input import local_input
from bench.peer_runs import COLUMNS, Runs
from bench.rounds import ROUNDS

_WARM_UP_ROWS = 1_000
_TRY_OUT_S = 12.0


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    return _measure(ROWS, ROUNDS, names_of("Iceberg"))


def _measure(rows: int, rounds: int, names: list[str], sleep_s: float = 0.0) -> dict[str, Any]:
    board = Board(OURS, names, COLUMNS)
    source, warm_up = local_input(rows), local_input(_WARM_UP_ROWS)
    runs = Runs(rows=rows, source=source, warm_up=warm_up, sleep_s=sleep_s)
    stages: Stages = {
        ("plain",): runs.plain,
        ("checkpointed", "rerun"): runs.checkpointed_and_rerun,
        ("resumed",): runs.resumed,
    }
    board.play(stages, rounds)
    board.print_table()
    board.check_ours()
    ratios = board.ratios()
    size_bytes = sum(file.stat().st_size for file in source.glob("*.parquet"))
    return {
        "ratio": max((ratio for each in ratios.values() for ratio in each.values()), default=None),
        "figures": {
            "rows": rows,
            "input_mb": round(size_bytes / 1e6, 1),
            "output": "local files; Iceberg for all but Ray Data, which writes plain Parquet",
            "ratios": ratios,
            **board.figures(),
        },
    }


def _try_out() -> None:
    """Run with the rows, the rounds and perhaps the engines of the command line."""
    rows, rounds = int(sys.argv[1]), int(sys.argv[2])
    # A small job would be over before it could be killed, so its first start is slowed down.
    known = names_of("Iceberg")
    names = [name for name in known if name in {OURS, *(sys.argv[3:] or known)}]
    found = _measure(rows, rounds, names, sleep_s=_TRY_OUT_S / rows)
    print(json.dumps({"name": "peers, a try-out", **found}))


if __name__ == "__main__":
    _try_out()
