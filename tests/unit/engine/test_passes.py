"""Resume: a start continues where others died, and no row is paid for twice, lost or doubled."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from holdfast.engine import passes
from holdfast.engine.options import VerifyInput
from holdfast.errors import HoldfastError, JobFailedError, LedgerDamagedError, TransformError
from holdfast.model.records import Plan
from holdfast.model.work import TaskRecord
from holdfast.storage.port import StorageError
from holdfast.worker.reports import TaskReport
from tests.fakes.logs import job_ledger, task_records
from tests.fakes.memory_storage import MemoryStorage, bit_flipped
from tests.fakes.memory_submitter import MemorySubmitter, partition
from tests.fakes.rig import LAYOUT, Rig, durable_ids, two_partitions
from tests.fakes.watched_transform import WatchedTransform

ALL = list(range(20))
# Every batch of two rows is made durable at once, as its own chunk.
CHUNKS: dict[str, Any] = {"batch_rows": 2, "checkpoint_every": 1e-9}
# Only full files are made durable; `rig_with_files` makes them full after four rows.
FILES: dict[str, Any] = {"batch_rows": 2, "checkpoint_every": None}


def rig_with_files() -> Rig:
    """Return a run whose files are full after four rows."""
    rig = Rig()
    rig.table.file_rows = 4
    return rig


def record_of(rig: Rig, first: int) -> TaskRecord:
    """Return the task record whose keys begin with an id."""
    spans = {record.coverage.span: record for record in task_records(job_ledger(rig.storage))}
    (found,) = [record for span, record in spans.items() if span is not None and span[0] == first]
    return found


def jobs(rig: Rig) -> list[str]:
    """Return which jobs were planned, in order."""
    return [record.body.job for record in rig.log().records if isinstance(record.body, Plan)]


def test_a_driver_that_dies_between_two_tasks_leaves_the_rows_of_the_first_done() -> None:
    """The next start computes only the second task's rows, and reports what it kept."""
    rig, submitter, first, second = Rig(), two_partitions(), WatchedTransform(), WatchedTransform()
    first.at[3] = lambda: time.sleep(0.01)
    submitter.after_task[0] = rig.storage.kill
    rig.start_and_die(submitter, transform=first)
    driven = rig.start(transform=second)
    assert second.ids == list(range(10, 20))
    assert (driven.kept_rows, driven.passes, rig.table.ids) == (10, 1, ALL)
    assert driven.kept_seconds >= 0.01


def test_a_driver_that_dies_after_its_job_leaves_all_rows_done() -> None:
    """No seal and no report: the task logs alone show that nothing is left to compute."""
    rig, first, second = Rig(), two_partitions(), two_partitions()
    first.after_job = rig.storage.kill
    rig.start_and_die(first)
    assert rig.kinds() == ["Claim", "Plan"]
    driven = rig.start(second)
    assert (second.plans, driven.kept_rows, rig.table.ids) == ([], 20, ALL)
    assert [seal.complete for seal in rig.log().seals.values()] == [False, True]


def test_a_driver_that_dies_after_the_complete_seal_leaves_only_the_commit() -> None:
    """No job is run and no task log is read; the input is compared."""
    dry, rig, submitter = Rig(), Rig(), two_partitions()
    dry.start()
    rig.storage.writes_left = dry.storage.written.index(LAYOUT.record(4))
    rig.start_and_die()
    assert (rig.kinds(), rig.log().seals[3].complete) == (["Claim", "Plan", "Seal"], True)
    rig.storage.calls.clear()
    driven = rig.start(submitter)
    assert (submitter.plans, driven.kept_rows, driven.input_compared) == ([], 20, "keys")
    tasks = LAYOUT.job_tasks(rig.log().task_folders[1])
    assert tasks not in rig.storage.names_called("list")
    assert rig.kinds()[3:] == ["Claim", "Intent", "Receipt"]
    assert rig.table.ids == ALL


def test_chunks_of_a_dead_task_are_replayed_without_the_transform() -> None:
    """A kill in the middle of a task costs the current batch; the rows before it are done."""
    rig, first, second = Rig(), WatchedTransform(), WatchedTransform()
    first.at[7] = rig.storage.kill
    rig.start_and_die(transform=first, **CHUNKS)
    assert (first.ids, rig.table.files) == (list(range(6)), {})
    submitter = two_partitions()
    driven = rig.start(submitter, transform=second, **CHUNKS)
    assert second.ids == list(range(6, 20))
    assert (jobs(rig)[1:], len(submitter.replays)) == (["rows", "replay"], 1)
    assert (driven.kept_rows, rig.sealed().waiting, rig.table.ids) == (6, (), ALL)


