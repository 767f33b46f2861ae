"""Ours against peers that write Lance: vectors appended to a new dataset, in two columns.

The job: read the rows of `lance-append` from local Parquet files, pass each batch on in Python,
append it to an empty Lance dataset on the local file system. Columns: *plain*, and *checkpointed*
where an engine has checkpoints for Lance. What they mean for each engine is in `PEERS` and in the
engines' own modules, with the reason if an engine has no checkpoints.

Each start is a process in the engine's own environment; the clock starts at the write call of
a warm engine. The engines take turns, so that noise hits them alike. What arrived is counted,
by rows and by different ids. An engine that cannot be installed, or that fails, is recorded with
its message.

The ratio is ours, checkpointed, over the fastest column of any peer, plain or not.

A small try-out, which is not a measurement: `python -m bench.lance_peers 100000 1`.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from bench.peer_board import Board
from bench.peer_environments import OURS_LANCE, names_of
from bench.peer_runs import Runs
from bench.rounds import ROUNDS
from bench.vectors import ROWS, vector_files

COLUMNS = ("plain", "checkpointed")
_WARM_UP_ROWS = 1_000


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    return _measure(ROWS, ROUNDS, names_of("Lance"))


def over_the_fastest(board: Board) -> dict[str, Any]:
    """Return ours, checkpointed, over the fastest column of a peer, and which one that is.

    A column in which rows were lost or doubled does not count: that was another job.
    """
    medians = {
        (name, column): statistics.median(outcome.seconds for outcome in cell.outcomes.values())
        for name, cells in board.cells.items()
        for column, cell in cells.items()
        if name != board.ours
        and cell.outcomes
        and not any(outcome.wrong for outcome in cell.outcomes.values())
    }
    if not medians:
        return {"ratio": None, "fastest_peer": None}
    name, column = min(medians, key=medians.__getitem__)
    ratio = board.cells[board.ours]["checkpointed"].ratio(board.cells[name][column])
    return {"ratio": ratio, "fastest_peer": f"{name}, {column}"}


def _measure(rows: int, rounds: int, names: list[str]) -> dict[str, Any]:
    board = Board(OURS_LANCE, names, COLUMNS)
    files = [Path(file) for file in vector_files(rows)]
    warm_up = Path(vector_files(_WARM_UP_ROWS)[0]).parent
    runs = Runs(rows=rows, source=files[0].parent, warm_up=warm_up)
    board.play({("plain",): runs.plain, ("checkpointed",): runs.checkpointed}, rounds)
    board.print_table()
    board.check_ours()
    return {
        **over_the_fastest(board),
        "figures": {
            "rows": rows,
            "input_mb": round(sum(file.stat().st_size for file in files) / 1e6, 1),
            "output": "a Lance dataset in local files",
            "ratios": board.ratios(),
            **board.figures(),
        },
    }


def _try_out() -> None:
    """Run with the rows, the rounds and perhaps the engines of the command line."""
    rows, rounds = int(sys.argv[1]), int(sys.argv[2])
    known = names_of("Lance")
    names = [name for name in known if name in {OURS_LANCE, *(sys.argv[3:] or known)}]
    print(json.dumps({"name": "lance-peers, a try-out", **_measure(rows, rounds, names)}))


if __name__ == "__main__":
    _try_out()
