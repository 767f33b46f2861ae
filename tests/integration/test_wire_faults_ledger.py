"""Faults between a driver or a task and the S3 server that holds the ledger; no Spark.

Method: the product's own readers and writers on a real S3 server, through a proxy of ours. The
client's pauses and timeouts are short; nothing else differs from the product.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pytest

from holdfast.errors import LedgerDamagedError, RunFencedError, StoreUnavailableError
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.store import probe_store
from holdfast.model.records import Stop
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import StorageError
from tests.fault_proxy import Fault, FaultProxy, fault_proxy
from tests.integration.wire_faults import (
    ANSWER_LOST,
    BUSY,
    EXISTS,
    READS_THAT_END_WELL,
    SPOILS,
    UPLOAD_GONE,
    WRITES,
    be_quick,
    flip,
    get_of,
    half,
    hang,
    head_of,
    listing_of,
    put_of,
    spoiled,
)
from tests.integration.wire_ledger import CLAIM, KINDS, fresh_layout, run_log
from tests.stack_access import Stack

pytestmark = [pytest.mark.stack, pytest.mark.versitygw]

DAMAGE = (LedgerDamagedError, pa.ArrowException, OSError, ValueError)


@dataclass
class Wire:
    """A store behind a proxy, and the same store without it."""

    proxy: FaultProxy
    storage: ObjectStorage
    direct: ObjectStorage
    layout: RunLayout


@pytest.fixture
def wire(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """Return a fresh ledger behind a proxy; the client is quick to give up."""
    be_quick(monkeypatch, timeout="10s", retries=3)
    options = stack.s3.store_options()
    with fault_proxy(stack.s3.endpoint) as proxy:
        yield Wire(
            proxy=proxy,
            storage=ObjectStorage({**options, "s3.endpoint": proxy.uri}),
            direct=ObjectStorage(options),
            layout=fresh_layout(stack.s3.bucket),
        )


@pytest.fixture
def impatient(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> Wire:
    """Return the same, with very short timeouts."""
    be_quick(monkeypatch, timeout="500ms", retries=1)
    return wire


@pytest.mark.parametrize("fault", WRITES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_write_lands_whole_and_once_or_says_that_it_did_not(
    wire: Wire, kind: str, fault: str
) -> None:
    """A create-once record gets through; anything else does, or may be written again."""
    stored = KINDS[kind]
    rule = wire.proxy.on(put_of(stored.part), *WRITES[fault])
    try:
        name = stored.write(wire.storage, wire.layout)
    except (StorageError, StoreUnavailableError):
        assert not stored.create_once
        rule.faults.clear()
        name = stored.write(wire.storage, wire.layout)
    assert rule.met
    assert stored.read(wire.direct, wire.layout, name) == stored.content
    objects = wire.direct.list(wire.layout.folder)
    assert len([uri for uri in objects if stored.part in uri]) == 1


@pytest.mark.parametrize("kind", [name for name, stored in KINDS.items() if stored.create_once])
@pytest.mark.parametrize("landed", [True, False], ids=["landed", "not landed"])
def test_a_create_without_an_answer_is_looked_up(
    impatient: Wire, kind: str, *, landed: bool
) -> None:
    """The connection stays open and silent: the client gives up, reads back, and finds out."""
    stored, end = KINDS[kind], threading.Event()
    silent = Fault(forward=landed, after=hang(end), lose_answer=True)
    rule = impatient.proxy.on(put_of(stored.part), silent)
    try:
        name = stored.write(impatient.storage, impatient.layout)
    finally:
        end.set()
    assert rule.met == 1
    assert stored.read(impatient.direct, impatient.layout, name) == stored.content


@pytest.mark.parametrize("kind", [name for name, stored in KINDS.items() if stored.create_once])
def test_a_create_that_arrives_after_our_look_changes_nothing(wire: Wire, kind: str) -> None:
    """It was lost, looked for, and made again; then the first one arrives and is refused."""
    stored, late = KINDS[kind], threading.Event()
    wire.proxy.on(put_of(stored.part), Fault(later=late, status=412, content=EXISTS.content))
    name = stored.write(wire.storage, wire.layout)
    late.set()
    wire.proxy.settle()
    answers = [status for seen, status in wire.proxy.seen if put_of(stored.part)(seen)]
    assert answers == [200, 412]  # It did arrive, last.
    assert stored.read(wire.direct, wire.layout, name) == stored.content


def test_a_create_that_lands_between_our_look_and_our_next_try_is_ours(wire: Wire) -> None:
    """The late write is found by its nonce: it is neither made twice nor taken for a rival's."""
    one, late = KINDS["record of the run log"], threading.Event()

    def arrive() -> None:
        late.set()
        wire.proxy.settle()

    wire.proxy.on(put_of(one.part), Fault(later=late, status=412, content=EXISTS.content))
    rule = wire.proxy.on(get_of(one.part), Fault(after=arrive))
    nonce = one.write(wire.storage, wire.layout)
    assert rule.met
    assert one.read(wire.direct, wire.layout, nonce) == one.content


