"""Which display shows a run: the one that fits the environment, or the one the user chose."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import pty
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.progress.display import Display, LineDisplay, display_for
from holdfast.progress.rich_display import NotebookDisplay, TerminalDisplay
from tests.fakes.progress_display import frame_of_a_resume

CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A pseudo terminal in place of stderr."""

    def __init__(self) -> None:
        """Open it."""
        self.ours, theirs = pty.openpty()
        self.stream = os.fdopen(theirs, "w", encoding="utf-8")

    def read(self) -> str:
        """Return all that was written, and close it."""
        self.stream.close()
        found = b""
        with contextlib.suppress(OSError):  # How Linux reports that all writers are gone.
            while data := os.read(self.ours, 65536):
                found += data
        return found.decode()


@contextlib.contextmanager
def a_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """Let stderr be a terminal, and check that it is restored."""
    opened = Terminal()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", opened.stream)
        patched.setenv("TERM", "xterm-256color")
        patched.setenv("COLUMNS", "80")
        yield opened
        assert sys.stderr is opened.stream
        assert opened.stream.closed or isinstance(chosen(wanted=True), TerminalDisplay)
    opened.stream.close()
    os.close(opened.ours)


class Kernel:
    """A notebook kernel in place of this process."""

    def __init__(self) -> None:
        """Begin without an output."""
        self.outputs: list[str] = []

    def display(self, html: str, *, display_id: bool) -> Kernel:
        """Show an output that can be updated."""
        assert display_id
        self.outputs.append(html)
        return self

    def update(self, html: str) -> None:
        """Update the last output."""
        self.outputs[-1] = html


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """Let this process be the kernel of a notebook."""
    made = Kernel()
    shell = type("ZMQInteractiveShell", (), {})()
    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.HTML, ipython.display.display = str, made.display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    return made


def chosen(*, wanted: bool | None = None) -> Display | None:
    """Return the display that is chosen, already let go."""
    display = display_for("r", wanted=wanted)
    if display is not None:
        display.let_go()
    return display


def test_a_terminal_gets_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is the default, unless the terminal cannot draw or the user wants no display."""
    with a_terminal(monkeypatch):
        assert isinstance(chosen(), TerminalDisplay)
        assert chosen(wanted=False) is None
        with monkeypatch.context() as patched:
            patched.setenv("TERM", "dumb")
            assert isinstance(chosen(), LineDisplay)


def test_only_one_picture_is_drawn_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs in two threads would draw over each other, so the second one prints lines."""
    with a_terminal(monkeypatch):
        first = display_for("r", wanted=True)
        assert isinstance(first, TerminalDisplay)
        assert isinstance(chosen(wanted=True), LineDisplay)
        first.let_go()
        first.let_go()


@pytest.mark.usefixtures("kernel")
def test_a_notebook_gets_an_output() -> None:
    """It does not matter where the kernel was started."""
    assert isinstance(chosen(), NotebookDisplay)


@pytest.mark.parametrize("is_logged", [False, True])
def test_without_a_terminal_there_are_lines_less_and_less_often(
    is_logged: bool,  # noqa: FBT001 - a parameter of a test.
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the log if INFO is on, else on standard error: a job of hours is never silent."""
    caplog.set_level(logging.INFO if is_logged else logging.WARNING, "holdfast")
    display, waits = display_for("r", wanted=None), []
    assert isinstance(display, LineDisplay)
    for _ in range(5):
        waits.append(display.every_s)
        display.show(frame_of_a_resume())
    assert waits == [10.0, 20.0, 40.0, 60.0, 60.0]
    printed = capsys.readouterr().err.splitlines()
    lines = caplog.messages if is_logged else [line.removeprefix("holdfast: ") for line in printed]
    assert len(lines) == 5
    assert lines[0].startswith("run r: 51%; rows 2,052 of 4,000")
    if is_logged:
        assert (vars(caplog.records[0])["holdfast_run"], printed) == ("r", [])


def test_lines_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Progress that was asked for goes to stderr; nothing is drawn, and stdout stays clean."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    display = display_for("r", wanted=True)
    assert isinstance(display, LineDisplay)
    first, second = frame_of_a_resume(), frame_of_a_resume(input_rows=None)
    display.show(first)
    display.show(first)  # There was no new look.
    display.end(second)
    display.let_go()
    display.show(second)
    out, err = capsys.readouterr()
    assert out == ""
    assert [line[:35] for line in err.splitlines()] == [
        "holdfast: run r: 51%; rows 2,052 of",
        "holdfast: run r: rows 2,052 so far;",
    ]


def test_without_rich_there_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The missing package is not mentioned."""
    with a_terminal(monkeypatch), monkeypatch.context() as patched:
        patched.setattr(importlib.util, "find_spec", lambda _name: None)
        assert isinstance(chosen(), LineDisplay)


def test_a_process_without_stderr_gets_no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service may run without a stderr."""
    monkeypatch.setattr(sys, "stderr", None)
    assert chosen() is None


def test_the_picture_stays_and_warnings_appear_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cursor is never hidden: a killed process could not show it again."""
    with a_terminal(monkeypatch) as screen:
        display = display_for("r", wanted=None)
        assert display is not None
        display.show(frame_of_a_resume())
        print("the code has changed", file=sys.stderr)
        display.end(frame_of_a_resume())
        written = screen.read()
    assert "\x1b[?25l" not in written
    plain = CONTROL.sub("", written)
    assert plain.rindex("the code has changed") < plain.rindex("embed-2026-11")
    assert plain.rstrip(" \r\n").endswith("no record for 1 min 15 s")
    assert plain.endswith("\r\n")


def test_a_picture_without_a_look_is_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that ends at once leaves nothing on the screen, and nothing is drawn later."""
    with a_terminal(monkeypatch) as screen:
        display = display_for("r", wanted=None)
        assert display is not None
        display.show(frame_of_a_resume())
        display.end(None)
        display.show(frame_of_a_resume())
        display.end(frame_of_a_resume())
        written = screen.read()
    assert written.count("embed-2026-11") == 1
    assert written.endswith("\x1b[1A\x1b[2K")


def test_a_picture_that_is_let_go_gives_stderr_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if its thread hangs, later output goes to the terminal itself."""
    with a_terminal(monkeypatch) as screen:
        display = display_for("r", wanted=None)
        assert display is not None
        display.show(frame_of_a_resume())
        assert sys.stderr is not screen.stream
        display.let_go()


def test_a_notebook_updates_one_output(kernel: Kernel, capsys: pytest.CaptureFixture[str]) -> None:
    """It shows the same picture as a terminal; nothing is printed."""
    display = NotebookDisplay()
    display.show(frame_of_a_resume())
    display.show(frame_of_a_resume(input_rows=None))
    (output,) = kernel.outputs
    assert "2,052 so far" in output
    display.end(frame_of_a_resume())
    display.let_go()
    display.show(frame_of_a_resume(input_rows=None))
    (output,) = kernel.outputs
    assert "2,052 of 4,000" in output
    assert output.startswith("<pre")
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow_unit
def test_a_job_without_a_terminal_does_not_load_rich() -> None:
    """A picture that is not shown costs nothing."""
    code = (
        "import sys; from holdfast.progress.display import display_for; import holdfast.run; "
        "assert display_for('r', wanted=None); assert 'rich' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
