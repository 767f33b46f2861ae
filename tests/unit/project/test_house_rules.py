"""The house rules that no linter checks: sizes, names, and what no file may contain.

Runs over the files that git tracks or would track, so that a new file is checked before it is
committed.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests.conftest import LONGEST_FIRST
from tests.guards.guard import Guard
from tests.guards.listed import GUARDS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
CODE_FOLDERS = ("src", "tests", "bench", "dev")
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
LINE_COLUMNS_MAX = 100
# Folders of unit tests that do not mirror one of src/holdfast.
NOT_OF_THE_PRODUCT = ("project", "tools")
ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
VAGUE = re.compile(r"\b(?:somebody|nobody|whoever|speaks? of)\b", re.IGNORECASE)
# The first two are "aborted" and "silently"; the third says nothing where it is a whole clause.
ODD = re.compile(
    r"\b(?:given\s+up|without\s+a\s+word)\b|\bso\s+it\s+is(?=\s*(?:[.,;:!?)]|$))", re.IGNORECASE
)
# In pieces, so that this line does not match itself.
NAMELESS = re.compile(r"\bfor one" + r" in\b")
# A name in a text, such as a test's.
QUOTED = re.compile(r"`[^`\n]+`")
LINTER_NOTE = re.compile(r"\s+# (?:noqa|type: ignore).*$")

# A path that exists on one machine only. The names are in a group, so that this line does not
# match itself.
MACHINE_PATH = re.compile(r"(?<![\w.$}/])/(?:root|home|Users|work)/")
# A package index that was configured on one machine, in the spellings of pip, uv and Maven.
REGISTRIES = (
    re.compile(r"(?:index|find|trusted)[-_](?:url|links|host)\"?\s*[=: ]\s*[\"']?(?:\w+:/)?/"),
    re.compile(r"://[^\s\"']+/(?:simple|artifactory|nexus|repository/(?:maven|pypi))\b"),
    re.compile(r"://(?:[^\s/@]+@)?(?:10|192\.168|172\.(?:1[6-9]|2\d|3[01]))\.\d+\.\d"),
    re.compile(r"://[^\s/\"'<>{}]+\.(?:internal|intranet|corp|lan)(?![\w.])"),
    # A public one: a page names a package by its name. Letters in brackets do not match themselves.
    re.compile(r"py[p]i[.]org|python[h]osted|npm[j]s|crates[.][i]o/|proxy[.]go[l]ang"),
)


def repository_files() -> list[Path]:
    """Return the files that git tracks, and the new ones that it does not ignore."""
    # The checkout may belong to another user (CI as root), which git refuses without this setting.
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others"]
    listed = subprocess.run(
        [*command, "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [file for file in files if file.is_file()]


def python_files() -> list[Path]:
    """Return the Python files of the folders that the limits apply to."""
    return [
        file
        for file in repository_files()
        if file.suffix == ".py" and file.relative_to(ROOT).parts[0] in CODE_FOLDERS
    ]


def text_lines() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each line of each text file in the repository."""
    for file in repository_files():
        content = file.read_bytes()
        if b"\0" in content:
            continue
        for number, line in enumerate(content.decode(errors="replace").splitlines(), start=1):
            yield f"{file.relative_to(ROOT)}:{number}", line


def test_the_rules_look_at_files() -> None:
    """The list contains this file: none of the rules below passes for lack of files."""
    assert Path(__file__) in python_files()


def test_a_module_has_at_most_600_lines() -> None:
    """A module that is too large to hold in mind is split."""
    counted = {file: len(file.read_text().splitlines()) for file in python_files()}
    too_long = {
        str(file.relative_to(ROOT)): lines
        for file, lines in counted.items()
        if lines > MODULE_LINES_MAX
    }
    assert too_long == {}


def test_a_function_has_at_most_70_lines() -> None:
    """A function fits on one screen, its docstring included."""
    too_long = {
        f"{file.relative_to(ROOT)}:{node.lineno} {node.name}": lines
        for file in python_files()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    }
    assert too_long == {}


