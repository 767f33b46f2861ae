"""Text for people: nothing in it acts on a terminal, and no password is in it.

Run ids, reasons, hosts, table names and error texts come from other programs and other people.
Every channel that shows them (terminal, log, error message, page) passes them through here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

CUT = "***"

# `//user:password@host`. A password may hold slashes that should have been quoted; digits before
# the first slash are rather a port.
_PASSWORD = re.compile(
    r"(:/{1,3}[^\s/:@]{0,256}:)(?:[^\s/]{1,1024}|(?!\d{1,5}/)[^\s]{1,1024})(?=@)"
)
# A parameter of a URL, by its name.
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
# A literal in a line of source that a name calls a secret: `api_key="..."`, `{"token": "..."}`.
_LITERAL = re.compile(
    r"((?:secret|password|passwd|token|credential|authorization|(?:access|account|api).?key)\w*"
    r"""["']?\]?\s*[=:]\s*[rbf]?)(["'])[^"']+\2""",
    re.IGNORECASE,
)
_LOGIN = re.compile(r"[^/:@]*:(.+)@")
# A shorter value would be found in the middle of plain words.
_SECRET_LENGTH_MIN = 4
# Of settings such as `token-refresh-enabled`.
_NO_SECRETS = ("true", "false")


def printable(text: str) -> str:
    r"""Return a text on one line that a terminal shows as it is: `\x1b`, `\n` and `\u202e` spelled.

    The characters are those that `repr` spells as well: control characters, line ends, marks of
    the writing direction, and blanks that are none.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def without_passwords(text: str) -> str:
    """Return a text whose URLs have lost their passwords and secret parameters."""
    return _PARAMETER.sub(rf"\g<1>{CUT}", _PASSWORD.sub(rf"\g<1>{CUT}", text))


def code_without_secrets(text: str) -> str:
    """Return lines of source, or a traceback, without passwords and literals that are secrets."""
    return _LITERAL.sub(rf"\g<1>\g<2>{CUT}\g<2>", without_passwords(text))


def has_password(uri: str) -> bool:
    """Whether a URI has a password in front of its host."""
    login, at, _ = uri.partition("://")[2].partition("/")[0].rpartition("@")
    return bool(at) and ":" in login


def in_short(error: BaseException) -> str:
    """Return an error of a library: its kind and its first line, the rest is for a debugger."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return without_passwords(text)


def told(error: BaseException, options: Mapping[str, Any]) -> tuple[str, BaseException | None]:
    """Return a library's error in short, and the same error to raise ours from.

    The second is None if a traceback would show a secret with it.

    Args:
        error: The error.
        options: What the library was given; the error may repeat a secret of it.
    """
    texts = [f"{behind} {behind!r}" for behind in error_chain(error)]
    is_clean = all(_cut_out(text, options) == text for text in texts)
    return _cut_out(in_short(error), options), error if is_clean else None


def _cut_out(text: str, options: Mapping[str, Any]) -> str:
    for secret in sorted(set(_secrets(options)), key=len, reverse=True):
        text = text.replace(secret, CUT)
    return without_passwords(text)


def error_chain(error: BaseException, *, handled: bool = True) -> Iterator[BaseException]:
    """Yield the error and all that a traceback shows before it.

    Args:
        error: The one that was raised last.
        handled: Also those that were being handled; else only those that it was raised from.
    """
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            left += [one.__cause__, one.__context__ if handled else None]


def _secrets(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the values that must not be shown, as they are and as a URL would hold them."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _secrets(value)
        elif isinstance(value, str):
            found = [value] if _SECRET_NAME.search(name) else []
            if (login := _LOGIN.match(value.partition("://")[2] or value)) is not None:
                found.append(login[1])
            # `id:secret`, as a catalog takes a credential.
            found += [text.partition(":")[2] for text in found if ":" in text]
            for text in (*found, *map(unquote, found)):
                if len(text) >= _SECRET_LENGTH_MIN and text.lower() not in _NO_SECRETS:
                    yield text
