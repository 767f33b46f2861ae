"""Costs: the cost of answers is counted once and kept across starts, and lost cost is reported."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast import per_row
from holdfast.cli.status import status_json
from holdfast.engine.options import WriteOptions
from holdfast.engine.watch import Watcher
from holdfast.errors import SchemaMismatchError, SettingsError, TransformError
from holdfast.ledger.layout import task_log_name
from holdfast.ledger.task_log import TaskLog
from holdfast.model.costs import readable_amount
from holdfast.model.report import Report
from holdfast.model.work import Work
from holdfast.pages.facts import totals_of
from holdfast.worker.checkpoints import Checkpoints
from tests.fakes.logs import task_records
from tests.fakes.manual_ports import manual_ports
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.memory_submitter import MemorySubmitter, partition
from tests.fakes.rig import Rig, two_partitions
from tests.fakes.row_functions import QUICK, RowFunction, batch, run_task
from tests.fakes.task_ledgers import (
    ListWriterSpec,
    WatchedStorage,
    done_step,
    job_ledger,
    logged,
    record,
    task_log,
)
from tests.fakes.watched_transform import WatchedTransform

ALL = list(range(20))
# Every batch of two rows is made durable at once, as its own chunk.
CHUNKS: dict[str, Any] = {"batch_rows": 2, "checkpoint_every": 1e-9}


class PricedRig(Rig):
    """A rig that compares what each start reports with the status and the page."""

    def start(self, submitter: MemorySubmitter | None = None, **options: Any) -> Report:  # noqa: ANN401
        """Start the job in a new process; its costs are the same wherever a user looks."""
        ports = manual_ports(self.time, process_id=1 + len(self.log().claims))
        report = super().start(submitter, ports=ports, **options)
        ledger = self.ledger()
        seen = Watcher(ledger=ledger).look()
        status = status_json(seen, ledger.store, ledger.ports)
        page = totals_of(seen, ())
        names = ("cost", "kept_cost", "lost_cost", "held_cost")
        expected = pytest.approx([getattr(report, name) for name in names])
        assert [status[name] for name in names] == expected
        assert [getattr(page, name) for name in names] == expected
        return report


def rows_with(function: RowFunction) -> Any:  # noqa: ANN401 - a transform of rows.
    """Return a transform that makes quick calls."""
    return per_row(function, concurrency=3, retry=QUICK)


def cost_line(driven: Report) -> list[str]:
    """Return the report's lines about costs."""
    lines = [line.split(maxsplit=1) for line in str(driven).splitlines()]
    return [rest for name, rest in lines if name == "cost"]


def test_a_number_is_the_cost_of_each_row() -> None:
    """For any transform."""
    for transform in (None, WatchedTransform(), rows_with(RowFunction())):
        rig = PricedRig()
        driven = rig.start(transform=transform, cost=0.5)
        assert (driven.cost_by_epoch, driven.lost_cost) == ({1: 10.0}, 0.0)
        assert cost_line(driven) == ["10 paid"]


def test_without_a_cost_the_report_does_not_mention_it() -> None:
    """Most jobs have no cost that could be counted."""
    driven = PricedRig().start()
    assert (driven.cost_by_epoch, driven.cost, cost_line(driven)) == ({}, 0.0, [])


def test_a_cost_function_for_rows_is_called_for_each_answer() -> None:
    """With a row function it gets the answer itself."""
    rig, function = PricedRig(), RowFunction()
    driven = rig.start(transform=rows_with(function), cost=lambda row: row["id"] / 2)
    assert driven.cost_by_epoch == {1: sum(ALL) / 2}


def test_a_cost_function_for_batches_is_called_for_each_output_batch() -> None:
    """With a batch transform it gets the transform's output."""
    sizes: list[int] = []

    def cost(rows: pa.RecordBatch) -> int:
        sizes.append(rows.num_rows)
        return int(rows.num_rows) * 3

    driven = PricedRig().start(transform=WatchedTransform(), cost=cost, batch_rows=5)
    assert (sizes, driven.cost_by_epoch) == ([5, 5, 5, 5], {1: 60.0})


def test_a_cost_function_that_raises_is_the_transforms_failure() -> None:
    """Rows done before it stay done."""

    def cost(rows: pa.RecordBatch) -> float:
        return 1.0 / abs(float(rows["id"][0].as_py()) - 4.0)

    storage = WatchedStorage()
    report = run_task(
        storage, batch(range(8)), transform=WatchedTransform(), cost=cost, batch_rows=2
    )
    assert report.problem is not None
    assert (report.end, report.problem.kind, report.rows_in) == ("stopped", "transform", 4)
    with pytest.raises(TransformError, match="ZeroDivisionError"):
        PricedRig().start(transform=WatchedTransform(), cost=cost, batch_rows=2, retries=0)


