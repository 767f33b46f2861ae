"""Whole runs in which rows fail: which land, which are quarantined, and which are tried again."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import per_row
from holdfast.engine.claim import prepare
from holdfast.engine.cleanup import abort, sweep
from holdfast.engine.drive import Driver
from holdfast.engine.options import VerifyInput, WriteOptions
from holdfast.engine.watch import quarantine_chunks
from holdfast.errors import SettingsError, TooManyErrorsError, TransformError
from holdfast.ledger.row_files import read_chunk
from tests.fakes.logs import job_ledger, task_records
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.rig import LAYOUT, Rig, durable_ids, two_partitions
from tests.fakes.row_functions import QUICK, RowFunction
from tests.fakes.unpinned import Unpinned
from tests.fakes.watched_transform import WatchedTransform

ALL = list(range(20))


class Mended(RowFunction):
    """The same function with other code."""


def fails_at(*ids: int, mended: bool = False) -> RowFunction:
    """Return a row function that fails for these rows."""
    function = Mended() if mended else RowFunction()
    function.fails_at = {number: ValueError(f"row {number} is bad") for number in ids}
    return function


def options(function: RowFunction, **others: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return options that quarantine failing rows."""
    transform = per_row(function, concurrency=3, retry=QUICK)
    return {"transform": transform, "on_error": "quarantine", **others}


def without(*ids: int) -> list[int]:
    """Return all ids except these."""
    return [number for number in ALL if number not in ids]


def in_quarantine(rig: Rig) -> list[int]:
    """Return the rows that are in the run's quarantine now, as a user reads them."""
    chunks = quarantine_chunks(rig.ledger())
    return sorted(
        row["id"]
        for uri, chunk in chunks.items()
        for rows in read_chunk(rig.storage, uri, chunk)
        for row in rows["input"].to_pylist()
    )


def objects(storage: MemoryStorage) -> set[str]:
    """Return the objects with failed rows that the store holds."""
    return {uri for uri in storage.list(LAYOUT.tasks) if uri.endswith(".failed")}


def start_with_too_many(rig: Rig, *failing: int) -> RowFunction:
    """Start a run in which these rows fail although none may."""
    function = fails_at(*failing)
    with pytest.raises(TooManyErrorsError):
        rig.start(**options(function, max_errors=0))
    return function


def test_by_default_a_failing_row_ends_the_job_and_finished_rows_are_kept() -> None:
    """The error shows the row; the next start pays only for what is not durable."""
    rig, first, second = Rig(), fails_at(5), fails_at()
    with pytest.raises(TransformError, match=r"ValueError: row 5 is bad .*\(id=5\)") as caught:
        rig.start(**options(first, on_error="raise", retries=0))
    assert (caught.value.failed_tasks, caught.value.tasks) == (1, 2)
    done = durable_ids(rig)
    assert done == set(first.ids) - {5}
    assert done >= {0, 1, 2, 3, 4, *range(10, 20)}
    assert rig.table.data_snapshots == []
    driven = rig.start(**options(second, on_error="raise"))
    assert sorted(second.ids) == sorted(set(ALL) - done)
    assert (driven.kept_rows, rig.table.ids, objects(rig.storage)) == (len(done), ALL, set())


def test_rows_that_fail_are_quarantined_and_the_rest_lands() -> None:
    """The whole input is covered, and the report says how many rows are not in the table."""
    rig, submitter = Rig(), two_partitions()
    driven = rig.start(submitter, **options(fails_at(5, 13)))
    assert (rig.table.ids, driven.quarantined_rows) == (without(5, 13), 2)
    assert (in_quarantine(rig), driven.rows) == ([5, 13], 18)
    (seal,) = rig.log().seals.values()
    assert (seal.complete, seal.covered, seal.covered.rows) == (True, seal.input, 20)
    assert list(driven.rows_by_code.values()) == [18]
    again = rig.start(two_partitions(), **options(fails_at()))
    assert (again.outcome, again.input_compared, rig.table.ids) == (
        "already_committed",
        "keys",
        without(5, 13),
    )


def test_a_batch_transform_quarantines_only_the_rows_at_fault() -> None:
    """The rest of their batch is not lost with them."""
    rig, transform = Rig(), WatchedTransform()
    transform.fails_at = {5, 13}
    driven = rig.start(transform=transform, on_error="quarantine", batch_rows=10)
    assert (rig.table.ids, driven.quarantined_rows) == (without(5, 13), 2)
    assert (in_quarantine(rig), sorted(transform.ids)) == ([5, 13], without(5, 13))


