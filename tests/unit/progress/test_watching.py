"""The thread that shows a run: how often it looks, and that it never harms the job."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from holdfast.engine.drive import Driver
from holdfast.engine.options import WriteOptions
from holdfast.engine.watch import Observation, Watcher
from holdfast.errors import StoreUnavailableError, TransformError
from holdfast.progress import watching
from holdfast.progress.frame import Frame
from holdfast.progress.watching import Watching, shown
from tests.fakes.logs import CLAIM
from tests.fakes.memory_storage import DriverDiedError
from tests.fakes.progress_display import MemoryDisplay
from tests.fakes.rig import RUN_ID, Rig, two_partitions
from tests.fakes.unpinned import Unpinned
from tests.fakes.watched_transform import WatchedTransform

ALWAYS = 1e-9


class Clock:
    """Seconds that pass only when a test says so, or when a look takes some."""

    def __init__(self) -> None:
        """Begin at some moment."""
        self.s = 100.0
        self.look_takes_s = 0.0
        self.looks: list[float] = []

    def look_at(self, rig: Rig) -> Observation:
        """Look, and let the look take its time."""
        self.looks.append(self.s - 100.0)
        self.s += self.look_takes_s
        return Watcher(ledger=rig.ledger()).look()


def watch(rig: Rig, clock: Clock, display: MemoryDisplay, *, claimed: bool = True) -> Watching:
    """Return the object that the thread runs, on the test's clock."""
    return Watching(
        run_id=RUN_ID,
        table="lake.db.t",
        look=lambda: clock.look_at(rig),
        display=display,
        is_claimed=lambda: claimed,
        clock=lambda: clock.s,
        now=rig.time.now,
    )


def pass_time(watched: Watching, clock: Clock, seconds: float) -> None:
    """Let the thread do what it would do in this many seconds."""
    until, pause = clock.s + seconds, watched.display.tick_s
    while clock.s + pause <= until:
        clock.s += pause
        pause = watched.tick()


def test_the_first_look_comes_after_two_seconds_and_then_one_every_two() -> None:
    """The looks are quick, as the store is near."""
    clock, display = Clock(), MemoryDisplay()
    pass_time(watch(Rig(), clock, display), clock, 9.0)
    assert clock.looks == [2.0, 4.0, 6.0, 8.0]
    assert [frame.elapsed_s for frame in display.frames] == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_look_that_takes_long_is_followed_by_a_long_pause() -> None:
    """At most one fiftieth of the time is spent looking; the display's clock goes on."""
    clock, display = Clock(), MemoryDisplay()
    clock.look_takes_s = 0.5
    pass_time(watch(Rig(), clock, display), clock, 100.0)
    assert clock.looks == [2.0, 27.5, 53.0, 78.5]
    assert len(display.frames) > 90


def test_nothing_is_read_before_the_run_is_claimed() -> None:
    """An earlier start is not shown: the display says that the run is opening."""
    rig, clock, display = Rig(), Clock(), MemoryDisplay()
    rig.start()
    watched = watch(rig, clock, display, claimed=False)
    pass_time(watched, clock, 9.0)
    watched.end()
    assert clock.looks == []
    assert {frame.progress for frame in display.frames} == {None}
    assert display.ended == [None]  # There was nothing to show: the picture is erased.


def test_the_last_frame_comes_from_a_fresh_look() -> None:
    """The run has landed since the last look, and the screen must end with that."""
    rig, clock, display = Rig(), Clock(), MemoryDisplay()
    watched = watch(rig, clock, display)
    pass_time(watched, clock, 3.0)
    rig.start()
    watched.end()
    (last,) = display.ended
    assert last is not None
    assert last.progress is not None
    assert (last.progress.state, last.progress.share, last.elapsed_s) == ("committed", 1.0, 3.0)


