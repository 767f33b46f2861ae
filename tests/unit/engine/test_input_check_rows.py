"""The same keys with other values: `verify_input="rows"` finds them, and "keys" does not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.engine.claim import prepare
from holdfast.engine.options import VerifyInput, WriteOptions
from holdfast.errors import InputChangedError, RunMismatchError, SettingsError
from holdfast.model.coverage import Coverage, InputSums
from holdfast.model.work import TaskRecord, Work
from holdfast.sources.base import KEY_HASH, ROW_HASH, TAG_COLUMN
from holdfast.worker.coverage import hash_sums, hashes_of, split_tag
from tests.fakes.memory_submitter import MemorySubmitter, row_hashes
from tests.fakes.memory_table import PostFault
from tests.fakes.rig import Rig

ALL = list(range(20))
ROWS: dict[str, Any] = {"verify_input": "rows"}
CHUNKS: dict[str, Any] = {"batch_rows": 2, "checkpoint_every": 1e-9}
CHANGED = "keys are the same, but some of the 10 finished rows now have different values"


class OnlyIds:
    """A transform that records the values it saw, and returns the table's columns."""

    def __init__(self) -> None:
        """Start without recorded values."""
        self.names: set[str] = set()
        self.ids: list[int] = []

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Take one batch."""
        self.names |= set(batch.schema.names)
        self.ids += batch["id"].to_pylist()
        return batch.select(["id"])


def only_ids(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the table's columns."""
    return batch.select(["id"])


def balances(ids: Iterable[int], value: int | None, **others: int | None) -> pa.RecordBatch:
    """Return customers with a balance; `id_7=1` gives the seventh another one."""
    ids = list(ids)
    values = [others.get(f"id_{customer}", value) for customer in ids]
    return pa.record_batch({"id": pa.array(ids), "balance": pa.array(values, pa.int64())})


def customers(value: int | None = 1, **others: int | None) -> MemorySubmitter:
    """Return twenty customers in two partitions."""
    halves = (range(10), range(10, 20))
    return MemorySubmitter(*(balances(ids, value, **others) for ids in halves))


def half_way(rig: Rig, submitter: MemorySubmitter | None = None, **options: Any) -> None:  # noqa: ANN401
    """Start, and die when the first ten rows are done."""
    submitter = submitter or customers()
    submitter.before_task[1] = rig.storage.kill
    rig.start_and_die(submitter, transform=only_ids, **options)


def start(rig: Rig, submitter: MemorySubmitter, **options: Any) -> Any:  # noqa: ANN401
    """Start the job."""
    return rig.start(submitter, transform=only_ids, **options)


def test_after_the_commit_new_values_under_the_same_keys_are_another_input() -> None:
    """By keys it is the same job, and the report says that only keys were compared."""
    rig = Rig()
    start(rig, customers(1), **ROWS)
    with pytest.raises(RunMismatchError, match="20 rows with the same keys, but different values"):
        start(rig, customers(2), **ROWS)
    again = start(rig, customers(1), **ROWS)
    assert (again.outcome, again.input_compared) == ("already_committed", "rows")
    again = start(rig, customers(2), verify_input="keys")
    assert (again.outcome, again.input_compared) == ("already_committed", "keys")
    assert len(rig.table.data_snapshots) == 1


def test_half_way_new_values_under_finished_keys_stop_the_run() -> None:
    """Otherwise half of the table would be from one day, and half from another."""
    rig, other = Rig(), customers(2)
    half_way(rig, **ROWS)
    with pytest.raises(InputChangedError, match=CHANGED) as caught:
        start(rig, other, **ROWS)
    assert 'verify_input="keys"' in str(caught.value)
    assert (other.plans, rig.table.data_snapshots) == ([], [])
    driven = start(rig, customers(1), **ROWS)
    assert (driven.kept_rows, driven.input_compared, rig.table.ids) == (10, "rows", ALL)


