"""The records of a run log, and how they are written down.

A record is one JSON object: a format version, a number, a kind, a nonce, a body and a digest
over all of these. The nonce tells one writer's record from another's; the digest tells a whole
record from a damaged one. Which run it belongs to and which record it follows stand in it too: a
ledger that was restored, cut or copied can hold records that no longer belong together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from holdfast.model.input_sums import InputSums
from holdfast.model.stored import (
    Cost,
    Count,
    Id,
    RecordDamagedError,
    Seconds,
    Segment,
    TasksFolder,
    must_be_readable,
    parse_json,
    refuse_deep,
    refuse_no_moment,
    typed,
    typed_whole,
)

# Format 1 had no `run`, `previous` and `tasks`, and its intents no nonce: such ledgers are read.
FORMAT_VERSION = 2
_FORMATS_READ = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A driver takes the run; every earlier driver is fenced from here on."""

    holdfast_version: str
    host: str
    process_id: Count
    # Names the one machine and process space in which the process id means something.
    machine: str
    # A digest of the transform's code: rows of another claim may come from other code.
    code: str
    checkpoint_every_s: Seconds | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a claim's job is about to do."""

    # "rows": transform what is missing. "replay": put waiting chunks into table files.
    job: str
    # None where the input was not measured.
    input: InputSums | None
    # Below 0 where rows of an unsteady input are covered twice, which a check finds afterwards.
    remaining_rows: Id | None
    chunks: Count
    # The table's schema that the job's files are written for, in the sink's own JSON.
    schema: dict[str, Any]
    # The folder of its task logs, a name that no other job gets: after the log has lost its end,
    # numbers are given a second time. Empty in format 1, where the claim's number was the name.
    tasks: TasksFolder = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReference:
    """A large body that stands in an object of its own, and its digest."""

    name: Segment
    digest: str
    records: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """Which task records are accepted. A later seal stands for all earlier ones."""

    # The last claim whose task logs were read; whatever they get from now on does not count.
    through_claim: Count
    work: PartReference
    # Which input rows are done: see `InputSums`.
    covered: InputSums
    waiting_chunks: Count
    # What this seal has left out: by the duplicate check, or because an object was lost.
    dropped_rows: Count
    withdrawn_rows: Count
    # Complete: nothing is missing, and all of it is in table files.
    complete: bool
    # What the input was when it was planned; None where it was not measured.
    input: InputSums | None
    # How many of the covered rows have failed. What was paid for rows that were left out, and about
    # how long tasks had worked when they died after their last record, both since the run began.
    # None of them is in ledgers of 0.1.
    quarantined_rows: Count = 0
    dropped_cost: Cost = 0.0
    killed_seconds: Seconds = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """Staged files are about to be copied to new names. They count once a later seal says so."""

    # The groups under their new names; how large a group's own object will be is not known yet.
    work: PartReference


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The driver gave its start up in good order; nobody needs to wait for it."""

    # The name of the error or the signal.
    reason: str
    # What the error says has happened. Not in older ledgers.
    message: str = ""

    @property
    def why(self) -> str:
        """The reason and what it says, for people."""
        return f"{self.reason}: {self.message}" if self.message else self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What is about to be posted to the table. Every post has one of its own."""

    table_uuid: str
    branch: str
    parent_snapshot_id: Id
    snapshot_id: Id
    sequence_number: Count
    staged: PartReference
    rows: Count
    files: Count
    size_bytes: Count
    # Tells it from an intent of the same number in another copy of the ledger.
    nonce: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An intent was refused: it is not in the table, and never will be."""

    intent_number: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What landed: the intent that the table's mark names, whoever wrote it."""

    intent_number: Count
    snapshot_id: Id
    sequence_number: Count
    staged: PartReference
    rows: Count
    files: Count
    size_bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """The run is given up. Final, and fences like a claim; only a receipt can follow it."""

    reason: str
    # The user's own word that the table is gone: nothing in it shows what became of a post.
    table_is_gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """Which files a scan reads: all of them, for the whole run."""

    pins: PartReference
    rows: Count


