"""Columns that stand in a file's path: `day=2026-11-15/country=NL/part-0.parquet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import unquote

import pyarrow as pa

from holdfast.errors import SettingsError

_NULL = "__HIVE_DEFAULT_PARTITION__"
_LONGEST_NUMBER = 18


def path_values(uri: str) -> dict[str, str | None]:
    """Return the columns of one path, as texts."""
    values: dict[str, str | None] = {}
    for part in uri.split("/")[:-1]:
        name, sign, value = part.partition("=")
        if sign and name:
            values[unquote(name)] = None if value == _NULL else unquote(value)
    return values


def path_schema(values: Sequence[Mapping[str, str | None]]) -> pa.Schema:
    """Return the columns of all paths: whole numbers where every value is one, else texts."""
    texts: dict[str, set[str]] = {}
    for one in values:
        for name, text in one.items():
            texts.setdefault(name, set()).update(() if text is None else (text,))
    return pa.schema(
        [
            pa.field(name, pa.int64() if found and all(map(_is_number, found)) else pa.string())
            for name, found in texts.items()
        ]
    )


def typed(uri: str, name: str, text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return a path's text as the value that it stands for.

    Raises:
        SettingsError: It is no such value.
    """
    try:
        return pa.scalar(text, pa.string()).cast(kind)
    except pa.ArrowException as error:
        raise SettingsError(
            what=f"{uri}: column {name!r} is {kind} in other files, and {text!r} is none",
            cure="scan these files in runs of their own",
        ) from error


def _is_number(text: str) -> bool:
    """Whether a text is a whole number that is written as numbers are: `007` is a name."""
    digits = text.removeprefix("-")
    return (
        digits.isascii()
        and digits.isdecimal()
        and len(digits) <= _LONGEST_NUMBER
        and (text == "0" or not digits.startswith("0"))
    )
