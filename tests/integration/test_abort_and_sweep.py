"""Aborting a run, and deleting what it left: only that, and only when it has ended."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.errors import (
    LedgerDamagedError,
    RunAbortedError,
    RunCommittedError,
    RunUnfinishedError,
    SettingsError,
    StoreUnavailableError,
    TransformError,
)
from holdfast.ledger.run_log import RunLog
from holdfast.model.records import Body, Receipt, Record, open_json, seal_json
from tests.fault_proxy import Fault, fault_proxy
from tests.integration.process_watched import ROWS, RUN, WatchedTable
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

ALL = list(range(ROWS))


def half_done(watched: WatchedTable, run_id: str = RUN) -> None:
    """Leave a run with one task's rows in a table file, and some of the other's in a chunk."""
    with pytest.raises(TransformError):
        watched.append(run_id=run_id, fails_at=[ROWS - 4])


def data_files(watched: WatchedTable) -> set[str]:
    """Return all data files in the table's folder, of any writer."""
    found = watched.storage.list(watched.location())
    return {uri for uri in found if uri.endswith(".parquet")}


def live_files(watched: WatchedTable) -> set[str]:
    """Return the data files that the table's current snapshot refers to."""
    return {row["file_path"] for row in watched.lake.table(f"{watched.name}.files").collect()}


def test_an_aborted_run_is_never_started_again(watched: WatchedTable) -> None:
    """Abort is final, and safe to call twice; the table is as it was."""
    half_done(watched)
    done = watched.computed()
    watched.run().abort(reason="wrong model")
    watched.run().abort()
    for _ in range(2):
        with pytest.raises(RunAbortedError, match="wrong model"):
            watched.append()
    assert watched.computed() == done
    assert watched.snapshots() == []
    assert watched.run().status().state == "aborted"


def test_a_run_that_was_never_started_is_not_aborted_or_swept(watched: WatchedTable) -> None:
    """Its id is probably mistyped, and the run that was meant would go on; the id stays free."""
    for call in (watched.run().abort, watched.run().sweep):
        with pytest.raises(SettingsError, match="there is no run"):
            call()
    assert watched.append().outcome == "committed"


def test_a_sweep_after_the_commit_leaves_the_log_and_a_readable_table(
    watched: WatchedTable,
) -> None:
    """Left-overs go, what the table refers to stays; the run is still known as finished."""
    half_done(watched)
    first = watched.append()
    live = live_files(watched)
    swept = watched.run().sweep()
    assert swept.ledger_objects > 0
    layout = watched.layout()
    left = watched.storage.list(layout.folder)
    log = [uri for uri in left if uri.startswith(f"{layout.log}/")]
    assert len(log) == len(watched.kinds()) > 0
    # Besides the log: what the run is, and the list of the files that landed.
    assert len(left) == len(log) + 2
    assert layout.identity in left
    assert data_files(watched) == live_files(watched) == live
    watched.lake.sql(f"REFRESH TABLE {watched.name}")
    assert watched.numbers() == ALL
    assert watched.run().status().state == "committed"
    again = watched.append()
    assert (again.outcome, again.snapshot_id) == ("already_committed", first.snapshot_id)
    assert watched.run().sweep() == hf.Swept(data_files=0, ledger_objects=0)
    assert watched.computed() == ALL


def test_a_sweep_after_an_abort_deletes_what_that_run_has_staged_and_nothing_else(
    watched: WatchedTable,
) -> None:
    """Files of the table, of runs under way and of other writers stay where they are."""
    watched.append(run_id="landed")
    half_done(watched, "other")
    stranger = f"{watched.location()}/data/stranger.parquet"
    watched.storage.create(stranger, b"not ours")
    kept = data_files(watched)
    half_done(watched, "given up")
    staged = data_files(watched) - kept
    assert staged
    watched.run("given up").abort()
    assert data_files(watched) == kept | staged  # An abort deletes nothing.
    swept = watched.run("given up").sweep()
    assert swept.data_files >= len(staged)  # Manifests count as well.
    assert data_files(watched) == kept
    assert watched.numbers() == ALL
    assert watched.append(run_id="other").outcome == "committed"
    assert watched.numbers() == sorted([*ALL, *ALL])
    assert watched.run("given up").sweep().data_files == 0


