"""Find files: paths, folders and globs become objects of a store; columns in their paths."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from urllib.parse import unquote

import pyarrow as pa

from holdfast.errors import InputChangedError, SettingsError
from holdfast.ledger.store import answers
from holdfast.model.coverage import Pins
from holdfast.storage.locations import normalise
from holdfast.storage.port import ObjectFacts, Storage
from holdfast.storage.runtime import io_runtime

# ---- Columns in a file's path: `day=2026-11-15/country=NL/part-0.parquet`

_NULL = "__HIVE_DEFAULT_PARTITION__"
_LONGEST_NUMBER = 18


def path_values(uri: str) -> dict[str, str | None]:
    """Return the columns of one path, as strings."""
    values: dict[str, str | None] = {}
    for part in uri.split("/")[:-1]:
        name, sign, value = part.partition("=")
        if sign and name:
            values[unquote(name)] = None if value == _NULL else unquote(value)
    return values


def path_schema(values: Sequence[Mapping[str, str | None]]) -> pa.Schema:
    """Return the columns of all paths: integers if every value is one, else strings."""
    texts: dict[str, set[str]] = {}
    for in_path in values:
        for name, text in in_path.items():
            texts.setdefault(name, set()).update(() if text is None else (text,))
    return pa.schema(
        [
            pa.field(name, pa.int64() if found and all(map(_is_number, found)) else pa.string())
            for name, found in texts.items()
        ]
    )


def typed(uri: str, name: str, text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return the value that a path's text represents.

    Raises:
        SettingsError: The text is not a value of this type.
    """
    try:
        return pa.scalar(text, pa.string()).cast(kind)
    except pa.ArrowException as error:
        raise SettingsError(
            what=f"{uri}: column {name!r} is {kind} in other files, but {text!r} is not",
            cure="scan these files in separate runs",
        ) from error


def _is_number(text: str) -> bool:
    """Whether a text is a whole number in normal form: `007` is a name."""
    digits = text.removeprefix("-")
    return (
        digits.isascii()
        and digits.isdecimal()
        and len(digits) <= _LONGEST_NUMBER
        and (text == "0" or not digits.startswith("0"))
    )


# ---- Find files: paths, folders and globs become objects of a store

_GLOB = re.compile(r"[*?\[]")
# A name that engines keep private: `_temporary`, `.crc`; but `_day=1` is a column.
_NOT_HIDDEN = r"(?![._][^/=]*(?:/|\Z))"
_WILDCARD = re.compile(r"(\*+|\?|\[[^]]+\])")
_EXAMPLES = 3


def find_files(
    storage: Storage, paths: Sequence[str], suffix: str = "", *, must_exist: bool = True
) -> list[ObjectFacts]:
    """Return the objects that the paths name, each once, sorted by name.

    A path is an object, a folder (all of its contents), or a glob: `*`, `?` and `[a-z]` within a
    name, `**` for any depth. Names that begin with `_` or `.` match only if they are given
    explicitly.

    Args:
        storage: How the objects are reached.
        paths: Objects, folders or globs.
        suffix: The ending of object names to take from a folder.
        must_exist: Whether each path must name something.

    Raises:
        SettingsError: A path names nothing, or is not a valid path.
        StoreUnavailableError: The storage does not answer.
    """
    find = partial(_find, storage, suffix=suffix, must_exist=must_exist)
    found = {file.uri: file for facts in io_runtime().each(find, paths) for file in facts}
    return [found[uri] for uri in sorted(found)]


def compare_files(
    storage: Storage, found: Sequence[ObjectFacts], pins: Pins, *, may_grow: bool
) -> str:
    """Return how this start's files differ from the pinned ones; empty if they do not.

    Args:
        storage: How the files are reached.
        found: The files of this start.
        pins: The files of the first start.
        may_grow: Whether new files are left to another run.

    Raises:
        InputChangedError: A pinned file was changed or deleted.
        StoreUnavailableError: The storage does not answer.
    """
    now = {facts.uri: facts for facts in found}
    unnamed = []
    for file in pins.files:
        facts = now.pop(file.uri, None)
        if facts is None:
            unnamed.append(file.uri)
        elif (facts.size_bytes, facts.tag) != (file.size_bytes, file.tag):
            raise InputChangedError(what=f"{file.uri} was rewritten since the run began")
    for uri in unnamed[:_EXAMPLES]:
        with answers(uri):
            if uri not in {entry.uri for entry in storage.facts(uri)}:
                raise InputChangedError(what=f"{uri} is gone")
    if unnamed:
        names = ", ".join(unnamed[:_EXAMPLES])
        return f"{len(unnamed)} files of the run are not named by this start ({names})"
    if not now or may_grow:
        return ""
    names = ", ".join(sorted(now)[:_EXAMPLES])
    return (
        f"{len(now)} files were added since the run began ({names}), and are not in this run; "
        'scan them in a separate run, or pass new_files="leave" to finish this one without them'
    )


def _find(storage: Storage, path: str, *, suffix: str, must_exist: bool) -> list[ObjectFacts]:
    uri = normalise(path)
    glob = _GLOB.search(uri)
    folder = normalise(uri[: uri.rindex("/", 0, glob.start()) + 1]) if glob else uri
    with answers(folder):
        found = _without_markers(storage.facts(folder))
    if glob:
        matches = _pattern(uri).fullmatch
        found = [file for file in found if matches(file.uri)]
    elif [file.uri for file in found] != [uri]:
        seen = re.compile(f"(?:{_NOT_HIDDEN}[^/]+/)*{_NOT_HIDDEN}[^/]+").fullmatch
        found = [
            file
            for file in found
            if file.uri.endswith(suffix) and seen(file.uri.removeprefix(f"{uri}/"))
        ]
    if not found and must_exist:
        raise SettingsError(what=f"{path!r} matches no file", cure="check the path and its glob")
    return found


def _without_markers(found: Sequence[ObjectFacts]) -> list[ObjectFacts]:
    """Leave out the empty objects with which some tools represent folders in a store."""
    folders = {file.uri.rpartition("/")[0] for file in found}
    return [file for file in found if file.size_bytes or file.uri not in folders]


def _pattern(glob: str) -> re.Pattern[str]:
    """Return a glob as a regular expression.

    Raises:
        SettingsError: The glob is malformed.
    """
    *folders, name = glob.split("/")
    any_folders = f"(?:{_NOT_HIDDEN}[^/]+/)*"
    parts = [any_folders if folder == "**" else f"{_segment(folder)}/" for folder in folders]
    parts.append(f"{any_folders}{_NOT_HIDDEN}[^/]+" if name == "**" else _segment(name))
    try:
        return re.compile("".join(parts))
    except re.error as error:
        raise SettingsError(
            what=f"{glob!r} is not a valid glob: {error}", cure="fix the glob"
        ) from error


def _segment(text: str) -> str:
    """Return a glob within one name as a regular expression."""
    meant = _NOT_HIDDEN if _WILDCARD.match(text) else ""
    for part in _WILDCARD.split(text):
        if part.startswith("*"):
            meant += "[^/]*"
        elif part == "?":
            meant += "[^/]"
        elif _WILDCARD.fullmatch(part):
            inside = part[1:-1].replace("\\", r"\\").replace("[", r"\[")
            meant += f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
        else:
            meant += re.escape(part)
    return meant
