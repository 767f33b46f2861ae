"""Numbers and moments as people say them."""

from __future__ import annotations

import shlex
from datetime import datetime, timezone

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400
# Below it a larger unit says too little: "100 min ago", and then "2 h ago".
_FEW = 2
_ASCII_END = 128


def done_of(done: int, known: int | None, noun: str = "") -> str:
    """Return how many rows are done, of how many: `12,000 of 20,000 rows (60%)`."""
    noun = f" {noun}" if noun else ""
    if known is None:
        return f"{done:,}{noun}"
    if not known:
        return f"{done:,} of 0{noun}"
    return f"{done:,} of {known:,}{noun} ({percent(done, known)})"


def percent(done: int, known: int) -> str:
    """Return a part in percent, which is never 100% while rows are missing."""
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
    """Return a moment in UTC, to the second."""
    return datetime.fromtimestamp(unix_seconds, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def iso_moment(unix_seconds: float) -> str | None:
    """Return a moment for programs; None for none."""
    if not unix_seconds:
        return None
    return datetime.fromtimestamp(unix_seconds, tz=timezone.utc).isoformat(timespec="milliseconds")


def command(name: str, run_id: str, *more: str) -> str:
    """Return a command line that can be copied, as part of a sentence."""
    # An id such as -rf would be taken for a flag.
    words = [*more, "--", run_id] if run_id.startswith("-") else [run_id, *more]
    return f"`{' '.join(map(_quoted, ['holdfast', name, *words]))}`"


def _quoted(word: str) -> str:
    """Return a word for a shell; one that a terminal cannot show in the spelling of bash and zsh.

    There each byte is spelled by itself: what is copied is the id, and not a picture of it.
    """
    if word.isprintable():
        return shlex.quote(word)
    spelled = "".join(
        chr(byte) if chr(byte).isalnum() and byte < _ASCII_END else f"\\x{byte:02x}"
        for byte in word.encode()
    )
    return f"$'{spelled}'"
