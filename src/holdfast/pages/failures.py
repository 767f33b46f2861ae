"""Failures: the rows that were set aside, by error. Whole rows are not shown: they are private."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.errors import HoldfastError, LedgerDamagedError
from holdfast.ledger.chunks import read_chunk
from holdfast.model.work import Chunk
from holdfast.storage.port import Storage

_KINDS_MAX = 20
_TEXT_LENGTH_MAX = 300
_KEY_LENGTH_MAX = 120
# A page about a run in which most rows fail must not read all of them.
_READ_BYTES_MAX = 32 << 20
_READ_OBJECTS_MAX = 500
_COLUMNS = {"error", "key"}
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(slots=True, kw_only=True)
class FailureKind:
    """Rows whose errors differ at most in numbers."""

    # The first one, as the transform raised it, and the key of its row.
    error: str
    key: str
    rows: int = 0


@dataclass(slots=True, kw_only=True)
class Failures:
    """All rows that were set aside, as far as they were read."""

    rows: int = 0
    read_rows: int = 0
    kinds: list[FailureKind] = field(default_factory=list)
    # How many further kinds there are, and why rows could not be read.
    other_kinds: int = 0
    problem: str = ""


def failures_of(storage: Storage, chunks: Mapping[str, Chunk]) -> Failures:
    """Read failed rows and count them by error, the most frequent first.

    Never raises for rows that cannot be read: the rest of a page is worth having without them.

    Args:
        storage: How the store is reached.
        chunks: The objects that hold them, by URI.
    """
    found = Failures(rows=sum(chunk.rows for chunk in chunks.values()))
    kinds: dict[str, FailureKind] = {}
    left = _READ_BYTES_MAX
    for uri, chunk in list(chunks.items())[:_READ_OBJECTS_MAX]:
        left -= chunk.size_bytes
        if left < 0 and found.read_rows:
            break
        try:
            _count(storage, uri, chunk, kinds)
        except HoldfastError as error:
            found.problem = _short(str(error), _TEXT_LENGTH_MAX)
            break
        found.read_rows += chunk.rows
    ranked = sorted(kinds.values(), key=lambda one: -one.rows)
    found.kinds, found.other_kinds = ranked[:_KINDS_MAX], len(ranked[_KINDS_MAX:])
    return found


def _count(storage: Storage, uri: str, chunk: Chunk, kinds: dict[str, FailureKind]) -> None:
    for batch in read_chunk(storage, uri, chunk):
        if not set(batch.schema.names) >= _COLUMNS or not pa.types.is_string(batch["error"].type):
            raise LedgerDamagedError(uri=uri, reason="it does not say why rows have failed")
        for error, key in zip(batch["error"].to_pylist(), batch["key"], strict=True):
            # Errors name rows by number: these are one kind.
            kind = _NUMBER.sub("#", error or "")
            if kind not in kinds:
                kinds[kind] = FailureKind(
                    error=_short(error or "", _TEXT_LENGTH_MAX), key=_key_text(key.as_py())
                )
            kinds[kind].rows += 1


def _key_text(key: object) -> str:
    named = key if isinstance(key, Mapping) else {}
    values = [f"{name}={value!r}" for name, value in named.items()]
    return _short(", ".join(values), _KEY_LENGTH_MAX)


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
