"""The engines' results, by column and round; and the rounds in which they take turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bench.peer_environments import PEERS, PeerError, interpreter, jars
from bench.peer_runs import Outcome

# The work for an engine, by the columns that its outcomes belong to.
Stages = Mapping[tuple[str, ...], Callable[[str], list[Outcome]]]


@dataclass
class Cell:
    """One engine's results in one column, by round; a round in which it failed is missing."""

    outcomes: dict[int, Outcome] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Return all results, for the record."""
        found = list(self.outcomes.values())
        figures: dict[str, Any] = {"s": [round(outcome.seconds, 2) for outcome in found]}
        if found:
            figures["median_s"] = round(statistics.median(outcome.seconds for outcome in found), 2)
        if killed_at := [outcome.killed_at for outcome in found if outcome.killed_at is not None]:
            figures["killed_at"] = killed_at
        if wrong := [outcome.wrong for outcome in found if outcome.wrong]:
            figures["wrong"] = wrong
        if self.failures:
            figures["failed"] = self.failures
        return figures

    def text(self) -> str:
        """Return the median for the table; a star means lost or doubled rows."""
        figures = self.figures()
        star = "*" if "wrong" in figures else ""
        return f"{figures['median_s']:.2f}{star}" if "median_s" in figures else "failed"

    def ratio(self, over: Cell) -> float | None:
        """Return the seconds over another cell's: the median over the rounds that both have."""
        both = self.outcomes.keys() & over.outcomes.keys()
        each = [self.outcomes[number].seconds / over.outcomes[number].seconds for number in both]
        return round(statistics.median(each), 3) if each else None


class Board:
    """All cells, by engine and column; an engine has none in a column that it cannot do."""

    def __init__(self, ours: str, names: list[str], columns: tuple[str, ...]) -> None:
        """Make the empty cells.

        Args:
            ours: The name of the engine that the others are compared with; one of `names`.
            names: The names of all engines.
            columns: All of them; only the first is for engines without checkpoints.
        """
        self.ours = ours
        self.columns = columns
        self.cells = {
            name: {
                column: Cell() for column in (columns if PEERS[name].checkpointed else columns[:1])
            }
            for name in names
        }

    def play(self, stages: Stages, rounds: int) -> None:
        """Install the engines, and let those that could be installed do all stages in turns."""
        able = [
            name
            for name, cells in self.cells.items()
            if self.note(name, tuple(cells), 0, partial(_install, name))
        ]
        for number in range(rounds):
            # Each goes first in turn: a machine that slows down favours none.
            order = able[number % len(able) :] + able[: number % len(able)]
            for columns, stage in stages.items():
                for name in order:
                    if columns[0] in self.cells[name]:
                        self.note(name, columns, number, partial(stage, name))

    def note(
        self, name: str, columns: tuple[str, ...], number: int, stage: Callable[[], list[Outcome]]
    ) -> bool:
        """Run a stage of an engine and keep its results; return whether it worked."""
        try:
            found = stage()
        except PeerError as error:
            for column in columns:
                self.cells[name][column].failures.append(str(error))
            print(f"  {name:<14} {'+'.join(columns)} failed: {error}", flush=True)
            return False
        for column, outcome in zip(columns, found, strict=False):
            self.cells[name][column].outcomes[number] = outcome
            shown = f"{outcome.seconds:7.2f} s {outcome.wrong}"
            print(f"  round {number} {name:<14} {column:<13} {shown}", flush=True)
        return True

    def ratios(self) -> dict[str, dict[str, float]]:
        """Return our time over each peer's, in each column that both have done."""
        ours = self.cells[self.ours]
        found: dict[str, dict[str, float]] = {}
        for name, cells in self.cells.items():
            if name != self.ours:
                each = {column: ours[column].ratio(cell) for column, cell in cells.items()}
                found[name] = {column: ratio for column, ratio in each.items() if ratio is not None}
        return found

    def check_ours(self) -> None:
        """Check that ours has done every column correctly: otherwise there is nothing to compare.

        Raises:
            SystemExit: Ours failed or was wrong in some column.
        """
        for column, cell in self.cells[self.ours].items():
            faults = cell.failures + [
                outcome.wrong for outcome in cell.outcomes.values() if outcome.wrong
            ]
            if faults:
                raise SystemExit(f"ours, {column}: {'; '.join(faults)}")

    def print_table(self) -> None:
        """Print the medians."""
        print(f"  {'median s':<15}" + "".join(f"{column:>14}" for column in self.columns))
        for name, cells in self.cells.items():
            texts = (cells[column].text() if column in cells else "none" for column in self.columns)
            print(f"  {name:<15}" + "".join(f"{text:>14}" for text in texts))
        if any("*" in cell.text() for cells in self.cells.values() for cell in cells.values()):
            print("  * rows were lost or doubled; the figures say how many")

    def figures(self) -> dict[str, Any]:
        """Return what each engine is, and its results."""
        return {
            name: {
                "installed": PEERS[name].requirements,
                "jobs": {"plain": PEERS[name].plain, "checkpointed": PEERS[name].checkpointed},
                **{column: cell.figures() for column, cell in cells.items()},
            }
            for name, cells in self.cells.items()
        }


def _install(name: str) -> list[Outcome]:
    interpreter(name)
    jars(name)
    return []
