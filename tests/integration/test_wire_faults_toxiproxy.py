"""A slow, narrow, silent or broken wire to S3: toxiproxy between us and the store.

Each job ends with every row in the table once, or with an error that says that running again is
safe; the same script then ends well, with one snapshot of the run.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.errors import JobFailedError, StoreUnavailableError
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import StorageError
from tests.integration.wire_desk import WireDesk, plain_desk
from tests.integration.wire_faults import be_quick
from tests.integration.wire_ledger import KINDS, fresh_layout
from tests.integration.wire_toxics import Toxic, ToxicProxy, TurnsToxic, heals, toxic_proxy
from tests.stack_access import Stack

__all__ = ["plain_desk"]

pytestmark = [pytest.mark.stack, pytest.mark.versitygw, pytest.mark.toxiproxy]

# All bytes arrive, sooner or later.
SLOW = {
    "latency": [Toxic("latency", {"latency": 60, "jitter": 40})],
    "little bandwidth": [
        Toxic("bandwidth", {"rate": 40}),
        Toxic("bandwidth", {"rate": 40}, "upstream"),
    ],
    "slow close": [Toxic("slow_close", {"delay": 400})],
    "small slices": [
        Toxic("slicer", {"average_size": 200, "size_variation": 100, "delay": 1000}),
        Toxic("slicer", {"average_size": 200, "size_variation": 100, "delay": 1000}, "upstream"),
    ],
}
# No object gets through as long as it lasts.
BROKEN = {
    "cut in the middle of an upload": [Toxic("limit_data", {"bytes": 100}, "upstream")],
    "cut in the middle of an answer": [Toxic("limit_data", {"bytes": 100})],
    "reset at once": [Toxic("reset_peer", {"timeout": 0})],
    "reset in the middle": [Toxic("reset_peer", {"timeout": 20}, "upstream")],
    "no data, then closed": [Toxic("timeout", {"timeout": 200})],
    "no data, stays open": [Toxic("timeout", {"timeout": 0})],
    "requests vanish, stays open": [Toxic("timeout", {"timeout": 0}, "upstream")],
}


@pytest.fixture
def toxic(stack: Stack) -> Iterator[ToxicProxy]:
    """Return a proxy in front of S3 that does no harm yet."""
    with toxic_proxy(stack.toxiproxy_api, stack.s3.endpoint) as proxy:
        yield proxy


@pytest.fixture
def storage(stack: Stack, toxic: ToxicProxy, monkeypatch: pytest.MonkeyPatch) -> ObjectStorage:
    """Return the store behind the proxy."""
    be_quick(monkeypatch, timeout="10s", retries=1)
    return ObjectStorage(s3_options(stack, toxic.uri))


def s3_options(stack: Stack, endpoint: str) -> dict[str, str]:
    """Return storage options for one route to S3."""
    return {**stack.s3.store_options(), "s3.endpoint": endpoint}


@pytest.fixture
def desk(plain_desk: WireDesk, toxic: ToxicProxy, monkeypatch: pytest.MonkeyPatch) -> WireDesk:
    """Return a run on a table of its own, with toxiproxy in front of S3."""
    be_quick(monkeypatch, timeout="10s", retries=5)
    plain_desk.s3_uri = toxic.uri
    plain_desk.make_table()
    return plain_desk


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("harm", SLOW)
def test_the_ledger_is_written_and_read_over_a_slow_wire(
    stack: Stack, storage: ObjectStorage, toxic: ToxicProxy, harm: str, kind: str
) -> None:
    """Slow is not broken."""
    toxic.add(*SLOW[harm])
    one, layout = KINDS[kind], fresh_layout(stack.s3.bucket)
    assert one.read(storage, layout, one.write(storage, layout)) == one.content


@pytest.mark.parametrize("kind", ["record of the run log", "part of a seal", "chunk"])
@pytest.mark.parametrize("harm", BROKEN)
def test_the_ledger_over_a_broken_wire_is_whole_or_not_there(
    stack: Stack, toxic: ToxicProxy, monkeypatch: pytest.MonkeyPatch, harm: str, kind: str
) -> None:
    """Every write and read ends in time, with an error; the store itself is healthy."""
    be_quick(monkeypatch, timeout="250ms", retries=1)
    one, layout = KINDS[kind], fresh_layout(stack.s3.bucket)
    storage = ObjectStorage(s3_options(stack, toxic.uri))
    direct = ObjectStorage(s3_options(stack, stack.s3.endpoint))
    toxic.add(*BROKEN[harm])
    with pytest.raises((StoreUnavailableError, StorageError)):
        one.write(storage, layout)
    for uri in direct.list(layout.folder):
        assert direct.size(uri)  # It landed without an answer, so it is there.
    layout = fresh_layout(stack.s3.bucket)
    name = one.write(direct, layout)
    with pytest.raises((StoreUnavailableError, StorageError)):
        one.read(storage, layout, name)
    toxic.clear()
    assert one.read(direct, layout, name) == one.content


@pytest.mark.spark
@pytest.mark.rest
@pytest.mark.parametrize("harm", SLOW)
def test_a_job_over_a_slow_wire_ends_well(desk: WireDesk, toxic: ToxicProxy, harm: str) -> None:
    """The wire is slow from the first request to the last."""
    toxic.add(*SLOW[harm])
    first = desk.start()
    assert first is not None
    toxic.clear()
    desk.ends_well(first)


@pytest.mark.spark
@pytest.mark.rest
@pytest.mark.parametrize("harm", BROKEN)
def test_a_wire_that_breaks_in_the_middle_of_a_job_and_heals(
    desk: WireDesk, toxic: ToxicProxy, harm: str
) -> None:
    """It breaks at the first row and heals a little later: the job goes on, or may be repeated."""
    with heals(toxic, after_s=0.6) as healed:
        first = desk.start(transform=TurnsToxic(toxic, *BROKEN[harm]))
    assert healed()
    if first is None:
        desk.failed(JobFailedError, StoreUnavailableError)
    desk.ends_well(first)


@pytest.mark.spark
@pytest.mark.rest
def test_a_wire_that_breaks_in_the_middle_of_a_job_and_stays_so(
    desk: WireDesk, toxic: ToxicProxy
) -> None:
    """The start ends with an error; the next one, on a good wire, does what is left."""
    harm = BROKEN["cut in the middle of an upload"]
    first = desk.start(transform=TurnsToxic(toxic, *harm))
    assert toxic.toxics()
    toxic.clear()
    assert first is None
    desk.failed(JobFailedError, StoreUnavailableError)
    desk.ends_well(first)
