"""Hostile text: ids, reasons, hosts and names from others, on every channel that shows them.

Each command prints them literally: no markup is followed, and no control character gets through.
"""

from __future__ import annotations

import io
import json
import logging
import re
import shlex
import subprocess
import unicodedata
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from holdfast.cli import plain
from holdfast.cli.console import PlainConsole, facts, listing, show
from holdfast.cli.doctor import _print as print_finding
from holdfast.cli.doctor_machine import failed
from holdfast.cli.main import main
from holdfast.errors import JobFailedError, RunAbortedError, StoreUnavailableError
from holdfast.ledger.ledger import Ports, log_step
from holdfast.model.history import RunStatus
from holdfast.model.usage import Usage
from holdfast.pages.page import page_of
from holdfast.progress.display import LineDisplay, display_for
from holdfast.progress.rich_display import FramePicture, html_of
from holdfast.text import command
from tests.fakes.cli_lake import CliLake, lake
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.pages import BEGIN, killed_twice, look, with_usage
from tests.fakes.pages import facts as page_facts
from tests.fakes.progress_display import frame_of_a_resume

__all__ = ["lake"]

IDS = (
    "a[/b]",
    "x[red]y[/red]",
    "[link=https://evil.example]click[/link]",
    ":warning:",
    "\x1b]0;pwned\x07\x1b[2Jz",
    "a\nb  committed",
    "\u202egnp.exe",
    "\x9b31m",
    "<script>alert(1)</script>",
    "-rf",
)
HOSTILE = "[/x] [bold red]HACK[/] \x1b[31mred\x07\nrun r: landed \u202egnp \x9b2J"
SHOWN = r"[/x] [bold red]HACK[/] \x1b[31mred\x07\nrun r: landed \u202egnp \x9b2J"
ACTS = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def acting(text: str) -> set[str]:
    """Return the characters of a text that control a terminal, except line ends."""
    return {char for char in text if unicodedata.category(char) in ACTS and char != "\n"}


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    """Return all that was printed on both streams since the last call, after checking it."""
    found = capsys.readouterr()
    assert acting(found.out + found.err) == set()
    return found.out + found.err


