"""Displays: what shows a run's progress, and which one a program gets."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Protocol, TextIO

from holdfast.ledger.ledger import log_step
from holdfast.model.history import Progress
from holdfast.progress.frame import Frame, one_line
from holdfast.text import printable


# ---- Displays: what shows frames, and how often
class Display(Protocol):
    """Shows a run's progress. One thread calls `show` and `end`."""

    # The delay before the first look, the minimum time between two looks, and how often the clock
    # is updated between them.
    first_s: float
    every_s: float
    tick_s: float

    def show(self, frame: Frame) -> None:
        """Show a frame in place of the last one."""

    def end(self, frame: Frame | None) -> None:
        """Leave the last frame in place; None if there was nothing to show."""

    def let_go(self) -> None:
        """Release what was acquired, and show nothing more.

        Returns at once and takes no lock: any thread may call it, more than once.
        """


class LineDisplay:
    """One line at a time, for a log or for output to a file."""

    def __init__(
        self, write: Callable[[str], object], every_s: float, *, up_to_s: float = 0.0
    ) -> None:
        """Keep the function that writes a line, and the interval.

        Args:
            write: Writes a line.
            every_s: The interval.
            up_to_s: The interval doubles after each line, up to this.
        """
        self._write = write
        self._longest_s = max(every_s, up_to_s)
        self._last = ""
        self._progress: Progress | None = None
        self._is_over = False
        self.first_s = self.every_s = self.tick_s = every_s

    def show(self, frame: Frame) -> None:
        """Write a line, if there is something new."""
        if frame.progress is not None and frame.progress is not self._progress:
            self._progress, self._last = frame.progress, one_line(frame)
            self._say(self._last)
            self.every_s = self.tick_s = min(2 * self.every_s, self._longest_s)

    def end(self, frame: Frame | None) -> None:
        """Write how it ended, unless it was over before the first line."""
        if frame is not None and self._last and one_line(frame) != self._last:
            self._say(one_line(frame))

    def let_go(self) -> None:
        """Write nothing from now on."""
        self._is_over = True

    def _say(self, line: str) -> None:
        if not self._is_over:
            self._write(printable(line))


# ---- Choice: which display fits the environment of this process

_PRINT_EVERY_S, _SELDOM_S = 10.0, 60.0
_DUMB = {"dumb", "unknown"}

_log = logging.getLogger("holdfast")


def display_for(run_id: str, *, wanted: bool | None) -> Display | None:
    """Return the display of a run, or None if there is nowhere to show it.

    Args:
        run_id: The run's id.
        wanted: None: on a terminal or in a notebook; otherwise lines, less and less often: in the
            log if it is on, else on standard error. True: the same, with a line every ten seconds.
            False: never.
    """
    if wanted is False:
        return None
    # An optional package draws the live display: without it there are lines.
    picture = _picture() if importlib.util.find_spec("rich") is not None else None
    if picture is not None:
        return picture
    if wanted:
        return LineDisplay(partial(_print, run_id), _PRINT_EVERY_S)
    is_logged = _log.isEnabledFor(logging.INFO)
    if not is_logged and sys.stderr is None:  # A service may run without it.
        return None
    write = partial(log_step if is_logged else _print, run_id)
    return LineDisplay(write, _PRINT_EVERY_S, up_to_s=_SELDOM_S)


def _picture() -> Display | None:
    if "IPython" in sys.modules:
        from holdfast.progress.rich_display import NotebookDisplay, in_kernel  # noqa: PLC0415

        if in_kernel():
            return NotebookDisplay()
    if not is_terminal(sys.stderr):
        return None
    from holdfast.progress.rich_display import TerminalDisplay, take_terminal  # noqa: PLC0415

    return TerminalDisplay(sys.stderr) if take_terminal() else None


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether the stream is a terminal that can redraw."""
    return (
        stream is not None and stream.isatty() and os.environ.get("TERM", "").lower() not in _DUMB
    )


def _print(run_id: str, text: str) -> None:
    print(f"holdfast: run {printable(run_id)}: {text}", file=sys.stderr, flush=True)  # noqa: T201
