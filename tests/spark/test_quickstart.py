"""The README's quickstart: killed half way, it resumes; and it needs only pip packages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROWS = 4000
START_TIMEOUT_S = 240.0
# A reader has not set them: the environment that is active names the workers' Python.
NOT_SET = ("HOLDFAST_STORE", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


def quickstart() -> str:
    """Return the script as a reader copies it, with rows that cost a tenth of the time."""
    (script,) = [b for b in BLOCK.findall((ROOT / "README.md").read_text()) if "quickstart-1" in b]
    quicker: str = script.replace("0.02 * batch", "0.004 * batch").replace('"2s"', '"1s"')
    assert quicker.count("0.004") == quicker.count('"1s"') == 1
    return quicker


def shell_blocks() -> list[str]:
    """Return the lines for a shell that the README gives after those that install."""
    install, *others = CONSOLE.findall((ROOT / "README.md").read_text())
    assert "pip install" in install
    return others


def output(lines: str, folder: Path) -> str:
    """Run lines in a shell, where the environment is active; return what they printed."""
    environment = {name: value for name, value in os.environ.items() if name not in NOT_SET}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["/bin/bash", "-euc", lines],
        cwd=folder,
        env={**environment, "SPARK_LOCAL_IP": "127.0.0.1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S * 2,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.spark
def test_the_quickstart_goes_on_after_a_kill(tmp_path: Path) -> None:
    """By the README's own lines: rows of the first start are kept, and each is there once."""
    (tmp_path / "quickstart.py").write_text(quickstart())
    kill_and_resume, look, name_the_store = shell_blocks()
    printed = output(kill_and_resume, tmp_path)
    killed = re.search(r"killed: ([\d,]+) of 4,000 rows", printed)
    assert killed is not None, printed
    done = int(killed[1].replace(",", ""))
    assert ROWS / 2 <= done < ROWS
    kept = re.search(r"kept +([\d,]+) rows of earlier starts", printed)
    assert kept is not None, printed
    # A task may have made more rows durable between the look and the kill.
    assert done <= int(kept[1].replace(",", "")) < ROWS
    assert f"{ROWS} rows, {ROWS} different ids" in printed
    assert "already committed" in output("python quickstart.py", tmp_path)

    assert "committed" in output(look, tmp_path)
    (page,) = tmp_path.glob("*.html")
    assert "quickstart-1" in page.read_text()
    assert "quickstart-1" in output(name_the_store, tmp_path)
