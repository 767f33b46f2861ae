"""Whole runs onto a Lance dataset with a real Spark: on S3, and on local files."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import (
    RunAbortedError,
    RunCommittedError,
    RunFencedError,
    RunMismatchError,
    RunUnfinishedError,
    SchemaMismatchError,
    TableChangedError,
    TableMissingError,
    TransformError,
)
from tests.integration.lance_desk import LABELLED, ROWS, HeldLabelled, Labelled, LanceDesk
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.lance]


@pytest.fixture
def desk(lance_desk: LanceDesk) -> LanceDesk:
    """Return a place without a dataset, on each kind of storage."""
    return lance_desk


def half_done(desk: LanceDesk, run_id: str = "nightly") -> None:
    """Leave a run with one task's rows in a fragment, and some of the other's in a chunk."""
    with pytest.raises(TransformError):
        desk.append(run_id=run_id, transform=Labelled([ROWS - 4]))


def test_a_dataset_is_made_and_gets_each_row_once(desk: LanceDesk) -> None:
    """One version has all rows, and names the run."""
    with pytest.raises(TableMissingError, match=r"rows\.lance: there is no such dataset"):
        desk.append(create=None)
    report = desk.append()
    assert (report.outcome, report.rows, report.files) == ("committed", ROWS, 2)
    assert desk.rows() == LABELLED
    assert desk.versions() == [report.snapshot_id]
    assert not desk.dataset().schema.field("id").nullable


def test_a_dataset_with_the_schema_of_the_dataframe(desk: LanceDesk) -> None:
    """Without a transform and a schema, the DataFrame's own schema is used."""
    df = desk.ids().selectExpr("id", "concat('row ', id) AS label", "array(id, 1L) AS pair")
    desk.append(df, transform=None, create=hf.Create())
    assert desk.rows() == [(id_, f"row {id_}", [id_, 1]) for id_ in range(ROWS)]


def test_a_second_start_goes_on_and_a_third_gives_the_receipt(desk: LanceDesk) -> None:
    """What was done stays done; after the commit nothing is done, and new rows are not dropped."""
    half_done(desk)
    first = desk.append()
    assert (first.outcome, first.rows) == ("committed", ROWS)
    assert first.kept_rows > 0
    again = desk.append()
    assert (again.outcome, again.snapshot_id) == ("already_committed", first.snapshot_id)
    with pytest.raises(RunMismatchError, match=rf"had {ROWS} rows and now has {ROWS + 3}: 3 more"):
        desk.append(desk.ids(rows=ROWS + 3))
    assert desk.rows() == LABELLED
    assert desk.versions() == [first.snapshot_id]


def test_an_overwrite_that_failed_goes_on_and_replaces_all_rows_once(desk: LanceDesk) -> None:
    """Old rows until then, no row computed twice, the index kept, and a sweep that keeps it all."""
    desk.append(desk.ids(rows=2 * ROWS), run_id="first")
    desk.dataset().create_scalar_index("id", "BTREE")
    old, before = desk.rows(), desk.dataset().version
    with pytest.raises(TransformError):
        desk.write("overwrite", transform=Labelled([ROWS - 4]))
    assert desk.rows() == old
    report = desk.write("overwrite")
    assert (report.outcome, report.rows, report.replaced_rows) == ("committed", ROWS, 2 * ROWS)
    assert report.kept_rows > 0
    assert (desk.rows(), desk.dataset(before).count_rows()) == (LABELLED, 2 * ROWS)
    assert report.unindexed_rows == {"id_idx": ROWS}
    assert desk.write("overwrite").outcome == "already_committed"
    desk.run().sweep(to=desk.to)
    assert desk.rows() == LABELLED


