"""Choice: which display fits where this process runs."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from functools import partial
from typing import TextIO

from holdfast.engine.steps_log import say
from holdfast.plain_text import printable
from holdfast.progress.display import Display, LineDisplay

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
        LineDisplay(partial(say, run_id), _LOG_EVERY_S) if _log.isEnabledFor(logging.INFO) else None
    )


def _picture() -> Display | None:
    if "IPython" in sys.modules:
        from holdfast.progress.notebook import NotebookDisplay, in_kernel  # noqa: PLC0415

        if in_kernel():
            return NotebookDisplay()
    if not is_terminal(sys.stderr):
        return None
    from holdfast.progress.terminal import TerminalDisplay, take_terminal  # noqa: PLC0415

    return TerminalDisplay(sys.stderr) if take_terminal() else None


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether what is written there stands on a terminal that can draw."""
    return (
        stream is not None and stream.isatty() and os.environ.get("TERM", "").lower() not in _DUMB
    )


def _print(run_id: str, text: str) -> None:
    print(f"holdfast: run {printable(run_id)}: {text}", file=sys.stderr, flush=True)  # noqa: T201
