"""The public API as text: names, signatures, values, errors, commands and extras.

Run it from the root of the repository: `make public-api` writes `tests/public_api.txt`. A change of
the API is then a change of that file, which a reviewer sees; `make check` and `make release-check`
fail on one that is not there. It reads the sources and imports nothing but the command line.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator
from pathlib import Path

import griffe

from holdfast.cli.main import make_parser

ROOT = Path(__file__).parents[1]
SNAPSHOT = ROOT / "tests" / "public_api.txt"
ACCEPT = (
    "the public API is not what tests/public_api.txt says. If the change is intended, run "
    "`make public-api`, commit the file, and give CHANGELOG.md an entry that says what to do"
)
_HEAD = "# Written by `make public-api`; a change of this file needs an entry in CHANGELOG.md.\n"
# What errors say may change at any time: programs look at classes and fields.
_TEXTS = ("advice", "happened")
_MARKS = {
    griffe.ParameterKind.var_positional: "*",
    griffe.ParameterKind.var_keyword: "**",
}


def main() -> None:
    """Write the snapshot."""
    SNAPSHOT.write_text(public_api())


def difference() -> str:
    """Return how the API differs from the snapshot, and how to accept it; empty if it does not."""
    kept = SNAPSHOT.read_text() if SNAPSHOT.is_file() else ""
    lines = difflib.unified_diff(
        kept.splitlines(), public_api().splitlines(), "kept", "now", lineterm="", n=1
    )
    text = "\n".join(lines)
    return f"{text}\n{ACCEPT}" if text else ""


def public_api(sources: Path = ROOT / "src") -> str:
    """Return the public API of the package that is in a folder.

    Raises:
        TypeError: The folder has something else of that name.
    """
    package = griffe.load("holdfast", search_paths=[sources], resolve_aliases=True)
    if not isinstance(package, griffe.Module):
        raise TypeError(type(package).__name__)
    names = [str(name).strip("'\"") for name in package.exports or ()]
    lines = [line for name in sorted(names) for line in _member(f"holdfast.{name}", package[name])]
    lines += [
        line
        for name, member in sorted(package["errors"].members.items())
        if isinstance(member, griffe.Class) and not name.startswith("_")
        for line in _member(f"holdfast.errors.{name}", member)
    ]
    return "\n".join([_HEAD, *lines, "", *_extras(), "", *_commands(), ""])


def _member(name: str, member: griffe.Object | griffe.Alias) -> Iterator[str]:
    """Yield the lines of a public name."""
    found = member.final_target if isinstance(member, griffe.Alias) else member
    if isinstance(found, griffe.Function):
        yield f"def {name}{_signature(found)}"
    elif isinstance(found, griffe.Class):
        yield from _class(name, found)
    else:
        yield name


def _class(name: str, found: griffe.Class) -> Iterator[str]:
    bases = ", ".join(str(base) for base in found.bases)
    yield f"class {name}({bases})" if bases else f"class {name}"
    members: dict[str, griffe.Object | griffe.Alias] = {}
    members.update(found.inherited_members)
    members.update(found.members)
    for of, member in sorted(members.items()):
        if of.startswith("_") and of != "__init__":
            continue
        target = member.final_target if isinstance(member, griffe.Alias) else member
        if isinstance(target, griffe.Function):
            yield f"    def {of}{_signature(target)}"
        elif isinstance(target, griffe.Attribute) and of not in _TEXTS:
            kind = "property " if "property" in target.labels else ""
            # The default of a field is among the arguments above.
            shown = f" = {target.value}" if target.annotation is None else f": {target.annotation}"
            yield f"    {kind}{of}{shown}"


def _signature(function: griffe.Function) -> str:
    """Return parameters with their defaults, and what is returned."""
    shown = []
    keyword_only = False
    for parameter in function.parameters:
        kind = parameter.kind
        if kind is griffe.ParameterKind.keyword_only and not keyword_only:
            keyword_only = True
            shown.append("*")
        keyword_only |= kind is griffe.ParameterKind.var_positional
        text = f"{_MARKS.get(kind or griffe.ParameterKind.keyword_only, '')}{parameter.name}"
        if parameter.annotation is not None:
            text += f": {parameter.annotation}"
        if parameter.default is not None and not _MARKS.get(kind or parameter.kind):
            text += f" = {parameter.default}"
        shown.append(text)
    return f"({', '.join(shown)}) -> {function.returns}"


def _extras() -> Iterator[str]:
    """Yield the extras of the package."""
    _, _, rest = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")
    for line in rest.partition("\n[")[0].splitlines():
        name, equals, _ = line.partition(" = [")
        if equals:
            yield f"extra {name}"


def _commands() -> Iterator[str]:
    """Yield the arguments and options of each command."""
    (commands,) = [action for action in _actions(make_parser()) if action.choices]
    for name, parser in sorted(dict(commands.choices or {}).items()):
        words = [
            max(
                action.option_strings,
                key=len,
                default=f"{action.dest} {action.nargs or ''}".strip(),
            )
            for action in _actions(parser)
        ]
        yield f"holdfast {name}: {', '.join(words)}"


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return parser._actions  # noqa: SLF001 - argparse has no other list of them.


if __name__ == "__main__":
    main()