def test_a_line_has_at_most_100_columns() -> None:
    """Code is read side by side; a linter note at the end of a line is not read as code."""
    too_long = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in python_files()
        for number, line in enumerate(file.read_text().splitlines(), start=1)
        if len(LINTER_NOTE.sub("", line)) > LINE_COLUMNS_MAX
    ]
    assert too_long == []


def test_what_users_read_is_plain_english() -> None:
    """Name the process, the writer or the reader instead: these words never say which."""
    pages = [
        file
        for file in repository_files()
        if file.suffix == ".md" and file.relative_to(ROOT).parts[0] in {"docs", *ROOT_PAGES}
        if "adr" not in file.parts
    ]
    sources = sorted((ROOT / "src").rglob("*.py"))
    found = [
        f"{file.relative_to(ROOT)}: {match[0]}"
        for file in [*pages, *sources]
        for match in VAGUE.finditer(QUOTED.sub("", file.read_text()))
    ]
    texts = [(file, QUOTED.sub("", file.read_text())) for file in pages]
    texts += [(file, file.read_text()) for file in (ROOT / "src").rglob("*.j2")]
    texts += [(file, text) for file in sources for text in string_literals(file)]
    found += [
        f"{file.relative_to(ROOT)}: {match[0]}"
        for file, text in texts
        for match in ODD.finditer(text)
    ]
    assert found == []


def string_literals(file: Path) -> Iterator[str]:
    """Yield the strings of a Python file, docstrings and the parts of f-strings among them."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_a_loop_variable_names_its_thing() -> None:
    """The guards quote source lines, and these are checked where they are."""
    found = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in repository_files()
        if file.suffix == ".py" and file.relative_to(ROOT).parts[0] in {*CODE_FOLDERS, "examples"}
        if (ROOT / "tests" / "guards") not in file.parents
        for number, line in enumerate(file.read_text().splitlines(), start=1)
        if NAMELESS.search(line)
    ]
    assert found == []


def test_every_module_says_what_it_is_for() -> None:
    """A module starts with a docstring."""
    silent = [
        str(file.relative_to(ROOT))
        for file in python_files()
        if not ast.get_docstring(ast.parse(file.read_text()))
    ]
    assert silent == []


def test_no_module_is_a_catch_all() -> None:
    """A file's name says what is in it."""
    drawers = {"utils.py", "util.py", "helpers.py", "misc.py", "common.py"}
    assert [file for file in python_files() if file.name in drawers] == []


def test_no_file_names_a_machine_path() -> None:
    """Nothing in the repository depends on the location of a checkout or a home folder."""
    assert [place for place, line in text_lines() if MACHINE_PATH.search(line)] == []


def test_no_file_names_a_package_registry() -> None:
    """Packages are fetched from wherever the machine is configured to fetch them."""
    found = [place for place, line in text_lines() if any(r.search(line) for r in REGISTRIES)]
    assert found == []


def test_the_lock_file_holds_no_address() -> None:
    """Pinned requirements are names, versions and hashes: an address would tie them to a host."""
    locks = list((ROOT / "requirements").glob("*.txt"))
    assert locks
    assert [lock for lock in locks if "://" in lock.read_text()] == []


@pytest.mark.parametrize(
    "pieces",
    [
        ("--index", "-url https://", "packages.example/pypi"),
        ("--find", "-links /", "srv/wheels"),
        ("https://", "mirror.example/api/pypi/si", "mple/"),
        ("http://", "10.1", ".2.3:8081/x"),
        ("https://", "packages.", "internal/x"),
        ("https://py", "pi.org/project/x"),
    ],
)
def test_the_registry_patterns_find_what_they_are_for(pieces: tuple[str, ...]) -> None:
    """Each spelling is found; it is written in pieces here, so that this file itself is clean."""
    line = "".join(pieces)
    assert any(pattern.search(line) for pattern in REGISTRIES)


@pytest.mark.parametrize("folder", ["root", "home", "work"])
def test_the_path_pattern_finds_a_path_but_not_a_variable(folder: str) -> None:
    """An absolute path is found; a path below a variable or another folder is not."""
    assert MACHINE_PATH.search(f"cd /{folder}/somebody")
    assert not MACHINE_PATH.search(f"cd $HOME/{folder}/x and ./{folder}/y and a/{folder}/z")


