"""The README's quickstart: killed half way, it resumes; and it needs only pip packages."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROWS = 4000
START_TIMEOUT_S = 240.0


def quickstart() -> str:
    """Return the script as a reader copies it, with rows that cost a tenth of the time."""
    (script,) = [b for b in BLOCK.findall((ROOT / "README.md").read_text()) if "quickstart-1" in b]
    quicker: str = script.replace("0.02 * batch", "0.004 * batch").replace('"2s"', '"1s"')
    assert quicker.count("0.004") == quicker.count('"1s"') == 1
    return quicker


def commands() -> list[list[str]]:
    """Return the two commands that the README gives: one kills the job, and one resumes it."""
    (block,) = [b for b in CONSOLE.findall((ROOT / "README.md").read_text()) if "drill" in b]
    programs = {
        "python": sys.executable,
        "holdfast": str(Path(sys.executable).with_name("holdfast")),
    }
    lines = [shlex.split(line) for line in block.splitlines()]
    return [[programs.get(word, word) for word in line] for line in lines]


def output(command: list[str], folder: Path) -> str:
    """Run a command to its end and return what it printed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S * 2,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.spark
def test_the_quickstart_goes_on_after_a_kill(tmp_path: Path) -> None:
    """By the README's own commands: rows of the first start are kept, and each is there once."""
    (tmp_path / "quickstart.py").write_text(quickstart())
    kill, again = commands()
    killed = re.search(r"killed: ([\d,]+) of 4,000 rows", output(kill, tmp_path))
    assert killed is not None
    done = int(killed[1].replace(",", ""))
    assert ROWS / 2 <= done < ROWS

    second = output(again, tmp_path)
    kept = re.search(r"kept +([\d,]+) rows of earlier starts", second)
    assert kept is not None, second
    # A task may have made more rows durable between the look and the kill.
    assert done <= int(kept[1].replace(",", "")) < ROWS
    assert f"{ROWS} rows, {ROWS} different ids" in second
    assert "already committed" in output(again, tmp_path)