@pytest.mark.parametrize(("least", "tasks"), [(1, 2), (1 << 30, 1)], ids=["large", "small"])
def test_a_replay_is_split_up_unless_its_files_would_be_small(
    least: int, tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of a long job nearly all rows may wait in chunks: every core gets a share."""
    monkeypatch.setattr(passes, "_REPLAY_ITEM_BYTES_MIN", least)
    rig, first, submitter = Rig(), WatchedTransform(), two_partitions()
    first.at[17] = rig.storage.kill
    rig.start_and_die(transform=first, **CHUNKS)
    rig.storage.delete([uri for uri in rig.storage.objects if "parquet" in uri])
    driven = rig.start(submitter, transform=WatchedTransform(), **CHUNKS)
    replayed = [record for record in task_records(job_ledger(rig.storage)) if record.supersedes]
    by_replay = {record.log for record in replayed if "/replay/" in record.name}
    assert (len(by_replay), driven.passes) == (tasks, 2)
    assert rig.table.ids == ALL


def test_when_every_row_is_in_a_chunk_nothing_is_computed_at_all() -> None:
    """The only task died just before it closed its file: only the replay is left."""
    dry, rig, submitter = Rig(), Rig(), MemorySubmitter(range(10))
    dry.start(submitter, transform=WatchedTransform(), **CHUNKS)
    (cut,) = [record for record in task_records(job_ledger(dry.storage)) if record.groups]
    rig.storage.writes_left = dry.storage.written.index(LAYOUT.task_record(cut.name))
    # The first attempts of both starts have the same number, as in Spark.
    rig.start_and_die(MemorySubmitter(range(10)), transform=WatchedTransform(), **CHUNKS)
    transform = WatchedTransform()
    driven = rig.start(MemorySubmitter(range(10)), transform=transform, **CHUNKS)
    assert (transform.ids, jobs(rig), driven.kept_rows) == ([], ["rows", "replay"], 10)
    assert rig.table.ids == list(range(10))


@pytest.mark.slow_unit
@pytest.mark.parametrize("options", [CHUNKS, FILES], ids=["chunks", "files"])
def test_a_kill_before_any_write_of_a_start_costs_no_durable_row(options: dict[str, Any]) -> None:
    """Whichever write is the last: the next start computes only what is missing."""
    dry = rig_with_files()
    dry.start(transform=WatchedTransform(), **options)
    for writes in range(len(dry.storage.written)):
        rig, transform = rig_with_files(), WatchedTransform()
        rig.storage.writes_left = writes
        rig.start_and_die(transform=WatchedTransform(), **options)
        durable = durable_ids(rig)
        driven = rig.start(transform=transform, **options)
        assert sorted(transform.ids) == sorted(set(ALL) - durable)
        assert driven.kept_rows == (0 if driven.outcome == "already_committed" else len(durable))
        assert (rig.table.ids, len(rig.table.data_snapshots)) == (ALL, 1)


def test_a_record_that_a_zombie_writes_after_the_seal_does_not_count() -> None:
    """Its task continues after its driver died; a later seal must not count its rows too."""
    rig, first, second = Rig(), two_partitions(), two_partitions()
    first.before_task[1] = rig.storage.kill
    rig.start_and_die(first)
    zombie = first.plans[0]
    second.before_task[0] = lambda: zombie.run([partition(range(10, 20))], place=1, attempt=99)
    second.after_job = rig.storage.kill
    rig.start_and_die(second)
    written = [record.log for record in task_records(job_ledger(rig.storage))]
    assert len(written) == 3  # The zombie did write.
    driven = rig.start()
    assert (driven.kept_rows, driven.dropped_rows, rig.table.ids) == (20, 0, ALL)
    assert {record.claim for record in rig.sealed().records} == {1, 3}


def test_a_zombie_of_an_earlier_pass_does_not_count_either() -> None:
    """Each pass is sealed before the next one begins, so a late twin adds nothing to it."""
    rig, submitter, transform = Rig(), two_partitions(), WatchedTransform()
    late = MemoryStorage()

    def fail_and_leave_a_twin() -> None:
        ledger = replace(submitter.plans[0].ledger, storage=late)
        twin = replace(submitter.plans[0], ledger=ledger, transform=None)
        twin.run([partition(range(10, 20))], place=1, attempt=99)
        transform.at[15] = write_late_and_die
        raise ConnectionError("503")

    def write_late_and_die() -> None:
        rig.storage.objects |= late.objects
        rig.storage.kill()

    transform.at[15] = fail_and_leave_a_twin
    rig.start_and_die(submitter, transform=transform, **CHUNKS)
    driven = rig.start(transform=WatchedTransform(), **CHUNKS)
    assert (driven.dropped_rows, rig.table.ids) == (0, ALL)
    assert not [record.log for record in rig.sealed().records if record.log.endswith("99")]


def test_rows_that_a_twin_has_done_too_are_dropped_and_reported() -> None:
    """Both attempts ended before the driver died: one of them counts, and the report says so."""
    rig, submitter, twins = Rig(), two_partitions(), MemoryStorage()

    def finish_twin_and_die() -> None:
        ledger = replace(submitter.plans[0].ledger, storage=twins)
        twin = replace(submitter.plans[0], ledger=ledger)
        twin.run([partition(range(10, 20))], place=1, attempt=99)
        rig.storage.objects |= twins.objects
        rig.storage.kill()

    submitter.after_job = finish_twin_and_die
    rig.start_and_die(submitter)
    driven = rig.start()
    assert (driven.kept_rows, driven.dropped_rows, rig.table.ids) == (20, 10, ALL)


@pytest.mark.parametrize("verify_input", ["keys", "rows", False])
def test_a_second_attempt_leaves_a_partition_with_durable_rows_to_the_next_pass(
    *, verify_input: VerifyInput
) -> None:
    """Spark repeats a task that lost its store for a moment: its finished rows are kept."""
    rig, transform = Rig(), WatchedTransform()
    transform.at[7] = lambda: rig.storage.failures.update(size=1)
    driven = rig.start(transform=transform, verify_input=verify_input, **CHUNKS)
    assert driven.passes == 3  # Rows, the rows that were left, and the replay.
    assert sorted(transform.ids) == sorted([*ALL, 6, 7])
    assert rig.table.ids == ALL


@pytest.mark.parametrize("lost", ["file", "manifest", "keys"])
def test_only_work_that_lost_an_object_is_done_again(lost: str) -> None:
    """A clean-up deleted one object: exactly the rows of that record are computed again."""
    rig, submitter, transform = rig_with_files(), two_partitions(), WatchedTransform()
    submitter.after_job = rig.storage.kill
    rig.start_and_die(submitter, transform=WatchedTransform(), **FILES)
    record = record_of(rig, 4)
    if lost == "keys":
        del rig.storage.objects[LAYOUT.keys(record.name)]
    else:
        group = record.groups[0]
        rig.table.lost_files.append(group.path if lost == "manifest" else group.files[0].path)
    driven = rig.start(transform=transform, **FILES)
    assert transform.ids == [4, 5, 6, 7]
    assert (driven.withdrawn_rows, driven.kept_rows, rig.table.ids) == (4, 16, ALL)


def test_a_lost_chunk_costs_its_own_rows() -> None:
    """The other chunks of the same task are still replayed."""
    rig, first, transform = Rig(), WatchedTransform(), WatchedTransform()
    first.at[9] = rig.storage.kill
    rig.start_and_die(transform=first, **CHUNKS)
    del rig.storage.objects[LAYOUT.chunk(record_of(rig, 2).name)]
    driven = rig.start(transform=transform, **CHUNKS)
    assert transform.ids == [2, 3, 8, 9, *range(10, 20)]
    assert (driven.withdrawn_rows, driven.kept_rows, rig.table.ids) == (2, 6, ALL)


def test_chunks_replace_the_lost_file_that_superseded_them() -> None:
    """The file is gone, but not its chunks: its rows are replayed, and none is computed again."""
    rig, submitter, transform = Rig(), two_partitions(), WatchedTransform()
    submitter.after_job = rig.storage.kill
    rig.start_and_die(submitter, transform=WatchedTransform(), **CHUNKS)
    rig.table.lost_files.append(min(rig.table.files))
    driven = rig.start(transform=transform, **CHUNKS)
    assert (transform.ids, jobs(rig)[1:], driven.kept_rows) == ([], ["replay"], 20)
    assert rig.table.ids == ALL


def test_a_chunk_that_is_lost_with_the_file_that_replaced_it_is_done_again() -> None:
    """The other chunks of that file are replayed."""
    rig, submitter, transform = Rig(), two_partitions(), WatchedTransform()
    submitter.after_job = rig.storage.kill
    rig.start_and_die(submitter, transform=WatchedTransform(), **CHUNKS)
    rig.table.lost_files.append(min(rig.table.files))
    del rig.storage.objects[LAYOUT.chunk(record_of(rig, 2).name)]
    driven = rig.start(transform=transform, **CHUNKS)
    assert (transform.ids, driven.withdrawn_rows, rig.table.ids) == ([2, 3], 2, ALL)


@pytest.mark.parametrize("kind", ["keys", "chunk"])
def test_an_object_of_another_size_counts_as_lost(kind: str) -> None:
    """A truncated upload is found before its rows are needed."""
    rig, first, transform = Rig(), WatchedTransform(), WatchedTransform()
    first.at[9] = rig.storage.kill
    rig.start_and_die(transform=first, **CHUNKS)
    record = record_of(rig, 2)
    uri = LAYOUT.keys(record.name) if kind == "keys" else LAYOUT.chunk(record.name)
    rig.storage.objects[uri] = rig.storage.objects[uri][:-1]
    driven = rig.start(transform=transform, **CHUNKS)
    assert (transform.ids[:2], driven.withdrawn_rows, rig.table.ids) == ([2, 3], 2, ALL)


def test_a_replaced_record_is_not_missed() -> None:
    """The keys of its rows are in the record that replaced it, and the rows in that one's files."""
    rig, submitter, transform = Rig(), two_partitions(), WatchedTransform()
    submitter.after_job = rig.storage.kill
    rig.start_and_die(submitter, transform=WatchedTransform(), **CHUNKS)
    name = record_of(rig, 4).name
    for uri in (LAYOUT.keys(name), LAYOUT.chunk(name)):
        del rig.storage.objects[uri]
    rig.storage.damage[LAYOUT.task_record(name)] = bit_flipped
    driven = rig.start(transform=transform, **CHUNKS)
    assert (transform.ids, driven.withdrawn_rows, rig.table.ids) == ([], 0, ALL)


def test_what_a_record_replaced_counts_again_if_the_record_has_lost_its_keys() -> None:
    """Without keys, what its file covers is unknown; the chunks have theirs, and are replayed."""
    rig, submitter, transform = Rig(), two_partitions(), WatchedTransform()
    submitter.after_job = rig.storage.kill
    rig.start_and_die(submitter, transform=WatchedTransform(), **CHUNKS)
    cut = next(record for record in task_records(job_ledger(rig.storage)) if record.replaces)
    del rig.storage.objects[LAYOUT.keys(cut.name)]
    driven = rig.start(transform=transform, **CHUNKS)
    assert (transform.ids, driven.withdrawn_rows, rig.table.ids) == ([], 0, ALL)


def test_a_failing_row_leaves_other_tasks_and_earlier_batches_done() -> None:
    """The error names the row; the next start pays for its batch and the batches after it."""
    rig, first, second = Rig(), WatchedTransform(), WatchedTransform()
    first.fails_at = {5}
    with pytest.raises(TransformError, match=r"row 5 is bad.*\(id=4\) to \(id=5\)"):
        rig.start(transform=first, retries=0, **CHUNKS)
    assert sorted(first.ids) == [0, 1, 2, 3, *range(10, 20)]
    assert (rig.table.data_snapshots, rig.kinds()[-1]) == ([], "Stop")
    driven = rig.start(transform=second, **CHUNKS)
    assert (second.ids, driven.kept_rows, rig.table.ids) == (list(range(4, 10)), 14, ALL)


def test_a_row_that_fails_once_is_tried_again_in_the_next_pass() -> None:
    """A brief service outage costs a pass, not the start."""
    rig, transform = Rig(), WatchedTransform()

    def fail_once() -> None:
        raise ConnectionError("503")

    transform.at[5] = fail_once
    driven = rig.start(transform=transform, **CHUNKS)
    assert sorted(transform.ids) == ALL
    assert (driven.passes, driven.kept_rows, rig.table.ids) == (3, 0, ALL)


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_a_row_that_keeps_failing_is_given_up_after_the_retries(retries: int) -> None:
    """Each pass gets a little further, so only the number of retries ends it."""
    rig, transform = Rig(), WatchedTransform()

    def fail_at(row: int) -> None:
        transform.at[row + 2] = lambda: fail_at(row + 2)
        raise ConnectionError("503")

    transform.at[2] = lambda: fail_at(2)
    with pytest.raises(TransformError, match="503"):
        rig.start(MemorySubmitter(range(20)), transform=transform, retries=retries, **CHUNKS)
    assert len(jobs(rig)) == retries + 1
    assert rig.table.data_snapshots == []


def test_retries_end_when_a_pass_adds_nothing() -> None:
    """The same row fails in the same place again: a retry would fail too, and none is made."""
    rig, transform = Rig(), WatchedTransform()
    transform.fails_at = {5}
    with pytest.raises(TransformError, match="1 of 2 tasks"):
        rig.start(transform=transform, retries=9, **CHUNKS)
    assert len(jobs(rig)) == 2


@pytest.mark.parametrize(
    "reports", [[], [TaskReport(place=0, end="left"), TaskReport(place=1, end="left")]]
)
def test_a_pass_that_adds_nothing_is_an_error(reports: list[TaskReport]) -> None:
    """Rows are missing for no reported reason: another pass would run the same job for ever."""
    rig, submitter = Rig(), two_partitions()
    submitter.answers.append(reports)
    with pytest.raises(JobFailedError, match="added nothing"):
        rig.start(submitter)
    assert rig.table.data_snapshots == []
    assert rig.start(two_partitions()).rows == 20


def test_a_lost_task_is_done_in_the_next_pass() -> None:
    """Its rows are missing from the sums, whatever the reports say."""
    rig, submitter = Rig(), two_partitions()
    submitter.next_reads.append([partition(range(10)), partition([])])
    driven = rig.start(submitter)
    assert (driven.passes, driven.tasks, rig.table.ids) == (2, 4, ALL)


# ---- A store that does not answer, or answers wrongly: our own error, and the next start resumes
def rig_with_chunks() -> Rig:
    """Return a run whose driver died when one task was done and the other had a chunk."""
    rig, dying = Rig(), WatchedTransform()
    dying.at[15] = rig.storage.kill
    rig.start_and_die(transform=dying, batch_rows=5, checkpoint_every=1e-9)
    return rig


@pytest.mark.slow_unit
def test_an_unanswered_call_is_one_of_our_errors_and_costs_nothing() -> None:
    """For each call: the start succeeds or raises our error, and the next start succeeds."""
    dry = rig_with_chunks()
    dry.storage.calls.clear()
    dry.start(transform=WatchedTransform())
    raw = []
    for number, (kind, uri) in enumerate(dry.storage.calls):
        rig = rig_with_chunks()
        rig.storage.fail_after(number)
        try:
            rig.start(transform=WatchedTransform())
        except HoldfastError as error:
            assert error.retry_safe  # noqa: PT017 - it need not be raised.
        except StorageError:
            raw.append(f"{kind} {uri}")
        assert rig.storage.calls_until_failure is None  # The call did fail.
        rig.start(transform=WatchedTransform())
        assert (rig.table.ids, len(rig.table.data_snapshots)) == (ALL, 1)
    assert raw == []


def test_a_listing_without_a_record_that_a_task_reported_is_not_trusted() -> None:
    """The rows of that record would be computed again, and land twice."""
    rig, submitter = Rig(), two_partitions()

    def hide_a_record() -> None:
        (uri, *_) = [uri for uri in rig.storage.objects if uri.endswith("/0000.json")]
        del rig.storage.objects[uri]

    submitter.after_job = hide_a_record
    with pytest.raises(LedgerDamagedError, match="wrote 1 records, but fewer are listed"):
        rig.start(submitter)
    assert rig.table.data_snapshots == []


def test_a_damaged_task_record_stops_the_start() -> None:
    """What it covered is not known, and must not be guessed."""
    rig = rig_with_chunks()
    last = task_records(job_ledger(rig.storage))[-1]
    rig.storage.damage[LAYOUT.task_record(last.name)] = bit_flipped
    with pytest.raises(LedgerDamagedError, match=last.name):
        rig.start(transform=WatchedTransform())
    assert rig.table.data_snapshots == []


@pytest.mark.parametrize("verify_input", ["keys", False])
def test_a_damaged_chunk_is_never_written_to_the_table(*, verify_input: VerifyInput) -> None:
    """Its digest is in its record: its rows are computed again, and the report says so."""
    rig = rig_with_chunks()
    (chunk,) = [
        uri for uri in rig.storage.objects if uri.endswith("0000.chunk") and "/000001/" in uri
    ]
    rig.storage.damage[chunk] = bit_flipped
    driven = rig.start(transform=WatchedTransform(), verify_input=verify_input)
    assert driven.withdrawn_rows > 0
    assert (rig.table.ids, len(rig.table.data_snapshots)) == (ALL, 1)
