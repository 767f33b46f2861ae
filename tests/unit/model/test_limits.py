"""Limits: each one bounds what a worker holds, and unusable values are refused."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField

import holdfast as hf
from holdfast.errors import SettingsError
from holdfast.model.limits import PART_BYTES
from holdfast.sinks.iceberg.data_file import OpenDataFile
from holdfast.storage.runtime import Budget, io_runtime
from holdfast.storage.upload import Upload
from holdfast.worker.replay import ITEM_COLUMN, ReplayPlan
from tests.fakes.iceberg_tables import writer_spec
from tests.fakes.rig import Rig, two_partitions
from tests.fakes.row_functions import run_task
from tests.fakes.task_ledgers import ListWriterSpec, WatchedStorage, job_ledger
from tests.fakes.watched_transform import WatchedTransform

SOON_S = 0.1
TABLE = pa.schema([("id", pa.int64())])
IDS = pa.RecordBatch.from_pydict({"id": pa.array(range(24), pa.int64())})
SCHEMA = Schema(NestedField(1, "id", LongType()))
BY_ID = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"))


@pytest.mark.parametrize("name", ["batch_bytes", "open_files", "in_flight_bytes"])
@pytest.mark.parametrize("value", [0, -1, None, True, "64", 1e9])
def test_a_limit_that_is_not_a_positive_integer_is_refused(name: str, value: object) -> None:
    """The message has the name and the value, and says what is accepted."""
    given: dict[str, Any] = {name: value}
    with pytest.raises(SettingsError, match=r"give a whole number of at least \d+") as caught:
        hf.Limits(**given)
    assert caught.value.what == f"Limits({name}={value!r})"


def test_less_in_flight_than_one_part_is_refused() -> None:
    """An upload goes out in parts of one size, so a smaller limit would allow none."""
    with pytest.raises(SettingsError, match=f"at least {PART_BYTES}"):
        hf.Limits(in_flight_bytes=PART_BYTES - 1)


@pytest.mark.parametrize("name", ["max_rows_per_file", "max_bytes_per_file"])
def test_a_file_size_of_zero_is_refused(name: str) -> None:
    """Before a task is started that cannot write."""
    given: dict[str, Any] = {name: 0}
    with pytest.raises(SettingsError, match=f"{name}=0") as caught:
        hf.LanceTable("s3://b/t.lance", **given)
    assert caught.value.what == f"LanceTable({name}=0)"


def test_the_minimum_of_each_limit_works() -> None:
    """One file, one part, and always at least one row in a batch."""
    least = hf.Limits(batch_bytes=1, open_files=1, in_flight_bytes=PART_BYTES)
    report = run_task(WatchedStorage(), IDS, batch_rows=None, limits=least)
    assert (report.end, report.rows_in) == ("complete", 24)


@pytest.mark.parametrize("batch_rows", [None, 24], ids=["as they come", "of a size"])
@pytest.mark.parametrize("on_error", ["raise", "quarantine"])
def test_a_transform_gets_batches_within_the_byte_limit(
    batch_rows: int | None, on_error: str
) -> None:
    """Rows of eight bytes, of which three are within the limit."""
    seen: list[int] = []

    def watch(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch.num_rows)
        return batch

    options = {"checkpoint_every_s": None, "on_error": on_error, "batch_rows": batch_rows}
    run_task(WatchedStorage(), IDS, transform=watch, limits=hf.Limits(batch_bytes=31), **options)
    assert (max(seen), sum(seen)) == (3, 24)


@pytest.mark.parametrize("most", [1, 3])
def test_a_task_opens_at_most_the_allowed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Twenty-four partitions need a file each; with one row per row group all would stay open."""
    files: list[OpenDataFile] = []
    open_then: list[int] = []
    write_row_group = OpenDataFile.write_row_group

    def count(file: OpenDataFile, rows: pa.Table) -> None:
        files.append(file)
        open_then.append(sum(opened._arrival is None for opened in files))  # noqa: SLF001
        write_row_group(file, rows)

    monkeypatch.setattr(OpenDataFile, "write_row_group", count)
    properties = {"write.parquet.row-group-limit": "1"}
    writer = writer_spec(tmp_path, SCHEMA, spec=BY_ID, properties=properties)
    limits = hf.Limits(open_files=most)
    run_task(WatchedStorage(), IDS, writer=writer, batch_rows=None, limits=limits)
    assert len(files) == 24
    assert max(open_then) == most


