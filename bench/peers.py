"""Ours against peers that install from PyPI: the same input, an equal job, four columns.

The job: read the events from local Parquet files, hand each batch on in Python, write a table of
Parquet files on the local file system, which all of them can do. Columns: *plain*, without the
engine's checkpoints; *checkpointed*; *rerun*, the same again when all is done; and *resumed*,
the second life after the first one's process tree was killed at half of the rows. What plain
and checkpointed mean for each engine stands in `PEERS` and in the engines' own modules.

Each life is a process in the engine's own environment; the clock starts at the write call of
a warm engine. The engines take turns within each column, so that noise hits them alike.
A column in which an engine fails is recorded with its message.

A small try-out, which is no measurement: `python -m bench.peers 200000 1`.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bench.data import ROWS
from bench.peer_environments import OURS, PEERS, PeerError, interpreter
from bench.peer_input import local_input
from bench.peer_runs import COLUMNS, Outcome, Runs
from bench.rounds import ROUNDS

_WARM_UP_ROWS = 1_000
_TRY_OUT_S = 12.0


@dataclass
class _Cell:
    """What one engine has shown in one column, by round; a round in which it failed is missing."""

    outcomes: dict[int, Outcome] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        found = list(self.outcomes.values())
        figures: dict[str, Any] = {"s": [round(one.seconds, 2) for one in found]}
        if found:
            figures["median_s"] = round(statistics.median(one.seconds for one in found), 2)
        if killed_at := [one.killed_at for one in found if one.killed_at is not None]:
            figures["killed_at"] = killed_at
        if wrong := [one.wrong for one in found if one.wrong]:
            figures["wrong"] = wrong
        if self.failures:
            figures["failed"] = self.failures
        return figures

    def text(self) -> str:
        """Return the median for the table; a star stands for lost or doubled rows."""
        figures = self.figures()
        star = "*" if "wrong" in figures else ""
        return f"{figures['median_s']:.2f}{star}" if "median_s" in figures else "failed"


class _Board:
    """All cells, by engine and column."""

    def __init__(self, names: list[str]) -> None:
        self.cells = {name: {column: _Cell() for column in COLUMNS} for name in names}

    def note(
        self, name: str, columns: tuple[str, ...], number: int, stage: Callable[[], list[Outcome]]
    ) -> bool:
        """Run a stage of an engine and keep what came of it; return whether it worked."""
        try:
            found = stage()
        except PeerError as error:
            for column in columns:
                self.cells[name][column].failures.append(str(error))
            print(f"  {name:<9} {'+'.join(columns)} failed: {error}", flush=True)
            return False
        for column, outcome in zip(columns, found, strict=False):
            self.cells[name][column].outcomes[number] = outcome
            shown = f"{outcome.seconds:7.2f} s {outcome.wrong}"
            print(f"  round {number} {name:<9} {column:<13} {shown}", flush=True)
        return True

    def ratios(self) -> dict[str, dict[str, float]]:
        """Return our time over each peer's: the median over the rounds that both have done."""
        found: dict[str, dict[str, float]] = {}
        ours = self.cells[OURS]
        for name, cells in self.cells.items():
            if name == OURS:
                continue
            found[name] = {}
            for column, cell in cells.items():
                both = ours[column].outcomes.keys() & cell.outcomes.keys()
                if both:
                    each = [
                        ours[column].outcomes[one].seconds / cell.outcomes[one].seconds
                        for one in both
                    ]
                    found[name][column] = round(statistics.median(each), 3)
        return found

    def check_ours(self) -> None:
        """Check that ours has done every column as it should: else there is nothing to compare.

        Raises:
            SystemExit: It has not.
        """
        for column, cell in self.cells[OURS].items():
            faults = cell.failures + [one.wrong for one in cell.outcomes.values() if one.wrong]
            if faults:
                raise SystemExit(f"ours, {column}: {'; '.join(faults)}")

    def print_table(self) -> None:
        print(f"  {'median s':<10}" + "".join(f"{column:>14}" for column in COLUMNS))
        for name, cells in self.cells.items():
            print(f"  {name:<10}" + "".join(f"{cells[one].text():>14}" for one in COLUMNS))
        if any("*" in cell.text() for cells in self.cells.values() for cell in cells.values()):
            print("  * rows were lost or doubled; the figures say how many")


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    return _measure(ROWS, ROUNDS, list(PEERS))


def _measure(rows: int, rounds: int, names: list[str], sleep_s: float = 0.0) -> dict[str, Any]:
    board = _Board(names)
    source, warm_up = local_input(rows), local_input(_WARM_UP_ROWS)
    runs = Runs(rows=rows, source=source, warm_up=warm_up, sleep_s=sleep_s)
    stages: dict[tuple[str, ...], Callable[[str], list[Outcome]]] = {
        ("plain",): runs.plain,
        ("checkpointed", "rerun"): runs.checkpointed_and_rerun,
        ("resumed",): runs.resumed,
    }
    able = [name for name in names if board.note(name, COLUMNS, 0, partial(_install, name))]
    for number in range(rounds):
        # Each goes first in turn: a machine that slows down favours none.
        order = able[number % len(able) :] + able[: number % len(able)]
        for columns, stage in stages.items():
            for name in order:
                board.note(name, columns, number, partial(stage, name))
    board.print_table()
    board.check_ours()
    ratios = board.ratios()
    size_bytes = sum(one.stat().st_size for one in source.glob("*.parquet"))
    return {
        "ratio": max((one for each in ratios.values() for one in each.values()), default=None),
        "figures": {
            "rows": rows,
            "input_mb": round(size_bytes / 1e6, 1),
            "output": "local files; Iceberg for all but Ray Data, which writes plain Parquet",
            "ratios": ratios,
            **{
                name: {
                    "installed": PEERS[name].requirements,
                    "jobs": {"plain": PEERS[name].plain, "checkpointed": PEERS[name].checkpointed},
                    **{column: cell.figures() for column, cell in cells.items()},
                }
                for name, cells in board.cells.items()
            },
        },
    }


def _install(name: str) -> list[Outcome]:
    interpreter(name)
    return []


def _try_out() -> None:
    """Run with the rows, the rounds and perhaps the engines of the command line."""
    rows, rounds = int(sys.argv[1]), int(sys.argv[2])
    # A small job would be over before it could be killed, so its first life goes slowly.
    names = [name for name in PEERS if name in {OURS, *(sys.argv[3:] or PEERS)}]
    found = _measure(rows, rounds, names, sleep_s=_TRY_OUT_S / rows)
    print(json.dumps({"name": "peers, a try-out", **found}))


if __name__ == "__main__":
    _try_out()
