"""A run that replaces rows: what goes is what was there when its rows came, once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.engine.cleanup import abort, plan_sweep, sweep
from holdfast.errors import (
    CommitConflictError,
    CommitRefusedError,
    EmptyOutputError,
    HoldfastError,
    RunCommittedError,
    RunMismatchError,
    SettingsError,
    StoreUnavailableError,
    TableChangedError,
)
from holdfast.ledger.parts import read_objects
from holdfast.model.coverage import Origin
from holdfast.model.identity import Identity
from holdfast.sinks.base import Change, Loss, Sink, TableView
from tests.fakes.memory_scan import MemoryScan
from tests.fakes.memory_storage import DriverDiedError
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.memory_table import MemoryTable, PostFault
from tests.fakes.rig import LAYOUT, Rig, two_partitions

ALL = list(range(20))
OLD, NEWER = [-1, -2, -3], [-10, -11]


def replacing() -> Rig:
    """Return a run that is about to replace a table's rows."""
    table = MemoryTable()
    table.foreign_rows(OLD)
    return Rig(table=table, mode="overwrite")


def start_until_it_ends(rig: Rig) -> None:
    """Start the script again until it returns, as a scheduler does."""
    for _ in range(5):
        try:
            rig.start(takeover="now")
        except (DriverDiedError, HoldfastError):  # noqa: PERF203 - it is the point.
            rig.storage.revive()
        else:
            return
    pytest.fail("it never ended")


def written(rig: Rig) -> list[set[str]]:
    """Return what each intent's post was to write."""
    return [
        set(read_objects(rig.storage, LAYOUT, intent.written)) if intent.written else set()
        for intent in rig.log().intents.values()
    ]


def test_the_rows_replace_those_that_were_there() -> None:
    """In one snapshot; the report and the receipt say what went."""
    rig = replacing()
    report = rig.start()
    assert (rig.table.ids, len(rig.table.data_snapshots)) == (ALL, 1)
    assert (report.replaced_files, report.replaced_rows) == (1, len(OLD))
    assert "replaced  3 rows in 1 file" in str(report)
    receipt = rig.log().receipt
    assert receipt is not None
    assert (receipt.removed_files, receipt.removed_rows) == (1, len(OLD))


def test_another_start_does_not_replace_what_came_since() -> None:
    """The run has landed: rows that others have added after it are theirs."""
    rig = replacing()
    rig.start()
    rig.table.foreign_rows(NEWER)
    report = rig.start()
    assert (report.outcome, report.replaced_rows) == ("already_committed", len(OLD))
    assert rig.table.ids == sorted([*NEWER, *ALL])


def test_a_kill_half_way_leaves_the_old_rows_and_keeps_the_work() -> None:
    """The old rows are readable until all new ones are there."""
    rig, submitter = replacing(), two_partitions()
    submitter.before_task[1] = rig.storage.kill
    rig.start_and_die(submitter)
    assert rig.table.ids == sorted(OLD)
    report = rig.start(takeover="now")
    assert report.kept_rows > 0
    assert rig.table.ids == ALL


@pytest.mark.parametrize("fault", [fault for fault in PostFault if "REFUSED" not in fault.name])
def test_however_a_post_ends_the_rows_are_replaced_once(fault: PostFault) -> None:
    """Rows of others that came before it go, those that come after it stay."""
    rig = replacing()
    rig.table.post_faults.append(fault)
    start_until_it_ends(rig)
    rig.table.arrive_late()
    assert (rig.table.ids, len(rig.table.data_snapshots)) == (ALL, 1)
    rig.table.foreign_rows(NEWER)
    start_until_it_ends(rig)
    rig.table.arrive_late()
    assert rig.table.ids == sorted([*NEWER, *ALL])


class ExpiredWhileRead(MemoryTable):
    """A table whose files are replaced and expired while the first loss is computed."""

    looks = 0

    def loss(self, view: TableView, change: Change, name: str) -> Loss:
        """Let the snapshot that is being read go, with its manifests."""
        self.looks += 1
        if self.looks == 1:
            self.snapshots.clear()
            self.head = None
            self.foreign_rows(NEWER)
        return super().loss(view, change, name)


