"""A finding: what one check saw, and how to mend it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.errors import HoldfastError

Level = Literal["ok", "warning", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check."""

    check: str
    level: Level
    seen: str
    # What to do about it; empty if there is nothing to do.
    fix: str = ""


def ok(check: str, seen: str) -> Finding:
    """Return that all is well."""
    return Finding(check=check, level="ok", seen=seen)


def warning(check: str, seen: str, fix: str) -> Finding:
    """Return what may do harm later, or in some jobs."""
    return Finding(check=check, level="warning", seen=seen, fix=fix)


def failed(check: str, seen: str, fix: str) -> Finding:
    """Return what no job can work with."""
    return Finding(check=check, level="failed", seen=seen, fix=fix)


def failed_by(check: str, error: HoldfastError) -> Finding:
    """Return what an error of ours says, in its own words."""
    lines = str(error).splitlines()
    fix = lines[-1].strip().removeprefix("What to do: ").removesuffix(".")
    return failed(check, lines[0], fix)
