"""`inspect`: the log in words, the tasks, and what the next start would do."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from holdfast.cli import inspect
from holdfast.model.records import Abort
from holdfast.model.work import Chunk
from tests.fakes.cli_lake import CliLake, lake
from tests.fakes.cli_said import facts, said, stopped, unknown
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.rig import Rig
from tests.fakes.watched_transform import WatchedTransform
from tests.ledgers.record import sealed

__all__ = ["lake"]


def test_inspect_explains_the_log_record_by_record(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each record is explained in words."""
    lake.start("r", MemorySubmitter(range(1200)))
    printed = said(lake, capsys, "inspect", "r")
    for text in (
        "claims the run",
        "a job processes 1,200 of 1,200 rows",
        "about to post 1,200 rows",
    ):
        assert text in printed
    assert "no row is missing, and all are in table files" in printed
    assert "landed: the post of record 4 is snapshot" in printed
    found = facts(lake, capsys, "inspect", "r")
    kinds = [record["kind"] for record in found["records"]]
    assert kinds == ["claim", "plan", "seal", "intent", "receipt"]
    assert found["records"][4]["body"]["rows"] == 1200
    assert found["identity"]["table"] == "lake.db.t"


def test_inspect_says_where_values_were_compared(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """A check by keys is not mentioned; a check by rows is, and the JSON names the columns."""
    lake.start("k", MemorySubmitter(range(12)))
    assert "values were compared" not in said(lake, capsys, "inspect", "k")
    sink = lake.make_table()
    lake.start("v", MemorySubmitter(range(12)), sink=sink, verify_input="rows")
    assert "a job processes 12 of 12 rows; values were compared too" in said(
        lake, capsys, "inspect", "v"
    )
    (plan,) = [
        record["body"]
        for record in facts(lake, capsys, "inspect", "v")["records"]
        if record["kind"] == "plan"
    ]
    assert plan["input"]["columns"] == ["id int64"]


def test_inspect_distinguishes_a_next_pass_from_a_new_driver(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process claims once for each of its jobs; after a stop the claim is a new start."""
    rig = stopped()
    rig.start(transform=WatchedTransform())
    lake.put(rig, "r")
    records = facts(lake, capsys, "inspect", "r")["records"]
    claims = [record["says"] for record in records if record["kind"] == "claim"]
    assert ["claims the run" in claim for claim in claims] == [True, True, False]
    assert claims[-1].startswith("the same driver begins its next pass")


def test_inspect_lists_what_each_task_has_done(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """It lists rows, records, how the task ended, where and when."""
    lake.put(sealed(), "r")
    found = facts(lake, capsys, "inspect", "r")
    (task,) = found["tasks"]
    assert (task["claim"], task["job"], task["place"]) == (1, "rows", 0)
    assert (task["rows"], task["records"], task["chunks"], task["end"]) == (6, 3, 3, "")
    assert task["host"]
    assert task["last_at"]
    assert "1 rows 0 6 3 3 0 open" in said(lake, capsys, "inspect", "r")


def test_inspect_lists_no_more_tasks_than_asked_for(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """A large job has a hundred thousand; the newest are listed."""
    lake.start("r", MemorySubmitter(range(3), range(3, 6), range(6, 9)))
    found = facts(lake, capsys, "inspect", "r", "--tasks", "2")
    assert (found["task_logs"], [task["place"] for task in found["tasks"]]) == (3, [1, 2])
    assert "3 task logs, the newest 2 of them" in said(lake, capsys, "inspect", "r", "--tasks", "2")
    assert facts(lake, capsys, "inspect", "r", "--tasks", "0")["tasks"] == []


@pytest.mark.parametrize(
    ("make", "steps"),
    [
        (sealed, ["wait", "keep 6 rows", "process 14 rows", "put 3 chunks", "post one commit"]),
        (stopped, ["keep 15 rows", "process 5 rows", "put 5 chunks", "post one commit"]),
        (unknown, ["wait", "look at the table first", "post one commit"]),
    ],
)
def test_inspect_says_what_a_start_would_do(
    lake: CliLake,
    capsys: pytest.CaptureFixture[str],
    make: Callable[[], Rig],
    steps: list[str],
) -> None:
    """Each step is listed with its reason."""
    lake.put(make(), "r")
    found = facts(lake, capsys, "inspect", "r")["start_would"]
    assert len(found) == len(steps)
    assert all(said.startswith(step) for said, step in zip(found, steps, strict=True))


def test_inspect_of_an_ended_run_says_that_a_start_does_nothing(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """A landed run returns its receipt; an aborted run is refused."""
    lake.start("landed", MemorySubmitter(range(3)))
    lake.start_and_die("given-up", MemorySubmitter(range(3), range(3, 6)))
    lake.call("abort", "given-up", "--yes", *lake.catalog_arguments)
    capsys.readouterr()
    assert "write nothing, and return the receipt" in said(lake, capsys, "inspect", "landed")
    assert "refuse, as the run was aborted" in said(lake, capsys, "inspect", "given-up")


def test_inspect_never_advises_to_start_over_while_rows_may_be_in_the_table(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """An abort may follow a receipt, or a post whose outcome is unknown."""
    landed, under_way = Rig(), unknown()
    landed.start()
    for rig, run_id in ((landed, "landed"), (under_way, "under-way")):
        rig.ledger().log.claim(Abort(reason="too late"))
        lake.put(rig, run_id)
    found = facts(lake, capsys, "inspect", "landed")
    assert found["state"] == "committed"
    assert "nothing is left to do" in found["advice"]
    assert "write nothing, and return the receipt" in found["start_would"]
    found = facts(lake, capsys, "inspect", "under-way")
    assert "`holdfast abort under-way` again before you start over" in found["advice"]


def test_failed_rows_are_listed_with_their_errors(
    lake: CliLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """As many as are wanted: what to look at before the transform is mended."""

    def refuse(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch["id"][0].as_py() % 3 == 0:
            raise ValueError(f"no price for {batch['id'][0]}\x1b[2J")
        return batch

    options: dict[str, Any] = {"batch_rows": 1, "retries": 0, "max_errors": 10}
    lake.start("r", MemorySubmitter(range(10)), transform=refuse, on_error="quarantine", **options)
    assert lake.call("inspect", "r", "--failed") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("4 failed rows of r\n")
    assert "no price for 9" in printed
    assert "\x1b" not in printed
    assert lake.call("inspect", "r", "--failed", "2", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["failed_rows"], [row["key"] for row in found["rows"]]) == (
        4,
        [{"id": 0}, {"id": 3}],
    )
    assert lake.call("status", "r") == 0
    printed = capsys.readouterr().out
    assert "done      6 of 10 rows (60%), 4 failed" in printed
    assert "4 rows set aside: `holdfast inspect r --failed` shows them" in printed


def test_keys_of_failed_rows_are_printed_whatever_their_type(
    lake: CliLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON has no dates, decimals or bytes: these are texts there."""
    key = {"day": dt.date(2026, 11, 17), "price": Decimal("1.5"), "raw": b"\xff", "id": 7}
    lake.start("r", MemorySubmitter(range(3)))
    rows = pa.RecordBatch.from_pylist([{"key": key, "error": "bad", "attempts": 1}])
    chunk = Chunk(rows=1, size_bytes=1, digest="")
    monkeypatch.setattr(inspect, "quarantine_chunks", lambda _: {"uri": chunk})
    monkeypatch.setattr(inspect, "read_chunk", lambda *_: [rows])
    assert lake.call("inspect", "r", "--failed", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["key"] == {"day": "2026-11-17", "price": "1.5", "raw": "b'\\xff'", "id": 7}
    assert lake.call("inspect", "r", "--failed") == 0
    assert "day='2026-11-17'" in capsys.readouterr().out