def test_with_a_fixed_cost_failed_rows_cost_nothing() -> None:
    """No answer was paid for."""
    function = RowFunction()
    function.fails_at = {5: ValueError("bad"), 13: ValueError("bad")}
    driven = PricedRig().start(transform=rows_with(function), cost=1.0, on_error="quarantine")
    assert (driven.cost_by_epoch, driven.quarantined_rows) == ({1: 18.0}, 2)


@pytest.mark.parametrize("value", [1, np.float32(1), Decimal(1)])
def test_the_cost_of_a_batch_may_be_any_kind_of_number(value: Any) -> None:  # noqa: ANN401
    """Prices are often decimals, and a model's counts are often NumPy numbers."""
    driven = PricedRig().start(transform=WatchedTransform(), cost=lambda _: value, batch_rows=5)
    assert driven.cost_by_epoch == {1: 4.0}


@pytest.mark.parametrize("value", [1, 1.0, np.float64(1)])
def test_the_cost_of_a_row_may_be_a_python_or_numpy_number(value: Any) -> None:  # noqa: ANN401
    """As long as it is a float or an int."""
    driven = PricedRig().start(transform=rows_with(RowFunction()), cost=lambda _: value)
    assert driven.cost_by_epoch == {1: 20.0}


@pytest.mark.parametrize("value", [np.float32(1), Decimal(1)])
def test_the_cost_of_a_row_may_be_any_kind_of_number(value: Any) -> None:  # noqa: ANN401
    """Like the cost of a batch."""
    driven = PricedRig().start(transform=rows_with(RowFunction()), cost=lambda _: value)
    assert driven.cost_by_epoch == {1: 20.0}


def test_the_cost_of_a_batch_that_did_not_fit_is_lost() -> None:
    """No row has it, but it was paid for; what the next start pays is not lost."""

    def misfit(rows: pa.RecordBatch) -> dict[str, Any]:
        return {"id": [id_ + 0.5 for id_ in rows["id"].to_pylist()]}

    rig = PricedRig()
    with pytest.raises(SchemaMismatchError):
        rig.start(transform=misfit, cost=1.0, batch_rows=2)
    with pytest.warns(UserWarning, match="code has changed"):
        driven = rig.start(transform=WatchedTransform(), cost=1.0, batch_rows=2)
    # Each of the two tasks has stopped at its first batch.
    assert (driven.lost_cost, driven.cost, rig.table.ids) == (4.0, 24.0, ALL)


def test_costs_are_summed_by_claim_and_kept_across_starts() -> None:
    """What an earlier start has paid counts once, and is what the resume has saved."""
    rig, submitter = PricedRig(), two_partitions()
    submitter.after_task[0] = rig.storage.kill
    rig.start_and_die(submitter, transform=WatchedTransform(), cost=0.25)
    driven = rig.start(transform=WatchedTransform(), cost=0.5)
    assert driven.cost_by_epoch == {1: 2.5, 3: 5.0}
    assert (driven.kept_cost, driven.lost_cost, driven.cost) == (2.5, 0.0, 7.5)
    assert cost_line(driven) == ["7.5 paid, 2.5 saved by resuming"]


def test_each_pass_of_a_start_has_its_own_claim() -> None:
    """None of it was saved by resuming."""
    rig, submitter = PricedRig(), two_partitions()
    submitter.next_reads.append([partition(range(10)), partition([])])
    driven = rig.start(submitter, cost=1.0)
    assert (sorted(driven.cost_by_epoch.values()), driven.kept_cost) == ([10.0, 10.0], 0.0)


def test_what_a_killed_task_may_have_paid_is_estimated() -> None:
    """Half a checkpoint interval, 15 s of 30 s, at the rate of all recorded work."""
    rig = PricedRig()
    lost_by(rig, seconds=10.0)
    driven = rig.start()
    assert driven.held_cost == pytest.approx(2.0 / 10.0 * 15.0, rel=0.1)
    assert (driven.cost, driven.lost_cost, driven.kept_cost) == (2.0, 0.0, 2.0)
    assert "perhaps spent" in str(driven)


def test_a_task_that_dies_before_its_first_checkpoint_is_counted_too() -> None:
    """It has recorded that it began, which a task without costs need not do."""
    for cost, killed_seconds in ((0.0, 0.0), (1.0, 15.0), (lambda _: 1.0, 15.0)):
        rig, transform = PricedRig(), WatchedTransform()
        transform.at[5] = rig.storage.kill
        rig.start_and_die(transform=transform, cost=cost)
        rig.start(transform=WatchedTransform(), cost=cost)
        seals = rig.log().seals
        assert seals[max(seals)].killed_seconds == killed_seconds