class SilentStore(MemoryTable):
    """A table whose manifests cannot be read."""

    def loss(self, view: TableView, change: Change, name: str) -> Loss:  # noqa: ARG002
        """Raise, as a store does that is down."""
        raise StoreUnavailableError(uri="mem://metadata", reason="no answer")


def test_rows_that_expire_while_they_are_read_are_looked_for_again() -> None:
    """The new rows replace those that are there then, without another start."""
    table = ExpiredWhileRead()
    table.foreign_rows(OLD)
    report = Rig(table=table, mode="overwrite").start()
    assert (report.posts, report.replaced_rows, table.ids) == (1, len(NEWER), ALL)


def test_a_store_that_does_not_answer_is_named() -> None:
    """If the table is as it was, nobody has expired what could not be read."""
    table = SilentStore()
    table.foreign_rows(OLD)
    with pytest.raises(StoreUnavailableError, match="no answer"):
        Rig(table=table, mode="overwrite").start()
    assert table.ids == sorted(OLD)


def test_all_posts_are_counted() -> None:
    """Also those before a staged file was found missing, and its rows were computed again."""
    rig = replacing()

    def meddle() -> None:
        rig.table.foreign_append()
        (file, *_) = (path for path in rig.table.files if "foreign" not in path)
        rig.table.lost_files.append(file)

    rig.table.before_post = meddle
    report = rig.start()
    assert (report.posts, len(rig.table.posts), rig.table.ids) == (2, 2, ALL)


def test_a_refused_replace_leaves_the_old_rows() -> None:
    """Nothing is removed by a post that does not land."""
    rig = replacing()
    rig.table.post_faults.append(PostFault.REFUSED)
    with pytest.raises(CommitRefusedError):
        rig.start()
    assert rig.table.ids == sorted(OLD)


def test_rows_that_come_before_the_post_are_found_and_go() -> None:
    """What is removed is computed anew after a conflict, without a pause."""
    rig = replacing()
    rig.table.before_post = lambda: rig.table.foreign_rows(NEWER)
    report = rig.start()
    assert rig.table.ids == ALL
    assert (report.posts, rig.table.losses, rig.time.sleeps) == (2, 2, [])
    assert (report.replaced_files, report.replaced_rows) == (2, len(OLD) + len(NEWER))


def test_a_table_that_never_rests_ends_in_a_conflict() -> None:
    """Twenty times what it removes was computed again."""
    rig = replacing()
    rig.table.post_faults.extend([PostFault.RIVAL_FIRST] * 30)
    with pytest.raises(CommitConflictError, match="all 21 attempts"):
        rig.start()
    assert (rig.table.losses, rig.table.ids) == (21, sorted(OLD))
    rig.table.post_faults.clear()
    rig.start()
    assert rig.table.ids == ALL


def test_a_sweep_deletes_what_refused_posts_have_written_and_nothing_else() -> None:
    """What the landed one has written lists files of other writers."""
    rig = replacing()
    rig.table.before_post = rig.table.foreign_append
    rig.start()
    refused, landed = written(rig)
    assert refused
    assert landed
    sweep(rig.ledger(), lambda _identity: rig.table)
    assert set(rig.table.deleted_files) == refused
    assert rig.table.ids == ALL
    sweep(rig.ledger(), lambda _identity: rig.table)
    assert set(rig.table.deleted_files) == refused


def test_a_sweep_that_cannot_ask_the_table_plans_to_keep_what_landed() -> None:
    """The log alone says which post it was."""
    rig = replacing()
    rig.table.before_post = rig.table.foreign_append
    rig.start()
    refused, _ = written(rig)

    def no_catalog(_identity: Identity) -> Sink:
        raise SettingsError(what="no catalog", cure="name one")

    plan = plan_sweep(rig.ledger(), no_catalog)
    assert (plan.live, set(plan.data_files)) == (None, refused)


def test_a_sweep_after_an_abort_deletes_what_posts_have_written() -> None:
    """None has landed, and none can: all that is left of them goes."""
    rig = replacing()
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    rig.start_and_die()
    abort(rig.ledger(), lambda _identity: rig.table, "no longer wanted")
    (unsent,) = written(rig)
    assert unsent
    sweep(rig.ledger(), lambda _identity: rig.table)
    assert unsent <= set(rig.table.deleted_files)
    assert rig.table.ids == sorted(OLD)


