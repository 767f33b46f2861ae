"""What is stored of a run: its id and identity, and the records of its log.

An id may be anything a scheduler makes (`scheduled__2026-11-14T00:00:00+00:00`). As part of an
object's name it is encoded, reversibly and readably.

The same run id with another table, mode, key or version is an error that says what differs;
a reused id must never drop data silently.

A record is one JSON object: a format version, a number, a kind, a nonce, a body and a digest
over all of these. The nonce distinguishes one writer's record from another's; the digest detects
damage. A record also names its run and the record it follows: a ledger that was restored,
truncated or copied can hold records that no longer belong together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from holdfast.model.coverage import InputSums
from holdfast.model.stored import (
    Chains,
    Cost,
    Count,
    Id,
    RecordDamagedError,
    RecordNewerError,
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

# ---- The records of a run log, and how they are encoded

# Format 1 had no `run`, `previous` or `tasks`, and its intents no nonce; it can still be read.
FORMAT_VERSION = 2
# Format 3 is that of task records that replace others.
_FORMATS_READ = (1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A driver claims the run; every earlier driver is fenced from here on."""

    holdfast_version: str
    host: str
    process_id: Count
    # Identifies the boot and PID namespace in which the process id is valid.
    machine: str
    # A digest of the transform's code: rows of another claim may come from other code.
    code: str
    checkpoint_every_s: Seconds | None
    # The most that the answers of all starts may cost together. Not in older ledgers.
    budget: Cost | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a claim's job is about to do."""

    # "rows": transform the missing rows. "replay": write waiting chunks into table files.
    job: str
    # None if the input was not measured.
    input: InputSums | None
    # Negative if rows of an unstable input are covered twice, which a check finds afterwards.
    remaining_rows: Id | None
    chunks: Count
    # The table schema that the job's files are written for, in the sink's own JSON.
    schema: dict[str, Any]
    # The folder of its task logs. The name is unique, as the claim's number need not be: if the log
    # loses its last records, numbers are reused. Empty in format 1, which used the number alone.
    tasks: TasksFolder = ""
    # What its tasks may spend of the run's budget, and into how many chains that is divided: see
    # `worker.budget`; 0 chains without a budget. Not in older ledgers.
    may_spend: Cost = 0.0
    chains: Chains = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReference:
    """A large body that is stored in a separate object, and its digest."""

    name: Segment
    digest: str
    records: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """Which task records are accepted; a later seal replaces all earlier ones."""

    # The last claim whose task logs were read; later additions to these logs do not count.
    through_claim: Count
    work: PartReference
    # The input rows that are done: see `InputSums`.
    covered: InputSums
    waiting_chunks: Count
    # Rows that this seal leaves out: by the duplicate check, or because an object was lost.
    dropped_rows: Count
    withdrawn_rows: Count
    # Whether no row is missing, and all of them are in table files.
    complete: bool
    # The sums of the input when it was planned; None if it was not measured.
    input: InputSums | None
    # How many of the covered rows have failed; what was paid for rows that were left out; and about
    # how long killed tasks had worked since their last record. The last two count from the run's
    # first start. Not in ledgers of 0.1.
    quarantined_rows: Count = 0
    dropped_cost: Cost = 0.0
    killed_seconds: Seconds = 0.0
    # What killed tasks with a budget had taken and not accounted for. Not in older ledgers.
    killed_cost: Cost = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """Staged files are about to be copied to new names, which count from the next seal on."""

    # The groups under their new names; the size of a group's own object is not known yet.
    work: PartReference


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The driver stopped in good order; no other start needs to wait for it."""

    # The name of the error or the signal.
    reason: str
    # The error's message. Not in older ledgers.
    message: str = ""

    @property
    def why(self) -> str:
        """The reason with its message, for people."""
        return f"{self.reason}: {self.message}" if self.message else self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeCounts:
    """What an upsert does to the table that its post builds on. Stored with intent and receipt."""

    # New rows whose key is in the table, and those whose key is not.
    matched: Count
    inserted: Count
    # Rows of the table that go beyond one for each key.
    doubled: Count
    # Files whose rows were looked at, since the run began; of them, those that lose a row in this
    # post, and the rows of these that stay.
    searched_files: Count
    rewritten_files: Count
    carried_rows: Count
    # How many posts of the run came before this one, each planned again.
    replans: Count
    # Keys of rows to delete that are in the table. Not in older ledgers.
    deleted: Count = 0

    @property
    def keys_text(self) -> str:
        """Say what became of keys: the same words wherever a person looks."""
        text = f"{self.matched:,} matched, {self.inserted:,} inserted"
        text += f", {self.deleted:,} deleted" if self.deleted else ""
        return f"{text}, {self.doubled:,} doubled keys replaced" if self.doubled else text

    @property
    def files_text(self) -> str:
        """Say what became of files."""
        text = (
            f"{self.searched_files:,} searched, {self.rewritten_files:,} rewritten, "
            f"{self.carried_rows:,} row{'' if self.carried_rows == 1 else 's'} carried over"
        )
        if not self.replans:
            return text
        return f"{text}, {self.replans:,} replan{'' if self.replans == 1 else 's'}"

    @property
    def text(self) -> str:
        """Say both."""
        return f"{self.keys_text}; files: {self.files_text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What is about to be posted to the table; every post has its own intent."""

    table_uuid: str
    branch: str
    parent_snapshot_id: Id
    snapshot_id: Id
    sequence_number: Count
    staged: PartReference
    rows: Count
    files: Count
    size_bytes: Count
    # Distinguishes it from an intent of the same number in another copy of the ledger.
    nonce: str = ""
    # What it removes from the table that it builds on: data files, with their rows and bytes; and
    # the part that lists the objects that the post writes for that. Not in ledgers of 0.1.
    removed_files: Count = 0
    removed_rows: Count = 0
    removed_bytes: Count = 0
    removed_partitions: Count = 0
    written: PartReference | None = None
    # Files of deletes, and rows that are written anew because others go. Not in older ledgers.
    delete_files: Count = 0
    carried_rows: Count = 0
    # The part that lists groups that enter the table in place of staged ones. Not in older ledgers.
    merged: PartReference | None = None
    # How many keys of rows to delete the run has. Not in older ledgers.
    deleted_keys: Count = 0
    # What an upsert does. Not in older ledgers.
    upserts: MergeCounts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An intent was refused: it is not in the table, and never will be."""

    intent_number: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What landed: the intent that the table's mark names, from any driver."""

    intent_number: Count
    snapshot_id: Id
    sequence_number: Count
    staged: PartReference
    rows: Count
    files: Count
    size_bytes: Count
    # What it removed from the table: see `Intent`. Not in ledgers of 0.1.
    removed_files: Count = 0
    removed_rows: Count = 0
    removed_bytes: Count = 0
    removed_partitions: Count = 0
    # See `Intent`. Not in older ledgers.
    delete_files: Count = 0
    carried_rows: Count = 0
    deleted_keys: Count = 0
    upserts: MergeCounts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """All work is staged and checked, and its driver leaves the commit to its user."""

    # The part that lists the work.
    work: PartReference
    rows: Count
    files: Count
    size_bytes: Count
    # What it would have replaced then: see `Intent`.
    removed_files: Count
    removed_rows: Count
    removed_partitions: Count
    deleted_keys: Count
    # The options that a commit needs and no other record has, as they were given.
    allow_empty: bool
    isolation_level: str
    write_mode: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """The run is aborted: final, and fences like a claim; only the outcome of its posts follows."""

    reason: str
    # The user states that the table is gone, so it cannot show the outcome of a post.
    table_is_gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """The files that a scan reads: all of them, for the whole run."""

    pins: PartReference
    rows: Count
    # The columns that a run computes for rows that are there: an Arrow schema in base64.
    columns: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The rows that a run replaces, as they were when it began; written once."""

    # The snapshot; 0 if the table had none.
    snapshot_id: Id
    # A digest of all files that were live in it, with the deletes that applied to them.
    state: str
    # Whether the run must not land once they have changed.
    is_binding: bool
    # The state of each of these files, if what others add since is to stay.
    states: PartReference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """Files of the table that were looked at row by row, and what was written for rows that go."""

    rewrites: PartReference
    removed_rows: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """The keys of all rows that an upsert writes are sorted, to find the rows that they replace."""

    index: PartReference
    # The part that lists the work whose rows these are, and which columns the keys were then.
    work: Segment
    meaning: str
    rows: Count
    # Whether `index` lists pieces, of which the index is still to be made. Not in older ledgers.
    is_in_pieces: bool = False
    # The part that lists which of the keys are only those of rows to delete, if there are any: see
    # `ledger.key_hits`. Not in older ledgers.
    deleting: PartReference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Groups that are to enter the table in place of many small ones."""

    merges: PartReference
    # Whether they are written; else they are about to be, and the list has only their names.
    is_written: bool


