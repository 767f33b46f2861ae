"""The facts of a page: what each start did, when, where, and how evenly."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from holdfast.engine.cleanup import abort
from holdfast.errors import HoldfastError, RunCommittedError
from holdfast.model.usage import Usage
from holdfast.pages.facts import head_of, tiles_of
from holdfast.pages.timeline import axis_of, summaries_of
from tests.fakes.manual_ports import manual_ports
from tests.fakes.memory_table import PostFault
from tests.fakes.pages import (
    ALWAYS,
    BEGIN,
    facts,
    killed_twice,
    large_run,
    look,
    with_usage,
    without_usage,
)
from tests.fakes.rig import Rig
from tests.fakes.watched_transform import WatchedTransform


def test_each_start_has_the_rows_that_it_added_and_those_that_it_kept() -> None:
    """Two starts are killed, after 5 rows and after 10 more; the third does the rest."""
    seen = look(killed_twice())
    summaries = summaries_of(seen.starts, seen.gathered.work.records)
    assert [(start.end, start.kept_rows, start.rows) for start in summaries] == [
        ("gone", 0, 5),
        ("gone", 5, 10),
        ("committed", 15, 5),
    ]
    assert [start.process_id for start in summaries] == [1, 2, 3]
    assert summaries[0].jobs[0].reason == "computes all rows"
    assert summaries[1].jobs[0].reason == "resumes where the last start ended"


def test_the_head_says_what_a_run_replaces() -> None:
    """Before it has landed, and what that was afterwards."""
    rig = Rig(mode="overwrite")
    rig.table.foreign_rows([-1, -2])
    rig.start()
    seen = look(rig)
    head = head_of(seen, summaries_of(seen.starts, seen.gathered.work.records), BEGIN)
    assert (head.verb, head.replaced) == ("replace all rows of", "2 rows in 1 file")


def test_totals_say_what_the_last_start_has_kept() -> None:
    """This is what resuming has saved."""
    found = facts(look(killed_twice()))
    totals = found.totals
    assert (totals.done_rows, totals.input_rows, totals.kept_rows) == (20, 20, 15)
    assert (found.head.word, found.head.tone, found.head.starts) == ("committed", "good", 3)
    names = [tile.name for tile in tiles_of(totals)]
    assert "rows kept" in names
    assert "cost" not in names  # This run has none.


def test_what_was_kept_is_what_the_report_of_the_start_says() -> None:
    """Rows that failed before the kill are not retried, but do not count as saved."""
    rig, transform = Rig(), WatchedTransform()
    transform.fails_at, transform.at[5] = {2}, rig.storage.kill
    how: dict[str, Any] = {"transform": transform, "batch_rows": 1, "on_error": "quarantine"}
    how |= {"checkpoint_every": ALWAYS}
    rig.start_and_die(ports=manual_ports(rig.time, process_id=1), **how)
    driven = rig.start(ports=manual_ports(rig.time, process_id=2), **how)
    found = facts(look(rig))
    assert (found.totals.kept_rows, found.totals.failed_rows) == (driven.kept_rows, 1) == (4, 1)
    assert [(start.rows, start.failed_rows) for start in found.starts] == [(5, 1), (15, 0)]


def test_progress_grows_over_all_starts_and_ends_of_starts_are_marked() -> None:
    """The curve rises from zero to all rows, and never falls."""
    seen = look(killed_twice())
    count = len(seen.gathered.work.records)
    # 20 s in the first summary, and so on; the clock of the tasks is the driver's.
    begins = [start.began_at for start in seen.starts]
    first = [record.claim < seen.starts[1].first_claim for record in seen.gathered.work.records]
    dated = with_usage(seen, lambda n: Usage(at=begins[0] + n if first[n] else begins[1], host="h"))
    line = facts(dated).timeline
    assert (line.source, line.points[0], line.points[-1][1]) == ("tasks", (0.0, 0.0), 20.0)
    assert [rows for _, rows in line.points] == sorted(rows for _, rows in line.points)
    assert [place for place, _ in line.points] == sorted(place for place, _ in line.points)
    assert [(mark.start, mark.end) for mark in line.ends] == [
        (1, "gone"),
        (2, "gone"),
        (3, "committed"),
    ]
    assert count > 12


def test_a_task_clock_that_is_wrong_does_not_leave_its_start() -> None:
    """Records of a host whose clock is a year off are drawn at the edge of the start."""
    seen = look(killed_twice())
    for at in (1.0, BEGIN * 2):
        wrong = Usage(at=at, host="h", memory_bytes=1)
        found = facts(with_usage(seen, partial(_same, wrong)))
        assert found.timeline.length_s < 1_000
        assert all(0 <= place <= found.timeline.length_s for place, _ in found.timeline.points)
        assert all(
            0 <= place <= found.timeline.length_s
            for line in found.memory[0].lines
            for place, _ in line
        )


def _same(usage: Usage, _: int) -> Usage:
    return usage


def test_long_pauses_between_starts_are_cut() -> None:
    """Otherwise a run that died at night would be two thin lines; the page says what is cut."""
    seen = look(killed_twice())
    summaries = summaries_of(seen.starts, ())
    for at, summary in enumerate(summaries):
        summary.began_at, summary.last_at = BEGIN + 10_000 * at, BEGIN + 10_000 * at + 100
    axis = axis_of(summaries)
    assert axis.length_s == pytest.approx(300 + 2 * 36)
    assert axis.cut_s == pytest.approx(2 * (9_900 - 36))
    assert axis.place(1, summaries[1].began_at) == pytest.approx(136)
    for at, summary in enumerate(summaries):
        summary.began_at, summary.last_at = BEGIN + 110 * at, BEGIN + 110 * at + 100
    axis = axis_of(summaries)
    assert (axis.length_s, axis.cut_s) == (320.0, 0.0)


def test_ledgers_without_times_are_drawn_from_their_seals() -> None:
    """Hosts, memory and waits stay unknown: nothing is made up."""
    found = facts(without_usage(look(killed_twice())))
    assert found.timeline.source == "seals"
    assert found.timeline.points[-1][1] == 20.0
    assert (found.hosts, found.memory, found.totals.waited_s) == ([], [], None)
    assert [start.dated_records for start in found.starts] == [0, 0, 0]
    assert "storage" not in [tile.name for tile in tiles_of(found.totals)]


def test_a_run_that_was_never_started_has_facts_too() -> None:
    """There are few of them."""
    found = facts(look(Rig()))
    assert (found.head.word, found.head.tone, found.starts) == ("new", "none", [])
    assert (found.timeline.points, found.places, found.file_sizes) == ([], None, None)
    assert found.to_json()["head"]["next_step"].startswith("No start has claimed")


def test_a_silent_start_differs_from_one_at_work() -> None:
    """The time since the last sign of life decides."""
    rig, transform = Rig(), WatchedTransform()
    transform.at[5] = rig.storage.kill
    rig.start_and_die(transform=transform, batch_rows=1, checkpoint_every=ALWAYS)
    seen = look(rig)
    head = facts(seen, BEGIN + 10).head
    assert (head.word, head.tone, head.ended_at) == ("running", "busy", None)
    head = facts(seen, BEGIN + 3_600).head
    assert (head.word, head.tone) == ("silent", "act")
    assert "5 rows are kept" in head.next_step


def test_a_stopped_start_names_its_error_and_the_next_step() -> None:
    """The next step is to run the same script again, once it is fixed."""
    rig, transform = Rig(), WatchedTransform()
    transform.fails_at = {15}
    with pytest.raises(HoldfastError):
        rig.start(transform=transform, retries=0, batch_rows=1, checkpoint_every=ALWAYS)
    head = facts(look(rig)).head
    assert (head.word, head.tone) == ("stopped", "act")
    assert "TransformError (the transform failed in " in head.next_step
    assert head.ended_at is not None


def test_an_aborted_run_needs_a_new_id() -> None:
    """The old id cannot be used again."""
    rig = Rig()
    rig.start_and_die(transform=_killer(rig), batch_rows=1, ports=manual_ports(rig.time))
    abort(rig.ledger(), lambda _: rig.table, reason="wrong model")
    found = facts(look(rig))
    assert (found.head.word, found.head.tone) == ("aborted", "ended")
    assert found.log[-1].words == "wrong model"


def test_a_page_never_advises_to_start_over_when_the_rows_have_landed() -> None:
    """An aborted run landed after all: under a new id its rows would be in the table twice."""
    aborted = Rig()
    aborted.start_and_die(transform=_killer(aborted), batch_rows=1, ports=manual_ports())
    abort(aborted.ledger(), lambda _: aborted.table, reason="wrong model")
    assert "use a new run id" in facts(look(aborted)).head.next_step
    landed = Rig()
    landed.table.post_faults.append(PostFault.DIES_LANDED)
    landed.storage.before_create = landed.start_and_die  # Between its first look and its record.
    with pytest.raises(RunCommittedError):
        abort(landed.ledger(), lambda _: landed.table, reason="wrong model")
    assert landed.log().is_aborted
    head = facts(look(landed)).head
    assert head.word == "committed"
    assert "new run id" not in head.next_step


def _killer(rig: Rig) -> WatchedTransform:
    transform = WatchedTransform()
    transform.at[5] = rig.storage.kill
    return transform


def test_a_run_that_only_lacks_its_commit_says_so() -> None:
    """The next start computes nothing."""
    seen = look(killed_twice())
    starts = [replace(start, end="gone") for start in seen.starts[:-1]]
    last = replace(seen.starts[-1], end="")
    staged = replace(seen, starts=[*starts, last], progress=replace(seen.progress, state="staged"))
    assert "only the commit is missing" in facts(staged).head.next_step


@pytest.mark.slow_unit
def test_a_large_run_has_few_facts() -> None:
    """Their number does not grow with the number of records."""
    found = facts(large_run(1_000, 20))
    assert found.totals.done_rows == 2_000_000
    assert len(found.timeline.points) <= 400
    assert (len(found.hosts), len(found.memory)) == (10, 6)
