"""Take pictures of the documentation's pages as a reader sees them, wide and on a phone.

Needs Chromium. Run it from the root of the repository, by default for all pages:
`python -m dev.page_pictures FOLDER [PAGE…]`. The pictures are for looking at, not for keeping.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The pages that a new reader visits.
PAGES = (
    "",
    "tutorial/first-run",
    "how-to",
    "how-to/resume-and-clean-up",
    "how-to/watch-a-run",
    "how-to/read-the-report",
    "how-to/run-under-airflow",
    "explanation/promises",
    "explanation/comparison",
    "explanation/faq",
    "explanation/performance",
    "reference/holdfast",
    "reference/cli",
    "reference/glossary",
)
# Width and height in pixels; a page is cut where the picture ends.
SIZES = {"wide": (1280, 2400), "phone": (500, 2400)}
_TAKES_AT_MOST_S = 60


def main() -> None:
    """Build the site, and take a picture of each page in each size.

    Raises:
        SystemExit: There is no Chromium.
    """
    browser = find_browser()
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as site:
        build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", site]
        subprocess.run(build, cwd=ROOT, check=True)
        for page in sys.argv[2:] or PAGES:
            for size in SIZES:
                name = page.replace("/", "-") or "start"
                take(browser, Path(site) / page / "index.html", size, folder / f"{name}-{size}.png")


def find_browser() -> str:
    """Return the path of Chromium.

    Raises:
        SystemExit: There is no Chromium.
    """
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        raise SystemExit("no chromium on the path: install it, or open the pages by hand")
    return browser


def take(browser: str, page: Path, size: str, picture: Path) -> None:
    """Take one picture of a page."""
    width, height = SIZES[size]
    call(browser, page, f"--window-size={width},{height}", f"--screenshot={picture.resolve()}")
    print(picture, flush=True)


def call(browser: str, page: Path, *options: str) -> None:
    """Open a page without a window."""
    with tempfile.TemporaryDirectory() as profile:
        quiet = ("--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu")
        command = [browser, *quiet, f"--user-data-dir={profile}", *options]
        subprocess.run(
            [*command, page.resolve().as_uri()],
            check=True,
            capture_output=True,
            timeout=_TAKES_AT_MOST_S,
        )


if __name__ == "__main__":
    main()
