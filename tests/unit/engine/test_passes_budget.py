"""Whole runs with a budget: the bill is capped whatever is killed, and a higher budget goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from holdfast import per_row
from holdfast.cli.status import status_json
from holdfast.engine import workbook
from holdfast.engine.claim import prepare
from holdfast.engine.options import WriteOptions
from holdfast.engine.watch import Watcher, status
from holdfast.errors import (
    BudgetReachedError,
    HoldfastError,
    SchemaMismatchError,
    SettingsError,
    TransformError,
)
from holdfast.model.costs import cost_lines, left_of
from holdfast.model.records import Plan
from holdfast.model.report import Report
from holdfast.pages.facts import tiles_of, totals_of
from holdfast.progress.events import Event
from holdfast.progress.frame import frame_of, lines_of, one_line
from tests.fakes.manual_ports import manual_ports
from tests.fakes.memory_scan import MemoryScan
from tests.fakes.memory_storage import DriverDiedError
from tests.fakes.memory_submitter import MemorySubmitter, partition
from tests.fakes.rig import Rig, durable_ids, two_partitions
from tests.fakes.row_functions import QUICK, RowFunction
from tests.fakes.watched_transform import WatchedTransform

ALL = list(range(20))
# Every batch of two rows is made durable at once, as its own chunk.
CHUNKS: dict[str, Any] = {"batch_rows": 2, "checkpoint_every": 1e-9}

Cost = float | Callable[[Any], float]


def of_batch(output: pa.RecordBatch) -> float:
    """Return a cost that is known only after the batch: one for each row."""
    return float(output.num_rows)


def of_row(_answer: object) -> float:
    """Return a cost that is known only after the answer."""
    return 1.0


def rows_with(function: RowFunction, concurrency: int = 3) -> Any:  # noqa: ANN401 - a transform.
    """Return a transform that makes quick calls."""
    return per_row(function, concurrency=concurrency, retry=QUICK)


def stopped(rig: Rig, submitter: MemorySubmitter | None = None, **options: Any) -> float:  # noqa: ANN401
    """Start the job, which must reach its budget; return what is spent."""
    with pytest.raises(BudgetReachedError) as caught:
        rig.start(submitter, **options)
    assert rig.table.data_snapshots == []
    return caught.value.spent


@pytest.mark.parametrize("cost", [1.0, of_batch])
@pytest.mark.parametrize("sizes", [{}, {"batch_rows": 5}, {"checkpoint_every": None}])
def test_a_batch_transform_is_called_for_no_row_beyond_the_budget(
    cost: Cost, sizes: dict[str, Any]
) -> None:
    """Also if a batch's cost is known only after it, and its size was chosen for more."""
    rig, transform = Rig(), WatchedTransform()
    assert stopped(rig, transform=transform, cost=cost, budget=7, **sizes) == 7.0
    assert len(transform.ids) == 7
    assert durable_ids(rig) == set(transform.ids)


@pytest.mark.parametrize("cost", [1.0, of_row])
@pytest.mark.parametrize("concurrency", [1, 3, 64])
def test_a_row_function_is_called_for_no_row_beyond_the_budget(
    cost: Cost, concurrency: int
) -> None:
    """However many calls it may have in flight."""
    rig, function = Rig(), RowFunction()
    options: dict[str, Any] = {
        "transform": rows_with(function, concurrency),
        "cost": cost,
        "budget": 7.0,
    }
    assert stopped(rig, **options) == 7.0
    assert len(function.ids) == 7
    assert durable_ids(rig) == set(function.ids)


def test_a_higher_budget_goes_on_and_pays_for_no_row_twice() -> None:
    """The budget is not part of the identity; what earlier starts spent counts."""
    rig, seen = Rig(), []
    for budget in (3.0, 11.5, 11.6):
        transform = WatchedTransform()
        stopped(rig, transform=transform, cost=1.0, budget=budget)
        seen += transform.ids
    assert len(seen) == 11
    last = WatchedTransform()
    report = rig.start(transform=last, cost=1.0, budget=20.0)
    assert sorted([*seen, *last.ids]) == rig.table.ids == ALL
    assert (report.cost, report.kept_cost, report.lost_cost) == (20.0, 11.0, 0.0)


def test_a_start_without_a_budget_goes_on_too() -> None:
    """A user may change their mind."""
    rig, transform = Rig(), WatchedTransform()
    stopped(rig, transform=WatchedTransform(), cost=1.0, budget=5)
    report = rig.start(transform=transform, cost=1.0)
    assert (len(transform.ids), report.cost, report.budget) == (15, 20.0, None)


