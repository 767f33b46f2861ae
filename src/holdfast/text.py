"""Text for people: safe on a terminal, without passwords; durations, shares and moments in words.

Run ids, reasons, hosts, table names and error texts come from other programs and other people.
Every channel that shows them (terminal, log, error message, page) passes them through here.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import unquote

# ---- Text for people: free of terminal control sequences and passwords

CUT = "***"

# `//user:password@host`. A password may hold slashes that should have been quoted; digits before
# the first slash are more likely a port.
_PASSWORD = re.compile(
    r"(:/{1,3}[^\s/:@]{0,256}:)(?:[^\s/]{1,1024}|(?!\d{1,5}/)[^\s]{1,1024})(?=@)"
)
# A URL parameter, by its name.
_PARAMETER = re.compile(
    r"([?&;][\w.-]*(?:password|passwd|pwd|secret|token|sig|signature|credential|key)=)"
    r"[^&;\s'\"<>]+",
    re.IGNORECASE,
)
_SECRET_NAME = re.compile(
    "secret|password|token|credential|authorization|connection.string|sas|"
    "(?:access|account|api).?key",
    re.IGNORECASE,
)
# A literal in source code whose name marks it as a secret: `api_key="..."`, `{"token": "..."}`.
_LITERAL = re.compile(
    r"((?:secret|password|passwd|token|credential|authorization|(?:access|account|api).?key)\w*"
    r"""["']?\]?\s*[=:]\s*[rbf]?)(["'])[^"']+\2""",
    re.IGNORECASE,
)
_LOGIN = re.compile(r"[^/:@]*:(.+)@")
# Shorter values would match inside ordinary words.
_SECRET_LENGTH_MIN = 4
# Values of settings such as `token-refresh-enabled`.
_NO_SECRETS = ("true", "false")


def printable(text: str) -> str:
    r"""Return text as one line that is safe on a terminal: `\x1b`, `\n` and `\u202e` are escaped.

    Escapes the same characters as `repr`: control characters, line ends, direction marks, and
    whitespace other than the plain space.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def without_passwords(text: str) -> str:
    """Return the text with passwords and secret parameters removed from its URLs."""
    return _PARAMETER.sub(rf"\g<1>{CUT}", _PASSWORD.sub(rf"\g<1>{CUT}", text))


def code_without_secrets(text: str) -> str:
    """Return source lines, or a traceback, without passwords and secret literals."""
    return _LITERAL.sub(rf"\g<1>\g<2>{CUT}\g<2>", without_passwords(text))


def has_password(uri: str) -> bool:
    """Whether a URI has a password before its host."""
    login, at, _ = uri.partition("://")[2].partition("/")[0].rpartition("@")
    return bool(at) and ":" in login


