"""Columns of a Lance dataset with a real Spark: on S3, and on local files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import SettingsError, TransformError
from tests.integration.lance_desk import LanceDesk
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.lance]

ROWS, SIZE = 600, 8


@pytest.fixture(params=["versitygw", "local files"])
def desk(
    request: pytest.FixtureRequest, lake: SparkSession, stack: Stack, tmp_path: Path
) -> LanceDesk:
    """Return a dataset of three fragments with deleted rows, on each kind of storage."""
    if request.param == "versitygw":
        made = LanceDesk.on(lake, stack.s3)
    else:
        made = LanceDesk.below(lake, tmp_path)
    rows = pa.table({"id": pa.array(range(ROWS), pa.int64()), "label": ["x"] * ROWS})
    made.make(rows, max_rows_per_file=200)
    made.dataset().delete("id % 10 = 4")
    return made


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


def test_another_engine_reads_the_columns(desk: LanceDesk) -> None:
    """Through Lance's own reader of Arrow, as Daft and DuckDB do."""
    add(desk)
    scanned = desk.dataset().scanner(["id", "double"], filter="double > 1190").to_reader()
    assert sorted(row["id"] for row in scanned.read_all().to_pylist()) == [596, 597, 598, 599]