def test_a_post_that_lands_after_a_take_over_keeps_what_it_has_written() -> None:
    """A sweep after that must not take a manifest that the table uses."""
    rig = replacing()
    rig.table.post_faults.append(PostFault.DIES_DELAYED)
    rig.start_and_die()
    start_until_it_ends(rig)
    assert (rig.table.ids, len(rig.table.data_snapshots)) == (ALL, 1)
    live = set(rig.table.data_snapshots[0].written)
    assert live
    sweep(rig.ledger(), lambda _identity: rig.table)
    assert not live.intersection(rig.table.deleted_files)


def test_a_landed_replace_is_not_aborted() -> None:
    """It died before its receipt, and the table shows it."""
    rig = replacing()
    rig.table.post_faults.append(PostFault.DIES_LANDED)
    rig.start_and_die()
    with pytest.raises(RunCommittedError):
        abort(rig.ledger(), lambda _identity: rig.table, "no longer wanted")
    assert rig.table.ids == ALL


@pytest.mark.parametrize("other", ["append", "overwrite_partitions"])
def test_the_same_run_id_in_another_mode_is_refused(other: str) -> None:
    """An append must not become an overwrite, nor the other way round."""
    rig = replacing()
    rig.start()
    with pytest.raises(RunMismatchError, match=f"its mode was 'overwrite', and is now '{other}'"):
        Rig.start(replace_mode(rig, other))


def replace_mode(rig: Rig, mode: str) -> Rig:
    """Return the same store and table, for a script that calls another verb."""
    other = Rig(table=rig.table, time=rig.time, mode=mode)
    other.storage = rig.storage
    return other


# ---- Rows that a run depends on


def test_a_run_that_is_told_to_raises_if_the_rows_have_changed() -> None:
    """Nothing is replaced, and the next start does not compute a row before it says so."""
    rig = replacing()
    rig.table.before_post = lambda: rig.table.foreign_rows(NEWER)
    rig.table.post_faults.append(PostFault.NEVER_ARRIVES)
    with pytest.raises(TableChangedError, match="no longer those of snapshot"):
        rig.start(if_table_changed="raise")
    assert rig.table.ids == sorted([*OLD, *NEWER])
    submitter = two_partitions()
    with pytest.raises(TableChangedError):
        rig.start(submitter)  # It was told once, for the whole run.
    assert submitter.plans == []


def test_a_snapshot_without_changes_changes_nothing() -> None:
    """What counts is which rows are there, not which snapshot shows them."""
    rig = replacing()
    rig.table.before_post = rig.table.foreign_append
    report = rig.start(if_table_changed="raise")
    assert (report.posts, rig.table.ids) == (2, ALL)


def test_a_run_is_based_on_the_snapshot_that_the_user_names() -> None:
    """Rows that came between that snapshot and the start are not in the input."""
    rig = replacing()
    read = rig.table.head
    rig.table.foreign_rows(NEWER)
    with pytest.raises(TableChangedError, match=f"snapshot {read}, which this run is based on"):
        rig.start(based_on=read)
    assert rig.table.ids == sorted([*OLD, *NEWER])
    rig.table.roll_back(read or 0)
    assert rig.start(based_on=read).rows == len(ALL)
    assert rig.table.ids == ALL


def test_a_run_is_not_based_on_two_snapshots() -> None:
    """The input of the second start was computed from other rows than that of the first."""
    rig, submitter = replacing(), two_partitions()
    read = rig.table.head
    submitter.before_task[1] = rig.storage.kill
    rig.start_and_die(submitter, based_on=read)
    rig.table.foreign_append()
    with pytest.raises(RunMismatchError, match=f"it was based on snapshot {read}, and is now"):
        rig.start(based_on=rig.table.head, takeover="now")


