"""Take pictures of the report's page for runs of several shapes: wide, dark, on a phone, on paper.

Needs Chromium. Run it from the root of the repository: `python -m dev.report_pictures FOLDER`, and
names of shapes behind it if these are all. The pictures are to be looked at, not to be kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from dev.page_pictures import call, find_browser
from holdfast.pages.facts import Facts
from holdfast.pages.page import page_of
from tests.fakes.pages import BEGIN, facts, killed_twice, look, without_usage
from tests.fakes.rig import Rig
from tests.fakes.timed_runs import Shape, TimedStart, timed_run

HOUR_S = 3_600
NOW = BEGIN + 48 * HOUR_S
# Width and height in pixels, and what the system prefers; a page is cut where the picture ends.
SIZES = {
    "wide": (1280, 2000, "--blink-settings=preferredColorScheme=1"),
    "dark": (1280, 2000, "--blink-settings=preferredColorScheme=0"),
    "phone": (390, 3400, "--blink-settings=preferredColorScheme=1"),
}


def three_starts() -> Facts:
    """Return a run that was killed, stopped for two hours, killed again, and committed."""
    starts = (
        TimedStart(at=0, records=30, each_s=8),
        TimedStart(at=2 * HOUR_S, records=20, failed=(3, 9)),
        TimedStart(at=2 * HOUR_S + 200, records=15, end="committed"),
    )
    return facts(timed_run(*starts, shape=Shape(hosts=3, cost=0.0004)), NOW)


def sixty_starts() -> Facts:
    """Return a run on machines that are taken away every few minutes."""
    starts = [TimedStart(at=400 * number, records=4) for number in range(59)]
    last = TimedStart(at=400 * 59, records=9, end="committed")
    return facts(timed_run(*starts, last, shape=Shape(places=40)), NOW)


def many_hosts() -> Facts:
    """Return a run on 300 hosts."""
    starts = TimedStart(at=0, records=900, each_s=1), TimedStart(at=2_000, records=600, each_s=1)
    return facts(timed_run(*starts, shape=Shape(hosts=300, places=400)), NOW)


def waiting() -> Facts:
    """Return a run that stopped with an error and waits for a person."""
    starts = TimedStart(at=0, records=30), TimedStart(at=250, end="stopped")
    return facts(timed_run(*starts, shape=Shape(input_rows=6_000)), NOW)


SHAPES: dict[str, Callable[[], Facts]] = {
    "one": lambda: facts(timed_run(TimedStart(at=0, records=60, end="committed")), NOW),
    "three": three_starts,
    "sixty": sixty_starts,
    "hosts": many_hosts,
    "waiting": waiting,
    "early": lambda: facts(
        timed_run(TimedStart(at=0, records=0), shape=Shape(input_rows=6_000)), BEGIN + 60
    ),
    "empty": lambda: facts(timed_run(TimedStart(at=0, records=0, end="committed")), NOW),
    "untimed": lambda: facts(without_usage(look(killed_twice()))),
    "new": lambda: facts(look(Rig())),
}


def main() -> None:
    """Write each page, and take its pictures.

    Raises:
        SystemExit: There is no Chromium.
    """
    browser = find_browser()
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or SHAPES:
        page = folder / f"report-{name}.html"
        page.write_text(page_of(SHAPES[name]()), encoding="utf-8")
        for size, (width, height, scheme) in SIZES.items():
            picture = (folder / f"report-{name}-{size}.png").resolve()
            options = (scheme, f"--window-size={width},{height}", f"--screenshot={picture}")
            call(browser, page, *options)
        paper = (folder / f"report-{name}.pdf").resolve()
        call(browser, page, "--no-pdf-header-footer", f"--print-to-pdf={paper}")
        print(page, flush=True)


if __name__ == "__main__":
    main()