def test_half_way_keys_alone_do_not_show_new_values() -> None:
    """The documented limit of "keys"."""
    rig = Rig()
    half_way(rig, verify_input="keys")
    driven = start(rig, customers(2), verify_input="keys")
    assert (driven.kept_rows, driven.input_compared, rig.table.ids) == (10, "keys", ALL)


@pytest.mark.parametrize("value", [2, None], ids=["changed", "now NULL"])
def test_one_changed_value_among_finished_rows_is_enough(value: int | None) -> None:
    """Sums over whole rows show a single changed value."""
    rig = Rig()
    half_way(rig, **ROWS)
    with pytest.raises(InputChangedError, match=CHANGED):
        start(rig, customers(1, id_3=value), **ROWS)


def test_rows_that_are_not_done_may_change() -> None:
    """Their old values were not used."""
    rig = Rig()
    half_way(rig, **ROWS)
    driven = start(rig, customers(1, id_13=7), **ROWS)
    assert (driven.kept_rows, rig.table.ids) == (10, ALL)


def test_rows_that_were_added_are_accepted_and_do_not_hide_a_changed_one() -> None:
    """Sums are compared over the finished rows only."""
    more = balances(range(20, 25), 1)
    rig = Rig()
    half_way(rig, **ROWS)
    with pytest.raises(InputChangedError, match=CHANGED):
        start(rig, MemorySubmitter(*customers(1, id_3=2).partitions, more), **ROWS)
    driven = start(rig, MemorySubmitter(*customers(1).partitions, more), **ROWS)
    assert (driven.kept_rows, rig.table.ids) == (10, list(range(25)))


def test_two_rows_that_swap_their_values_are_noticed() -> None:
    """As with row_number() over another order: the same keys and values in other pairs."""
    rig = Rig()
    half_way(rig, customers(1, id_2=5), **ROWS)
    with pytest.raises(InputChangedError, match=CHANGED):
        start(rig, customers(1, id_3=5), **ROWS)


def test_values_that_change_between_the_look_and_the_job_are_noticed() -> None:
    """The rows that tasks read are compared with those measured, within one start as well."""
    rig, submitter = Rig(), customers(1)
    submitter.next_reads.append(customers(1, id_13=2).partitions)
    with pytest.raises(InputChangedError, match="some of the 20 finished rows"):
        start(rig, submitter, **ROWS)
    assert rig.table.data_snapshots == []
    # The rows that were read are the input now: nothing needs to be done again.
    driven = start(rig, customers(1, id_13=2), **ROWS)
    assert (driven.kept_rows, rig.table.ids) == (20, ALL)


@pytest.mark.parametrize("is_landed", [False, True], ids=["half way", "landed"])
def test_rows_that_were_done_by_keys_cannot_be_compared_by_values(*, is_landed: bool) -> None:
    """The error says how many rows, and its advice works."""
    rig = Rig()
    if is_landed:
        start(rig, customers())
    else:
        half_way(rig)
    rows = 20 if is_landed else 10
    with pytest.raises(RunMismatchError, match=f"{rows} rows were done without it") as caught:
        start(rig, customers(), **ROWS)
    assert 'verify_input="keys"' in str(caught.value)
    driven = start(rig, customers(), verify_input="keys")
    assert (driven.outcome == "already_committed", driven.input_compared, rig.table.ids) == (
        is_landed,
        "keys",
        ALL,
    )


def test_a_run_checked_by_rows_continues_by_keys_and_then_cannot_go_back() -> None:
    """The report says which check was used last; rows done by keys have no sums."""
    rig = Rig()
    half_way(rig, **ROWS)
    driven = start(rig, customers(2), verify_input="keys")
    assert (driven.kept_rows, driven.input_compared, rig.table.ids) == (10, "keys", ALL)
    with pytest.raises(RunMismatchError, match="20 rows were done without it"):
        start(rig, customers(1), **ROWS)


