"""Run a script of examples/ as a reader does: a process of its own, in a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import PYTHON_PATH
from tests.crash.started_jobs import kill_process

EXAMPLES = Path(__file__).parents[2] / "examples"
# Where `make example-envs` puts packages that the development environment lacks.
INSTALLED = (
    Path(os.environ.get("HOLDFAST_CACHE") or Path.home() / ".cache" / "holdfast") / "examples"
)
# The model of embed_to_lance, and what it is loaded with.
MODEL = INSTALLED / "model"
START_TIMEOUT_S = 600.0


def run_script(script: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script to its end; nothing that it has started is left."""
    command = [sys.executable, str(script), *arguments]
    with subprocess.Popen(
        command,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": f"{PYTHON_PATH}{os.pathsep}{MODEL}",
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as started:
        try:
            out, errors = started.communicate(timeout=START_TIMEOUT_S)
        finally:
            # Not by session: the command that kills a job halfway gives it one of its own.
            for process_id in processes_in(folder):
                kill_process(process_id)
    return subprocess.CompletedProcess(command, started.returncode, out, errors)


def processes_in(folder: Path) -> list[int]:
    """Return the processes whose working folder this is; all that a script starts inherit it."""
    return [
        int(process.name)
        for process in Path("/proc").glob("[0-9]*")
        if working_folder(process) == str(folder.resolve())
    ]


def working_folder(process: Path) -> str:
    """Return a process's working folder; nothing once it is gone, or if it is another user's."""
    try:
        return str((process / "cwd").readlink())
    except OSError:
        return ""


def output(script: Path, *arguments: str, folder: Path) -> str:
    """Return what a script that ended well printed."""
    done = run_script(script, *arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def killed_half_way(run_id: str, script: Path, *arguments: str, folder: Path) -> int:
    """Start a job with the command that kills it, and return how many rows were done by then."""
    drill = ("drill", run_id, "--store", "lake/ledger", "--")
    started = (*drill, sys.executable, str(script), *arguments)
    holdfast = Path(sys.executable).with_name("holdfast")
    return number_in(r"killed: ([\d,]+) of", output(holdfast, *started, folder=folder))


def number_in(pattern: str, text: str) -> int:
    """Return the number that a pattern finds in a text."""
    found = re.search(pattern, text)
    assert found is not None, text
    return int(found[1].replace(",", ""))