@pytest.mark.parametrize("run_id", IDS)
def test_no_command_interprets_an_id_or_a_reason(
    lake: CliLake, run_id: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All commands from `runs` to `sweep`; the id is shown whole wherever it is printed."""
    monkeypatch.setenv("COLUMNS", "200")
    shown = re.sub(
        r"[^\x20-\x7e]", lambda match: match[0].encode("unicode_escape").decode(), run_id
    )
    lake.start_and_die(run_id, MemorySubmitter([1, 2], [3, 4]))
    page = lake.folder / "page.html"
    end = ("--yes", "--reason", HOSTILE, *lake.catalog_arguments)
    calls: list[tuple[str, ...]] = [
        ("runs",),
        ("status", "--", run_id),
        ("inspect", "--", run_id),
        ("watch", "--once", "--", run_id),
        ("report", "--out", str(page), "--", run_id),
        ("abort", *end, "--", run_id),
        ("status", "--", run_id),
        ("inspect", "--", run_id),
        ("sweep", *lake.catalog_arguments, "--", run_id),
        ("sweep", "--yes", *lake.catalog_arguments, "--", run_id),
        ("runs",),
    ]
    for words in calls:
        assert lake.call(*words) == 0, words
        text = printed(capsys)
        assert shown in text or words[0] == "report", words
    lake.call("status", "--", run_id)
    assert SHOWN in printed(capsys)
    assert acting(page.read_text()) == set()


@pytest.mark.parametrize("run_id", IDS)
def test_a_program_reads_the_exact_id(
    lake: CliLake, run_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON escapes what a terminal would act on, and decodes to the same id."""
    lake.start("a\x7f", MemorySubmitter([1]))
    lake.start(run_id, MemorySubmitter([1, 2]))
    for words in (("status", "--json"), ("inspect", "--json"), ("watch", "--json", "--once")):
        assert lake.call(*words, "--", run_id) == 0
        assert json.loads(printed(capsys))["run_id"] == run_id
    assert lake.call("runs", "--json") == 0
    assert {line["run_id"] for line in json.loads(printed(capsys))["runs"]} == {run_id, "a\x7f"}
    assert lake.call("report", "--json", "--", run_id) == 0
    assert json.loads(printed(capsys))["head"]["run_id"] == run_id


@pytest.mark.parametrize("run_id", [*IDS, "it's", "night job; 2026+11", "$(touch x)"])
def test_a_command_to_copy_names_the_exact_run(run_id: str) -> None:
    """Also if a terminal cannot show the id: bash decodes its escaped form."""
    shown = command("sweep", run_id, "--yes")
    assert acting(shown) == set()
    assert "\n" not in shown
    line = shown.strip("`").replace("holdfast", "printf '%s\\0'", 1)
    words = subprocess.run(["/bin/bash", "-c", line], check=True, capture_output=True).stdout
    assert words.decode().split("\0")[:-1] in (
        ["sweep", run_id, "--yes"],
        ["sweep", "--yes", "--", run_id],
    )
    assert run_id.startswith("-") == ("--" in shlex.split(shown.strip("`")))


def test_an_unknown_run_and_wrong_usage_are_reported_safely(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both repeat what was typed, which a script may have read from anywhere."""
    (lake.folder / "store").mkdir()
    assert lake.call("status", HOSTILE) == 1
    assert "red\\x07\\nrun r: landed" in printed(capsys)
    with pytest.raises(SystemExit):
        main(["runs", f"--{HOSTILE}"])
    assert SHOWN in printed(capsys)


@pytest.mark.filterwarnings("always")
def test_a_warning_of_a_command_is_one_safe_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Warnings name other drivers' hosts and run ids."""
    with plain.warnings_on_one_line():
        warnings.warn(f"{HOSTILE} http://me:canary@h", stacklevel=1)
    assert printed(capsys) == f"holdfast: warning: {SHOWN} http://me:***@h\n"


def test_a_table_on_a_terminal_holds_only_our_own_colours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cell, in a title and next to a name."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    out, table = PlainConsole(), listing("A", "B")
    table.add_row(HOSTILE, "b")
    show(out, table)
    facts(out, [("name", HOSTILE)])
    out.print(HOSTILE)
    out.print(Text(HOSTILE, style="bold"))
    print_finding(out, failed(HOSTILE, HOSTILE, HOSTILE))
    text = re.sub(r"\x1b\[(?:0|1|2|31|1;31)m", "", capsys.readouterr().out)
    assert acting(text) == set()
    assert text.count("HACK") == 7
    assert all(not line.strip().startswith("run r: landed") for line in text.splitlines())


def test_an_error_has_three_parts_whatever_its_facts_hold() -> None:
    """A fact cannot pass for another part, and cannot control a terminal."""
    fact = f"{HOSTILE}\n  Worth a retry: yes.\n  What to do: nothing."
    for error in (
        RunAbortedError(run_id=HOSTILE, number=1, reason=fact),
        StoreUnavailableError(uri=HOSTILE, reason=fact),
        JobFailedError(reason=fact),
    ):
        text = str(error)
        assert acting(text) == set()
        starts = [line for line in text.splitlines() if re.match(r" {0,3}\S", line)]
        assert len(starts) == 3
        assert starts[1].startswith("  Worth a retry: ")


def test_an_errors_facts_are_kept_as_they_were_given() -> None:
    """A program compares them with what it knows."""
    error = StoreUnavailableError(uri="s3://b/x", reason="line 1\nline 2")
    assert error.reason == "line 1\nline 2"
    assert "(line 1\n    line 2)" in str(error)


def test_a_step_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A line break in an id does not start a second line; the record's field keeps the id."""
    caplog.set_level(logging.INFO, "holdfast")
    log_step(HOSTILE, f"claimed by {HOSTILE} at http://me:canary@h")
    assert caplog.messages == [f"run {SHOWN}: claimed by {SHOWN} at http://me:***@h"]
    assert vars(caplog.records[0])["holdfast_run"] == HOSTILE


def test_progress_shows_hostile_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """In a terminal picture, in a notebook and in log lines."""
    frame = replace(frame_of_a_resume(), run_id=HOSTILE, table=HOSTILE, reason=HOSTILE)
    assert frame.progress is not None
    frame = replace(frame, progress=replace(frame.progress, state="stopped", reason=HOSTILE))
    file = io.StringIO()
    Console(file=file, width=100).print(FramePicture(frame))
    assert acting(file.getvalue()) == set()
    assert file.getvalue().startswith(r"[/x] [bold red]HACK[/] \x1b[31mred\x07\nrun r: landed")
    assert acting(html_of(frame)) == set()
    lines: list[str] = []
    LineDisplay(lines.append, 1.0).show(frame)
    assert [acting(line) for line in lines] == [set()]
    assert "\n" not in lines[0]
    display = display_for(HOSTILE, wanted=True)
    assert display is not None
    display.show(frame)
    assert printed(capsys).startswith(f"holdfast: run {SHOWN}: ")


def test_a_status_and_a_page_show_hostile_text_as_it_is() -> None:
    """`print(status)` and every text of the page, including its drawings."""
    status = RunStatus.damaged(HOSTILE, HOSTILE)
    assert str(status).count(SHOWN) == 2
    assert acting(str(status)) == set()
    seen = with_usage(
        look(killed_twice()),
        lambda number: Usage(at=BEGIN, host=f"{HOSTILE}{number}", memory_bytes=5, waited_s=1.0),
    )
    known = page_facts(seen)
    head = replace(known.head, run_id=HOSTILE, table="s3://me:canary@bucket/x")
    page = page_of(replace(known, head=head))
    assert len(known.hosts) > 1
    assert acting(page) == set()
    assert "canary" not in page
    assert page.count(r"\x9b2J") > len(known.hosts)  # In tables and in drawings.


def test_only_two_modules_print() -> None:
    """All output of the command line passes through them."""
    source = Path(plain.__file__).parent
    printing = {
        file.name
        for file in source.rglob("*.py")
        if re.search(
            r"(?<![\w.])print\(|sys\.std\w+\.write|(?<!Plain)Console\(|\bText\(", file.read_text()
        )
    }
    assert printing == {"plain.py", "console.py"}


def test_the_driver_of_another_machine_is_named_safely(
    lake: CliLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host's name is whatever its record says."""
    monkeypatch.setenv("COLUMNS", "200")
    lake.start("r", MemorySubmitter([1, 2]), Ports(host=HOSTILE))
    for words in (("status", "r"), ("inspect", "r")):
        assert lake.call(*words) == 0
        assert SHOWN in printed(capsys)
