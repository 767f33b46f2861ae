"""Progress: what is shown of a run, in words and as a picture."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from holdfast.engine.watch import Watcher
from holdfast.errors import HoldfastError
from holdfast.model.history import Progress
from holdfast.model.usage import Usage
from holdfast.progress.frame import (
    Frame,
    frame_of,
    lines_of,
    one_line,
    pace_of,
    percent,
    rows_per_s,
)
from holdfast.progress.rich_display import FramePicture
from tests.fakes.progress_display import frame_of_a_resume
from tests.fakes.rig import Rig, two_partitions
from tests.fakes.watched_transform import WatchedTransform

ALWAYS = 1e-9


def frame(rig: Rig, *, after_s: float = 0.0) -> Frame:
    """Look at the run as a new watcher does."""
    return frame_of(Watcher(ledger=rig.ledger()).look(), rig.time.now() + after_s)


def words(shown: Frame) -> dict[str, str]:
    """Return what is shown, by name."""
    return dict(lines_of(shown))


def half_way(rig: Rig, row: int = 12, **options: Any) -> Frame:  # noqa: ANN401 - any of `WriteOptions`.
    """Start a job, and return what is shown when it reaches a row."""
    seen: list[Frame] = []
    transform = WatchedTransform()
    transform.at[row] = lambda: seen.append(frame(rig))
    rig.start(transform=transform, batch_rows=1, checkpoint_every=ALWAYS, **options)
    return seen[0]


def stop_half_way(rig: Rig) -> None:
    """Start a job whose transform fails after 15 rows."""
    transform = WatchedTransform()
    transform.fails_at = {15}
    with pytest.raises(HoldfastError):
        rig.start(transform=transform, retries=0, batch_rows=1, checkpoint_every=ALWAYS, cost=0.5)


def drawn(shown: Frame, columns: int, *, encoding: str = "utf-8") -> list[str]:
    """Return the picture as lines of plain text."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=columns, highlight=False)
    console.print(FramePicture(shown))
    file.seek(0)
    return file.read().splitlines()


def test_the_title_of_a_replace_says_so() -> None:
    """An append is what one expects, and says nothing."""
    (title, *_) = drawn(half_way(Rig(mode="overwrite")), 80)
    assert "replace all rows of lake.db.t" in title
    (title, *_) = drawn(half_way(Rig()), 80)
    assert "of" not in title


def test_a_new_run_shows_its_rows_and_why_its_pass_runs() -> None:
    """A first start has kept and saved nothing."""
    shown = half_way(Rig())
    assert words(shown) == {
        "rows": "12 of 20",
        "staged": "1 file (1.0 kB), 2 chunks to put into files",
        "tasks": words(shown)["tasks"],
        "start": "1, pass 1: computes all rows",
    }
    assert words(shown)["tasks"].startswith("1 at work, 1 ended")
    assert (shown.table, shown.is_over) == ("lake.db.t", False)


def test_a_resume_shows_what_it_has_saved() -> None:
    """It shows rows, time and money of earlier starts."""
    rig = Rig()
    stop_half_way(rig)
    shown = words(half_way(rig, 18, cost=0.5))
    assert shown["kept"].startswith("15 rows of earlier starts, ")
    assert shown["cost"] == "9 paid, 7.5 saved by resuming"
    assert shown["start"] == "2, pass 1: resumes where the last start ended"


def test_an_input_that_was_not_measured_has_no_bar() -> None:
    """Only the rows done are known."""
    shown = half_way(Rig(), verify_input=False)
    assert words(shown)["rows"] == "12 so far"
    assert shown.pace.left_s is None
    assert "━" not in "".join(drawn(shown, 80))


def test_a_failed_start_says_why_and_what_to_do() -> None:
    """It shows the error's name, and its text on a line of its own."""
    rig = Rig()
    stop_half_way(rig)
    shown = frame(rig)
    assert words(shown)["start"] == "1: stopped (TransformError)"
    assert "first: ValueError: row 15 is bad" in words(shown)["error"]
    assert "row 15 is bad" not in one_line(shown)  # The text may hold values, so logs leave it out.
    assert "row 15 is bad" in shown.to_json()["stop_message"]
    assert shown.is_over


def test_a_run_that_has_landed_is_over() -> None:
    """Nothing is at work any more."""
    rig = Rig()
    rig.start()
    shown = frame(rig, after_s=3600.0)
    assert (words(shown)["rows"], words(shown)["start"]) == ("20 of 20", "1: committed")
    assert (shown.is_over, shown.silent_s, shown.elapsed_s) == (True, 0.0, 0.0)


def test_a_run_that_has_not_started_is_not_an_error() -> None:
    """It may be about to start."""
    assert words(frame(Rig())) == {"start": "not started yet"}
    assert words(Frame(run_id="r")) == {"start": "opening"}


def test_before_the_first_job_no_rows_are_shown() -> None:
    """The input is still being measured."""
    rig, seen = Rig(), list[Frame]()
    jobs = two_partitions()
    jobs.before_measure = lambda: seen.append(frame(rig))
    rig.start(jobs)
    assert words(seen[0]) == {"start": "1: counting the input"}
    assert one_line(seen[0]) == "start 1: counting the input; 0 s"
    assert seen[0].is_counting
    counting = replace(seen[0], tasks=(12, 200))
    assert words(counting) == {"start": "1: counting the input: 12 of 200 Spark tasks done"}