def test_errors_are_swallowed_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The store does not answer, then the terminal is gone; the thread goes on."""
    rig, clock, display = Rig(), Clock(), MemoryDisplay()
    watched = watch(rig, clock, display)

    def fail() -> Observation:
        raise StoreUnavailableError(uri="s3://store", reason="no answer")

    watched.look = fail
    display.fails = True
    with caplog.at_level(logging.DEBUG, "holdfast"):
        pass_time(watched, clock, 9.0)
        watched.end()
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    watched.look, display.fails = lambda: clock.look_at(rig), False
    pass_time(watched, clock, 9.0)
    assert display.frames[-1].progress is not None


def test_a_look_makes_few_calls_and_no_write() -> None:
    """It lists the log and the tasks once each, and reads each new record that counts."""
    rig = Rig()
    watcher, transform = Watcher(ledger=rig.ledger()), WatchedTransform()
    calls: list[list[str]] = []

    def look() -> None:
        before = len(rig.storage.calls)
        watcher.look()
        calls.append([kind for kind, _ in rig.storage.calls[before:]])

    transform.at[12], transform.at[13] = look, look
    rig.start(transform=transform, batch_rows=4, checkpoint_every=ALWAYS)
    look()
    # The claim, the plan and the run file, then the task records; without news, two listings.
    assert calls[0] == ["list", "get", "get", "get", "list", *["get"] * (len(calls[0]) - 5)]
    assert len(calls[0]) == 6
    assert calls[1] == ["list", "list"]
    # The seal, the intent, the receipt, and the list of what has landed.
    assert calls[2] == ["list", "get", "get", "get", "get"]


@contextlib.contextmanager
def displayed(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryDisplay]:
    """Show runs quickly on a display in memory, and check that no thread is left."""
    display = MemoryDisplay()
    display.first_s = display.every_s = display.tick_s = 0.001
    monkeypatch.setattr(watching, "display_for", lambda _run_id, **_: display)
    monkeypatch.setattr(watching, "_PAUSE_FOR_A_LOOK", 0.0)
    yield display
    assert [thread for thread in threading.enumerate() if thread.name == "holdfast-progress"] == []
    assert display.let_go_calls == 1


def wait_for_a_look(display: MemoryDisplay) -> None:
    """Wait until the thread has seen something."""
    until = time.monotonic() + 10.0
    while not any(frame.progress is not None for frame in list(display.frames)):
        assert time.monotonic() < until
        time.sleep(0.001)


def start(rig: Rig, display: MemoryDisplay, meanwhile: Callable[[], object] | None = None) -> None:
    """Drive the job as `append` does, and call `meanwhile` once the thread has seen the run."""
    transform = WatchedTransform()

    def wait() -> None:
        wait_for_a_look(display)
        if meanwhile is not None:
            meanwhile()

    transform.at[15] = wait
    driver = Driver(ledger=rig.ledger(), sink=rig.table, input=Unpinned(two_partitions()))
    with shown(driver.ledger, rig.table.name, wanted=None):
        options = WriteOptions(
            transform=transform, batch_rows=1, checkpoint_every=ALWAYS, retries=0
        )
        driver.write(rig.table.load(), rig.identity(), options)


def state(frame: Frame | None) -> str:
    """Return the state of the run in a frame."""
    assert frame is not None
    assert frame.progress is not None
    return frame.progress.state


def test_a_job_is_shown_from_its_claim_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last frame says that it has landed, and the thread is gone."""
    with displayed(monkeypatch) as display:
        start(Rig(), display)
        assert [state(frame) for frame in display.ended] == ["committed"]


def test_the_thread_ends_when_the_job_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's own error is the one that is raised."""

    def fail() -> None:
        raise ValueError("a bad row")

    with displayed(monkeypatch) as display:
        with pytest.raises(TransformError, match="a bad row"):
            start(Rig(), display, fail)
        assert [state(frame) for frame in display.ended] == ["stopped"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, DriverDiedError])
def test_the_thread_ends_when_the_driver_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """This is Ctrl-C, or any other exception that no handler of ours catches."""

    def interrupt() -> None:
        raise error

    rig = Rig()
    with displayed(monkeypatch) as display, pytest.raises(error):
        start(rig, display, interrupt)


def test_a_job_does_not_wait_for_a_look_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job waits a bounded time for the thread, and nothing is shown afterwards."""
    monkeypatch.setattr(watching, "_END_S", 0.05)
    display, answer = MemoryDisplay(), threading.Event()
    display.first_s = display.every_s = display.tick_s = 0.001
    monkeypatch.setattr(watching, "display_for", lambda _run_id, **_: display)
    monkeypatch.setattr(Watcher, "look", lambda _: answer.wait(60.0))
    rig = Rig()
    ledger = rig.ledger()
    ledger.log.claim(CLAIM)
    began = time.monotonic()
    with shown(ledger, "lake.db.t", wanted=None):
        time.sleep(0.05)
    assert time.monotonic() - began < 10.0
    assert display.let_go_calls == 1
    answer.set()


def test_a_display_that_cannot_be_made_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job runs as without a display."""

    def fail(_run_id: str, **_: object) -> None:
        raise OSError("no terminal")

    monkeypatch.setattr(watching, "display_for", fail)
    rig = Rig()
    with shown(rig.ledger(), "lake.db.t", wanted=True):
        rig.start()
    assert rig.kinds()[-1] == "Receipt"


def test_tasks_that_cannot_be_counted_do_not_hide_the_rest() -> None:
    """Spark may be shutting down; the clock and the table are shown all the same."""

    def broken() -> tuple[int, int]:
        raise ConnectionError

    rig, clock, display, frames = Rig(), Clock(), MemoryDisplay(), list[Frame]()
    jobs = two_partitions()

    def look() -> None:
        for tasks in (broken, lambda: (3, 8)):
            watched = watch(rig, clock, display)
            watched.tasks = tasks
            pass_time(watched, clock, 10.0)
            frames.append(display.frames[-1])

    jobs.before_measure = look
    rig.start(jobs)
    assert [frame.tasks for frame in frames] == [None, (3, 8)]
    assert all(frame.is_counting for frame in frames)
