"""Bugs drawn at random: one statement of a function, and one small change of it.

What is around the changed piece stays as it is, byte for byte, so that a bug is a diff of a line or
two.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TypeAlias

from tests.mutants.change import Change

# How likely a folder or module is drawn: what decides over rows most, what is only shown least.
_WEIGHTS = {
    **dict.fromkeys(("engine", "ledger", "sinks", "storage", "worker", "spark", "sources"), 3.0),
    **dict.fromkeys(("run.py", "opening.py", "rehearsal.py"), 3.0),
    **dict.fromkeys(("model", "reading"), 1.0),
    **dict.fromkeys(("columns.py", "writing.py", "inputs.py"), 0.5),
    **dict.fromkeys(("cli", "pages", "progress", "palette.py", "text.py"), 0.05),
}
_OTHERS = 0.1
# Statements that only say what happens, or name a point at which tests kill a process.
_SAYS = re.compile(r"^(?:_?log(?:ger)?\b|_?log_step|failpoint|print|warn|warnings\.)")
_ENDS = {"abandon", "cancel", "clear", "close", "flush", "join", "release", "seal", "shutdown"}
_OTHER_COMPARISON: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A change that a careless programmer could have made."""

    operator: str
    change: Change
    # Those of its statement, for a compound one of its head.
    lines: range
    line: int


@dataclass(frozen=True)
class Module:
    """The text of a module, and where its nodes are in it."""

    file: Path
    text: str

    @cached_property
    def statements(self) -> list[ast.stmt]:
        """The statements of all functions, except definitions and docstrings."""
        functions = (node for node in ast.walk(ast.parse(self.text)) if _is_function(node))
        found = {
            (node.lineno, node.col_offset): node
            for function in functions
            for node in ast.walk(function)
            if isinstance(node, ast.stmt) and not isinstance(node, _NEVER)
            if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
            if node is not function
        }
        return list(found.values())

    @cached_property
    def _starts(self) -> list[int]:
        lines = self.text.encode().splitlines(keepends=True)
        return [0, *accumulate(map(len, lines))]

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return where a node is, in bytes."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def code(self, node: ast.expr | ast.stmt) -> str:
        """Return the text of a node, in parentheses where it may stand for another one."""
        start, end = self.span(node)
        text = self.text.encode()[start:end].decode()
        return f"({text})" if isinstance(node, _LOOSE) else text

    def between(self, left: ast.expr, right: ast.expr) -> str:
        """Return the text between two nodes."""
        return self.text.encode()[self.span(left)[1] : self.span(right)[0]].decode()

    def with_edit(self, edit: _Edit) -> str:
        """Return the text with other code in place of a piece."""
        data = self.text.encode()
        return (data[: edit.start] + edit.code.encode() + data[edit.end :]).decode()


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    code: str


_NEVER = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
    ast.Pass,
    ast.Nonlocal,
    ast.Global,
)
_LOOSE = (ast.BoolOp, ast.IfExp, ast.Lambda, ast.NamedExpr)
_Operator: TypeAlias = Callable[[Module, ast.stmt], Iterator[_Edit]]


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the nodes of a statement's own expressions, not those of the statements in it."""
    waiting = list[ast.AST]([statement])
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            # Before 3.12 what is in an f-string has no place in the text.
            if isinstance(child, ast.stmt | ast.JoinedStr | ast.ExceptHandler | ast.match_case):
                continue
            yield child
            waiting.append(child)


# ---- the operators


def _comparison(module: Module, statement: ast.stmt) -> Iterator[_Edit]:
    for node in _expressions(statement):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            old, new = _OTHER_COMPARISON[type(node.ops[0])]
            right = node.comparators[0]
            gap = module.between(node.left, right)
            if gap.count(old) == 1:
                start, end = module.span(node.left)[1], module.span(right)[0]
                yield _Edit(start, end, gap.replace(old, new))


def _off_by_one(module: Module, statement: ast.stmt) -> Iterator[_Edit]:
    for node in _expressions(statement):
        if isinstance(node, ast.Slice):
            for bound in (node.lower, node.upper):
                if bound is not None and not isinstance(bound, ast.Constant):
                    for sign in "+-":
                        yield _Edit(*module.span(bound), f"{module.code(bound)} {sign} 1")
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            for number in (node.value - 1, node.value + 1):
                if number >= 0:
                    yield _Edit(*module.span(node), str(number))


def _dropped_statement(module: Module, statement: ast.stmt) -> Iterator[_Edit]:
    is_effect = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    # A name that is never set would be found by any test.
    is_stored = isinstance(statement, ast.Assign) and not any(
        isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        for target in statement.targets
        for node in ast.walk(target)
    )
    if is_effect or is_stored or isinstance(statement, ast.AugAssign):
        yield _Edit(*module.span(statement), "pass")


def _missing_end(module: Module, statement: ast.stmt) -> Iterator[_Edit]:
    call = statement.value if isinstance(statement, ast.Expr) else None
    called = call.func if isinstance(call, ast.Call) else None
    if isinstance(called, ast.Attribute) and called.attr in _ENDS:
        yield _Edit(*module.span(statement), "pass")


def _swapped_arguments(module: Module, statement: ast.stmt) -> Iterator[_Edit]:
    for node in _expressions(statement):
        if isinstance(node, ast.Call) and not any(
            isinstance(argument, ast.Starred) for argument in node.args
        ):
            for left, right in zip(node.args, node.args[1:], strict=False):
                one, other = module.code(left), module.code(right)
                if one != other:
                    code = f"{other}{module.between(left, right)}{one}"
                    yield _Edit(module.span(left)[0], module.span(right)[1], code)


