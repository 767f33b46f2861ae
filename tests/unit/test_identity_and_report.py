"""Identity says what makes a run another run; the report says what a start did."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from holdfast.model.records import Identity
from holdfast.model.report import Compared, Outcome, Report, readable_size, readable_time
from holdfast.model.stored import typed_whole
from holdfast.model.work import StagedGroup, StagedTotals
from tests.fakes.memory_writer import staged_group

IDENTITY = Identity(
    table="lake.db.t",
    table_uuid="u1",
    branch="main",
    mode="append",
    key=("day", "id"),
    session_time_zone="UTC",
    ansi_mode="true",
    version="",
)
REPORT = Report(
    run_id="r",
    table="lake.db.t",
    outcome="committed",
    snapshot_id=42,
    rows=1_234_567,
    files=64,
    size_bytes=1_440_000_000,
    tasks=8,
    passes=1,
    posts=2,
    seconds=12.34,
)


def test_an_identity_is_read_back_as_it_was_written() -> None:
    """Lists of JSON become the tuples that a later start compares with."""
    assert typed_whole(IDENTITY.to_json(), Identity) == IDENTITY


def test_the_same_job_has_no_differences() -> None:
    """A retry of the same script is the same run."""
    assert IDENTITY.differences(replace(IDENTITY)) == []


SCAN = '{"scan": "parquet", "columns": ["a", "b"], "where": null}'
OWN = "it reads an input of its own"
ANSI = "the session's ANSI mode (spark.sql.ansi.enabled)"
ZONE = "the session's time zone (spark.sql.session.timeZone)"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("branch", "audit", "its branch was 'main', and now is 'audit'"),
        ("mode", "overwrite", "its mode was 'append', and now is 'overwrite'"),
        ("key", ("id", "day"), "its key was (day, id), and now is (id, day)"),
        ("key", (), "its key was (day, id), and now is the place of a row in its file"),
        ("session_time_zone", "Asia/Tokyo", f"{ZONE} was 'UTC', and now is 'Asia/Tokyo'"),
        ("ansi_mode", "false", f"{ANSI} was 'true', and now is 'false'"),
        ("version", "2", "version= was '', and now is '2'"),
        (
            "retry_of",
            "first",
            f"{OWN}, and is now to be one that tries the failed rows of run 'first' again",
        ),
        ("input", SCAN, "it read the rows of a DataFrame, and now is to read a scan (parquet)"),
    ],
)
def test_each_difference_says_what_it_was_and_what_it_is(
    field: str, value: object, words: str
) -> None:
    """The message alone tells a user which argument to put back."""
    changed: dict[str, Any] = {field: value}
    assert replace(IDENTITY, **changed).differences(IDENTITY) == [words]


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (SCAN.replace('["a", "b"]', '["a"]'), "the scan's columns was (a, b), and now is (a)"),
        (SCAN.replace("null", '"a > 1"'), "the scan's where was not given, and now is a > 1"),
        (SCAN.replace("parquet", "files"), "it read a scan (parquet), and now is to read a scan"),
        (SCAN.replace(", ", ","), f"its input was {SCAN}, and now is"),
        ("no JSON", "it read a scan (parquet), and now is to read no JSON"),
    ],
)
def test_another_scan_is_said_by_what_it_reads(now: str, words: str) -> None:
    """Whatever the texts hold, two that differ are never taken for one job."""
    (text,) = replace(IDENTITY, input=now).differences(replace(IDENTITY, input=SCAN))
    assert text.startswith(words)


@pytest.mark.parametrize(
    ("table", "uuid", "words"),
    [
        ("lake.db.other", "u2", "it writes the table lake.db.t, and now is to write lake.db.other"),
        ("lake.db.other", "", "it writes the table lake.db.t, and now is to write lake.db.other"),
        ("lake.db.t", "u2", "the table lake.db.t is not the one that it was started with: it was"),
        ("lake.db.t", "", "the table lake.db.t that it writes was dropped since"),
    ],
)
def test_another_table_is_told_by_its_name(table: str, uuid: str, words: str) -> None:
    """A user who drops a table and creates it again does not know of UUIDs."""
    (text,) = replace(IDENTITY, table=table, table_uuid=uuid).differences(IDENTITY)
    assert text.startswith(words)
    assert "uuid" not in text.lower()
    assert "u1" not in text
    assert "u2" not in text


def test_a_renamed_table_is_the_same_table() -> None:
    """The UUID decides, not the name."""
    assert replace(IDENTITY, table="lake.db.renamed").differences(IDENTITY) == []


def test_every_difference_is_listed() -> None:
    """One message names them all, so that a user mends them at once."""
    other: dict[str, Any] = {f.name: "other" for f in fields(Identity) if f.name != "key"}
    assert len(replace(IDENTITY, **other).differences(IDENTITY)) == len(fields(Identity)) - 2


def test_a_report_shows_what_was_written() -> None:
    """The printed report holds every fact of a commit, readable for people."""
    assert str(REPORT).splitlines() == [
        "  run       r",
        "  table     lake.db.t",
        "  outcome   committed",
        "  snapshot  42",
        "  rows      1,234,567",
        "  files     64 (1.4 GB)",
        "  tasks     8",
        "  posts     2",
        "  input     compared by its keys",
        "  time      12.3 s",
    ]


@pytest.mark.parametrize("outcome", ["committed", "already_committed"])
@pytest.mark.parametrize(
    ("compared", "line"),
    [
        ("keys", "compared by its keys"),
        ("rows", "compared row by row, values and all"),
        ("files", "the files that were pinned"),
        (None, "not compared"),
    ],
)
def test_a_report_says_by_what_the_input_was_compared(
    compared: Compared, line: str, outcome: Outcome
) -> None:
    """Keys alone are not the values: a user must be able to tell which it was."""
    text = str(replace(REPORT, outcome=outcome, input_compared=compared))
    assert f"  input     {line}" in text.splitlines()


def test_a_report_of_an_earlier_commit_claims_no_work() -> None:
    """Tasks and posts of another start are not shown as if this one had done them."""
    text = str(replace(REPORT, outcome="already_committed", tasks=0, posts=0))
    assert "outcome   already committed" in text
    assert "tasks" not in text
    assert "posts" not in text


def test_a_report_says_what_a_resume_has_saved_and_what_it_could_not_use() -> None:
    """What was kept, left out or copied has a line each, and so has each version of the code."""
    text = str(
        replace(
            REPORT,
            passes=3,
            kept_rows=1_000_000,
            kept_seconds=7_260.0,
            dropped_rows=5,
            withdrawn_rows=6,
            copied_files=7,
            rows_by_code={"a" * 16: 1_000_000, "b" * 16: 234_567},
            input_compared=None,
        )
    )
    for line in (
        "  tasks     8 in 3 passes",
        "  kept      1,000,000 rows of earlier starts, 2 h 1 min of work",
        "  dropped   5 rows that were covered twice",
        "  withdrawn 6 rows whose files were removed",
        "  copied    7 files that had waited for long",
        "  code      1,000,000 by aaaaaaaa, 234,567 by bbbbbbbb",
        "  input     not compared",
    ):
        assert line in text.splitlines()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (3_599.0, "59 min 59 s"),
        (7_500.0, "2 h 5 min"),
    ],
)
def test_times_are_written_as_people_say_them(seconds: float, text: str) -> None:
    """Two units at most."""
    assert readable_time(seconds) == text


def test_a_report_says_when_the_table_no_longer_tells() -> None:
    """Unknown presence is never passed over in silence."""
    assert "unknown" in str(replace(REPORT, still_in_table="unknown"))
    assert "unknown" not in str(REPORT)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (1_500_000, "1.5 MB"),
        (10**9, "1.0 GB"),
        (25 * 10**14, "2500.0 TB"),
    ],
)
def test_sizes_are_written_as_people_write_them(size_bytes: int, text: str) -> None:
    """Powers of a thousand, one decimal."""
    assert readable_size(size_bytes) == text


def test_staged_totals_add_up_all_files_of_all_groups() -> None:
    """Rows, files and bytes of a run are the sums over its files; manifests do not count."""
    groups = [staged_group("a", rows=3), staged_group("b", rows=4)]
    assert StagedTotals.of(groups) == StagedTotals(rows=7, files=2, size_bytes=700)
    assert StagedTotals.of([]) == StagedTotals(rows=0, files=0, size_bytes=0)


def test_a_staged_group_survives_json() -> None:
    """What a task reports is what the driver reads."""
    group = staged_group("a")
    assert StagedGroup.from_json(group.to_json()) == group


@pytest.mark.parametrize(
    ("files", "tasks", "size_bytes", "advised"),
    [
        (1_000, 8, 1_440_000_000, True),
        (1_000, 8, 144_000_000_000, False),
        (64, 2, 1_000, False),
        (1_000, 500, 1_440_000_000, False),
    ],
)
def test_many_small_files_bring_advice(
    files: int, tasks: int, size_bytes: int, *, advised: bool
) -> None:
    """Tasks that write to every partition: the user is told what to do about it."""
    report = replace(REPORT, files=files, tasks=tasks, size_bytes=size_bytes)
    assert ("cluster the input by the partition columns" in str(report)) == advised
