"""Bugs that are drawn: what each operator makes of a statement, and which tests are chosen."""

from __future__ import annotations

import ast
import itertools
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from tests.guards.guard import product
from tests.mutants import __main__ as command
from tests.mutants.change import Change
from tests.mutants.equivalent import EQUIVALENT, Equivalent
from tests.mutants.operators import OPERATORS, Bugs, Module, edited
from tests.mutants.reach import Reach


def made(statement: str, operator: str) -> list[str]:
    """Return what an operator makes of a function's only statement, without indentation."""
    head = "def function():\n"
    text = head + textwrap.indent(statement, "    ")
    module = Module(Path("holdfast/some.py"), text)
    found = edited(module, module.statements[0], operator)
    for other in found:
        ast.parse(other)
    return [textwrap.dedent(other.removeprefix(head)) for other in found]


@pytest.mark.parametrize(
    ("operator", "statement", "expected"),
    [
        ("comparison", "return a.b <= (c)", ["return a.b < (c)"]),
        ("comparison", "return a not in b", ["return a in b"]),
        ("comparison", "return a < b < c", []),
        ("off by one", "x = a[b:]", {"x = a[b + 1:]", "x = a[b - 1:]"}),
        ("off by one", "x = a + 1", {"x = a + 0", "x = a + 2"}),
        ("off by one", "x = True", []),
        ("dropped statement", "self.x = 1", ["pass"]),
        ("dropped statement", "x += 1", ["pass"]),
        ("dropped statement", "self.x = x = 1", []),
        ("missing end", "file.close()", ["pass"]),
        ("missing end", "file.read()", []),
        ("swapped arguments", "f(a, b, c=d)", ["f(b, a, c=d)"]),
        ("swapped arguments", "f(a, a)", []),
        ("half a condition", "return a and b and c", {"return b and c",
         "return a and c", "return a and b"}),
        ("half a condition", "if a: return (b or c)", []),
        ("negated condition", "if a: b()", ["if not (a): b()"]),
        ("negated condition", "x = [y for y in z if y]", ["x = [y for y in z if not (y)]"]),
        ("stale value", "x = f(x)", ["pass"]),
        ("stale value", "x = f(y)", []),
        ("one of several", "for x in y: f(x)", {"for x in list(y)[:1]: f(x)",
         "for x in list(y)[-1:]: f(x)"}),
        ("one of several", "return max(a)", ["return min(a)"]),
        ("swallowed error", "raise A", ["pass", "return None"]),
        ("doubled constant", "x = 'é', 30, 1", ["x = 'é', 30 * 2, 1"]),
        ("off by one", "x = f'{y + 1}'", []),
    ],
)  # fmt: skip
def test_an_operator_changes_one_piece(
    operator: str, statement: str, expected: list[str] | set[str]
) -> None:
    """What is around the piece stays as it is."""
    found = made(statement, operator)
    assert (set(found) if isinstance(expected, set) else found) == expected


def test_a_seed_draws_the_same_bugs_again() -> None:
    """Each is Python and differs from the product; several operators and folders are drawn."""
    files = [Path("holdfast/engine/claim.py"), Path("holdfast/ledger/run_log.py")]
    bugs = Bugs({file: product()[file] for file in files})
    first, again, other = (list(itertools.islice(bugs.draw(seed), 40)) for seed in "112")
    assert [bug.change for bug in first] == [bug.change for bug in again]
    assert [bug.change for bug in first] != [bug.change for bug in other]
    for bug in first:
        ast.parse(bug.change.after)
        assert bug.change.after != bug.change.before
        assert bug.lines[0] <= bug.line
    assert len(Counter(bug.operator for bug in first)) > len(OPERATORS) // 2
    assert {bug.change.file for bug in first} == set(files)


def test_what_is_only_said_is_not_changed() -> None:
    """Words of a log are no promise."""
    text = "def function(a):\n    log_step(a, 1 + 1)\n    return a == 1\n"
    bugs = itertools.islice(Bugs({Path("holdfast/some.py"): text}).draw("1"), 20)
    assert {bug.line for bug in bugs} == {3}


def test_tests_that_reach_least_come_first_and_files_alternate() -> None:
    """A test that reaches most of a file is often slow, and one file's tests are alike."""
    reach = Reach(
        tests=["a::wide", "a::narrow", "a::third", "b::wide", "b::elsewhere"],
        files={
            "holdfast/x.py": {
                1: frozenset({-1}),
                5: frozenset({0, 1, 2, 3}),
                6: frozenset({0, 2, 3}),
                7: frozenset({0, 4}),
            }
        },
    )
    file = Path("holdfast/x.py")
    assert reach.tests_of(file, range(5, 7), 9) == ["a::narrow", "b::wide", "a::third", "a::wide"]
    assert reach.tests_of(file, range(5, 7), 2) == ["a::narrow", "b::wide"]
    assert reach.tests_of(file, range(2, 3), 9) == []
    assert [reach.is_run_at_import(file, [line]) for line in (1, 5)] == [True, False]
    assert reach.tests_of(Path("holdfast/y.py"), [1], 9) == []


def test_a_bug_that_is_none_is_known_by_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is around them; another change of the line is a bug."""
    same = Equivalent(before="a < b", after="a <= b", reason="they differ")
    monkeypatch.setattr(command, "EQUIVALENT", (same,))

    def change(after: str) -> Change:
        text = "def f():\n    a < b\n    return\n"
        return Change(name="", file=Path("x.py"), before=text, after=text.replace("a < b", after))

    assert command.equivalent_to(change("a <= b")) == same
    assert command.equivalent_to(change("a > b")) is None


def test_each_change_that_is_no_bug_is_of_a_line_of_the_product() -> None:
    """A line that was reworded is judged anew."""
    lines = {line.strip() for text in product().values() for line in text.splitlines()}
    assert EQUIVALENT
    assert [same.before for same in EQUIVALENT if same.before not in lines] == []
