"""Abort and sweep while a post has no answer: with the table in view they end, else they refuse."""

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
from holdfast.model.records import Receipt, Refused
from holdfast.model.work import StagedGroup
from holdfast.sinks.base import Outcome, RunMark, TableView
from holdfast.sinks.iceberg.catalog import open_catalog
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.sinks.lance.sink import LanceSink
from tests.fakes.cli_lake import CliLake, die_before_post, die_before_receipt, lake
from tests.fakes.lance_rig import DriverDied, LanceRig
from tests.fakes.memory_storage import DriverDiedError
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.memory_table import PostFault
from tests.fakes.rig import Rig

__all__ = ["lake"]

IN_DOUBT = pytest.mark.filterwarnings("ignore:run .* was aborted with:UserWarning")


def rows_of(sink: IcebergSink) -> int:
    """Return how many rows the table has."""
    table = sink._catalog.load_table("db.t")  # noqa: SLF001
    return int(table.scan().to_arrow().num_rows)


def wrong_catalog(lake: CliLake) -> IcebergSink:
    """Return the table as a catalog of another name shows it: not at all."""
    return IcebergSink(open_catalog("lake2", lake.properties), "db.t", "main")


class HeldPost:
    """A post that is under way while its driver is gone, and arrives later."""

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


def test_an_abort_through_the_wrong_catalog_is_refused_while_a_post_is_under_way(
    lake: CliLake,
) -> None:
    """The answer "no such table" proves nothing: the catalog may be another one."""
    sink = lake.make_table()
    held = HeldPost(lake)
    with pytest.raises(TableOutOfSightError) as caught:
        abort(lake.ledger("r"), lambda _identity: wrong_catalog(lake), "give up")
    assert "has 1 post without an answer" in str(caught.value)
    assert "--table-is-gone" in str(caught.value)
    ledger = lake.ledger("r")
    ledger.log.refresh()
    assert not ledger.log.is_aborted
    # The same abort against the right catalog ends it for good: what was under way is refused.
    done = abort(lake.ledger("r"), lambda _identity: sink, "give up")
    assert done == Aborted(posts=1)
    assert held.arrive() is Outcome.CONFLICT
    assert rows_of(sink) == 0


def test_the_command_line_says_what_happened_and_not_what_was_hoped_for(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that has landed, and a catalog that knows no such table: nothing is given up."""
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
def test_the_users_word_that_the_table_is_gone_is_recorded(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then the run is given up, the doubt is told, and nothing that may have landed is deleted."""
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
def test_a_catalog_that_is_gone_with_its_table_does_not_keep_a_run_for_ever(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server was switched off: with the user's word, neither abort nor sweep asks for it."""
    die_before_post(lake)
    assert lake.call("abort", "r", "--yes") == 1  # How its catalog is reached is not known.
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
    """Keys may be personal data; what lists the files stays, for when the table comes back."""
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
def test_a_run_on_a_branch_that_was_dropped_ends_by_the_users_word(lake: CliLake) -> None:
    """Nothing can be posted to a branch that is gone; but it may come back with the old head."""
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
def test_a_run_on_a_table_that_was_upgraded_since_can_be_given_up(lake: CliLake) -> None:
    """Holdfast does not write the new format; what became of the post is told as in doubt."""
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
    """Leave a run whose driver died before its post, and whose history was then cleaned away."""
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
def test_a_lance_run_whose_history_was_cleaned_away_can_be_given_up(tmp_path: Path) -> None:
    """It can neither be finished nor judged; the abort is recorded, and its files stay."""
    rig = lance_wedge(tmp_path)
    with pytest.raises(CommitUnknownError, match=r"abort the run with run.abort\(\)"):
        rig.start()
    done = abort(rig.ledger(), lambda _identity: rig.sink(), "cleaned away")
    assert len(done.in_doubt) == 1
    swept = sweep(rig.ledger(), lambda _identity: rig.sink())
    assert (swept.data_files, swept.in_doubt) == (0, 2)
    # Whoever is told "aborted" starts over, and would have all rows twice if it had landed.
    with pytest.raises(CommitUnknownError, match="aborted with a post in doubt"):
        rig.start()


def test_clean_ups_between_look_and_post_leave_no_doubt(tmp_path: Path) -> None:
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
    assert sum(isinstance(one, Refused) for one in bodies) == 1
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
    rig.table.find_mark(load(), "other", "", {})  # What was under way arrives.
    assert rig.table.ids == list(range(20))
    with pytest.raises(RunCommittedError):
        abort(rig.ledger(), lambda _identity: rig.table, "again")
    assert rig.start().outcome == "already_committed"
    assert sweep(rig.ledger(), lambda _identity: rig.table).data_files == 0
    assert rig.table.ids == list(range(20))


def test_of_posts_that_were_refused_an_abort_needs_no_table() -> None:
    """The log itself says that none has landed, so a table that is gone changes nothing."""
    rig = Rig()
    rig.table.post_faults.extend([PostFault.RIVAL_FIRST] * 100)
    with pytest.raises(Exception, match="other writers won"):
        rig.start()
    assert rig.log().doubtful == {}
    sink = mock.Mock(side_effect=CatalogUnavailableError(table="t", reason="away"))
    assert abort(rig.ledger(), sink, "too busy") == Aborted(posts=100)
    with pytest.raises(RunAbortedError):
        rig.start()