def test_the_same_or_a_lower_budget_makes_no_call_and_says_so_again() -> None:
    """A scheduler that retries must not spend a little more each time."""
    rig = Rig()
    stopped(rig, transform=WatchedTransform(), cost=1.0, budget=5)
    for budget in (5.0, 4.0, 5.9):
        transform = WatchedTransform()
        assert stopped(rig, transform=transform, cost=1.0, budget=budget) == 5.0
        assert transform.ids == []


def test_the_error_says_what_is_spent_and_left_and_what_to_do() -> None:
    """A retry of the same script would fail the same way."""
    with pytest.raises(BudgetReachedError) as caught:
        Rig().start(transform=WatchedTransform(), cost=0.1, budget=0.3)
    error = caught.value
    assert (error.budget, error.rows_left, error.retry_safe) == (0.3, 17, False)
    assert error.summary == (
        "run 'r' has reached its budget: 0.3 of 0.3 are spent, 0 more are held by killed tasks, "
        "and 17 rows are left"
    )
    assert "higher budget=" in str(error)


def test_a_run_whose_rows_are_all_paid_for_is_committed_whatever_the_budget() -> None:
    """Committing costs nothing."""
    rig, submitter = Rig(), two_partitions()
    submitter.after_job = rig.storage.kill
    rig.start_and_die(submitter, transform=WatchedTransform(), cost=1.0)
    report = rig.start(transform=WatchedTransform(), cost=1.0, budget=1.0)
    assert (rig.table.ids, report.cost, report.budget) == (ALL, 20.0, 1.0)
    assert "20 of 1 spent, 19 too much" in str(report)


@pytest.mark.parametrize("budget", [20.0, 1.0])
def test_without_an_input_check_a_job_shows_that_no_row_is_left(budget: float) -> None:
    """Nobody has counted the rows: a start that can pay for none must look."""
    rig, submitter = Rig(), two_partitions()
    submitter.after_job = rig.storage.kill
    options: dict[str, Any] = {"cost": 1.0, "verify_input": False}
    rig.start_and_die(submitter, transform=WatchedTransform(), budget=20.0, **options)
    report = rig.start(transform=WatchedTransform(), budget=budget, **options)
    assert (rig.table.ids, report.cost) == (ALL, 20.0)


def test_many_more_places_than_the_budget_pays_for_share_it() -> None:
    """A share for each place would be too small for a single row."""
    rig, transform = Rig(), WatchedTransform()
    places = [[number] for number in range(200)]
    options: dict[str, Any] = {"transform": transform, "cost": of_batch, "verify_input": False}
    assert stopped(rig, MemorySubmitter(*places), budget=50.0, **options) == 50.0
    assert len(transform.ids) == 50


def test_what_places_give_back_is_dealt_anew_while_there_is_money() -> None:
    """A cheap place must not keep what a later one needs; the passes end with the money."""
    rig, transform = Rig(), WatchedTransform()
    submitter = MemorySubmitter([0], range(1, 5), range(5, 200))

    def cost(output: pa.RecordBatch) -> float:
        return sum(0.5 if id_ % 7 else 2.5 for id_ in output["id"].to_pylist())

    spent = stopped(rig, submitter, transform=transform, cost=cost, budget=60.0, batch_rows=1)
    paid = sum(0.5 if id_ % 7 else 2.5 for id_ in transform.ids)
    assert spent == pytest.approx(paid)
    assert 57.5 < spent <= 62.5  # It stops at most one row early, or one row late.


def killed_anywhere(
    budget: float,
    in_flight: int,
    **options: Any,  # noqa: ANN401 - of the start.
) -> list[tuple[int, float]]:
    """Kill a start at each of its writes, and go on with the same budget, then with a higher one.

    Returns for each how many rows were called for under the budget, and what it reports as lost.
    """
    found = []
    for writes in range(200):
        rig, ids = Rig(), []
        rig.storage.writes_left = writes
        while True:
            transform = WatchedTransform()
            try:
                rig.start(transform=transform, budget=budget, **options)
            except DriverDiedError:
                rig.storage.revive()
                ids += transform.ids
                continue
            except BudgetReachedError:
                ids += transform.ids
                break
        was_killed, before = rig.storage.writes_left is None, len(ids)
        rig.storage.revive()
        transform = WatchedTransform()
        report = rig.start(transform=transform, budget=100.0, **options)
        assert rig.table.ids == ALL
        # The answer that the kill came with cannot be known.
        assert before + len(transform.ids) <= report.cost + report.held_cost + in_flight
        assert report.cost <= before + len(transform.ids)
        found.append((before, report.lost_cost + report.held_cost))
        if not was_killed:
            return found
    raise AssertionError("it never ended by itself")


