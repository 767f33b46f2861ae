"""How commands talk to people: tables and colours on a terminal, plain text elsewhere.

Run ids, reasons and names come from other people and programs: nothing in them is treated as
markup, and no control character in them reaches a terminal.
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

from holdfast.palette import state_style
from holdfast.text import printable

# The width for a pipe, unless COLUMNS says otherwise: ids and paths are not broken there.
_PIPE_COLUMNS = 120
_INDENT = (0, 0, 0, 2)


class PlainConsole(Console):
    """Shows every text literally: markup is text, and control characters are escaped."""

    def __init__(self, width: int | None = None) -> None:
        """Set the width; None for the terminal's width."""
        super().__init__(width=width, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401 - rich's own.
        """Return a text of one line; also called when columns are measured."""
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render output; coloured text does not pass through `render_str`."""
        if isinstance(renderable, Text) and not renderable.plain.isprintable():
            renderable = renderable.blank_copy(printable(renderable.plain))
        return super().render(renderable, options)


def make_console() -> Console:
    """Return the console for standard output. Colours need a terminal; NO_COLOR turns them off."""
    console = PlainConsole()
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return PlainConsole(width=_PIPE_COLUMNS)


def heading(console: Console, text: str) -> None:
    """Print a section heading."""
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
        columns: Their names; the last one takes the remaining width.
        right: Columns that are right-aligned, such as numbers.
        narrow: Columns that are never wrapped.
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
    """Print a table; outside a terminal no line ends in spaces."""
    padded = Padding(table, _INDENT, expand=False)
    if console.is_terminal:
        console.print(padded)
        return
    with console.capture() as captured:
        console.print(padded)
    for line in captured.get().splitlines():
        console.file.write(f"{line.rstrip()}\n")


def styled(text: str, style: str) -> Text:
    """Return a text in a style. Rich's own Text silently drops some control characters."""
    return Text(printable(text), style=style)


def state_text(state: str) -> Text:
    """Return a run's state in its colour."""
    return styled(state, state_style(state))
