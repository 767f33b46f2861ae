"""How commands talk: tables and colours on a terminal, plain text elsewhere, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

# What a pipe gets, unless COLUMNS says otherwise: ids and paths stay whole there.
_PIPE_COLUMNS = 120
_INDENT = (0, 0, 0, 2)

STATE_STYLES = {
    "new": "dim",
    "started": "cyan",
    "stopped": "yellow",
    "staged": "blue",
    "committed": "green",
    "aborted": "dim",
    "damaged": "red",
}


def make_console() -> Console:
    """Return the console of standard output. Colours need a terminal, and NO_COLOR ends them."""
    console = Console(highlight=False)
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(highlight=False, width=_PIPE_COLUMNS)


def print_json(document: Any) -> None:  # noqa: ANN401 - whatever JSON holds.
    """Print one JSON document, the same on a terminal and in a pipe."""
    json.dump(document, sys.stdout, indent=2, ensure_ascii=False)
    print()


def heading(console: Console, text: str) -> None:
    """Print a line that opens a part of the output."""
    console.print(Text(text, style="bold"))


def facts(console: Console, lines: Iterable[tuple[str, str | Text]]) -> None:
    """Print lines of `name  value`."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in lines:
        grid.add_row(name, value)
    show(console, grid)


def listing(*columns: str, right: Sequence[str] = (), narrow: Sequence[str] = ()) -> Table:
    """Return an empty table without lines.

    Args:
        columns: Their names; the last one takes what is left of the width.
        right: Those whose values stand at the right, as numbers do.
        narrow: Those that are never broken.
    """
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0), pad_edge=False)
    for name in columns:
        table.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=name in (*right, *narrow),
            overflow="fold",
        )
    return table


def show(console: Console, table: Table) -> None:
    """Print a table; outside of a terminal no line ends in blanks."""
    padded = Padding(table, _INDENT, expand=False)
    if console.is_terminal:
        console.print(padded)
        return
    with console.capture() as captured:
        console.print(padded)
    for line in captured.get().splitlines():
        console.file.write(f"{line.rstrip()}\n")


def state_text(state: str) -> Text:
    """Return a run's state in its colour."""
    return Text(state, style=STATE_STYLES.get(state, ""))
