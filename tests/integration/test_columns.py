"""Columns of a Lance dataset with a real Spark: on S3, and on local files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lance.file import LanceFileReader

import holdfast as hf
from holdfast.errors import SettingsError, TransformError
from holdfast.sinks.base import NUMBER_COLUMN
from holdfast.sinks.lance import column_files
from holdfast.sinks.lance.column_files import (
    COLUMN,
    FRAGMENT,
    Assembler,
    ColumnPlace,
    ColumnWriterSpec,
)
from holdfast.sinks.lance.dataset import DatasetPlace
from holdfast.sinks.lance.placing import Assembly, AssemblyPart
from tests.integration.lance_desk import LanceDesk
from tests.integration.process_jobs import run_job
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.lance]

ROWS, SIZE = 600, 8


@pytest.fixture
def desk(lance_desk: LanceDesk) -> LanceDesk:
    """Return a dataset of three fragments with deleted rows, on each kind of storage."""
    rows = pa.table({"id": pa.array(range(ROWS), pa.int64()), "label": ["x"] * ROWS})
    lance_desk.make(rows, max_rows_per_file=200)
    lance_desk.dataset().delete("id % 10 = 4")
    return lance_desk


def vectors(batch: pa.RecordBatch) -> dict[str, Any]:
    """Return a vector and a number for each id."""
    ids = np.asarray(batch["id"])
    column = pa.FixedSizeListArray.from_arrays(np.repeat(ids, SIZE).astype(np.float32), SIZE)
    return {"vector": column, "double": pa.array(2 * ids)}


def fails_late(batch: pa.RecordBatch) -> dict[str, Any]:
    """Return vectors, but not for the last rows.

    Raises:
        LookupError: One of them is in the batch.
    """
    if pc.max(batch["id"]).as_py() >= ROWS - 50:
        raise LookupError("no answer")
    return vectors(batch)


async def caption(row: dict[str, Any]) -> dict[str, Any]:
    """Answer for one row, but not for all.

    Raises:
        LookupError: It is one of those that never work.
    """
    if row["id"] in {17, 203}:
        raise LookupError("no answer")
    return {"caption": f"row {row['id']}"}


def add(desk: LanceDesk, run_id: str = "columns", **options: Any) -> hf.Report:  # noqa: ANN401
    """Add columns, with small batches and without retries."""
    usual = {"transform": vectors, "read_columns": ["id"], "batch_rows": 25, "retries": 0}
    return desk.run(run_id).add_columns(to=desk.to, **{**usual, **options})


def test_columns_are_added_and_resumed(desk: LanceDesk) -> None:
    """What a failed start has done is kept, and each row has its own values."""
    with pytest.raises(TransformError, match="no answer"):
        add(desk, transform=fails_late)
    with pytest.warns(UserWarning, match="code has changed"):
        report = add(desk)
    assert report.kept_rows > 200
    found = desk.dataset().to_table().to_pylist()
    assert {row["id"] for row in found} == {id_ for id_ in range(ROWS) if id_ % 10 != 4}
    for row in found:
        assert (row["vector"], row["double"]) == ([float(row["id"])] * SIZE, 2 * row["id"])
    assert add(desk).outcome == "already_committed"


def test_rows_that_fail_are_listed_and_have_no_value(desk: LanceDesk) -> None:
    """By a function of one row; a later run computes what is missing."""
    report = add(
        desk,
        transform=hf.per_row(caption, concurrency=8),
        batch_rows=None,
        on_error="quarantine",
        max_errors=10,
        cost=0.5,
    )
    assert report.rows == 538
    assert report.cost >= 0.5 * 538
    run = desk.run("columns")
    assert {row["input"]["id"] for row in run.quarantined().collect()} == {17, 203}
    with pytest.raises(SettingsError, match="computes columns"):
        run.retry_quarantined(transform=caption)
    found = desk.dataset().to_table().to_pylist()
    assert {row["id"] for row in found if row["caption"] is None} == {17, 203}
    again = desk.run("what is missing").update_columns(
        to=desk.to,
        transform=lambda batch: {"caption": ["late"] * batch.num_rows},
        read_columns=["id"],
        where=pc.field("caption").is_null(),
    )
    assert again.rows == 2
    captions = {row["id"]: row["caption"] for row in desk.dataset().to_table().to_pylist()}
    assert {captions.pop(17), captions.pop(203)} == {"late"}
    assert captions == {id_: f"row {id_}" for id_ in captions}


def test_a_search_finds_the_new_vectors(desk: LanceDesk) -> None:
    """An index that was built before answers, and so does one on the new column."""
    desk.dataset().create_scalar_index("id", "BTREE")
    add(desk)
    assert desk.dataset().to_table(filter="id = 333")["double"].to_pylist() == [666]
    desk.dataset().create_index("vector", "IVF_FLAT", num_partitions=2)
    nearest = {"column": "vector", "q": np.full(SIZE, 250.2, np.float32), "k": 1, "nprobes": 2}
    assert desk.dataset().to_table(["id"], nearest=nearest)["id"].to_pylist() == [250]
    report = desk.run("again").update_columns(
        to=desk.to, transform=vectors, read_columns=["id"], where=pc.field("id") < 100
    )
    assert report.unindexed_rows == {"vector_idx": 180}
    assert desk.dataset().to_table(["id"], nearest=nearest)["id"].to_pylist() == [250]
    added = desk.run("one more").add_columns(
        to=desk.to, transform=lambda batch: {"more": batch["id"]}, read_columns=["id"]
    )
    assert added.unindexed_rows == {"vector_idx": 180}
    assert desk.dataset().to_table(["id"], nearest=nearest)["id"].to_pylist() == [250]


def test_another_engine_reads_the_columns(desk: LanceDesk) -> None:
    """Through Lance's own reader of Arrow, as Daft and DuckDB do."""
    add(desk)
    scanned = desk.dataset().scanner(["id", "double"], filter="double > 1190").to_reader()
    assert sorted(row["id"] for row in scanned.read_all().to_pylist()) == [596, 597, 598, 599]


