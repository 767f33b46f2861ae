"""The commands in the documentation exist: make targets, scripts, modules, extras."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast.cli.main import COMMANDS
from tests.markdown_pages import ROOT, Block, blocks, code_spans, name_of, pages

PAGES = pages("README.md", "CONTRIBUTING.md", "docs/**/*.md", "examples/**/*.md")
BLOCKS = [block for page in PAGES for block in blocks(page, "console")]
PYTHONS = ("python", "python3")
# Commands of the system, which are not ours to rename.
SYSTEM = {"apt-get", "cd", "curl", "dagster", "export", "kill", "set", "sleep", "source"}
MODULES_OF_OTHERS = {"pytest", "venv"}


def make_targets() -> set[str]:
    """Return the targets of the Makefile."""
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def extras() -> set[str]:
    """Return the package's extras."""
    _, _, rest = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")
    return set(re.findall(r"^([a-z-]+) = \[", rest.partition("\n[")[0], re.MULTILINE))


def benchmarks() -> set[str]:
    """Return the names that `make bench` takes."""
    modules = [file for file in (ROOT / "bench").glob("*.py") if "\ndef run(" in file.read_text()]
    return {module.stem.replace("_", "-") for module in modules}


def commands(code: str) -> Iterator[list[str]]:
    """Yield the commands of a block, as words; comments are left out."""
    for line in code.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in lexer:
            if set(word) <= set(";&|"):
                yield words
                words = []
            else:
                words.append(word)
        yield words


def complaint(words: list[str], page: str) -> str:
    """Return what is wrong with a command; empty if nothing is.

    Args:
        words: The command.
        page: The text around it, which may say to save a script first.
    """
    first, *rest = words
    first = re.sub(r"^[.a-z-]+/bin/", "", first)  # Of an environment that the page has made.
    if first == "make":
        return _of_make(rest)
    if first in PYTHONS:
        return _of_python(rest, page)
    if first == "pip":
        return _of_pip(rest)
    if first == "holdfast":
        return "" if rest[0] in COMMANDS else f"holdfast has no command {rest[0]}"
    if "/" in first:
        return "" if os.access(ROOT / first, os.X_OK) else f"{first} cannot be run"
    return "" if first in SYSTEM else f"{first} is not known"


def _of_make(rest: list[str]) -> str:
    target, *settings = rest or ["help"]
    if target not in make_targets():
        return f"make has no target {target}"
    names = [setting.removeprefix("NAME=") for setting in settings if setting.startswith("NAME=")]
    unknown = [name for name in names if name not in {*benchmarks(), "..."}]
    return f"no benchmark is called {unknown[0]}" if unknown else ""


def _of_python(rest: list[str], page: str) -> str:
    if rest[0] == "-m":
        path = ROOT / rest[1].replace(".", "/")
        found = path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
        return "" if found or rest[1] in MODULES_OF_OTHERS else f"there is no module {rest[1]}"
    is_there = (ROOT / rest[0]).is_file() or f"Save this as `{rest[0]}`" in page
    return "" if is_there else f"there is no script {rest[0]}"


def _of_pip(rest: list[str]) -> str:
    named = {extra for word in rest for extra in _extras_in(word)}
    if named - extras():
        return f"no extra is called {min(named - extras())}"
    files = [file for option, file in pairwise(rest) if option == "-r"]
    lost = [file for file in files if not (ROOT / file).is_file()]
    return f"there is no file {lost[0]}" if lost else ""


def _extras_in(word: str) -> list[str]:
    found = re.fullmatch(r"(?:\.|holdfast)\[(.+)\]", word)
    return found[1].split(",") if found else []


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_every_command_of_a_block_exists(block: Block) -> None:
    """A reader who types it at least reaches the command."""
    page = (ROOT / block.page).read_text()
    found = [complaint(words, page) for words in commands(block.code) if words]
    assert [text for text in found if text] == []


@pytest.mark.parametrize("page", pages("*.md", "docs/**/*.md", "tests/**/*.md"), ids=name_of)
def test_every_make_target_in_the_text_exists(page: Path) -> None:
    """Pages and tables name targets too, with or without arguments."""
    named = [shlex.split(span) for span in code_spans(page.read_text()) if span[:5] == "make "]
    assert [text for text in (_of_make(words[1:]) for words in named) if text] == []


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("make check", ""),
        ("make no-such-target", "no target"),
        ("make bench NAME=scan-append", ""),
        ("make bench NAME=no-such", "no benchmark"),
        ("python examples/kill_and_resume.py & sleep 30; kill -9 $!", ""),
        ("python examples/no_such.py > out", "no script"),
        ("python -m tests.simulation.reach 5", ""),
        ("python -m tests.no_such", "no module"),
        ('pip install ".[spark,iceberg]" httpx', ""),
        ('pip install ".[spark,no-such]"', "no extra"),
        ("pip install -r no/such.txt", "no file"),
        ("spec/check.sh commit  # a word", ""),
        ("spec/no_such.sh", "cannot be run"),
        ("holdfast status nightly", ""),
        ("holdfast no-such", "no command"),
        ("no-such-command", "not known"),
    ],
)
def test_a_command_that_does_not_exist_is_found(command: str, wrong: str) -> None:
    """Each kind of command has its own complaint."""
    found = [complaint(words, "") for words in commands(command) if words]
    assert any(wrong in text for text in found if text) if wrong else not any(found)
