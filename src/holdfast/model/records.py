"""The records of a run log, and how they are written down.

A record is one JSON object: a format version, a number, a kind, a nonce, a body and a digest
over all of these. The nonce tells one writer's record from another's; the digest tells a whole
record from a damaged one.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A driver takes the run; every earlier driver is fenced from here on."""

    holdfast_version: str
    host: str
    process_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReference:
    """A large body that stands in an object of its own, and its digest."""

    name: str
    digest: str
    groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What is about to be posted to the table. Every post has one of its own."""

    table_uuid: str
    branch: str
    parent_snapshot_id: int
    snapshot_id: int
    sequence_number: int
    staged: PartReference
    rows: int
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What landed: the intent that the table's mark names, whoever wrote it."""

    intent_number: int
    snapshot_id: int
    sequence_number: int
    staged: PartReference
    rows: int
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """The run is given up. Final, and fences like a claim."""

    reason: str


Body = Claim | Intent | Receipt | Abort
_KINDS: dict[str, type[Body]] = {
    "claim": Claim,
    "intent": Intent,
    "receipt": Receipt,
    "abort": Abort,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One entry of a run log."""

    number: int
    nonce: str
    written_at: str
    body: Body


class RecordDamagedError(ValueError):
    """The bytes are no record of this format. The ledger adds where they stand."""


def seal_json(content: dict[str, Any]) -> bytes:
    """Return the content as JSON bytes with format version and digest."""
    versioned = {"format": FORMAT_VERSION, **content}
    return json.dumps({**versioned, "digest": _digest(versioned)}, sort_keys=True).encode()


def open_json(data: bytes) -> dict[str, Any]:
    """Return the content of what `seal_json` wrote.

    Raises:
        RecordDamagedError: The bytes are not JSON, of another format, or not as written.
    """
    try:
        content = json.loads(data)
        digest = content.pop("digest")
        version = content.pop("format")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise RecordDamagedError(f"not a record: {error}") from error
    if version != FORMAT_VERSION:
        raise RecordDamagedError(f"format {version}; this version of holdfast reads 1")
    if digest != _digest({"format": version, **content}):
        raise RecordDamagedError("the digest does not fit the content")
    return dict(content)


def encode_record(record: Record) -> bytes:
    """Return the record's bytes."""
    kind = next(kind for kind, cls in _KINDS.items() if isinstance(record.body, cls))
    return seal_json(
        {
            "number": record.number,
            "kind": kind,
            "nonce": record.nonce,
            "written_at": record.written_at,
            "body": asdict(record.body),
        }
    )


def decode_record(data: bytes) -> Record:
    """Read back what `encode_record` wrote.

    Raises:
        RecordDamagedError: The bytes are no whole record that this version understands.
    """
    content = open_json(data)
    try:
        values = dict(content["body"])
        if "staged" in values:
            values["staged"] = PartReference(**values["staged"])
        body = _KINDS[content["kind"]](**values)
        return Record(
            number=content["number"],
            nonce=content["nonce"],
            written_at=content["written_at"],
            body=body,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RecordDamagedError(f"unknown content: {error}") from error


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
