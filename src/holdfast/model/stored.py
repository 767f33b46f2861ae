"""Stored values: the types and bounds that a ledger's JSON must have, how it is read, and run ids.

Objects in a store may be damaged, or written by an attacker. So no value is used before it has the
declared type: a count is not negative, a time can be shown, a name cannot lead out of its folder.
Anything else is a `RecordDamagedError`; the ledger adds where it was found.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote

import msgspec

from holdfast.errors import LedgerDamagedError, LedgerNewerError, SettingsError
from holdfast.model.limits import JSON_BYTES_MAX, JSON_DEPTH_MAX

_T = TypeVar("_T")

_MISFITS = (ValueError, RecursionError)
_INT64_MAX = 2**63 - 1
# In the year 9892: a margin for local times, which must not pass the year 9999.
_UNIX_SECONDS_MAX = 250_000_000_000.0

# A number of things, or an ordinal.
Count = Annotated[int, msgspec.Meta(ge=0, le=_INT64_MAX)]
# Another system's id of something: a snapshot's, for example, may be negative.
Id = Annotated[int, msgspec.Meta(ge=-_INT64_MAX - 1, le=_INT64_MAX)]
# A sum over 32-bit halves of hashes: for 2**31 rows or more it does not fit into 64 bits.
Sum = Annotated[int, msgspec.Meta(ge=0)]
# A duration. The bound is far above any measured time, and small enough to be added to a date.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
UnixSeconds = Annotated[float, msgspec.Meta(ge=0, le=_UNIX_SECONDS_MAX)]
# In the user's own unit. Differences of sums may be a little below 0.
Cost = Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]
# Into how many chains an account is divided: each is asked for.
CHAINS_MAX = 16
Chains = Annotated[int, msgspec.Meta(ge=0, le=CHAINS_MAX)]
# The cost of one answer: sums stay within the bound of `Cost`.
_ANSWER_COST_MAX = 1e15
# The name of one object or folder, and the name of a task record: see `TaskRecord.name`.
Segment = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*\Z")]
TaskName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[0-9]{1,18}(-[A-Za-z0-9._-]*)?/[A-Za-z0-9_-]+(/[0-9]{1,18}){3}\Z",
        max_length=500,
    ),
]
# The folder of a job's task logs; empty if the claim's number is its name.
TasksFolder = Annotated[str, msgspec.Meta(pattern=r"^([0-9]{1,18}(-[A-Za-z0-9._-]*)?)?\Z")]


class RecordDamagedError(ValueError):
    """The bytes are not a record of this format; the ledger adds where they were found."""


class RecordNewerError(RecordDamagedError):
    """The bytes are a whole record, with parts that only a newer version can have written."""


def damaged(uri: str, error: Exception) -> LedgerDamagedError:
    """Return the error about an object of the ledger that cannot be read."""
    if isinstance(error, RecordNewerError):
        return LedgerNewerError(
            uri=uri, reason=f"a newer version of Holdfast has written this record ({error})"
        )
    return LedgerDamagedError(uri=uri, reason=str(error))


@contextlib.contextmanager
def must_be_readable() -> Iterator[None]:
    """Read back what is about to be written: an unreadable record would end the run for good.

    Raises:
        SettingsError: The record cannot be read back.
    """
    try:
        yield
    except RecordDamagedError as error:
        raise SettingsError(
            what=f"a value cannot be recorded ({error})", cure="use plain text and finite numbers"
        ) from error


def parse_json(data: bytes | str) -> Any:  # noqa: ANN401 - any JSON value; `typed` gives it a type.
    """Return a JSON value of a ledger, not checked yet.

    Raises:
        RecordDamagedError: It is too large, nested too deeply, or not JSON.
    """
    _refuse_large(data)
    try:
        return msgspec.json.decode(data)
    except _MISFITS as error:
        raise RecordDamagedError(f"not a record: {error}") from error


def typed(value: object, kind: type[_T]) -> _T:
    """Convert a parsed value to the type that it must have.

    Raises:
        RecordDamagedError: A part of it is missing, of another type, or out of bounds.
    """
    try:
        return msgspec.convert(value, kind)
    except _MISFITS as error:
        raise RecordDamagedError(f"unknown content: {error}") from error


def parse_typed(data: bytes | str, kind: type[_T]) -> _T:
    """Parse a JSON value of a ledger as the type that it must have, in one step.

    Raises:
        RecordDamagedError: It is not JSON, or does not fit the type.
    """
    _refuse_large(data)
    try:
        return msgspec.json.decode(data, type=kind)
    except _MISFITS as error:
        raise RecordDamagedError(f"unknown content: {error}") from error


def typed_whole(value: object, kind: type[_T]) -> _T:
    """Convert a parsed value to a dataclass, which must have a field for each part of it.

    A record with parts that this version does not know may mean more than this version does.

    Raises:
        RecordNewerError: It has unknown parts.
        RecordDamagedError: It does not fit the type.
    """
    found = typed(value, kind)
    _refuse_unknown(found, value)
    return found


def refuse_deep(value: object, depth: int = JSON_DEPTH_MAX) -> None:
    """Refuse a value without a declared type if it is nested deeply, or has too large a number.

    Only a sink knows what its own JSON means; this makes sure that the JSON can be traversed.

    Raises:
        RecordDamagedError: It is nested too deeply, or a number has more than 64 bits.
    """
    if isinstance(value, dict | list):
        if not depth:
            raise RecordDamagedError(f"nested more than {JSON_DEPTH_MAX} levels deep")
        for part in value.values() if isinstance(value, dict) else value:
            if isinstance(part, dict | list | int):
                refuse_deep(part, depth - 1)
    elif isinstance(value, int) and not -_INT64_MAX <= value <= 2 * _INT64_MAX + 1:
        raise RecordDamagedError("a number has more than 64 bits")


def refuse_no_moment(written_at: str) -> None:
    """Refuse a text that is not an ISO 8601 time, or a time that cannot be shown.

    Raises:
        RecordDamagedError: It is not a time, or cannot be shown.
    """
    try:
        moment = datetime.fromisoformat(written_at)
    except ValueError as error:
        raise RecordDamagedError(f"unknown content: {error}") from error
    # Without an offset it would depend on the machine that reads it.
    if moment.tzinfo is None or not 0 <= moment.timestamp() <= _UNIX_SECONDS_MAX:
        raise RecordDamagedError(f"unknown content: written at {written_at!r}")


class CostError(ValueError):
    """The user's `cost=` does not say what an answer has cost."""


