"""Run ids: the user's own name for one write, stable across retries.

An id may be anything a scheduler makes (`scheduled__2026-11-14T00:00:00+00:00`). Where it
becomes part of an object's name it is encoded, reversibly and readably.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from holdfast.errors import SettingsError

# Object stores and file systems agree on these characters only.
_PLAIN = re.compile(r"[A-Za-z0-9._-]")

# Local file systems end a name at 255 bytes.
_ENCODED_LENGTH_MAX = 240


def encode_run_id(run_id: str) -> str:
    """Return the run id as one path segment; other ids never give the same segment.

    Characters outside `A-Z a-z 0-9 . _ -` become `=XX` for each of their UTF-8 bytes.

    Args:
        run_id: The user's id.

    Raises:
        SettingsError: The id is empty, has surrounding blanks, or is too long.
    """
    if not isinstance(run_id, str) or not run_id or run_id != run_id.strip():
        raise SettingsError(
            what=f"{run_id!r} is no run id",
            cure="give a non-empty string without blanks around it, the same at every retry",
        )
    try:
        run_id.encode()
    except UnicodeEncodeError as error:
        raise SettingsError(
            what=f"{run_id!r} is no text that can be written down", cure="use plain characters"
        ) from error
    encoded = "".join(
        char if _PLAIN.fullmatch(char) else "".join(f"={byte:02X}" for byte in char.encode())
        for char in run_id
    )
    if encoded.startswith("."):  # "." and ".." mean something else to a file system.
        encoded = f"=2E{encoded[1:]}"
    if len(encoded) > _ENCODED_LENGTH_MAX:
        raise SettingsError(
            what=f"the run id {run_id[:40]!r}… is too long",
            cure=f"use an id of at most {_ENCODED_LENGTH_MAX} plain characters",
        )
    return encoded


def decode_run_id(folder: str) -> str:
    """Return the id that `encode_run_id` made a folder's name of."""
    return unquote(folder.replace("=", "%"))


def is_run_folder(folder: str) -> bool:
    """Whether a folder's name is one that `encode_run_id` makes: others are not runs."""
    try:
        return encode_run_id(decode_run_id(folder)) == folder
    except SettingsError:
        return False