@pytest.mark.slow_unit
@pytest.mark.parametrize("cost", [1.0, of_batch])
@pytest.mark.parametrize("sizes", [CHUNKS, {"batch_rows": 3}, {"checkpoint_every": None}])
def test_a_kill_at_any_write_spends_nothing_beyond_the_budget(
    cost: Cost, sizes: dict[str, Any]
) -> None:
    """What a killed task had taken and not recorded counts as spent, and is reported as lost."""
    in_flight = 1 if callable(cost) else 0
    found = killed_anywhere(9.0, in_flight, cost=cost, **sizes)
    assert len(found) > 10
    assert max(rows for rows, _ in found) <= 9 + in_flight
    assert any(lost for _, lost in found)
    assert found[-1] == (9, 0.0)


def test_a_task_that_is_lost_again_and_again_cannot_spend_beyond_the_budget() -> None:
    """Spark starts it again, and each attempt pays for rows before its first record."""
    rig, submitter = Rig(), two_partitions()
    ids: list[int] = []

    def attempts() -> None:
        plan = submitter.plans[-1]
        for attempt in range(50, 90):
            transform = WatchedTransform()
            transform.at[14] = rig.storage.kill
            try:
                lost = replace(plan, transform=transform)
                lost.run([partition(range(10, 20))], place=1, attempt=attempt)
            except DriverDiedError:
                rig.storage.revive()
            ids.extend(transform.ids)

    submitter.before_task[1] = attempts
    last = WatchedTransform()
    stopped(rig, submitter, transform=last, cost=1.0, budget=18.0, batch_rows=1)
    assert len(ids) + len(last.ids) <= 18
    assert len(ids) > 4  # More than one attempt has paid.


def test_a_task_that_outlives_its_driver_takes_no_more_money() -> None:
    """The next driver counts what it has taken, and closes the account."""
    rig, submitter, late = Rig(), two_partitions(), WatchedTransform()
    submitter.before_task[0] = rig.storage.kill
    rig.start_and_die(submitter, transform=WatchedTransform(), cost=1.0, budget=10.0)
    plan = submitter.plans[-1]
    spent = stopped(rig, transform=WatchedTransform(), cost=1.0, budget=4.0)
    zombie = replace(plan, transform=late, checkpoint_every_s=None)
    zombie.run([partition(range(10))], place=0, attempt=77)
    assert (spent, late.ids) == (4.0, [])