@pytest.mark.parametrize("fault", ["dropped", "500", "storm of 503", "answer cut"])
def test_a_rival_at_our_number_is_seen_through_lost_answers(wire: Wire, fault: str) -> None:
    """Another driver claims while our record is on its way: we are fenced, and its claim holds."""
    ours, rival = run_log(wire.storage, wire.layout), run_log(wire.direct, wire.layout)
    ours.claim(CLAIM)
    rule = wire.proxy.on(
        put_of("/log/00000002.json"), Fault(before=lambda: void(rival.claim(CLAIM)), status=500)
    )
    wire.proxy.on(get_of("/log/00000002.json"), *READS_THAT_END_WELL[fault])
    with pytest.raises(RunFencedError):
        ours.append(Stop(reason="ours"))
    assert rule.met == 1
    check = run_log(wire.direct, wire.layout)
    check.refresh()
    assert [record.body for record in check.records] == [CLAIM, CLAIM]


@pytest.mark.parametrize("fault", READS_THAT_END_WELL)
@pytest.mark.parametrize("kind", KINDS)
def test_a_read_that_breaks_off_is_made_again(wire: Wire, kind: str, fault: str) -> None:
    """What arrives in the end is what was stored, byte for byte."""
    stored = KINDS[kind]
    name = stored.write(wire.direct, wire.layout)
    rule = wire.proxy.on(get_of(stored.part), *READS_THAT_END_WELL[fault])
    assert stored.read(wire.storage, wire.layout, name) == stored.content
    assert rule.met


@pytest.mark.parametrize("fault", SPOILS)
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_that_do_not_fit_the_objects_tag_are_read_again(
    wire: Wire, kind: str, fault: str
) -> None:
    """Without TLS the tag shows what the wire did; one more read, and the damage has no effect."""
    stored = KINDS[kind]
    name = stored.write(wire.direct, wire.layout)
    rule = wire.proxy.on(get_of(stored.part), *[spoiled(SPOILS[fault], tagged=True)] * 2)
    if fault in {"no bytes", "half the bytes", "flipped bit"}:
        # The same damage twice looks like an object whose tag is not a digest; our digests catch
        # that.
        rule.faults.pop()
    else:
        rule.faults[1] = spoiled(half, tagged=True)
    assert stored.read(wire.storage, wire.layout, name) == stored.content
    assert not rule.faults


def test_an_object_whose_tag_is_not_a_digest_is_read_twice(wire: Wire) -> None:
    """Encrypted objects have such tags: equal reads are taken for what is stored."""
    uri = f"{wire.layout.folder}/x"
    wire.direct.put(uri, b"content")
    rule = wire.proxy.on(get_of("/x"), *[Fault(tag=f'"{"0" * 32}"')] * 9)
    assert wire.storage.get(uri) == b"content"
    assert rule.met == 2