def test_a_scan_of_the_dataset_itself_binds_the_run_to_what_it_read(desk: LanceDesk) -> None:
    """Rows that others add meanwhile are not in the input: they stay, or nothing lands."""
    desk.append(run_id="first")
    more = pa.table(
        {"id": pa.array([77], pa.int64()), "label": ["more"]},
        schema=desk.dataset().schema.remove_metadata(),
    )
    scan = hf.scan_lance(desk.uri, options=desk.options)

    def shout(batch: pa.RecordBatch) -> pa.RecordBatch:
        labels = [label.upper() for label in batch["label"].to_pylist()]
        return batch.set_column(1, "label", pa.array(labels))

    version = desk.dataset().version
    desk.make(more, mode="append")
    pinned = hf.scan_lance(desk.uri, options=desk.options, version=version)
    options: dict[str, Any] = {"to": desk.to, "transform": shout}
    with pytest.raises(TableChangedError, match=f"no longer those of snapshot {version}"):
        desk.run("bound").overwrite(pinned, **options)
    desk.run("spares").overwrite(pinned, isolation_level="snapshot", **options)
    loud = [(id_, label.upper()) for id_, label in LABELLED]
    assert desk.rows() == sorted([*loud, (77, "more")])
    desk.run("all").overwrite(scan, **options)
    assert desk.rows() == sorted([*loud, (77, "MORE")])
    assert desk.run("all").overwrite(scan, **options).outcome == "already_committed"


@pytest.mark.parametrize("landed", [False, True], ids=["half done", "landed"])
def test_the_same_id_onto_another_dataset_is_refused(desk: LanceDesk, *, landed: bool) -> None:
    """The error says what differs, and the run itself continues unharmed."""
    if landed:
        desk.append()
    else:
        half_done(desk)
    other = hf.LanceTable(f"{desk.folder}/other.lance", storage_options=desk.options)
    words = rf"it writes the table {desk.uri}, but this start writes {desk.folder}/other\.lance"
    with pytest.raises(RunMismatchError, match=words):
        desk.append(to=other)
    assert desk.storage.list(f"{desk.folder}/other.lance") == []  # Despite create=.
    desk.append(transform=Labelled([]))
    assert desk.rows() == LABELLED
    assert len(desk.versions()) == 1


def test_two_runs_and_others_share_a_dataset(desk: LanceDesk) -> None:
    """Other writers' rows, deletes and index survive two runs, and the index finds all rows."""
    desk.append(run_id="first")
    desk.make(pa.table({"id": [-1, -2], "label": ["foreign", "foreign"]}), mode="append")
    desk.dataset().delete("id = -2")
    desk.dataset().create_scalar_index("id", "BTREE")
    more = desk.session.range(100, 103, 1, 2)
    desk.append(more, run_id="second")
    added = [(number, f"row {number}") for number in range(100, 103)]
    assert desk.rows() == [(-1, "foreign"), *LABELLED, *added]
    for number in (-1, 7, 101):
        assert desk.dataset().to_table(filter=f"id = {number}").num_rows == 1
    desk.dataset().optimize.compact_files()
    for run_id, rows in (("first", desk.ids()), ("second", more)):
        assert desk.append(rows, run_id=run_id).outcome == "already_committed"
    assert len(desk.rows()) == ROWS + 4


def test_a_driver_is_fenced_by_a_later_one(desk: LanceDesk, tmp_path: Path) -> None:
    """The later driver's rows land once; the first gets an error, and adds nothing."""
    called, release = tmp_path / "called", tmp_path / "release"
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(desk.append, desk.ids(tasks=1), transform=HeldLabelled(tmp_path))
        try:
            until = time.monotonic() + 60.0
            while not called.exists() and not first.done() and time.monotonic() < until:
                time.sleep(0.05)
            assert called.exists()  # It is at work, so the test is not vacuous.
            with pytest.warns(UserWarning, match="code has changed"):
                report = desk.append(desk.ids(tasks=1), takeover="now")
        finally:
            release.touch()
        with pytest.raises(RunFencedError):
            first.result()
    assert report.outcome == "committed"
    assert desk.rows() == LABELLED
    assert desk.versions() == [report.snapshot_id]


BAD_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("label", pa.string(), nullable=False),
        ("vector", pa.list_(pa.float32(), 3)),
    ]
)


