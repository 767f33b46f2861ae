"""The README's quickstart: killed half way, it resumes; and it needs only pip packages."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROWS = 4000
RECORDS_BEFORE_THE_KILL = 4
START_TIMEOUT_S = 240.0


def quickstart() -> str:
    """Return the script as a reader copies it, with rows that cost a tenth of the time."""
    (script,) = [b for b in BLOCK.findall((ROOT / "README.md").read_text()) if "quickstart-1" in b]
    quicker: str = script.replace("0.04 * batch", "0.004 * batch").replace('"2s"', '"1s"')
    assert quicker.count("0.004") == quicker.count('"1s"') == 1
    return quicker


def start(script: Path) -> subprocess.Popen[str]:
    """Start the script as a user does, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, script.name],
        cwd=script.parent,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(script: Path) -> str:
    """Run the script to its end and return what it printed."""
    started = start(script)
    out, err = started.communicate(timeout=START_TIMEOUT_S * 2)
    assert started.returncode == 0, err
    return out


@pytest.mark.spark
def test_the_quickstart_goes_on_after_a_kill(tmp_path: Path) -> None:
    """`kill -9` half way, then a second start: rows of the first are kept, and each is there once.

    Method: the kill comes when task records are in the ledger, so that there is work to keep.
    """
    script = tmp_path / "quickstart.py"
    script.write_text(quickstart())
    first = start(script)
    until = time.monotonic() + START_TIMEOUT_S
    tasks = tmp_path / "lake" / "ledger" / "quickstart-1" / "tasks"
    while len(list(tasks.rglob("*.json"))) < RECORDS_BEFORE_THE_KILL:
        assert first.poll() is None, first.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    assert first.wait(timeout=10.0) == -signal.SIGKILL  # It did die, so the test is not vacuous.
    first.communicate()

    second = output(script)
    kept = re.search(r"kept +([\d,]+) rows of earlier starts", second)
    assert kept is not None, second
    assert 0 < int(kept[1].replace(",", "")) < ROWS
    assert f"{ROWS} rows, {ROWS} different ids" in second
    assert "already committed" in output(script)