Body = (
    Claim
    | Plan
    | Seal
    | Renewal
    | Stop
    | Intent
    | Refused
    | Receipt
    | Abort
    | Pinned
    | Base
    | Rewritten
    | Indexed
    | Merged
    | Ready
)
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
    "base": Base,
    "rewritten": Rewritten,
    "indexed": Indexed,
    "merged": Merged,
    "ready": Ready,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One entry of a run log."""

    number: int
    nonce: str
    written_at: str
    body: Body
    # The run's nonce from run.json; empty before run.json exists.
    run: str = ""
    # The nonce of the previous record; None in format 1.
    previous: str | None = None


def doubtful_intents(records: Iterable[Record]) -> dict[int, Intent]:
    """Return the intents, by number, that no record marks as refused."""
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
    """Return the intent that a mark in the table names; None if the log lacks it.

    A ledger that was copied or restored reuses numbers that its other copy has used too.

    Args:
        intents: All intents of the log, by number.
        number: The number in the mark.
        nonce: The intent's nonce in the mark.
        snapshot_id: The snapshot that landed.
        sequence_number: Its sequence number.
    """
    intent = intents.get(number)
    if intent is None or (intent.nonce, intent.sequence_number) != (nonce, sequence_number):
        return None
    # Lance counts its versions: a change of settings may have used up the planned one.
    is_counted = intent.snapshot_id == intent.sequence_number
    return intent if is_counted or intent.snapshot_id == snapshot_id else None


def seal_json(content: dict[str, Any]) -> bytes:
    """Return the content as JSON bytes with format version and, last, the digest of all before.

    If the content names a format, that is kept.
    """
    text = _text({"format": FORMAT_VERSION, **content})
    return text[:-1] + _last(_digest(text))


def open_json(data: bytes) -> dict[str, Any]:
    """Return the content that `seal_json` wrote, including its format.

    Raises:
        RecordNewerError: They have a later format.
        RecordDamagedError: The bytes are not JSON, have no known format, or are not as written.
    """
    content = parse_json(data)
    try:
        digest, version = str(content.pop("digest")), content["format"]
    except (KeyError, AttributeError, TypeError) as error:
        raise RecordDamagedError(f"not a record: {error}") from error
    if type(version) is not int or version < min(_FORMATS_READ):
        raise RecordDamagedError(f"format {version}")
    if version not in _FORMATS_READ:  # How a later one is digested is not known.
        raise RecordNewerError(f"format {version}; this version of holdfast reads 1 to 3")
    if not _is_of(digest, data) and digest != _digest_anew(content):
        raise RecordDamagedError("the digest does not match the content")
    return dict(content)


def kind_of(body: Body) -> str:
    """Return the name of a body's kind."""
    return next(kind for kind, cls in _KINDS.items() if isinstance(body, cls))


def encode_record(record: Record) -> bytes:
    """Return the record's bytes.

    Raises:
        SettingsError: A text or number in the record could not be read back.
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
        RecordNewerError: The record is of a kind, or has parts, that this version does not know.
        RecordDamagedError: The bytes are not a whole record.
    """
    found = typed(open_json(data), _RecordJson)
    if found.kind not in _KINDS:
        raise RecordNewerError(f"unknown content: a record of kind {found.kind!r}")
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
    """Whether the digest comes last and matches all before it; if not, it must be recomputed."""
    last = _last(digest)
    return data.endswith(last) and digest == _digest(data[: -len(last)] + b"}")