class Output:
    """Gives all rows the same values, some of which a test changes; an ellipsis removes one."""

    def __init__(self, **changes: Any) -> None:  # noqa: ANN401 - any value.
        """Take what is changed."""
        self.changes = changes

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Return the ids with the values."""
        row = {"label": "a", "vector": np.array([0.0, 1.0, 2.0], np.float32), **self.changes}
        return {
            "id": batch["id"],
            **{name: [value] * batch.num_rows for name, value in row.items() if value is not ...},
        }


@pytest.mark.parametrize(
    ("changes", "column", "problem"),
    [
        ({"label": ...}, "label", "required, but missing from the output"),
        ({"label": None}, "label", "required, but NULL in row 0"),
        ({"label": 7}, "label", "int64 cannot be cast to string without loss"),
        ({"vector": np.zeros(2, np.float32)}, "vector", "2 elements instead of 3 in row 0"),
        ({"vector": 1.0}, "vector", "cannot be cast"),
        ({"planet": "earth"}, "planet", "the table has no such column"),
    ],
    ids=["missing", "null", "type", "length", "no vector", "extra"],
)
def test_output_that_does_not_fit_is_reported_by_column(
    desk: LanceDesk, changes: dict[str, Any], column: str, problem: str
) -> None:
    """The error names the column and says what is wrong; nothing lands, and a fix is enough."""
    create = hf.Create(schema=BAD_SCHEMA)
    with pytest.raises(SchemaMismatchError, match=problem) as caught:
        desk.append(transform=Output(**changes), create=create)
    assert caught.value.column == column
    assert caught.value.table == desk.uri
    assert desk.versions() == []
    assert desk.kinds().count("Intent") == 0
    assert desk.append(transform=Output(), create=create).outcome == "committed"
    assert desk.rows() == [(number, "a", [0.0, 1.0, 2.0]) for number in range(ROWS)]


def test_an_aborted_run_is_swept_and_nothing_else(desk: LanceDesk) -> None:
    """Its files go; those of others, of the dataset and of a run under way stay."""
    desk.append(run_id="landed")
    half_done(desk, "other")
    desk.storage.create(f"{desk.uri}/data/stranger.lance", b"not ours")
    kept = desk.files()
    half_done(desk)
    staged = desk.files() - kept
    assert staged  # There is something to sweep, so the test is not vacuous.
    with pytest.raises(RunUnfinishedError, match=r"run\.abort\(\)"):
        desk.run().sweep(to=desk.to)
    desk.run().abort(to=desk.to, reason="wrong model")
    with pytest.raises(RunAbortedError, match="wrong model"):
        desk.append()
    swept = desk.run().sweep(to=desk.to)
    assert swept.data_files == len(staged)
    assert desk.files() == kept
    assert desk.rows() == LABELLED
    assert desk.versions() == []
    assert desk.append(run_id="other").outcome == "committed"


def test_a_sweep_after_the_commit_leaves_what_the_dataset_needs(desk: LanceDesk) -> None:
    """Left-overs go, the rows stay; the run is still known, and cannot be aborted."""
    half_done(desk)
    first = desk.append()
    assert desk.run().sweep(to=desk.to).ledger_objects > 0
    assert desk.files() == desk.live_files()
    assert desk.rows() == LABELLED
    with pytest.raises(RunCommittedError):
        desk.run().abort(to=desk.to)
    again = desk.append()
    assert (again.outcome, again.snapshot_id) == ("already_committed", first.snapshot_id)
    assert desk.run().sweep(to=desk.to) == hf.Swept(data_files=0, ledger_objects=0)


@pytest.mark.stack
@pytest.mark.parametrize("names", ["Lance's", "Iceberg's", "the session's"])
def test_options_are_taken_under_any_names(session: SparkSession, stack: Stack, names: str) -> None:
    """Drivers and workers find the server under each set of names, and so do abort and sweep."""
    desk = LanceDesk.on(session, stack.s3)
    session = session.newSession()
    to: Any = desk.to
    if names == "Iceberg's":
        to = hf.LanceTable(desk.uri, storage_options=desk.store_options)
    if names == "the session's":
        to = desk.uri
        for name, value in desk.options.items():
            session.conf.set(f"spark.holdfast.lance.{name}", value)
    df = session.range(0, ROWS, 1, 2)
    assert desk.append(df, to=to).outcome == "committed"
    assert desk.append(df, to=to).outcome == "already_committed"
    assert desk.rows() == LABELLED
