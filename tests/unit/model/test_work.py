"""Work: what a record supersedes and stages, and what dropping it restores."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from holdfast.model.coverage import Coverage, InputSums, Span
from holdfast.model.stored import RecordDamagedError
from holdfast.model.work import Rewrite, StagedGroup, StagedTotals, TaskRecord, Work
from tests.fakes.memory_writer import staged_group
from tests.fakes.task_ledgers import group_of, record

# ---- Work: a record names what it supersedes, and dropping it restores exactly that
A = record("00000003/rows/000000/000000000001/0000", 10, chunk=10)
B = record("00000003/rows/000000/000000000001/0001", 5, chunk=4)
CUT = record(
    "00000003/rows/000000/000000000001/0002",
    2,
    groups=[group_of("cut", 16)],
    supersedes=[A.name, B.name],
)
REPLAY = record(
    "00000009/replay/000000/000000000007/0000",
    groups=[group_of("replay", 14)],
    supersedes=[A.name, B.name],
)
SCANNED = Coverage(rows=5, low=0, high=0, keys_bytes=0, ranges=((0, 3), (7, 9)))
NOTHING_REFUSED: tuple[str, ...] = ()


def accepted(*records: TaskRecord) -> Work:
    """Return work with these records, none of which may be refused."""
    work, refused = Work().plus(records)
    assert refused == NOTHING_REFUSED
    return work


def names(work: Work) -> list[str]:
    """Return the names of all accepted records."""
    return [record.name for record in work.records]


def test_a_chunk_waits_until_a_record_supersedes_it() -> None:
    """Its rows are done, but in no table file: only a record that names it changes that."""
    work = accepted(A, B)
    assert [record.name for record in work.waiting] == [A.name, B.name]
    assert work.groups == ()
    work, _ = work.plus([CUT])
    assert work.waiting == ()
    assert work.groups == CUT.groups


def test_the_coverage_of_superseded_records_still_counts() -> None:
    """Rows that move from a chunk into a file stay done, and are not counted twice."""
    before, after = accepted(A, B), accepted(A, B, CUT)
    assert before.sums == InputSums(rows=15, null_keys=0, low=150, high=1500)
    assert after.sums == InputSums(rows=17, null_keys=0, low=170, high=1700)


def test_a_replay_covers_nothing_of_its_own() -> None:
    """It moves rows and computes none: the sums stay the same."""
    work = accepted(A, B, REPLAY)
    assert work.sums == accepted(A, B).sums
    assert (work.waiting, work.groups) == ((), REPLAY.groups)
    assert REPLAY.name not in [record.name for record in work.with_keys]


def test_a_record_supersedes_only_what_it_names() -> None:
    """Never by position: an older chunk of the same log that is not named keeps waiting."""
    only_b = record("00000003/rows/000000/000000000001/0002", 2, supersedes=[B.name])
    assert accepted(A, B, only_b).waiting == (A,)


def test_dropping_a_cut_brings_back_its_chunks() -> None:
    """Only the cut's own rows are computed again; those in its chunks are still there."""
    work = accepted(A, B, CUT).without([CUT.name])
    assert work.waiting == (A, B)
    assert work.groups == ()
    assert work.sums == accepted(A, B).sums


def test_dropping_a_chunk_drops_the_cut_that_holds_its_rows() -> None:
    """The cut's files hold rows that are to be computed again; the other chunk stays."""
    work = accepted(A, B, CUT).without([A.name])
    assert names(work) == [B.name]
    assert work.waiting == (B,)


def test_dropping_a_chunk_drops_the_replay_that_holds_its_rows() -> None:
    """The claim under which the rows were put into a file does not matter."""
    work = accepted(A, B, REPLAY).without([B.name])
    assert names(work) == [A.name]
    assert work.groups == ()


def test_dropping_follows_records_that_hold_each_other() -> None:
    """Every record that holds a dropped row is dropped too, through any number of records."""
    again = record("00000003/rows/000000/000000000001/0001", 0, chunk=10, supersedes=[A.name])
    last = record("00000005/replay/000000/000000000001/0000", 0, supersedes=[again.name])
    work = accepted(A, again, last)
    assert names(work.without([A.name])) == []
    assert names(work.without([last.name])) == [A.name, again.name]


