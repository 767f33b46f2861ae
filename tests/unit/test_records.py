"""Records: what was written is read back, and nothing else is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.model.coverage import InputSums
from holdfast.model.records import (
    FORMAT_VERSION,
    Abort,
    Body,
    Claim,
    Intent,
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
from holdfast.model.stored import RecordDamagedError

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
    """Every kind of record survives the way through bytes."""
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
    """Change a record's content and seal it anew, as another version or a stranger would."""
    content = json.loads(encode_record(record(INTENT)))
    content.pop("digest")
    change(content)
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps({**content, "digest": digest}).encode()


def test_the_hand_that_seals_anew_seals_well() -> None:
    """Without a change the sealed bytes are a record: the refusals below have another cause."""
    assert decode_record(_with(lambda _: None)) == record(INTENT)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(format=3), "format 3"),
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
    """A record that this version does not understand is an error that names the difference."""
    with pytest.raises(RecordDamagedError, match=said):
        decode_record(_with(change))


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"null", b"1", b'"digest"', b"\xff\xfe", b'{"digest": 1}', b"\0"]
)
def test_bytes_that_are_no_record_are_refused(data: bytes) -> None:
    """Whatever stands where a record should be, the error is the one the ledger expects."""
    with pytest.raises(RecordDamagedError):
        open_json(data)


def test_sealed_json_gives_back_its_content() -> None:
    """Format and digest are added, the digest is taken away again; the content is untouched."""
    content = {"b": [1, {"c": None}], "a": "ü"}
    assert open_json(seal_json(content)) == {"format": FORMAT_VERSION, **content}


def test_two_writers_never_write_equal_bytes() -> None:
    """The nonce is part of the bytes: read back, they tell whose record stands there."""
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
