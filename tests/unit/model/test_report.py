"""The report says what a start did."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.model.report import Compared, Outcome, Report, readable_size, readable_time

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


def test_a_report_shows_what_was_written() -> None:
    """The printed report holds every fact of a commit in readable form."""
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


@pytest.mark.parametrize(
    ("compared", "line", "outcome"),
    [
        ("keys", "compared by its keys", "committed"),
        ("keys", "compared by its keys; values were not compared", "already_committed"),
        ("rows", "compared row by row, including values", "committed"),
        ("rows", "compared row by row, including values", "already_committed"),
        ("files", "the pinned files", "committed"),
        ("files", "the pinned files", "already_committed"),
        (None, "not compared", "committed"),
        (None, "not compared, neither keys nor values", "already_committed"),
    ],
)
def test_a_report_says_how_the_input_was_compared(
    compared: Compared, line: str, outcome: Outcome
) -> None:
    """Keys are not values: a user must be able to see which of them were compared."""
    text = str(replace(REPORT, outcome=outcome, input_compared=compared))
    assert f"  input     {line}" in text.splitlines()


def test_a_report_of_an_earlier_commit_claims_no_work() -> None:
    """Tasks and posts of another start are not shown as if this one had done them."""
    text = str(replace(REPORT, outcome="already_committed", tasks=0, posts=0))
    assert "outcome   already committed" in text
    assert "tasks" not in text
    assert "posts" not in text


def test_a_report_says_what_a_resume_has_saved_and_what_it_could_not_use() -> None:
    """Kept, dropped and copied rows have a line each, and so has each version of the code."""
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
        "  dropped   5 rows covered twice",
        "  withdrawn 6 rows of removed files",
        "  copied    7 files that had waited long",
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


def test_a_report_says_when_the_rows_presence_is_unknown() -> None:
    """Unknown presence is never left out of the report."""
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


@pytest.mark.parametrize(
    ("files", "tasks", "size_bytes", "advised"),
    [
        (1_000, 8, 1_440_000_000, True),
        (1_000, 8, 144_000_000_000, False),
        (64, 2, 1_000, False),
        (1_000, 500, 1_440_000_000, False),
    ],
)
def test_many_small_files_lead_to_advice(
    files: int, tasks: int, size_bytes: int, *, advised: bool
) -> None:
    """Tasks write to every partition: the report says what to do about it."""
    report = replace(REPORT, files=files, tasks=tasks, size_bytes=size_bytes)
    assert ("cluster the input by the partition columns" in str(report)) == advised


@pytest.mark.parametrize(
    ("replaced", "carried", "advised"),
    [(100, 1_000_000, True), (100, 999_999, False), (500_000, 4_999_999, False), (1, 0, False)],
)
def test_rows_that_were_carried_over_lead_to_advice(
    replaced: int, carried: int, *, advised: bool
) -> None:
    """A million at least, and ten for each replaced row: then deletes cost less."""
    report = replace(REPORT, replaced_rows=replaced, replaced_files=24, carried_rows=carried)
    assert ("write.merge.mode to merge-on-read" in report.advice) == advised
    if carried:
        how = f"{replaced:,} rows in 24 files, with {carried:,} others written anew"
        assert f"  replaced  {how}" in str(report).splitlines()


def test_a_report_says_how_many_files_of_deletes_there_are() -> None:
    """Readers have to apply them."""
    report = replace(REPORT, replaced_rows=1, replaced_files=1, delete_files=1)
    line = "  replaced  1 row in 1 file, by 1 file of position deletes"
    assert line in str(report).splitlines()


def test_a_report_says_how_rows_get_into_an_index() -> None:
    """What adds new rows may bring back old answers for rows that were computed again."""
    text = str(replace(REPORT, unindexed_rows={"a": 1, "b": 2_000}))
    cure = "optimize_indices() adds new rows; after update_columns build it again (replace=True)"
    assert f"  index     a does not cover 1 row yet: {cure}" in text.splitlines()
    assert f"  index     b does not cover 2,000 rows yet: {cure}" in text.splitlines()
