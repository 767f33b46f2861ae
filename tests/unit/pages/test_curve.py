"""The curve of a run's progress: its colours, its pauses, and the reason of each flat stretch."""

from __future__ import annotations

import pytest

from holdfast.pages.charts import Drawing
from holdfast.pages.curve import progress_plot
from holdfast.pages.facts import Facts
from holdfast.pages.page import page_of
from tests.fakes.pages import BEGIN, facts, look, without_usage
from tests.fakes.rig import Rig
from tests.fakes.timed_runs import COMMIT_S, Shape, TimedStart, timed_run

KILLED = TimedStart(at=0)
# It begins two hours after the first one has ended.
LATER = TimedStart(at=2 * 3_600 + 85, end="committed")


def drawing_of(found: Facts) -> Drawing:
    """Return the drawing of the progress."""
    (plot,) = progress_plot(found)
    assert plot.drawing is not None
    return plot.drawing


def test_each_flat_stretch_has_its_reason_and_its_real_length() -> None:
    """The pause is cut on the axis, and its label gives its real length."""
    flats = facts(timed_run(KILLED, LATER)).timeline.flats
    assert [(flat.reason, flat.lasted_s) for flat in flats] == [
        ("input", 30.0),
        ("first rows", 10.0),
        ("stopped", 7_200.0),
        ("input", 30.0),
        ("first rows", 10.0),
        ("commit", COMMIT_S),
    ]
    pause = flats[2]
    assert pause.to_s - pause.from_s < 30
    places = [place for flat in flats for place in (flat.from_s, flat.to_s)]
    assert places == sorted(places)


def test_stretches_that_are_too_short_to_see_are_left_out() -> None:
    """The commit of a long run is not a plateau; a pause always is, because it cuts the axis."""
    long = timed_run(TimedStart(at=0, records=300), TimedStart(at=1_600, records=90))
    assert {flat.reason for flat in facts(long).timeline.flats} == {"stopped"}


def test_ledgers_without_times_do_not_say_when_the_first_rows_came() -> None:
    """Only the log's own times are known."""
    flats = facts(without_usage(timed_run(KILLED, LATER))).timeline.flats
    assert {flat.reason for flat in flats} == {"input", "stopped", "commit"}


def test_rows_of_earlier_starts_and_of_the_last_one_have_colours_of_their_own() -> None:
    """The two lines meet where the last start begins."""
    found = facts(timed_run(KILLED, LATER))
    lines = [line for line in drawing_of(found).lines if line.kind == "line" and not line.text]
    assert [line.ink for line in lines] == ["kept", "new"]
    assert lines[0].path.split("L")[-1] == lines[1].path.lstrip("M").split("L")[0]
    once = facts(timed_run(TimedStart(at=0)))
    assert {line.ink for line in drawing_of(once).lines if line.kind == "area"} == {"new"}


def test_a_plateau_is_labelled_with_as_much_as_there_is_room_for() -> None:
    """Paper and phones have less room; the tooltip has the full text everywhere."""
    drawing = drawing_of(facts(timed_run(KILLED, LATER)))
    texts: dict[str, list[str]] = {screen: [] for screen in ("wide", "middle", "phone")}
    for label in drawing.labels:
        texts[label.screen].append(label.text)
    assert "stopped 2 h, input 30 s, first rows 10 s" in texts["wide"]
    assert "stopped 2 h" in texts["middle"]
    assert "stopped 2 h" in texts["phone"]
    assert [box.text for box in drawing.boxes] == ["stopped 2 h"]
    assert "<title>stopped 2 h</title>" in page_of(facts(timed_run(KILLED, LATER)))


def test_an_axis_with_cut_pauses_counts_time_at_work() -> None:
    """A tick after a pause is shifted by exactly the pause's width."""
    found = facts(timed_run(KILLED, LATER))
    line = found.timeline
    (pause,) = [flat for flat in line.flats if flat.reason == "stopped"]
    ticks = {tick.text: tick.at for tick in drawing_of(found).x_ticks}
    assert line.cut_s > 7_000
    assert ticks["1 min"] == pytest.approx(100 * 60 / line.length_s, abs=0.1)
    behind = 100 * (120 + pause.to_s - pause.from_s) / line.length_s
    assert ticks["2 min"] == pytest.approx(behind, abs=0.1)


def test_many_pauses_leave_most_of_the_axis_to_the_work() -> None:
    """Sixty starts: each pause is a thin band, and none of them has a label."""
    starts = [TimedStart(at=400 * number, records=4) for number in range(60)]
    found = facts(timed_run(*starts), BEGIN + 90_000)
    drawing = drawing_of(found)
    assert len(drawing.boxes) == 59
    assert sum(box.width for box in drawing.boxes) < 25
    assert not [label for label in drawing.labels if "stopped" in label.text]
    assert len(drawing.marks) == 59


def test_a_run_with_no_row_has_no_curve() -> None:
    """A waiting run says so in one line; an empty input has no plot at all."""
    (plot,) = progress_plot(
        facts(timed_run(TimedStart(at=0, records=0), shape=Shape(input_rows=9)))
    )
    assert (plot.is_drawn, plot.text) == (False, "No rows are done yet.")
    empty = TimedStart(at=0, records=0, end="committed")
    assert progress_plot(facts(timed_run(empty))) == []
    assert progress_plot(facts(look(Rig()))) == []
