"""A change of one source file: in the process that runs, or in a copy of the product.

The repository's own files are never touched. In a process that has imported the product, the code
of the functions that differ is replaced: in methods, properties and cached or decorated functions
too, because it is their function objects that are looked for, not their names. What differs outside
a function - a constant, a default, a class's body - was already used when the module was imported:
such a change needs a fresh process, which imports a copy of the product with the file changed.
"""

from __future__ import annotations

import difflib
import gc
import importlib
import importlib.util
import inspect
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One source file, before and after."""

    name: str
    # Relative to src.
    file: Path
    before: str = field(repr=False)
    after: str = field(repr=False)

    @property
    def module(self) -> str:
        """The name of the module that the file is."""
        parts = self.file.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def diff(self) -> str:
        """Return what differs, with one line around it."""
        lines = difflib.unified_diff(
            self.before.splitlines(), self.after.splitlines(), n=1, lineterm=""
        )
        return "\n".join([f"src/{self.file}", *list(lines)[2:]])

    def write_into(self, folder: Path) -> None:
        """Make a copy of the product in a folder, of links except for the changed file."""
        here = folder
        for number, name in enumerate(self.file.parts):
            here.mkdir(parents=True, exist_ok=True)
            for path in SOURCE.joinpath(*self.file.parts[:number]).iterdir():
                # A folder of compiled files would get that of the changed file.
                if path.name not in {name, "__pycache__"}:
                    (here / path.name).symlink_to(path)
            here /= name
        here.write_text(self.after, encoding="utf-8")

    def apply(self) -> bool:
        """Change the functions of this process; return False if that needs a fresh process."""
        spec = importlib.util.find_spec(self.module)
        if spec is None or spec.origin is None:
            return False
        importlib.import_module(self.module)
        replaced = replaced_code(self.before, self.after, spec.origin)
        return replaced is not None and all(item.swap() for item in replaced)


def environment_of(source: Path) -> dict[str, str]:
    """Return the environment of a process that imports the product from a folder."""
    return {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}


@dataclass(frozen=True, slots=True)
class Replaced:
    """The code of a function, before and after."""

    before: CodeType
    after: CodeType
    # Defined by a function that is replaced too, and so in effect at that function's next call.
    is_inner: bool

    def swap(self) -> bool:
        """Change all functions that have the code; return whether none is left with it."""
        found = [
            function
            for function in _functions()
            if function.__code__.co_filename == self.before.co_filename
            and function.__code__.co_firstlineno == self.before.co_firstlineno
            and _own(function.__code__) == _own(self.before)
        ]
        if found and self.before.co_freevars != self.after.co_freevars:
            return False
        for function in found:
            function.__code__ = self.after
        return bool(found) or self.is_inner


def replaced_code(before: str, after: str, file: str) -> list[Replaced] | None:
    """Return the functions that differ between two texts of a file; None if not only they do."""
    found: list[Replaced] = []
    was, now = (compile(text, file, "exec", dont_inherit=True) for text in (before, after))
    return found if _compare(was, now, found, is_inner=False) else None


def _functions() -> Iterator[FunctionType]:
    # By type: to ask some objects for their class runs code.
    return (item for item in gc.get_objects() if type(item) is FunctionType)


def _compare(was: CodeType, now: CodeType, found: list[Replaced], *, is_inner: bool) -> bool:
    """Collect the functions that differ in a module or class; return whether only they do."""
    inner, inner_now = _inner(was), _inner(now)
    if _own(was) != _own(now) or len(inner) != len(inner_now):
        return False
    for one, other in zip(inner, inner_now, strict=True):
        if not one.co_flags & inspect.CO_OPTIMIZED:  # The body of a class.
            if not _compare(one, other, found, is_inner=is_inner):
                return False
        elif one.co_name != other.co_name:
            return False
        else:
            _compare_function(one, other, found, is_inner=is_inner)
    return True


def _compare_function(
    was: CodeType, now: CodeType, found: list[Replaced], *, is_inner: bool
) -> None:
    """Collect a function and those in it, if any part differs."""
    if _all(was) == _all(now):
        return
    found.append(Replaced(was, now, is_inner))
    inner, inner_now = _inner(was), _inner(now)
    if [code.co_name for code in inner] == [code.co_name for code in inner_now]:
        for one, other in zip(inner, inner_now, strict=True):
            _compare_function(one, other, found, is_inner=True)


def _inner(code: CodeType) -> list[CodeType]:
    return [item for item in code.co_consts if isinstance(item, CodeType)]


def _all(code: CodeType) -> tuple[Any, ...]:
    return (_own(code), *map(_all, _inner(code)))


def _own(code: CodeType) -> tuple[Any, ...]:
    """Return what a piece of code does, without line numbers and the code that it defines.

    The codes themselves are not compared: since 3.11 the interpreter rewrites one that runs.
    """
    return (
        code.co_name,
        code.co_code,
        tuple(None if isinstance(item, CodeType) else _typed(item) for item in code.co_consts),
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_flags,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
        getattr(code, "co_exceptiontable", b""),
    )


def _typed(constant: object) -> object:
    """Return a constant with its type, so that 1, 1.0 and True differ."""
    if isinstance(constant, tuple | frozenset):
        return type(constant), type(constant)(map(_typed, constant))
    return type(constant), repr(constant) if isinstance(constant, float) else constant