def test_dropping_an_unknown_name_changes_nothing() -> None:
    """An unknown name, or no name at all, leaves the work as it is."""
    work = accepted(A, B, CUT)
    assert work.without([]) == work.without(["00000001/rows/000000/000000000001/0000"]) == work


def test_a_dropped_chunk_can_be_superseded_again_by_another() -> None:
    """After the cut is lost, its chunks are replayed like those of any dead task."""
    work, refused = accepted(A, B, CUT).without([CUT.name]).plus([REPLAY])
    assert refused == NOTHING_REFUSED
    assert (work.waiting, work.groups) == ((), REPLAY.groups)


def test_a_record_that_supersedes_the_unknown_is_refused() -> None:
    """Its files hold rows that were not accepted: another record may cover them."""
    work, refused = accepted(A).plus([CUT])
    assert refused == (CUT.name,)
    assert names(work) == [A.name]
    assert work.waiting == (A,)


def test_a_record_that_supersedes_a_superseded_one_is_refused() -> None:
    """Two replays of one chunk would put its rows into the table twice; the first one stays."""
    work, refused = accepted(A, B, CUT).plus([REPLAY])
    assert refused == (REPLAY.name,)
    assert work.groups == CUT.groups
    together, refused = Work().plus([A, B, REPLAY, CUT])
    assert refused == (CUT.name,)
    assert together.groups == REPLAY.groups


def test_a_record_that_supersedes_one_too_many_is_refused_whole() -> None:
    """A file cannot be used in part: its other chunk keeps waiting."""
    only_a = record("00000008/replay/000000/000000000005/0000", supersedes=[A.name])
    work, refused = accepted(A, B, only_a).plus([REPLAY])
    assert refused == (REPLAY.name,)
    assert work.waiting == (B,)


def test_a_record_is_accepted_once() -> None:
    """Reading the same log twice adds nothing."""
    work, refused = accepted(A, B, CUT).plus([A, B, CUT])
    assert refused == (A.name, B.name, CUT.name)
    assert names(work) == [A.name, B.name, CUT.name]
    assert Work().plus([A, A])[1] == (A.name,)


def test_a_record_cannot_supersede_itself() -> None:
    """It is not known before it is accepted."""
    itself = record(A.name, 10, chunk=10, supersedes=[A.name])
    assert Work().plus([itself])[1] == (A.name,)


def test_a_record_that_supersedes_files_is_refused() -> None:
    """Files are never put into files again: both would be in the table."""
    twice = record("00000009/replay/000000/000000000008/0000", supersedes=[CUT.name])
    assert accepted(A, B, CUT).plus([twice])[1] == (twice.name,)
    assert accepted(A, B).plus([CUT, twice])[1] == (twice.name,)


def test_work_adds_up_what_it_cost() -> None:
    """The report says how many seconds a resume has saved."""
    assert accepted(record("1/a/0/0/0000", 1, seconds=2.5)).seconds == 2.5
    assert accepted().seconds == 0.0


@pytest.mark.parametrize(
    ("spans", "proven"),
    [
        ([(1, 5), (6, 9)], True),
        ([(6, 9), (1, 5)], True),
        ([(1, 1), (2, 2), (3, 3)], True),
        ([(-9, -7), (-6, 0)], True),
        ([(1, 5), (5, 9)], False),
        ([(1, 9), (3, 4)], False),
        ([(1, 5), (1, 5)], False),
        ([(1, 5), None], False),
        ([None], False),
        ([], True),
    ],
)
def test_disjoint_spans_prove_that_no_key_is_a_duplicate(
    spans: list[tuple[int, int] | None], *, proven: bool
) -> None:
    """Without a span for every record with keys, or with a shared end, nothing is proven."""
    records = [record(f"1/rows/0/0/{i:04d}", 5, span=span) for i, span in enumerate(spans)]
    assert accepted(*records).proves_unique() is proven