def test_a_task_takes_no_money_while_its_driver_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No record says yet that its job has ended, and what it takes now would not be counted."""
    rig, submitter, late = Rig(), two_partitions(), WatchedTransform()
    real = workbook.gather

    def counted_late(*given: Any) -> Any:  # noqa: ANN401 - it passes them on.
        zombie = replace(submitter.plans[-1], transform=late, checkpoint_every_s=None)
        zombie.run([partition(range(10))], place=5, attempt=77)
        return real(*given)

    monkeypatch.setattr(workbook, "gather", counted_late)
    rig.start(submitter, transform=WatchedTransform(), cost=1.0, budget=100.0)
    assert late.ids == []


def test_two_attempts_at_one_place_share_the_budget() -> None:
    """A speculative twin pays from the same account."""
    rig, submitter, twin = Rig(), two_partitions(), WatchedTransform()

    def run_twin() -> None:
        plan = replace(submitter.plans[-1], transform=twin)
        plan.run([partition(range(10))], place=0, attempt=99)

    submitter.before_task[0] = run_twin
    transform = WatchedTransform()
    stopped(rig, submitter, transform=transform, cost=1.0, budget=14.0, batch_rows=1)
    assert len(twin.ids) + len(transform.ids) == 14


def test_what_failed_rows_have_cost_counts() -> None:
    """Answers that do not fit the table are paid for, though their rows are set aside."""
    rig, function = Rig(), RowFunction()
    function.returns = {number: {"id": f"misfit {number}"} for number in range(3, 20)}
    transform = rows_with(function, 1)
    options: dict[str, Any] = {"transform": transform, "on_error": "quarantine", "max_errors": 1.0}
    assert stopped(rig, cost=1.0, budget=6.0, **options) == 6.0
    assert len(function.ids) == 6


def test_what_batches_that_do_not_fit_have_cost_counts() -> None:
    """They are computed again in halves, which is paid for too."""
    rig, calls = Rig(), []

    def misfit(batch: pa.RecordBatch) -> dict[str, list[Any]]:
        calls.append(batch.num_rows)
        return {"id": [None if id_ == 3 else id_ for id_ in batch["id"].to_pylist()]}

    options: dict[str, Any] = {"transform": misfit, "on_error": "quarantine", "batch_rows": 8}
    with pytest.raises(HoldfastError):
        rig.start(cost=of_batch, budget=15.0, **options)
    assert sum(calls) <= 15


def test_what_an_answer_that_ends_the_job_has_cost_is_lost() -> None:
    """No row has it, but it was paid for."""
    rig, calls = Rig(), []

    def costly(output: pa.RecordBatch) -> float:
        return float(output.num_rows)

    def misfit(batch: pa.RecordBatch) -> dict[str, list[Any]]:
        calls.append(batch.num_rows)
        return {"id": [id_ + (0.5 if id_ == 3 else 0.0) for id_ in batch["id"].to_pylist()]}

    with pytest.raises(SchemaMismatchError):
        rig.start(transform=misfit, cost=costly, budget=50.0, batch_rows=2)
    seen = Watcher(ledger=rig.ledger()).look().progress
    assert seen.cost == pytest.approx(sum(calls))
    assert seen.lost_cost == pytest.approx(2.0)


def test_the_passes_of_a_scan_share_the_budget() -> None:
    """Its rows are ranges; the next start does the others."""
    rig, transform = Rig(), WatchedTransform()
    options: dict[str, Any] = {"transform": transform, "cost": 1.0, "batch_rows": 1}
    with pytest.raises(BudgetReachedError) as caught:
        rig.scan(MemoryScan(ALL), budget=6.0, **options)
    assert (caught.value.spent, caught.value.rows_left, len(transform.ids)) == (6.0, 14, 6)
    report = rig.scan(MemoryScan(ALL), budget=20.0, **options)
    assert (sorted(transform.ids), rig.table.ids, report.cost) == (ALL, ALL, 20.0)


def test_a_failing_transform_is_reported_even_if_the_budget_ends_with_it() -> None:
    """A bug must be fixed first; more money would not help."""
    rig, transform = Rig(), WatchedTransform()
    transform.fails_at = {4}
    with pytest.raises(TransformError):
        rig.start(transform=transform, cost=1.0, budget=5.0, batch_rows=1, retries=0)


def test_a_budget_is_refused_for_calls_that_spark_makes() -> None:
    """Nothing could stop them."""
    rig = Rig()
    with pytest.raises(SettingsError, match="remaining"):
        prepare(rig.ledger(), two_partitions(), ("id",), WriteOptions(budget=5.0))
    assert rig.storage.objects == {}


class Shown(Rig):
    """A rig that compares what is shown of a start's budget everywhere."""

    def start(self, submitter: MemorySubmitter | None = None, **options: Any) -> Report:  # noqa: ANN401
        """Start the job in a new process."""
        ports = manual_ports(self.time, process_id=1 + len(self.log().claims))
        return super().start(submitter, ports=ports, **options)

    def shown(self) -> list[str]:
        """Return what status, progress and page say, after making sure that they agree."""
        ledger = self.ledger()
        seen, found = Watcher(ledger=ledger).look(), status(ledger)
        progress = seen.progress
        assert found.budget == progress.budget
        if found.budget:
            assert (found.spent, found.held) == (progress.cost, progress.held_cost)
        json = status_json(seen, ledger.store, ledger.ports)
        assert (json["budget"], json["cost"]) == (progress.budget, progress.cost)
        assert json["held_cost"] == progress.held_cost
        frame = frame_of(seen, 0.0)
        lines = [text for name, text in lines_of(frame) if name == "budget"]
        assert all(f"budget {text}" in one_line(frame) for text in lines)
        lines += [
            line.split(maxsplit=1)[1] for line in str(found).splitlines() if "  budget  " in line
        ]
        tiles = [tile for tile in tiles_of(totals_of(seen, ())) if tile.name == "budget"]
        return [*lines, *(f"{tile.value} {tile.note}" for tile in tiles)]


