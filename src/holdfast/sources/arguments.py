"""Arguments that several scans share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from holdfast.errors import SettingsError

# What to do about files that came since the run began.
NewFiles = Literal["refuse", "leave"]


def checked_paths(scan: str, paths: str | Sequence[str], new_files: NewFiles) -> tuple[str, ...]:
    """Return the paths of a scan.

    Raises:
        SettingsError: There are none, or `new_files` is unknown.
    """
    named = (paths,) if isinstance(paths, str) else tuple(paths)
    if not named:
        raise SettingsError(what=f"{scan} without a path", cure="name a file or a glob")
    if new_files not in {"refuse", "leave"}:
        raise SettingsError(what=f"new_files={new_files!r}", cure='give "refuse" or "leave"')
    return named


def checked_columns(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the names of columns.

    Raises:
        SettingsError: There are none, one stands there twice, or it is one text.
    """
    if columns is None:
        return None
    if isinstance(columns, str) or not columns or len(set(columns)) != len(columns):
        raise SettingsError(
            what=f"columns={columns!r}", cure="give a list of different names, or leave it out"
        )
    return tuple(columns)
