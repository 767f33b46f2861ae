"""The page about a run: whole, safe, small, and honest about what is not known."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from holdfast import per_row
from holdfast.cli import report
from holdfast.model.usage import Usage
from holdfast.pages import page as page_module
from holdfast.pages.charts import NO_USAGE
from holdfast.pages.facts import facts_of
from holdfast.pages.page import page_of, tile_places
from holdfast.pages.plots import plots_of, whole_bar
from holdfast.pages.spread import failures_of
from holdfast.palette import INKS
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.pages import BEGIN, facts, killed_twice, large_run, look, with_usage, without_usage
from tests.fakes.rig import LAYOUT, STORE, Rig
from tests.fakes.row_functions import QUICK, RowFunction
from tests.fakes.timed_runs import Shape, TimedStart, timed_run

HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>&\"'"
NO_END_TAG = {"meta", "br"}


class Tags(HTMLParser):
    """Checks that each element is closed, and keeps all names and attributes."""

    def __init__(self, page: str) -> None:
        """Read the page."""
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take an opening tag."""
        self.names.add(tag)
        self.attributes += attrs
        if tag not in NO_END_TAG:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take a tag that closes itself."""
        self.names.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        """Take a closing tag."""
        assert self.open.pop() == tag


def failing_run(error: Exception) -> Rig:
    """Return a run in which the rows 5 and 13 have failed."""
    rig, function = Rig(), RowFunction()
    function.fails_at = {5: error, 13: error}
    transform = per_row(function, concurrency=3, retry=QUICK)
    rig.start(transform=transform, on_error="quarantine", cost=0.5)
    return rig


def test_a_page_is_whole_and_fetches_nothing() -> None:
    """It has no script, link or address."""
    page = page_of(facts(look(killed_twice())))
    tags = Tags(page)
    assert tags.names >= {"html", "title", "svg", "table", "figure", "h1"}
    assert not tags.names & {"script", "link", "iframe", "object", "img", "image", "foreignobject"}
    assert not {name for name, _ in tags.attributes} & {"src", "href", "xlink:href", "onclick"}
    assert "url(" not in page
    assert "://" not in page
    ids = [value for name, value in tags.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_each_plot_is_described_for_those_who_do_not_see_it() -> None:
    """Each drawing refers to a title and a description."""
    page = page_of(facts(look(killed_twice())))
    drawn = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawn) > 1
    for svg in drawn:
        title, desc = re.findall(r'aria-labelledby="(\S+) (\S+)"', svg)[0]
        assert f'<title id="{title}">' in svg
        assert f'<desc id="{desc}">' in svg


def test_what_users_name_is_never_taken_for_html() -> None:
    """Run ids, errors and hosts are escaped."""
    rig = failing_run(ValueError(HOSTILE))
    hosts = with_usage(look(rig), lambda n: Usage(at=BEGIN, host=f"{HOSTILE}{n}", memory_bytes=5))
    failures = report.look(rig.ledger(), BEGIN).failures
    assert failures.kinds[0].error == f"ValueError: {HOSTILE}"
    found = facts_of(hosts, failures, BEGIN)
    page = page_of(replace(found, head=replace(found.head, run_id=HOSTILE, table=HOSTILE)))
    assert not Tags(page).names & {"script", "img"}
    assert page.count("&lt;script&gt;alert(") > len(found.hosts) + 3  # In tables and in drawings.
    assert "<script" not in page


def test_failed_rows_are_counted_by_error_and_shown_by_key() -> None:
    """Errors that differ in numbers only are one kind; no other column is shown."""
    rig, function = Rig(), RowFunction()
    function.fails_at = {n: ValueError(f"row {n} is bad") for n in (3, 5, 13)}
    function.fails_at[7] = KeyError("colour")
    transform = per_row(function, concurrency=3, retry=QUICK)
    rig.start(transform=transform, on_error="quarantine", max_errors=4)
    failures = report.look(rig.ledger(), BEGIN).failures
    assert (failures.rows, failures.read_rows, failures.problem) == (4, 4, "")
    assert [(kind.rows, kind.error.partition(":")[0]) for kind in failures.kinds] == [
        (3, "ValueError"),
        (1, "KeyError"),
    ]
    assert failures.kinds[1].key == "id=7"


def test_at_most_twenty_kinds_of_errors_are_shown() -> None:
    """They are the most frequent ones; the others are only counted."""
    rig, function = Rig(), RowFunction()
    function.fails_at = {n: ValueError("bad" + "!" * n) for n in range(30)}
    function.fails_at |= {n: ValueError("same") for n in range(0, 30, 6)}
    transform = per_row(function, concurrency=3, retry=QUICK)
    rig.start(MemorySubmitter(range(30)), transform=transform, on_error="quarantine", max_errors=30)
    found = report.look(rig.ledger(), BEGIN)
    failures = found.failures
    assert (failures.kinds[0].rows, len(failures.kinds), failures.other_kinds) == (5, 20, 6)
    assert "And 6 more kinds." in page_of(found)


def test_failed_rows_that_are_gone_leave_the_rest_of_the_page() -> None:
    """The page says why they are not shown."""
    rig = failing_run(ValueError("bad"))
    doomed = [uri for uri in rig.storage.list(LAYOUT.tasks) if uri.endswith(".failed")]
    rig.storage.delete(doomed)
    found = report.look(rig.ledger(), BEGIN)
    assert (found.failures.rows, found.failures.read_rows) == (2, 0)
    assert "Reading ended early" in page_of(found)


def test_no_failed_rows_need_no_table() -> None:
    """The section is left out."""
    rig = Rig()
    rig.start()
    found = report.look(rig.ledger(), BEGIN)
    assert failures_of(rig.storage, {}).rows == 0
    assert "Failed rows, by error" not in page_of(found)


def test_the_page_says_what_is_unknown_instead_of_drawing_it() -> None:
    """Ledgers of earlier versions say neither when nor where."""
    found = facts(without_usage(look(killed_twice())))
    plots = {plot.title: plot for plot in plots_of(found)}
    for title in ("Peak memory of workers", "Time on rows and waits for storage, by start"):
        assert (plots[title].is_drawn, plots[title].text) == (False, NO_USAGE)
    assert "at each seal" in plots["Progress"].text
    assert plots["Progress"].is_drawn
    assert page_of(found).count(NO_USAGE) == 1  # On one line, with the names of both.


def test_a_run_that_was_never_started_has_a_page() -> None:
    """The page says that no start has claimed it."""
    page = page_of(facts(look(Rig())))
    Tags(page)
    assert "No start has claimed this run yet" in page
    assert "<svg" not in page


@pytest.mark.parametrize("name", ["killed", "sealed", "committed"])
def test_ledgers_of_an_earlier_version_have_a_page(name: str) -> None:
    """They are shown as they were recorded, with what they contain."""
    rig, folder = Rig(), Path(__file__).parents[2] / "ledgers" / "0.1" / name
    for file in folder.rglob("*"):
        if file.is_file():
            uri = f"{STORE}/{file.relative_to(folder).as_posix()}"
            rig.storage.objects[uri] = file.read_bytes()
    found = report.look(rig.ledger(), BEGIN)
    assert found.totals.done_rows > 0
    assert NO_USAGE in page_of(found)
    # Without a seal there is no time at all: then nothing is drawn as if it had been done at once.
    assert bool(found.timeline.points) == (name != "killed")


def test_several_hosts_are_compared() -> None:
    """One host needs no comparison."""
    seen = look(killed_twice())
    two = facts(with_usage(seen, lambda n: Usage(at=BEGIN, host=f"h{n % 2}", waited_s=1.0)))
    titles = [plot.title for plot in plots_of(two)]
    assert "Time on rows and waits for storage, by host" in titles
    one = facts(with_usage(seen, lambda _: Usage(at=BEGIN, host="h", waited_s=1.0)))
    assert len(plots_of(one)) == len(titles) - 1


@pytest.mark.parametrize("tiles", range(1, 13))
def test_tiles_end_in_a_full_row_at_each_width(tiles: int) -> None:
    """Rows differ by at most one tile; the first rows have fewer, wider tiles."""
    for sizes in zip(*tile_places(tiles), strict=True):
        rows, left = [], list(sizes)
        while left:
            row, left = left[: left[0]], left[left[0] :]
            assert row == [len(row)] * row[0]
            rows.append(len(row))
        assert (sum(rows), rows) == (tiles, sorted(rows))
        assert rows[-1] - rows[0] <= 1
    assert [max(sizes) for sizes in zip(*tile_places(7), strict=True)] == [4, 4, 2]


@pytest.mark.slow_unit
@pytest.mark.parametrize("starts", [1, 2, 5, 25])
@pytest.mark.parametrize("hosts", [1, 2, 9, 300])
@pytest.mark.parametrize("places", [1, 2, 9, 70])
def test_no_panel_is_half_empty(starts: int, hosts: int, places: int) -> None:
    """Panels side by side have about as many rows; one without such a neighbour is wide."""
    shape = Shape(hosts=hosts, places=places)
    some = [TimedStart(at=300 * number, records=80) for number in range(starts)]
    plots = plots_of(facts(timed_run(*some, shape=shape)))
    halves = [plot for plot in plots if not plot.wide]
    assert all(plot.is_drawn for plot in plots)
    for left, right in zip(halves[::2], halves[1::2], strict=True):
        assert plots.index(right) == plots.index(left) + 1
        if left.table and right.table:
            assert abs(len(left.table.rows) - len(right.table.rows)) <= 2


def test_what_tiles_say_already_is_not_drawn() -> None:
    """With one start, host, place and file size, only the plots over time are left."""
    once = facts(timed_run(TimedStart(at=0, end="committed"), shape=Shape(places=1)))
    assert [plot.title for plot in plots_of(once)] == ["Progress", "Peak memory of workers"]


def test_a_plot_without_a_drawing_takes_one_line() -> None:
    """It has neither a caption nor an empty frame."""
    page = page_of(facts(timed_run(TimedStart(at=0, records=0), shape=Shape(input_rows=9))))
    assert "<strong>Progress.</strong>" in page
    assert "<figure" not in page


def test_one_bar_shows_all_rows_by_what_they_are() -> None:
    """A non-empty part is visible, however small; an empty part is left out."""
    starts = TimedStart(at=0, records=3, failed=(1,)), TimedStart(at=200, records=2)
    found = facts(timed_run(*starts, shape=Shape(rows=1, input_rows=100_000)))
    parts = whole_bar(found.totals)
    assert [(part.ink, part.text) for part in parts] == [
        ("kept", "2 kept"),
        ("new", "2 new"),
        ("failed", "1 failed"),
        ("waiting", "99,995 waiting"),
    ]
    assert all(part.share > 0 for part in parts)
    assert whole_bar(facts(look(Rig())).totals) == []


def test_the_last_start_adds_up_to_the_bar_of_all_rows() -> None:
    """Rows that failed in an earlier start do not count as kept by a later one."""
    starts = TimedStart(at=0, records=3, failed=(1,)), TimedStart(at=200, records=2, failed=(0,))
    found = facts(timed_run(*starts))
    table = next(plot.table for plot in plots_of(found) if "kept and added" in plot.title)
    assert table is not None
    rows = [[part.text for part in row.parts] for row in table.rows]
    assert rows == [["0", "200", "100"], ["200", "100", "200"]]
    assert [part.text for part in whole_bar(found.totals)] == ["200 kept", "100 new", "200 failed"]


def test_values_are_text_in_tables_and_tooltips() -> None:
    """Nothing has to be read off an axis."""
    page = page_of(facts(timed_run(TimedStart(at=0, records=3), TimedStart(at=200, records=2))))
    assert '<th scope="row" title="start 2">start 2</th>' in page
    assert '<td class="number">300</td><td class="number">200</td>' in page
    assert "<title>start 1: killed or taken over, 300 rows done</title>" in page
    for circle in re.findall(r"<circle[^>]*>(.*?)</circle>", page, re.DOTALL):
        assert circle.startswith("<title>")


def test_all_colours_come_from_the_palette() -> None:
    """The style sheet defines no colour; the page defines each for light and for dark."""
    css = (Path(page_module.__file__).parent / "page.css").read_text()
    assert re.findall(r"#[0-9a-fA-F]{3}|rgb|hsl", css) == []
    used = set(re.findall(r"var\(--([a-z]+)\)", css)) - {"row", "gap", "wide", "middle", "phone"}
    assert used <= {ink.name for ink in INKS}
    page = page_of(facts(look(killed_twice())))
    for ink in INKS:
        assert f"--{ink.name}: {ink.light};" in page
        assert f"--{ink.name}: {ink.dark};" in page


def test_a_page_of_twenty_thousand_records_is_quick_and_small() -> None:
    """It takes under 5 s and 2 MB: points are thinned, and not all hosts and places are drawn."""
    seen = large_run(1_000, 20)
    assert len(seen.gathered.work.records) == 20_000
    began = time.process_time()
    page = page_of(facts(seen))
    assert time.process_time() - began < 5
    assert len(page.encode()) < 2_000_000
    Tags(page)
