"""Records: read back as written; run ids; what makes a run another run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from holdfast.errors import SettingsError
from holdfast.ledger.layout import RunLayout, probe_uri
from holdfast.model.coverage import InputSums
from holdfast.model.identity import Identity
from holdfast.model.records import (
    FORMAT_VERSION,
    Abort,
    Body,
    Claim,
    Intent,
    Merged,
    PartReference,
    Plan,
    Receipt,
    Record,
    Renewal,
    Seal,
    Stop,
    decode_record,
    encode_record,
    open_json,
    seal_json,
)
from holdfast.model.stored import RecordDamagedError, RecordNewerError, encode_run_id, typed_whole

# ---- Records: what was written is read back, and anything else is refused
PART = PartReference(name="staged-1.parquet", digest="d" * 64, records=2)
INTENT = Intent(
    table_uuid="u",
    branch="main",
    parent_snapshot_id=1,
    snapshot_id=2**62,
    sequence_number=3,
    staged=PART,
    rows=4,
    files=5,
    size_bytes=6,
)
RECEIPT = Receipt(
    intent_number=2, snapshot_id=2, sequence_number=3, staged=PART, rows=4, files=5, size_bytes=6
)
SUMS = InputSums(rows=2**40, null_keys=0, low=2**63, high=5)
BODIES: list[Body] = [
    Claim(
        holdfast_version="0.1.0",
        host="größe",
        process_id=7,
        machine="m",
        code="c",
        checkpoint_every_s=None,
    ),
    Plan(job="rows", input=SUMS, remaining_rows=4, chunks=0, schema={"columns": ["id"]}),
    Plan(job="replay", input=None, remaining_rows=None, chunks=3, schema={}),
    Plan(job="rows", input=SUMS, remaining_rows=-1, chunks=0, schema={}),
    Seal(
        through_claim=1,
        work=PART,
        covered=SUMS,
        waiting_chunks=1,
        dropped_rows=2,
        withdrawn_rows=1,
        complete=False,
        input=SUMS,
    ),
    Renewal(work=PART),
    Merged(merges=PART, is_written=True),
    Stop(reason="TransformError"),
    INTENT,
    RECEIPT,
    Abort(reason="the user said so"),
]


def record(body: Body) -> Record:
    """Return a record around a body."""
    return Record(number=3, nonce="n", written_at="2026-11-14T00:00:00+00:00", body=body)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_a_record_is_read_back_as_it_was_written(body: Body) -> None:
    """Every kind of record survives encoding and decoding."""
    assert decode_record(encode_record(record(body))) == record(body)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_a_record_cut_at_any_byte_is_refused(body: Body) -> None:
    """However little is missing, the record is not taken for a whole one."""
    data = encode_record(record(body))
    for length in range(len(data)):
        with pytest.raises(RecordDamagedError):
            decode_record(data[:length])


def test_a_record_with_any_bit_flipped_is_refused() -> None:
    """One bit, anywhere: in a number, in a name, in the digest, in the punctuation."""
    data = encode_record(record(INTENT))
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytes([data[position] ^ (1 << bit)])
            with pytest.raises(RecordDamagedError):
                decode_record(data[:position] + flipped + data[position + 1 :])


def _with(change: Callable[[dict[str, Any]], None]) -> bytes:
    """Change a record's content and seal it again, as another version or an attacker would."""
    content = json.loads(encode_record(record(INTENT)))
    content.pop("digest")
    change(content)
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps({**content, "digest": digest}).encode()


def test_sealing_again_without_a_change_gives_a_valid_record() -> None:
    """Without a change the sealed bytes are a record: the refusals below have another cause."""
    assert decode_record(_with(lambda _: None)) == record(INTENT)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(format=4), "format 4"),
        (lambda c: c.update(kind="later"), "later"),
        (lambda c: c.pop("kind"), "kind"),
        (lambda c: c.pop("nonce"), "nonce"),
        (lambda c: c["body"].pop("rows"), "rows"),
        (lambda c: c["body"].update(later=1), "later"),
        (lambda c: c["body"]["staged"].pop("digest"), "digest"),
        (lambda c: c["body"].update(staged="x"), "unknown content"),
        (lambda c: c.update(body=[1]), "unknown content"),
        (lambda c: c.update(body="abc"), "unknown content"),
        (lambda c: c.update(body=None), "unknown content"),
    ],
)
def test_whole_records_of_another_shape_are_refused(
    change: Callable[[dict[str, Any]], None], said: str
) -> None:
    """If this version does not understand a record, the error names the difference."""
    with pytest.raises(RecordDamagedError, match=said):
        decode_record(_with(change))


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(format=4),
        lambda c: c.update(kind="later"),
        lambda c: c["body"].update(later=1),
        lambda c: c["body"]["staged"].update(later=1),
    ],
)
def test_whole_records_with_parts_that_are_not_known_are_of_a_newer_version(
    change: Callable[[dict[str, Any]], None],
) -> None:
    """Their digest matches: nothing is damaged, and the user must upgrade."""
    with pytest.raises(RecordNewerError):
        decode_record(_with(change))