@pytest.mark.parametrize("most", [1, 3])
def test_as_many_closed_files_are_in_flight_as_may_be_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """A store that does not answer blocks the writer at the next file that it closes."""
    close, gate, asked = Upload.close, threading.Event(), threading.Semaphore(0)

    def late(upload: Upload) -> None:
        asked.release()
        assert gate.wait(20)
        close(upload)

    monkeypatch.setattr(Upload, "close", late)
    writer = writer_spec(tmp_path, SCHEMA, spec=BY_ID).open("task", hf.Limits(open_files=most))
    writer.write(writer.fit(IDS))
    task = threading.Thread(target=writer.cut)
    task.start()
    for _ in range(most + 1):  # The writer waits for the last of them.
        assert asked.acquire(timeout=20)
    assert not asked.acquire(timeout=SOON_S)
    gate.set()
    task.join()


def fits_beside(budget: Budget, one_bytes: int, other_bytes: int, wait_s: float = 20) -> bool:
    """Return whether both fit into the budget at once; leave nothing in it."""
    budget.take(one_bytes)
    other = threading.Thread(target=lambda: budget.take(other_bytes))
    other.start()
    other.join(wait_s)
    found = not other.is_alive()
    budget.give_back(one_bytes)
    other.join()
    budget.give_back(other_bytes)
    return found


@pytest.mark.parametrize(("parts", "fits"), [(2, True), (1, False)])
def test_a_task_has_at_most_the_allowed_bytes_in_flight(*, parts: int, fits: bool) -> None:
    """To the store and from it; the next task of the process starts with the usual bound."""
    gc.collect()  # The budget is per process: an upload that another test dropped counts too.
    budgets = io_runtime().uploads, io_runtime().reads
    wait_s = 20 if fits else SOON_S
    seen: list[bool] = []

    def sends(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.extend(fits_beside(budget, PART_BYTES, PART_BYTES, wait_s) for budget in budgets)
        return batch

    limits = hf.Limits(in_flight_bytes=parts * PART_BYTES)
    run_task(WatchedStorage(), IDS, transform=sends, limits=limits)
    assert seen == [fits, fits]
    assert all(fits_beside(budget, PART_BYTES, 7 * PART_BYTES) for budget in budgets)


def test_a_replay_keeps_to_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens its writer with them, and bounds its bytes in flight."""
    bounds: list[int] = []
    monkeypatch.setattr(Budget, "bound", lambda _, limit: bounds.append(limit))
    spec, limits = ListWriterSpec(TABLE), hf.Limits(in_flight_bytes=PART_BYTES, open_files=2)
    ledger = job_ledger(WatchedStorage())
    plan = ReplayPlan(writer=spec, ledger=ledger, job_nonce="job", limits=limits)
    plan.run([pa.RecordBatch.from_pydict({ITEM_COLUMN: ["[]"]})], place=0, attempt=0)
    assert [writer.limits for writer in spec.opened] == [limits]
    assert bounds[:2] == [PART_BYTES] * 2


def test_a_resume_may_use_other_limits() -> None:
    """They define how a worker works, not what the run is; every job of a start gets them."""
    rig, first, second = Rig(), WatchedTransform(), two_partitions()
    first.at[5] = rig.storage.kill
    chunks: dict[str, Any] = {"batch_rows": 2, "checkpoint_every": 1e-9}
    rig.start_and_die(transform=first, limits=hf.Limits(open_files=9), **chunks)
    limits = hf.Limits(open_files=3)
    rig.start(second, transform=WatchedTransform(), limits=limits, **chunks)
    assert rig.table.ids == list(range(20))
    assert {plan.limits for plan in second.plans} == {limits}
    assert {plan.limits for plan in second.replays} == {limits}
