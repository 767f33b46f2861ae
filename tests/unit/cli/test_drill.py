"""`holdfast drill`: a job is killed once enough of its rows are in checkpoints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.engine.watch import Watcher
from holdfast.ledger.ledger import Ledger, Ports
from holdfast.model.history import Progress
from holdfast.storage.objects import ObjectStorage

# Twenty rows; each is durable at once and takes a while.
JOB = """
import sys, time
from holdfast.engine.drive import Driver
from holdfast.engine.options import WriteOptions
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.ledger import Ports
from holdfast.storage.objects import ObjectStorage
from tests.fakes.rig import Rig, two_partitions
from tests.fakes.unpinned import Unpinned

store, seconds = sys.argv[1], float(sys.argv[2])

def slow(batch):
    time.sleep(seconds)
    return batch

rig, ledger = Rig(), Ledger.open("r", store, ObjectStorage(), Ports())
driver = Driver(ledger=ledger, sink=rig.table, input=Unpinned(two_partitions()))
options = WriteOptions(transform=slow, batch_rows=1, checkpoint_every=1e-9)
driver.write(rig.table.load(), rig.identity(), options)
"""


def job(folder: Path, seconds: float = 0.0) -> list[str]:
    """Return the command that starts the job."""
    return [sys.executable, "-c", JOB, f"file://{folder}", str(seconds)]


def drill(folder: Path, *words: str, seconds: float = 0.0) -> int:
    """Start the job under the command, and return the exit code."""
    store = ("--store", f"file://{folder}")
    return main(["drill", "r", *store, *words, "--", *job(folder, seconds)])


def progress(folder: Path) -> Progress:
    """Return how far the run has come."""
    ledger = Ledger.open("r", f"file://{folder}", ObjectStorage(), Ports())
    return Watcher(ledger=ledger).look().progress


@pytest.mark.slow_unit
@pytest.mark.parametrize(("words", "least"), [((), 10), (("--at", "0.2"), 4)])
def test_a_job_is_killed_once_its_share_is_done(
    words: tuple[str, ...], least: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the ledger, not by a clock: what was done is kept, and the rest is not."""
    assert drill(tmp_path, *words, seconds=0.3) == 0
    seen = progress(tmp_path)
    assert least <= seen.done_rows < 20
    assert seen.state == "started"
    out = capsys.readouterr().out
    assert out.endswith("of 20 rows were in checkpoints. Start the job again to resume.\n")
    assert out.startswith("killed: ")


def test_a_job_that_ends_first_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its exit code, and an exit code that a script notices."""
    words = ["drill", "r", "--store", f"file://{tmp_path}", "--", sys.executable, "-c", "exit(7)"]
    assert main(words) == 1
    assert "ended with exit code 7 before it was killed" in capsys.readouterr().out


@pytest.mark.slow_unit
def test_a_committed_run_is_not_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The job would end at once: there is nothing to see."""
    subprocess.run(job(tmp_path), check=True)
    assert progress(tmp_path).state == "committed"
    assert drill(tmp_path) == 1
    assert "nothing left to kill" in capsys.readouterr().err


def test_what_cannot_work_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A share beyond the whole, and a command that does not exist."""
    assert drill(tmp_path, "--at", "1.5") == 1
    assert "--at 1.5" in capsys.readouterr().err
    assert main(["drill", "r", "--store", f"file://{tmp_path}", "--", "no-such-program"]) == 1
    assert "cannot be started" in capsys.readouterr().err
