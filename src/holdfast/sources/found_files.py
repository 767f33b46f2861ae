"""Find files: paths, folders and globs become objects of a store."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from holdfast.errors import InputChangedError, SettingsError
from holdfast.ledger.answers import answers
from holdfast.model.pins import Pins
from holdfast.storage.locations import normalise
from holdfast.storage.port import ObjectFacts, Storage
from holdfast.storage.runtime import io_runtime

_GLOB = re.compile(r"[*?\[]")
# A name that engines keep to themselves: `_temporary`, `.crc`; but `_day=1` is a column.
_NOT_HIDDEN = r"(?![._][^/=]*(?:/|\Z))"
_WILDCARD = re.compile(r"(\*+|\?|\[[^]]+\])")
_EXAMPLES = 3


def find_files(
    storage: Storage, paths: Sequence[str], suffix: str = "", *, must_exist: bool = True
) -> list[ObjectFacts]:
    """Return the objects that the paths name, each once, sorted by name.

    A path is an object, a folder (then all that is in it), or a glob: `*`, `?` and `[a-z]` within
    a name, `**` for any depth. Names that begin with `_` or `.` must be named outright.

    Args:
        storage: How they are reached.
        paths: Which.
        suffix: How the names of objects in a folder end.
        must_exist: Whether each path must name something.

    Raises:
        SettingsError: A path names nothing, or cannot be read as one.
        StoreUnavailableError: The storage does not answer.
    """
    find = partial(_find, storage, suffix=suffix, must_exist=must_exist)
    found = {one.uri: one for facts in io_runtime().each(find, paths) for one in facts}
    return [found[uri] for uri in sorted(found)]


def compare_files(
    storage: Storage, found: Sequence[ObjectFacts], pins: Pins, *, may_grow: bool
) -> str:
    """Say how files that this start names differ from the pinned ones; empty if they do not.

    Args:
        storage: How they are reached.
        found: What this start names.
        pins: What the first one named.
        may_grow: Whether new files are left to another run.

    Raises:
        InputChangedError: A pinned file was changed or deleted.
        StoreUnavailableError: The storage does not answer.
    """
    now = {one.uri: one for one in found}
    unnamed = []
    for file in pins.files:
        one = now.pop(file.uri, None)
        if one is None:
            unnamed.append(file.uri)
        elif (one.size_bytes, one.tag) != (file.size_bytes, file.tag):
            raise InputChangedError(what=f"{file.uri} was written anew since the run began")
    for uri in unnamed[:_EXAMPLES]:
        with answers(uri):
            if uri not in {one.uri for one in storage.facts(uri)}:
                raise InputChangedError(what=f"{uri} is gone")
    if unnamed:
        names = ", ".join(unnamed[:_EXAMPLES])
        return f"{len(unnamed)} files of the run are not named by this start ({names})"
    if not now or may_grow:
        return ""
    names = ", ".join(sorted(now)[:_EXAMPLES])
    return (
        f"{len(now)} files are new since the run began ({names}), and are not in this run; name "
        'them in a run of their own, or pass new_files="leave" to finish this one without them'
    )


def _find(storage: Storage, path: str, *, suffix: str, must_exist: bool) -> list[ObjectFacts]:
    uri = normalise(path)
    glob = _GLOB.search(uri)
    folder = normalise(uri[: uri.rindex("/", 0, glob.start()) + 1]) if glob else uri
    with answers(folder):
        found = _without_markers(storage.facts(folder))
    if glob:
        matches = _pattern(uri).fullmatch
        found = [one for one in found if matches(one.uri)]
    elif [one.uri for one in found] != [uri]:
        seen = re.compile(f"(?:{_NOT_HIDDEN}[^/]+/)*{_NOT_HIDDEN}[^/]+").fullmatch
        found = [
            one
            for one in found
            if one.uri.endswith(suffix) and seen(one.uri.removeprefix(f"{uri}/"))
        ]
    if not found and must_exist:
        raise SettingsError(what=f"{path!r} names no file", cure="look at the path and its glob")
    return found


def _without_markers(found: Sequence[ObjectFacts]) -> list[ObjectFacts]:
    """Leave out the empty objects by which some tools make a folder of a store look like one."""
    folders = {one.uri.rpartition("/")[0] for one in found}
    return [one for one in found if one.size_bytes or one.uri not in folders]


def _pattern(glob: str) -> re.Pattern[str]:
    """Return what a glob means.

    Raises:
        SettingsError: Nothing.
    """
    *folders, name = glob.split("/")
    any_folders = f"(?:{_NOT_HIDDEN}[^/]+/)*"
    parts = [any_folders if one == "**" else f"{_segment(one)}/" for one in folders]
    parts.append(f"{any_folders}{_NOT_HIDDEN}[^/]+" if name == "**" else _segment(name))
    try:
        return re.compile("".join(parts))
    except re.error as error:
        raise SettingsError(what=f"{glob!r} is no glob: {error}", cure="mend it") from error


def _segment(text: str) -> str:
    """Return what a glob means within one name."""
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
