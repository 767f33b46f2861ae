"""The frame of the command line: help at once, clear errors, exit codes, plain text in a pipe."""

from __future__ import annotations

import builtins
import json
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast import cli
from holdfast.cli import main as frame
from holdfast.cli.arguments import named_values
from holdfast.cli.main import COMMANDS, main, make_parser
from tests.fakes.cli_lake import CliLake, die_before_post, lake
from tests.fakes.memory_submitter import MemorySubmitter

__all__ = ["lake"]

ROOT = Path(__file__).parents[3]
# What help must not wait for.
HEAVY = (
    "msgspec",
    "numpy",
    "pandas",
    "pyarrow",
    "obstore",
    "pyspark",
    "pyiceberg",
    "lance",
    "rich",
    "shtab",
)
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

    Method: one of five will do, and no clock on the wall: the machine may have much else to do.
    """

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", HELP], check=False, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert any(seconds() < 0.3 for _ in range(5))


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
    assert "Worth a retry: " in printed.err
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
        monkeypatch.delattr(cli, name.removeprefix("holdfast.cli."), raising=False)
    monkeypatch.setattr(builtins, "__import__", without_rich)
    assert lake.call("runs") == 1
    assert 'pip install ".[cli]"' in capsys.readouterr().err


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
    assert "there is no folder file://" in capsys.readouterr().err
    (lake.folder / "store").mkdir()
    assert lake.call("status", "r") == 1
    assert "it holds no run at all" in capsys.readouterr().err


def test_a_command_without_a_store_says_how_to_name_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a command line names it, not as Python does."""
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    assert main(["runs"]) == 1
    said = capsys.readouterr().err
    assert "give --store URI, or set HOLDFAST_STORE" in said
    assert "Run(" not in said


@pytest.mark.parametrize("pair", ["canary-7f3a", "=canary-7f3a"])
def test_an_option_is_a_name_and_a_value(
    lake: CliLake, pair: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anything else is refused with its flag, and not repeated: it may be a secret."""
    assert lake.call("runs", "--option", "s3.region=x", "--option", pair) == 1
    printed = capsys.readouterr().err
    assert "--option number 2 is no NAME=VALUE" in printed
    assert "canary" not in printed


def test_a_value_comes_from_the_environment_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it is not in the list of processes; a line break at a file's end is no part of it."""
    monkeypatch.setenv("LAKE_KEY", "from the environment=1")
    (tmp_path / "key").write_text("from a file\n")
    given = ["a=plain", "b=@env:LAKE_KEY", f"c=@file:{tmp_path}/key", "d=x@env:LAKE_KEY"]
    assert named_values(given) == {
        "a": "plain",
        "b": "from the environment=1",
        "c": "from a file",
        "d": "x@env:LAKE_KEY",
    }


def test_a_catalog_is_reached_by_a_property_in_a_file(
    lake: CliLake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a secret is mounted into a container: the file holds the value and a line break."""
    die_before_post(lake)
    (tmp_path / "uri").write_text(f"{lake.properties['uri']}\n")
    pairs = {**lake.properties, "uri": f"@file:{tmp_path}/uri"}
    words = [word for name, value in pairs.items() for word in ("--catalog", f"{name}={value}")]
    assert lake.call("abort", "r", "--yes", *words) == 0
    assert "Run r is given up" in capsys.readouterr().out


def test_a_value_that_is_not_where_it_should_be_is_refused(
    lake: CliLake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the flag, the option and the place, and nothing of what is there."""
    (tmp_path / "bytes").write_bytes(b"canary-7f3a\xff")
    places = ("@env:NO_SUCH_VARIABLE", f"@file:{tmp_path}/none", f"@file:{tmp_path}/bytes")
    for place in places:
        assert lake.call("runs", "--option", f"s3.region={place}") == 1
        printed = capsys.readouterr().err
        assert "--option s3.region: " in printed
        assert place.partition(":")[2] in printed
        assert "canary" not in printed


@pytest.mark.parametrize("flag", ["--option", "--catalog", "--table-option", "--spark"])
def test_each_flag_that_may_hold_a_secret_takes_it_from_elsewhere(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And its help says how."""
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    page = " ".join(capsys.readouterr().out.split()).partition("options:")[2]
    (part,) = re.findall(rf"{flag} (.*?)(?= --|$)", page)
    assert "@env:NAME or @file:PATH" in part


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