@pytest.mark.parametrize("is_landed", [False, True], ids=["half way", "landed"])
def test_a_column_that_was_added_is_another_input_and_is_named(*, is_landed: bool) -> None:
    """The order of columns does not matter."""

    def wider(rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.append_column("city", pa.array(["x"] * rows.num_rows))

    rig, kind = Rig(), RunMismatchError if is_landed else InputChangedError
    if is_landed:
        start(rig, customers(), **ROWS)
    else:
        half_way(rig, **ROWS)
    new = MemorySubmitter(*map(wider, customers().partitions))
    with pytest.raises(kind, match=r"columns have changed \(gone: none; new: city string\)"):
        start(rig, new, **ROWS)
    turned = [rows.select(["balance", "id"]) for rows in customers().partitions]
    assert start(rig, MemorySubmitter(*turned), **ROWS).input_compared == "rows"
    assert rig.table.ids == ALL


@pytest.mark.parametrize("verify_input", ["keys", "rows"])
def test_all_columns_are_read_only_for_rows(verify_input: VerifyInput) -> None:
    """By keys, tasks read no additional column, and the transform never sees one."""
    rig, submitter, transform = Rig(), customers(), OnlyIds()
    rig.start(submitter, transform=transform, verify_input=verify_input)
    is_rows = verify_input == "rows"
    assert (submitter.row_reads, submitter.plans[0].whole_rows) == (int(is_rows), is_rows)
    assert transform.names == {"id", "balance"}
    coverage = rig.sealed().records[0].coverage
    assert (coverage.row_low is not None) == is_rows


@pytest.mark.parametrize("how", ["chunks", "per row", "quarantine"])
def test_each_mode_sums_each_row_once(how: str) -> None:
    """Rows in chunks, rows in flight and failed rows are all in the sums."""
    rig = Rig()

    def answer(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": row["id"]}

    def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
        if 7 in batch["id"].to_pylist():
            raise ValueError("seven")
        return only_ids(batch)

    options: dict[str, dict[str, Any]] = {
        "chunks": {"transform": only_ids, **CHUNKS},
        "per row": {"transform": hf.per_row(answer)},
        "quarantine": {"transform": fails, "on_error": "quarantine", "max_errors": 1},
    }
    rig.start(customers(), **options[how], **ROWS)
    found = [
        hash_sums(row_hashes(rows).to_numpy().view("uint64")) for rows in customers().partitions
    ]
    sums = rig.sealed().sums
    assert (sums.row_low, sums.row_high) == tuple(map(sum, zip(*found, strict=True)))
    assert rig.start(customers(), **options[how], **ROWS).input_compared == "rows"


def test_rows_of_remaining_cannot_be_compared_by_values() -> None:
    """The rows that arrive are derived from the input's rows: the error comes at once."""
    rig = Rig()
    with pytest.raises(SettingsError, match=r'"rows" cannot be used with run\.remaining'):
        prepare(rig.ledger(), customers(), ("id",), WriteOptions(verify_input="rows"))
    assert rig.storage.objects == {}  # The run is not claimed.
    prepare(rig.ledger(), customers(), ("id",), WriteOptions())


def test_work_knows_the_sums_of_rows_only_if_every_record_does() -> None:
    """A sum over only some of the rows would match nothing, or the wrong rows."""

    def record(number: int, low: int | None = None, high: int | None = None) -> TaskRecord:
        coverage = Coverage(rows=2, low=1, high=1, keys_bytes=0, row_low=low, row_high=high)
        return TaskRecord(name=f"1/rows/{number}/0/0", coverage=coverage, seconds=0.0)

    summed, bare = record(0, 5, 6), record(1)
    assert TaskRecord.from_json(summed.to_json()) == summed
    both = Work(records=(summed, bare))
    assert (both.rows_without_sums, both.sums.has_row_sums) == (2, False)
    whole = Work(records=(summed, record(1, 1, 0))).sums
    assert (whole.row_low, whole.row_high) == (6, 6)
    assert Work().sums.plus(whole).matches(whole)
    assert not both.sums.plus(whole).has_row_sums


def test_sums_are_compared_as_far_as_both_sides_know_them() -> None:
    """Keys always; values if both have them."""
    keys = InputSums(rows=1, null_keys=0, low=2, high=3)
    first = InputSums(rows=1, null_keys=0, low=2, high=3, row_low=4, row_high=5)
    other = InputSums(rows=1, null_keys=0, low=2, high=3, row_low=4, row_high=6)
    assert (keys.matches(first), first.matches(keys), first.matches(first)) == (True, True, True)
    assert (first.matches(other), other.matches(first)) == (False, False)
    assert (keys.difference(first), first.difference(first)) == ("", "")
    assert "different values" in first.difference(other)


def test_tags_are_split_by_name_and_slice() -> None:
    """A slice of the rows has the hashes of these rows, not of the first ones."""
    tags = pa.StructArray.from_arrays(
        [pa.array([-1, 2, 3]), pa.array([4, 5, 6])], names=[ROW_HASH, KEY_HASH]
    )
    rows = pa.record_batch({"id": [1, 2, 3], TAG_COLUMN: tags})
    rest, found = split_tag(rows.slice(1))
    hashes = hashes_of(found)
    assert rest.schema.names == ["id"]
    assert {name: list(words) for name, words in hashes.items()} == {"row": [2, 3], "key": [5, 6]}
    assert list(hashes_of(pa.array([-1]))[KEY_HASH]) == [2**64 - 1]
    assert hashes_of(None) == {}


@pytest.mark.parametrize("begun", ["rows", "keys"])
def test_a_run_that_only_had_to_commit_compares_values_too(begun: VerifyInput) -> None:
    """All rows are staged: the last look before the post is the last chance."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    rig.start_and_die(customers(), transform=only_ids, verify_input=begun)
    if begun == "keys":
        with pytest.raises(RunMismatchError, match="20 rows were done without it"):
            start(rig, customers(), **ROWS)
        assert rig.table.data_snapshots == []
        return
    with pytest.raises(InputChangedError, match="some of the 20 finished rows"):
        start(rig, customers(1, id_3=2), **ROWS)
    assert rig.table.data_snapshots == []
    more = MemorySubmitter(*customers().partitions, balances(range(20, 25), 1))
    driven = start(rig, more, **ROWS)
    assert (driven.kept_rows, driven.input_compared) == (20, "rows")
    assert rig.table.ids == list(range(25))


def test_a_post_that_lands_late_is_compared_by_values_as_well() -> None:
    """The first start's rows are in the table now, and the second has read others."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_DELAYED)
    rig.start_and_die(customers(), transform=only_ids, **ROWS)
    more = MemorySubmitter(*customers().partitions, balances(range(20, 25), 1))
    with pytest.raises(RunMismatchError, match="had 20 rows and now has 25: 5 more"):
        start(rig, more, **ROWS)
    with pytest.raises(RunMismatchError, match="different values"):
        start(rig, customers(1, id_3=2), **ROWS)


def dated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return ids that show which balance they were made from."""
    made = [i + 1000 * b for i, b in zip(*(c.to_pylist() for c in batch.columns), strict=True)]
    return pa.record_batch({"id": pa.array(made)})


@pytest.mark.slow_unit
@pytest.mark.parametrize("how", [{}, CHUNKS], ids=["files", "chunks"])
def test_wherever_a_start_dies_the_table_never_has_values_of_both_days(how: dict[str, Any]) -> None:
    """Killed before each write in turn: the second day is refused, or is all that lands."""
    dry = Rig()
    dry.start(customers(1), transform=dated, **ROWS, **how)
    refused = 0
    for writes in range(len(dry.storage.written)):
        rig = Rig()
        rig.storage.writes_left = writes
        rig.start_and_die(customers(1), transform=dated, **ROWS, **how)
        try:
            rig.start(customers(2), transform=dated, **ROWS, **how)
        except (InputChangedError, RunMismatchError):
            refused += 1
            rig.start(customers(1), transform=dated, **ROWS, **how)
        days = {number // 1000 for number in rig.table.ids}
        assert (len(rig.table.ids), len(days), len(rig.table.data_snapshots)) == (20, 1, 1)
    assert refused
