"""Displays that redraw in place: a terminal, and the output of a Jupyter cell. Needs rich."""

from __future__ import annotations

import io
import sys
import threading
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, OverflowMethod, RenderResult
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.palette import FAILED, KEPT, NEW, WAITING, state_style
from holdfast.progress.frame import Frame, calm_time, lines_of, percent
from holdfast.text import printable

# ---- Terminal: a run as a bar and a few lines, redrawn in place. Needs rich

_NAME_COLUMNS = 8
_COLUMNS_MAX = 100
# Lines about rows of one kind, in the colour that these have in the bar.
_STYLES = {"kept": KEPT, "failed": FAILED, "silent": WAITING}

# Two displays on one terminal would draw over each other.
_taken = threading.Lock()


class FramePicture:
    """A frame for rich to draw, as wide as possible."""

    def __init__(self, frame: Frame) -> None:
        """Keep the frame."""
        self._frame = frame

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the title, the bar and the lines."""
        # The last column stays free: some terminals wrap once it is written.
        width, is_plain = min(_COLUMNS_MAX, options.max_width - 1), options.ascii_only
        # Wrapped lines would make the picture jump: they are cut instead.
        cut: OverflowMethod = "crop" if is_plain else "ellipsis"
        yield self._title(width, cut)
        if (bar := self._bar(width, is_plain=is_plain)) is not None:
            yield bar
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(style="dim", width=_NAME_COLUMNS + 2, no_wrap=True)
        grid.add_column(no_wrap=True, overflow=cut, width=width - _NAME_COLUMNS - 4)
        progress = self._frame.progress
        for name, value in lines_of(self._frame):
            style = _STYLES[name].terminal if name in _STYLES else ""
            if name == "start" and progress is not None and self._frame.is_over:
                style = state_style(progress.state)
            grid.add_row(f"  {name}", Text(printable(value), style=style))
        yield grid
        # The cursor rests here, and so does Spark's own progress line.
        yield Text("")

    def _title(self, width: int, cut: OverflowMethod) -> Text:
        clock = calm_time(self._frame.elapsed_s)
        name = Text(printable(self._frame.run_id), style="bold")
        if self._frame.table:
            target = f"{self._frame.verb} {self._frame.table}".lstrip()
            name.append(f"  {printable(target)}", style="not bold dim")
        name.truncate(max(1, width - len(clock) - 2), overflow=cut, pad=True)
        return name.append(f"  {clock}", style="not bold dim")

    def _bar(self, width: int, *, is_plain: bool) -> Text | None:
        progress = self._frame.progress
        if progress is None or progress.input_rows is None:
            return None
        full, empty = ("#", "-") if is_plain else ("━", "─")  # Also seen without colours.
        length = max(1, width - 6)
        done = length
        if progress.input_rows:
            done = min(length, length * progress.done_rows // progress.input_rows)
        # What the resume has saved comes first, what has failed last.
        rows = max(1, progress.done_rows)
        kept = min(done, done * progress.kept_rows // rows)
        failed = min(done - kept, done * progress.quarantined_rows // rows)
        bar = Text(no_wrap=True)
        bar.append(full * kept, style=KEPT.terminal)
        bar.append(full * (done - kept - failed), style=NEW.terminal)
        bar.append(full * failed, style=FAILED.terminal)
        bar.append(empty * (length - done), style=f"dim {WAITING.terminal}")
        return bar.append(f"{percent(progress):>6}", style="bold")


class _CalmConsole(Console):
    """Leaves the cursor visible: a killed process could not show it again."""

    def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002, FBT001, FBT002 - rich's own.
        """Do nothing."""
        return False


def take_terminal() -> bool:
    """Take the terminal; return False if another display has it."""
    return not isinstance(sys.stderr, FileProxy) and _taken.acquire(blocking=False)


class TerminalDisplay:
    """Draws frames in place."""

    first_s = every_s = 2.0
    tick_s = 1.0

    def __init__(self, stream: TextIO) -> None:
        """Keep the terminal's stream; the terminal is already taken."""
        console = _CalmConsole(file=stream, highlight=False, soft_wrap=False)
        # Warnings go above the picture. What the user prints is left alone.
        self._live = Live(
            console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=True
        )
        self._stream = stream
        self._is_free = False

    def show(self, frame: Frame) -> None:
        """Draw the frame over the last one."""
        if not self._is_free:
            self._live.start()
            self._live.update(FramePicture(frame), refresh=True)

    def end(self, frame: Frame | None) -> None:
        """Draw the last frame, or remove the picture."""
        if self._is_free:
            return
        self._live.transient = frame is None
        self._live.update(Text("") if frame is None else FramePicture(frame))
        self._live.stop()
        self.let_go()

    def let_go(self) -> None:
        """Release the terminal."""
        if self._is_free:
            return
        self._is_free = True
        if isinstance(sys.stderr, FileProxy) and sys.stderr.rich_proxied_file is self._stream:
            sys.stderr = self._stream
        _taken.release()


# ---- Notebook: the same picture as on a terminal, in the output of a Jupyter cell

_COLUMNS = 96
_PAGE = '<pre style="white-space:pre;line-height:1.3;font-family:monospace">{code}</pre>'


def in_kernel() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell" or hasattr(shell, "kernel")


class NotebookDisplay:
    """Shows frames in one output of the cell, which is rewritten each time.

    It needs no widgets: a display with its own id can be updated from any thread.
    """

    first_s = every_s = tick_s = 2.0

    def __init__(self) -> None:
        """Start without an output."""
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
        """Leave the output unchanged from now on."""
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
