"""`holdfast watch RUN`: a run's progress, live, from any machine that reaches the store."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time

from holdfast.cli import plain
from holdfast.cli.arguments import open_known_ledger, open_ledger
from holdfast.engine.watch import Watcher
from holdfast.errors import SettingsError
from holdfast.progress.display import Display, LineDisplay, is_terminal
from holdfast.progress.frame import Frame, frame_of, lines_of, percent
from holdfast.text import seconds_of

_COMMITTED, _ENDED_OTHERWISE = 0, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", help="the run's id", metavar="RUN")
    parser.add_argument(
        "--every", default="2s", help="how often to look (default: 2s)", metavar="DURATION"
    )
    parser.add_argument("--once", action="store_true", help="look once, then exit")


def run(given: argparse.Namespace) -> int:
    """Watch until the run has ended; return 0 if it is committed or ready, 3 if it has stopped.

    Raises:
        SettingsError: No store is named, the duration is invalid, or with --once there is no such
            run.
        StoreError: The ledger is damaged or does not answer.
    """
    every_s = _every_s(given.every)
    # Without --once the run need not exist yet: it may be about to start.
    watcher = Watcher(ledger=open_known_ledger(given) if given.once else open_ledger(given))
    if given.once and not given.json:
        frame = frame_of(watcher.look(), time.time())
        for name, value in _lines(frame):
            plain.print_line(f"  {name:<9} {value}")
        return _code(frame)
    display = _JsonDisplay() if given.json else _display(every_s)
    last: Frame | None = None
    try:
        while True:
            last = frame_of(watcher.look(), time.time())
            display.show(last)
            if last.is_over or given.once:
                return _code(last)
            time.sleep(every_s)
    finally:
        display.end(last)


def _every_s(text: str) -> float:
    try:
        return seconds_of(text)
    except ValueError as error:
        raise SettingsError(what=f"--every: {error}", cure='give a duration ("5s")') from error


def _code(frame: Frame) -> int:
    progress = frame.progress
    has_failed = progress is not None and progress.state in {"stopped", "aborted"}
    return _ENDED_OTHERWISE if has_failed else _COMMITTED


def _display(every_s: float) -> Display:
    if is_terminal(sys.stdout) and importlib.util.find_spec("rich") is not None:
        from holdfast.progress.rich_display import TerminalDisplay, take_terminal  # noqa: PLC0415

        if take_terminal():
            return TerminalDisplay(sys.stdout)
    return LineDisplay(plain.print_line, every_s)


def _lines(frame: Frame) -> list[tuple[str, str]]:
    lines = [("run", frame.run_id), *([("table", frame.table)] if frame.table else [])]
    if frame.progress is not None and (share := percent(frame.progress)):
        lines.append(("done", share))
    return [*lines, *lines_of(frame)]


class _JsonDisplay:
    """One JSON object per line, for programs."""

    first_s = every_s = tick_s = 0.0

    def show(self, frame: Frame) -> None:
        plain.print_json(frame.to_json(), indent=None)

    def end(self, frame: Frame | None) -> None:
        pass

    def let_go(self) -> None:
        pass