def test_pages_are_copied_on_each_kind_of_storage(
    desk: LanceDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values of two tasks become the file of a fragment, which Lance reads as one of its own."""
    monkeypatch.setattr(column_files, "_PAGE_BYTES_MIN", 0)
    schema = pa.schema([("vector", pa.list_(pa.float32(), 4000))])
    place = DatasetPlace(uri=desk.uri, options=desk.options)
    columns = ColumnPlace(table=desk.uri, place=place, schema=schema, storage_version="2.2")
    spec = ColumnWriterSpec(columns=columns, bases=(0, 200, 400, 600), bytes_per_file=10**9)
    groups = []
    for first in (100, 0):
        ids = np.arange(first, first + 100)
        column = pa.FixedSizeListArray.from_arrays(np.repeat(ids, 4000).astype(np.float32), 4000)
        writer = spec.open("task")
        named = pa.record_batch([column, pa.array(ids)], ["vector", NUMBER_COLUMN])
        writer.write(writer.fit(named))
        groups += writer.cut()
    files = tuple((group.path, group.files[0].rows, group.size_bytes) for group in groups)
    work = Assembly(
        state="s",
        fragment=0,
        version=2,
        rows=200,
        parts=(AssemblyPart(base=0, fragment=0, version=2, files=files, failed=()),),
        since=0,
        keeps=False,
        like=str(groups[0].detail[FRAGMENT]),
    )
    group = Assembler(columns).rewrite(work.to_json()).group
    assert group is not None
    assert NUMBER_COLUMN in group.detail[COLUMN]["names"]  # Of the tasks' files: it was copied.
    assert group.size_bytes == desk.storage.size(group.path)
    found = LanceFileReader(group.path, place.lance_options).read_all().to_table()
    assert [value[3999] for value in found["vector"].to_pylist()] == list(range(200))


@pytest.mark.connect
@pytest.mark.stack
def test_under_connect_columns_are_added_resumed_and_completed(
    desk: LanceDesk, stack: Stack, tmp_path: Path
) -> None:
    """A client without a JVM adds columns, fails, goes on, and computes what others appended."""
    job = {
        "spark": {"spark.remote": stack.connect_remote},
        "run_id": "columns",
        "verb": "add_columns",
        "to": desk.uri,
        "storage_options": desk.options,
        "store": desk.store,
        "store_options": desk.store_options,
        "fails_from": ROWS - 50,
    }
    failed = run_job(job, folder=tmp_path, script="columns_job.py")
    assert (failed.code, "LookupError: no answer" in failed.errors) == (1, True), failed.errors
    done = run_job({**job, "fails_from": ROWS}, folder=tmp_path, script="columns_job.py")
    assert (done.code, done.report.get("outcome")) == (0, "committed"), done.errors
    assert desk.versions("columns") == [3]
    desk.make(pa.table({"id": pa.array([1000, 1001]), "label": ["y", "y"]}), mode="append")
    more = {**job, "run_id": "the rest", "verb": "update_columns", "fails_from": 2000}
    done = run_job(more, folder=tmp_path, script="columns_job.py")
    assert (done.code, done.report.get("rows")) == (0, "2"), done.errors
    found = desk.dataset().to_table().to_pylist()
    assert len(found) == 542
    for row in found:
        assert (row["double"], row["text"]) == (2 * row["id"], f"row {row['id']}")
