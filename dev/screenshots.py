"""Run each command of the command line on small real runs, and keep what it shows.

Pictures go to docs/img/cli-*.svg, text into the blocks of docs/reference/cli.md. Run it from the
root of the repository, with the repository on the path: `python -m dev.screenshots`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.text import Text

from holdfast.errors import HoldfastError
from tests.fakes.cli_lake import CliLake
from tests.fakes.memory_submitter import MemorySubmitter

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "cli.md"
PICTURES = ROOT / "docs" / "img"
# A fixed folder: its name is visible in the pictures.
FOLDER = Path("/tmp/holdfast-demo")  # noqa: S108 - nothing secret is there.
LAKE = CliLake(FOLDER, "ml.embeddings")
COLUMNS = 100
_KILLED = 137
_MAIN = "import sys; from holdfast.cli.main import main; sys.exit(main(sys.argv[1:]))"
_BLOCK = re.compile(r"(<!-- output: ([\w-]+) -->\n```text\n).*?(^```$)", re.MULTILINE | re.DOTALL)


class Slow:
    """A slow transform that may fail or die at a row."""

    def __init__(self, *, fails_at: int = -1, dies_at: int = -1) -> None:
        """Take the rows at which it fails or dies."""
        self._fails_at = fails_at
        self._dies_at = dies_at

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Do the expensive step.

        Raises:
            ValueError: A row is bad.
        """
        time.sleep(0.02)
        ids = batch["id"].to_pylist()
        if self._fails_at in ids:
            raise ValueError(f"row {self._fails_at} is bad")
        if self._dies_at in ids:
            os._exit(_KILLED)  # Like a kill: nothing of ours runs after it.
        return batch


def main() -> None:
    """Make the runs, and show each command on them."""
    if len(sys.argv) > 1:
        start(sys.argv[1], Slow(dies_at=int(sys.argv[2])))
        return
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    make_runs()
    PICTURES.mkdir(exist_ok=True)
    texts = {}
    for name, words in calls().items():
        shown = shlex.join(["holdfast", *words])
        coloured = call(words, FORCE_COLOR="1", TERM="xterm-256color")
        draw(name, shown, coloured)
        # Not called again for the text without colours: what was deleted cannot be deleted again.
        plain = "\n".join(line.rstrip() for line in Text.from_ansi(coloured).plain.splitlines())
        texts[name] = f"$ {shown}\n{plain}"
    page = PAGE.read_text()
    PAGE.write_text(_BLOCK.sub(lambda found: f"{found[1]}{texts[found[2]]}\n{found[3]}", page))


def make_runs() -> None:
    """Make runs in several states, as jobs do."""
    start("clean-titles-2026-11-11", Slow())
    start("clean-titles-2026-11-12", Slow())
    LAKE.damage("clean-titles-2026-11-12", 3)
    start_and_kill("embed-2026-11-13", 4600)
    with contextlib.suppress(HoldfastError):
        start("embed-2026-11-14", Slow(fails_at=7300))
    start("embed-2026-11-14", Slow())
    start_and_kill("embed-2026-11-15", 7300)


def start(run_id: str, transform: Slow) -> None:
    """Start a run of 12,000 rows in six tasks, with a price per row."""
    rows = MemorySubmitter(*(range(first, first + 2000) for first in range(0, 12_000, 2000)))
    options: dict[str, Any] = {"batch_rows": 250, "checkpoint_every": 0.05, "retries": 0}
    LAKE.start(run_id, rows, transform=transform, cost=0.0004, **options)


def start_and_kill(run_id: str, row: int) -> None:
    """Start a run in a process of its own, which ends at a row.

    Raises:
        SystemExit: The process did not end at the row.
    """
    command = [sys.executable, "-m", "dev.screenshots", run_id, str(row)]
    if subprocess.run(command, cwd=ROOT, check=False).returncode != _KILLED:
        raise SystemExit(f"{run_id} was to be killed at row {row}")


def calls() -> dict[str, list[str]]:
    """Return the command lines to show, by the picture's name."""
    return {
        "runs": ["runs"],
        "status": ["status", "embed-2026-11-15"],
        "status-committed": ["status", "embed-2026-11-14"],
        "inspect": ["inspect", "embed-2026-11-15", "--tasks", "5"],
        "abort": ["abort", "embed-2026-11-13", "--yes", "--reason", "wrong model"],
        "sweep": ["sweep", "embed-2026-11-13"],
        "sweep-yes": ["sweep", "embed-2026-11-13", "--yes"],
        "doctor": ["doctor", "--table", "lake.ml.embeddings"],
        "unknown": ["status", "embde-2026-11-15"],
    }


def call(words: list[str], **environment: str) -> str:
    """Run the command line in a process of its own, and return all that it printed."""
    done = subprocess.run(
        [sys.executable, "-c", _MAIN, *words],
        env={
            **os.environ,
            **{f"PYICEBERG_CATALOG__LAKE__{k.upper()}": v for k, v in LAKE.properties.items()},
            "HOLDFAST_STORE": f"{FOLDER}/store",
            "PYSPARK_PYTHON": sys.executable,
            "COLUMNS": str(COLUMNS),
            **environment,
        },
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.stdout


def draw(name: str, shown: str, printed: str) -> None:
    """Keep what was printed as a picture of a terminal."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.assemble(("$ ", "dim"), (shown, "bold")))
    console.print(Text.from_ansi(printed))
    # A fixed id: the picture changes only if the output does.
    picture = console.export_svg(title="holdfast", unique_id=f"cli-{name}")
    # The reader's own font: nothing is fetched from elsewhere.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    picture = picture.replace("Fira Code", "ui-monospace")
    (PICTURES / f"cli-{name}.svg").write_text(f"{picture.rstrip()}\n")


if __name__ == "__main__":
    main()
