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

    def __init__(self, write: Callable[[str], object], every_s: float) -> None:
        """Keep the function that writes a line, and the interval."""
        self._write = write
        self._last = ""
        self._progress: Progress | None = None
        self._is_over = False
        self.first_s = self.every_s = self.tick_s = every_s

    def show(self, frame: Frame) -> None:
        """Write a line, if there is something new."""
        if frame.progress is not None and frame.progress is not self._progress:
            self._progress, self._last = frame.progress, one_line(frame)
            self._say(self._last)

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

_LOG_EVERY_S = 60.0
_PRINT_EVERY_S = 10.0
_DUMB = {"dumb", "unknown"}

_log = logging.getLogger("holdfast")


def display_for(run_id: str, *, wanted: bool | None) -> Display | None:
    """Return the display of a run, or None if its output would not be seen.

    Args:
        run_id: The run's id.
        wanted: None: on a terminal or in a notebook, otherwise lines in the log. True: always, as
            plain lines if there is no terminal. False: never.
    """
    if wanted is False:
        return None
    # An optional package draws the live display: without it there are lines.
    picture = _picture() if importlib.util.find_spec("rich") is not None else None
    if picture is not None:
        return picture
    if wanted:
        return LineDisplay(partial(_print, run_id), _PRINT_EVERY_S)
    # If the log is switched off, do not read the store for it.
    return (
        LineDisplay(partial(log_step, run_id), _LOG_EVERY_S)
        if _log.isEnabledFor(logging.INFO)
        else None
    )


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