def guard_complaint(guard: Guard) -> str:
    """Return why a guard cannot be removed; empty if it can be."""
    try:
        guard.removed()
    except ValueError as error:
        return str(error)
    return ""


def test_each_listed_guard_is_in_the_product_once() -> None:
    """A guard that was reworded can no longer be removed, and then shows nothing."""
    complaints = [complaint for guard in GUARDS if (complaint := guard_complaint(guard))]
    assert complaints == []


@pytest.mark.parametrize(
    ("before", "complaint"),
    [
        ("no module says this", "0 times in the product"),
        ("from __future__ import annotations", "times in the product (holdfast/"),
    ],
)
def test_a_guard_that_is_not_in_the_product_once_is_found(before: str, complaint: str) -> None:
    """One that is gone, and one whose text is in several places."""
    guard = Guard(name="some", before=before, after="", test="")
    assert complaint in guard_complaint(guard)


def test_each_of_the_longest_test_files_is_there() -> None:
    """A renamed file would begin last, and one core would run it alone at the end."""
    there = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    assert [name for name in LONGEST_FIRST if name not in there] == []


def test_no_property_test_depends_on_how_fast_the_machine_is() -> None:
    """One profile without a deadline, in tests/conftest.py, is for all of them."""
    assert hypothesis.settings().deadline is None
    again = re.compile(r"\bdeadline=" + "(?:None|[0-9])")
    own = [path for path in (ROOT / "tests").rglob("*.py") if again.search(path.read_text())]
    assert own == [ROOT / "tests" / "conftest.py"]


@functools.cache
def names_in(file: Path) -> set[str]:
    """Return the names in a module that a test id may contain: functions, classes, parameters."""
    # Test cases in tests/contract are inherited from neighbouring modules.
    files = file.parent.glob("*.py") if file.parent.name == "contract" else [file]
    nodes = [node for module in files for node in ast.walk(ast.parse(module.read_text()))]
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    return names | {text for text in texts if isinstance(text, str) and text.isidentifier()}


def is_collected(test: str) -> bool:
    """Whether tests exist that are named as a file, as `file::test` or as `file -k expression`."""
    named, _, expression = test.partition(" -k ")
    path, _, function = named.partition("::")
    words = set(re.findall(r"\w+", expression)) - {"and", "or", "not"}
    wanted = words or {function.partition("[")[0] or "test_"}
    return (ROOT / path).is_file() and all(
        any(word in name for name in names_in(ROOT / path)) for word in wanted
    )


def test_the_test_of_each_listed_guard_is_there() -> None:
    """A test that was moved or renamed can no longer notice that the guard is missing."""
    # Some guards name two files.
    tests = {test for guard in GUARDS for test in re.split(r" (?=tests/)", guard.test)}
    assert [test for test in sorted(tests) if not is_collected(test)] == []


@pytest.mark.parametrize("rest", ["", "::test_the_rules_look_at_files", " -k look_at_files"])
def test_a_test_that_is_not_there_is_found(rest: str) -> None:
    """By its file, by its name, and by a part of its name."""
    here = Path(__file__).relative_to(ROOT).as_posix()
    assert is_collected(f"{here}{rest}")
    assert not is_collected(f"{here}.gone{rest}")
    assert not rest or not is_collected(f"{here}{rest}_no_more")


def test_unit_tests_are_named_after_the_module_that_they_test() -> None:
    """`ls tests/unit/engine/test_commit*` shows where engine/commit.py is tested."""
    product, unit = ROOT / "src" / "holdfast", ROOT / "tests" / "unit"
    files = [file for file in python_files() if unit in file.parents]
    assert files
    stray = []
    for file in files:
        folder = file.parent.relative_to(unit)
        subject = file.stem.removeprefix("test_")
        modules = [module.stem for module in (product / folder).glob("*.py")]
        is_named = any(subject == module or subject.startswith(f"{module}_") for module in modules)
        if not is_named and folder.as_posix() not in NOT_OF_THE_PRODUCT:
            stray.append(file.relative_to(ROOT).as_posix())
    assert stray == []
