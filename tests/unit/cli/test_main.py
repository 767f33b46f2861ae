"""The command line's frame: fast help, clear errors, exit codes, plain text in a pipe."""

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
# Packages that help must not load.
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
sys.exit(", ".join(name for name in {HEAVY} if name in sys.modules) or 0)
"""
READING = ("runs", "status", "inspect")


def test_help_loads_nothing_heavy() -> None:
    """It lists the commands without importing any of them."""
    done = subprocess.run([sys.executable, "-c", HELP], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"    {name}" in done.stdout for name in COMMANDS)


def test_help_comes_at_once() -> None:
    """It takes at most 300 ms of CPU time, including Python's own start.

    Method: one of five attempts suffices, in CPU time and not wall time: the machine may be busy.
    """

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", HELP], check=False, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert any(seconds() < 0.3 for _ in range(5))


@pytest.mark.parametrize("words", [[], ["nonsense"], ["status"], ["runs", "--nonsense"]])
def test_wrong_usage_ends_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The usage is printed, as with other programs."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "usage: holdfast" in capsys.readouterr().err


def test_an_error_says_what_happened_and_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is printed to standard error, in the three parts that every error has."""
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
        module
        for module in sys.modules
        if module.startswith("holdfast.cli.") and "main" not in module
    ]:
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(cli, name.removeprefix("holdfast.cli."), raising=False)
    monkeypatch.setattr(builtins, "__import__", without_rich)
    assert lake.call("runs") == 1
    assert 'pip install ".[cli]"' in capsys.readouterr().err


def test_a_broken_module_of_ours_is_not_a_missing_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Advice to install a package must help."""
    monkeypatch.setitem(COMMANDS, "nonsense", "not there")
    with pytest.raises(ModuleNotFoundError):
        frame.command_of("nonsense")


def test_an_unknown_run_is_an_error_that_names_the_nearest_runs(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typo is the usual reason."""
    lake.start("embed-2026-11", MemorySubmitter(range(3)))
    for command in ("status", "inspect", "abort", "sweep"):
        assert lake.call(command, "embde-2026-11") == 1
        printed = capsys.readouterr().err
        assert "there is no run 'embde-2026-11'" in printed
        assert "did you mean 'embed-2026-11'?" in printed


def test_an_unknown_run_in_an_empty_store_questions_the_store(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """The store is then more likely wrong than the run id."""
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
    assert "--option number 2 is not NAME=VALUE" in printed
    assert "canary" not in printed


def test_a_value_comes_from_the_environment_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This keeps it out of the process list; a line break at the end of a file is dropped."""
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
    """Secrets are mounted into containers this way: the file holds the value and a line break."""
    die_before_post(lake)
    (tmp_path / "uri").write_text(f"{lake.properties['uri']}\n")
    pairs = {**lake.properties, "uri": f"@file:{tmp_path}/uri"}
    words = [word for name, value in pairs.items() for word in ("--catalog", f"{name}={value}")]
    assert lake.call("abort", "r", "--yes", *words) == 0
    assert "Run r is aborted" in capsys.readouterr().out


def test_a_value_that_cannot_be_read_is_refused(
    lake: CliLake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the flag, the option and the place, but nothing of the content."""
    (tmp_path / "bytes").write_bytes(b"canary-7f3a\xff")
    places = ("@env:NO_SUCH_VARIABLE", f"@file:{tmp_path}/none", f"@file:{tmp_path}/bytes")
    for place in places:
        assert lake.call("runs", "--option", f"s3.region={place}") == 1
        printed = capsys.readouterr().err
        assert "--option s3.region: " in printed
        assert place.partition(":")[2] in printed
        assert "canary" not in printed


@pytest.mark.parametrize("flag", ["--option", "--catalog", "--table-option", "--spark"])
def test_each_flag_that_may_hold_a_secret_reads_it_from_elsewhere(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The flag's help says how."""
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    page = " ".join(capsys.readouterr().out.split()).partition("options:")[2]
    (part,) = re.findall(rf"{flag} (.*?)(?= --|$)", page)
    assert "@env:NAME or @file:PATH" in part


def test_a_pipe_gets_plain_text_that_fits(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """There are no colours, no lines wider than the terminal, and no trailing blanks."""
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


def test_a_terminal_gets_colours_unless_no_color_is_set(
    lake: CliLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Colours show a state at a glance; NO_COLOR turns them off."""
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
    """A program can parse all of the output at once."""
    lake.start("r", MemorySubmitter(range(3)))
    assert lake.call(*[command, "r"][: 1 if command == "runs" else 2], "--json") == 0
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_can_complete_the_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The completion script holds each command and its flags."""
    assert main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in COMMANDS)
    assert "--tasks" in printed


def test_completion_asks_for_no_store() -> None:
    """It reads nothing from a store."""
    given = make_parser(["completion"]).parse_args(["completion", "bash"])
    assert not hasattr(given, "store")


def test_each_command_is_described() -> None:
    """The reference has a section for each, with its real output."""
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    assert [name for name in COMMANDS if f"\n## {name}\n" not in page] == []
    assert "-->\n```text\n```" not in page


@pytest.mark.slow_unit
def test_a_reader_that_ends_early_is_not_an_error() -> None:
    """`holdfast ... | head` prints no traceback."""
    command = "import sys; from holdfast.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", command, "completion", "bash"]
    shell = ["/bin/sh", "-c", f"{shlex.join(words)} | :"]
    done = subprocess.run(shell, check=False, capture_output=True, text=True)
    assert done.stderr == ""
