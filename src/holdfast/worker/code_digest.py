"""A digest of the transform's code, to notice that a run resumes with different code.

It covers the code itself, not its pickle, which differs from process to process: the function or
class, its arguments, its closure, and what it uses from its own module. It does not follow calls
into other modules: use `version=` for changes that it cannot see.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, MethodType
from typing import TypeVar

from holdfast.worker.transforms import PerRow, PerWorker

_Described = TypeVar("_Described", FunctionType, type)

_PLAIN = (str, bytes, int, float, complex, bool, type(None), type(...))
_GROUPS = (PerRow, PerWorker, functools.partial, dict, list, tuple)


def code_digest(transform: object) -> str:
    """Return a short digest of a transform's own code."""
    facts = "\n".join(_Look(_package(transform), frozenset()).facts(transform))
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


class _Look:
    """One pass over a transform.

    Functions, classes and collections are described once, because they may refer to themselves.
    Objects from packages other than the transform's own contribute only their names, because their
    state may be anything.
    """

    def __init__(self, package: str, seen: Iterable[int]) -> None:
        self._package = package
        self._seen = set(seen)

    def facts(self, value: object) -> Iterator[str]:
        """Yield what identifies a value, without anything that differs between processes."""
        if isinstance(value, _PLAIN):
            yield repr(value)
        elif isinstance(value, MethodType):
            yield from self.facts(value.__func__)
        elif isinstance(value, set | frozenset):
            # A set has no fixed order: it differs between processes.
            yield from sorted(map(self._text, value))
        elif isinstance(value, _GROUPS):
            yield type(value).__name__
            if id(value) not in self._seen:
                self._seen.add(id(value))
                yield from self._all(self._parts(value))
        elif isinstance(value, FunctionType):
            yield from self._once(value, self._function)
        else:
            # For an object, only its class: its state may hold connections, caches and addresses.
            kind = value if isinstance(value, type) else type(value)
            yield from self._once(kind, self._class)

    def _all(self, values: Iterable[object]) -> Iterator[str]:
        yield "("
        for value in values:
            yield from self.facts(value)
        yield ")"

    def _once(
        self, value: _Described, describe: Callable[[_Described], Iterator[str]]
    ) -> Iterator[str]:
        yield value.__qualname__
        if id(value) not in self._seen and _package(value) == self._package:
            self._seen.add(id(value))
            yield from describe(value)

    def _function(self, function: FunctionType) -> Iterator[str]:
        yield from self._code(function.__code__, function)
        yield from self._all([function.__defaults__, function.__kwdefaults__])
        yield from self._all(_enclosed(function))

    def _code(self, code: CodeType, function: FunctionType) -> Iterator[str]:
        yield code.co_code.hex()
        yield repr(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from self._code(constant, function)
            else:
                yield from self.facts(constant)
        own = function.__globals__
        for name in code.co_names:
            used = own.get(name)
            if isinstance(used, _PLAIN) or getattr(used, "__module__", "") == function.__module__:
                yield from self.facts(used)

    def _text(self, value: object) -> str:
        """Describe a value on its own, regardless of what was described before."""
        return "\n".join(_Look(self._package, self._seen).facts(value))

    def _parts(self, value: object) -> list[object]:
        if isinstance(value, PerWorker):
            return [value.factory, value.args, dict(value.kwargs)]
        if isinstance(value, PerRow):
            # Concurrency and retries do not change what a row becomes.
            return [value.function]
        if isinstance(value, functools.partial):
            return [value.func, value.args, value.keywords]
        if isinstance(value, dict):
            named = {self._text(name): item for name, item in value.items()}
            return [part for name in sorted(named) for part in (name, named[name])]
        return list(value) if isinstance(value, list | tuple) else []

    def _class(self, kind: type) -> Iterator[str]:
        for base in kind.__mro__:
            yield base.__qualname__
            for name, member in vars(base).items():
                method = (
                    member.fget
                    if isinstance(member, property)
                    else getattr(member, "__func__", member)
                )
                # Dunder names hold line numbers and documentation, unless they are code.
                constant = isinstance(member, (*_PLAIN, *_GROUPS)) and not name.startswith("__")
                if isinstance(method, FunctionType) or constant:
                    yield name
                    yield from self.facts(method)


def _package(value: object) -> str:
    """Return the top-level package of a transform, function or class."""
    if isinstance(value, PerRow):
        return _package(value.function)
    if isinstance(value, PerWorker):
        return _package(value.factory)
    if isinstance(value, functools.partial):
        return _package(value.func)
    kind = value if isinstance(value, FunctionType | MethodType | type) else type(value)
    return (kind.__module__ or "").partition(".")[0]


def _enclosed(function: FunctionType) -> list[object]:
    """Return the values in a function's closure; a name that is not yet bound is skipped."""
    found = []
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):
            found.append(cell.cell_contents)
    return found
