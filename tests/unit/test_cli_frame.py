"""The frame of the command line: help at once, clear errors, exit codes, plain text in a pipe."""

from __future__ import annotations

import builtins
import json
import resource
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast.cli import main as frame
from holdfast.cli.main import COMMANDS, main, make_parser
from tests.fakes.cli_lake import CliLake, lake
from tests.fakes.memory_submitter import MemorySubmitter

__all__ = ["lake"]

ROOT = Path(__file__).parents[2]
# What help must not wait for.
HEAVY = ("numpy", "pandas", "pyarrow", "obstore", "pyspark", "pyiceberg", "lance", "rich", "shtab")
HELP = f"""
import sys
from holdfast.cli.main import main
try:
    main(["--help"])
except SystemExit:
    pass
sys.exit(", ".join(one for one in {HEAVY} if one in sys.modules) or 0)
"""
READING = ("runs", "status", "inspect")


def test_help_loads_nothing_heavy() -> None:
    """It lists the commands without importing any of them."""
    done = subprocess.run([sys.executable, "-c", HELP], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"    {name}" in done.stdout for name in COMMANDS)


def test_help_comes_at_once() -> None:
    """Within 300 ms of a processor's time, Python's own start included.

    Method: the best of five, and no clock on the wall: the machine may have much else to do.
    """

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", HELP], check=False, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(5)) < 0.3


@pytest.mark.parametrize("words", [[], ["nonsense"], ["status"], ["runs", "--nonsense"]])
def test_wrong_usage_ends_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """As with other programs; the usage is printed."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "usage: holdfast" in capsys.readouterr().err


def test_an_error_says_what_happened_and_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the three parts of every error, on standard error."""
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    assert main(["runs"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "holdfast: no store is named" in printed.err
    assert "Safe to run again: " in printed.err
    assert "What to do: " in printed.err


def test_a_missing_package_names_the_extra(
    lake: CliLake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without rich the command line cannot print tables."""
    real = builtins.__import__

    def without_rich(name: str, *arguments: Any) -> ModuleType:  # noqa: ANN401
        if name.partition(".")[0] == "rich":
            raise ModuleNotFoundError("No module named 'rich'", name="rich")
        return real(name, *arguments)

    for name in [
        one for one in sys.modules if one.startswith("holdfast.cli.") and "main" not in one
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without_rich)
    assert lake.call("runs") == 1
    assert 'pip install "holdfast[cli]"' in capsys.readouterr().err


def test_a_broken_module_of_our_own_is_no_missing_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever is told to install something must be helped by it."""
    monkeypatch.setitem(COMMANDS, "nonsense", "not there")
    with pytest.raises(ModuleNotFoundError):
        frame.command_of("nonsense")


def test_an_unknown_run_is_told_with_its_nearest_names(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slip of the finger is the usual reason."""
    lake.start("embed-2026-11", MemorySubmitter(range(3)))
    for command in ("status", "inspect", "abort", "sweep"):
        assert lake.call(command, "embde-2026-11") == 1
        printed = capsys.readouterr().err
        assert "there is no run 'embde-2026-11'" in printed
        assert "did you mean 'embed-2026-11'?" in printed


def test_an_unknown_run_in_an_empty_store_doubts_the_store(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then it is rather the store that is wrong."""
    assert lake.call("status", "r") == 1
    assert "it holds no run at all" in capsys.readouterr().err


def test_an_option_is_a_name_and_a_value(lake: CliLake, capsys: pytest.CaptureFixture[str]) -> None:
    """Anything else is refused with the flag that it was given to."""
    assert lake.call("runs", "--option", "nonsense") == 1
    assert "--option 'nonsense'" in capsys.readouterr().err


def test_a_pipe_gets_plain_text_that_fits(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """No colours, no lines beyond the width, no blanks at their ends."""
    lake.start("a-run-with-quite-a-long-name-2026-11-15", MemorySubmitter(range(3)))
    for command in READING:
        words = (
            [command] if command == "runs" else [command, "a-run-with-quite-a-long-name-2026-11-15"]
        )
        assert lake.call(*words) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert max(len(line) for line in printed.splitlines()) <= 80
    assert [line for line in printed.splitlines() if line != line.rstrip()] == []


def test_colours_come_on_a_terminal_and_end_with_no_color(
    lake: CliLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state is seen at a glance, and who wants no colours gets none."""
    lake.start("r", MemorySubmitter(range(3)))
    monkeypatch.setenv("FORCE_COLOR", "1")  # As on a terminal.
    monkeypatch.setenv("TERM", "xterm")
    assert lake.call("runs") == 0
    assert "\x1b[32mcommitted" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    assert lake.call("runs") == 0
    assert "\x1b[32m" not in capsys.readouterr().out


@pytest.mark.parametrize("command", READING)
def test_json_is_one_document(
    lake: CliLake, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program reads it whole."""
    lake.start("r", MemorySubmitter(range(3)))
    assert lake.call(*[command, "r"][: 1 if command == "runs" else 2], "--json") == 0
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_can_complete_the_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command and its flags are in what the shell is given."""
    assert main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in COMMANDS)
    assert "--tasks" in printed


def test_completion_asks_for_no_store() -> None:
    """It has nothing to read there."""
    given = make_parser(["completion"]).parse_args(["completion", "bash"])
    assert not hasattr(given, "store")


def test_each_command_is_described() -> None:
    """The reference has a part for each, with what it really prints."""
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    assert [name for name in COMMANDS if f"\n## {name}\n" not in page] == []
    assert "-->\n```text\n```" not in page


def test_a_reader_that_ends_early_is_no_error() -> None:
    """As with `holdfast ... | head`: no traceback."""
    command = "import sys; from holdfast.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", command, "completion", "bash"]
    shell = ["/bin/sh", "-c", f"{shlex.join(words)} | :"]
    done = subprocess.run(shell, check=False, capture_output=True, text=True)
    assert done.stderr == ""
