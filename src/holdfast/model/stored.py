"""Stored values: the types and bounds that a ledger's JSON must have, and how it is read.

Objects in a store may have been damaged, or written by a stranger. So nothing of them is used
before it has the declared type: a count is not negative, a time can be shown, a name cannot lead
out of its folder. Whatever misfits is a `RecordDamagedError`; the ledger adds where it was found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec

from holdfast.errors import SettingsError
from holdfast.model.limits import JSON_BYTES_MAX, JSON_DEPTH_MAX

_T = TypeVar("_T")

_MISFITS = (ValueError, RecursionError)
_INT64_MAX = 2**63 - 1
# In the year 9892: a margin for local times, which must not pass the year 9999.
_UNIX_SECONDS_MAX = 250_000_000_000.0

# How many there are of something, or its number.
Count = Annotated[int, msgspec.Meta(ge=0, le=_INT64_MAX)]
# What another system calls something: of a snapshot, for example, which may be negative.
Id = Annotated[int, msgspec.Meta(ge=-_INT64_MAX - 1, le=_INT64_MAX)]
# A sum over 32-bit halves of hashes: of 2**31 rows or more it does not fit into 64 bits.
Sum = Annotated[int, msgspec.Meta(ge=0)]
# A duration. The bound is far above all that is measured, and below what dates can add.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
UnixSeconds = Annotated[float, msgspec.Meta(ge=0, le=_UNIX_SECONDS_MAX)]
# In the user's own unit. Differences of sums may be a little below 0.
Cost = Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]
# Of one answer: sums of it stay within that bound.
_ANSWER_COST_MAX = 1e15
# A name that stands for one object or folder, and one of a task record: see `TaskRecord.name`.
Segment = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*\Z")]
TaskName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[0-9]{1,18}(-[A-Za-z0-9._-]*)?/[A-Za-z0-9_-]+(/[0-9]{1,18}){3}\Z",
        max_length=500,
    ),
]
# The folder of a job's task logs; empty where the claim's number is its name.
TasksFolder = Annotated[str, msgspec.Meta(pattern=r"^([0-9]{1,18}(-[A-Za-z0-9._-]*)?)?\Z")]


class RecordDamagedError(ValueError):
    """The bytes are no record of this format. The ledger adds where they stand."""


@contextlib.contextmanager
def must_be_readable() -> Iterator[None]:
    """Read what is about to be written: what no start can read would end the run for good.

    Raises:
        SettingsError: It cannot be read back.
    """
    try:
        yield
    except RecordDamagedError as error:
        raise SettingsError(
            what=f"this cannot be recorded ({error})", cure="use plain text and finite numbers"
        ) from error


def parse_json(data: bytes | str) -> Any:  # noqa: ANN401 - any JSON value; `typed` gives it a type.
    """Return a JSON value of a ledger, not checked yet.

    Raises:
        RecordDamagedError: It is too large, nested too deeply, or no JSON.
    """
    _refuse_large(data)
    try:
        return msgspec.json.decode(data)
    except _MISFITS as error:
        raise RecordDamagedError(f"not a record: {error}") from error


def typed(value: object, kind: type[_T]) -> _T:
    """Return a parsed value as the type that it must have.

    Raises:
        RecordDamagedError: A part of it is missing, of another type, or out of bounds.
    """
    try:
        return msgspec.convert(value, kind)
    except _MISFITS as error:
        raise RecordDamagedError(f"unknown content: {error}") from error


def parse_typed(data: bytes | str, kind: type[_T]) -> _T:
    """Return a JSON value of a ledger as the type that it must have, in one step.

    Raises:
        RecordDamagedError: It is no JSON, or misfits.
    """
    _refuse_large(data)
    try:
        return msgspec.json.decode(data, type=kind)
    except _MISFITS as error:
        raise RecordDamagedError(f"unknown content: {error}") from error


def typed_whole(value: object, kind: type[_T]) -> _T:
    """Return a parsed value as a dataclass, which must have a field for each part of it.

    A record with more in it than this version knows may mean more than this version does.

    Raises:
        RecordDamagedError: It has unknown parts, or misfits in another way.
    """
    found = typed(value, kind)
    _refuse_unknown(found, value)
    return found


def refuse_deep(value: object, depth: int = JSON_DEPTH_MAX) -> None:
    """Refuse what has no declared shape if it is nested deeply, or has a number out of all bounds.

    Only a sink knows what its own JSON means; here it is made sure that it can be walked through.

    Raises:
        RecordDamagedError: It is nested too deeply, or a number has more than 64 bits.
    """
    if isinstance(value, dict | list):
        if not depth:
            raise RecordDamagedError(f"nested more than {JSON_DEPTH_MAX} deep")
        for part in value.values() if isinstance(value, dict) else value:
            if isinstance(part, dict | list | int):
                refuse_deep(part, depth - 1)
    elif isinstance(value, int) and not -_INT64_MAX <= value <= 2 * _INT64_MAX + 1:
        raise RecordDamagedError("a number has more than 64 bits")


def refuse_no_moment(written_at: str) -> None:
    """Refuse what is no moment in ISO 8601, or one that cannot be shown.

    Raises:
        RecordDamagedError: It is not.
    """
    try:
        moment = datetime.fromisoformat(written_at)
    except ValueError as error:
        raise RecordDamagedError(f"unknown content: {error}") from error
    # Without an offset it would depend on the machine that reads it.
    if moment.tzinfo is None or not 0 <= moment.timestamp() <= _UNIX_SECONDS_MAX:
        raise RecordDamagedError(f"unknown content: written at {written_at!r}")


def checked_cost(value: Any) -> float:  # noqa: ANN401 - a user's function may return anything.
    """Return what a user's function says that an answer has cost.

    Raises:
        ValueError: It is no number that can be recorded and added up.
    """
    cost = float(value)
    if not abs(cost) <= _ANSWER_COST_MAX:  # NaN is not, either.
        raise ValueError(f"a cost of {cost} cannot be added up: return a finite number")
    return cost


def _refuse_large(data: bytes | str) -> None:
    if len(data) > JSON_BYTES_MAX:
        raise RecordDamagedError(f"{len(data):,} bytes; no record has over {JSON_BYTES_MAX:,}")


def _refuse_unknown(found: Any, value: Any) -> None:  # noqa: ANN401 - any dataclass, any JSON.
    known = {field.name for field in fields(found)}
    if unknown := value.keys() - known:
        raise RecordDamagedError(f"unknown content: {', '.join(sorted(unknown))}")
    for name in value:
        part = getattr(found, name)
        if is_dataclass(part) and isinstance(value[name], Mapping):
            _refuse_unknown(part, value[name])