def in_short(error: BaseException) -> str:
    """Return a library's error in short: its type and first line."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return without_passwords(text)


def reason_and_cause(
    error: BaseException, options: Mapping[str, Any]
) -> tuple[str, BaseException | None]:
    """Return a library's error in short, and the error to raise ours from.

    The second is None if its traceback would show a secret.

    Args:
        error: The error.
        options: The options that the library was given; the error may repeat a secret from them.
    """
    texts = [f"{behind} {behind!r}" for behind in error_chain(error)]
    is_clean = all(_cut_out(text, options) == text for text in texts)
    return _cut_out(in_short(error), options), error if is_clean else None


def _cut_out(text: str, options: Mapping[str, Any]) -> str:
    for secret in sorted(set(_secrets(options)), key=len, reverse=True):
        text = text.replace(secret, CUT)
    return without_passwords(text)


def error_chain(error: BaseException, *, handled: bool = True) -> Iterator[BaseException]:
    """Yield the error and all errors that its traceback would show before it.

    Args:
        error: The error that was raised last.
        handled: Include errors that were being handled; otherwise only explicit causes.
    """
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        current = left.pop()
        if current is not None and id(current) not in seen:
            seen.add(id(current))
            yield current
            left += [current.__cause__, current.__context__ if handled else None]


def _secrets(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the values that must not be shown, both plain and URL-encoded."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _secrets(value)
        elif isinstance(value, str):
            found = [value] if _SECRET_NAME.search(name) else []
            if (login := _LOGIN.match(value.partition("://")[2] or value)) is not None:
                found.append(login[1])
            # `id:secret`, the form in which a catalog takes a credential.
            found += [text.partition(":")[2] for text in found if ":" in text]
            for text in (*found, *map(unquote, found)):
                if len(text) >= _SECRET_LENGTH_MIN and text.lower() not in _NO_SECRETS:
                    yield text


# ---- Durations as people write them: "30s", "5 min", "1h", or a number of seconds

_UNITS_S = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")


def seconds_of(duration: str | float | timedelta) -> float:
    """Return a duration in seconds.

    Raises:
        ValueError: The value is not a duration, or is not positive.
    """
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, str):
        found = _TEXT.fullmatch(duration.lower())
        if found is None or found[2] not in _UNITS_S:
            raise ValueError(f"{duration!r} is not a duration")
        seconds = float(found[1]) * _UNITS_S[found[2]]
    else:
        seconds = float(duration)
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{duration!r} is not a positive, finite duration")
    return seconds


# ---- Numbers and times for people

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400
# Below this, the smaller unit is more precise: "100 min ago", and then "2 h ago".
_FEW = 2
_ASCII_END = 128


def done_of(done: int, known: int | None, failed: int = 0, noun: str = "") -> str:
    """Return how many rows of the total are done: `12,000 of 20,000 rows (60%), 3 failed`.

    Args:
        done: How many rows are behind us, failed ones included.
        known: How many rows there are; None if that is not known.
        failed: How many have failed: they are not called done.
        noun: What is counted.
    """
    good, noun = done - failed, f" {noun}" if noun else ""
    aside = f", {failed:,} failed" if failed else ""
    if known is None:
        return f"{good:,}{noun}{aside}"
    if not known:
        return f"{good:,} of 0{noun}{aside}"
    return f"{good:,} of {known:,}{noun} ({percent(good, known)}){aside}"


def percent(done: int, known: int) -> str:
    """Return a percentage, which is never 100% while rows are missing."""
    return f"{int(100 * done / known)}%"


def age(seconds: float) -> str:
    """Return how long ago something was: `5 min ago`."""
    if seconds < 0:
        return "just now"  # The clock that wrote it is ahead of ours.
    for unit, size in (("days", _DAY_S), ("h", _HOUR_S), ("min", _MINUTE_S)):
        if seconds >= _FEW * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def moment(unix_seconds: float) -> str:
    """Return a time in UTC, to the second."""
    return datetime.fromtimestamp(unix_seconds, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def iso_moment(unix_seconds: float) -> str | None:
    """Return a time in ISO format, for programs; None if there is none."""
    if not unix_seconds:
        return None
    return datetime.fromtimestamp(unix_seconds, tz=timezone.utc).isoformat(timespec="milliseconds")


def command(name: str, run_id: str, *more: str) -> str:
    """Return a command line to copy, as part of a sentence."""
    # An id such as -rf would be taken for an option.
    words = [*more, "--", run_id] if run_id.startswith("-") else [run_id, *more]
    return f"`{' '.join(map(_quoted, ['holdfast', name, *words]))}`"


def _quoted(word: str) -> str:
    """Quote a word for a shell, with the escapes of bash and zsh if a terminal cannot show it.

    Each byte is then escaped separately, so that the copied text is the exact id.
    """
    if word.isprintable():
        return shlex.quote(word)
    spelled = "".join(
        chr(byte) if chr(byte).isalnum() and byte < _ASCII_END else f"\\x{byte:02x}"
        for byte in word.encode()
    )
    return f"$'{spelled}'"


def shown(text: str) -> str:
    """Return a sentence of an error: its facts come from stores, catalogs and other programs.

    A line break inside a fact is followed by blanks: the facts of an error cannot pass for its
    second or third part.
    """
    return "\n    ".join(printable(line) for line in without_passwords(text).splitlines())


# ---- Warnings: shown at the user's own line that called Holdfast
def warn_caller(text: str) -> None:
    """Warn at the innermost line outside this package, however many calls lie between."""
    package = f"{Path(__file__).parent}{os.sep}"  # Not a folder with a longer name.
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(package):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)
