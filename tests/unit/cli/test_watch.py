"""`holdfast watch`: follow a run from another process until it ends."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from holdfast.cli.main import main, make_parser
from holdfast.engine.drive import Driver
from holdfast.engine.options import WriteOptions
from holdfast.errors import TransformError
from holdfast.ledger.ledger import Ledger
from holdfast.storage.objects import ObjectStorage
from tests.fakes.manual_ports import manual_ports
from tests.fakes.rig import Rig, two_partitions
from tests.fakes.unpinned import Unpinned
from tests.fakes.watched_transform import WatchedTransform

ALWAYS = 1e-9


def start(folder: Path, transform: WatchedTransform | None = None) -> None:
    """Run a job whose ledger is in a folder."""
    ledger = Ledger.open("r", f"file://{folder}", ObjectStorage(), manual_ports())
    rig = Rig()
    driver = Driver(ledger=ledger, sink=rig.table, input=Unpinned(two_partitions()))
    options = WriteOptions(transform=transform, batch_rows=1, checkpoint_every=ALWAYS, retries=0)
    driver.write(rig.table.load(), rig.identity(), options)


def command(folder: Path, *words: str) -> list[str]:
    """Return the command line that watches the run."""
    return ["watch", "r", "--store", f"file://{folder}", *words]


def failing() -> WatchedTransform:
    """Return a transform that fails half way."""
    transform = WatchedTransform()
    transform.fails_at = {15}
    return transform


def test_one_look_at_a_run_that_has_landed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints lines as `status` does; the run is committed, so the exit code is 0."""
    start(tmp_path)
    assert main(command(tmp_path, "--once")) == 0
    assert capsys.readouterr().out.splitlines()[:4] == [
        "  run       r",
        "  table     lake.db.t",
        "  done      100%",
        "  rows      20 of 20",
    ]


@pytest.mark.parametrize("words", [(), ("--once",), ("--json",)])
def test_a_run_that_has_stopped_ends_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """A script can distinguish it from a committed run."""
    with pytest.raises(TransformError):
        start(tmp_path, failing())
    assert main(command(tmp_path, *words)) == 3
    assert "TransformError" in capsys.readouterr().out


def test_json_is_one_object_per_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks again after the pause, until the run has landed."""
    monkeypatch.setattr(time, "sleep", lambda _seconds: start(tmp_path))
    assert main(command(tmp_path, "--json", "--every", "5s")) == 0
    looks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(look["state"], look["share"], look["done_rows"]) for look in looks] == [
        ("new", None, 0),
        ("committed", 1.0, 20),
    ]


def test_lines_where_there_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It prints a line for each look that found something new."""
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        start(tmp_path)

    monkeypatch.setattr(time, "sleep", sleep)
    assert main(command(tmp_path)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "not started yet",
        "100%; rows 20 of 20; 2 files (2.0 kB); start 1: committed; 0 s",
    ]
    assert pauses == [2.0]


def test_ctrl_c_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code is the one that shells use for it."""

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    assert main(command(tmp_path)) == 130


def test_a_pause_that_is_not_a_duration_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is one line, which says what to give."""
    assert main(command(tmp_path, "--every", "often")) == 1
    assert "--every: 'often' is not a duration" in capsys.readouterr().err


def test_one_look_at_a_run_that_does_not_exist_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typo must not look like a run that has not started."""
    start(tmp_path)
    assert main(["watch", "rr", "--store", f"file://{tmp_path}", "--once"]) == 1
    assert "there is no run 'rr'" in capsys.readouterr().err


def test_a_relative_store_is_below_the_shells_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command is typed in one folder; a job's settings are read in many."""
    start(tmp_path / "ledger")
    monkeypatch.chdir(tmp_path)
    assert main(["watch", "r", "--store", "ledger", "--once"]) == 0


def test_watching_writes_nothing(tmp_path: Path) -> None:
    """Read access to the store is enough."""
    start(tmp_path)
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    assert main(command(tmp_path, "--once")) == 0
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_the_command_is_known() -> None:
    """Its arguments have defaults."""
    given = make_parser(["watch"]).parse_args(["watch", "r"])
    assert (given.run, given.every, given.once, given.json) == ("r", "2s", False, False)
