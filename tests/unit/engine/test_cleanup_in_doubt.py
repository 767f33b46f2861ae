"""Abort and sweep while a post is unanswered: they end if the table can be read, else refuse."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from holdfast.engine.cleanup import Aborted, Swept, abort, sweep
from holdfast.errors import (
    CatalogUnavailableError,
    CommitUnknownError,
    RunAbortedError,
    RunCommittedError,
    TableOutOfSightError,
    UnsupportedTableError,
)
from holdfast.ledger.ledger import Ledger
from holdfast.model.records import Body, Receipt, Refused
from holdfast.model.work import StagedGroup
from holdfast.sinks.base import Outcome, RunMark, TableView
from holdfast.sinks.iceberg.catalog import open_catalog
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.sinks.lance.sink import LanceSink
from tests.fakes.cli_lake import CliLake, die_before_post, die_before_receipt, lake
from tests.fakes.lance_rig import DriverDied, LanceRig
from tests.fakes.memory_storage import DriverDiedError
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.memory_table import MemoryTable, PostFault
from tests.fakes.rig import Rig

__all__ = ["lake"]

IN_DOUBT = pytest.mark.filterwarnings("ignore:run .* was aborted with:UserWarning")


def rows_of(sink: IcebergSink) -> int:
    """Return how many rows the table has."""
    table = sink._catalog.load_table("db.t")  # noqa: SLF001
    return int(table.scan().to_arrow().num_rows)


def wrong_catalog(lake: CliLake) -> IcebergSink:
    """Return the table as seen through a catalog of another name, which does not have it."""
    return IcebergSink(open_catalog("lake2", lake.properties), "db.t", "main")


def last_body(ledger: Ledger) -> Body:
    """Return what the last record of the run's log says now."""
    ledger.log.refresh()
    return ledger.log.records[-1].body


class HeldPost:
    """A post that is in flight while its driver is dead, and arrives later."""

    def __init__(self, lake: CliLake) -> None:
        self._held: list[tuple[Any, ...]] = []
        real = IcebergSink.post

        def hold(
            sink: IcebergSink,
            view: TableView,
            run_id: str,
            mark: RunMark,
            groups: list[StagedGroup],
        ) -> Outcome:
            self._held.append((sink, view, run_id, mark, groups))
            raise DriverDiedError

        self._real = real
        with mock.patch.object(IcebergSink, "post", hold), pytest.raises(DriverDiedError):
            lake.start("r", MemorySubmitter(range(20)))

    def arrive(self) -> Outcome:
        return self._real(*self._held.pop())


def test_an_abort_through_the_wrong_catalog_is_refused_while_a_post_is_in_flight(
    lake: CliLake,
) -> None:
    """The answer "no such table" proves nothing: it may be the wrong catalog."""
    sink = lake.make_table()
    held = HeldPost(lake)
    with pytest.raises(TableOutOfSightError) as caught:
        abort(lake.ledger("r"), lambda _identity: wrong_catalog(lake), "give up")
    assert "has 1 post without an answer" in str(caught.value)
    assert "--table-is-gone" in str(caught.value)
    ledger = lake.ledger("r")
    ledger.log.refresh()
    assert not ledger.log.is_aborted
    # The same abort against the right catalog is final: the post in flight is refused.
    done = abort(lake.ledger("r"), lambda _identity: sink, "give up")
    assert done == Aborted(posts=1)
    assert last_body(ledger) == Refused(intent_number=4)
    assert held.arrive() is Outcome.CONFLICT
    assert rows_of(sink) == 0


