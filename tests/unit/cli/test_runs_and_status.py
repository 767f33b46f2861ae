"""`runs` and `status`: what they print for runs in each state."""

from __future__ import annotations

import json

import pytest

from holdfast.cli import runs as looks
from holdfast.cli.main import main
from holdfast.engine.watch import status
from holdfast.errors import HoldfastError, LedgerNewerError
from holdfast.ledger.ledger import Ledger
from holdfast.model.history import RunStatus
from holdfast.model.records import open_json, seal_json
from holdfast.opening import runs
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import StorageError
from tests.fakes.cli_lake import CliLake, lake
from tests.fakes.cli_said import facts, said, stopped
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.rig import Rig
from tests.fakes.watched_transform import WatchedTransform
from tests.ledgers.record import killed

__all__ = ["lake"]


def test_runs_are_listed_with_what_is_done(
    lake: CliLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line has the state, rows, starts, age and table of a run."""
    monkeypatch.setenv("COLUMNS", "120")
    lake.start("embed-2026-11", MemorySubmitter(range(1200)))
    printed = said(lake, capsys, "runs")
    assert "RUN STATE ROWS DONE STARTS WRITTEN TABLE" in printed
    assert "embed-2026-11 committed 1,200 of 1,200 (100%) 1 " in printed
    assert "ago lake.db.t" in printed


def test_a_run_that_replaces_rows_says_so(
    lake: CliLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it does, and what it has replaced, for people and for programs."""
    monkeypatch.setenv("COLUMNS", "120")
    lake.start("first", MemorySubmitter(range(7)))
    lake.start("again", MemorySubmitter(range(3)), mode="overwrite")
    printed = said(lake, capsys, "status", "again")
    assert "table replace all rows of lake.db.t (key id)" in printed
    assert "replaced 7 rows in 1 file " in printed
    found = facts(lake, capsys, "status", "again")
    assert (found["mode"], found["replaced_rows"], found["replaced_files"]) == ("overwrite", 7, 1)
    first = said(lake, capsys, "status", "first")
    assert "table lake.db.t (key id)" in first
    assert "replace" not in first


def test_what_an_upsert_has_counted_is_shown_afterwards(
    lake: CliLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the words of the report, and for programs, from the ledger alone."""
    monkeypatch.setenv("COLUMNS", "200")
    lake.start("first", MemorySubmitter(range(7)))
    report = lake.start("again", MemorySubmitter(range(5, 8)), mode="upsert", on="id")
    merged = "merged 2 matched, 1 inserted"
    rewrote = "rewrote 1 searched, 1 rewritten, 5 rows carried over"
    for text in (" ".join(str(report).split()), said(lake, capsys, "status", "again")):
        assert merged in text
        assert rewrote in text
    found = facts(lake, capsys, "status", "again")["upserts"]
    assert (found["matched"], found["inserted"], found["doubled"]) == (2, 1, 0)
    assert "2 matched, 1 inserted; files: 1 searched" in said(lake, capsys, "inspect", "again")
    assert facts(lake, capsys, "status", "first")["upserts"] is None


def test_a_damaged_ledger_is_one_line_of_the_list(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other runs are listed as usual."""
    lake.start("good", MemorySubmitter(range(3)))
    lake.start("bad", MemorySubmitter(range(3)))
    lake.damage("bad", 2)
    assert lake.call("runs") == 0
    printed = capsys.readouterr().out
    assert [line.split()[:2] for line in printed.splitlines()[1:]] == [
        ["good", "committed"],
        ["bad", "damaged"],
    ]
    assert "log/00000002.json" in printed
    (good, bad) = facts(lake, capsys, "runs")["runs"]
    assert (good["run_id"], good["error"]) == ("good", "")
    assert (bad["state"], bad["done_rows"]) == ("damaged", 0)
    assert bad["error"].startswith("log/00000002.json: ")


@pytest.mark.parametrize("place", ["run.json", "log/00000002.json"])
def test_a_ledger_of_a_newer_version_asks_for_an_upgrade_and_for_no_backup(
    lake: CliLake, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    """Older versions must not have users overwrite what a newer one has written."""
    lake.start("r", MemorySubmitter(range(3)))
    file = lake.folder / "store" / "r" / place
    content = open_json(file.read_bytes())
    file.write_bytes(seal_json({**content, "format": 9}))
    with pytest.raises(LedgerNewerError) as caught:
        status(lake.ledger("r"))
    assert "upgrade Holdfast" in str(caught.value)
    assert "backup" not in str(caught.value)
    (found,) = facts(lake, capsys, "runs")["runs"]
    (listed,) = runs(lake.store)
    for error in (found["error"], listed.error):
        assert f"{place}: a newer version of Holdfast has written this record" in error


@pytest.mark.parametrize(
    "name", ["a b", " lead", "=FF", "=zz", "=20", "x" * 250, "cafe\N{COMBINING ACUTE ACCENT}"]
)
def test_a_folder_that_is_not_a_run_hides_no_run(
    lake: CliLake, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any other folder in the store is one line of the list, with the reason."""
    lake.start("good", MemorySubmitter(range(3)))
    (lake.folder / "store" / name).mkdir()
    (lake.folder / "store" / name / "file").write_text("x")
    found = facts(lake, capsys, "runs")["runs"]
    assert [(line["run_id"], line["state"]) for line in found] == [
        ("good", "committed"),
        (name, "damaged"),
    ]
    assert lake.call("runs") == 0
    assert "  damaged  the folder" in capsys.readouterr().out
    assert [known.run_id for known in runs(lake.store)] == ["good"]


def test_a_run_that_cannot_be_listed_hides_no_other(
    lake: CliLake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the store does not answer for one run, the others are listed, and the exit code is 1."""
    lake.start("good", MemorySubmitter(range(3)))
    lake.start("bad", MemorySubmitter(range(3)))
    listed = ObjectStorage.list

    def fails(storage: ObjectStorage, uri: str) -> list[str]:
        if "/bad/" in uri:
            raise StorageError(f"{uri}: refused " + 1000 * "x")
        return listed(storage, uri)

    monkeypatch.setattr(ObjectStorage, "list", fails)
    assert lake.call("runs", "--json") == 1
    good, bad = json.loads(capsys.readouterr().out)["runs"]
    assert (good["state"], bad["state"]) == ("committed", "unreadable")
    assert len(bad["error"]) == 300


@pytest.mark.parametrize("error", [RecursionError("too deep"), TypeError("no"), KeyError("x")])
def test_a_record_that_raises_an_unexpected_error_hides_no_run(
    lake: CliLake,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Any other error that a hostile record raises counts as damage to its own run only."""
    lake.start("good", MemorySubmitter(range(3)))
    lake.start("bad", MemorySubmitter(range(3)))

    def fails(ledger: Ledger) -> RunStatus:
        if ledger.run_id == "bad":
            raise error
        return status(ledger)

    monkeypatch.setattr(looks, "status", fails)
    good, bad = facts(lake, capsys, "runs")["runs"]
    assert (good["state"], bad["state"]) == ("committed", "damaged")
    assert bad["error"].startswith(type(error).__name__)


@pytest.mark.parametrize("at", [float("inf"), 1e30])
def test_a_value_that_cannot_be_shown_hides_no_run(
    lake: CliLake,
    at: float,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A time outside every calendar is found before the list is printed."""
    lake.start("good", MemorySubmitter(range(3)))
    lake.start("bad", MemorySubmitter(range(3)))
    real = looks._last_at  # noqa: SLF001
    monkeypatch.setattr(
        looks,
        "_last_at",
        lambda ledger, found: at if ledger.run_id == "bad" else real(ledger, found),
    )
    assert lake.call("runs") == 0
    printed = capsys.readouterr().out
    assert "good  committed" in printed
    assert "bad   damaged  " in printed


def test_runs_in_python_goes_on_after_a_damaged_ledger(lake: CliLake) -> None:
    """The damaged run is listed as damaged, with the reason."""
    lake.start("good", MemorySubmitter(range(3)))
    lake.start("bad", MemorySubmitter(range(3)))
    lake.damage("bad", 2)
    bad, good = runs(lake.store)
    assert (good.state, bad.state, bad.done_rows) == ("committed", "damaged", 0)
    assert "log/00000002.json: " in bad.error
    assert bad.error in str(bad)


def test_runs_can_be_filtered_by_state(lake: CliLake, capsys: pytest.CaptureFixture[str]) -> None:
    """A store may hold years of runs."""
    lake.put(stopped(), "a")
    lake.put(killed(), "b")
    found = facts(lake, capsys, "runs", "--state", "stopped")["runs"]
    assert [run["run_id"] for run in found] == ["a"]
    assert "No runs found in" in said(lake, capsys, "runs", "--state", "aborted")
    with pytest.raises(SystemExit):
        main(["runs", "--store", "file:///nowhere", "--state", "bogus"])
    assert "invalid choice: 'bogus'" in capsys.readouterr().err


def test_rows_that_no_seal_counts_are_listed_too(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a kill there is no seal, but the work is not lost."""
    lake.put(killed(), "r")
    (found,) = facts(lake, capsys, "runs")["runs"]
    assert (found["state"], found["done_rows"], found["input_rows"]) == ("started", 6, 20)


def test_the_status_of_a_run_that_landed(lake: CliLake, capsys: pytest.CaptureFixture[str]) -> None:
    """All rows are done, and only a sweep is left."""
    lake.start("r", MemorySubmitter(range(1200)), cost=0.5)
    printed = said(lake, capsys, "status", "r")
    for text in ("r committed", "done 1,200 of 1,200 rows (100%)", "landed 1 file (", "cost 600"):
        assert text in printed
    assert "log record 5 is a receipt" in printed
    assert "`holdfast sweep r` shows what can be deleted" in printed
    found = facts(lake, capsys, "status", "r")
    assert (found["state"], found["done_rows"], found["remaining_rows"]) == ("committed", 1200, 0)
    assert (found["cost"], found["files"], found["table"]) == (600.0, 1, "lake.db.t")
    assert found["snapshot_id"] == lake.make_table().load().parent_snapshot_id
    assert [(start["end"], start["passes"]) for start in found["starts"]] == [("committed", 1)]


def test_the_status_of_a_run_that_stopped(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the error, and says to run the same script again."""
    lake.put(stopped(), "r")
    printed = said(lake, capsys, "status", "r")
    assert "stopped by TransformError: the transform failed in 1 of 2 tasks; first: Val" in printed
    assert "row 15 is bad" in printed
    assert "fix what ended the last start (TransformError), then run the same script" in printed
    found = facts(lake, capsys, "status", "r")
    assert found["starts"][0]["reason"] == "TransformError"
    assert "row 15 is bad" in found["starts"][0]["message"]
    for command in (["runs"], ["inspect", "r"]):
        assert "TransformError: the transform failed" in said(lake, capsys, *command)
    (line,) = facts(lake, capsys, "runs")["runs"]
    assert "row 15 is bad" in line["stopped_by"]
    assert 0 < found["done_rows"] < 20


def test_the_status_of_a_resumed_run_says_what_was_kept(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """It also says how each start ended."""
    rig = stopped()
    rig.start(transform=WatchedTransform())
    lake.put(rig, "r")
    printed = said(lake, capsys, "status", "r")
    assert "rows of earlier starts" in printed
    assert "stopped by TransformError" in printed
    found = facts(lake, capsys, "status", "r")
    assert [start["end"] for start in found["starts"]] == ["stopped", "committed"]
    assert found["kept_rows"] > 0


def test_the_status_of_a_run_that_was_killed_on_this_machine(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its process is gone, so there is no need to wait."""
    lake.start_and_die("r", MemorySubmitter(range(5), range(5, 10)))
    found = facts(lake, capsys, "status", "r")
    assert found["state"] == "started"
    printed = said(lake, capsys, "status", "r")
    assert "done 5 of 10 rows (50%)" in printed
    assert "next run the same script again" in printed


def test_a_run_whose_driver_wrote_a_moment_ago_is_left_alone(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """The driver may be at work on another machine."""
    rig = Rig()
    transform = WatchedTransform()
    transform.at[6] = rig.storage.kill
    rig.start_and_die(transform=transform, batch_rows=2, checkpoint_every=1e9)
    lake.put(rig, "r")
    printed = said(lake, capsys, "status", "r")
    assert "at work, it seems" in printed
    assert "let it finish" in printed
    assert "`holdfast watch r`" in printed


def test_an_id_with_odd_characters_is_quoted_where_it_can_be_copied(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scheduler makes ids that a shell would split."""
    lake.start("night job; 2026+11", MemorySubmitter(range(3)))
    assert "`holdfast sweep 'night job; 2026+11'`" in said(
        lake, capsys, "status", "night job; 2026+11"
    )


def test_the_status_of_a_damaged_ledger_is_an_error(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says where the damage is."""
    lake.start("bad", MemorySubmitter(range(3)))
    lake.damage("bad", 1)
    assert lake.call("status", "bad") == 1
    assert "log/00000001.json: the record is damaged" in capsys.readouterr().err


def test_an_aborted_run_can_be_looked_at_after_its_sweep(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sweep deletes the list of its work; that is not damage."""
    transform = WatchedTransform()
    transform.fails_at = {7}
    with pytest.raises(HoldfastError):
        lake.start("r", MemorySubmitter(range(5), range(5, 10)), transform=transform, retries=0)
    assert facts(lake, capsys, "status", "r")["done_rows"] == 5
    lake.call("abort", "r", "--yes", *lake.catalog_arguments)
    capsys.readouterr()
    assert facts(lake, capsys, "runs")["runs"][0]["done_rows"] == 5
    lake.call("sweep", "r", "--yes", *lake.catalog_arguments)
    capsys.readouterr()
    for words in (("status", "r"), ("inspect", "r")):
        assert facts(lake, capsys, *words)["state"] == "aborted"
    (line,) = facts(lake, capsys, "runs")["runs"]
    assert (line["state"], line["done_rows"]) == ("aborted", 0)


def test_a_list_of_runs_loses_nothing_in_80_columns(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """Long ids and table names wrap; only the text of a damaged run is cut to one line."""
    lake.start("a-very-long-id-of-a-nightly-job-2026-11-15", MemorySubmitter(range(12_000)))
    lake.start("another-very-long-id-of-a-job-2026-11-15", MemorySubmitter(range(3)))
    lake.damage("another-very-long-id-of-a-job-2026-11-15", 1)
    assert lake.call("runs") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    ids = [line[: lines[0].index("STATE")].strip() for line in lines[1:-1]]
    assert "".join(ids) == "a-very-long-id-of-a-nightly-job-2026-11-15"
    assert "100% of 12,000" in lines[1]
    assert "lake.db.t" in lines[1]
    assert lines[-1].startswith("  another-very-long-id-of-a-job-2026-11-15  damaged  log/")
    assert lines[-1].endswith("…")
