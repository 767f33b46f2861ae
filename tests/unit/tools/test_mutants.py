"""The runner of changes: what a fork can apply, what it cannot, and how trials are judged."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from tests.guards.__main__ import matching
from tests.mutants.change import Change, environment_of, replaced_code
from tests.mutants.forks import Forks, Judge, Verdict

TEXT = """
import functools

LIMIT = 1


class Box:
    size = 1

    def method(self):
        return 1

    @property
    def value(self):
        return 2

    def parts(self):
        return [part + 3 for part in (0, 1)]

    def later(self):
        return lambda: 4


@functools.cache
def cached():
    return 5


def with_default(count=6):
    return count
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a small module."""
    (tmp_path / "boxes_of_mutants.py").write_text(TEXT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "boxes_of_mutants", raising=False)
    return importlib.import_module("boxes_of_mutants")


def change(before: str, after: str) -> Change:
    """Return a change of the small module."""
    assert TEXT.count(before) == 1
    text = TEXT.replace(before, after)
    return Change(name=before, file=Path("boxes_of_mutants.py"), before=TEXT, after=text)


@pytest.mark.parametrize(
    ("before", "after", "value", "expected"),
    [
        ("return 1", "return 10", lambda module: module.Box().method(), 10),
        ("return 1", "\n        return 10", lambda module: module.Box().method(), 10),
        ("return 2", "return 20", lambda module: module.Box().value, 20),
        ("part + 3", "part + 30", lambda module: module.Box().parts(), [30, 31]),
        ("lambda: 4", "lambda: 40", lambda module: module.Box().later()(), 40),
        ("return 5", "return 50", lambda module: module.cached(), 50),
    ],
)
def test_functions_that_are_loaded_are_changed(
    module: ModuleType,
    before: str,
    after: str,
    value: Callable[[ModuleType], object],
    expected: object,
) -> None:
    """Also through names that were bound before: it is the function object that changes."""
    assert change(before, after).apply()
    assert value(module) == expected
    assert module.with_default() == 6


def test_a_function_that_has_run_is_found(module: ModuleType) -> None:
    """The interpreter rewrites the code of one that ran often; it is found by what it does."""
    box = module.Box()
    assert {box.method() for _ in range(1_000)} == {1}
    assert change("return 1", "return 10").apply()
    assert box.method() == 10


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("LIMIT = 1", "LIMIT = 10"),
        ("size = 1", "size = 10"),
        ("count=6", "count=60"),
        ("    @property\n", ""),
        ("def method", "def other"),
        ("1\n\n    @property", "1.0\n\n    name = 1\n\n    @property"),
    ],
)
def test_what_was_used_at_import_needs_a_fresh_process(before: str, after: str) -> None:
    """A constant, a class's body, a default and a decorator cannot be changed afterwards."""
    assert replaced_code(TEXT, change(before, after).after, "boxes.py") is None


def test_equal_numbers_of_other_types_differ() -> None:
    """1, 1.0 and True are equal, and a function that returns another one is another function."""
    for after in ("return 1.0", "return True"):
        assert replaced_code(TEXT, change("return 1", after).after, "boxes.py")
    assert replaced_code(TEXT, change("return 1", "return  1").after, "boxes.py") == []


def test_a_process_that_a_test_starts_imports_the_change(tmp_path: Path) -> None:
    """The copy is of links, and the repository's file is as it was."""
    file = Path("holdfast/model/limits.py")
    before = (Path(__file__).parents[3] / "src" / file).read_text()
    Change(name="", file=file, before=before, after=f"{before}\nCHANGED = 1\n").write_into(tmp_path)
    script = (
        "import holdfast.model.limits as changed, holdfast.model.usage as other;"
        "print(changed.CHANGED, other.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment_of(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["1", str(tmp_path / "holdfast/model/usage.py")]
    assert (Path(__file__).parents[3] / "src" / file).read_text() == before


# ---- trials


def forks_of(tests: dict[str, Callable[[], None]], *, trial_s: float = 60.0) -> Forks:
    """Return a runner of functions in place of tests."""
    forks = Forks(lambda _forks: 0, trial_s)

    def run(item: Any, nextitem: object) -> None:  # noqa: ARG001, ANN401 - as pytest's hook.
        failed, text = False, ""
        try:
            tests[item.nodeid]()
        except AssertionError as error:
            failed, text = True, f"E   {error}"
        report = SimpleNamespace(failed=failed, when="call", longreprtext=text)
        forks.pytest_runtest_logreport(cast("pytest.TestReport", report))

    hook = SimpleNamespace(pytest_runtest_protocol=run)
    items = {name: SimpleNamespace(nodeid=name, ihook=hook) for name in tests}
    forks.items = cast("dict[str, pytest.Item]", items)
    return forks


def verdicts(forks: Forks, *changes: Change) -> list[Verdict]:
    """Try changes, two at a time; return the verdicts in the order of the changes."""
    found: dict[str, Verdict] = {}

    def judge(change: Change) -> Judge:
        found[change.name] = yield from forks.judged(change, list(forks.items))

    forks.run(map(judge, changes), jobs=2)
    return [found[change.name] for change in changes]


def test_a_change_that_is_noticed_and_one_that_survives_are_told_apart(module: ModuleType) -> None:
    """Each is tried in a child of its own, so that nothing of it is left in this process."""

    def box_is_right() -> None:
        assert module.Box().method() == 1, "no 1"

    forks = forks_of({"t.py::one": lambda: None, "t.py::two": box_is_right})
    killed, survived = verdicts(
        forks, change("return 1", "return 10"), change("return 2", "return 20")
    )
    assert (killed.end, killed.by, killed.message) == ("killed", "t.py::two", "no 1")
    assert (survived.end, survived.tests) == ("survived", 2)
    assert (module.Box().method(), module.Box().value) == (1, 2)
    assert (forks.forks, forks.fresh) == (3, 0)  # The third: does "two" pass without a change?


def test_a_test_that_fails_without_a_change_notices_nothing(module: ModuleType) -> None:
    """It is left out, and the rest judge; without a rest there is no verdict."""
    assert module.LIMIT == 1

    def fails() -> None:
        raise AssertionError

    forks = forks_of({"t.py::fails": fails, "t.py::passes": lambda: None})
    (verdict,) = verdicts(forks, change("return 1", "return 10"))
    assert (verdict.end, verdict.tests) == ("survived", 1)
    assert forks.unfit == {"t.py::fails"}
    (verdict,) = verdicts(forks_of({"t.py::fails": fails}), change("return 1", "return 10"))
    assert verdict.end == "error"


def test_a_test_that_does_not_end_is_killed(module: ModuleType) -> None:
    """A loop without an end is noticed, too."""

    def waits() -> None:
        while module.Box().method() != 1:
            time.sleep(0.01)

    forks = forks_of({"t.py::waits": waits}, trial_s=0.5)
    (verdict,) = verdicts(forks, change("return 1", "return 10"))
    assert (verdict.end, verdict.is_noticed) == ("timeout", True)


@pytest.mark.parametrize(
    ("expression", "is_selected"),
    [("", True), ("SELECTED_as", True), ("selected_as and not pytest", False), ("mutant_x", False)],
    ids=["all", "a word", "not a word", "no such word"],
)
def test_a_guards_tests_are_selected_as_pytest_does(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    expression: str,
    is_selected: bool,  # noqa: FBT001 - a case.
) -> None:
    """The collected tests are matched with the expression, in any case of letters."""
    monkeypatch.setattr(request.config.option, "keyword", "")
    assert matching([request.node], expression) == ([request.node] if is_selected else [])