def test_a_damaged_record_is_not_taken_for_a_newer_one() -> None:
    """A changed byte is found by the digest, before any part is looked at."""
    data = _with(lambda c: c.update(kind="later")).replace(b"later", b"lateX")
    with pytest.raises(RecordDamagedError) as caught:
        decode_record(data)
    assert not isinstance(caught.value, RecordNewerError)


def test_a_later_format_may_have_another_digest() -> None:
    """What follows from an unknown format is not known; the advice says what if it is damage."""
    data = encode_record(record(INTENT)).replace(b'"format": 2', b'"format": 9')
    with pytest.raises(RecordNewerError, match="format 9"):
        decode_record(data)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"null", b"1", b'"digest"', b"\xff\xfe", b'{"digest": 1}', b"\0"]
)
def test_bytes_that_are_not_a_record_are_refused(data: bytes) -> None:
    """Whatever is found in place of a record, the error is the one the ledger expects."""
    with pytest.raises(RecordDamagedError):
        open_json(data)


def test_sealed_json_gives_back_its_content() -> None:
    """Format and digest are added, the digest is removed again; the content is unchanged."""
    content = {"b": [1, {"c": None}], "a": "ü"}
    assert open_json(seal_json(content)) == {"format": FORMAT_VERSION, **content}


def test_two_writers_never_write_equal_bytes() -> None:
    """The nonce is part of the bytes: read back, they show whose record it is."""
    ours, theirs = (
        encode_record(
            Record(
                number=1,
                nonce=nonce,
                written_at="2026-11-14T00:00:00+00:00",
                body=Abort(reason="r"),
            )
        )
        for nonce in ("ours", "theirs")
    )
    assert ours != theirs


# ---- Run ids: whatever a scheduler makes becomes one safe, readable and unique path segment
@pytest.mark.parametrize(
    ("run_id", "segment"),
    [
        ("embed-products_2026.11", "embed-products_2026.11"),
        (
            "scheduled__2026-11-14T00:00:00+00:00",
            "scheduled__2026-11-14T00=3A00=3A00=2B00=3A00",
        ),
        ("größe", "gr=C3=B6=C3=9Fe"),
        ("a/b", "a=2Fb"),
        ("a b", "a=20b"),
        ("a=3Ab", "a=3D3Ab"),
        (".", "=2E"),
        ("..", "=2E."),
        (".hidden", "=2Ehidden"),
        ("nul\0", "nul=00"),
    ],
)
def test_an_id_becomes_one_readable_segment(run_id: str, segment: str) -> None:
    """Plain characters are kept; all others are escaped byte by byte."""
    assert encode_run_id(run_id) == segment


@pytest.mark.parametrize(
    "run_id", ["../../etc", "%2e%2e", "a\\b", "café", "日本", "a\nb", "x" * 240, "-rf"]
)
def test_no_id_leaves_its_folder(run_id: str) -> None:
    """The segment has no separator and is never a name that means another folder."""
    segment = encode_run_id(run_id)
    assert re.fullmatch(r"[A-Za-z0-9._=-]+", segment)
    assert not segment.startswith(".")
    assert RunLayout.of("file:///store", run_id).record(1) == (
        f"file:///store/{segment}/log/00000001.json"
    )


@pytest.mark.parametrize("run_id", ["", " ", " a", "a ", "\ta", "a\n", "\u00a0a", None, 7, b"a"])
def test_an_invalid_id_is_refused(run_id: object) -> None:
    """Blanks around an id come and go between retries, so they are an error, like a non-string."""
    with pytest.raises(SettingsError, match="is not a run id"):
        encode_run_id(run_id)  # type: ignore[arg-type]


@pytest.mark.parametrize("run_id", ["x" * 241, "é" * 41, "/" * 81])
def test_an_id_too_long_for_a_file_system_is_refused(run_id: str) -> None:
    """It is refused by its encoded length, before anything is written."""
    with pytest.raises(SettingsError, match="too long"):
        encode_run_id(run_id)


def test_an_id_that_cannot_be_encoded_is_refused() -> None:
    """Half a surrogate pair has no UTF-8 form; the error is ours and says so."""
    with pytest.raises(SettingsError):
        encode_run_id("broken-\ud800")


