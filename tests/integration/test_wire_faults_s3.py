"""Whole jobs with faults on objects on the way to S3: files, records, keys, chunks, seals.

Each job ends with every row in the table once, or with an error that says that running again is
safe; the same script then ends well, with one snapshot of the run. Executors have the product's own
pauses and timeouts.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.errors import (
    JobFailedError,
    LedgerDamagedError,
    StoreUnavailableError,
    TransformError,
)
from tests.fault_proxy import Fault, FaultProxy, Seen
from tests.integration.wire_desk import (
    ROWS,
    FailsAt,
    WireDesk,
    desk,
    enlarge,
    plain_desk,
    rest_wire,
    s3_wire,
)
from tests.integration.wire_faults import (
    ANSWER_LOST,
    BUSY,
    SPOILS,
    UPLOAD_GONE,
    WRITES,
    flip,
    get_of,
    half,
    head_of,
    listing_of,
    put_of,
    spoiled,
)

__all__ = ["desk", "plain_desk", "rest_wire", "s3_wire"]

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest, pytest.mark.versitygw]

OBJECTS = {
    "data file": "/data/",
    "staged manifest": "-m0.avro",
    "task record": "/0000.json",
    "key file": ".keys",
    "part of a seal": "/parts/",
    "record of the run log": "/log/",
    "manifest list": "-0-holdfast.avro",
}
# The client itself retries after each of these, so the job succeeds at once.
HEALED = ["500 after landing", "dropped after landing", "dropped before landing", "upload cut"]


def only_header(body: bytes) -> bytes:
    """Return an Avro file without its rows: it is whole, but empty."""
    mark = body[-16:]
    return body[: body.index(mark) + len(mark)]


class FirstOfEach:
    """Matches the first request of a kind for each object."""

    def __init__(self, matches: Callable[[Seen], bool]) -> None:
        """Take what recognizes the kind; no object is known yet."""
        self._matches = matches
        self._known: set[str] = set()

    def __call__(self, seen: Seen) -> bool:
        """Whether it is the first request for an object."""
        if not self._matches(seen) or seen.path in self._known or "list-type" in seen.target:
            return False
        self._known.add(seen.path)
        return True


@pytest.mark.parametrize("fault", HEALED)
def test_every_object_of_a_job_meets_a_fault_and_the_job_ends_well(
    desk: WireDesk, s3_wire: FaultProxy, fault: str
) -> None:
    """The first upload of every object fails, of the ledger and of the files."""
    rule = desk.on(s3_wire, FirstOfEach(put_of("/")), *WRITES[fault] * 100)
    first = desk.start()
    assert rule.met > len(OBJECTS)
    assert first is not None
    desk.ends_well(first)


@pytest.mark.parametrize("what", OBJECTS)
def test_a_flipped_bit_in_an_upload_is_refused_and_costs_a_retry_at_most(
    desk: WireDesk, s3_wire: FaultProxy, what: str
) -> None:
    """The upload is signed with a digest of its bytes: the server finds it."""
    rule = desk.on(s3_wire, put_of(OBJECTS[what]), *WRITES["upload with a flipped bit"])
    first = desk.start()
    assert rule.met == 1
    if what in {"task record", "record of the run log"}:
        assert first is not None  # Created once, looked up, made again.
    else:
        desk.failed(JobFailedError, StoreUnavailableError)
    desk.ends_well(first)


@pytest.mark.parametrize(
    ("what", "fault"),
    [
        ("data file", "409 that stored nothing"),
        ("data file", "storm of 503"),
        ("part of a seal", "412 that stored nothing"),
        ("record of the run log", "storm of 412"),
        ("record of the run log", "storm of 503"),
    ],
)
def test_an_object_that_is_refused_again_and_again(
    desk: WireDesk, s3_wire: FaultProxy, what: str, fault: str
) -> None:
    """At worst the start ends with an error after which the same script is safe to run."""
    rule = desk.on(s3_wire, put_of(OBJECTS[what]), *WRITES[fault])
    first = desk.start()
    assert rule.met
    if first is None:
        desk.failed(JobFailedError, StoreUnavailableError)
    desk.ends_well(first)


def test_a_chunk_whose_answer_is_lost_is_replayed(desk: WireDesk, s3_wire: FaultProxy) -> None:
    """Rows before a failed batch are kept in a chunk; the next start does not compute them."""
    rule = desk.on(s3_wire, put_of(".chunk"), ANSWER_LOST)
    first = desk.start(transform=FailsAt(ROWS - 4))
    assert isinstance(desk.error, TransformError)
    assert rule.met == 1
    desk.ends_well(first)


@pytest.mark.parametrize("fault", ["flipped bit", "half the bytes"])
def test_a_chunk_that_arrives_spoiled_is_not_replayed(
    desk: WireDesk, s3_wire: FaultProxy, fault: str
) -> None:
    """Its digest shows it: its rows are computed again, in the same start."""
    desk.start(transform=FailsAt(ROWS - 4))
    rule = desk.on(s3_wire, get_of(".chunk"), spoiled(SPOILS[fault]))
    second = desk.start()
    assert rule.met == 1
    assert second is not None
    assert second.withdrawn_rows
    desk.ends_well(second)


@pytest.mark.parametrize(
    ("what", "part", "fault"),
    [
        ("run.json", "/run.json", "half the bytes"),
        ("record of the run log", "/log/00000001.json", "flipped bit"),
        ("part of a seal", "/parts/", "flipped bit"),
    ],
)
def test_a_resume_never_uses_a_ledger_that_arrives_spoiled(
    desk: WireDesk, s3_wire: FaultProxy, what: str, part: str, fault: str
) -> None:
    """It stops with an error, pays for nothing, and the next start finds the ledger whole."""
    desk.start(transform=FailsAt(ROWS - 4))
    if what == "part of a seal":
        desk.start(transform=FailsAt(ROWS - 4))  # The second start seals what the first has left.
    rule = desk.on(s3_wire, get_of(part), spoiled(SPOILS[fault]))
    second = desk.start()
    assert rule.met == 1
    assert second is None
    assert isinstance(desk.error, LedgerDamagedError)
    desk.ends_well(None)


@pytest.mark.parametrize("fault", ["flipped bit", "half the bytes"])
def test_a_resume_reads_keys_again_that_arrive_spoiled(
    desk: WireDesk, s3_wire: FaultProxy, fault: str
) -> None:
    """A key file has no digest: it must arrive the same twice, or match its tag."""
    desk.start(transform=FailsAt(ROWS - 4))
    rule = desk.on(s3_wire, get_of(".keys"), spoiled(SPOILS[fault]))
    second = desk.start()
    assert rule.met == 1
    assert second is not None
    desk.ends_well(second)


def test_a_resume_reads_again_what_does_not_fit_its_tag(
    desk: WireDesk, s3_wire: FaultProxy
) -> None:
    """The first answer to each read of an object is spoiled, and the job continues."""
    desk.start(transform=FailsAt(ROWS - 4))
    rule = desk.on(s3_wire, FirstOfEach(get_of("/r/")), *[spoiled(flip, tagged=True)] * 100)
    second = desk.start()
    assert rule.met > 5
    assert second is not None
    assert second.withdrawn_rows == 0
    desk.ends_well(second)


def test_a_task_record_that_arrives_spoiled_stops_the_driver(
    desk: WireDesk, s3_wire: FaultProxy
) -> None:
    """The seal must not leave out work because the wire changed a byte of its record."""
    rule = desk.on(s3_wire, get_of("/0000.json"), spoiled(flip))
    assert desk.start() is None
    assert rule.met == 1
    assert isinstance(desk.error, LedgerDamagedError)
    desk.ends_well(None)


@pytest.mark.parametrize("fault", ["answer cut", "half of it", "dropped"])
def test_a_listing_of_task_records_that_breaks_off(
    desk: WireDesk, s3_wire: FaultProxy, fault: str
) -> None:
    """It is requested again, or the start ends; no record is overlooked."""
    faults = {
        "answer cut": Fault(cut_answer=True),
        "half of it": Fault(spoil_answer=half),
        "dropped": ANSWER_LOST,
    }
    rule = desk.on(s3_wire, listing_of("/tasks/00000001-"), *[faults[fault]] * 2)
    first = desk.start()
    assert rule.met
    if first is None:
        desk.failed(StoreUnavailableError, JobFailedError)
    desk.ends_well(first)


@pytest.mark.parametrize("times", [1, 2])
def test_a_staged_file_that_seems_gone_lands_once(
    desk: WireDesk, s3_wire: FaultProxy, times: int
) -> None:
    """A false 404 looks like a clean-up: after a second one, its rows are computed again."""
    paths: list[str] = []

    def same_file(seen: Seen) -> bool:
        if not head_of("/data/")(seen):
            return False
        paths.append(seen.path)
        return seen.path == paths[0]

    rule = desk.on(s3_wire, same_file, *[Fault(status=404)] * times)
    first = desk.start()
    assert rule.met == times
    assert first is not None
    assert bool(first.withdrawn_rows) == (times > 1)
    desk.ends_well(first)


@pytest.mark.parametrize(
    "faults",
    {
        "lost, and the upload is gone": [ANSWER_LOST, UPLOAD_GONE],
        "200 that is an error": [
            Fault(
                forward=False,
                status=200,
                content=b"<Error><Code>InternalError</Code><Message>forged</Message></Error>",
            )
        ],
        "503, then it lands": [BUSY, BUSY],
    }.items(),
    ids=lambda item: item[0],
)
def test_the_end_of_a_large_upload_goes_wrong(
    desk: WireDesk, s3_wire: FaultProxy, faults: tuple[str, list[Fault]]
) -> None:
    """A data file of many parts is there whole or not at all, and never counted too early."""
    large = {"transform": enlarge, "rows": 4}
    ends = desk.on(s3_wire, put_of("/data/"), *faults[1])
    first = desk.start(**large)
    assert ends.met >= len(faults[1])
    assert any("partNumber=" in seen.target for seen, _ in s3_wire.seen)  # It was a large upload.
    if first is None:
        desk.failed(JobFailedError)
    desk.ends_well(first, **large)


@pytest.mark.parametrize("fault", ["flipped bit", "half the bytes", "only the header"])
def test_the_parents_manifest_list_arrives_spoiled_and_is_read_again(
    desk: WireDesk, s3_wire: FaultProxy, fault: str
) -> None:
    """Our snapshot repeats the parent's manifests: a spoiled list would lose foreign rows."""
    spoil = {**SPOILS, "only the header": only_header}[fault]
    rule = desk.on(s3_wire, get_of("/metadata/snap-"), spoiled(spoil, tagged=True))
    first = desk.start()
    assert rule.met == 1
    assert first is not None
    desk.ends_well(first)


@pytest.mark.parametrize("fault", ["flipped bit", "half the bytes", "only the header"])
def test_the_parents_manifest_list_arrives_spoiled_from_a_store_without_digests(
    desk: WireDesk, s3_wire: FaultProxy, fault: str
) -> None:
    """It is read until it arrives the same twice: no snapshot hides foreign rows."""
    spoil = {**SPOILS, "only the header": only_header}[fault]
    rule = desk.on(s3_wire, get_of("/metadata/snap-"), spoiled(spoil))
    first = desk.start()
    assert rule.met == 1
    assert first is not None
    desk.ends_well(first)


def test_the_read_back_of_a_record_is_spoiled(desk: WireDesk, s3_wire: FaultProxy) -> None:
    """The intent landed, its answer was lost, its bytes come back spoiled: nothing is posted."""
    lost = desk.on(s3_wire, put_of("/log/00000004.json"), ANSWER_LOST)
    desk.on(s3_wire, get_of("/log/00000004.json"), spoiled(flip))
    first = desk.start()
    assert lost.met == 1
    assert isinstance(desk.error, LedgerDamagedError)
    desk.ends_well(first)
