"""Whole jobs with faults on requests to the REST catalog that no other file covers.

Each ends with every row in the table once, or with an error that says that running again is safe;
the same script then ends well, with one snapshot of the run. `test_commit_on_real_catalogs.py`
covers a lost or false answer to a post, with the usual statuses.
"""

from __future__ import annotations

import threading

import pytest

import holdfast as hf
from holdfast.engine import commit
from holdfast.errors import CatalogUnavailableError, CommitRefusedError, CommitUnknownError
from holdfast.sinks.iceberg import catalog
from tests.fault_proxy import Fault, FaultProxy, Seen, is_commit
from tests.integration.wire_desk import WireDesk, desk, plain_desk, rest_wire, s3_wire
from tests.integration.wire_faults import flip, half, hang

__all__ = ["desk", "plain_desk", "rest_wire", "s3_wire"]

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

HTML = b"<html><body>Bad Gateway</body></html>"
LANDED = {
    "504 of a gateway": Fault(status=504, content=HTML),
    "404": Fault(status=404),
    "200 cut off": Fault(cut_answer=True),
    "200 with half the bytes": Fault(spoil_answer=half),
    "200 with a flipped bit": Fault(spoil_answer=lambda body: flip(body, at=0)),
    "200 of a gateway": Fault(status=200, content=HTML),
}
NOT_LANDED = {
    "500": Fault(forward=False, status=500),
    "200 of a gateway": Fault(forward=False, status=200, content=HTML),
    "post cut": Fault(cut_request=True, lose_answer=True),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the commit's pauses short, and its timeout for a silent catalog too.

    Not so short that on a busy machine, where an answer takes a second, a post is repeated.
    """
    monkeypatch.setattr(commit, "_PAUSE_MAX_S", 0.02)
    monkeypatch.setattr(catalog, "_TIMEOUT_S", (5.0, 5.0))


def is_load(seen: Seen) -> bool:
    """Whether the request loads the table."""
    return seen.method == "GET" and seen.path.endswith("/tables/t")


@pytest.mark.parametrize("fault", LANDED)
def test_a_post_that_landed_is_found_whatever_was_answered(
    desk: WireDesk, rest_wire: FaultProxy, fault: str
) -> None:
    """An answer that cannot be understood counts as no answer: the mark in the table decides."""
    rest_wire.faults = [LANDED[fault]]
    first = desk.start()
    assert rest_wire.commits == [200]
    assert first is not None
    desk.ends_well(first)


@pytest.mark.parametrize("fault", NOT_LANDED)
def test_a_post_that_did_not_land_is_made_again(
    desk: WireDesk, rest_wire: FaultProxy, fault: str
) -> None:
    """A 200 that a gateway made up is not a commit."""
    rest_wire.faults = [NOT_LANDED[fault]]
    first = desk.start()
    assert rest_wire.commits[-1] == 200
    assert len(rest_wire.commits) == 2
    assert first is not None
    desk.ends_well(first)


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "not landed"])
def test_a_post_without_an_answer_is_looked_up(
    desk: WireDesk, rest_wire: FaultProxy, *, landed: bool
) -> None:
    """The connection stays open and silent: we give up waiting, look, and know."""
    end = threading.Event()
    rest_wire.faults = [Fault(forward=landed, after=hang(end), lose_answer=True)]
    first = desk.start()
    end.set()
    assert first is not None
    assert first.posts == (1 if landed else 2)
    desk.ends_well(first)


@pytest.mark.parametrize("filled", [True, False], ids=["filled table", "empty table"])
def test_a_post_that_lands_after_our_next_look_is_adopted(
    plain_desk: WireDesk, rest_wire: FaultProxy, *, filled: bool
) -> None:
    """We look, see nothing, and post again; meanwhile the first post has landed.

    On an empty table the empty snapshot comes late, and then a post with the rows.
    """
    desk, late = plain_desk, threading.Event()
    desk.rest_uri, desk.foreign = rest_wire.uri, desk.foreign if filled else []
    desk.make_table()
    rest_wire.faults = [Fault(later=late, lose_answer=True)]

    def arrive() -> None:
        if not rest_wire.faults:  # The post is out.
            late.set()
            rest_wire.settle()

    desk.on(rest_wire, is_load, *[Fault(after=arrive)] * 20)
    first = desk.start()
    assert first is not None
    # It comes late, but before our next post, which is refused or builds on the empty snapshot.
    assert rest_wire.commits == ([200, 409] if filled else [200, 200])
    desk.ends_well(first)


@pytest.mark.parametrize("filled", [True, False], ids=["filled table", "empty table"])
def test_a_post_that_arrives_after_everything_is_refused(
    plain_desk: WireDesk, rest_wire: FaultProxy, *, filled: bool
) -> None:
    """The run landed by its second post, other writers moved on, and then the first arrives."""
    desk, late = plain_desk, threading.Event()
    desk.rest_uri, desk.foreign = rest_wire.uri, desk.foreign if filled else []
    desk.make_table()
    rest_wire.faults = [Fault(later=late, lose_answer=True)]
    first = desk.start()
    assert first is not None
    desk.session.sql(f"INSERT INTO {desk.table} VALUES (-2, 'later')")
    desk.foreign = [-2, *desk.foreign]
    late.set()
    rest_wire.settle()
    assert rest_wire.commits[-1] == 409
    desk.ends_well(first)


def test_a_storm_of_503_ends_in_an_error_and_the_next_start_lands(
    desk: WireDesk, rest_wire: FaultProxy
) -> None:
    """A catalog that answers no post ends the start, without a row in the table."""
    rule = desk.on(rest_wire, is_commit, *[Fault(forward=False, status=503)] * 30)
    first = desk.start()
    assert rule.met == 20
    assert first is None
    desk.failed(CommitUnknownError)
    assert desk.snapshots() == []
    desk.ends_well(first)


def test_a_post_that_landed_while_every_look_fails_is_found_by_the_next_start(
    desk: WireDesk, rest_wire: FaultProxy
) -> None:
    """The outcome is unknown, and the error says so; nothing is deleted or posted again."""
    rest_wire.faults = [Fault(lose_answer=True)]
    posted: list[bool] = []

    def is_late_look(seen: Seen) -> bool:
        posted.append(is_commit(seen))
        return is_load(seen) and any(posted)

    desk.on(rest_wire, is_late_look, *[Fault(forward=False, status=500)] * 300)
    first = desk.start()
    assert first is None
    desk.failed(CommitUnknownError)
    assert rest_wire.commits == [200]
    again = desk.append()
    assert again.outcome == "already_committed"
    desk.ends_well(None)


@pytest.mark.parametrize(
    "fault",
    {
        "dropped": Fault(lose_answer=True),
        "500": Fault(forward=False, status=500),
        "200 with half the bytes": Fault(spoil_answer=half),
        "200 of a gateway": Fault(forward=False, status=200, content=HTML),
    }.items(),
    ids=lambda item: item[0],
)
def test_a_look_that_goes_wrong_before_any_work(
    desk: WireDesk, rest_wire: FaultProxy, fault: tuple[str, Fault]
) -> None:
    """The start ends at once, says that the catalog did not answer, and nothing was paid for."""
    rule = desk.on(rest_wire, is_load, fault[1])
    first = desk.start()
    assert rule.met == 1
    desk.failed(CatalogUnavailableError)
    desk.ends_well(first)


def test_a_look_that_hangs_ends_in_an_error(desk: WireDesk, rest_wire: FaultProxy) -> None:
    """Our timeout applies, whatever the catalog's is."""
    end = threading.Event()
    desk.on(rest_wire, is_load, Fault(before=hang(end), lose_answer=True))
    first = desk.start()
    end.set()
    desk.failed(CatalogUnavailableError)
    desk.ends_well(first)


def test_the_catalogs_own_settings_do_not_arrive(desk: WireDesk, rest_wire: FaultProxy) -> None:
    """The very first request fails."""
    rule = desk.on(rest_wire, lambda seen: "/v1/config" in seen.path, Fault(status=503))
    first = desk.start()
    assert rule.met == 1
    desk.failed(CatalogUnavailableError)
    desk.ends_well(first)


@pytest.mark.parametrize(
    "fault",
    {
        "dropped after landing": Fault(lose_answer=True),
        "500 after landing": Fault(status=500),
        "200 with half the bytes": Fault(spoil_answer=half),
    }.items(),
    ids=lambda item: item[0],
)
def test_the_answer_to_a_creation_is_lost(
    plain_desk: WireDesk, rest_wire: FaultProxy, fault: tuple[str, Fault]
) -> None:
    """The table may be there or not: the next start looks, and creates it if it must."""
    desk = plain_desk
    desk.rest_uri, desk.foreign = rest_wire.uri, []
    rule = desk.on(
        rest_wire, lambda seen: seen.method == "POST" and seen.path.endswith("/tables"), fault[1]
    )
    first = desk.start(create=hf.Create())
    assert rule.met == 1
    if first is None:
        desk.failed(CommitRefusedError)
    desk.ends_well(first, create=hf.Create())