@pytest.mark.parametrize("verify_input", ["keys", "rows", False])
@pytest.mark.parametrize(
    ("max_errors", "limit"),
    [(0, 0), (2, 2), (0.0, 0), (0.05, 1), (0.051, 2), (0.1, 2), (1.0, 20), (1, 1)],
)
def test_max_errors_limits_failed_rows_by_number_or_share(
    max_errors: float, limit: int, *, verify_input: VerifyInput
) -> None:
    """A share is of the input, and rounded up; without an input check, of the rows seen."""
    how = {"max_errors": max_errors, "verify_input": verify_input}
    rig = Rig()
    rig.start(**options(fails_at(*ALL[:limit]), **how))
    assert rig.table.ids == ALL[limit:]
    if limit == len(ALL):
        return
    rig = Rig()
    with pytest.raises(TooManyErrorsError, match="row 0 is bad") as caught:
        rig.start(**options(fails_at(*ALL[: limit + 1]), **how))
    assert (caught.value.rows, caught.value.limit) == (limit + 1, limit)
    assert rig.table.data_snapshots == []


def test_the_limit_holds_for_all_tasks_together() -> None:
    """Each task alone stays below it."""
    rig = Rig()
    with pytest.raises(TooManyErrorsError) as caught:
        rig.start(**options(fails_at(1, 2, 11, 12), max_errors=3))
    assert (caught.value.rows, caught.value.limit) == (4, 3)
    assert rig.kinds()[-1] == "Stop"


def test_a_task_over_the_limit_calls_no_further_rows() -> None:
    """A function that fails for every row is not paid for a million times."""
    rig, function = Rig(), fails_at(*range(100))
    with pytest.raises(TooManyErrorsError):
        rig.start(MemorySubmitter(range(100)), **options(function, max_errors=2))
    assert len(function.ids) <= 10


def test_without_an_input_check_a_share_does_not_limit_a_single_task() -> None:
    """The task does not know how many rows there are; an absolute number still applies to it."""
    for max_errors, expected in ((0.1, None), (4, 4)):
        rig, submitter = Rig(), two_partitions()
        rig.start(submitter, **options(fails_at(), max_errors=max_errors, verify_input=False))
        assert [plan.errors_max for plan in submitter.plans] == [expected]


def test_earlier_failures_count_against_the_limit_of_the_next_tasks() -> None:
    """The limit is for the whole run, not for each start."""
    rig, submitter = Rig(), two_partitions()
    submitter.after_task[0] = rig.storage.kill
    rig.start_and_die(submitter, **options(fails_at(1, 2), max_errors=3))
    submitter = two_partitions()
    with pytest.raises(TooManyErrorsError) as caught:
        rig.start(submitter, **options(fails_at(1, 2, 11, 12), max_errors=3))
    assert (submitter.plans[0].errors_max, caught.value.rows) == (1, 4)


def test_with_changed_code_only_the_failed_rows_are_tried_again() -> None:
    """Finished rows are not called again, and the report names both versions of the code."""
    rig = Rig()
    first = start_with_too_many(rig, 5, 13)
    done, mended = durable_ids(rig) - {5, 13}, fails_at(mended=True)
    with pytest.warns(UserWarning, match="code has changed"):
        driven = rig.start(**options(mended))
    assert sorted(mended.ids) == sorted(set(ALL) - done)
    assert set(mended.ids) & {5, 13} == {5, 13} & set(first.ids)
    assert (rig.table.ids, driven.quarantined_rows, in_quarantine(rig)) == (ALL, 0, [])
    claims = rig.log().claims
    assert driven.rows_by_code == {
        claims[1].code: len(done),
        claims[max(claims)].code: 20 - len(done),
    }


def test_a_row_that_also_fails_with_changed_code_is_quarantined_once() -> None:
    """Its older failure no longer counts."""
    rig, mended = Rig(), fails_at(13, mended=True)
    start_with_too_many(rig, 5, 13)
    with pytest.warns(UserWarning, match="code has changed"):
        driven = rig.start(**options(mended, max_errors=1))
    assert (rig.table.ids, driven.quarantined_rows) == (without(13), 1)
    assert in_quarantine(rig) == [13]