def test_a_run_that_was_aborted_and_swept_still_shows_its_state(watched: WatchedTable) -> None:
    """What a seal listed is deleted with the rest; the log alone must be enough."""
    for _ in range(2):  # The second start seals what the first has done.
        half_done(watched)
    assert "Seal" in watched.kinds()
    watched.run().abort()
    watched.run().sweep()
    assert watched.run().status().state == "aborted"
    assert [status.state for status in hf.runs(**watched.ledger)] == ["aborted"]


@pytest.mark.parametrize("where", ["elsewhere", "beside", "above"])
def test_a_path_outside_the_table_is_refused_and_nothing_is_deleted(
    watched: WatchedTable, where: str
) -> None:
    """A task record that names a file outside the table does not permit its deletion.

    Method: one record of the run is forged, digest and all.
    """
    half_done(watched)
    location = watched.location()
    victim = {
        "elsewhere": f"{watched.ledger['store']}-victim/data.parquet",
        # The table's own folder is a prefix of it, as a text.
        "beside": f"{location}-victim/data.parquet",
        "above": f"{location}/../victim/data.parquet",
    }[where]
    storage = watched.storage
    plain = victim.replace("/rows/../", "/")
    storage.create(plain, b"precious")
    forge(watched, victim)
    files = data_files(watched)
    watched.run().abort()
    with pytest.raises(LedgerDamagedError, match="is outside"):
        watched.run().sweep()
    assert storage.get(plain) == b"precious"
    assert data_files(watched) == files


def forge(watched: WatchedTable, path: str) -> None:
    """Let a task record of the run name another file."""
    storage = watched.storage
    for uri in storage.list(watched.layout().tasks):
        if uri.endswith(".json"):
            content = open_json(storage.get(uri))
            if content["groups"]:
                content["groups"][0]["files"][0][0] = path
                storage.delete([uri])
                storage.create(uri, seal_json(content))
                return
    pytest.fail("no task record with files")


def test_a_committed_run_cannot_be_aborted(watched: WatchedTable) -> None:
    """The error names the snapshot; the run stays committed."""
    landed = watched.append()
    with pytest.raises(RunCommittedError) as caught:
        watched.run().abort()
    assert caught.value.snapshot_id == landed.snapshot_id
    assert watched.run().status().state == "committed"
    assert watched.append().outcome == "already_committed"


def test_a_post_that_is_on_its_way_cannot_land_after_abort_and_sweep(
    watched: WatchedTable, stack: Stack
) -> None:
    """Its files are gone by then: the catalog must refuse it, and the driver's error says why.

    Method: a proxy holds the driver's post back while the run is aborted and swept.
    """
    watched.lake.sql(f"CREATE TABLE {watched.name} (n bigint) USING iceberg")
    watched.lake.sql(f"INSERT INTO {watched.name} VALUES (100)")
    swept: list[hf.Swept] = []
    direct = stack.rest_catalog_properties()

    def give_up() -> None:  # In a thread of the proxy, where no session is active.
        to = hf.IcebergTable(f"{watched.namespace}.rows", catalog=direct)
        watched.run().abort(to=to, reason="a test")
        swept.append(watched.run().sweep(to=to))

    with fault_proxy(stack.rest.uri) as proxy:
        proxy.faults = [Fault(before=give_up)]
        catalog = {**direct, "uri": proxy.uri}
        with pytest.raises(RunAbortedError, match="a test"):
            watched.append(to=hf.IcebergTable(f"{watched.namespace}.rows", catalog=catalog))
        assert proxy.commits == [409]  # It was on its way, and refused.
    assert swept[0].data_files > 0
    assert watched.numbers() == [100]
    assert watched.snapshots() == []
    assert data_files(watched) == live_files(watched)


def test_a_sweep_keeps_what_landed_though_its_receipt_was_lost(
    watched: WatchedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table's mark decides, not only the ledger: no file of a snapshot is ever deleted."""
    append = RunLog.append

    def lose_receipt(self: RunLog, body: Body) -> Record:
        if isinstance(body, Receipt):
            raise StoreUnavailableError(uri="the receipt", reason="lost by the test")
        return append(self, body)

    with monkeypatch.context() as patch:
        patch.setattr(RunLog, "append", lose_receipt)
        with pytest.raises(StoreUnavailableError):
            watched.append()
    live = live_files(watched)
    with pytest.raises(RunCommittedError):
        watched.run().abort()
    with pytest.raises(RunUnfinishedError):  # Nothing records yet that it is finished.
        watched.run().sweep()
    assert watched.append().outcome == "already_committed"
    watched.run().sweep()
    assert live_files(watched) == live
    assert data_files(watched) >= live
    assert watched.numbers() == ALL