def test_silence_is_shown_once_it_is_longer_than_checkpoints_explain() -> None:
    """A killed driver is silent, but so is a long batch."""
    rig = Rig()
    transform = WatchedTransform()
    transform.at[12] = rig.storage.kill
    rig.start_and_die(transform=transform, batch_rows=1, checkpoint_every=60.0)
    assert "silent" not in words(frame(rig, after_s=119.0))
    assert words(frame(rig, after_s=121.0))["silent"] == "no record for 2 min 1 s"


def test_the_rate_is_counted_from_checkpoint_to_checkpoint() -> None:
    """Rows come in steps, yet the rate is the same at any moment between them."""
    steps = [(100.0 + 25 * n, 1000) for n in range(1, 9)]
    rates = {
        rows_per_s(steps[:n], 100.0, 100.0 + 25 * n + late) for n in range(1, 9) for late in (0, 24)
    }
    assert rates == {40.0}


def test_the_rate_falls_when_the_next_step_is_late() -> None:
    """A job that hangs must not seem close to its end."""
    steps = [(110.0, 100), (120.0, 100)]
    assert rows_per_s(steps, 100.0, 130.0) == 10.0
    assert rows_per_s(steps, 100.0, 200.0) == 2.0


def test_only_the_last_minute_counts_for_the_rate() -> None:
    """A slow beginning is forgotten."""
    steps = [(1000.0, 1), *((1000.0 + n, 50) for n in range(1, 121))]
    assert rows_per_s(steps, 0.0, 1120.0) == 50.0


@pytest.mark.parametrize("steps", [[], [(90.0, 5)]])
def test_no_rate_is_made_up(steps: list[tuple[float, int]]) -> None:
    """No row is done yet, or the clocks of two machines differ too much."""
    assert rows_per_s(steps, 100.0, 200.0) is None


def test_rows_that_were_kept_do_not_make_a_resume_look_fast() -> None:
    """Only rows of this start count, and the time left follows from them."""
    rig = Rig()
    stop_half_way(rig)
    seen = []
    watcher, transform = Watcher(ledger=rig.ledger()), WatchedTransform()
    transform.at[18] = lambda: seen.append(watcher.look())
    rig.start(transform=transform, batch_rows=1, checkpoint_every=ALWAYS)
    # Three rows of 0.3 seconds each, on one clock.
    times = itertools.count(1)
    first, work = seen[0].starts[-1].first_claim, seen[0].gathered.work
    records = tuple(
        replace(record, usage=Usage(at=rig.time.now() + 0.3 * next(times)))
        if record.claim >= first and record.coverage.rows
        else record
        for record in work.records
    )
    gathered = replace(seen[0].gathered, work=replace(work, records=records))
    pace = pace_of(replace(seen[0], gathered=gathered), rig.time.now() + 0.9)
    assert (next(times), seen[0].progress.remaining_rows) == (4, 2)
    assert pace.rows_per_s == pytest.approx(3 / 0.9)
    assert pace.left_s == pytest.approx(0.6)


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_no_line_of_the_picture_is_wider_than_the_terminal(columns: int) -> None:
    """A line that wraps makes the picture jump. The height is the same at every width."""
    lines = drawn(frame_of_a_resume(), columns)
    assert max(map(len, lines)) < columns
    assert len(lines) == len(lines_of(frame_of_a_resume())) + 3
    assert lines[-1] == ""  # Spark draws its own bar there.


def test_the_picture_at_80_columns() -> None:
    """No line is cut."""
    lines = [line.rstrip() for line in drawn(frame_of_a_resume(), 80)]
    assert lines[0] == f"{'embed-2026-11  lake.ml.embeddings':<67}  1 min 12 s"
    assert lines[1].endswith("─   51%")
    assert lines[2:-1] == [
        "  rows      2,052 of 4,000; 24 rows/s; about 1 min 20 s left",
        "  failed    12 rows set aside",
        "  staged    3 files (9.7 kB), 1 chunk to put into files",
        "  tasks     2 at work, 1 ended, IO wait 5%",
        "  kept      1,000 rows of earlier starts, 43 s of work",
        "  cost      2.5 paid, 1.25 saved by resuming",
        "  start     2, pass 1: resumes where the last start ended",
        "  silent    no record for 1 min 15 s",
    ]


def test_a_terminal_without_unicode_gets_plain_signs() -> None:
    """There is no encoding error."""
    lines = drawn(frame_of_a_resume(), 60, encoding="ascii")
    assert lines[1].count("#") == int(53 * 0.516)


def test_a_log_line_holds_the_most_important_facts() -> None:
    """Logs are read the day after."""
    assert one_line(frame_of_a_resume()) == (
        "51%; rows 2,052 of 4,000; 24 rows/s; about 1 min 20 s left; 12 failed; 3 files (9.7 kB), "
        "1 chunk to put into files; 1,000 rows kept; 2.5 paid; start 2, pass 1: resumes where the "
        "last start ended; 1 min 12 s; no record for 1 min 15 s"
    )


def test_slow_jobs_count_by_the_minute() -> None:
    """0.0 rows a second would be useless."""
    slow = frame_of_a_resume()
    rates = [
        words(replace(slow, pace=replace(slow.pace, rows_per_s=rate)))["rows"].split("; ")[1]
        for rate in (0.05, 0.5, 50000.0)
    ]
    assert rates == ["3.0 rows/min", "0.5 rows/s", "50,000 rows/s"]


@pytest.mark.parametrize(
    ("done", "of", "shown"), [(29, 100, "29%"), (999, 1000, "99%"), (0, 0, "100%"), (5, 4, "100%")]
)
def test_the_share_is_never_shown_too_high(done: int, of: int, shown: str) -> None:
    """100% means that nothing is left."""
    progress = Progress(run_id="r", state="started", input_rows=of, done_rows=done)
    assert percent(progress) == shown