def test_status_progress_and_page_say_budget_spent_and_left() -> None:
    """Also after a kill, as the next start would report it."""
    rig, transform = Shown(), WatchedTransform()
    transform.at[7] = rig.storage.kill
    rig.start_and_die(transform=transform, cost=1.0, budget=50.0, batch_rows=1)
    log = rig.log()
    assert [plan.may_spend for plan in log.plans.values() if isinstance(plan, Plan)] == [50.0]
    rig.time.sleep(10_000.0)
    stopped(rig, transform=WatchedTransform(), cost=1.0, budget=15.0)
    assert rig.shown() == [
        "7 of 15 spent, 8 held by killed tasks, 0 left",
        "7 of 15 spent, 8 held by killed tasks, 0 left",
        "0 of 15 left for further calls",
    ]
    report = rig.start(transform=WatchedTransform(), cost=1.0, budget=60.0)
    assert (report.cost, report.lost_cost, report.held_cost) == (20.0, 0.0, 8.0)
    budget = next(line for line in str(report).splitlines() if line.startswith("  budget"))
    assert "20 of 60 spent, 8 held by killed tasks, 32 left" in budget


def test_what_a_killed_task_held_of_a_large_budget_is_not_called_paid() -> None:
    """One row was answered, and the task had taken far more: it is perhaps spent, and shown so."""
    rig, transform = Shown(), WatchedTransform()
    transform.at[1] = rig.storage.kill
    options: dict[str, Any] = {"cost": 1.0, "budget": 1e6, "batch_rows": 1}
    rig.start_and_die(transform=transform, **options)
    rig.time.sleep(10_000.0)
    report = rig.start(transform=WatchedTransform(), **options)
    assert (report.cost, rig.table.ids) == (20.0, ALL)
    assert report.held_cost > 1_000.0
    held = f"{report.held_cost:,.2f}".rstrip("0").rstrip(".")
    shown = f"{held} by killed tasks, perhaps spent"
    seen, found = Watcher(ledger=rig.ledger()).look(), status(rig.ledger())
    frame = frame_of(seen, 0.0)
    tiles = {tile.name: f"{tile.value} {tile.note}" for tile in tiles_of(totals_of(seen, ()))}
    assert (dict(lines_of(frame))["held"], tiles["held"]) == (shown, shown)
    assert f"held {shown}" in one_line(frame)
    assert all(f"  held      {shown}" in str(each) for each in (report, found))
    assert dict(cost_lines(seen.progress))["held"] == shown
    told = Event(
        kind="progress", at=0.0, run_id="r", table="t", location="", progress=seen.progress
    )
    assert told.to_json()["progress"]["held_cost"] == report.held_cost
    assert (tiles["paid"].split()[0], found.spent) == ("20", 20.0)
    # The budget counts it as if it were spent.
    assert left_of(1e6, report.cost, report.held_cost) == 1e6 - 20.0 - report.held_cost


def test_without_a_budget_nothing_speaks_of_one() -> None:
    """Most runs have none, and their ledgers have no account."""
    rig = Shown()
    report = rig.start(transform=WatchedTransform(), cost=1.0)
    assert (rig.shown(), "budget" in str(report)) == ([], False)
    assert not [uri for uri in rig.storage.objects if "/accounts/" in uri]


@pytest.mark.parametrize("on_error", ["raise", "quarantine"])
def test_an_answer_without_a_price_ends_the_start(on_error: str) -> None:
    """It would be free: every row could be called for, and none would be paid."""
    rig, function = Rig(), RowFunction()

    def cost(answer: dict[str, Any]) -> float:
        return float(answer["tokens"])  # It has none.

    for _ in range(2):
        with pytest.raises(TransformError, match="cost= raised KeyError"):
            rig.start(
                transform=rows_with(function, 1),
                cost=cost,
                budget=5.0,
                on_error=on_error,
                max_errors=1.0,
            )
    assert len(function.ids) <= 4  # One for each task of a start.
    assert durable_ids(rig) == set()
    report = rig.start(transform=rows_with(function, 1), cost=1.0, on_error=on_error)
    assert (report.rows, report.quarantined_rows) == (len(ALL), 0)


def test_a_guess_of_what_a_kill_has_cost_does_not_use_the_budget_up() -> None:
    """A start without a budget has no account: what its killed tasks had spent is not known."""
    rig, transform = Rig(), WatchedTransform()
    transform.at[7] = rig.storage.kill
    rig.start_and_die(transform=transform, cost=1.0, batch_rows=1, checkpoint_every=1e-9)
    rig.time.sleep(10_000.0)
    dead = rig.log().claims
    assert [claim.budget for claim in dead.values()] == [None]
    guess = WatchedTransform()
    assert stopped(rig, transform=guess, cost=1.0, budget=15.0, checkpoint_every=600.0) <= 15.0
    assert guess.ids
    report = rig.start(transform=WatchedTransform(), cost=1.0, budget=60.0)
    assert (report.rows, report.held_cost) == (len(ALL), 0.0)