@pytest.mark.parametrize("end", ["complete", "stopped", "failed"])
def test_a_task_that_ended_its_log_has_lost_nothing(end: str) -> None:
    """It has recorded all that it paid for, or that it gave it up."""
    rig = PricedRig()
    lost_by(rig, end=end)
    assert rig.start().held_cost == 0.0


def test_an_estimate_needs_a_cost_and_an_interval() -> None:
    """Without either, nothing is known and nothing is estimated."""
    rig = PricedRig()
    lost_by(rig, cost=0.0)
    assert rig.start().held_cost == 0.0
    rig = PricedRig()
    lost_by(rig, every=None)
    assert rig.start().held_cost == 0.0


def lost_by(
    rig: PricedRig,
    *,
    seconds: float = 10.0,
    cost: float = 2.0,
    end: str = "",
    every: str | None = "30s",
) -> None:
    """Let a start die whose only task has paid 2.0 so far."""
    submitter = two_partitions()
    submitter.before_task[0] = rig.storage.kill
    rig.start_and_die(submitter, checkpoint_every=every)
    run_log = rig.log()
    name = task_log_name(run_log.task_folders[1], "rows", 0, 0)
    log = TaskLog(rig.storage, run_log.layout, name)
    log.append(record(log.next_name, seconds=seconds, cost=cost, end=end))


def test_the_estimate_is_carried_across_seals_and_counted_once() -> None:
    """Each start adds its own loss, however many starts follow."""
    rig = PricedRig()
    lost_by(rig)
    submitter = two_partitions()
    submitter.after_job = rig.storage.kill
    rig.start_and_die(submitter)
    assert [seal.killed_seconds for seal in rig.log().seals.values()] == [15.0]
    rig.table.before_post = rig.storage.kill
    rig.start_and_die()
    driven = rig.start()
    assert {seal.killed_seconds for seal in rig.log().seals.values()} == {15.0}
    assert driven.held_cost == pytest.approx(3.0, rel=0.1)
    assert driven.cost == 2.0
    assert "2 saved by resuming" in cost_line(driven)[0]


def test_costs_of_dropped_rows_are_carried_across_seals() -> None:
    """The start that dropped them need not be the one that finishes."""
    rig, submitter = PricedRig(), two_partitions()
    submitter.after_job = rig.storage.kill
    rig.start_and_die(submitter, cost=0.5)
    rig.table.lost_files.append(min(rig.table.files))
    rig.table.before_post = rig.storage.kill
    rig.start_and_die(cost=0.5)
    driven = rig.start(cost=0.5)
    assert {seal.dropped_cost for seal in rig.log().seals.values()} == {5.0}
    assert (driven.lost_cost, driven.cost) == (5.0, 15.0)


def test_the_lost_cost_of_a_twins_rows_is_exact() -> None:
    """Both attempts ended: one of them counts, and the cost of the other is reported."""
    rig, submitter, twins = PricedRig(), two_partitions(), MemoryStorage()

    def finish_twin_and_die() -> None:
        ledger = replace(submitter.plans[0].ledger, storage=twins)
        twin = replace(submitter.plans[0], ledger=ledger)
        twin.run([partition(range(10, 20))], place=1, attempt=99)
        rig.storage.objects |= twins.objects
        rig.storage.kill()

    submitter.after_job = finish_twin_and_die
    rig.start_and_die(submitter, cost=0.5)
    driven = rig.start(cost=0.5)
    assert (driven.dropped_rows, driven.lost_cost) == (10, 5.0)
    assert (driven.cost_by_epoch, driven.cost) == ({1: 10.0}, 15.0)


def test_the_lost_cost_of_rows_whose_files_were_removed_is_exact() -> None:
    """They are paid for again."""
    rig, submitter = PricedRig(), two_partitions()
    submitter.after_job = rig.storage.kill
    rig.start_and_die(submitter, cost=0.5)
    rig.table.lost_files.append(min(rig.table.files))
    driven = rig.start(cost=0.5)
    assert (driven.withdrawn_rows, driven.lost_cost, rig.table.ids) == (10, 5.0, ALL)
    assert (driven.kept_cost, sum(driven.cost_by_epoch.values())) == (5.0, 10.0)


def test_the_lost_cost_of_rows_that_were_covered_twice_is_exact() -> None:
    """The input gave a row to two tasks: one of their records is dropped."""
    rig, submitter = PricedRig(), MemorySubmitter(range(10), range(10, 20))
    submitter.next_reads.append([partition(range(11)), partition(range(10, 20))])
    driven = rig.start(submitter, cost=1.0)
    assert (rig.table.ids, driven.dropped_rows > 0) == (ALL, True)
    assert driven.lost_cost == float(driven.dropped_rows)
    assert sum(driven.cost_by_epoch.values()) == 20.0


