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


# ---- Displays: who shows frames, and how often
class Display(Protocol):
    """Shows a run to somebody. One thread calls `show` and `end`."""

    # How long the first look waits, how long two looks are apart at least, and how often the clock
    # is shown between them.
    first_s: float
    every_s: float
    tick_s: float

    def show(self, frame: Frame) -> None:
        """Show a frame in place of the last one."""

    def end(self, frame: Frame | None) -> None:
        """Leave the last frame where it is; None: there was nothing to see."""

    def let_go(self) -> None:
        """Give back what was taken, and show nothing more.

        At once and without a lock: any thread may call it, more than once.
        """


class LineDisplay:
    """One line a time: for a log, or where the output goes to a file."""

    def __init__(self, write: Callable[[str], object], every_s: float) -> None:
        """Take what writes a line, and how often."""
        self._write = write
        self._last = ""
        self._progress: Progress | None = None
        self._is_over = False
        self.first_s = self.every_s = self.tick_s = every_s

    def show(self, frame: Frame) -> None:
        """Write a line, if there is something new to say."""
        if frame.progress is not None and frame.progress is not self._progress:
            self._progress, self._last = frame.progress, one_line(frame)
            self._say(self._last)

    def end(self, frame: Frame | None) -> None:
        """Say how it ended, unless it was over before there was a line at all."""
        if frame is not None and self._last and one_line(frame) != self._last:
            self._say(one_line(frame))

    def let_go(self) -> None:
        """Be silent from now on."""
        self._is_over = True

    def _say(self, line: str) -> None:
        if not self._is_over:
            self._write(printable(line))


# ---- Choice: which display fits where this process runs

_LOG_EVERY_S = 60.0
_PRINT_EVERY_S = 10.0
_DUMB = {"dumb", "unknown"}

_log = logging.getLogger("holdfast")


def display_for(run_id: str, *, wanted: bool | None) -> Display | None:
    """Return the display of a run, or None if nobody looks.

    Args:
        run_id: Whose.
        wanted: None: on a terminal or in a notebook, else lines in the log. True: in any case,
            as plain lines where there is no terminal. False: none.
    """
    if wanted is False:
        return None
    # The pictures are drawn by an optional package: without it there are lines.
    picture = _picture() if importlib.util.find_spec("rich") is not None else None
    if picture is not None:
        return picture
    if wanted:
        return LineDisplay(partial(_print, run_id), _PRINT_EVERY_S)
    # A log that nobody reads is not worth a look at the store.
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
    """Return whether what is written there stands on a terminal that can draw."""
    return (
        stream is not None and stream.isatty() and os.environ.get("TERM", "").lower() not in _DUMB
    )


def _print(run_id: str, text: str) -> None:
    print(f"holdfast: run {printable(run_id)}: {text}", file=sys.stderr, flush=True)  # noqa: T201