def test_an_abort_on_the_command_line_does_not_claim_success_when_it_is_refused(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run has landed and the catalog does not know the table: nothing is aborted."""
    sink = lake.make_table()
    die_before_receipt(lake)
    assert rows_of(sink) == 20
    wrong = [f"--catalog=uri=sqlite:///{lake.folder}/dev.db", "--catalog=type=sql"]
    wrong.append(f"--catalog=warehouse=file://{lake.folder}/dev")
    assert lake.call("abort", "r", "--yes", *wrong) == 1
    said = capsys.readouterr()
    assert "none can land any more" not in said.out
    assert "has 1 post without an answer" in said.err
    assert lake.call("abort", "r", "--yes", *lake.catalog_arguments) == 1
    assert "has landed as snapshot" in capsys.readouterr().err


@IN_DOUBT
def test_the_users_statement_that_the_table_is_gone_is_recorded(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run is aborted, the doubt is reported, and nothing that may have landed is deleted."""
    die_before_post(lake)
    lake.make_table()._catalog.drop_table("db.t")  # noqa: SLF001
    words = ("abort", "r", "--yes", *lake.catalog_arguments)
    assert lake.call(*words) == 1
    capsys.readouterr()
    assert lake.call(*words, "--table-is-gone", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["posts"], len(found["in_doubt"])) == (1, 1)
    assert "there is no such table" in found["in_doubt_because"]
    ledger = lake.ledger("r")
    ledger.log.refresh()
    assert ledger.log.abort is not None
    assert ledger.log.abort.table_is_gone
    keys, files = list((lake.folder / "store").rglob("*.keys")), lake.data_files()
    assert keys
    assert files
    assert lake.call("sweep", "r", "--yes", *lake.catalog_arguments) == 0
    assert "may be part of the table" in capsys.readouterr().out
    assert lake.data_files() == files
    assert list((lake.folder / "store").rglob("*.keys")) == []


@IN_DOUBT
def test_a_run_whose_catalog_and_table_are_gone_can_be_aborted_and_swept(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server is gone: if the user says so, neither abort nor sweep needs it."""
    die_before_post(lake)
    assert lake.call("abort", "r", "--yes") == 1  # How to reach its catalog is not known.
    dead = ["--catalog=type=rest", "--catalog=uri=http://127.0.0.1:9"]
    assert lake.call("abort", "r", "--yes", *dead) == 1
    capsys.readouterr()
    assert lake.call("abort", "r", "--yes", "--table-is-gone", *dead) == 0
    assert "1 post of this run may have landed" in capsys.readouterr().out
    assert lake.call("sweep", "r", "--yes", *dead) == 0
    assert list((lake.folder / "store").rglob("*.keys")) == []
    assert lake.data_files() != []


def test_keys_of_a_run_whose_table_is_gone_can_be_deleted(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys may be personal data; the lists of files stay in case the table comes back."""
    lake.start_and_die("r", MemorySubmitter(range(10), range(10, 20)))
    sink = lake.make_table()
    abort(lake.ledger("r"), lambda _identity: sink, "not needed")
    table = sink._catalog.load_table("db.t")  # noqa: SLF001
    place = table.metadata_location
    sink._catalog.drop_table("db.t")  # noqa: SLF001
    files = lake.data_files()
    assert files
    assert lake.call("sweep", "r", "--yes", *lake.catalog_arguments) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "there is no such table" in printed
    assert "staged files, and what lists them" in printed
    assert list((lake.folder / "store").rglob("*.keys")) == []
    assert lake.data_files() == files
    sink._catalog.register_table("db.t", place)  # noqa: SLF001
    assert sweep(lake.ledger("r"), lambda _identity: sink).data_files > 0
    assert lake.data_files() == []


@IN_DOUBT
def test_a_run_on_a_dropped_branch_ends_when_the_user_says_that_it_is_gone(lake: CliLake) -> None:
    """Nothing can be posted to a dropped branch, but it may come back with the old head."""
    main = lake.make_table()
    table = main._catalog.load_table("db.t")  # noqa: SLF001
    table.append(pa.table({"id": pa.array([-1], pa.int64())}))
    head = main._catalog.load_table("db.t").current_snapshot()  # noqa: SLF001
    assert head is not None
    manage = main._catalog.load_table("db.t").manage_snapshots()  # noqa: SLF001
    manage.create_branch(head.snapshot_id, "wap").commit()
    sink = IcebergSink(main._catalog, "db.t", "wap")  # noqa: SLF001
    die_before_post(lake, sink=sink, branch="wap")
    manage = main._catalog.load_table("db.t").manage_snapshots()  # noqa: SLF001
    manage.remove_branch("wap").commit()
    with pytest.raises(TableOutOfSightError, match="no branch 'wap'"):
        abort(lake.ledger("r"), lambda _identity: sink, "give up")
    done = abort(lake.ledger("r"), lambda _identity: sink, "give up", table_is_gone=True)
    assert len(done.in_doubt) == 1
    assert sweep(lake.ledger("r"), lambda _identity: sink).in_doubt > 0


@IN_DOUBT
def test_a_run_on_a_table_that_was_upgraded_since_can_be_aborted(lake: CliLake) -> None:
    """Holdfast does not write the new format; the outcome of the post is reported as in doubt."""
    sink = lake.make_table()
    die_before_post(lake)
    newer = UnsupportedTableError(table="lake.db.t", what="it has format v3", cure="write v2")
    with mock.patch.object(IcebergSink, "load", mock.Mock(side_effect=newer)):
        done = abort(lake.ledger("r"), lambda _identity: sink, "give up")
        assert (len(done.in_doubt), done.reason) == (1, "lake.db.t: it has format v3")
        swept = sweep(lake.ledger("r"), lambda _identity: sink)
    assert (swept.data_files, swept.in_doubt > 0) == (0, True)
    assert list((lake.folder / "store").rglob("*.keys")) == []


def lance_wedge(folder: Path) -> LanceRig:
    """Leave a run whose driver died before its post, and whose history was then removed."""
    rig = LanceRig(str(folder / "t.lance"))
    dies = mock.patch.object(LanceSink, "post", mock.Mock(side_effect=DriverDied))
    with dies, pytest.raises(DriverDied):
        rig.start()
    rig.time.sleep(1000)
    for number in (-2, -3):
        rig.make([number], mode="append")
    rig.dataset().cleanup_old_versions(older_than=dt.timedelta(0))
    return rig


@IN_DOUBT
def test_a_lance_run_whose_history_was_removed_can_be_aborted(tmp_path: Path) -> None:
    """It can neither be finished nor judged; the abort is recorded, and its files stay."""
    rig = lance_wedge(tmp_path)
    with pytest.raises(CommitUnknownError, match=r"abort the run with run.abort\(\)"):
        rig.start()
    done = abort(rig.ledger(), lambda _identity: rig.sink(), "cleaned away")
    assert len(done.in_doubt) == 1
    swept = sweep(rig.ledger(), lambda _identity: rig.sink())
    assert (swept.data_files, swept.in_doubt) == (0, 2)
    # A user who reads "aborted" starts over, and would get all rows twice if the run had landed.
    with pytest.raises(CommitUnknownError, match="aborted with a post in doubt"):
        rig.start()


class LateManifest:
    """A post whose last request, which creates a manifest, is on its way when its driver dies."""

    def __init__(self, rig: LanceRig) -> None:
        self._rig, self._manifests = rig, Path(rig.uri, "_versions")
        post, known = LanceSink.post, set(self._manifests.iterdir())

        def hold(*given: Any) -> Outcome:  # noqa: ANN401 - it passes them on.
            assert post(*given) is Outcome.LANDED
            (self._path,) = set(self._manifests.iterdir()) - known
            self._data = self._path.read_bytes()
            self._path.unlink()
            raise DriverDied

        with mock.patch.object(LanceSink, "post", hold), pytest.raises(DriverDied):
            rig.start()
        rig.time.sleep(1000)

    def arrive_below_an_overwrite(self) -> None:
        """Others replace the dataset and clean up; then the request arrives, at a free name."""
        self._rig.make([-5], mode="overwrite")
        self._rig.dataset().cleanup_old_versions(older_than=dt.timedelta(0))
        assert not self._path.exists()
        self._path.write_bytes(self._data)


def test_a_manifest_that_arrives_after_an_abort_is_not_taken_for_a_landing(tmp_path: Path) -> None:
    """The abort has proved that it cannot land; then others remove what the proof rested on."""
    rig = LanceRig(str(tmp_path / "t.lance"))
    late = LateManifest(rig)
    assert abort(rig.ledger(), lambda _identity: rig.sink(), "no time") == Aborted(posts=1)
    assert isinstance(last_body(rig.ledger()), Refused)
    late.arrive_below_an_overwrite()
    with pytest.raises(RunAbortedError):
        rig.start()
    assert sweep(rig.ledger(), lambda _identity: rig.sink()).in_doubt == 0
    assert rig.dataset().to_table()["id"].to_pylist() == [-5]


def test_a_manifest_that_arrives_after_a_look_is_not_taken_for_a_landing(tmp_path: Path) -> None:
    """The next driver has proved that it cannot land, and has died before it could post again."""
    rig = LanceRig(str(tmp_path / "t.lance"))
    late = LateManifest(rig)
    rig.make([-2], mode="append")
    dies = mock.patch.object(LanceSink, "new_snapshot_id", mock.Mock(side_effect=DriverDied))
    with dies, pytest.raises(DriverDied):
        rig.start()
    assert isinstance(last_body(rig.ledger()), Refused)
    rig.time.sleep(1000)
    late.arrive_below_an_overwrite()
    assert rig.start().outcome == "committed"
    rig.assert_each_row_once(foreign=[-5])


def test_a_clean_up_between_look_and_post_leaves_no_doubt(tmp_path: Path) -> None:
    """A healthy driver whose post was never sent says so in the log, and posts again."""
    rig = LanceRig(str(tmp_path / "t.lance"))

    def rival() -> None:
        rig.make([-2], mode="append")
        rig.make([-3], mode="append")
        rig.dataset().cleanup_old_versions(older_than=dt.timedelta(0))

    rig.start_while(rival)
    assert rig.posts == [Outcome.UNSENT, Outcome.LANDED]
    rig.assert_each_row_once(foreign=[-1, -2, -3])
    log = rig.ledger().log
    log.refresh()
    bodies = [record.body for record in log.records]
    assert sum(isinstance(body, Refused) for body in bodies) == 1
    assert isinstance(bodies[-1], Receipt)


@IN_DOUBT
def test_a_post_that_lands_after_an_abort_in_doubt_is_shown_as_landed() -> None:
    """The log gets its receipt, sweep keeps the files, and a start returns what has landed."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_DELAYED)
    rig.start_and_die()
    load = rig.table.load
    unknown = CommitUnknownError(table="t", run_id="r", reason="history is gone")
    with mock.patch.object(rig.table, "find_mark", mock.Mock(side_effect=unknown)):
        done = abort(rig.ledger(), lambda _identity: rig.table, "no time")
        assert len(done.in_doubt) == 1
        assert sweep(rig.ledger(), lambda _identity: rig.table) == Swept(
            data_files=0,
            ledger_objects=mock.ANY,
            in_doubt=mock.ANY,
            reason="history is gone",
        )
    rig.table.find_mark(load(), "other", "", {})  # The post in flight arrives.
    assert rig.table.ids == list(range(20))
    with pytest.raises(RunCommittedError):
        abort(rig.ledger(), lambda _identity: rig.table, "again")
    assert rig.start().outcome == "already_committed"
    assert sweep(rig.ledger(), lambda _identity: rig.table).data_files == 0
    assert rig.table.ids == list(range(20))


@IN_DOUBT
@pytest.mark.parametrize("arrives", [0, 1], ids=["the first", "the second"])
def test_a_sweep_keeps_the_files_of_each_post_that_may_still_land(arrives: int) -> None:
    """Two starts died as they posted, the second with copies of the first one's files.

    Whichever of the posts arrives after the sweep, the rows that it puts into the table are there.
    """
    rig, held = Rig(), list[Any]()

    def hold(*given: Any) -> Outcome:  # noqa: ANN401 - it keeps them.
        held.append(given)
        raise DriverDiedError

    with mock.patch.object(MemoryTable, "post", hold):
        for _ in range(2):
            rig.start_and_die()
            rig.time.sleep(72 * 3600.0)  # The files are old when the next start posts them.
    paths = [{path for group in change.adds for path in group.paths} for *_, change in held]
    assert paths[0].isdisjoint(paths[1])
    unknown = CommitUnknownError(table="t", run_id="r", reason="history is gone")
    with mock.patch.object(rig.table, "find_mark", mock.Mock(side_effect=unknown)):
        assert len(abort(rig.ledger(), lambda _identity: rig.table, "no time").in_doubt) == 2
        swept = sweep(rig.ledger(), lambda _identity: rig.table)
    assert (swept.data_files, swept.in_doubt) == (0, len(paths[0] | paths[1]))
    assert MemoryTable.post(*held[arrives]) is Outcome.LANDED
    assert rig.table.ids == list(range(20))


def test_an_abort_needs_no_table_if_all_posts_were_refused() -> None:
    """The log itself says that none has landed, so a missing table changes nothing."""
    rig = Rig()
    rig.table.post_faults.extend([PostFault.RIVAL_FIRST] * 100)
    with pytest.raises(Exception, match="other writers won"):
        rig.start()
    assert rig.log().doubtful == {}
    sink = mock.Mock(side_effect=CatalogUnavailableError(table="t", reason="away"))
    assert abort(rig.ledger(), sink, "too busy") == Aborted(posts=100)
    with pytest.raises(RunAbortedError):
        rig.start()
