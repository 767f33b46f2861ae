"""Notebook: the same picture as on a terminal, in the output of a Jupyter cell."""

from __future__ import annotations

import io
import sys
from typing import Any

from rich.console import Console

from holdfast.progress.frame import Frame
from holdfast.progress.terminal import FramePicture

_COLUMNS = 96
_PAGE = '<pre style="white-space:pre;line-height:1.3;font-family:monospace">{code}</pre>'


def in_kernel() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell" or hasattr(shell, "kernel")


class NotebookDisplay:
    """Shows frames in one output of the cell, which is written anew each time.

    It needs no widgets: a display with a name of its own can be updated from any thread.
    """

    first_s = every_s = tick_s = 2.0

    def __init__(self) -> None:
        """Begin without an output."""
        self._handle: Any = None
        self._is_over = False

    def show(self, frame: Frame) -> None:
        """Show a frame in place of the last one."""
        self._write(html_of(frame))

    def end(self, frame: Frame | None) -> None:
        """Show the last frame, or leave an empty output."""
        if frame is not None or self._handle is not None:
            self._write(html_of(frame) if frame is not None else "")

    def let_go(self) -> None:
        """Leave the output as it is from now on."""
        self._is_over = True

    def _write(self, html: str) -> None:
        if self._is_over:
            return
        from IPython.display import HTML, display  # noqa: PLC0415 - only a notebook has it.

        if self._handle is None:
            self._handle = display(HTML(html), display_id=True)
        else:
            self._handle.update(HTML(html))


def html_of(frame: Frame) -> str:
    """Return a frame as HTML."""
    console = Console(file=io.StringIO(), record=True, width=_COLUMNS, force_jupyter=False)
    console.print(FramePicture(frame))
    return console.export_html(inline_styles=True, code_format=_PAGE)