def _half_a_condition(module: Module, statement: ast.stmt) -> Iterator[_Edit]:
    for node in _expressions(statement):
        if isinstance(node, ast.BoolOp):
            word = " and " if isinstance(node.op, ast.And) else " or "
            for dropped in node.values:
                kept = [module.code(value) for value in node.values if value is not dropped]
                yield _Edit(*module.span(node), word.join(kept))


def _negated_condition(module: Module, statement: ast.stmt) -> Iterator[_Edit]:
    conditions = [node.test for node in _expressions(statement) if isinstance(node, ast.IfExp)]
    if isinstance(statement, ast.If | ast.While):
        conditions.append(statement.test)
    for node in _expressions(statement):
        if isinstance(node, ast.comprehension):
            conditions += node.ifs
    for condition in conditions:
        start, end = module.span(condition)
        yield _Edit(start, end, f"not ({module.text.encode()[start:end].decode()})")


def _stale_value(module: Module, statement: ast.stmt) -> Iterator[_Edit]:
    if isinstance(statement, ast.Assign) and isinstance(target := statement.targets[0], ast.Name):
        names = {node.id for node in ast.walk(statement.value) if isinstance(node, ast.Name)}
        if len(statement.targets) == 1 and target.id in names:
            yield _Edit(*module.span(statement), "pass")


def _one_of_several(module: Module, statement: ast.stmt) -> Iterator[_Edit]:
    loops = [node.iter for node in _expressions(statement) if isinstance(node, ast.comprehension)]
    if isinstance(statement, ast.For):
        loops.append(statement.iter)
    for loop in loops:
        for part in ("[:1]", "[-1:]"):
            yield _Edit(*module.span(loop), f"list({module.code(loop)}){part}")
    other = {"max": "min", "min": "max", "any": "all", "all": "any", "sorted": "list"}
    for node in _expressions(statement):
        called = node.func if isinstance(node, ast.Call) and not node.keywords else None
        if isinstance(called, ast.Name) and called.id in other:
            yield _Edit(*module.span(called), other[called.id])


def _swallowed_error(module: Module, statement: ast.stmt) -> Iterator[_Edit]:
    if isinstance(statement, ast.Raise):
        for code in ("pass", "return None"):
            yield _Edit(*module.span(statement), code)


def _doubled_constant(module: Module, statement: ast.stmt) -> Iterator[_Edit]:
    for node in _expressions(statement):
        number = node.value if isinstance(node, ast.Constant) else None
        if isinstance(node, ast.Constant) and isinstance(number, int | float) and number > 1:
            yield _Edit(*module.span(node), f"{module.code(node)} * 2")


OPERATORS: Mapping[str, _Operator] = {
    "comparison": _comparison,
    "off by one": _off_by_one,
    "dropped statement": _dropped_statement,
    "missing end": _missing_end,
    "swapped arguments": _swapped_arguments,
    "half a condition": _half_a_condition,
    "negated condition": _negated_condition,
    "stale value": _stale_value,
    "one of several": _one_of_several,
    "swallowed error": _swallowed_error,
    "doubled constant": _doubled_constant,
}


def edited(module: Module, statement: ast.stmt, operator: str) -> list[str]:
    """Return all texts of a module that an operator makes of one of its statements."""
    return [module.with_edit(edit) for edit in OPERATORS[operator](module, statement)]


# ---- the draw


class Bugs:
    """Draws bugs of the product."""

    def __init__(self, product: Mapping[Path, str]) -> None:
        """Find the statements that a bug can be in.

        Args:
            product: The text of each module, by its path below src.
        """
        self._places: list[tuple[Module, ast.stmt]] = []
        weights: list[float] = []
        for file, text in sorted(product.items()):
            module = Module(file, text)
            self._places += [(module, statement) for statement in module.statements]
            weight = _WEIGHTS.get(file.parts[1], _OTHERS)
            weights += [weight] * (len(self._places) - len(weights))
        self._weights = list(accumulate(weights))

    def draw(self, seed: str) -> Iterator[Bug]:
        """Draw one bug after the other."""
        chance = random.Random(seed)
        while True:
            ((module, statement),) = chance.choices(self._places, cum_weights=self._weights)
            if _SAYS.match(module.code(statement)):
                continue
            edits = {
                name: list(operator(module, statement)) for name, operator in OPERATORS.items()
            }
            names = [name for name, found in edits.items() if found]
            if names:
                name = chance.choice(names)
                bug = _bug(module, statement, name, chance.choice(edits[name]))
                if bug is not None:
                    yield bug


def _bug(module: Module, statement: ast.stmt, operator: str, edit: _Edit) -> Bug | None:
    """Return the bug that an edit makes; None if it leaves no Python."""
    after = module.with_edit(edit)
    try:
        ast.parse(after)
    except SyntaxError:
        return None
    # A compound statement's head ends where the first statement in it begins.
    body = getattr(statement, "body", None)
    end = body[0].lineno if body else (statement.end_lineno or statement.lineno) + 1
    line = module.text.encode()[: edit.start].count(b"\n") + 1
    change = Change(
        name=f"{module.file}:{line} {operator}", file=module.file, before=module.text, after=after
    )
    lines = range(statement.lineno, max(end, statement.lineno + 1))
    return Bug(operator=operator, change=change, lines=lines, line=line)
