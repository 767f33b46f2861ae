"""A shell on a pseudo terminal, and what its screen shows at each moment.

It understands only what our own output needs: lines, carriage returns, colours, an erased line, and
the cursor going up.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path

_PIECE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|[\r\n\x08]|[^\x1b\r\n\x08]+")
_UP = re.compile(r"\x1b\[(\d*)A")


class Screen:
    """The lines of a terminal, with the codes of their colours."""

    def __init__(self) -> None:
        """Start with one empty line."""
        self.lines = [""]
        self._row = 0
        self._is_at_start = True

    def write(self, text: str) -> None:
        """Process the text as a terminal does."""
        for piece in _PIECE.findall(text):
            self._take(piece)

    def _take(self, piece: str) -> None:
        if piece == "\r":
            self._is_at_start = True
        elif piece == "\n":
            self._row += 1
            self.lines += [""] * (self._row + 1 - len(self.lines))
            self._is_at_start = True
        elif piece == "\x1b[2K":
            self.lines[self._row] = ""
        elif (up := _UP.fullmatch(piece)) is not None:
            self._row = max(0, self._row - int(up[1] or 1))
        elif not piece.startswith("\x1b") or piece.endswith("m"):
            if self._is_at_start and piece != "\x08":
                self.lines[self._row] = ""  # Output from the start of a line replaces the line.
            self._is_at_start = False
            self.lines[self._row] += piece


class Session:
    """A shell as a user sees it; every change of the screen is kept."""

    def __init__(self, folder: Path, variables: Mapping[str, str], columns: int, rows: int) -> None:
        """Start the shell.

        Args:
            folder: Where it is.
            variables: Its environment.
            columns: How wide the terminal is.
            rows: How high it is.
        """
        self.screen = Screen()
        # When the screen changed, and what it showed then.
        self.frames: list[tuple[float, tuple[str, ...]]] = []
        self._rows = rows
        self.process_id, self._terminal = pty.fork()
        if self.process_id == 0:
            os.chdir(folder)
            os.execvpe("bash", ["bash", "--norc", "--noediting", "-i"], dict(variables))  # noqa: S606, S607 - the user's own shell.
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    def close(self) -> None:
        """End the shell and what it has started."""
        os.close(self._terminal)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process_id, signal.SIGHUP)
        os.waitpid(self.process_id, 0)

    def type(self, command: str) -> None:
        """Type a command, letter by letter, and enter it."""
        for letter in f"{command}\n":
            os.write(self._terminal, letter.encode())
            self.read(0.04)

    def read(self, seconds: float) -> None:
        """Read what is written in so many seconds."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([self._terminal], [], [], left)[0]:
                self.screen.write(os.read(self._terminal, 65536).decode(errors="replace"))
                self.frames.append((time.monotonic(), tuple(self.screen.lines[-self._rows :])))

    def read_until(self, seen: Callable[[str], bool], timeout_s: float) -> None:
        """Read until the screen shows the expected text.

        Raises:
            TimeoutError: The text does not appear in time.
        """
        until = time.monotonic() + timeout_s
        while not seen("\n".join(self.screen.lines)):
            if time.monotonic() > until:
                raise TimeoutError("\n".join(self.screen.lines))
            self.read(0.1)
