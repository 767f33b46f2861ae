"""Displays: who shows frames, and how often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from holdfast.model.progress import Progress
from holdfast.plain_text import printable
from holdfast.progress.frame import Frame
from holdfast.progress.words import one_line


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