Body = Claim | Plan | Seal | Renewal | Stop | Intent | Refused | Receipt | Abort | Pinned
_KINDS: dict[str, type[Body]] = {
    "claim": Claim,
    "plan": Plan,
    "seal": Seal,
    "renewal": Renewal,
    "stop": Stop,
    "intent": Intent,
    "refused": Refused,
    "receipt": Receipt,
    "abort": Abort,
    "pinned": Pinned,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One entry of a run log."""

    number: int
    nonce: str
    written_at: str
    body: Body
    # The nonce of the run, as run.json has it; empty as long as there is none.
    run: str = ""
    # The nonce of the record before; None in format 1.
    previous: str | None = None


def doubtful_intents(records: Iterable[Record]) -> dict[int, Intent]:
    """Return the intents, by number, of which no record says that they were refused."""
    found: dict[int, Intent] = {}
    for record in records:
        if isinstance(record.body, Intent):
            found[record.number] = record.body
        elif isinstance(record.body, Refused):
            found.pop(record.body.intent_number, None)
    return found


def intent_named(
    intents: Mapping[int, Intent],
    number: int,
    *,
    nonce: str,
    snapshot_id: int,
    sequence_number: int,
) -> Intent | None:
    """Return the intent that a mark in the table names; None if the log holds another there.

    A ledger that was copied or restored goes on with numbers that its other copy has used too.

    Args:
        intents: All intents of the log, by number.
        number: Which one the mark names.
        nonce: The intent's, as the mark has it.
        snapshot_id: The snapshot that landed.
        sequence_number: Its sequence number.
    """
    intent = intents.get(number)
    if intent is None or (intent.nonce, intent.sequence_number) != (nonce, sequence_number):
        return None
    # Where versions are counted (Lance), settings in between may have used the planned one up.
    is_counted = intent.snapshot_id == intent.sequence_number
    return intent if is_counted or intent.snapshot_id == snapshot_id else None


def seal_json(content: dict[str, Any]) -> bytes:
    """Return the content as JSON bytes with format version and, last, the digest of all before.

    A content that names its format keeps it.
    """
    text = _text({"format": FORMAT_VERSION, **content})
    return text[:-1] + _last(_digest(text))


def open_json(data: bytes) -> dict[str, Any]:
    """Return the content of what `seal_json` wrote, its format among it.

    Raises:
        RecordDamagedError: The bytes are not JSON, of another format, or not as written.
    """
    content = parse_json(data)
    try:
        digest, version = str(content.pop("digest")), content["format"]
    except (KeyError, AttributeError, TypeError) as error:
        raise RecordDamagedError(f"not a record: {error}") from error
    if type(version) is not int or version not in _FORMATS_READ:
        raise RecordDamagedError(f"format {version}; this version of holdfast reads 1 and 2")
    if not _is_of(digest, data) and digest != _digest_anew(content):
        raise RecordDamagedError("the digest does not fit the content")
    return dict(content)


def kind_of(body: Body) -> str:
    """Return what a record says that it is."""
    return next(kind for kind, cls in _KINDS.items() if isinstance(body, cls))


def encode_record(record: Record) -> bytes:
    """Return the record's bytes.

    Raises:
        SettingsError: They could not be read back: a text or a number in it cannot be recorded.
    """
    data = seal_json(
        {
            "number": record.number,
            "kind": kind_of(record.body),
            "nonce": record.nonce,
            "written_at": record.written_at,
            "run": record.run,
            "previous": record.previous,
            "body": asdict(record.body),
        }
    )
    with must_be_readable():
        decode_record(data)
    return data


def decode_record(data: bytes) -> Record:
    """Read back what `encode_record` wrote.

    Raises:
        RecordDamagedError: The bytes are no whole record that this version understands.
    """
    found = typed(open_json(data), _RecordJson)
    if found.kind not in _KINDS:
        raise RecordDamagedError(f"unknown content: a record of kind {found.kind!r}")
    body = typed_whole(found.body, _KINDS[found.kind])
    if isinstance(body, Plan):
        refuse_deep(body.schema)
    refuse_no_moment(found.written_at)
    return Record(
        number=found.number,
        nonce=found.nonce,
        written_at=found.written_at,
        body=body,
        run=found.run,
        previous=found.previous,
    )


class _RecordJson(msgspec.Struct):
    """A record as it is stored."""

    number: Count
    kind: str
    nonce: str
    written_at: str
    body: dict[str, Any]
    run: str = ""
    previous: str | None = None


def _text(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True).encode()


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _digest_anew(content: dict[str, Any]) -> str:
    try:
        return _digest(_text(content))
    except RecursionError as error:
        raise RecordDamagedError(f"not a record: {error}") from error


def _last(digest: str) -> bytes:
    return f', "digest": "{digest}"}}'.encode()


def _is_of(digest: str, data: bytes) -> bool:
    """Whether it stands last, and fits all before: else the text has to be made anew."""
    last = _last(digest)
    return data.endswith(last) and digest == _digest(data[: -len(last)] + b"}")