def test_after_a_kill_the_same_code_does_not_try_failed_rows_again() -> None:
    """They would fail again, and cost as much."""
    rig, submitter, second = Rig(), two_partitions(), fails_at(13)
    submitter.after_task[0] = rig.storage.kill
    rig.start_and_die(submitter, **options(fails_at(1, 2)))
    driven = rig.start(**options(second, max_errors=3))
    assert sorted(second.ids) == list(range(10, 20))
    assert (driven.kept_rows, driven.quarantined_rows) == (8, 3)
    assert (rig.table.ids, in_quarantine(rig)) == (without(1, 2, 13), [1, 2, 13])


def test_after_too_many_failures_the_same_code_tries_them_again() -> None:
    """Otherwise it could only fail again; a service that was down may be back."""
    rig, second = Rig(), fails_at()
    start_with_too_many(rig, 5, 13)
    rig.start(**options(second, max_errors=1))
    assert {5, 13} <= set(second.ids)
    assert (rig.table.ids, in_quarantine(rig)) == (ALL, [])


def test_within_a_raised_limit_failed_rows_stay_quarantined() -> None:
    """The other way to resolve too many failures."""
    rig, second = Rig(), fails_at()
    start_with_too_many(rig, 5, 13)
    aside = set(in_quarantine(rig))
    rig.start(**options(second, max_errors=2))
    assert not aside & set(second.ids)
    assert rig.table.ids == without(*aside)


def test_a_start_with_on_error_raise_tries_quarantined_rows_again() -> None:
    """It requires all rows in the table or none."""
    rig, submitter, second = Rig(), two_partitions(), fails_at()
    submitter.after_task[0] = rig.storage.kill
    rig.start_and_die(submitter, **options(fails_at(1, 2)))
    driven = rig.start(**options(second, on_error="raise"))
    assert sorted(second.ids) == [1, 2, *range(10, 20)]
    assert (rig.table.ids, driven.quarantined_rows) == (ALL, 0)


def test_a_complete_seal_is_final() -> None:
    """A post of it may have landed: its failed rows stay failed, whatever the code."""
    dry, rig, mended = Rig(), Rig(), fails_at(mended=True)
    dry.start(**options(fails_at(5)))
    rig.storage.writes_left = dry.storage.written.index(LAYOUT.record(4))
    rig.start_and_die(**options(fails_at(5)))
    assert [seal.complete for seal in rig.log().seals.values()] == [True]
    with pytest.warns(UserWarning, match="code has changed"):
        driven = rig.start(**options(mended))
    assert (mended.ids, driven.quarantined_rows, rig.table.ids) == ([], 1, without(5))


@pytest.mark.parametrize("lost", ["gone", "cut short"])
def test_failed_rows_whose_object_is_lost_are_tried_again(lost: str) -> None:
    """They could no longer be read; no other row is called."""
    rig, submitter, second = Rig(), two_partitions(), fails_at()
    submitter.after_job = rig.storage.kill
    rig.start_and_die(submitter, **options(fails_at(5, 13)))
    uri = min(objects(rig.storage))
    data = rig.storage.objects.pop(uri)
    if lost == "cut short":
        rig.storage.objects[uri] = data[:-1]
    driven = rig.start(**options(second))
    assert (second.ids, driven.withdrawn_rows, driven.kept_rows) == ([5], 1, 18)
    assert (rig.table.ids, in_quarantine(rig)) == (without(13), [13])


def test_a_sweep_keeps_rows_that_failed_for_good_and_nothing_older() -> None:
    """It may be the only copy of a row; rows that were tried again have landed."""
    rig = Rig()
    start_with_too_many(rig, 5, 13)
    with pytest.warns(UserWarning, match="code has changed"):
        rig.start(**options(fails_at(13, mended=True), max_errors=1))
    assert len(objects(rig.storage)) == 3
    kept = set(quarantine_chunks(rig.ledger()))
    ledger = rig.ledger()
    sweep(ledger, lambda _: rig.table)
    assert objects(rig.storage) == kept
    assert rig.storage.list(LAYOUT.tasks) == sorted(kept)
    assert (in_quarantine(rig), rig.table.ids) == ([13], without(13))
    assert sweep(ledger, lambda _: rig.table).ledger_objects == 0
    assert in_quarantine(rig) == [13]


