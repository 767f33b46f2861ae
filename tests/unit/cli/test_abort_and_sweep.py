"""`abort` and `sweep`: a dry run changes nothing, and a real run does what it announced."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.engine.cleanup import plan_sweep
from holdfast.model.records import Abort
from tests.fakes.cli_lake import CliLake, die_before_post, lake
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.watched_transform import WatchedTransform

__all__ = ["lake"]


class Terminal(io.StringIO):
    """A terminal at which a user has typed an answer."""

    def isatty(self) -> bool:
        """Say that it is a terminal."""
        return True


def killed(lake: CliLake, run_id: str = "r") -> None:
    """Leave a run whose driver died after its first task had staged a file."""
    lake.start_and_die(run_id, MemorySubmitter(range(5), range(5, 10)))


def files_of(lake: CliLake) -> list[Path]:
    """Return all files in the store."""
    return sorted(path for path in (lake.folder / "store").rglob("*") if path.is_file())


def facts(capsys: pytest.CaptureFixture[str]) -> Any:  # noqa: ANN401
    """Return the JSON that was printed."""
    return json.loads(capsys.readouterr().out)


def test_an_abort_needs_confirmation(
    lake: CliLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal it cannot ask, so it requires --yes."""
    killed(lake)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert lake.call("abort", "r", *lake.catalog_arguments) == 1
    assert "give --yes" in capsys.readouterr().err
    ledger = lake.ledger("r")
    ledger.log.refresh()
    assert not ledger.log.is_aborted


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1)])
def test_an_abort_asks_the_person_at_a_terminal(
    lake: CliLake, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    """Only a clear yes ends the run."""
    killed(lake)
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    assert lake.call("abort", "r", *lake.catalog_arguments) == code
    ledger = lake.ledger("r")
    ledger.log.refresh()
    assert ledger.log.is_aborted == (code == 0)


def test_an_abort_keeps_the_reason_and_deletes_nothing(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run log records why."""
    killed(lake)
    before = lake.data_files()
    words = ("abort", "r", "--yes", "--reason", "wrong model", *lake.catalog_arguments)
    assert lake.call(*words) == 0
    printed = capsys.readouterr().out
    assert "Run r is aborted" in printed
    assert "this run has posted nothing to the table" in printed
    assert "1 staged file: nothing was deleted" in printed
    assert lake.data_files() == before
    ledger = lake.ledger("r")
    ledger.log.refresh()
    assert ledger.log.records[-1].body == Abort(reason="wrong model")


def test_an_abort_can_be_called_again(lake: CliLake, capsys: pytest.CaptureFixture[str]) -> None:
    """The second call does not ask, and the first reason is kept."""
    killed(lake)
    lake.call("abort", "r", "--yes", "--reason", "first", *lake.catalog_arguments)
    capsys.readouterr()
    assert lake.call("abort", "r", "--reason", "second", "--json", *lake.catalog_arguments) == 0
    assert facts(capsys)["reason"] == "first"


def test_a_run_that_has_landed_is_not_aborted(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says what has landed."""
    lake.start("r", MemorySubmitter(range(3)))
    assert lake.call("abort", "r", *lake.catalog_arguments) == 1
    assert "has landed as snapshot" in capsys.readouterr().err


def test_an_unknown_catalog_is_an_error_that_says_what_to_give(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a Spark session the catalog's settings are not known, and a post is in doubt."""
    die_before_post(lake)
    assert lake.call("abort", "r", "--yes") == 1
    printed = capsys.readouterr().err
    assert "how to reach its catalog 'lake' is unknown" in printed
    assert "--catalog type=rest" in printed
    assert "PYICEBERG_CATALOG__LAKE__URI" in printed


def test_a_catalog_is_found_in_the_pyiceberg_configuration(
    lake: CliLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked up by the name in the run's ledger."""
    killed(lake)
    for name, value in lake.properties.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name.upper()}", value)
    assert lake.call("abort", "r", "--yes") == 0


def test_a_table_can_be_named_inside_its_catalog(lake: CliLake) -> None:
    """The name is as in `hf.IcebergTable(name, catalog=...)`; an SQL catalog keeps its own name."""
    killed(lake)
    assert lake.call("abort", "r", "--yes", "--table", "db.t", *lake.catalog_arguments) == 0


def test_a_dry_sweep_says_what_it_would_delete_and_why_that_is_safe(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """It changes nothing, and needs no catalog if the run has landed."""
    lake.start("r", MemorySubmitter(range(5), range(5, 10)))
    before = files_of(lake), lake.data_files()
    assert lake.call("sweep", "r") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Would delete 4 objects (" in printed
    assert "task records such as tasks/" in printed
    assert "the receipt says that the run landed as snapshot" in printed
    assert "2 files and 2 manifests that are part of the snapshot" in printed
    assert "`holdfast sweep r --yes` deletes it" in printed
    assert (files_of(lake), lake.data_files()) == before


def test_a_sweep_deletes_what_the_dry_run_listed(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both use the same plan."""
    lake.start("r", MemorySubmitter(range(5), range(5, 10)))
    before = len(files_of(lake))
    assert lake.call("sweep", "r", "--json") == 0
    dry = facts(capsys)
    assert lake.call("sweep", "r", "--yes", "--json") == 0
    real = facts(capsys)
    assert (dry.pop("deleted"), real.pop("deleted")) == (False, True)
    assert dry == real
    assert before - len(files_of(lake)) == dry["objects"]
    assert dry["size_bytes"] > 0
    assert lake.call("sweep", "r") == 0
    assert "Run r has nothing left to delete" in capsys.readouterr().out


def test_a_sweep_of_an_aborted_run_takes_its_staged_files(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are not part of the table, and never will be."""
    killed(lake)
    lake.call("abort", "r", "--yes", *lake.catalog_arguments)
    capsys.readouterr()
    assert lake.call("sweep", "r") == 0  # A dry run needs no catalog here: no post was made.
    assert "staged data files that are not in the table" in capsys.readouterr().out
    assert len(lake.data_files()) == 1
    assert lake.call("sweep", "r", "--yes", *lake.catalog_arguments) == 0
    assert lake.data_files() == []


def test_a_sweep_keeps_failed_rows(lake: CliLake, capsys: pytest.CaptureFixture[str]) -> None:
    """They may be all that is left of a row."""
    transform = WatchedTransform()
    transform.fails_at = {3}
    lake.start("r", MemorySubmitter(range(10)), transform=transform, on_error="quarantine")
    assert lake.call("sweep", "r", "--yes", "--json") == 0
    assert any("with failed rows" in kept for kept in facts(capsys)["kept"])
    assert [path for path in files_of(lake) if path.suffix == ".failed"]


def test_all_ended_runs_are_swept_and_no_other(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """One command cleans a store with years of runs; a damaged run does not stop the others."""
    for run_id in ("a", "b", "damaged"):
        lake.start(run_id, MemorySubmitter(range(5), range(5, 10)))
    killed(lake, "going")
    folder = lake.folder / "store"
    going = [path for path in files_of(lake) if "going" in str(path)]
    next(folder.rglob("damaged/log/00000001.json")).write_bytes(b"{}")
    assert lake.call("sweep", "--all-ended", "--json") == 1
    printed = capsys.readouterr()
    assert [swept["run_id"] for swept in json.loads(printed.out)["runs"]] == ["a", "b"]
    assert "damaged" in printed.err
    assert lake.call("sweep", "--all-ended", "--yes") == 1
    capsys.readouterr()
    for run_id in ("a", "b"):
        lake.call("sweep", run_id)
        assert f"Run {run_id} has nothing left to delete" in capsys.readouterr().out
    assert [path for path in files_of(lake) if "going" in str(path)] == going


@pytest.mark.parametrize("words", [(), ("r", "--all-ended")])
def test_a_sweep_needs_a_run_id_or_all_ended(
    lake: CliLake, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """Neither is the default."""
    assert lake.call("sweep", *words) == 1
    assert "a run's id or --all-ended" in capsys.readouterr().err


def test_a_run_that_may_go_on_is_not_swept(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its files are work that was paid for; a dry run is refused too."""
    killed(lake)
    assert lake.call("sweep", "r", "--yes", *lake.catalog_arguments) == 1
    assert "has neither landed nor been aborted" in capsys.readouterr().err


def test_a_dry_sweep_posts_nothing_to_the_table(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interrupted abort has not settled what can still land, and a dry run cannot settle it."""
    die_before_post(lake)
    ledger = lake.ledger("r")
    ledger.log.claim(Abort(reason="cut short"))
    before = lake.make_table().load().next_sequence_number
    assert lake.call("sweep", "r", *lake.catalog_arguments) == 1
    printed = capsys.readouterr().err
    assert "it is not yet known whether a post of run 'r' can still land" in printed
    assert "`holdfast abort r` again" in printed
    assert lake.make_table().load().next_sequence_number == before
    assert lake.call("abort", "r", "--yes", *lake.catalog_arguments) == 0
    assert lake.call("sweep", "r", *lake.catalog_arguments) == 0


def test_a_plan_alone_deletes_nothing(lake: CliLake) -> None:
    """Nothing is deleted until the plan is carried out."""
    lake.start("r", MemorySubmitter(range(3)))
    before = files_of(lake)
    plan = plan_sweep(lake.ledger("r"), lambda _identity: lake.make_table())
    assert plan.ledger_objects
    assert plan.kept_files
    assert files_of(lake) == before


def test_the_store_may_come_from_the_environment(
    lake: CliLake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """HOLDFAST_STORE works as it does for jobs."""
    lake.start("r", MemorySubmitter(range(3)))
    monkeypatch.setenv("HOLDFAST_STORE", lake.store)
    assert main(["sweep", "r", "--json"]) == 0
    assert facts(capsys)["run_id"] == "r"


@pytest.mark.lance
def test_a_run_on_a_lance_dataset_is_aborted_and_swept(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ledger records the dataset's location, so no table needs to be named."""
    submitter = MemorySubmitter(range(5), range(5, 10))
    lake.start_and_die("r", submitter, sink=lake.make_dataset())
    staged = list((lake.folder / "t.lance" / "data").iterdir())
    assert len(staged) == 1
    assert lake.call("abort", "r", "--yes", "--table-option", "aws_region=x") == 0
    assert lake.call("sweep", "r", "--yes") == 0
    assert "staged data files" in capsys.readouterr().out
    assert list((lake.folder / "t.lance" / "data").iterdir()) == []