@pytest.mark.parametrize(
    ("ranges", "proven"),
    [
        ([[(0, 5)], [(5, 9)]], True),
        ([[(5, 9), (0, 2)], [(2, 5)]], True),
        ([[(0, 5)], [(4, 9)]], False),
        ([[(0, 1)], [(0, 1)]], False),
        ([[(0, 9)], [(3, 4)]], False),
    ],
)
def test_disjoint_ranges_prove_that_no_row_is_a_duplicate(
    ranges: list[list[Span]], *, proven: bool
) -> None:
    """The end of a range is the first row after it."""
    records = [
        TaskRecord(
            name=f"1/rows/{i}/0/0000", coverage=replace(SCANNED, ranges=tuple(spans)), seconds=0.0
        )
        for i, spans in enumerate(ranges)
    ]
    assert accepted(*records).proves_unique() is proven


def test_only_the_records_of_another_work_are_left() -> None:
    """A report of kept rows must not count those dropped since."""
    assert names(accepted(A, B, CUT).only(accepted(B, A))) == [A.name, B.name]


def test_a_record_without_rows_needs_no_span() -> None:
    """A replay has no keys that could be duplicates."""
    covered = record("1/rows/0/0/0000", 5, span=(1, 5))
    assert accepted(covered, record("1/rows/0/0/0001", 0)).proves_unique()


def test_a_name_contains_claim_and_log() -> None:
    """The driver gets both from the name alone."""
    assert (REPLAY.claim, REPLAY.log) == (9, "00000009/replay/000000/000000000007")


@pytest.mark.parametrize(
    "one",
    [
        A,
        CUT,
        REPLAY,
        record("00000003/rows/000000/000000000001/0003", 3, span=(-(2**63), 2**63 - 1)),
        record("00000003/rows/000000/000000000001/0003", 0, end="failed", seconds=1.25),
        record("00000003/rows/000000/000000000001/0003", 2**40, end="complete"),
        record("00000003/rows/000000/000000000001/0003", 2, quarantine=A.chunk, cost=0.25),
        TaskRecord(name="1/rows/0/0/0000", coverage=SCANNED, seconds=0.0),
    ],
)
def test_a_record_survives_json(one: TaskRecord) -> None:
    """Through text, where tuples are lists and numbers must not lose a digit."""
    assert TaskRecord.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_the_order_of_drops_does_not_matter() -> None:
    """Nothing depends on position: one by one or all at once, the same work is left."""
    records = [record(f"1/rows/0/0/{i:04d}", 1, chunk=1) for i in range(6)]
    cuts = [
        record(
            f"1/rows/0/0/{6 + i:04d}", 1, supersedes=[r.name for r in records[2 * i : 2 * i + 2]]
        )
        for i in range(3)
    ]
    work = accepted(*records, *cuts)
    drops = [records[0].name, cuts[0].name, cuts[1].name]
    for seed in range(6):
        one_by_one = work
        for name in random.Random(seed).sample(drops, len(drops)):
            one_by_one = one_by_one.without([name])
        assert one_by_one == work.without(drops)


# ---- Staged groups: what they add up to, and how they are stored
def test_staged_totals_add_up_all_files_of_all_groups() -> None:
    """Rows, files and bytes of a run are the sums over its files; manifests do not count."""
    groups = [staged_group("a", rows=3), staged_group("b", rows=4)]
    assert StagedTotals.of(groups) == StagedTotals(rows=7, files=2, size_bytes=700)
    assert StagedTotals.of([]) == StagedTotals(rows=0, files=0, size_bytes=0)


def test_a_staged_group_survives_json() -> None:
    """The driver reads what a task reported."""
    group = staged_group("a")
    assert StagedGroup.from_json(group.to_json()) == group


def test_what_became_of_a_file_survives_json_of_every_version() -> None:
    """Earlier versions did not note which keys they found."""
    rewrite = Rewrite(
        state="s", removed_rows=2, kept_rows=1, group=staged_group("a"), hits='{"keys":2}'
    )
    assert Rewrite.from_json(rewrite.to_json()) == rewrite
    assert Rewrite.from_json('["s", 1, 2, null]') == Rewrite(state="s", removed_rows=1, kept_rows=2)
    for damaged in ("[]", '["s", -1, 2, null]', '["s", 1, 2, null, 3]', "{}"):
        with pytest.raises(RecordDamagedError):
            Rewrite.from_json(damaged)