@pytest.mark.parametrize("run_id", ["=probe", "probe", "=probe/x"])
def test_no_run_shares_a_name_with_the_store_probe(run_id: str) -> None:
    """The probe deletes what it wrote, which must never be part of a run."""
    folder = RunLayout.of("file:///store", run_id).folder
    assert not probe_uri("file:///store", "n").startswith(f"{folder}/")


# ---- Identity: what makes a run another run
IDENTITY = Identity(
    table="lake.db.t",
    table_uuid="u1",
    branch="main",
    mode="append",
    key=("day", "id"),
    session_time_zone="UTC",
    ansi_mode="true",
    version="",
)


def test_an_identity_is_read_back_as_it_was_written() -> None:
    """JSON lists become the tuples that a later start compares with."""
    assert typed_whole(IDENTITY.to_json(), Identity) == IDENTITY


def test_the_same_job_has_no_differences() -> None:
    """A retry of the same script is the same run."""
    assert IDENTITY.differences(replace(IDENTITY)) == []


SCAN = '{"scan": "parquet", "columns": ["a", "b"], "where": null}'
OWN = "it reads an input of its own"
ANSI = "the session's ANSI mode (spark.sql.ansi.enabled)"
ZONE = "the session's time zone (spark.sql.session.timeZone)"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("branch", "audit", "its branch was 'main', and is now 'audit'"),
        ("mode", "overwrite", "its mode was 'append', and is now 'overwrite'"),
        ("key", ("id", "day"), "its key was (day, id), and is now (id, day)"),
        ("key", (), "its key was (day, id), and is now the position of a row in its file"),
        ("session_time_zone", "Asia/Tokyo", f"{ZONE} was 'UTC', and is now 'Asia/Tokyo'"),
        ("ansi_mode", "false", f"{ANSI} was 'true', and is now 'false'"),
        ("version", "2", "version= was '', and is now '2'"),
        (
            "retry_of",
            "first",
            f"{OWN}, but this start retries the rows of run 'first' that failed",
        ),
        ("input", SCAN, "it read the rows of a DataFrame, but this start reads a scan (parquet)"),
    ],
)
def test_each_difference_shows_the_old_and_the_new_value(
    field: str, value: object, words: str
) -> None:
    """The message alone shows a user which argument to change back."""
    changed: dict[str, Any] = {field: value}
    assert replace(IDENTITY, **changed).differences(IDENTITY) == [words]


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (SCAN.replace('["a", "b"]', '["a"]'), "the scan's columns was (a, b), and is now (a)"),
        (SCAN.replace("null", '"a > 1"'), "the scan's where was not given, and is now a > 1"),
        (SCAN.replace("parquet", "files"), "it read a scan (parquet), but this start reads a scan"),
        (SCAN.replace(", ", ","), f"its input was {SCAN}, and is now"),
        ("no JSON", "it read a scan (parquet), but this start reads no JSON"),
    ],
)
def test_another_scan_is_described_by_what_it_reads(now: str, words: str) -> None:
    """Whatever the texts contain, two different scans are never taken for one job."""
    (text,) = replace(IDENTITY, input=now).differences(replace(IDENTITY, input=SCAN))
    assert text.startswith(words)


@pytest.mark.parametrize(
    ("table", "uuid", "words"),
    [
        (
            "lake.db.other",
            "u2",
            "it writes the table lake.db.t, but this start writes lake.db.other",
        ),
        ("lake.db.other", "", "it writes the table lake.db.t, but this start writes lake.db.other"),
        (
            "lake.db.t",
            "u2",
            "the table lake.db.t is not the one that it was started with: it was",
        ),
        ("lake.db.t", "", "its table lake.db.t has since been dropped"),
    ],
)
def test_another_table_is_described_by_its_name(table: str, uuid: str, words: str) -> None:
    """A user who drops a table and creates it again does not know about UUIDs."""
    (text,) = replace(IDENTITY, table=table, table_uuid=uuid).differences(IDENTITY)
    assert text.startswith(words)
    assert "uuid" not in text.lower()
    assert "u1" not in text
    assert "u2" not in text


def test_a_renamed_table_is_the_same_table() -> None:
    """The UUID decides, not the name."""
    assert replace(IDENTITY, table="lake.db.renamed").differences(IDENTITY) == []


def test_every_difference_is_listed() -> None:
    """One message names them all, so that a user can fix them at once."""
    other: dict[str, Any] = {f.name: "other" for f in fields(Identity) if f.name != "key"}
    assert len(replace(IDENTITY, **other).differences(IDENTITY)) == len(fields(Identity)) - 2
