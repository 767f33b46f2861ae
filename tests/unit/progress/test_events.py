"""Events: each start is told from its claim to its end, and no listener can harm the job."""

from __future__ import annotations

import json
import logging
import threading
from itertools import pairwise
from typing import Any

import pytest

import holdfast as hf
from holdfast.engine.watch import Observation, Watcher
from holdfast.errors import HoldfastError, RunAbortedError, SettingsError, TransformError
from holdfast.ledger.ledger import Ports
from holdfast.progress import events
from holdfast.progress.events import Event, Listener, heard, listeners_of
from tests.fakes.cli_lake import CliLake, lake
from tests.fakes.memory_submitter import MemorySubmitter

__all__ = ["lake"]

GONE = Ports(process_id=2**30 + 1)


def start(
    lake: CliLake,
    *listeners: Listener,
    rows: MemorySubmitter | None = None,
    **options: Any,  # noqa: ANN401 - any of `WriteOptions`.
) -> hf.Report:
    """Start the script, as `Writing.run` does."""
    sink = lake.make_table()
    ledger = lake.ledger("r", GONE)
    about = Event(
        kind="started",
        at=0.0,
        run_id="r",
        table=sink.name,
        location=sink.load().location,
    )
    with heard(listeners, ledger, about) as told:
        submitter = rows or MemorySubmitter(range(10), range(10, 20))
        told.report = lake.start("r", submitter, ledger=ledger, sink=sink, **options)
    return told.report


def kinds(heard: list[Event]) -> list[str]:
    """Return what happened, without looks at the progress."""
    return [event.kind for event in heard if event.kind != "progress"]


def test_a_start_is_told_from_its_claim_to_its_end(lake: CliLake) -> None:
    told: list[Event] = []
    report = start(lake, told.append)
    assert kinds(told) == ["started", "pass", "commit", "ended"]
    first, begun, commit, last = told
    assert (first.start, first.passes, begun.passes, commit.passes) == (1, 0, 1, 1)
    assert first.at <= begun.at <= commit.at <= last.at
    assert first.progress is not None
    assert last.progress is not None
    assert (first.progress.done_rows, last.progress.done_rows) == (0, 20)
    assert (last.report, last.error) == (report, None)
    assert last.location.startswith("file://")


def test_a_start_that_fails_ends_with_its_error_and_the_next_one_goes_on(lake: CliLake) -> None:
    """What the first has done is known when the second begins."""
    told: list[Event] = []
    lake.start_and_die("r", MemorySubmitter(range(10), range(10, 20)))

    def fails(_batch: object) -> object:
        raise ValueError("no")

    with pytest.raises(TransformError), pytest.warns(UserWarning, match="code has changed"):
        start(lake, told.append, transform=fails, retries=0)
    assert set(kinds(told)) == {"started", "pass", "ended"}
    assert told[0].progress is not None
    assert (told[0].start, told[0].progress.done_rows) == (2, 10)
    assert isinstance(told[-1].error, TransformError)
    with pytest.warns(UserWarning, match="code has changed"):
        report = start(lake, told.append)
    last = told[-1]
    assert last.start == 3
    assert last.report is report


def test_a_start_that_finds_the_run_in_the_table_is_told_too(lake: CliLake) -> None:
    told: list[Event] = []
    start(lake)
    start(lake, told.append)
    assert kinds(told) == ["ended"]  # It has nothing to claim.
    assert told[-1].report is not None
    assert told[-1].report.outcome == "already_committed"


def test_a_start_that_is_refused_before_it_claims_only_ends(lake: CliLake) -> None:
    told: list[Event] = []
    start(lake, commit=False)
    lake.ledger("r")
    hf.Run("r", store=lake.store).abort(to=table_of(lake), reason="wrong")
    with pytest.raises(RunAbortedError):
        start(lake, told.append)
    assert kinds(told) == ["ended"]
    assert (told[0].start, type(told[0].error)) == (0, RunAbortedError)


def table_of(lake: CliLake) -> hf.IcebergTable:
    """Return the table as a user names it."""
    return hf.IcebergTable("db.t", catalog={"name": "lake", **lake.properties})


def test_a_commit_that_comes_later_is_told_by_its_own_run(lake: CliLake) -> None:
    """Through the public arguments: one function, or several."""
    told: list[Event] = []
    counted: list[str] = []
    start(lake, commit=False)
    listeners = [told.append, lambda event: counted.append(event.kind)]
    run = hf.Run("r", store=lake.store, on_event=listeners)
    report = run.commit(to=table_of(lake))
    assert kinds(told) == counted == ["started", "commit", "ended"]
    assert told[-1].report == report
    assert told[-1].report.seconds > 0
    assert told[-1].table.endswith("db.t")


