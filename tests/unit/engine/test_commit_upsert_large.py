"""Upserts with more keys than one task holds, and what an upsert counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

from holdfast.engine import base, large_index
from holdfast.engine.cleanup import sweep
from holdfast.errors import DuplicateOutputError, JobFailedError, LedgerDamagedError
from holdfast.ledger import key_hits
from holdfast.ledger.run_log import RunLog
from holdfast.model.records import Indexed, MergeCounts, Rewritten
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.worker import key_index
from holdfast.worker.key_index import BucketPlan, PiecePlan
from tests.fakes.position_deletes import delete_positions
from tests.unit.engine.test_commit_upsert import OLD, Merged, killed_after

JOBS: dict[str, type] = {"pieces": PiecePlan, "buckets": BucketPlan}


@pytest.fixture
def made(tmp_path: Path) -> Merged:
    """Return a table."""
    return Merged.table_of(tmp_path)


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let every index be a large one, with few keys in each piece and file; return its jobs."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr(base, "SMALL_ROWS", 0)
    monkeypatch.setattr(large_index, "_ITEM_ROWS_MIN", 1)
    monkeypatch.setattr(large_index, "_BUCKET_BYTES", 16)
    monkeypatch.setattr(key_index, "_PIECE_BYTES", 24)
    monkeypatch.setattr(key_index, "_last_read", ((), None))
    done: list[str] = []

    def counted(name: str, plan: type) -> None:
        run = plan.run  # type: ignore[attr-defined]

        def first(self: Any, batches: Any, **place: int) -> Any:  # noqa: ANN401
            done.append(name)
            return run(self, batches, **place)

        monkeypatch.setattr(plan, "run", first)

    for name, plan in JOBS.items():
        counted(name, plan)
    return done


@pytest.mark.parametrize("on", ["id", "name", ["name", "id"]])
def test_rows_take_the_place_of_those_with_their_key(
    on: str | list[str], made: Merged, jobs: list[str]
) -> None:
    """As with a small index."""
    new = [3, 4, 50, 305, 400, *range(600, 640)]
    report = made.start(*new, on=on)
    assert made.rows == OLD | dict.fromkeys(new, "new")
    assert report.upserts == MergeCounts(
        matched=3,
        inserted=42,
        doubled=0,
        searched_files=2,
        rewritten_files=2,
        carried_rows=8,
        replans=0,
    )
    assert set(jobs) == {"pieces", "buckets"}
    assert jobs.count("buckets") > 2


def test_many_files_are_sorted_in_several_jobs(
    made: Merged, jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark sends the work items of a job with its plan."""
    monkeypatch.setattr(large_index, "_ITEMS_CHARACTERS", 200)
    made.start(*range(600, 640), 3)
    assert made.rows == OLD | dict.fromkeys([3, *range(600, 640)], "new")
    assert jobs.count("buckets") > 2


def test_keys_that_are_doubled_are_refused(made: Merged, jobs: list[str]) -> None:
    """However far apart their rows are."""
    rows = [1, 2, *range(50, 90), 1001, 2002, 2001]
    with pytest.raises(DuplicateOutputError) as caught:
        made.start(*rows, on="name")
    assert (caught.value.keys, made.rows) == (2, OLD)
    assert "'name-0001'" in str(caught.value)
    assert jobs