def cost_of(price: Callable[[Any], Any], answer: Any) -> float:  # noqa: ANN401 - a user's own.
    """Return what an answer has cost, by a user's function.

    Raises:
        CostError: The function raises, or returns no number that can be recorded and added up.
    """
    try:
        cost = float(price(answer))
    except Exception as error:
        raise CostError(f"cost= raised {type(error).__name__}: {error}") from error
    if not 0 <= cost <= _ANSWER_COST_MAX:  # Also refuses NaN.
        raise CostError(f"cost= returned {cost}: return a finite number that is not negative")
    return cost


def _refuse_large(data: bytes | str) -> None:
    if len(data) > JSON_BYTES_MAX:
        raise RecordDamagedError(f"{len(data):,} bytes; a record has at most {JSON_BYTES_MAX:,}")


def _refuse_unknown(found: Any, value: Any) -> None:  # noqa: ANN401 - any dataclass, any JSON.
    known = {field.name for field in fields(found)}
    if unknown := value.keys() - known:
        raise RecordNewerError(f"unknown content: {', '.join(sorted(unknown))}")
    for name in value:
        part = getattr(found, name)
        if is_dataclass(part) and isinstance(value[name], Mapping):
            _refuse_unknown(part, value[name])


# ---- Run ids: the user's own name for one write, stable across retries

# All object stores and file systems allow these characters.
_PLAIN = re.compile(r"[A-Za-z0-9._-]")

# Local file systems limit a name to 255 bytes.
_ENCODED_LENGTH_MAX = 240


def encode_run_id(run_id: str) -> str:
    """Return the run id as one path segment; different ids give different segments.

    Characters outside `A-Z a-z 0-9 . _ -` become `=XX` for each of their UTF-8 bytes.

    Args:
        run_id: The user's id.

    Raises:
        SettingsError: The id is empty, has surrounding blanks, or is too long.
    """
    if not isinstance(run_id, str) or not run_id or run_id != run_id.strip():
        raise SettingsError(
            what=f"{run_id!r} is not a run id",
            cure="give a non-empty string without surrounding blanks, the same for every retry",
        )
    try:
        run_id.encode()
    except UnicodeEncodeError as error:
        raise SettingsError(
            what=f"{run_id!r} cannot be encoded as UTF-8", cure="use plain characters"
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
    """Return the id that `encode_run_id` turned into a folder's name."""
    return unquote(folder.replace("=", "%"))


def is_run_folder(folder: str) -> bool:
    """Whether `encode_run_id` can have made a folder's name; other folders are not runs."""
    try:
        return encode_run_id(decode_run_id(folder)) == folder
    except SettingsError:
        return False
