"""Watching a run: what a person sees while it is at work, and the morning after."""

from __future__ import annotations

import threading

import pytest

from holdfast import per_row
from holdfast.engine.advice import next_step
from holdfast.engine.watch import Observation, Watcher, of_each, status
from holdfast.errors import HoldfastError, TooManyErrorsError
from tests.fakes.manual_ports import manual_ports
from tests.fakes.rig import LAYOUT, Rig, two_partitions
from tests.fakes.row_functions import QUICK, RowFunction
from tests.fakes.watched_transform import WatchedTransform

ALWAYS = 1e-9


def look(rig: Rig) -> Observation:
    """Look at the run, as a new watcher does."""
    return Watcher(ledger=rig.ledger()).look()


def test_several_runs_are_read_at_a_time() -> None:
    """And the records of each on IO threads, which would fetch them one by one for one of them."""
    both = threading.Barrier(2, timeout=10)

    def look_at(name: str) -> str:
        both.wait()
        return f"{name} by {threading.current_thread().name.rpartition('_')[0]}"

    assert of_each(look_at, ["a", "b"]) == ["a by holdfast-runs", "b by holdfast-runs"]
    assert of_each(look_at, []) == []


def test_nothing_is_known_about_a_run_that_was_never_started() -> None:
    """Watching it is not an error: the job may be about to begin."""
    seen = look(Rig())
    assert (seen.identity, seen.starts, seen.progress.state) == (None, [], "new")
    assert (seen.progress.done_rows, seen.progress.share) == (0, None)


def test_a_run_that_has_landed_is_all_done() -> None:
    """In one start and one pass."""
    rig = Rig()
    rig.start()
    progress = look(rig).progress
    assert (progress.state, progress.done_rows, progress.input_rows) == ("committed", 20, 20)
    assert (progress.share, progress.remaining_rows, progress.kept_rows) == (1.0, 0, 0)
    assert (progress.start, progress.passes, progress.reason) == (1, 1, "computes all rows")


def test_rows_count_while_the_job_runs() -> None:
    """Rows that tasks have made durable, before any seal; a later look adds new ones."""
    rig = Rig()
    watcher, seen = Watcher(ledger=rig.ledger()), []
    transform = WatchedTransform()
    for row in (5, 15):
        transform.at[row] = lambda: seen.append(watcher.look().progress)
    rig.start(transform=transform, batch_rows=1, checkpoint_every=ALWAYS)
    assert [progress.done_rows for progress in seen] == [5, 15]
    assert [(progress.tasks_begun, progress.tasks_ended) for progress in seen] == [(1, 0), (2, 1)]
    assert watcher.look().progress.done_rows == 20


def test_only_new_records_are_read_again() -> None:
    """However long the job runs, a look costs only what was added since the last one."""
    rig = Rig()
    watcher, read = Watcher(ledger=rig.ledger()), []
    transform = WatchedTransform()
    get_many = rig.storage.get_many

    def watched(uris: list[str]) -> list[bytes | None]:
        if uris:
            read.append(len(uris))
        return get_many(uris)

    def watch() -> None:
        rig.storage.get_many = watched  # type: ignore[method-assign,assignment]
        watcher.look()
        rig.storage.get_many = get_many  # type: ignore[method-assign]

    for row in (3, 6, 9):
        transform.at[row] = watch
    rig.start(transform=transform, batch_rows=1, checkpoint_every=ALWAYS)
    # The log's own records; then a task's last record, and those that count beside it.
    assert read == [2, *[1, 2] * 3]


def test_a_resume_shows_what_it_has_kept() -> None:
    """The second start begins with the rows of the first."""
    rig = Rig()
    transform = WatchedTransform()
    transform.fails_at = {15}
    with pytest.raises(HoldfastError):
        rig.start(transform=transform, retries=0, batch_rows=1, checkpoint_every=ALWAYS)
    stopped = look(rig)
    assert [(start.end, start.reason) for start in stopped.starts] == [
        ("stopped", "TransformError")
    ]
    assert stopped.progress.state == "stopped"
    kept = stopped.progress.done_rows
    assert 0 < kept < 20
    transform.fails_at = set()
    rig.start(transform=transform)
    progress = look(rig).progress
    assert (progress.start, progress.kept_rows, progress.done_rows) == (2, kept, 20)
    assert [start.end for start in look(rig).starts] == ["stopped", "committed"]


def test_a_killed_start_is_recognised_by_the_next_one() -> None:
    """It could not record how it ended."""
    rig = Rig()
    transform = WatchedTransform()
    transform.at[5] = rig.storage.kill
    rig.start_and_die(transform=transform, batch_rows=1, ports=manual_ports(rig.time, process_id=1))
    rig.start(transform=transform, ports=manual_ports(rig.time, process_id=2))
    starts = look(rig).starts
    assert [(start.number, start.process_id, start.end) for start in starts] == [
        (1, 1, "gone"),
        (2, 2, "committed"),
    ]


def test_a_start_lasts_as_long_as_its_tasks_have_written() -> None:
    """A killed driver writes nothing after its plan, though its tasks worked for a long time."""
    rig, transform = Rig(), WatchedTransform()
    rig.time.now_s = 1_000.0  # The tasks' clocks are later.
    transform.at[5] = rig.storage.kill
    rig.start_and_die(transform=transform, batch_rows=1, checkpoint_every=ALWAYS)
    (start,) = look(rig).starts
    assert start.last_at == max(record.usage.at for record in look(rig).gathered.work.records)


def test_a_swept_run_still_shows_what_was_done() -> None:
    """The task logs are gone; the list of landed files stays."""
    rig = Rig()
    rig.start()
    rig.storage.delete(rig.storage.list(LAYOUT.tasks))
    assert look(rig).progress.done_rows == 20


def test_records_say_when_and_by_whom_they_were_written() -> None:
    """So that progress over time can be plotted."""
    rig = Rig()
    rig.start(two_partitions())
    used = [record.usage for record in look(rig).gathered.work.records]
    assert len(used) == 2  # One for each task.
    assert all(usage.at > 0 and usage.host and usage.memory_bytes > 0 for usage in used)


def test_rows_of_a_stopped_run_are_counted_alike_wherever_a_user_looks() -> None:
    """No seal has accepted them yet, and some have failed: none of these is lost or called done."""
    rig, function = Rig(), RowFunction()
    function.fails_at = {number: ValueError("bad") for number in range(10)}
    transform = per_row(function, concurrency=1, retry=QUICK)
    with pytest.raises(TooManyErrorsError):
        rig.start(transform=transform, on_error="quarantine", max_errors=3)
    brief, seen = status(rig.ledger()), look(rig)
    progress = seen.progress
    assert brief.quarantined_rows == progress.quarantined_rows > 0
    assert brief.done_rows == progress.done_rows > brief.quarantined_rows
    good = progress.done_rows - progress.quarantined_rows
    assert f"keep {good} rows, as records cover them" in next_step(seen, manual_ports()).start_would
    assert f"done      {good} of 20 rows" in str(brief)
