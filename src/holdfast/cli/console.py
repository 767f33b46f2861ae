"""How commands talk to people: tables and colours on a terminal, plain text elsewhere.

Run ids, reasons and names are what other people and programs have written: nothing in them is
markup, and nothing in them reaches a terminal as a control character.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from holdfast.text import printable

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
    "unreadable": "yellow",
}


class PlainConsole(Console):
    """Shows every text as it is: markup is text, and a control character is spelled."""

    def __init__(self, width: int | None = None) -> None:
        """Take the width; None for that of the terminal."""
        super().__init__(width=width, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401 - rich's own.
        """Return a text of one line; also asked for when columns are measured."""
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render what is shown; a text in colours does not pass through `render_str`."""
        if isinstance(renderable, Text) and not renderable.plain.isprintable():
            renderable = renderable.blank_copy(printable(renderable.plain))
        return super().render(renderable, options)


def make_console() -> Console:
    """Return the console of standard output. Colours need a terminal, and NO_COLOR ends them."""
    console = PlainConsole()
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return PlainConsole(width=_PIPE_COLUMNS)


def heading(console: Console, text: str) -> None:
    """Print a line that opens a part of the output."""
    console.print(styled(text, "bold"))


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


def styled(text: str, style: str) -> Text:
    """Return a text in a style. Text of rich's own drops some control characters unseen."""
    return Text(printable(text), style=style)


def state_text(state: str) -> Text:
    """Return a run's state in its colour."""
    return styled(state, STATE_STYLES.get(state, ""))