def test_a_sweep_of_an_aborted_run_keeps_nothing() -> None:
    """None of its rows is in the table, so the input still holds them all."""
    rig = Rig()
    start_with_too_many(rig, 5, 13)
    abort(rig.ledger(), lambda _: rig.table, "enough")
    assert objects(rig.storage)
    sweep(rig.ledger(), lambda _: rig.table)
    assert rig.storage.list(LAYOUT.tasks) == []


def test_a_kill_before_any_write_neither_loses_nor_doubles_a_failed_row() -> None:
    """Whichever write is the last: each row lands or is quarantined, and done rows stay done."""
    how: dict[str, Any] = {"checkpoint_every": 1e-9}
    dry = Rig()
    dry.start(MemorySubmitter(range(4)), **options(fails_at(1, 3), max_errors=2, **how))
    for writes in range(len(dry.storage.written) - 4):
        rig, second = Rig(), fails_at(1, 3)
        rig.storage.writes_left = writes
        rig.start_and_die(MemorySubmitter(range(4)), **options(fails_at(1, 3), max_errors=2, **how))
        durable = durable_ids(rig)
        driven = rig.start(MemorySubmitter(range(4)), **options(second, max_errors=2, **how))
        assert (rig.table.ids, in_quarantine(rig)) == ([0, 2], [1, 3])
        if driven.outcome != "already_committed":
            assert sorted(second.ids) == sorted(set(range(4)) - durable)


def test_records_of_failed_rows_are_not_replayed() -> None:
    """Only chunks of output go into table files."""
    rig, submitter, function = Rig(), two_partitions(), fails_at(5, 13)
    rig.start(submitter, **options(function, checkpoint_every=1e-9))
    aside = [record for record in task_records(job_ledger(rig.storage)) if record.quarantine]
    assert len(aside) == 2
    assert (submitter.replays, rig.table.ids) == ([], without(5, 13))


def test_failed_rows_that_are_tried_again_are_not_reported_as_kept() -> None:
    """Kept rows are those that were not computed again."""
    rig, submitter, second = Rig(), two_partitions(), fails_at()
    submitter.after_task[0] = rig.storage.kill
    rig.start_and_die(submitter, **options(fails_at(1, 2)))
    driven = rig.start(**options(second, on_error="raise"))
    assert driven.kept_rows == 20 - len(second.ids) == 8


def test_a_start_of_a_run_that_has_landed_says_how_many_rows_had_failed() -> None:
    """They are still in the quarantine and not in the table."""
    rig = Rig()
    rig.start(**options(fails_at(5, 13)))
    assert rig.start(**options(fails_at(5, 13))).quarantined_rows == 2


def test_a_derived_input_does_not_land_with_more_failed_rows_than_allowed() -> None:
    """`run.remaining` returns the failed rows again, and the limit is unchanged."""
    rig, submitter = Rig(), two_partitions()
    with pytest.raises(TooManyErrorsError):
        rig.start(submitter, **options(fails_at(5, 13), max_errors=1))
    assert len(durable_ids(rig)) == 20
    how = WriteOptions(**options(fails_at(5, 13), max_errors=1))
    prepared = prepare(rig.ledger(), two_partitions(), ("id",), how)
    driver = Driver(
        ledger=prepared.ledger,
        sink=rig.table,
        input=Unpinned(MemorySubmitter([5, 13])),
        prepared=prepared,
    )
    with pytest.raises(TooManyErrorsError):
        driver.write(rig.table.load(), rig.identity(), how)


@pytest.mark.parametrize("max_errors", [-1, 1.5, True, "1%", None, float("nan"), float("inf")])
def test_an_invalid_limit_is_refused(max_errors: Any) -> None:  # noqa: ANN401
    """1.5 is neither a number of rows nor a share."""
    with pytest.raises(SettingsError, match="max_errors"):
        WriteOptions(max_errors=max_errors)


def test_other_invalid_options_are_refused() -> None:
    """A row function has no batches whose size could be chosen."""
    with pytest.raises(SettingsError, match="on_error"):
        WriteOptions(on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="batch_rows cannot be used with per_row"):
        WriteOptions(transform=per_row(RowFunction()), batch_rows=2)
