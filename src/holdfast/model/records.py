"""What is written down of a run: its id and identity, and the records of its log.

An id may be anything a scheduler makes (`scheduled__2026-11-14T00:00:00+00:00`). Where it
becomes part of an object's name it is encoded, reversibly and readably.

The same run id with another table, mode, key or version is an error that says what differs;
a reused id must never drop data without a word.

A record is one JSON object: a format version, a number, a kind, a nonce, a body and a digest
over all of these. The nonce tells one writer's record from another's; the digest tells a whole
record from a damaged one. Which run it belongs to and which record it follows stand in it too: a
ledger that was restored, cut or copied can hold records that no longer belong together.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any
from urllib.parse import unquote

import msgspec

from holdfast.errors import SettingsError
from holdfast.model.coverage import InputSums
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

# ---- Run ids: the user's own name for one write, stable across retries

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


# ---- Identity: what makes two starts the same run

# What a fact is called where a person reads it.
_WORDS = {
    "branch": "its branch",
    "mode": "its mode",
    "session_time_zone": "the session's time zone (spark.sql.session.timeZone)",
    "ansi_mode": "the session's ANSI mode (spark.sql.ansi.enabled)",
    "version": "version=",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a run was started as. Written once, compared at every later start.

    The table's schema is kept beside it, not in it: optional columns may be added to a table
    while a run is under way, so schemas are compared by the sink, not for equality.
    """

    table: str
    # Empty for a table that does not exist: what a start wants that would have to create it.
    table_uuid: str
    branch: str
    mode: str
    key: tuple[str, ...]
    session_time_zone: str
    ansi_mode: str
    version: str
    # The run whose failed rows this one tries again. Not in ledgers of 0.1.
    retry_of: str = ""
    # What a scan reads of its files. Not in ledgers of 0.1.
    input: str = ""

    def differences(self, started: Identity) -> list[str]:
        """Say in words each fact in which this start differs from the one the run began with."""
        found = []
        for field in fields(self):
            now, then = getattr(self, field.name), getattr(started, field.name)
            # A renamed table is still the same table: its UUID decides.
            if now == then or field.name == "table":
                continue
            match field.name:
                case "table_uuid":
                    found.append(self._table_difference(started))
                case "key":
                    found.append(key_difference(then, now))
                case "retry_of":
                    found.append(f"it {_rows_of(then)}, and is now to be one that {_rows_of(now)}")
                case "input":
                    found += _input_differences(then, now)
                case name:
                    found.append(f"{_WORDS[name]} was {then!r}, and now is {now!r}")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the identity as plain JSON values."""
        return {**asdict(self), "key": list(self.key)}

    def _table_difference(self, started: Identity) -> str:
        if self.table != started.table:
            return f"it writes the table {started.table}, and now is to write {self.table}"
        if not self.table_uuid:
            return f"the table {self.table} that it writes was dropped since"
        return (
            f"the table {self.table} is not the one that it was started with: it was dropped and "
            "created again, or this is a table of the same name elsewhere"
        )


def key_difference(then: tuple[str, ...], now: tuple[str, ...]) -> str:
    """Say that a run was started with another key.

    Args:
        then: The key's columns when the run was started; none for a scan.
        now: The key's columns now.
    """
    return f"its key was {_columns(then)}, and now is {_columns(now)}"


def _columns(names: tuple[str, ...]) -> str:
    return f"({', '.join(names)})" if names else "the place of a row in its file"


def _rows_of(retried: str) -> str:
    if retried:
        return f"tries the failed rows of run {retried!r} again"
    return "reads an input of its own"


def _input_differences(then: str, now: str) -> list[str]:
    """Say what a scan reads that it did not read when the run was started, or the reverse."""
    old, new = _facts(then), _facts(now)
    if (was := old.pop("scan")) != (is_now := new.pop("scan")):
        return [f"it read {was}, and now is to read {is_now}"]
    found = [
        f"the scan's {name} was {_value(old.get(name))}, and now is {_value(new.get(name))}"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
    # The texts differ: that must not pass because the same facts were found in both.
    return found or [f"its input was {then}, and now is {now}"]


def _facts(text: str) -> dict[str, Any]:
    """Return what an identity says of its input, with its kind in words under `scan`."""
    if not text:
        return {"scan": "the rows of a DataFrame"}
    try:
        facts = dict(json.loads(text))
    except (TypeError, ValueError):
        return {"scan": text}
    kind = facts.get("scan")
    words = "a materialized DataFrame" if kind == "materialized" else f"a scan ({kind})"
    return {**facts, "scan": words}


def _value(value: object) -> str:
    if value is None or value == "":
        return "not given"
    if isinstance(value, list):
        return f"({', '.join(map(str, value))})"
    return str(value)


# ---- The records of a run log, and how they are written down

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
