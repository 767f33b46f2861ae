"""How an error of a library is told in a message of ours."""

from __future__ import annotations


def in_short(error: BaseException) -> str:
    """Return an error's kind and its first line: the rest is for a debugger."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