def test_an_object_without_any_digest_must_arrive_the_same_twice(wire: Wire) -> None:
    """Neither its tag nor a record of ours vouches for it, as for a table's manifest list."""
    uri = f"{wire.layout.folder}/x"
    wire.direct.put(uri, b"content")
    rule = wire.proxy.on(get_of("/x"), spoiled(flip), *[Fault(tag='"opaque"')] * 9)
    assert wire.storage.get_sure(uri) == b"content"
    assert rule.met == 3


def test_an_object_that_arrives_differently_each_time_is_not_used(wire: Wire) -> None:
    """A wire that spoils whatever it carries ends in an error."""
    uri = f"{wire.layout.folder}/x"
    wire.direct.put(uri, bytes(100))
    spoils = [partial(flip, at=number / 10) for number in range(9)]
    wire.proxy.on(get_of("/x"), *[spoiled(spoil, tagged=True) for spoil in spoils])
    with pytest.raises(StorageError, match="different contents"):
        wire.storage.get(uri)


@pytest.mark.parametrize("fault", SPOILS)
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_that_were_spoiled_on_the_way_are_never_used(
    wire: Wire, kind: str, fault: str
) -> None:
    """A digest or a checksum shows it; the object itself is intact, and the next read is right."""
    stored = KINDS[kind]
    name = stored.write(wire.direct, wire.layout)
    rule = wire.proxy.on(get_of(stored.part), spoiled(SPOILS[fault]))
    try:
        found = stored.read(wire.storage, wire.layout, name)
    except DAMAGE:
        pass
    else:
        # It has no digest of ours, so it was read again.
        assert (kind, found) == ("key file", stored.content)
    assert rule.met == 1
    assert stored.read(wire.storage, wire.layout, name) == stored.content


@pytest.mark.parametrize("kind", KINDS)
def test_no_flipped_bit_of_an_object_goes_through(wire: Wire, kind: str) -> None:
    """One bit of each byte in turn: every read raises, or returns what was written."""
    stored = KINDS[kind]
    name = stored.write(wire.direct, wire.layout)
    (uri,) = [uri for uri in wire.direct.list(wire.layout.folder) if stored.part in uri]
    size = wire.direct.size(uri)
    wrong = []
    for place in range(size):
        spoil = partial(flip, at=(place + 0.5) / size, bit=1 << place % 8)
        rule = wire.proxy.on(get_of(stored.part), spoiled(spoil))
        with suppress(*DAMAGE):
            if stored.read(wire.storage, wire.layout, name) != stored.content:
                wrong.append(place)
        assert rule.met == 1
    assert wrong == []


def test_a_read_back_that_was_spoiled_proves_nothing(wire: Wire) -> None:
    """Our record landed, its answer was lost, and its bytes come back spoiled: that is damage."""
    log = run_log(wire.storage, wire.layout)
    log.claim(CLAIM)
    wire.proxy.on(put_of("/log/00000002.json"), ANSWER_LOST)
    wire.proxy.on(get_of("/log/00000002.json"), spoiled(flip))
    with pytest.raises(LedgerDamagedError):
        log.append(Stop(reason="ours"))
    again = run_log(wire.storage, wire.layout)
    again.refresh()
    assert [record.body for record in again.records] == [CLAIM, Stop(reason="ours")]


@pytest.mark.parametrize(
    "fault",
    {
        "answer cut": Fault(cut_answer=True),
        "half of it": Fault(spoil_answer=half),
        "flipped bit in a name": Fault(
            spoil_answer=lambda body: body.replace(b"00000001.json", b"00000001.jsoo")
        ),
        "dropped": ANSWER_LOST,
        "503": BUSY,
    }.items(),
    ids=lambda item: item[0],
)
def test_a_spoiled_listing_hides_no_record(wire: Wire, fault: tuple[str, Fault]) -> None:
    """The log is read whole or not at all: an overlooked claim would fence no driver."""
    for _ in range(3):
        run_log(wire.direct, wire.layout).claim(CLAIM)
    rule = wire.proxy.on(listing_of("/r/log/"), fault[1])
    log = run_log(wire.storage, wire.layout)
    with suppress(LedgerDamagedError, StoreUnavailableError):
        log.refresh()
        assert len(log.records) == 3
    assert rule.met == 1
    log.refresh()
    assert len(log.records) == 3