def test_a_run_does_not_depend_on_its_rows_from_its_second_start_on() -> None:
    """Rows that came after the first start would go, though the user says that they must not."""
    rig, submitter = replacing(), two_partitions()
    submitter.before_task[1] = rig.storage.kill
    rig.start_and_die(submitter)
    for asked in ({"if_table_changed": "raise"}, {"based_on": rig.table.head}):
        with pytest.raises(RunMismatchError, match="it did not depend on the rows"):
            rig.start(takeover="now", **asked)
    assert rig.table.ids == sorted(OLD)


def test_a_snapshot_that_is_gone_cannot_be_compared() -> None:
    """It was expired, or is another table's."""
    rig = replacing()
    with pytest.raises(TableChangedError, match="snapshot 77 is gone"):
        rig.start(based_on=77)


def test_a_scan_of_the_table_itself_binds_the_run_to_what_it_read() -> None:
    """Rows that others add meanwhile are not in the input, and must not go."""
    rig = replacing()
    origin = Origin(table_uuid="uuid-1", snapshot_id=rig.table.head, branch="main")
    scan = MemoryScan(ALL, origin=origin)
    rig.table.before_post = lambda: rig.table.foreign_rows(NEWER)
    with pytest.raises(TableChangedError, match="which this run is based on"):
        rig.scan(scan)
    assert rig.table.ids == sorted([*OLD, *NEWER])
    other = replacing()
    elsewhere = replace(origin, branch="other", snapshot_id=other.table.head)
    other.table.before_post = lambda: other.table.foreign_rows(NEWER)
    other.scan(MemoryScan(ALL, origin=elsewhere))
    assert other.table.ids == ALL


def test_no_rows_replace_all_only_if_the_user_says_so() -> None:
    """An input that is empty by mistake must not empty the table."""
    rig = replacing()
    with pytest.raises(EmptyOutputError, match="would remove all rows of lake"):
        rig.start(MemorySubmitter([]))
    assert rig.table.ids == sorted(OLD)
    report = rig.start(MemorySubmitter([]), allow_empty=True)
    assert (report.rows, report.replaced_rows, rig.table.ids) == (0, len(OLD), [])


# ---- Snapshot isolation: what others add meanwhile stays


def test_with_snapshot_isolation_rows_that_others_add_meanwhile_stay() -> None:
    """Those that were there when the run began go, also if they are read in a later start."""
    rig, submitter = replacing(), two_partitions()
    submitter.before_task[1] = rig.storage.kill
    rig.start_and_die(submitter, isolation_level="snapshot")
    rig.table.foreign_rows(NEWER)
    rig.table.before_post = lambda: rig.table.foreign_rows([-20])
    report = rig.start(isolation_level="snapshot", takeover="now")
    assert (report.posts, report.replaced_rows) == (2, len(OLD))
    assert rig.table.ids == sorted([-20, *NEWER, *ALL])


def test_with_snapshot_isolation_others_must_not_touch_the_old_rows() -> None:
    """New rows could not be told from old ones; asked to replace both, the run goes on."""
    rig = replacing()
    rig.table.before_post = lambda: rig.table.foreign_rewrite(NEWER)
    with pytest.raises(TableChangedError, match="is gone"):
        rig.start(isolation_level="snapshot")
    submitter = two_partitions()
    with pytest.raises(TableChangedError):
        rig.start(submitter, isolation_level="snapshot")
    assert (submitter.plans, rig.table.ids) == ([], sorted([*OLD, *NEWER]))
    report = rig.start()
    assert (report.kept_rows, rig.table.ids) == (len(ALL), ALL)


def test_snapshot_isolation_is_not_asked_for_from_a_second_start_on() -> None:
    """The first did not keep which rows were there; what came since would go or stay by chance."""
    rig, submitter = replacing(), two_partitions()
    submitter.before_task[1] = rig.storage.kill
    rig.start_and_die(submitter)
    with pytest.raises(RunMismatchError, match='isolation_level was "serializable"'):
        rig.start(isolation_level="snapshot", takeover="now")


def test_a_run_that_depends_on_its_rows_lets_others_add_some_with_snapshot_isolation() -> None:
    """Its input was computed from rows that are all still there, and only these go."""
    rig = replacing()
    read = rig.table.head
    rig.table.foreign_rows(NEWER)
    rig.start(based_on=read, isolation_level="snapshot")
    assert rig.table.ids == sorted([*NEWER, *ALL])