def test_rows_that_are_dropped_later_do_not_count_as_kept() -> None:
    """A start inherits duplicate rows, and notices it only after it has begun."""
    rig, submitter = PricedRig(), MemorySubmitter(range(10), range(10, 20))
    submitter.next_reads.append([partition(range(11)), partition(range(10, 20))])
    submitter.after_job = rig.storage.kill
    rig.start_and_die(submitter, cost=1.0)
    driven = rig.start(cost=1.0)
    assert (rig.table.ids, driven.dropped_rows) == (ALL, 10)
    assert (driven.kept_rows, driven.kept_cost) == (11, 11.0)


def test_a_record_carries_the_cost_of_its_own_rows_only() -> None:
    """Each checkpoint begins at zero; a cut takes over what the records it replaces have cost."""
    storage = WatchedStorage()
    run_task(storage, batch(range(6)), cost=2.0, batch_rows=2, checkpoint_every_s=1e-9)
    records = logged(job_ledger(storage))
    every = task_records(job_ledger(storage))
    # The first record says that the task began.
    assert [record.cost for record in every] == [0.0, 4.0, 4.0, 4.0, 12.0]
    assert [record.cost for record in records] == [12.0]
    assert Work().plus(records)[0].cost == 12.0


def test_a_task_that_has_recorded_its_begin_still_looks_for_a_twin() -> None:
    """That record covers nothing: one of two twins must yield at the first record with rows."""
    asked: list[bool] = []

    def twin(earlier: bool, /) -> bool:  # noqa: FBT001 - a Callable has no keywords.
        asked.append(earlier)
        return False

    ledger = job_ledger(WatchedStorage())
    writer = ListWriterSpec(partition([]).schema).open("task")
    checkpoints = Checkpoints(
        ledger=ledger,
        log=task_log(ledger),
        writer=writer,
        key=("id",),
        every_s=1e-9,
        twin_is_at_work=twin,
    )
    checkpoints.say_begun()
    checkpoints.cover(done_step(partition([1]), 1.0))
    checkpoints.cover(done_step(partition([2]), 1.0))
    assert asked == [False, True]


@pytest.mark.parametrize("cost", [-1, float("nan"), float("inf"), True, "1", None])
def test_a_cost_that_cannot_be_counted_is_refused(cost: Any) -> None:  # noqa: ANN401
    """Before anything is paid for."""
    with pytest.raises(SettingsError, match="cost"):
        WriteOptions(cost=cost)


def test_a_status_after_a_kill_says_what_the_next_start_will_say_was_lost() -> None:
    """A user looks before running the job again; a start that may be at work has lost nothing."""
    rig = PricedRig()
    lost_by(rig)
    seen = Watcher(ledger=rig.ledger()).look()
    assert (seen.progress.cost, seen.progress.held_cost) == (2.0, 0.0)
    rig.time.pass_by(3_600.0)
    submitter = two_partitions()
    submitter.before_task[0] = rig.storage.kill
    rig.start_and_die(submitter)
    progress = Watcher(ledger=rig.ledger()).look().progress
    assert progress.held_cost == pytest.approx(3.0)
    assert progress.cost == pytest.approx(2.0)
    assert rig.start().held_cost == pytest.approx(3.0, rel=0.1)


def test_answers_of_failed_rows_that_are_tried_again_stay_on_the_bill() -> None:
    """They were paid for, and do not fit the table; the next start pays for these rows again."""
    rig, submitter, function = PricedRig(), two_partitions(), RowFunction()
    function.returns = {number: {"id": "misfit"} for number in range(10, 20)}
    submitter.after_job = rig.storage.kill
    aside: dict[str, Any] = {"on_error": "quarantine", "max_errors": 10}
    rig.start_and_die(submitter, transform=rows_with(function), cost=lambda _: 1.0, **aside)
    driven = rig.start(transform=rows_with(RowFunction()), cost=lambda _: 1.0)
    assert (driven.cost, driven.lost_cost, rig.table.ids) == (30.0, 10.0, ALL)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.325888, "0.326"),
        (5.12589, "5.13"),
        (10.0, "10"),
        (2.5, "2.5"),
        (1234567.891, "1,234,567.89"),
    ],
)
def test_an_amount_has_no_more_digits_than_one_reads(value: float, shown: str) -> None:
    """What was lost is an estimate: six digits of it would say more than is known."""
    assert readable_amount(value) == shown
