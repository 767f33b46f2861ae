"""Build the documentation as it is published: with a sample report and the notebook, both new.

    make site                         into site/
    make site ARGS=--pictures         also draw the pictures in docs/img anew, to be committed

The plots are drawn from the kept results. Then a real job is killed twice, and `holdfast report`
writes the page about it; the notebook is run from top to bottom, and its cells become a page with
what they printed. Both need Java. The pictures need Chromium, too: they are of the terminal and of
that report. `make docs` builds the same pages without the two.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from dev.page_pictures import call, find_browser

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "first_run.ipynb"
SITE = ROOT / "site"
_TUTORIAL = "      - A first run: tutorial/first-run.md\n"
_EXTRA_PAGES = (
    "      - The same in a notebook: tutorial/notebook.md\n"
    "      - A sample report: tutorial/sample-report.md\n"
)
_ABOUT_REPORT = """# A sample report

What `holdfast report` wrote about a job that was killed twice while this site was built:
[the page](sample/report.html). [How to read it](../how-to/read-the-report.md).
"""
# Between the outputs of two cells; no cell prints it.
_CUT = "\x1e"
_REPORT_PX = "1100,1500"


def main() -> None:
    """Build the site."""
    parser = argparse.ArgumentParser(prog="make site", description=__doc__)
    parser.add_argument("--pictures", action="store_true", help="draw those in docs/img anew")
    given = parser.parse_args()
    run_module("bench.plots")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report = folder / "report.html"
        run_module("dev.sample_report", "--lake", str(folder / "lake"), "--out", str(report))
        if given.pictures:
            draw_pictures(report)
        docs = folder / "docs"
        shutil.copytree(ROOT / "docs", docs)
        (docs / "tutorial" / "sample").mkdir()
        shutil.copy2(report, docs / "tutorial" / "sample")
        (docs / "tutorial" / "sample-report.md").write_text(_ABOUT_REPORT)
        (docs / "tutorial" / "notebook.md").write_text(notebook_page(folder))
        settings = folder / "mkdocs.yml"
        settings.write_text(with_extra_pages((ROOT / "mkdocs.yml").read_text(), docs))
        run_module("mkdocs", "build", "--strict", "--quiet", "--config-file", str(settings))
    print(f"{SITE.relative_to(ROOT)}: {sum(1 for _ in SITE.rglob('*.html'))} pages")


def run_module(name: str, *arguments: str) -> None:
    """Run a module to its end."""
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYSPARK_PYTHON": sys.executable}
    subprocess.run([sys.executable, "-m", name, *arguments], cwd=ROOT, env=environment, check=True)


def draw_pictures(report: Path) -> None:
    """Draw the pictures of the terminal and of the report anew.

    Raises:
        SystemExit: There is no Chromium.
    """
    browser = find_browser()
    run_module("dev.demo")
    run_module("dev.screenshots")
    picture = ROOT / "docs" / "img" / "report.png"
    call(browser, report, f"--window-size={_REPORT_PX}", f"--screenshot={picture}")


def with_extra_pages(settings: str, docs: Path) -> str:
    """Return MkDocs' settings for a copy of the pages, to which two were added.

    Raises:
        ValueError: A line that is to be replaced is not there.
    """
    changes = {
        _TUTORIAL: _TUTORIAL + _EXTRA_PAGES,
        "docs_dir: docs\n": f"docs_dir: {docs}\n",
        "site_dir: site\n": f"site_dir: {SITE}\n",
        "paths: [src]\n": f"paths: [{ROOT / 'src'}]\n",
    }
    for before, after in changes.items():
        if settings.count(before) != 1:
            raise ValueError(f"mkdocs.yml has not one line {before!r}")
        settings = settings.replace(before, after)
    return settings


def notebook_page(folder: Path) -> str:
    """Run the notebook, and return it as a page with what each cell printed.

    Args:
        folder: A folder for the script and its files.
    """
    cells: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text())["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    is_code = [cell["cell_type"] == "code" for cell in cells]
    script = folder / "notebook.py"
    code = [text for text, runs in zip(texts, is_code, strict=True) if runs]
    script.write_text(f"\nprint({_CUT!r}, flush=True)\n".join(code))
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return page_of(texts, is_code, done.stdout.split(_CUT))


def page_of(texts: list[str], is_code: list[bool], outputs: list[str]) -> str:
    """Return cells as a page: text as it is, code and what it printed in blocks.

    Args:
        texts: The cells.
        is_code: Which of them are code.
        outputs: What each of these printed.
    """
    left = iter(outputs)
    parts = []
    for text, runs in zip(texts, is_code, strict=True):
        if not runs:
            # Links of the notebook lead to its neighbours in the repository, not to pages.
            parts.append("" if text.startswith("Next: ") else text)
            continue
        parts.append(f"```python\n{text}\n```")
        if printed := next(left).strip("\n"):
            parts.append(f"```text\n{printed}\n```")
    return "\n\n".join(part for part in parts if part) + "\n"


if __name__ == "__main__":
    main()