def test_a_start_after_a_kill_goes_on_with_the_pieces(
    made: Merged, jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys are divided once; and sorted once, if that is done."""
    with killed_after(Indexed, monkeypatch):  # Its pieces.
        made.start(3, 50, 305)
    assert set(jobs) == {"pieces"}
    jobs.clear()
    with killed_after(Indexed, monkeypatch):
        made.start(3, 50, 305)
    assert set(jobs) == {"buckets"}
    jobs.clear()
    with killed_after(Rewritten, monkeypatch):
        made.start(3, 50, 305)
    report = made.start(3, 50, 305)
    assert (jobs, made.rows) == ([], OLD | dict.fromkeys([3, 50, 305], "new"))
    assert report.upserts is not None
    assert (report.upserts.matched, report.upserts.inserted) == (2, 1)
    assert report.upserts.searched_files == 2


def test_more_rows_get_other_pieces(
    made: Merged, jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys of the new ones are not in those of an earlier start."""
    with killed_after(Indexed, monkeypatch):
        made.start(3, 50)
    jobs.clear()
    report = made.start(3, 50, 305)
    assert "pieces" in jobs
    assert made.rows == OLD | dict.fromkeys([3, 50, 305], "new")
    assert report.upserts is not None
    assert (report.upserts.matched, report.upserts.inserted) == (2, 1)


@pytest.mark.parametrize("what", ["gone", "damaged", "list"])
def test_pieces_that_are_lost_are_made_again(
    what: str, made: Merged, jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The staged files have the same keys."""
    with killed_after(Indexed, monkeypatch):
        made.start(3, 50, 305)
    jobs.clear()
    objects = made.lake.storage.objects
    kind = "-pieces.parquet" if what == "list" else ".keys"
    uris = [uri for uri in objects if "/parts/index-" in uri and uri.endswith(kind)]
    for uri in uris:
        if what == "gone":
            del objects[uri]
        else:
            objects[uri] = objects[uri][:-1] + bytes([objects[uri][-1] ^ 1])
    made.start(3, 50, 305)
    assert made.rows == OLD | dict.fromkeys([3, 50, 305], "new")
    assert jobs.index("pieces") < len(jobs) - 1


def test_pieces_that_are_lost_at_once_are_an_error(
    made: Merged, jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store loses what it has taken."""
    append = RunLog.append

    def lost(log: RunLog, body: Any) -> Any:  # noqa: ANN401
        if isinstance(body, Indexed) and body.is_in_pieces:
            objects = made.lake.storage.objects
            for uri in [uri for uri in objects if uri.endswith(".keys") and "index-" in uri]:
                del objects[uri]
        return append(log, body)

    monkeypatch.setattr(RunLog, "append", lost)
    with pytest.raises(LedgerDamagedError, match="missing"):
        made.start(3, 50)
    assert (made.rows, jobs.count("pieces")) == (OLD, 1)


@pytest.mark.parametrize("job", JOBS)
def test_keys_that_a_task_loses_are_missed(
    job: str, made: Merged, jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that they replace would stay."""
    run = JOBS[job].run  # type: ignore[attr-defined]

    def lossy(self: Any, batches: Any, **place: int) -> Any:  # noqa: ANN401
        report = run(self, batches, **place)
        object.__setattr__(report, "results", report.results[1:])
        return report

    monkeypatch.setattr(JOBS[job], "run", lossy)
    with pytest.raises(JobFailedError, match=r"does not hold the keys|tasks that sort keys"):
        made.start(3, 50, 305)
    assert (made.rows, bool(jobs)) == (OLD, True)


def test_a_key_wider_than_expected_makes_a_large_index(
    made: Merged, jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """How wide keys are shows when they are read."""
    monkeypatch.setattr(base, "SMALL_ROWS", 100)
    monkeypatch.setattr(key_index, "SMALL_BYTES", 40)
    made.start(3, 50, 305)
    assert not jobs
    made.start(3, 50, 306, on="name", run_id="by name")
    assert set(jobs) == {"pieces", "buckets"}
    assert [by for id_, by in made.rows.items() if id_ in {3, 50, 306}] == ["new"] * 3


def test_a_sweep_takes_pieces_files_and_hits(
    made: Merged, jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like all parts that no receipt needs."""
    monkeypatch.setattr(key_hits, "_INLINE_BYTES", 0)
    made.start(3, 305)
    objects = made.lake.storage.objects
    assert jobs
    assert {uri.rpartition("/")[2][:4] for uri in objects if "/parts/" in uri} >= {"hits", "inde"}
    sweep(made.lake.ledger("r"), lambda _identity: made.lake.sink)
    assert not [uri for uri in objects if "index-" in uri or "hits-" in uri]
    assert made.rows == OLD | {3: "new", 305: "new"}


# ---- What an upsert counts


@pytest.mark.parametrize("inline_bytes", [0, 10_000])
def test_doubled_keys_and_those_of_several_files_are_counted_once(
    inline_bytes: int, made: Merged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each key is matched once, however many rows of the table have it."""
    monkeypatch.setattr(key_hits, "_INLINE_BYTES", inline_bytes)
    made.append([3, 7, 100])
    made.append([3])
    report = made.start(3, 100, 101, 500)
    assert report.replaced_rows == 6
    counts = report.upserts
    assert counts is not None
    assert (counts.matched, counts.inserted, counts.doubled) == (3, 1, 3)
    assert "3 matched, 1 inserted, 3 doubled keys replaced" in str(report)
    assert f"{counts.searched_files} searched, {counts.rewritten_files} rewritten" in str(report)
    again = made.start(3, 100, 101, 500)
    assert (again.outcome, again.upserts) == ("already_committed", counts)


def test_a_row_that_a_delete_hides_is_not_matched(tmp_path: Path) -> None:
    """It is in the table no more."""
    made = Merged.table_of(tmp_path, UNPARTITIONED_PARTITION_SPEC)
    files = made.lake.table.inspect.files().to_pylist()
    path = max(files, key=lambda file: int(file["record_count"]))["file_path"]
    ids = made.lake.table.scan().to_arrow()["id"].to_pylist()
    delete_positions(made.lake.table, {path: [0, 1]})
    left = made.lake.table.scan().to_arrow()["id"].to_pylist()
    hidden = sorted({id_ for id_ in ids if id_ is not None} - set(left))
    report = made.start(*hidden, *[id_ for id_ in left if id_ is not None][:2])
    assert hidden == [0, 1]
    assert report.upserts is not None
    assert (report.upserts.matched, report.upserts.inserted) == (2, 2)


def test_a_search_of_an_earlier_version_is_not_counted(
    made: Merged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It did not note which keys it found: nothing is said rather than something wrong."""
    with killed_after(Rewritten, monkeypatch), monkeypatch.context() as old:
        old.setattr("holdfast.worker.key_index.write_hits", lambda *_: "")
        made.start(3, 50)
    report = made.start(3, 50)
    assert (report.upserts, report.replaced_rows) == (None, 1)
    assert made.rows == OLD | {3: "new", 50: "new"}


def test_damaged_hits_end_the_start(made: Merged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures must be those of the rows that went."""
    monkeypatch.setattr(key_hits, "_INLINE_BYTES", 0)
    with killed_after(Rewritten, monkeypatch):
        made.start(3, 50)
    objects = made.lake.storage.objects
    (uri,) = [uri for uri in objects if "/hits-" in uri]
    objects[uri] = objects[uri][:-1] + b"x"
    with pytest.raises(LedgerDamagedError, match="digest"):
        made.start(3, 50)
    assert made.rows == OLD


def test_a_replan_is_counted(made: Merged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others had changed the table before the first post."""
    post, others = IcebergSink.post, [[3, 4]]

    def act_first(sink: Any, *args: Any) -> Any:  # noqa: ANN401
        if others:
            made.append(others.pop())
        return post(sink, *args)

    monkeypatch.setattr(IcebergSink, "post", act_first)
    report = made.start(3, 50)
    assert report.upserts is not None
    assert (report.upserts.replans, report.upserts.doubled) == (1, 1)
    assert "1 replan" in str(report)