def test_without_a_listener_there_is_no_thread_and_no_look(
    lake: CliLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is not listened to pays nothing."""

    def none(*_: object, **__: object) -> None:
        pytest.fail("made though nobody listens")

    monkeypatch.setattr(events, "Watcher", none)
    monkeypatch.setattr(events, "_Thread", none)
    assert start(lake).outcome == "committed"


def test_a_listener_that_fails_is_heard_of_once_and_harms_nothing(
    lake: CliLake, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Event] = []

    def fails(_event: Event) -> None:
        raise OSError("no route to the collector")

    with caplog.at_level(logging.WARNING, logger="holdfast"):
        assert start(lake, fails, told.append).outcome == "committed"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert kinds(told) == ["started", "pass", "commit", "ended"]


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_whatever_a_listener_raises_the_others_hear_all(
    lake: CliLake, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    told: list[Event] = []

    def fails(_event: Event) -> None:
        raise error

    with caplog.at_level(logging.WARNING, logger="holdfast"):
        assert start(lake, fails, told.append).outcome == "committed"
    assert kinds(told) == ["started", "pass", "commit", "ended"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_listener_that_hangs_silences_no_other(
    lake: CliLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collector that does not answer must not keep an alert from being sent."""
    monkeypatch.setattr(events, "_END_S", 0.5)
    told: list[Event] = []
    release = threading.Event()
    try:
        assert start(lake, lambda _: release.wait(60), told.append).outcome == "committed"
    finally:
        release.set()
    assert kinds(told) == ["started", "pass", "commit", "ended"]


def test_a_start_that_cannot_open_its_table_is_told(lake: CliLake) -> None:
    """The catalog is down at night, or the table is gone: an alert must hear of that, too."""
    told: list[Event] = []
    run = hf.Run("r", store=lake.store, on_event=told.append)
    with pytest.raises(SettingsError):
        run.commit(to=table_of(lake))
    assert [(event.kind, event.run_id, event.table) for event in told] == [("ended", "r", "db.t")]
    assert isinstance(told[0].error, SettingsError)
    json.dumps(told[0].to_json())


def test_a_listener_that_hangs_is_left_behind(
    lake: CliLake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver waits for it at the end only, and not for long."""
    monkeypatch.setattr(events, "_END_S", 0.2)
    hangs = threading.Event()
    try:
        assert start(lake, lambda _event: hangs.wait(30)).outcome == "committed"
    finally:
        hangs.set()
    assert "has not returned" in caplog.text


def test_a_ledger_that_cannot_be_read_leaves_events_without_progress(lake: CliLake) -> None:
    """They tell of the driver's own log, which is in memory."""
    told: list[Event] = []

    def breaks() -> None:
        raise HoldfastError

    def listener(event: Event) -> None:
        told.append(event)

    telling = events.Telling(
        log=(log := lake.ledger("r").log),
        listener=listener,
        about=Event(kind="started", at=0.0, run_id="r", table="t", location="file:///t"),
        look=breaks,  # type: ignore[arg-type]
    )
    telling.tick()
    assert told == []
    start(lake)
    log.refresh()
    log._own_claim = 1  # noqa: SLF001 - as if it were this driver's.
    telling.tick()
    telling.end(None, KeyboardInterrupt())
    assert kinds(told) == ["started", "pass", "commit", "ended"]
    assert {event.progress for event in told} == {None}


def test_how_far_a_start_is_comes_every_ten_seconds_or_less_often(lake: CliLake) -> None:
    """A slow look is followed by a long pause."""
    start(lake)
    ledger, clock = lake.ledger("r"), [0.0]
    ledger.log.refresh()
    ledger.log._own_claim = 1  # noqa: SLF001 - as if it were this driver's.
    told: list[Event] = []
    watcher = Watcher(ledger=lake.ledger("r"))

    def slow() -> Observation:
        clock[0] += 1.0
        return watcher.look()

    telling = events.Telling(
        log=ledger.log,
        listener=told.append,
        about=Event(kind="started", at=0.0, run_id="r", table="t", location="file:///t"),
        look=slow,
        clock=lambda: clock[0],
    )
    looks = []
    for second in range(0, 130, 2):
        clock[0] = max(clock[0], float(second))
        before = len(told)
        telling.tick()
        if any(event.kind == "progress" for event in told[before:]):
            looks.append(second)
    assert looks[0] >= 10
    assert all(later - earlier >= 50 for earlier, later in pairwise(looks))
    assert len(looks) >= 2


def test_an_event_is_json(lake: CliLake) -> None:
    told: list[Event] = []
    start(lake, told.append)
    found = json.loads(json.dumps([event.to_json() for event in told], default=str))
    assert [event["kind"] for event in found] == kinds(told)
    assert found[-1]["report"]["rows"] == found[-1]["progress"]["done_rows"] == 20
    assert found[0]["at"].endswith("+00:00")
    failed = Event(
        kind="ended",
        at=1.0,
        run_id="r",
        table="t",
        location="",
        error=SettingsError(what="x", cure="y"),
    )
    assert failed.to_json()["error"] == {"name": "SettingsError", "message": "x"}


def test_what_is_no_function_is_refused_at_once() -> None:
    assert listeners_of(None) == ()
    assert listeners_of(print) == (print,)

    async def never_runs(_: Event) -> None: ...

    wrongs: list[Any] = [["print"], "print", 5, True, {}, never_runs]
    for wrong in wrongs:
        with pytest.raises(SettingsError, match="on_event="):
            hf.Run("r", store="file:///tmp/s", on_event=wrong)