@pytest.mark.parametrize("fault", WRITES)
def test_the_probe_lets_a_good_store_pass_through_a_bad_wire(wire: Wire, fault: str) -> None:
    """A store that creates once is never called unsafe; at worst it did not answer."""
    rule = wire.proxy.on(put_of("/=probe/"), *WRITES[fault])
    with suppress(StoreUnavailableError):
        probe_store(wire.storage, wire.layout.folder, "n", sleep=lambda _: None)
    assert rule.met


@pytest.mark.parametrize("fault", ["dropped", "500 after landing", "answered as unknown"])
def test_the_end_of_a_large_upload_that_has_landed_is_found(wire: Wire, fault: str) -> None:
    """Its answer is lost, the client asks again, and the store does not know the upload."""
    first = {"dropped": ANSWER_LOST, "500 after landing": Fault(status=500)}
    answers = [first[fault]] if fault in first else []
    landed = Fault(status=404, content=UPLOAD_GONE.content)
    rule = wire.proxy.on(put_of("/large"), *answers, landed)
    uri, data = f"{wire.layout.folder}/large", bytes(20_000_000)
    sink = wire.storage.open_sink(uri)
    sink.write(data)
    sink.close()
    assert not rule.faults
    assert wire.direct.get(uri) == data


@pytest.mark.parametrize("fault", [UPLOAD_GONE, BUSY, EXISTS], ids=["404", "503", "412"])
def test_the_end_of_a_large_upload_that_has_not_landed_is_an_error(
    wire: Wire, fault: Fault
) -> None:
    """Nothing is there, and nothing may rely on it."""
    wire.proxy.on(put_of("/large"), *[fault] * 9)
    uri = f"{wire.layout.folder}/large"
    sink = wire.storage.open_sink(uri)
    sink.write(bytes(20_000_000))
    with pytest.raises(StorageError, match=uri):
        sink.close()
    assert wire.direct.sizes([uri]) == [None]


@pytest.mark.parametrize("fault", READS_THAT_END_WELL)
def test_sizes_are_asked_for_again(wire: Wire, fault: str) -> None:
    """A staged file is not taken for lost because a request for it was."""
    uris = [f"{wire.layout.folder}/o{number}" for number in range(40)]
    for uri in uris[:-1]:
        wire.direct.put(uri, b"12345")
    rule = wire.proxy.on(head_of("/o"), *READS_THAT_END_WELL[fault])
    assert wire.storage.sizes(uris) == [5] * 39 + [None]
    assert rule.met


@pytest.mark.parametrize("call", ["create", "put", "get", "size", "list", "delete"])
def test_a_store_that_never_answers_ends_in_an_error(impatient: Wire, call: str) -> None:
    """Every call is bounded: it ends with the client's timeout, not the server's."""
    end, uri = threading.Event(), f"{impatient.layout.folder}/x"
    impatient.proxy.on(
        lambda _: True, *[Fault(before=hang(end), forward=False, lose_answer=True)] * 8
    )
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: impatient.storage.create(uri, b"1"),
        "put": lambda: impatient.storage.put(uri, b"1"),
        "get": lambda: impatient.storage.get(uri),
        "size": lambda: impatient.storage.size(uri),
        "list": lambda: impatient.storage.list(uri),
        "delete": lambda: impatient.storage.delete([uri]),
    }
    try:
        with pytest.raises(StorageError, match=uri):
            calls[call]()
    finally:
        end.set()


def void(_: object) -> None:
    """Take a value and do nothing with it."""
